//! The `ringfence keys` command, which creates, lists and revokes API keys.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use ringfence::Host;
use ringfence::policy::Span;
use ringfence_server::{Key, KeyFile, Quota};

use super::attach::plain;
use crate::answer::{print, print_json};
use crate::report::Failure;

/// Creates, lists and revokes API keys for clients of `ringfence serve`.
#[derive(Debug, Args)]
pub(crate) struct KeysArguments {
    #[command(subcommand)]
    command: KeysCommand,
}

#[derive(Debug, Subcommand)]
enum KeysCommand {
    /// Creates a key and prints the key once; only a hash of the key is kept.
    Create {
        /// Name of the key, such as the name of its owner.
        #[arg(value_name = "NAME", default_value = "unnamed")]
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        #[command(flatten)]
        quota: QuotaFlags,
    },
    /// Lists the keys by id, time of creation and name.
    List {
        /// Prints the output as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Revokes keys at once.
    ///
    /// Sandboxes of a revoked key stay until their time is over, and snapshots until a server
    /// starts.
    Revoke {
        /// Id of a key, or name of one or more keys.
        #[arg(value_name = "KEY")]
        which: String,
    },
}

/// Limits of one key. A limit that is not set has its default, or does not apply.
#[derive(Debug, Args)]
struct QuotaFlags {
    /// Maximum number of sandboxes at once.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    sandboxes: Option<u32>,
    /// Maximum number of sandboxes that are started per minute.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    per_minute: Option<u32>,
    /// Maximum number of snapshots; 20 by default.
    #[arg(long, value_name = "N")]
    snapshots: Option<u32>,
    /// Maximum time that a sandbox runs, such as 30m or 8h; one day by default.
    #[arg(long, value_name = "TIME")]
    longest: Option<Span>,
    /// Maximum processor time of all sandboxes of the key per day in UTC, such as 30m or 8h.
    #[arg(long, value_name = "TIME")]
    cpu_per_day: Option<Span>,
}

impl From<QuotaFlags> for Quota {
    fn from(flags: QuotaFlags) -> Quota {
        let QuotaFlags { sandboxes, per_minute, snapshots, longest, cpu_per_day } = flags;
        Quota { sandboxes, per_minute, snapshots, longest, cpu_per_day }
    }
}

impl KeysArguments {
    pub(crate) fn run(self, host: Host) -> Result<ExitCode, Failure> {
        let file = KeyFile::in_directory(&server_directory(&host)?);
        match self.command {
            KeysCommand::Create { name, quota } => {
                print(&format!("{}\n", file.create(&name, quota.into()).map_err(failed)?.1))?
            }
            KeysCommand::List { json: true } => {
                print_json(&file.read().map_err(failed)?.iter().map(key_json).collect::<Vec<_>>())?
            }
            KeysCommand::List { json: false } => print(&table(&file.read().map_err(failed)?))?,
            KeysCommand::Revoke { which } => {
                let revoked = file.revoke(&which).map_err(failed)?;
                if revoked.is_empty() {
                    return Err(Failure::usage(
                        format!("there is no key `{which}`"),
                        "ringfence keys list",
                    ));
                }
                let lines =
                    revoked.iter().map(|key| format!("revoked {} {}\n", key.id, plain(&key.name)));
                print(&lines.collect::<String>())?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    pub(super) fn is_json(&self) -> bool {
        matches!(self.command, KeysCommand::List { json: true })
    }
}

/// Returns the directory in which a server keeps all its data, and creates it. Only its user can
/// enter the directory.
pub(super) fn server_directory(host: &Host) -> Result<PathBuf, Failure> {
    // The directory lies below the directory of all sandboxes. `list` checks that first, because
    // nobody else may write there.
    ringfence::Sandbox::list(host)?;
    let state = host
        .own_directory("XDG_STATE_HOME", ".local/state")
        .ok_or(ringfence::SandboxDirError::Nowhere)?;
    let directory = state.join("server");
    ringfence::make_private_directory(&directory).map_err(|error| {
        Failure::failed(
            format!("cannot create `{}`: {error}", directory.display()),
            "check the owner and the permissions of that directory",
        )
    })?;
    Ok(directory)
}

pub(super) fn failed(error: std::io::Error) -> Failure {
    Failure::failed(
        format!("cannot use the keys: {error}"),
        "check the owner and the permissions of that file",
    )
}

/// Returns the data of a key that may be shown.
fn key_json(key: &Key) -> serde_json::Value {
    serde_json::json!({
        "id": key.id, "name": key.name, "created": key.created, "quota": key.quota,
    })
}

fn table(keys: &[Key]) -> String {
    let line = |key: &Key| format!("{:<12}  {:.0}  {}\n", key.id, key.created, plain(&key.name));
    keys.iter().map(line).collect()
}
