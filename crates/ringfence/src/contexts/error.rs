//! Why a context did not do what it was asked to.

use std::io;
use std::time::Duration;

use ringfence_core::{ExitStatus, Fault};

use crate::{CodeError, Name, RoomError, SessionError};

/// A context did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContextError {
    /// There is no such context.
    #[error("there is no context `{}`", id.escape_debug())]
    Absent {
        /// Which.
        id: String,
    },
    /// The language has none.
    #[error("cannot keep state for {language}: contexts are for {}", known.join(", "))]
    Stateless {
        /// The language.
        language: String,
        /// Those that have.
        known: Vec<String>,
    },
    /// There are as many as there may be.
    #[error("cannot make another context: there are {limit} in this sandbox")]
    TooMany {
        /// How many there may be.
        limit: usize,
    },
    /// It has ended.
    #[error("the context `{id}` has ended: {how}")]
    Ended {
        /// Which.
        id: String,
        /// How.
        how: String,
    },
    /// It does not come up.
    #[error("cannot start a context for {language}: {why}")]
    NotReady {
        /// The language.
        language: String,
        /// Why.
        why: String,
    },
    /// A cell took longer than the policy allows.
    #[error("the context `{id}` was ended: its cell took longer than {} s", time.as_secs_f64())]
    TimedOut {
        /// Which.
        id: String,
        /// What the policy allows.
        time: Duration,
    },
    /// What its harness says makes no sense.
    #[error("the context `{id}` was ended: what its harness says makes no sense: {why}")]
    Nonsense {
        /// Which.
        id: String,
        /// What is wrong with it.
        why: String,
    },
    /// A cell cannot be passed on.
    #[error("cannot run a cell: {why}")]
    Unsound {
        /// Why.
        why: &'static str,
    },
    /// Another process has the contexts of the sandbox that outlive it.
    #[error("cannot take over the contexts of the sandbox `{name}`: another process has them")]
    Held {
        /// Which sandbox.
        name: Name,
    },
    /// It could not be written down where those are that outlive their process.
    #[error("cannot write down a context, so that it outlives this process")]
    Unwritten(#[from] io::Error),
    /// The sandbox is gone, or where its contexts are written down cannot be read.
    #[error(transparent)]
    Room(#[from] RoomError),
    /// Its language is unknown, or not run here.
    #[error(transparent)]
    Code(#[from] CodeError),
    /// The guest of the sandbox failed.
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl ContextError {
    /// Whose move it is.
    pub fn fault(&self) -> Fault {
        match self {
            ContextError::Absent { .. } | ContextError::Stateless { .. } | ContextError::TooMany { .. } => Fault::User,
            ContextError::Ended { .. } | ContextError::TimedOut { .. } | ContextError::Unsound { .. } => Fault::User,
            ContextError::NotReady { .. } | ContextError::Nonsense { .. } => Fault::Backend,
            ContextError::Held { .. } | ContextError::Unwritten(_) => Fault::Host,
            ContextError::Room(RoomError::File { .. }) => Fault::Host,
            ContextError::Room(_) => Fault::User,
            ContextError::Code(error) => error.fault(),
            ContextError::Session(error) => error.fault(),
        }
    }

    /// What the process exits with.
    pub fn exit_status(&self) -> ExitStatus {
        match self {
            ContextError::Code(error) => error.exit_status(),
            ContextError::Session(error) => error.exit_status(),
            error => error.fault().into(),
        }
    }

    /// The next things to do.
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            ContextError::Absent { .. } => "list those that there are, or make one",
            ContextError::Stateless { .. } => "run its code without a context: `ringfence code --language L FILE`",
            ContextError::TooMany { .. } => "remove one that is no longer used",
            ContextError::Ended { .. } | ContextError::TimedOut { .. } | ContextError::Nonsense { .. } => {
                "restart it, as a cell that names no context does by itself; what its variables held is lost"
            }
            ContextError::NotReady { .. } => "`ringfence logs NAME` may tell what it waits for",
            ContextError::Held { .. } => "end that process, or have it run the code",
            ContextError::Unwritten(_) => "look at the disk of ~/.local/state/ringfence: df -h",
            ContextError::Unsound { .. } => return Vec::new(),
            ContextError::Room(error) => return vec![error.hint()],
            ContextError::Code(error) => return error.hints(),
            ContextError::Session(error) => return error.hints(),
        };
        vec![hint.to_owned()]
    }
}
