//! `cargo xtask seccomp-profile`: generates the seccomp profile of the dev container from the table
//! of our own filter.
//!
//! The chores depend on none of our crates. Therefore a test of the launcher's crate compares the
//! file with the table, and writes the file under `RINGFENCE_BLESS=1`.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::arguments::ChoreArguments;
use crate::workspace::{Workspace, output_of};

const FILE: &str = ".devcontainer/seccomp.json";
const TEST: &str =
    "seccomp::oci::tests::the_stored_profile_of_the_dev_container_is_the_one_the_table_gives";

pub(crate) fn run(workspace: &Workspace, arguments: ChoreArguments) -> Result<()> {
    arguments.end(&[])?;
    pass(test(workspace).env("RINGFENCE_BLESS", "1"))
        .with_context(|| format!("cannot write {FILE}"))?;
    println!("{FILE} is what the table gives");
    Ok(())
}

/// Fails if the checked-in profile differs from the profile that the table gives.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    pass(&mut test(workspace)).with_context(|| {
        format!("{FILE} is stale; run `cargo xtask seccomp-profile` and commit the result")
    })
}

fn test(workspace: &Workspace) -> Command {
    workspace.cargo(["test", "--quiet", "--workspace", "--lib", "--", "--exact", TEST])
}

fn pass(command: &mut Command) -> Result<()> {
    // `cargo test` succeeds even if no test has the name, so check that one test passed.
    ensure!(output_of(command)?.contains("1 passed"), "there is no test `{TEST}`");
    Ok(())
}
