//! The `ringfence ps` command, which lists running sandboxes.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use ringfence::{AttachError, Host, Manifest, Sandbox, SandboxDirError};
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::attach::{block_on, plain};
use crate::answer::{print, print_json};
use crate::report::Failure;

/// Maximum time for the answer of a guest to a health check.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Lists the sandboxes that are up.
#[derive(Debug, Args)]
pub(crate) struct Ps {
    /// Prints the output as JSON.
    #[arg(long)]
    pub(super) json: bool,
    /// Prints only the names, for shell completions.
    #[arg(long, hide = true)]
    names: bool,
}

/// Sandbox with its status.
#[derive(Debug, Serialize)]
struct SandboxRow {
    #[serde(flatten)]
    manifest: Manifest,
    status: Status,
}

/// Status of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    /// The guest answers health checks.
    Up,
    /// The guest does not answer.
    Silent,
}

impl Ps {
    pub(crate) fn run(self, host: Host) -> Result<ExitCode, Failure> {
        if self.names {
            let names =
                Sandbox::list(&host)?.into_iter().map(|manifest| format!("{}\n", manifest.name));
            print(&names.collect::<String>())?;
            return Ok(ExitCode::SUCCESS);
        }
        Sandbox::sweep(&host)?;
        let manifests = Sandbox::list(&host)?;
        let listed = block_on(async { Ok(check_health(&host, manifests).await) })?;
        if self.json {
            print_json(&listed)?
        } else {
            print(&table(&listed, Timestamp::now()))?
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Checks the health of all sandboxes at once.
async fn check_health(host: &Host, manifests: Vec<Manifest>) -> Vec<SandboxRow> {
    let mut checks = JoinSet::new();
    for manifest in manifests {
        let host = host.clone();
        checks.spawn(async move {
            let status = match Sandbox::attach(&host, manifest.name.as_str()).await {
                Ok(sandbox) => match timeout(ANSWER_TIMEOUT, sandbox.health()).await {
                    Ok(Ok(_)) => Status::Up,
                    _ if sandbox.is_up() => Status::Silent,
                    _ => return None, // the sandbox has just ended
                },
                // The sandbox has just ended.
                Err(AttachError::Directory(SandboxDirError::Absent { .. })) => return None,
                Err(_) => Status::Silent,
            };
            Some(SandboxRow { manifest, status })
        });
    }
    let mut listed: Vec<SandboxRow> = checks.join_all().await.into_iter().flatten().collect();
    listed.sort_by(|one, other| one.manifest.name.cmp(&other.manifest.name));
    listed
}

fn table(listed: &[SandboxRow], now: Timestamp) -> String {
    let head = ["NAME", "BACKEND", "STATUS", "STARTED", "LEASE", "NETWORK", "WORKSPACE"]
        .map(str::to_owned);
    let rows = listed.iter().map(|SandboxRow { manifest, status }| {
        let status = match status {
            Status::Up => "up",
            Status::Silent => "silent",
        };
        [
            manifest.name.to_string(),
            manifest.backend.to_string(),
            status.to_owned(),
            span(&manifest.started, now)
                .map_or_else(|| "?".to_owned(), |span| format!("{span} ago")),
            manifest.ends.as_ref().map_or_else(|| "-".to_owned(), |ends| remaining(ends, now)),
            plain(&manifest.network.to_string()),
            plain(&manifest.workspace.to_string_lossy()),
        ]
    });
    let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 7] = std::array::from_fn(width);
    let line = |row: &[String; 7]| {
        let cells: String =
            row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}  ")).collect();
        format!("{}\n", cells.trim_end())
    };
    rows.iter().map(line).collect()
}

/// Returns the remaining time of a lease, as text.
fn remaining(ends: &str, now: Timestamp) -> String {
    span(ends, now).map_or_else(|| "?".to_owned(), |span| format!("{span} left"))
}

/// Returns the distance of a time from now, in its largest unit.
fn span(time: &str, now: Timestamp) -> Option<String> {
    let seconds = time.parse::<Timestamp>().ok()?.as_second().abs_diff(now.as_second());
    Some(match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_shown_in_its_largest_unit() {
        let now: Timestamp = "2030-01-02T00:00:00Z".parse().unwrap();
        let check = |time: &str, expected: &str| {
            assert_eq!(span(time, now).as_deref(), Some(expected), "{time}")
        };
        check("2030-01-02T00:00:00Z", "0s");
        check("2030-01-01T23:59:01Z", "59s");
        check("2030-01-01T23:00:01Z", "59m");
        check("2030-01-02T08:00:00Z", "8h");
        check("2029-12-01T00:00:00Z", "32d");
        assert_eq!(span("yesterday", now), None);
    }

    #[test]
    fn without_a_sandbox_there_is_a_head_alone() {
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(table(&[], now), "NAME  BACKEND  STATUS  STARTED  LEASE  NETWORK  WORKSPACE\n");
    }
}
