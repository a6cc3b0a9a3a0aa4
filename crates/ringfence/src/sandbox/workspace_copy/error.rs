//! Reasons why a sync failed.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use ringfence_core::Fault;

use crate::session::SessionError;

/// Reason why a sync failed. Paths that were carried before stay carried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SyncError {
    /// The sandbox works on the host's own files.
    #[error("cannot sync the sandbox `{name}`: it works on the host's own files")]
    NotCopied {
        /// Name of the sandbox.
        name: String,
    },
    /// The guest, or a file on the host, made the sync fail.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The workspace on the host could not be read.
    #[error("cannot read the workspace `{path}`", path = path.display())]
    Workspace {
        /// Path of the workspace.
        path: PathBuf,
        /// Error of reading the workspace.
        source: io::Error,
    },
    /// The record of the last sync could not be read or written.
    #[error("cannot {what} the record of the last sync")]
    Record {
        /// Operation that was tried.
        what: &'static str,
        /// Error of the operation.
        source: io::Error,
    },
    /// The sandbox has no workspace any more.
    #[error("cannot sync with the directory `{path}` of the sandbox: it was removed or replaced")]
    Removed {
        /// Path in the sandbox.
        path: String,
    },
    /// The last sync before the end of the sandbox took too long.
    #[error("cannot bring the workspace back within {seconds} s", seconds = timeout.as_secs())]
    TimedOut {
        /// Time that the sync had.
        timeout: Duration,
    },
}

impl SyncError {
    /// Returns the party that has to act on the error.
    pub fn fault(&self) -> Fault {
        match self {
            SyncError::NotCopied { .. } | SyncError::Removed { .. } => Fault::User,
            SyncError::Session(error) => error.fault(),
            SyncError::Workspace { .. } | SyncError::Record { .. } => Fault::Host,
            SyncError::TimedOut { .. } => Fault::Backend,
        }
    }

    /// Returns the next steps for the user.
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            SyncError::NotCopied { .. } => {
                "changes in this sandbox are on the host at once; there is nothing to sync"
            }
            SyncError::Session(error) => return error.hints(),
            SyncError::Workspace { .. } => "check the permissions of the workspace",
            SyncError::Record { .. } => "check the permissions of ~/.local/state/ringfence",
            SyncError::Removed { .. } => {
                "make the directory again inside, or stop the sandbox: `ringfence stop NAME`"
            }
            SyncError::TimedOut { .. } => "run `ringfence sync NAME` before `ringfence stop NAME`",
        };
        vec![hint.to_owned()]
    }
}
