//! Why a sandbox could not be started, reached or stopped.

use ringfence_core::Fault;

use crate::instance::StopError;
use crate::room::{Name, RoomError};
use crate::session::SessionError;
use crate::{ContainerError, RunError};

/// A sandbox could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Its policy cannot be held, or its first process not be started.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Its container could not be made.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// Its room could not be had.
    #[error(transparent)]
    Room(#[from] RoomError),
    /// There is another one of that name.
    #[error("there is a sandbox `{name}` that differs from what is asked for: {difference}")]
    Different {
        /// Which.
        name: Name,
        /// In what.
        difference: String,
    },
    /// The one of that name could not be stopped, or not be reached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The guest did not answer.
    #[error("the guest of the sandbox `{name}` did not come up{}", said(log))]
    Guest {
        /// Whose.
        name: Name,
        /// The last words of the log.
        log: String,
        /// Why.
        source: SessionError,
    },
}

/// A sandbox could not be reached, or not be stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// It is not there.
    #[error(transparent)]
    Room(#[from] RoomError),
    /// Its guest cannot be reached.
    #[error("cannot reach the guest of the sandbox `{name}`")]
    Guest {
        /// Whose.
        name: Name,
        /// Why.
        source: SessionError,
    },
    /// It could not be stopped.
    #[error(transparent)]
    Stop(#[from] StopError),
}

fn said(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("; its last words: {log}") }
}

impl StartError {
    /// Whose move it is.
    pub fn fault(&self) -> Fault {
        match self {
            StartError::Run(error) => error.fault(),
            StartError::Container(error) => error.fault,
            StartError::Room(RoomError::File { .. }) => Fault::Host,
            StartError::Room(_) | StartError::Different { .. } => Fault::User,
            StartError::Attach(error) => error.fault(),
            StartError::Guest { .. } => Fault::Backend,
        }
    }

    /// The next things to type.
    pub fn hints(&self) -> Vec<String> {
        match self {
            StartError::Run(error) => error.hints(),
            StartError::Container(error) => error.hints.clone(),
            StartError::Room(error) => vec![error.hint()],
            StartError::Different { name, .. } => vec![
                format!("make it anew: ringfence up {name} --replace"),
                "or give the new one another name: ringfence up NAME".to_owned(),
            ],
            StartError::Attach(error) => error.hints(),
            StartError::Guest { .. } => vec!["`ringfence doctor` shows what works here, tried afresh".to_owned()],
        }
    }
}

impl AttachError {
    /// Whose move it is.
    pub fn fault(&self) -> Fault {
        match self {
            AttachError::Room(RoomError::File { .. }) => Fault::Host,
            AttachError::Room(_) => Fault::User,
            AttachError::Guest { .. } | AttachError::Stop(_) => Fault::Backend,
        }
    }

    /// The next things to type.
    pub fn hints(&self) -> Vec<String> {
        match self {
            AttachError::Room(error) => vec![error.hint()],
            AttachError::Guest { name, .. } => vec![format!("make it anew: ringfence up {name} --replace")],
            AttachError::Stop(error) => vec![error.hint.clone()],
        }
    }
}
