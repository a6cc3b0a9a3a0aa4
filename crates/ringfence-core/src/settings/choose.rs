//! Choice of the backend.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::settings::{DetectedContainer, ValueSource};
use crate::{Backend, BackendChoice, Fault};

/// Rule for the choice of a backend, as the settings state it. [`resolve`] applies the rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BackendSelection {
    /// `native`, else `bwrap`, else `outer` in a detected container, else an error.
    #[default]
    Auto,
    /// The named backend, else an error.
    Only(Backend),
    /// `bwrap`, else `outer` in a detected container, else `local` with a warning. The meaning of
    /// `SANDBOX_MODE=auto`.
    BwrapElseContainerElseBare,
    /// `outer`, even if no container is detected. The meaning of `SANDBOX_MODE=container`.
    TrustContainer,
    /// `docker`, else the choice of `Auto` with a warning. The meaning of `SANDBOX_TYPE=docker`.
    DockerElseAuto,
}

impl BackendSelection {
    /// Returns the choice of a policy that is closest to this selection.
    pub const fn choice(self) -> BackendChoice {
        match self {
            BackendSelection::Only(backend) => BackendChoice::Only(backend),
            BackendSelection::TrustContainer => BackendChoice::Only(Backend::Outer),
            BackendSelection::Auto
            | BackendSelection::BwrapElseContainerElseBare
            | BackendSelection::DockerElseAuto => BackendChoice::Auto,
        }
    }
}

impl From<BackendChoice> for BackendSelection {
    fn from(choice: BackendChoice) -> Self {
        match choice {
            BackendChoice::Auto => BackendSelection::Auto,
            BackendChoice::Only(backend) => BackendSelection::Only(backend),
        }
    }
}

impl fmt::Display for BackendSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BackendSelection::Auto => "auto",
            BackendSelection::Only(backend) => backend.name(),
            BackendSelection::BwrapElseContainerElseBare => {
                "bwrap, else outer in a container, else local"
            }
            BackendSelection::TrustContainer => "outer",
            BackendSelection::DockerElseAuto => "docker, else auto",
        })
    }
}

/// Severity of a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoticeLevel {
    /// The outcome is as intended.
    Info,
    /// The choice is a fallback, or a backend without isolation.
    Warning,
}

/// Message about the choice of a backend, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendNotice {
    /// Severity of the message.
    pub level: NoticeLevel,
    /// Text of the message.
    pub message: String,
}

/// Backend that was chosen, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChosenBackend {
    /// Backend that was chosen.
    pub backend: Backend,
    /// Reason for the choice, for logs and results.
    pub because: String,
    /// Messages about the choice, for the log.
    pub notices: Vec<BackendNotice>,
}

/// Reason why no backend was chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChooseError {
    /// The requested backend does not work on this host.
    #[error("backend `{backend}`, asked for by {source_name}, does not work here: {why}")]
    Unavailable {
        /// Backend that was requested.
        backend: Backend,
        /// Source of the request, such as `--backend`.
        source_name: String,
        /// Reason why the backend does not work.
        why: String,
    },
    /// `SANDBOX_MODE=bwrap` is set, but bubblewrap does not work on this host.
    #[error("SANDBOX_MODE=bwrap but bwrap is not available. Install with: apt install bubblewrap")]
    BwrapRequired {
        /// Reason from the preflight check of bubblewrap.
        why: String,
    },
    /// Neither `native` nor `bwrap` works on this host, and no container was detected.
    #[error(
        "no backend can isolate here: native: {native}; bwrap: {bwrap}; no container was detected"
    )]
    NothingIsolates {
        /// Reason why `native` does not work.
        native: String,
        /// Reason why `bwrap` does not work.
        bwrap: String,
    },
}

impl ChooseError {
    /// Returns the party that can correct the error: the host, which lacks what was requested.
    pub const fn fault(&self) -> Fault {
        Fault::Host
    }

    /// Returns what the user can do next, one line per option.
    pub fn hints(&self) -> Vec<String> {
        match self {
            ChooseError::Unavailable { .. } => {
                vec![
                    "`ringfence doctor` shows what works here; `--backend auto` takes the first \
                    that does"
                        .into(),
                ]
            }
            ChooseError::BwrapRequired { why } => vec![format!("its preflight said: {why}")],
            ChooseError::NothingIsolates { .. } => vec![
                "make one work: `ringfence doctor` says what native and bwrap lack (apt install \
                 bubblewrap)"
                    .into(),
                "run ringfence in a container or VM and trust that: `--backend outer`".into(),
                "run without isolation, by explicit choice: `--backend local`".into(),
            ],
        }
    }
}

/// Chooses a backend.
///
/// `available` returns `Ok` if a backend can hold the policy on this host, and else the reason.
/// `resolve` calls `available` in order, only for backends that may still be chosen, and at most
/// once for each. There is no such call for `outer` in a container, and none for `local` as the
/// last resort of `BwrapElseContainerElseBare`.
pub fn resolve(
    selection: BackendSelection,
    source: &ValueSource,
    available: impl Fn(Backend) -> Result<(), String>,
    container: Option<&DetectedContainer>,
) -> Result<ChosenBackend, ChooseError> {
    match selection {
        BackendSelection::Auto => choose_automatically(available, container),
        BackendSelection::Only(backend) => choose_named(backend, source, available),
        BackendSelection::BwrapElseContainerElseBare => {
            Ok(match (available(Backend::Bwrap), container) {
                (Ok(()), _) => chosen(Backend::Bwrap, "bwrap works here".to_owned()),
                (Err(_), Some(container)) => trust_container(container),
                (Err(why), None) => {
                    let because =
                        format!("bwrap does not work here ({why}), and no container was detected");
                    chosen(Backend::Local, because)
                        .with_notice(NoticeLevel::Warning, "No sandbox tool found")
                }
            })
        }
        BackendSelection::TrustContainer => {
            let message = "SANDBOX_MODE=container, trusting container boundary";
            Ok(chosen(Backend::Outer, format!("asked for by {source}"))
                .with_notice(NoticeLevel::Info, message))
        }
        BackendSelection::DockerElseAuto => match available(Backend::Docker) {
            Ok(()) => Ok(chosen(Backend::Docker, format!("asked for by {source}"))),
            Err(why) => {
                let fallback = choose_automatically(available, container)?;
                let message = format!(
                    "SANDBOX_TYPE=docker but docker is not available ({why}), using {}",
                    fallback.backend
                );
                Ok(fallback.with_notice(NoticeLevel::Warning, message))
            }
        },
    }
}

fn choose_automatically(
    available: impl Fn(Backend) -> Result<(), String>,
    container: Option<&DetectedContainer>,
) -> Result<ChosenBackend, ChooseError> {
    let Err(native) = available(Backend::Native) else {
        return Ok(chosen(Backend::Native, "native works here".to_owned()));
    };
    let Err(bwrap) = available(Backend::Bwrap) else {
        return Ok(chosen(Backend::Bwrap, format!("bwrap works here, native does not: {native}")));
    };
    match container {
        Some(container) => Ok(trust_container(container)),
        None => Err(ChooseError::NothingIsolates { native, bwrap }),
    }
}

fn choose_named(
    backend: Backend,
    source: &ValueSource,
    available: impl Fn(Backend) -> Result<(), String>,
) -> Result<ChosenBackend, ChooseError> {
    match available(backend) {
        Ok(()) => Ok(chosen(backend, format!("asked for by {source}"))),
        // `bwrap` is the only backend that `SANDBOX_MODE` can name.
        Err(why) if *source == ValueSource::Variable("SANDBOX_MODE".into()) => {
            Err(ChooseError::BwrapRequired { why })
        }
        Err(why) => Err(ChooseError::Unavailable { backend, source_name: source.to_string(), why }),
    }
}

fn trust_container(container: &DetectedContainer) -> ChosenBackend {
    let message = format!("Running inside {}, container provides isolation", container.name);
    let because =
        format!("inside {} ({}), which provides the isolation", container.name, container.evidence);
    chosen(Backend::Outer, because).with_notice(NoticeLevel::Info, message)
}

fn chosen(backend: Backend, because: String) -> ChosenBackend {
    ChosenBackend { backend, because, notices: Vec::new() }
}

impl ChosenBackend {
    fn with_notice(mut self, level: NoticeLevel, message: impl Into<String>) -> Self {
        self.notices.push(BackendNotice { level, message: message.into() });
        self
    }
}

#[cfg(test)]
mod tests;
