//! The error of operations that run code.

use std::io;

use ringfence_core::{Backend, ExitStatus, Fault};

use super::script::Script;
use crate::backends::PrepareError;
use crate::{RunError, SessionError};

/// Reason why code was not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CodeError {
    /// The settings have no language of this name.
    #[error("unknown language `{}`: it is one of {}", language.escape_debug(), known.join(", "))]
    UnknownLanguage {
        /// Name that the caller asked for.
        language: String,
        /// Names of the languages that the settings have.
        known: Vec<String>,
    },
    /// The code is longer than the limit.
    #[error("cannot run code that is longer than {limit} bytes")]
    TooLong {
        /// Longest code that is accepted, in bytes.
        limit: usize,
    },
    /// The program that runs the language is not in the sandbox.
    #[error("cannot find `{program}`, which runs {language}, inside the sandbox")]
    NoProgram {
        /// Name of the language.
        language: String,
        /// Program that the language's command names.
        program: String,
    },
    /// A project's file sets the command of the language, and the backend would run that command on
    /// the host.
    #[error(
        "cannot run {language} on backend `{backend}`: the project's own file names the command, \
         which would run on the host"
    )]
    FromProject {
        /// Name of the language.
        language: String,
        /// Backend that does not isolate the command.
        backend: Backend,
    },
    /// Interpreters of the language cannot wait for code: only those of Python can.
    #[error("cannot keep interpreters of {language}: only Python interpreters can wait for code")]
    NotPython {
        /// Name of the language.
        language: String,
    },
    /// An interpreter did not get ready to wait for code.
    #[error("cannot start an interpreter that waits for code: {why}")]
    NotWaiting {
        /// Description of how the interpreter failed, with its last output.
        why: String,
    },
    /// The directory for the code could not be made on the host.
    #[error("cannot make a directory for the code")]
    Stage {
        /// Error of the failed file operation.
        source: io::Error,
    },
    /// The run of the command failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A call to the guest of the sandbox failed.
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl CodeError {
    /// Returns whose move it is after this error.
    pub fn fault(&self) -> Fault {
        match self {
            CodeError::UnknownLanguage { .. } | CodeError::TooLong { .. } => Fault::User,
            CodeError::NoProgram { .. }
            | CodeError::FromProject { .. }
            | CodeError::NotPython { .. } => Fault::User,
            CodeError::Stage { .. } | CodeError::NotWaiting { .. } => Fault::Host,
            CodeError::Run(error) => error.fault(),
            CodeError::Session(error) => error.fault(),
        }
    }

    /// Returns the exit status of a process that ends because of this error.
    pub fn exit_status(&self) -> ExitStatus {
        match self {
            CodeError::NoProgram { .. } => ExitStatus::NotFound,
            CodeError::Run(error) => error.exit_status(),
            CodeError::Session(error) => error.exit_status(),
            error => error.fault().into(),
        }
    }

    /// Returns the next commands to type.
    pub fn hints(&self) -> Vec<String> {
        match self {
            CodeError::UnknownLanguage { language, known } => {
                let name = language.to_ascii_lowercase();
                vec![match known.contains(&name) {
                    true => format!("did you mean `{name}`? names of languages are in lower case"),
                    false => format!(
                        "to add it to your own config.toml: [code.languages.{}] with command = \
                         [\"PROGRAM\"] and suffix = \".X\"",
                        name.escape_debug()
                    ),
                }]
            }
            CodeError::TooLong { .. } => {
                vec!["pass its data in a file: --read PATH".to_owned()]
            }
            CodeError::NoProgram { language, .. } => vec![
                "install it where the sandbox sees it, or name an image that has it: --image"
                    .to_owned(),
                format!(
                    "or name another program in your own config.toml: [code.languages.{language}] \
                     command = [...]"
                ),
            ],
            CodeError::FromProject { language, .. } => {
                vec![format!(
                    "choose a backend that isolates, or move [code.languages.{language}] to your \
                     own config.toml"
                )]
            }
            CodeError::NotPython { .. } => vec!["run it with `Engine::execute_code`".to_owned()],
            CodeError::NotWaiting { .. } => {
                vec!["code runs in a new interpreter instead".to_owned()]
            }
            CodeError::Stage { .. } => {
                vec!["check /tmp: df -h /tmp; ls -ld /tmp/ringfence-*".to_owned()]
            }
            CodeError::Run(error) => error.hints(),
            CodeError::Session(error) => error.hints(),
        }
    }

    /// Returns the program that was not found, if a missing program is the cause of this error.
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

/// Converts an error about the missing program of a language into [`CodeError::NoProgram`].
pub(super) fn for_script(error: impl Into<CodeError>, script: &Script) -> CodeError {
    let error = error.into();
    match error.missing_program() {
        Some(program) if program == script.language.command().0 => {
            CodeError::NoProgram { language: script.name.clone(), program: program.to_owned() }
        }
        _ => error,
    }
}
