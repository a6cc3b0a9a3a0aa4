//! The error of operations on contexts.

use std::io;
use std::time::Duration;

use ringfence_core::{ExitStatus, Fault};

use crate::{CodeError, Name, SandboxDirError, SessionError};

/// Reason why an operation on a context failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContextError {
    /// The sandbox has no context with this id.
    #[error("there is no context `{}`", id.escape_debug())]
    Absent {
        /// Id that the caller asked for.
        id: String,
    },
    /// There are no contexts for the language, because it has no harness.
    #[error("cannot keep state for {language}: contexts are for {}", known.join(", "))]
    Stateless {
        /// Name of the language.
        language: String,
        /// Names of the languages that have contexts.
        known: Vec<String>,
    },
    /// The sandbox has as many contexts as it may have.
    #[error("cannot make another context: there are {limit} in this sandbox")]
    TooMany {
        /// Highest number of contexts of a sandbox.
        limit: usize,
    },
    /// The process of the context has ended.
    #[error("the context `{id}` has ended: {how}")]
    Ended {
        /// Id of the context.
        id: String,
        /// Description of how the process ended.
        how: String,
    },
    /// The harness of a new context did not get ready.
    #[error("cannot start a context for {language}: {why}")]
    NotReady {
        /// Name of the language.
        language: String,
        /// Description of how the harness failed, with its last output.
        why: String,
    },
    /// A cell took longer than the policy allows, so the context was ended.
    #[error("the context `{id}` was ended: its cell took longer than {} s", time.as_secs_f64())]
    TimedOut {
        /// Id of the context.
        id: String,
        /// Time limit of the policy.
        time: Duration,
    },
    /// The harness sent a message that cannot be read, so the context was ended.
    #[error("the context `{id}` was ended: the output of its harness is invalid: {why}")]
    Nonsense {
        /// Id of the context.
        id: String,
        /// Description of what is wrong with the message.
        why: String,
    },
    /// The cell cannot be sent to a harness.
    #[error("cannot run a cell: {why}")]
    Unsound {
        /// Rule that the code or a variable breaks.
        why: &'static str,
    },
    /// Another process has the contexts of the sandbox that outlive their starter.
    #[error("cannot take over the contexts of the sandbox `{name}`: another process has them")]
    Held {
        /// Name of the sandbox.
        name: Name,
    },
    /// The note that lets a context outlive its process could not be written.
    #[error("cannot write the note of a context")]
    Unwritten(#[from] io::Error),
    /// The sandbox is gone, or the notes of its contexts cannot be read.
    #[error(transparent)]
    Directory(#[from] SandboxDirError),
    /// The language is unknown, or its command is not run on this backend.
    #[error(transparent)]
    Code(#[from] CodeError),
    /// A call to the guest of the sandbox failed.
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl ContextError {
    /// Returns whose move it is after this error.
    pub fn fault(&self) -> Fault {
        match self {
            ContextError::Absent { .. }
            | ContextError::Stateless { .. }
            | ContextError::TooMany { .. } => Fault::User,
            ContextError::Ended { .. }
            | ContextError::TimedOut { .. }
            | ContextError::Unsound { .. } => Fault::User,
            ContextError::NotReady { .. } | ContextError::Nonsense { .. } => Fault::Backend,
            ContextError::Held { .. } | ContextError::Unwritten(_) => Fault::Host,
            ContextError::Directory(SandboxDirError::File { .. }) => Fault::Host,
            ContextError::Directory(_) => Fault::User,
            ContextError::Code(error) => error.fault(),
            ContextError::Session(error) => error.fault(),
        }
    }

    /// Returns the exit status of a process that ends because of this error.
    pub fn exit_status(&self) -> ExitStatus {
        match self {
            ContextError::Code(error) => error.exit_status(),
            ContextError::Session(error) => error.exit_status(),
            error => error.fault().into(),
        }
    }

    /// Returns the next things to do.
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            ContextError::Absent { .. } => "list the contexts of the sandbox, or create one",
            ContextError::Stateless { .. } => {
                "run its code without a context: `ringfence code --language L FILE`"
            }
            ContextError::TooMany { .. } => "remove one that is no longer used",
            ContextError::Ended { .. }
            | ContextError::TimedOut { .. }
            | ContextError::Nonsense { .. } => {
                "restart it; a cell that names no context does that by itself. The values of its \
                 variables are lost"
            }
            ContextError::NotReady { .. } => "`ringfence logs NAME` may show what it waits for",
            ContextError::Held { .. } => "end that process, or have it run the code",
            ContextError::Unwritten(_) => "check the disk of ~/.local/state/ringfence: df -h",
            ContextError::Unsound { .. } => return Vec::new(),
            ContextError::Directory(error) => return vec![error.hint()],
            ContextError::Code(error) => return error.hints(),
            ContextError::Session(error) => return error.hints(),
        };
        vec![hint.to_owned()]
    }
}
