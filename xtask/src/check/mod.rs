//! `cargo xtask check`: runs all checks of the code that do not run the code.

mod commits;
mod features;
mod layers;
mod manifests;
pub(crate) mod prose;
mod seam;
pub(crate) mod source;
pub(crate) mod type_names;

use std::time::Instant;

use anyhow::{Result, bail};

use crate::arguments::ChoreArguments;
use crate::docs;
use crate::fuzz;
use crate::seccomp_profile;
use crate::workspace::{Workspace, find_program, run as run_command};

/// Problems that a check found, one sentence each.
type CheckFindings = Vec<String>;

/// A check and its name.
type NamedCheck = (&'static str, fn(&Workspace) -> Result<()>);

pub(crate) fn run(workspace: &Workspace, arguments: ChoreArguments) -> Result<()> {
    arguments.end(&[])?;
    let mut checks: Vec<NamedCheck> = vec![
        ("dependencies point one way", |workspace| report(layers::check(workspace)?)),
        ("every dependency has its reason", |workspace| report(manifests::check(workspace)?)),
        ("unsafe code stays in its place, files and lines stay short", |workspace| {
            report(source::check(workspace)?)
        }),
        ("no code outside the backends asks for a backend", |workspace| {
            report(seam::check(workspace)?)
        }),
        ("a crate defines each type name once", |workspace| report(type_names::check(workspace)?)),
        ("comments name their subjects", |workspace| report(prose::check(workspace)?)),
        ("commits say what they do", |workspace| report(commits::check(workspace)?)),
        ("formatting", |workspace| run_command(&mut workspace.cargo(["fmt", "--all", "--check"]))),
        ("lints", lints),
        ("the library builds with each feature alone", features::check),
        ("fuzz targets compile, and have inputs", fuzz::check),
        ("documentation builds", documentation),
        ("generated documents are up to date", docs::check),
        ("the dev container's seccomp profile is up to date", seccomp_profile::check),
    ];
    match find_program("cargo-deny") {
        Some(_) => checks.push(("licences and bans", licences)),
        None => println!(
            "── licences and bans\n   SKIPPED: cargo-deny is not installed (`cargo install \
             cargo-deny`)"
        ),
    }
    let mut failed = Vec::new();
    for (name, check) in &checks {
        println!("── {name}");
        let start = Instant::now();
        match check(workspace) {
            Ok(()) => println!("   ok, {:.1} s", start.elapsed().as_secs_f64()),
            Err(error) => {
                eprintln!("   FAILED: {error:#}");
                failed.push(*name);
            }
        }
    }
    if !failed.is_empty() {
        bail!("{} of {} checks failed: {}", failed.len(), checks.len(), failed.join("; "));
    }
    Ok(())
}

fn report(findings: CheckFindings) -> Result<()> {
    if findings.is_empty() {
        return Ok(());
    }
    bail!("\n     {}", findings.join("\n     "))
}

fn lints(workspace: &Workspace) -> Result<()> {
    run_command(&mut workspace.cargo([
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]))
}

fn documentation(workspace: &Workspace) -> Result<()> {
    // Build only libraries, because the binary `ringfence` and the library `ringfence` would write
    // to the same directory.
    run_command(
        workspace
            .cargo(["doc", "--workspace", "--no-deps", "--lib"])
            .env("RUSTDOCFLAGS", "-D warnings"),
    )
}

fn licences(workspace: &Workspace) -> Result<()> {
    run_command(&mut workspace.cargo(["deny", "check", "licenses", "bans"]))
}
