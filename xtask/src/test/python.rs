//! Python interpreters with packages of their own, kept beside what cargo builds.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use ringfence_test_ledger::{
    E2B_PYTHON_VARIABLE, FRAMEWORKS_PYTHON_VARIABLE, MCP_PYTHON_VARIABLE, OPENAI_AGENTS_PYTHON_VARIABLE,
    PLAYWRIGHT_PYTHON_VARIABLE, PLOTTING_PYTHON_VARIABLE,
};

use crate::workspace::output_of;

/// A package that tests or measurements need, or several.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Package {
    /// Its name and version; a space between several.
    name: &'static str,
    what: &'static str,
    /// The variable that tells tests of its interpreter.
    pub(super) variable: &'static str,
}

/// What takes long to import. No test needs it.
pub(crate) const PANDAS: Package = Package { name: "pandas", what: "code that is timed", variable: "" };

/// E2B's own, at the version whose protocol the guest speaks.
pub(crate) const E2B: Package = Package {
    name: "e2b==2.63.0 e2b-code-interpreter==2.11.5",
    what: "the SDK that drives a guest",
    variable: E2B_PYTHON_VARIABLE,
};

pub(super) const PACKAGES: [Package; 6] = [
    E2B,
    Package {
        name: "langchain-e2b==0.0.6 smolagents==1.26.0 e2b==2.63.0 e2b-code-interpreter==2.11.5",
        what: "agents' frameworks that drive a server",
        variable: FRAMEWORKS_PYTHON_VARIABLE,
    },
    // It wants older ones of E2B's packages.
    Package {
        name: "openai-agents[e2b]==0.24.0",
        what: "another such framework",
        variable: OPENAI_AGENTS_PYTHON_VARIABLE,
    },
    Package { name: "mcp==2.3.0", what: "the client that drives `ringfence mcp`", variable: MCP_PYTHON_VARIABLE },
    Package {
        name: "playwright==1.65.0",
        what: "what drives a browser at the server's page",
        variable: PLAYWRIGHT_PYTHON_VARIABLE,
    },
    Package {
        name: "pandas==3.1.1 matplotlib==3.11.2",
        what: "what is shown of code's results",
        variable: PLOTTING_PYTHON_VARIABLE,
    },
];

/// Names the interpreter of a package, after installing that if no earlier run did.
///
/// Where that is impossible it says so, and what needs the package is left out.
pub(crate) fn provide(package: Package, target: &Path, install: bool) -> Option<PathBuf> {
    let Package { name, what, .. } = package;
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
    // Most of it is never imported, and need not be compiled.
    let install = ["-m", "pip", "install", "--quiet", "--no-compile"];
    output_of(Command::new(interpreter).args(install).args(packages.split(' ')))?;
    Ok(())
}
