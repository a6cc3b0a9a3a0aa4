//! Reasons why a run failed, and the party that has to act.

use std::error::Error;
use std::io;

use ringfence_core::settings::ChooseError;
use ringfence_core::{Backend, ExitStatus, Fault, Refusal};
use ringfence_linux::LaunchError;
use ringfence_linux::cgroup::{CgroupError, CgroupLimit};

use crate::backends::PrepareError;
#[cfg(feature = "egress")]
use crate::egress::SecretError;
use crate::{SessionError, StartError, ViewError, WorkspaceError};

/// Reason why a run did not happen, or has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The directory cannot be a workspace.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// The view of the command could not be determined.
    #[error(transparent)]
    View(#[from] ViewError),
    /// No backend could be chosen.
    #[error(transparent)]
    Choose(#[from] ChooseError),
    /// The backend cannot enforce a clause of the policy.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The backend does not work on this host.
    #[error("backend `{backend}` does not work here: {why}")]
    Unavailable {
        /// The backend that was asked for.
        backend: Backend,
        /// The step that failed, and its result.
        why: String,
        /// A change that would make the backend work.
        fix: String,
    },
    /// A secret that the run needs could not be read.
    #[cfg(feature = "egress")]
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The launch could not be prepared.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// A descriptor that the command would get is a directory.
    #[error(
        "cannot hand descriptor {number} to the sandbox: it is a directory, and the host lies \
         behind it"
    )]
    Directory {
        /// Number of the descriptor.
        number: i32,
    },
    /// A stream that the command would get is a terminal of the caller that cannot be opened again
    /// inside.
    #[error(
        "cannot hand descriptor {number} to the sandbox: it is a terminal without a name here, and \
         it is yours"
    )]
    UnnamedTerminal {
        /// Number of the descriptor.
        number: i32,
    },
    /// The limits could not be set.
    #[error("cannot limit the run")]
    Group(#[from] CgroupError),
    /// The first process of the sandbox could not be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The sandbox could not be set up.
    #[error("cannot {step}")]
    Setup {
        /// The step that failed, as a verb and its object.
        step: String,
        /// Error of the step.
        source: io::Error,
    },
    /// The program of the command does not exist inside the sandbox.
    #[error("cannot find the command `{program}` inside the sandbox")]
    NotFound {
        /// The program as the command names it.
        program: String,
        /// Path of the program on the host, if it exists there.
        on_host: Option<String>,
    },
    /// The program of the command exists and cannot be executed.
    #[error("cannot execute `{program}` inside the sandbox")]
    NotExecutable {
        /// The program as the command names it.
        program: String,
        /// Error of execve(2).
        source: io::Error,
    },
    /// The sandbox of the run could not be started.
    #[error(transparent)]
    Start(Box<StartError>),
    /// The guest of the sandbox failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The run can no longer be watched.
    #[error("cannot watch over the run")]
    Watch {
        /// Error of the system call that failed.
        source: io::Error,
    },
    /// The command ended, but bytes of one of its standard streams could not be copied.
    #[error("cannot copy the {stream} of the command")]
    Stream {
        /// Name of the stream.
        stream: &'static str,
        /// Error of the file outside the sandbox.
        source: io::Error,
    },
    /// Another process removed a limit while the command ran, so the command was ended.
    #[error("the limit of {limit} was taken away from the control group of the run")]
    LimitLost {
        /// The limit that was removed.
        limit: CgroupLimit,
    },
    /// The sandbox ended without a report of how its command ended.
    #[error("the sandbox was killed from outside")]
    Killed,
    /// The run failed after its command was started, and the command had changed paths that
    /// programs on the host act on.
    #[error("the run made, changed or removed {}, and failed", quoted(planted))]
    Planted {
        /// The paths, relative to the workspace when they are in it.
        planted: Vec<String>,
        /// The reason why the run failed.
        source: Box<RunError>,
    },
}

/// Lists paths between backticks.
fn quoted(paths: &[String]) -> String {
    paths.iter().map(|path| format!("`{path}`")).collect::<Vec<_>>().join(", ")
}

impl From<StartError> for RunError {
    fn from(error: StartError) -> RunError {
        match error {
            StartError::Run(error) => error,
            error => RunError::Start(Box::new(error)),
        }
    }
}

impl RunError {
    /// Adds the paths that the command changed before the run failed, if there are any.
    pub(crate) fn with_planted(self, planted: Vec<String>) -> RunError {
        if planted.is_empty() {
            self
        } else {
            RunError::Planted { planted, source: Box::new(self) }
        }
    }

    /// Returns the party that has to act on the error.
    pub fn fault(&self) -> Fault {
        match self {
            RunError::Workspace(_) | RunError::View(_) => Fault::User,
            RunError::Directory { .. } | RunError::UnnamedTerminal { .. } => Fault::User,
            RunError::NotFound { .. } | RunError::NotExecutable { .. } => Fault::User,
            #[cfg(feature = "egress")]
            RunError::Secret(_) => Fault::User,
            RunError::Prepare(
                PrepareError::View(_) | PrepareError::Nul { .. } | PrepareError::NotText { .. },
            ) => Fault::User,
            RunError::Start(error) => error.fault(),
            RunError::Session(error) => error.fault(),
            RunError::Planted { source, .. } => source.fault(),
            RunError::Choose(_) | RunError::Refused(_) | RunError::Unavailable { .. } => {
                Fault::Host
            }
            RunError::Prepare(_)
            | RunError::Group(_)
            | RunError::Launch(_)
            | RunError::Stream { .. } => Fault::Host,
            RunError::Setup { .. }
            | RunError::Watch { .. }
            | RunError::Killed
            | RunError::LimitLost { .. } => Fault::Backend,
        }
    }

    /// Returns the status with which the process exits.
    pub fn exit_status(&self) -> ExitStatus {
        match self {
            RunError::NotFound { .. } | RunError::Prepare(PrepareError::NotFound { .. }) => {
                ExitStatus::NotFound
            }
            RunError::NotExecutable { .. }
            | RunError::Prepare(PrepareError::NotExecutable { .. }) => ExitStatus::NotExecutable,
            RunError::Session(error) => error.exit_status(),
            RunError::Planted { source, .. } => source.exit_status(),
            error => error.fault().into(),
        }
    }

    /// Returns commands that the user can type next.
    pub fn hints(&self) -> Vec<String> {
        match self {
            RunError::Workspace(error) => vec![error.hint()],
            RunError::View(error) | RunError::Prepare(PrepareError::View(error)) => {
                vec![error.hint()]
            }
            #[cfg(feature = "egress")]
            RunError::Secret(error) => vec![error.hint()],
            RunError::Choose(error) => error.hints(),
            RunError::Refused(refusal) => refusal.hints(),
            RunError::Start(error) => error.hints(),
            RunError::Session(error) => error.hints(),
            RunError::Unavailable { fix, .. } => vec![fix.clone()],
            RunError::Directory { .. } => {
                vec!["redirect from a file, or show the directory: --read DIR".to_owned()]
            }
            RunError::UnnamedTerminal { .. } => vec![
                "redirect it: < /dev/null, or 2>&1 | cat; or give the run a terminal: script -qec \
                 'ringfence run …' /dev/null"
                    .to_owned(),
            ],
            RunError::Stream { .. } => {
                vec![
                    "some of the bytes are lost: redirect the stream elsewhere, and run the \
                     command again"
                        .to_owned(),
                ]
            }
            RunError::Group(error) => vec![error.hint().to_owned()],
            RunError::NotFound { on_host: Some(path), .. } => {
                vec![format!("it is on the host at `{path}`; to show it: --read '{path}'")]
            }
            RunError::NotFound { .. } | RunError::Prepare(PrepareError::NotFound { .. }) => {
                vec![
                    "`ringfence run -- sh -c 'echo $PATH'` shows where commands are looked for"
                        .to_owned(),
                ]
            }
            RunError::NotExecutable { program, .. } => vec![format!("chmod +x '{program}'")],
            RunError::Prepare(PrepareError::NotExecutable { program }) => {
                vec![format!("chmod +x '{program}'")]
            }
            RunError::Prepare(PrepareError::NotText { .. }) => {
                vec!["rename it, or use `--backend native`".to_owned()]
            }
            RunError::Prepare(PrepareError::Nul { .. }) => vec!["take the NUL byte out".to_owned()],
            RunError::Launch(_)
            | RunError::Setup { .. }
            | RunError::Watch { .. }
            | RunError::Prepare(_) => {
                vec!["`ringfence doctor` tries again what works on this host".to_owned()]
            }
            RunError::LimitLost { .. } => vec![
                "run it in a scope that nobody else manages: systemd-run --user --scope -p \
                 Delegate=yes -- ringfence run …"
                    .to_owned(),
            ],
            RunError::Planted { source, .. } => {
                let look = "programs on the host such as git may act on these paths; look at them \
                            first";
                std::iter::once(look.to_owned()).chain(source.hints()).collect()
            }
            RunError::Killed => {
                vec!["look for what killed it: dmesg, or who runs as this user".to_owned()]
            }
        }
    }
}

/// Returns an error and its causes, in one line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}
