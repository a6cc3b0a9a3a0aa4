//! E2B's packages for JavaScript, kept in cargo's target directory.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::workspace::output_of;

/// The packages, at versions whose protocol the server speaks.
const PACKAGES: [&str; 2] = ["e2b@2.51.0", "@e2b/code-interpreter@2.8.0"];

/// Returns the directory of the installed packages, and installs them if no earlier run did.
///
/// If that is impossible, prints the reason and returns `None`; tests that need the packages then
/// skip.
pub(super) fn provide(target: &Path, install: bool) -> Option<PathBuf> {
    let names = PACKAGES.join(" ");
    let directory = target.join("test-javascript").join(names.replace('/', "+"));
    let finished = directory.join("finished");
    if finished.exists() {
        return Some(directory);
    }
    if !install {
        println!("without {names}: --no-install was given; tests that need them skip");
        return None;
    }
    println!("installing {names}: the SDK that drives a server");
    match make(&directory).and_then(|()| Ok(fs_err::write(finished, "")?)) {
        Ok(()) => Some(directory),
        Err(error) => {
            println!("without {names}: {error:#}; tests that need them skip");
            None
        }
    }
}

fn make(directory: &Path) -> Result<()> {
    fs_err::create_dir_all(directory)?;
    let quietly = ["--silent", "--no-audit", "--no-fund", "--ignore-scripts"];
    output_of(
        Command::new("npm")
            .args(["install"])
            .args(PACKAGES)
            .args(quietly)
            .arg("--prefix")
            .arg(directory),
    )?;
    Ok(())
}
