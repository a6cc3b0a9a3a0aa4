//! A Python interpreter with the `e2b` package, kept beside what cargo builds.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::workspace::output_of;

/// The package, at the version whose protocol the guest speaks.
const PACKAGE: &str = "e2b==2.63.0";

/// Names the interpreter, after installing the package if no earlier run did.
///
/// Where that is impossible it says so, and tests that need the package skip.
pub(super) fn provide(target: &Path, install: bool) -> Option<PathBuf> {
    let environment = target.join("test-python").join(PACKAGE);
    let interpreter = environment.join("bin/python");
    let finished = environment.join("finished");
    if finished.exists() {
        return Some(interpreter);
    }
    if !install {
        println!("without {PACKAGE}: --no-install was given; tests that need it skip");
        return None;
    }
    println!("installing {PACKAGE}: the SDK that drives a guest");
    match make(&environment, &interpreter).and_then(|()| Ok(fs_err::write(finished, "")?)) {
        Ok(()) => Some(interpreter),
        Err(error) => {
            println!("without {PACKAGE}: {error:#}; tests that need it skip");
            None
        }
    }
}

fn make(environment: &Path, interpreter: &Path) -> Result<()> {
    output_of(Command::new("python3").args(["-m", "venv", "--clear"]).arg(environment))?;
    output_of(Command::new(interpreter).args(["-m", "pip", "install", "--quiet", PACKAGE]))?;
    Ok(())
}
