//! The commands, one file each.

mod flags;
mod run;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::report::Failure;

/// Runs an agent's commands behind one policy, enforced or refused.
#[derive(Debug, Parser)]
#[command(name = "ringfence", version, propagate_version = true, disable_help_subcommand = true)]
struct Arguments {
    /// Says more: once for what happens, twice for why.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Run),
}

/// Reads the command line, does what it says, and returns what to exit with.
pub(crate) fn run() -> ExitCode {
    let arguments = Arguments::parse();
    let host = match flags::host() {
        Ok(host) => host,
        Err(failure) => return failure.print(),
    };
    crate::report::listen(arguments.verbose, host.text("RINGFENCE_LOG"));
    let done: Result<ExitCode, Failure> = match arguments.command {
        Command::Run(command) => command.run(host),
    };
    done.unwrap_or_else(|failure| failure.print())
}
