//! Description of a command to be run in a sandbox.

use std::collections::BTreeMap;
use std::time::Duration;

use ringfence_proto::process::{ProcessConfig, Pty, PtySize, StartRequest};

/// Standard input of a command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommandInput {
    /// An input that is empty: `/dev/null`.
    #[default]
    Nothing,
    /// A pipe that [`ExecutionInput`](super::ExecutionInput) writes to.
    Piped,
}

/// Treatment of processes that a command leaves running.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Leftovers {
    /// The processes go on. A deadline or a kill ends them with the command.
    #[default]
    Stay,
    /// The processes end with the command.
    End,
}

/// A command to be run in a sandbox.
///
/// ```
/// use std::time::Duration;
/// use ringfence::Exec;
///
/// let exec = Exec::new("make").argument("test").variable("CI", "1").time(Duration::from_secs(30));
/// assert_eq!(
///     exec,
///     Exec::shell("exec make test")
///         .program("make")
///         .arguments(["test"])
///         .variable("CI", "1")
///         .time(Duration::from_secs(30))
/// );
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exec {
    /// A path, or a name that is looked up in the sandbox's `PATH`.
    pub program: String,
    /// Arguments of the program, without the program's own name.
    pub arguments: Vec<String>,
    /// Variables in addition to the sandbox's own.
    pub env: BTreeMap<String, String>,
    /// Directory in which the command starts; the usual directory of the sandbox's commands when
    /// absent.
    pub directory: Option<String>,
    /// Standard input of the command.
    pub input: CommandInput,
    /// Size of a terminal of its own, which replaces all three streams.
    pub terminal: Option<PtySize>,
    /// Time after which the command and every process that it started are ended.
    pub time: Option<Duration>,
    /// Name by which the command can be found, besides its process id.
    pub tag: Option<String>,
    /// Treatment of processes that the command leaves running.
    pub leftovers: Leftovers,
}

impl Exec {
    /// Returns a command that runs a program.
    pub fn new(program: impl Into<String>) -> Exec {
        Exec { program: program.into(), ..Exec::default() }
    }

    /// Returns a command that runs a line with `sh -c`.
    pub fn shell(line: impl Into<String>) -> Exec {
        Exec::new("sh").argument("-c").argument(line)
    }

    /// Sets the program to run.
    #[must_use]
    pub fn program(mut self, program: impl Into<String>) -> Exec {
        self.program = program.into();
        self
    }

    /// Adds an argument.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<String>) -> Exec {
        self.arguments.push(argument.into());
        self
    }

    /// Sets all arguments, which replaces earlier ones.
    #[must_use]
    pub fn arguments<Word: Into<String>>(
        mut self,
        arguments: impl IntoIterator<Item = Word>,
    ) -> Exec {
        self.arguments = arguments.into_iter().map(Into::into).collect();
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<String>) -> Exec {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Sets the directory of the sandbox in which the command starts.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<String>) -> Exec {
        self.directory = Some(directory.into());
        self
    }

    /// Sets the standard input.
    #[must_use]
    pub fn input(mut self, input: CommandInput) -> Exec {
        self.input = input;
        self
    }

    /// Runs the command on a terminal of its own.
    #[must_use]
    pub fn terminal(mut self, size: PtySize) -> Exec {
        self.terminal = Some(size);
        self
    }

    /// Ends the command and every process that it started after `time`.
    #[must_use]
    pub fn time(mut self, time: Duration) -> Exec {
        self.time = Some(time);
        self
    }

    /// Sets a name by which the command can be found.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Exec {
        self.tag = Some(tag.into());
        self
    }

    /// Ends the processes that the command leaves running.
    #[must_use]
    pub fn leaving_nothing(mut self) -> Exec {
        self.leftovers = Leftovers::End;
        self
    }

    pub(super) fn request(&self) -> StartRequest {
        StartRequest {
            process: ProcessConfig {
                cmd: self.program.clone(),
                args: self.arguments.clone(),
                envs: self.env.clone(),
                cwd: self.directory.clone(),
            },
            pty: self.terminal.map(|size| Pty { size: Some(size) }),
            tag: self.tag.clone(),
            // A terminal is an input already.
            stdin: Some(self.input == CommandInput::Piped && self.terminal.is_none()),
            end_survivors: self.leftovers == Leftovers::End,
        }
    }
}
