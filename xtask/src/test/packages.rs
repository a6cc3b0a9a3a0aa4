//! What the tests use and a fresh Debian or Ubuntu machine may lack.

use std::process::Command;

use anyhow::Result;

use crate::workspace::{find_program, run as run_command};

struct Package {
    name: &'static str,
    /// The program that shows that the package is there.
    program: &'static str,
    purpose: &'static str,
}

const PACKAGES: &[Package] = &[
    Package { name: "bubblewrap", program: "bwrap", purpose: "the bwrap backend, and the peer to compare with" },
    Package { name: "util-linux", program: "unshare", purpose: "finding out whether user namespaces are allowed" },
    Package { name: "passwd", program: "useradd", purpose: "making an ordinary user for the tests" },
    Package { name: "git", program: "git", purpose: "repositories and worktrees as workspaces" },
    Package { name: "python3", program: "python3", purpose: "system calls and scripts from inside a sandbox" },
];

/// Installs what is missing when that is asked for and possible; otherwise says which tests will skip.
pub(super) fn provide(install: bool) -> Result<()> {
    let missing: Vec<&Package> = PACKAGES.iter().filter(|package| find_program(package.program).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let obstacle = match install {
        false => Some("--no-install was given"),
        true if !rustix::process::geteuid().is_root() => Some("only root can install it"),
        true if find_program("apt-get").is_none() => Some("there is no apt-get here"),
        true => None,
    };
    for package in &missing {
        match obstacle {
            None => println!("installing {}: {}", package.name, package.purpose),
            Some(why) => println!("without {} ({}): {why}; tests that need it skip", package.name, package.purpose),
        }
    }
    if obstacle.is_some() {
        return Ok(());
    }
    let names = missing.iter().map(|package| package.name);
    let installed = run_command(&mut apt_get(["update", "--quiet"]))
        .and_then(|()| run_command(apt_get(["install", "--yes", "--no-install-recommends"]).args(names)));
    // Without a mirror in reach the tests are still worth running: each need is probed and each skip is named.
    if let Err(error) = installed {
        eprintln!("warning: {error:#}; tests that need what is missing skip");
    }
    Ok(())
}

fn apt_get<const N: usize>(arguments: [&str; N]) -> Command {
    let mut command = Command::new("apt-get");
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    command
}
