//! Which backend it is to be.

use std::fmt;

use crate::settings::{Container, Source};
use crate::{Backend, Choice, Fault};

/// How a backend is to be chosen: what somebody asked for, before anybody looked at the host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Selection {
    /// Native, then bwrap, then a detected container; else refused.
    #[default]
    Auto,
    /// This one, or nothing.
    Only(Backend),
    /// Bwrap, then a detected container, else nothing at all with a warning: `SANDBOX_MODE=auto`.
    BwrapElseContainerElseBare,
    /// The container around us, whether or not it is detected: `SANDBOX_MODE=container`.
    TrustContainer,
    /// Docker, else as `Auto` with a warning: `SANDBOX_TYPE=docker`.
    DockerElseAuto,
}

impl Selection {
    /// The nearest that a policy can say.
    pub const fn choice(self) -> Choice {
        match self {
            Selection::Only(backend) => Choice::Only(backend),
            Selection::TrustContainer => Choice::Only(Backend::Outer),
            Selection::Auto | Selection::BwrapElseContainerElseBare | Selection::DockerElseAuto => Choice::Auto,
        }
    }
}

impl From<Choice> for Selection {
    fn from(choice: Choice) -> Self {
        match choice {
            Choice::Auto => Selection::Auto,
            Choice::Only(backend) => Selection::Only(backend),
        }
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Selection::Auto => "auto",
            Selection::Only(backend) => backend.name(),
            Selection::BwrapElseContainerElseBare => "bwrap, else outer in a container, else local",
            Selection::TrustContainer => "outer",
            Selection::DockerElseAuto => "docker, else auto",
        })
    }
}

/// How loudly something is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// It is as intended.
    Info,
    /// Something is weaker than it could be.
    Warning,
}

/// Something to tell about the choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// How loudly.
    pub level: Level,
    /// What.
    pub message: String,
}

/// The backend that was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// Which.
    pub backend: Backend,
    /// Why this one.
    pub because: String,
    /// What to tell about it.
    pub notices: Vec<Notice>,
}

/// Why no backend was chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChooseError {
    /// The one that was asked for does not work here.
    #[error("backend `{backend}`, asked for by {source_name}, does not work here: {why}")]
    Unavailable {
        /// Which.
        backend: Backend,
        /// Who asked for it.
        source_name: String,
        /// What it lacks.
        why: String,
    },
    /// `SANDBOX_MODE=bwrap` without bubblewrap.
    #[error("SANDBOX_MODE=bwrap but bwrap is not available. Install with: apt install bubblewrap")]
    BwrapRequired {
        /// What its preflight said.
        why: String,
    },
    /// Nothing isolates here.
    #[error("no backend can isolate here: native: {native}; bwrap: {bwrap}; no container was detected")]
    NothingIsolates {
        /// What native lacks.
        native: String,
        /// What bwrap lacks.
        bwrap: String,
    },
}

impl ChooseError {
    /// Whose move it is: the host lacks what was asked for.
    pub const fn fault(&self) -> Fault {
        Fault::Host
    }

    /// The next things to type, one per way forward.
    pub fn hints(&self) -> Vec<String> {
        match self {
            ChooseError::Unavailable { .. } => {
                vec!["`ringfence doctor` shows what works here; `--backend auto` takes the first that does".into()]
            }
            ChooseError::BwrapRequired { why } => vec![format!("its preflight said: {why}")],
            ChooseError::NothingIsolates { .. } => vec![
                "make one work: `ringfence doctor` says what native and bwrap lack (apt install bubblewrap)".into(),
                "run ringfence in a container or VM and trust that: `--backend outer`".into(),
                "run without isolation, by explicit choice: `--backend local`".into(),
            ],
        }
    }
}

/// Chooses a backend: `available` says whether one can hold the policy here, and if not, why.
///
/// It is asked only about backends that may still be chosen, in order, and at most once about each.
pub fn resolve(
    selection: Selection,
    source: &Source,
    available: impl Fn(Backend) -> Result<(), String>,
    container: Option<&Container>,
) -> Result<Chosen, ChooseError> {
    match selection {
        Selection::Auto => auto(available, container),
        Selection::Only(backend) => only(backend, source, available),
        Selection::BwrapElseContainerElseBare => Ok(match (available(Backend::Bwrap), container) {
            (Ok(()), _) => chosen(Backend::Bwrap, "bwrap works here".to_owned()),
            (Err(_), Some(container)) => inside(container),
            (Err(why), None) => {
                let because = format!("bwrap does not work here ({why}), and no container was detected");
                chosen(Backend::Local, because).with(Level::Warning, "No sandbox tool found")
            }
        }),
        Selection::TrustContainer => {
            let message = "SANDBOX_MODE=container, trusting container boundary";
            Ok(chosen(Backend::Outer, format!("asked for by {source}")).with(Level::Info, message))
        }
        Selection::DockerElseAuto => match available(Backend::Docker) {
            Ok(()) => Ok(chosen(Backend::Docker, format!("asked for by {source}"))),
            Err(why) => {
                let fallback = auto(available, container)?;
                let message =
                    format!("SANDBOX_TYPE=docker but docker is not available ({why}), using {}", fallback.backend);
                Ok(fallback.with(Level::Warning, message))
            }
        },
    }
}

fn auto(
    available: impl Fn(Backend) -> Result<(), String>,
    container: Option<&Container>,
) -> Result<Chosen, ChooseError> {
    let Err(native) = available(Backend::Native) else {
        return Ok(chosen(Backend::Native, "native works here".to_owned()));
    };
    let Err(bwrap) = available(Backend::Bwrap) else {
        return Ok(chosen(Backend::Bwrap, format!("bwrap works here, native does not: {native}")));
    };
    match container {
        Some(container) => Ok(inside(container)),
        None => Err(ChooseError::NothingIsolates { native, bwrap }),
    }
}

fn only(
    backend: Backend,
    source: &Source,
    available: impl Fn(Backend) -> Result<(), String>,
) -> Result<Chosen, ChooseError> {
    match available(backend) {
        Ok(()) => Ok(chosen(backend, format!("asked for by {source}"))),
        Err(why) if *source == Source::Variable("SANDBOX_MODE".into()) => Err(ChooseError::BwrapRequired { why }),
        Err(why) => Err(ChooseError::Unavailable { backend, source_name: source.to_string(), why }),
    }
}

fn inside(container: &Container) -> Chosen {
    let message = format!("Running inside {}, container provides isolation", container.name);
    let because = format!("inside {} ({}), which provides the isolation", container.name, container.evidence);
    chosen(Backend::Outer, because).with(Level::Info, message)
}

fn chosen(backend: Backend, because: String) -> Chosen {
    Chosen { backend, because, notices: Vec::new() }
}

impl Chosen {
    fn with(mut self, level: Level, message: impl Into<String>) -> Self {
        self.notices.push(Notice { level, message: message.into() });
        self
    }
}

#[cfg(test)]
mod tests;
