//! The `ringfence egress` command, which shows recorded network access and suggests a policy.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use clap::{Args, Subcommand};
use ringfence::Host;
use ringfence::egress::{self, EgressEvent, LogEntry, RecordedEvents};
use ringfence::policy::Span;

use crate::answer::{print, print_json, print_lines};
use crate::report::{Failure, warn};

/// Shows which hosts sandboxes reached or were denied, and suggests a policy.
#[derive(Debug, Args)]
pub(crate) struct EgressArguments {
    #[command(subcommand)]
    command: EgressCommand,
    /// Includes the sandboxes of all workspaces, not only of the workspace of this directory.
    #[arg(long, global = true)]
    all: bool,
    /// Includes only the sandbox NAME, which `ringfence up` started.
    #[arg(long, value_name = "NAME", global = true)]
    sandbox: Option<String>,
    /// Includes only events of the last TIME, such as 10m or 2h.
    #[arg(long, value_name = "TIME", global = true)]
    since: Option<Span>,
    /// Prints the output as JSON.
    #[arg(long, global = true)]
    pub(super) json: bool,
}

#[derive(Debug, Subcommand)]
enum EgressCommand {
    /// Lists denied connections, and connections that --observe allowed, oldest first.
    Log,
    /// Prints the smallest policy that would have allowed these connections, as far as rules can.
    Suggest,
    /// Runs the proxy of a sandbox, in a container of its own.
    #[command(hide = true)]
    Serve {
        /// Socket on which the process that owns the sandbox gives its orders.
        #[arg(value_name = "OWNER")]
        owner: PathBuf,
    },
}

impl EgressArguments {
    pub(crate) fn run(self, host: Host) -> Result<ExitCode, Failure> {
        match &self.command {
            EgressCommand::Log => self.log(&self.entries(&host)?)?,
            EgressCommand::Suggest => self.suggest(&self.entries(&host)?)?,
            EgressCommand::Serve { owner } => egress::serve(owner).map_err(|error| {
                let summary =
                    format!("cannot run the proxy of a sandbox: {}", ringfence::chain(&error));
                Failure::failed(summary, "start the proxy with: ringfence up --container --proxy")
            })?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn entries(&self, host: &Host) -> Result<Vec<LogEntry>, Failure> {
        let RecordedEvents { entries, omitted, .. } = egress::recorded(host).map_err(|error| {
            Failure::usage(
                format!("cannot read the egress log: {error}"),
                "ls -l ~/.local/state/ringfence",
            )
        })?;
        if omitted > 0 {
            warn(&format!("{omitted} more events of all sandboxes were counted, without details"));
        }
        let earliest = self.since.and_then(|span| SystemTime::now().checked_sub(span.duration()));
        let is_here = |entry: &LogEntry| {
            let here =
                [&host.directory, &fs_err::canonicalize(&host.directory).unwrap_or_default()];
            self.all
                || self.sandbox.is_some()
                || here.iter().any(|here| here.starts_with(&entry.workspace))
        };
        let is_named = |entry: &LogEntry| self.sandbox.is_none() || entry.sandbox == self.sandbox;
        let is_recent =
            |entry: &LogEntry| earliest.is_none_or(|earliest| entry.time() >= Some(earliest));
        Ok(entries
            .into_iter()
            .filter(|entry| is_here(entry) && is_named(entry) && is_recent(entry))
            .collect())
    }

    fn log(&self, entries: &[LogEntry]) -> Result<(), Failure> {
        if self.json {
            return print_json(&entries);
        }
        let lines = entries.iter().map(|entry| {
            let time = entry.time.split('.').next().unwrap_or_default();
            let (what, target, why) = match &entry.event {
                EgressEvent::Denied(denial) => {
                    ("denied", denial.target.clone(), denial.reason.to_string())
                }
                EgressEvent::Allowed(passage) => ("allowed", passage.target.clone(), String::new()),
                EgressEvent::Omitted { denials } => (
                    "denied",
                    format!("{denials} more denials"),
                    "counted, without details".to_owned(),
                ),
                _ => return String::new(),
            };
            let sandbox = entry.sandbox.as_deref().unwrap_or("-");
            format!("{time}  {sandbox:<16}  {what:<8}  {target}  {why}").trim_end().to_owned()
        });
        print_lines(lines.filter(|line| !line.is_empty()))
    }

    fn suggest(&self, entries: &[LogEntry]) -> Result<(), Failure> {
        if entries.is_empty() {
            warn(
                "the egress log has no events of this directory; `ringfence run --observe -- \
                 COMMAND` allows every public host, and records the hosts",
            );
        }
        let policy = BTreeMap::from([("network", egress::suggest(entries))]);
        match self.json {
            true => print_json(&policy),
            false => print(
                &toml::to_string(&policy).expect("a policy is made of tables and plain values"),
            ),
        }
    }
}
