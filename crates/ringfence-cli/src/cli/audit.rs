//! The `ringfence audit` command, which lists, shows and verifies records.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use ringfence::audit::RunRecord;
use ringfence::{ExitStatus, Host, RecordFile, Records, Settings};
use ringfence_core::settings::Config;

use crate::answer::{print_json, print_lines, print_pretty_json};
use crate::report::{Failure, warn};

/// Lists, shows and verifies the records of earlier runs.
#[derive(Debug, Args)]
pub(crate) struct Audit {
    #[command(subcommand)]
    command: AuditCommand,
    /// Directory of the records, instead of the directory in the settings.
    #[arg(long, value_name = "DIR", global = true)]
    dir: Option<PathBuf>,
    /// Prints the output as JSON.
    #[arg(long, global = true)]
    pub(super) json: bool,
}

#[derive(Debug, Subcommand)]
enum AuditCommand {
    /// Lists the records, oldest first.
    List,
    /// Prints one record as JSON.
    Show {
        /// Id of the run, hash of the record, or name of its file; the beginning is enough.
        id: String,
    },
    /// Checks that no record was altered, added or removed; exits with 1 if a record was.
    Verify,
}

impl Audit {
    pub(crate) fn run(self, host: Host) -> Result<ExitCode, Failure> {
        let records = match &self.dir {
            Some(directory) => Records::on(&host, directory),
            None => Records::for_settings(&Settings::load(host, Vec::new(), Config::default())?),
        };
        match &self.command {
            AuditCommand::List => self.list(&records),
            AuditCommand::Show { id } => show(&records, id),
            AuditCommand::Verify => self.verify(&records),
        }
    }

    fn list(&self, records: &Records) -> Result<ExitCode, Failure> {
        let found = readable(records)?;
        if self.json {
            let objects = found.iter().map(|(name, record)| {
                let RunRecord { time, command, result, hash, .. } = record;
                let ended = ended(record);
                serde_json::json!({
                    "id": result.id, "time": time, "ok": result.ok, "ended": ended,
                    "command": command, "file": name, "hash": hash,
                })
            });
            print_json(&objects.collect::<Vec<_>>())?;
            return Ok(ExitCode::SUCCESS);
        }
        let lines = found.iter().map(|(_, record)| {
            let time = record.time.split('.').next().unwrap_or_default();
            let ended = ended(record);
            format!(
                "{}  {time}  {ended:<12}  {}",
                record.result.id,
                record.command.join(" ").escape_debug()
            )
        });
        print_lines(lines)?;
        Ok(ExitCode::SUCCESS)
    }

    fn verify(&self, records: &Records) -> Result<ExitCode, Failure> {
        let faults = records.verify()?;
        let count = records.entries()?.len();
        let directory = records.directory().display();
        if self.json {
            print_json(&serde_json::json!({
                "records": count, "whole": faults.is_empty(), "faults": faults,
            }))?;
        } else if faults.is_empty() {
            let noun = if count == 1 { "record" } else { "records" };
            print_lines([format!(
                "{count} {noun} in {directory}: none was altered, added or removed"
            )])?;
        } else {
            print_lines(faults.iter().map(ToString::to_string))?;
        }
        let status = if faults.is_empty() { ExitStatus::Code(0) } else { ExitStatus::Broken };
        Ok(status.code().into())
    }
}

fn show(records: &Records, id: &str) -> Result<ExitCode, Failure> {
    let wrong = |what: &str| {
        Failure::usage(format!("{what} `{id}`"), "`ringfence audit list` shows the records")
    };
    let is_named = |(name, record): &(String, RunRecord)| {
        [name, &record.result.id, &record.hash].iter().any(|text| text.starts_with(id))
    };
    let mut named = readable(records)?.into_iter().filter(is_named);
    match (named.next(), named.next()) {
        (Some((_, record)), None) => {
            let value = serde_json::to_value(&record).expect("a record has only string keys");
            print_pretty_json(&value)?;
            Ok(ExitCode::SUCCESS)
        }
        (Some(_), Some(_)) => Err(wrong("more than one record begins with")),
        (None, _) => Err(wrong("there is no record")),
    }
}

/// Returns the files that are records, and warns about the others.
fn readable(records: &Records) -> Result<Vec<(String, RunRecord)>, Failure> {
    let mut found = Vec::new();
    for RecordFile { name, record } in records.entries()? {
        match record {
            Ok(record) => found.push((name, record)),
            Err(error) => warn(&ringfence::chain(&error)),
        }
    }
    Ok(found)
}

fn ended(record: &RunRecord) -> String {
    let result = &record.result;
    match (result.timed_out, result.oom_killed, result.exit_code, result.signal) {
        (true, ..) => "deadline".to_owned(),
        (_, true, ..) => "out of memory".to_owned(),
        (_, _, Some(code), _) => format!("exit {code}"),
        _ if result.meta.not_run.is_some() => "not run".to_owned(),
        (_, _, None, signal) => format!("signal {}", signal.unwrap_or_default()),
    }
}
