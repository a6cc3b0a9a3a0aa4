//! Reasons why a sandbox could not be started, reached or stopped.

use ringfence_core::Fault;

use crate::backends::StopError;
use crate::sandbox::directory::{Name, SandboxDirError};
use crate::sandbox::workspace_copy::SyncError;
use crate::session::SessionError;
use crate::{ContainerError, RunError};

/// Reason why a sandbox could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The policy cannot be enforced, or the first process could not be started.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The container could not be made.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// The sandbox directory could not be claimed.
    #[error(transparent)]
    Directory(#[from] SandboxDirError),
    /// A sandbox of the same name exists and differs from what is asked for.
    #[error("there is a sandbox `{name}` that differs from what is asked for: {difference}")]
    Different {
        /// Name of the sandbox.
        name: Name,
        /// Description of the difference.
        difference: String,
    },
    /// The existing sandbox of that name could not be stopped or reached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The guest did not answer in time.
    #[error("the guest of the sandbox `{name}` did not start{}", log_suffix(log))]
    Guest {
        /// Name of the sandbox.
        name: Name,
        /// The last lines of the sandbox's log.
        log: String,
        /// Error of the session with the guest.
        source: SessionError,
    },
    /// The workspace could not be sent into the sandbox.
    #[error("cannot send the workspace into the sandbox `{name}`")]
    Workspace {
        /// Name of the sandbox.
        name: Name,
        /// Error of the first sync.
        source: SyncError,
    },
}

/// Reason why a sandbox could not be reached or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The sandbox does not exist, or its directory cannot be read.
    #[error(transparent)]
    Directory(#[from] SandboxDirError),
    /// The guest of the sandbox cannot be reached.
    #[error("cannot reach the guest of the sandbox `{name}`")]
    Guest {
        /// Name of the sandbox.
        name: Name,
        /// Error of the session with the guest.
        source: SessionError,
    },
    /// The sandbox could not be stopped.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// The changes in a copied workspace could not be brought back. The sandbox was not stopped.
    #[error("cannot bring the workspace of the sandbox `{name}` back, so it was not stopped")]
    Workspace {
        /// Name of the sandbox.
        name: Name,
        /// Process id of the monitor.
        pid: i32,
        /// Error of the last sync.
        source: SyncError,
    },
}

fn log_suffix(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("; the last lines of its log: {log}") }
}

impl StartError {
    /// Returns the party that has to act on the error.
    pub fn fault(&self) -> Fault {
        match self {
            StartError::Run(error) => error.fault(),
            StartError::Container(error) => error.fault,
            StartError::Directory(SandboxDirError::File { .. }) => Fault::Host,
            StartError::Directory(_) | StartError::Different { .. } => Fault::User,
            StartError::Attach(error) => error.fault(),
            StartError::Guest { .. } => Fault::Backend,
            StartError::Workspace { source, .. } => source.fault(),
        }
    }

    /// Returns commands that the user can type next.
    pub fn hints(&self) -> Vec<String> {
        match self {
            StartError::Run(error) => error.hints(),
            StartError::Container(error) => error.hints.clone(),
            StartError::Directory(error) => vec![error.hint()],
            StartError::Different { name, .. } => vec![
                format!("replace it: ringfence up {name} --replace"),
                "or give the new one another name: ringfence up NAME".to_owned(),
            ],
            StartError::Attach(error) => error.hints(),
            StartError::Workspace { source, .. } => source.hints(),
            StartError::Guest { .. } => {
                vec!["`ringfence doctor` tries again what works on this host".to_owned()]
            }
        }
    }
}

impl AttachError {
    /// Returns the party that has to act on the error.
    pub fn fault(&self) -> Fault {
        match self {
            AttachError::Directory(SandboxDirError::File { .. }) => Fault::Host,
            AttachError::Directory(_) => Fault::User,
            AttachError::Guest { .. } | AttachError::Stop(_) => Fault::Backend,
            AttachError::Workspace { source, .. } => source.fault(),
        }
    }

    /// Returns commands that the user can type next.
    pub fn hints(&self) -> Vec<String> {
        match self {
            AttachError::Directory(error) => vec![error.hint()],
            AttachError::Guest { name, .. } => {
                vec![format!("replace it: ringfence up {name} --replace")]
            }
            AttachError::Stop(error) => vec![error.hint.clone()],
            AttachError::Workspace { pid, source, .. } => {
                let mut hints = source.hints();
                hints.push(format!("or end the sandbox without its changes: kill {pid}"));
                hints
            }
        }
    }
}
