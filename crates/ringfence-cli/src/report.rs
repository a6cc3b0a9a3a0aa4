//! What the command line says when something is wrong, and how loudly it speaks otherwise.
#![expect(clippy::print_stderr, reason = "standard error is the conversation")]

use std::process::ExitCode;

use ringfence::{ExitStatus, LoadError, RunError, WrapperError, chain};
use tracing_subscriber::EnvFilter;

/// An error at the edge: what was tried, what to do next, and what to exit with.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    hints: Vec<String>,
    status: ExitStatus,
}

impl Failure {
    /// The caller's own mistake.
    pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure { message: message.into(), hints: vec![hint.into()], status: ExitStatus::Usage }
    }

    /// Something that did not work.
    pub(crate) fn failed(error: &dyn std::error::Error, hint: impl Into<String>) -> Failure {
        Failure { message: chain(error), hints: vec![hint.into()], status: ExitStatus::SandboxFailed }
    }

    /// Prints itself, and says what to exit with.
    pub(crate) fn print(&self) -> ExitCode {
        eprintln!("ringfence: error: {}", self.message);
        for hint in &self.hints {
            eprintln!("hint: {hint}");
        }
        self.status.code().into()
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Failure {
        Failure { message: chain(&error), hints: error.hints(), status: error.exit_status() }
    }
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Failure {
        Failure { message: chain(&error), hints: error.hint().into_iter().collect(), status: ExitStatus::Usage }
    }
}

impl From<WrapperError> for Failure {
    fn from(error: WrapperError) -> Failure {
        let hint = match &error {
            WrapperError::NotAWrapper { .. } => "`ringfence wrap` prints the path of what it makes",
            WrapperError::NoProgram { .. } => "give the program's path",
            _ => "look at the directory's owner and permissions",
        };
        Failure::failed(&error, hint)
    }
}

/// Says something that is not the answer.
pub(crate) fn warn(message: &str) {
    eprintln!("ringfence: warning: {message}");
}

/// Sends what the library tells to standard error: warnings, and with each `-v` a level more.
pub(crate) fn listen(verbosity: u8, variable: Option<&str>) {
    let level = match verbosity {
        0 => "warn",
        1 => "info",
        _ => "debug",
    };
    let filter = EnvFilter::new(variable.unwrap_or(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .without_time()
        .with_target(false)
        .with_ansi(false)
        .init();
}
