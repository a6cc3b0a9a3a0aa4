//! The `ringfence` command.
//!
//! A thin translator: flags in, the library's answers out. It must never decide what a policy means. Each
//! command is one file of [`cli`]; [`http`] is the server that `ringfence serve` runs.

mod answer;
mod cli;
mod connections;
mod exchange;
mod http;
mod keeper;
mod mcp;
mod report;
mod telemetry;
mod terminal;

use std::process::ExitCode;

fn main() -> ExitCode {
    // First of all: as a launcher this process is asked to fork, and must have done nothing yet.
    ringfence::launcher::serve_if_asked();
    cli::run()
}
