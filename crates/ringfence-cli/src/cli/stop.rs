//! The `ringfence stop` command, which ends sandboxes.

use std::process::ExitCode;

use clap::Args;
use ringfence::{AttachError, Host, Manifest, Sandbox, SandboxDirError, Stopped};
use tokio::task::JoinSet;

use super::attach::block_on;
use super::run::warn_of_planted;
use super::sync::warn_of_workspace;
use crate::answer::{Form, print};
use crate::report::{Failure, print_hint, warn};

/// Stops sandboxes, and waits until the sandboxes are gone.
#[derive(Debug, Args)]
pub(crate) struct Stop {
    /// Names of the sandboxes; `ringfence ps` lists the names.
    #[arg(id = "sandboxes", value_name = "NAME", required_unless_present = "all")]
    names: Vec<String>,
    /// Stops all sandboxes of `ringfence up`, but not those of clients of `ringfence serve`.
    #[arg(long, conflicts_with = "sandboxes")]
    all: bool,
}

impl Stop {
    pub(crate) fn run(self, host: Host) -> Result<ExitCode, Failure> {
        let names = if self.all { all(&host)? } else { self.names };
        let failures = block_on(async { Ok(stop(&host, names, self.all).await) })?;
        let mut code = ExitCode::SUCCESS;
        for failure in failures {
            code = failure.report(Form::Text);
        }
        Ok(code)
    }
}

/// Returns the names of all sandboxes that `ringfence up` started, without those of clients of a
/// server.
fn all(host: &Host) -> Result<Vec<String>, Failure> {
    let (kept, used): (Vec<Manifest>, Vec<Manifest>) =
        Sandbox::list(host)?.into_iter().partition(|manifest| manifest.owner.is_monitor);
    for Manifest { name, owner, .. } in used {
        warn(&format!(
            "sandbox `{name}` belongs to the program with process id {}, and was not stopped",
            owner.pid
        ));
    }
    let (served, kept): (Vec<Manifest>, Vec<Manifest>) =
        kept.into_iter().partition(|manifest| manifest.owner.is_for_server);
    if let Some(first) = served.first() {
        warn(&left_to_clients(served.len()));
        print_hint(&format!(
            "`ringfence ps` lists these sandboxes; to stop one of them anyway: ringfence stop {}",
            first.name
        ));
    }
    Ok(kept.into_iter().map(|manifest| manifest.name.to_string()).collect())
}

/// Returns the warning about sandboxes that belong to clients of a server.
fn left_to_clients(count: usize) -> String {
    match count {
        1 => "1 sandbox belongs to a client of `ringfence serve`, and was not stopped".to_owned(),
        count => {
            format!(
                "{count} sandboxes belong to clients of `ringfence serve`, and were not stopped"
            )
        }
    }
}

/// Stops all named sandboxes at once, prints which have ended, and returns the failures. With
/// `were_seen`, a sandbox that is already gone is not a failure.
async fn stop(host: &Host, names: Vec<String>, were_seen: bool) -> Vec<Failure> {
    let mut stopping = JoinSet::new();
    for name in names {
        let host = host.clone();
        stopping.spawn(async move {
            let stopped = match Sandbox::attach_when_made(&host, &name).await {
                Ok(sandbox) => sandbox.stop().await,
                Err(AttachError::Directory(SandboxDirError::Absent { .. })) if were_seen => {
                    return Ok(None);
                }
                Err(error) => Err(error),
            };
            stopped.map(|stopped| Some((name, stopped)))
        });
    }
    let mut failures = Vec::new();
    while let Some(stopped) = stopping.join_next().await {
        match stopped.expect("stopping does not panic, and nobody aborts it") {
            Ok(Some((name, Stopped { planted, workspace, .. }))) => {
                failures.extend(print(&format!("stopped {name}\n")).err());
                workspace.iter().for_each(warn_of_workspace);
                warn_of_planted(&format!("the sandbox `{name}`"), &planted);
            }
            Ok(None) => {}
            Err(error) => failures.push(Failure::from(error)),
        }
    }
    failures
}
