//! The `ringfence` command.
//!
//! The program translates flags into calls of the library, and results of the library into output.
//! It must never decide what a policy means. Each command is one file of [`cli`]; [`http`] is the
//! server that `ringfence serve` runs.

mod answer;
mod cli;
mod connections;
mod exchange;
mod http;
mod mcp;
mod report;
mod telemetry;
mod terminal;

use std::process::ExitCode;

fn main() -> ExitCode {
    // This call must be first: a launcher process forks, so it must not have done anything else.
    ringfence::launcher::serve_if_asked();
    cli::run()
}
