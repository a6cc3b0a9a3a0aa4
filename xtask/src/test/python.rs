//! Python interpreters with their own packages, kept in cargo's target directory.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use ringfence_test_ledger::{
    E2B_PYTHON_VARIABLE, FRAMEWORKS_PYTHON_VARIABLE, MCP_PYTHON_VARIABLE,
    OPENAI_AGENTS_PYTHON_VARIABLE, PLAYWRIGHT_PYTHON_VARIABLE, PLOTTING_PYTHON_VARIABLE,
};

use crate::workspace::output_of;

/// One or several packages that tests or measurements need.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PythonPackage {
    /// Name and version of the package, or of several packages separated by spaces.
    name: &'static str,
    what: &'static str,
    /// Variable that names the interpreter to the tests.
    pub(super) variable: &'static str,
}

/// Package that takes long to import, for measurements. No test needs it.
pub(crate) const PANDAS: PythonPackage =
    PythonPackage { name: "pandas", what: "code that is timed", variable: "" };

/// E2B's own packages, at the version whose protocol the guest speaks.
pub(crate) const E2B: PythonPackage = PythonPackage {
    name: "e2b==2.63.0 e2b-code-interpreter==2.11.5",
    what: "the SDK that drives a guest",
    variable: E2B_PYTHON_VARIABLE,
};

pub(super) const PACKAGES: [PythonPackage; 6] = [
    E2B,
    PythonPackage {
        name: "langchain-e2b==0.0.6 smolagents==1.26.0 e2b==2.63.0 e2b-code-interpreter==2.11.5",
        what: "agents' frameworks that drive a server",
        variable: FRAMEWORKS_PYTHON_VARIABLE,
    },
    // A separate environment, because this framework requires older versions of E2B's packages.
    PythonPackage {
        name: "openai-agents[e2b]==0.24.0",
        what: "another such framework",
        variable: OPENAI_AGENTS_PYTHON_VARIABLE,
    },
    PythonPackage {
        name: "mcp==2.3.0",
        what: "the client that drives `ringfence mcp`",
        variable: MCP_PYTHON_VARIABLE,
    },
    PythonPackage {
        name: "playwright==1.65.0",
        what: "what drives a browser at the server's page",
        variable: PLAYWRIGHT_PYTHON_VARIABLE,
    },
    PythonPackage {
        name: "pandas==3.1.1 matplotlib==3.11.2",
        what: "what is shown of code's results",
        variable: PLOTTING_PYTHON_VARIABLE,
    },
];

/// Returns the interpreter of a package, and installs the package if no earlier run did.
///
/// If that is impossible, prints the reason and returns `None`; tests that need the package are
/// then left out.
pub(crate) fn provide(package: PythonPackage, target: &Path, install: bool) -> Option<PathBuf> {
    let PythonPackage { name, what, .. } = package;
    let environment = target.join("test-python").join(name);
    let interpreter = environment.join("bin/python");
    let finished = environment.join("finished");
    if finished.exists() {
        return Some(interpreter);
    }
    if !install {
        println!("without {name}: --no-install was given; what needs it is left out");
        return None;
    }
    println!("installing {name}: {what}");
    match make(name, &environment, &interpreter).and_then(|()| Ok(fs_err::write(finished, "")?)) {
        Ok(()) => Some(interpreter),
        Err(error) => {
            println!("without {name}: {error:#}; what needs it is left out");
            None
        }
    }
}

fn make(packages: &str, environment: &Path, interpreter: &Path) -> Result<()> {
    output_of(Command::new("python3").args(["-m", "venv", "--clear"]).arg(environment))?;
    // Skip compilation, because most modules are never imported.
    let install = ["-m", "pip", "install", "--quiet", "--no-compile"];
    output_of(Command::new(interpreter).args(install).args(packages.split(' ')))?;
    Ok(())
}
