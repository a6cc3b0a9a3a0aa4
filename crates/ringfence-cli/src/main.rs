//! The `ringfence` command.
//!
//! The program translates flags into calls of the library, and results of the library into output.
//! It must never decide what a policy means. Each command is one file of [`cli`]. The crates
//! `ringfence-server` and `ringfence-mcp` are the services behind `ringfence serve` and `ringfence
//! mcp`.

mod answer;
mod cli;
mod report;
mod terminal;

use std::process::ExitCode;

fn main() -> ExitCode {
    // This call must be first: a launcher process forks, so it must not have done anything else.
    ringfence::launcher::serve_if_asked();
    cli::run()
}
