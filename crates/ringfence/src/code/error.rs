//! Why code was not run.

use std::io;

use ringfence_core::{Backend, ExitStatus, Fault};

use super::script::Script;
use crate::backends::PrepareError;
use crate::{RunError, SessionError};

/// Code was not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CodeError {
    /// There is no such language.
    #[error("unknown language `{}`: it is one of {}", language.escape_debug(), known.join(", "))]
    UnknownLanguage {
        /// What was asked for.
        language: String,
        /// What there is.
        known: Vec<String>,
    },
    /// It is too long.
    #[error("cannot run code that is longer than {limit} bytes")]
    TooLong {
        /// How long it may be.
        limit: usize,
    },
    /// The program that runs the language is not there.
    #[error("cannot find `{program}`, which runs {language}, inside the sandbox")]
    NoProgram {
        /// The language.
        language: String,
        /// The program.
        program: String,
    },
    /// A project's file says how the language is run, and it would be on the host.
    #[error(
        "cannot run {language} on backend `{backend}`: the project's own file says by what command, and that would run on the host"
    )]
    FromProject {
        /// The language.
        language: String,
        /// The backend.
        backend: Backend,
    },
    /// Its interpreters cannot wait.
    #[error("cannot keep interpreters of {language}: only those of Python can wait for code")]
    NotPython {
        /// The language.
        language: String,
    },
    /// An interpreter did not come to wait for code.
    #[error("cannot have an interpreter wait for code: {why}")]
    NotWaiting {
        /// What became of it.
        why: String,
    },
    /// There is no place for it on the host.
    #[error("cannot make a directory for the code")]
    Stage {
        /// Why.
        source: io::Error,
    },
    /// The run did not happen.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The guest of the sandbox failed.
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl CodeError {
    /// Whose move it is.
    pub fn fault(&self) -> Fault {
        match self {
            CodeError::UnknownLanguage { .. } | CodeError::TooLong { .. } => Fault::User,
            CodeError::NoProgram { .. } | CodeError::FromProject { .. } | CodeError::NotPython { .. } => Fault::User,
            CodeError::Stage { .. } | CodeError::NotWaiting { .. } => Fault::Host,
            CodeError::Run(error) => error.fault(),
            CodeError::Session(error) => error.fault(),
        }
    }

    /// What the process exits with.
    pub fn exit_status(&self) -> ExitStatus {
        match self {
            CodeError::NoProgram { .. } => ExitStatus::NotFound,
            CodeError::Run(error) => error.exit_status(),
            CodeError::Session(error) => error.exit_status(),
            error => error.fault().into(),
        }
    }

    /// The next things to type.
    pub fn hints(&self) -> Vec<String> {
        match self {
            CodeError::UnknownLanguage { language, known } => {
                let name = language.to_ascii_lowercase();
                vec![match known.contains(&name) {
                    true => format!("did you mean `{name}`? names of languages are in lower case"),
                    false => format!(
                        "to add it to your own config.toml: [code.languages.{}] with command = [\"PROGRAM\"] and suffix = \
                         \".X\"",
                        name.escape_debug()
                    ),
                }]
            }
            CodeError::TooLong { .. } => vec!["give its data to it in a file: --read PATH".to_owned()],
            CodeError::NoProgram { language, .. } => vec![
                "install it where the sandbox sees it, or name an image that has it: --image".to_owned(),
                format!("or name another program in your own config.toml: [code.languages.{language}] command = [...]"),
            ],
            CodeError::FromProject { language, .. } => {
                vec![format!(
                    "choose a backend that isolates, or move [code.languages.{language}] to your own config.toml"
                )]
            }
            CodeError::NotPython { .. } => vec!["run it with `Engine::execute_code`".to_owned()],
            CodeError::NotWaiting { .. } => vec!["code is run without it, by an interpreter of its own".to_owned()],
            CodeError::Stage { .. } => vec!["look at /tmp: df -h /tmp; ls -ld /tmp/ringfence-*".to_owned()],
            CodeError::Run(error) => error.hints(),
            CodeError::Session(error) => error.hints(),
        }
    }

    /// The program that is not there, if that is the matter.
    fn missing_program(&self) -> Option<&str> {
        match self {
            CodeError::Run(
                RunError::NotFound { program, .. }
                | RunError::Prepare(PrepareError::NotFound { program })
                | RunError::Session(SessionError::NotFound { program }),
            )
            | CodeError::Session(SessionError::NotFound { program }) => Some(program),
            _ => None,
        }
    }
}

/// Tells of a program that is not there in the words of its language.
pub(super) fn of(error: impl Into<CodeError>, script: &Script) -> CodeError {
    let error = error.into();
    match error.missing_program() {
        Some(program) if program == script.language.command().0 => {
            CodeError::NoProgram { language: script.name.clone(), program: program.to_owned() }
        }
        _ => error,
    }
}
