//! The `e2b` package for JavaScript, kept beside what cargo builds.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::workspace::output_of;

/// The package, at a version whose protocol the server speaks.
const PACKAGE: &str = "e2b@2.51.0";

/// Names the directory that it is installed in, after installing it if no earlier run did.
///
/// Where that is impossible it says so, and tests that need the package skip.
pub(super) fn provide(target: &Path, install: bool) -> Option<PathBuf> {
    let directory = target.join("test-javascript").join(PACKAGE);
    let finished = directory.join("finished");
    if finished.exists() {
        return Some(directory);
    }
    if !install {
        println!("without {PACKAGE}: --no-install was given; tests that need it skip");
        return None;
    }
    println!("installing {PACKAGE}: the SDK that drives a server");
    match make(&directory).and_then(|()| Ok(fs_err::write(finished, "")?)) {
        Ok(()) => Some(directory),
        Err(error) => {
            println!("without {PACKAGE}: {error:#}; tests that need it skip");
            None
        }
    }
}

fn make(directory: &Path) -> Result<()> {
    fs_err::create_dir_all(directory)?;
    let quietly = ["--silent", "--no-audit", "--no-fund", "--ignore-scripts"];
    output_of(Command::new("npm").args(["install", PACKAGE]).args(quietly).arg("--prefix").arg(directory))?;
    Ok(())
}
