//! The `ringfence config` command, which explains the settings and prints their schema.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use ringfence::Host;
use ringfence_core::settings::{ExplainedValue, ValueSource, schema};

use super::flags::PolicyFlags;
use crate::answer::{print_json, print_lines, print_pretty_json};
use crate::report::Failure;

/// Shows the settings and their schema.
#[derive(Debug, Args)]
pub(crate) struct ConfigArguments {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    Explain(Box<Explain>),
    /// Prints the JSON Schema of a configuration file.
    Schema,
}

/// Prints every effective value with its source.
///
/// The flags of a policy are accepted, so that their effect can be seen.
#[derive(Debug, Args)]
struct Explain {
    /// Prints the values as a JSON list of objects.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    policy: PolicyFlags,
}

impl ConfigArguments {
    pub(super) fn is_json(&self) -> bool {
        matches!(&self.command, ConfigCommand::Explain(explain) if explain.json)
    }

    pub(crate) fn run(self, host: Host) -> Result<ExitCode, Failure> {
        match self.command {
            ConfigCommand::Explain(explain) => explain.run(host)?,
            ConfigCommand::Schema => print_pretty_json(&schema())?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Explain {
    fn run(&self, host: Host) -> Result<(), Failure> {
        let explained = self.policy.settings(host)?.explain();
        if self.json {
            let objects = explained.iter().map(|ExplainedValue { key, value, sources }| {
                let sources: Vec<_> = sources.iter().map(ValueSource::to_string).collect();
                serde_json::json!({ "key": key, "value": value, "sources": sources })
            });
            return print_json(&objects.collect::<Vec<_>>());
        }
        let widest = |width: fn(&ExplainedValue) -> usize| {
            explained.iter().map(width).max().unwrap_or_default()
        };
        let key_width = widest(|explained| explained.key.len());
        let value_width = widest(|explained| explained.value.chars().count()).min(40);
        print_lines(explained.iter().map(|ExplainedValue { key, value, sources }| {
            let sources: Vec<_> = sources.iter().map(ValueSource::to_string).collect();
            format!("{key:<key_width$}  {value:<value_width$}  {}", sources.join(", "))
        }))
    }
}

/// Formats JSON for files, indented and with a final line break.
pub(super) fn pretty(value: &serde_json::Value) -> String {
    format!("{value:#}\n")
}
