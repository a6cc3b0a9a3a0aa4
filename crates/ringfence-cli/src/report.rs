//! Error messages, warnings and logging of the command line.
#![expect(clippy::print_stderr, reason = "standard error is the conversation")]

use std::borrow::Cow;
use std::io::ErrorKind;
use std::process::ExitCode;

use ringfence::egress::ChangeError;
use ringfence::monitor::MonitorError;
use ringfence::{
    AttachError, Code, CodeError, ContainerError, ExecutionResult, ExitStatus, Fault, LoadError,
    PauseError, RecordError, RunError, SandboxDirError, SessionError, StartError, SyncError,
    WrapperError, chain,
};
use ringfence_core::settings::SettingsError;
use ringfence_core::terminal::{clean_line, clean_message};
use ringfence_server::ServerError;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;

use crate::answer::{Form, print_json};
use crate::terminal::CleanStderr;

/// Error that the command line reports: a message, hints for the next step, and an exit status.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    hints: Vec<String>,
    status: ExitStatus,
    /// Stable error code for programs.
    code: Cow<'static, str>,
}

impl From<Failure> for MonitorError {
    fn from(failure: Failure) -> MonitorError {
        let Failure { message, hints, status, code } = failure;
        MonitorError::new(message, hints, status, code)
    }
}

impl From<MonitorError> for Failure {
    fn from(error: MonitorError) -> Failure {
        let code = error.code().to_owned().into();
        let (message, hints) = (error.message().to_owned(), error.hints().to_owned());
        Failure { message, hints, status: error.exit_status(), code }
    }
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Failure {
        Failure::new(error.message(), error.hints().to_owned(), error.fault().into())
    }
}

impl Failure {
    /// Creates a failure for a mistake of the caller.
    pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure::new(message, [hint.into()], ExitStatus::Usage)
    }

    /// Creates a failure for an operation that did not work.
    pub(crate) fn failed(message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure::new(message, [hint.into()], ExitStatus::SandboxFailed)
    }

    /// Creates a failure for a start that a signal ended before it was done.
    pub(crate) fn interrupted(signal: u8) -> Failure {
        Failure::new(
            "interrupted: no sandbox was started",
            ["ringfence up".to_owned()],
            ExitStatus::Signal(signal),
        )
    }

    /// Creates a failure for a missing feature or backend, with hints on how to get it.
    pub(crate) fn unavailable(
        message: impl Into<String>,
        hints: impl IntoIterator<Item = String>,
    ) -> Failure {
        Failure {
            code: "unavailable".into(),
            ..Failure::new(message, hints, ExitStatus::SandboxFailed)
        }
    }

    /// Creates a failure for code that the import lint refused to run.
    pub(crate) fn blocked(result: &ExecutionResult) -> Failure {
        let hint =
            "to run the code anyway: --block-imports off; the policy still limits what the code \
             can do"
                .to_owned();
        let failure = Failure::new(result.stderr.trim_end(), [hint], ExitStatus::NotExecutable);
        Failure { code: "blocked-imports".into(), ..failure }
    }

    /// Creates a failure whose exit status follows from `fault`, the party that must act next.
    pub(crate) fn with_fault(
        message: impl Into<String>,
        hints: impl IntoIterator<Item = String>,
        fault: Fault,
    ) -> Failure {
        Failure::new(message, hints, fault.into())
    }

    /// Rewrites the failure so that it names the template of a server as its subject.
    pub(crate) fn about_template(self, name: &str) -> Failure {
        let mut hints = self.hints;
        if hints.iter().any(|hint| hint.contains("--")) {
            let keys = "each flag in these hints has a key of the same meaning in the server's \
                        settings, or in the policy file of the template";
            hints.push(format!("{keys}: docs/guides/serving.md"));
        }
        Failure {
            message: format!("the template `{name}` cannot be used: {}", self.message),
            hints,
            ..self
        }
    }

    fn new(
        message: impl Into<String>,
        hints: impl IntoIterator<Item = String>,
        status: ExitStatus,
    ) -> Failure {
        let code = match status {
            ExitStatus::Usage => "usage",
            ExitStatus::NotFound => "not-found",
            ExitStatus::NotExecutable => "not-executable",
            _ => "failed",
        };
        Failure {
            message: message.into(),
            hints: hints.into_iter().collect(),
            status,
            code: code.into(),
        }
    }

    /// Prints the error and its hints to standard error and returns the exit code. With
    /// [`Form::Json`], also prints the error as JSON to standard output.
    pub(crate) fn report(&self, form: Form) -> ExitCode {
        eprintln!("ringfence: error: {}", clean_message(&self.message));
        for hint in &self.hints {
            print_hint(hint);
        }
        if form == Form::Json {
            let error = serde_json::json!({
                "code": self.code, "message": self.message, "hints": self.hints,
            });
            // Standard error already has the error.
            let _ = print_json(&serde_json::json!({ "error": error }));
        }
        self.status.code().into()
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Failure {
        let failure = Failure::new(chain(&error), error.hints(), error.exit_status());
        match error {
            RunError::Refused(_) => Failure { code: "refused".into(), ..failure },
            RunError::Choose(_) | RunError::Unavailable { .. } => {
                Failure { code: "unavailable".into(), ..failure }
            }
            error if error.fault() == Fault::Bug => Failure { code: "bug".into(), ..failure },
            _ => failure,
        }
    }
}

impl From<CodeError> for Failure {
    fn from(error: CodeError) -> Failure {
        match error {
            CodeError::Run(error) => error.into(),
            error => {
                let failure = Failure::new(chain(&error), error.hints(), error.exit_status());
                match error {
                    CodeError::UnknownLanguage { .. } => {
                        Failure { code: "unknown-language".into(), ..failure }
                    }
                    _ => failure,
                }
            }
        }
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Failure {
        match error {
            StartError::Run(error) => error.into(),
            StartError::Attach(error) => error.into(),
            StartError::Directory(error) => error.into(),
            error => {
                let failure = Failure::new(chain(&error), error.hints(), error.fault().into());
                match error {
                    StartError::Different { .. } => {
                        Failure { code: "name-taken".into(), ..failure }
                    }
                    _ => failure,
                }
            }
        }
    }
}

impl From<ContainerError> for Failure {
    fn from(error: ContainerError) -> Failure {
        StartError::from(error).into()
    }
}

impl From<AttachError> for Failure {
    fn from(error: AttachError) -> Failure {
        match error {
            AttachError::Directory(error) => error.into(),
            error => Failure::new(chain(&error), error.hints(), error.fault().into()),
        }
    }
}

impl From<SyncError> for Failure {
    fn from(error: SyncError) -> Failure {
        Failure::new(chain(&error), error.hints(), error.fault().into())
    }
}

impl From<PauseError> for Failure {
    fn from(error: PauseError) -> Failure {
        match error {
            PauseError::Directory(error) => error.into(),
            error => Failure::new(chain(&error), error.hints(), error.fault().into()),
        }
    }
}

impl From<ChangeError> for Failure {
    fn from(error: ChangeError) -> Failure {
        match error {
            ChangeError::Directory(error) => error.into(),
            error => Failure::new(chain(&error), error.hints(), error.fault().into()),
        }
    }
}

impl From<SandboxDirError> for Failure {
    fn from(error: SandboxDirError) -> Failure {
        let (status, code) = match &error {
            SandboxDirError::Absent { .. } => (ExitStatus::Usage, "no-such-sandbox"),
            SandboxDirError::Taken { .. } => (ExitStatus::Usage, "name-taken"),
            SandboxDirError::Name(_) => (ExitStatus::Usage, "usage"),
            _ => (ExitStatus::SandboxFailed, "failed"),
        };
        Failure { code: code.into(), ..Failure::new(chain(&error), [error.hint()], status) }
    }
}

impl Failure {
    /// Creates a failure for a failed call to the guest of the sandbox `name`. The hints contain
    /// that name.
    pub(crate) fn from_session(error: &SessionError, name: &str) -> Failure {
        let mut hints: Vec<String> =
            error.hints().iter().map(|hint| hint.replace("NAME", name)).collect();
        if hints.is_empty() {
            hints.push(match error.code() {
                Some(Code::NotFound) => {
                    format!("`ringfence exec {name} -- ls` lists the files of the workspace")
                }
                _ => format!(
                    "`ringfence inspect {name}` describes the sandbox, and `ringfence logs {name}` \
                     prints its log"
                ),
            });
        }
        Failure::new(chain(error), hints, error.exit_status())
    }
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Failure {
        let hint = error.hint().unwrap_or_else(|| match &error {
            LoadError::Wrong(SettingsError::Dialect(_)) => {
                "correct the variable, or unset it".to_owned()
            }
            _ => "`ringfence config schema` prints the keys and their types".to_owned(),
        });
        Failure::usage(chain(&error), hint)
    }
}

impl From<WrapperError> for Failure {
    fn from(error: WrapperError) -> Failure {
        let status = match &error {
            WrapperError::File { source, .. } if source.kind() == ErrorKind::NotFound => {
                ExitStatus::Usage
            }
            WrapperError::NoStateDirectory | WrapperError::File { .. } => ExitStatus::SandboxFailed,
            _ => ExitStatus::Usage,
        };
        Failure::new(chain(&error), [error.hint()], status)
    }
}

impl From<RecordError> for Failure {
    fn from(error: RecordError) -> Failure {
        Failure::failed(chain(&error), error.hint())
    }
}

impl Failure {
    /// Creates a failure from a command line that clap could not parse, in the form of all other
    /// errors. `help` is the command that shows the right usage.
    pub(crate) fn misunderstood(error: &clap::Error, help: String) -> Failure {
        let text = error.render().to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        let message = text.split("\n\n").next().unwrap_or(text).trim_end();
        let tips = text
            .lines()
            .filter_map(|line| line.trim_start().strip_prefix("tip: "))
            .map(str::to_owned);
        Failure::new(message, tips.chain([help]), ExitStatus::Usage)
    }
}

/// Prints a warning to standard error.
pub(crate) fn warn(message: &str) {
    eprintln!("ringfence: warning: {}", clean_message(message));
}

/// Prints a hint, such as the next command to type, to standard error.
pub(crate) fn print_hint(hint: &str) {
    eprintln!("hint: {}", clean_message(hint));
}

/// Prints a line that comes from another program to standard error.
pub(crate) fn pass_on(line: &str) {
    eprintln!("{}", clean_line(line));
}

/// Prints a note about an answer to standard error, such as the file that the answer belongs into.
pub(crate) fn note(message: &str) {
    eprintln!("ringfence: {}", clean_message(message));
}

/// Installs the log subscriber, which writes to standard error. The default level is `warn`, and
/// each `-v` adds one level. `variable`, the value of `RINGFENCE_LOG`, replaces that level with a
/// filter such as `debug` or `ringfence_linux=trace,warn`.
pub(crate) fn listen(verbosity: u8, variable: Option<&str>) -> Result<(), Failure> {
    let level = match verbosity {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    // The client of Kubernetes logs each request and each connection at level `debug`.
    let clients =
        ["hyper_util", "kube_client", "tower"].map(|name| (name, level.min(LevelFilter::INFO)));
    let targets = match variable {
        // `rmcp` logs a warning for each error answer to a client of `ringfence mcp`.
        None if verbosity == 0 => {
            Targets::new().with_default(level).with_target("rmcp::service", LevelFilter::ERROR)
        }
        None => Targets::new().with_default(level).with_targets(clients),
        Some(text) => text.parse().map_err(|error| {
            Failure::usage(
                format!("RINGFENCE_LOG=`{text}` is not valid: {error}"),
                "RINGFENCE_LOG=debug",
            )
        })?,
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| CleanStderr)
        .without_time()
        .with_target(false)
        .with_ansi(false);
    let subscriber = tracing_subscriber::registry().with(targets).with(lines);
    tracing::subscriber::set_global_default(subscriber).expect("nothing listened before");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::parse;

    #[track_caller]
    fn check(line: &str, message: &str, hints: &[&str]) {
        let Err(failure) = parse(line.split(' ').map(Into::into).collect()) else {
            panic!("it is understood: {line}")
        };
        assert_eq!(
            (failure.message.as_str(), failure.hints),
            (message, hints.iter().map(|&hint| hint.into()).collect())
        );
        assert_eq!(failure.status, ExitStatus::Usage);
    }

    #[test]
    fn a_wrong_command_line_is_reported_like_every_other_error() {
        let help = "ringfence run --help";
        check(
            "ringfence run --raed x true",
            "unexpected argument '--raed' found",
            &[
                "a similar argument exists: '--read'",
                "to pass '--raed' as a value, use '-- --raed'",
                help,
            ],
        );
        check(
            "ringfence run",
            "the following required arguments were not provided:\n  <COMMAND>...",
            &[help],
        );
        check(
            "ringfence rum",
            "unrecognized subcommand 'rum'",
            &["a similar subcommand exists: 'run'", "ringfence --help"],
        );
    }

    #[test]
    fn limits_and_variables_that_make_no_sense_are_refused() {
        let help = ["ringfence run --help"];
        let check = |flag: &str, message: &str| {
            check(&format!("ringfence run {flag} true"), message, &help)
        };
        let cpus = "it is a number from 0.01, such as 0.5 or 2";
        check(
            "--cpus nan",
            &format!("invalid value 'nan' for '--cpus <N>': `NaN` processors: {cpus}"),
        );
        check("--cpus 0", &format!("invalid value '0' for '--cpus <N>': `0` processors: {cpus}"));
        check(
            "--processes 0",
            "invalid value '0' for '--processes <N>': `0` processes: it is a number from 1, and \
             the command itself is one",
        );
        check(
            "--env =x",
            "invalid value '=x' for '--env <NAME[=VALUE]>': `` is no name of a variable: it is not \
             empty and has neither `=` nor NUL",
        );
        check(
            "--net ajar",
            "invalid value 'ajar' for '--net <closed|allow|open>': unknown network mode `ajar`: it \
             is one of closed, allow, open",
        );
    }
}
