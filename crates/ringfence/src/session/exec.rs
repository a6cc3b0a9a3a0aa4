//! Commands in a sandbox: what is to be run.

use std::collections::BTreeMap;
use std::time::Duration;

use ringfence_proto::process::{ProcessConfig, Pty, PtySize, StartRequest};

/// What a command gets as its standard input.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Input {
    /// `/dev/null`.
    #[default]
    Nothing,
    /// What is written to its [`ExecutionInput`](super::ExecutionInput).
    Piped,
}

/// What becomes of processes that a command leaves running.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Leftovers {
    /// They go on; a deadline or a kill ends them with the command.
    #[default]
    Stay,
    /// They end with the command.
    End,
}

/// A command to be run in a sandbox.
///
/// ```
/// use std::time::Duration;
/// use ringfence::Exec;
///
/// let exec = Exec::new("make").argument("test").variable("CI", "1").time(Duration::from_secs(30));
/// assert_eq!(exec, Exec::shell("exec make test").program("make").arguments(["test"]).variable("CI", "1")
///     .time(Duration::from_secs(30)));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exec {
    /// A path, or a name that is looked up in the sandbox's `PATH`.
    pub program: String,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Variables on top of the sandbox's own.
    pub env: BTreeMap<String, String>,
    /// Where it starts; where the sandbox's commands usually do, when absent.
    pub directory: Option<String>,
    /// Its standard input.
    pub input: Input,
    /// The size of a terminal of its own, which takes the place of all three streams.
    pub terminal: Option<PtySize>,
    /// When it and all that it started are ended.
    pub time: Option<Duration>,
    /// A name to find it by, besides its process id.
    pub tag: Option<String>,
    /// What becomes of processes that it leaves running.
    pub leftovers: Leftovers,
}

impl Exec {
    /// Runs a program.
    pub fn new(program: impl Into<String>) -> Exec {
        Exec { program: program.into(), ..Exec::default() }
    }

    /// Runs a line with `sh -c`.
    pub fn shell(line: impl Into<String>) -> Exec {
        Exec::new("sh").argument("-c").argument(line)
    }

    /// Runs another program.
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

    /// Sets all arguments.
    #[must_use]
    pub fn arguments<Word: Into<String>>(mut self, arguments: impl IntoIterator<Item = Word>) -> Exec {
        self.arguments = arguments.into_iter().map(Into::into).collect();
        self
    }

    /// Sets a variable.
    #[must_use]
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<String>) -> Exec {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Starts it in a directory of the sandbox.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<String>) -> Exec {
        self.directory = Some(directory.into());
        self
    }

    /// Says what its standard input is.
    #[must_use]
    pub fn input(mut self, input: Input) -> Exec {
        self.input = input;
        self
    }

    /// Runs it on a terminal of its own.
    #[must_use]
    pub fn terminal(mut self, size: PtySize) -> Exec {
        self.terminal = Some(size);
        self
    }

    /// Ends it, and all that it started, after this time.
    #[must_use]
    pub fn time(mut self, time: Duration) -> Exec {
        self.time = Some(time);
        self
    }

    /// Gives it a name.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Exec {
        self.tag = Some(tag.into());
        self
    }

    /// Ends what it leaves running with it.
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
            stdin: Some(self.input == Input::Piped && self.terminal.is_none()),
            end_survivors: self.leftovers == Leftovers::End,
        }
    }
}
