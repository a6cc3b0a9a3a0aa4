//! Error of an operation of the server itself. Clients get a refusal instead, and the error goes to
//! the log.

use ringfence::monitor::MonitorError;
use ringfence::{AttachError, Fault, PauseError, SandboxDirError, SessionError, chain};

/// Error of a server: a message, hints for the next step, and the party that can correct the error.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ServerError {
    message: String,
    hints: Vec<String>,
    fault: Fault,
}

impl ServerError {
    /// Creates an error that `fault` can correct.
    pub(crate) fn new(
        message: impl Into<String>,
        hints: impl IntoIterator<Item = String>,
        fault: Fault,
    ) -> ServerError {
        ServerError { message: message.into(), hints: hints.into_iter().collect(), fault }
    }

    /// Creates an error for a mistake of the operator.
    pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> ServerError {
        ServerError::new(message, [hint.into()], Fault::User)
    }

    /// Creates an error for an operation that did not work on this host.
    pub(crate) fn failed(message: impl Into<String>, hint: impl Into<String>) -> ServerError {
        ServerError::new(message, [hint.into()], Fault::Host)
    }

    /// Creates an error for a failed call to the guest of the sandbox `name`. The hints contain
    /// that name.
    pub(crate) fn from_session(error: &SessionError, name: &str) -> ServerError {
        let hints = error.hints();
        let hints = hints.iter().map(|hint| hint.replace("NAME", name));
        ServerError::new(chain(error), hints, error.fault())
    }

    /// Returns the message, which says what was tried, on what, and why it failed.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the hints for the next step.
    pub fn hints(&self) -> &[String] {
        &self.hints
    }

    /// Returns the party that can correct the error.
    pub fn fault(&self) -> Fault {
        self.fault
    }
}

impl From<MonitorError> for ServerError {
    fn from(error: MonitorError) -> ServerError {
        ServerError::new(error.message(), error.hints().to_owned(), error.fault())
    }
}

impl From<SandboxDirError> for ServerError {
    fn from(error: SandboxDirError) -> ServerError {
        let fault = match &error {
            SandboxDirError::Absent { .. }
            | SandboxDirError::Taken { .. }
            | SandboxDirError::Name(_) => Fault::User,
            _ => Fault::Host,
        };
        ServerError::new(chain(&error), [error.hint()], fault)
    }
}

impl From<AttachError> for ServerError {
    fn from(error: AttachError) -> ServerError {
        match error {
            AttachError::Directory(error) => error.into(),
            error => ServerError::new(chain(&error), error.hints(), error.fault()),
        }
    }
}

impl From<PauseError> for ServerError {
    fn from(error: PauseError) -> ServerError {
        match error {
            PauseError::Directory(error) => error.into(),
            error => ServerError::new(chain(&error), error.hints(), error.fault()),
        }
    }
}
