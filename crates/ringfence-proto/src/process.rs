//! `process.Process`: commands.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bytes::{Bytes, encode_onto};
use crate::frame;

/// The service's name, the first part of a method's path.
pub const SERVICE: &str = "process.Process";

/// What is run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessConfig {
    /// A path, or a name that is looked up in `PATH`.
    #[serde(default)]
    pub cmd: String,
    /// Its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Variables on top of the sandbox's own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub envs: BTreeMap<String, String>,
    /// Where it starts; the sandbox's own starting directory when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// How large a terminal is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PtySize {
    /// Characters in a line.
    #[serde(default)]
    pub cols: u32,
    /// Lines.
    #[serde(default)]
    pub rows: u32,
}

/// A terminal of a command's own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pty {
    /// Its size; unchanged, or 80 by 24, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<PtySize>,
}

/// Starts a command.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartRequest {
    /// What is run.
    #[serde(default)]
    pub process: ProcessConfig,
    /// On a terminal of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
    /// A name to find it by, besides its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Whether it gets an input; `/dev/null` when false. Clients from before this flag leave it out and mean true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<bool>,
    /// Whether what it leaves running ends with it. It is ours: envd knows nothing of it, and leaves such processes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not", rename = "endSurvivors")]
    pub end_survivors: bool,
}

/// Names a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProcessSelector {
    /// By its id.
    Pid(u32),
    /// By its tag.
    Tag(String),
}

/// Something that names a command and says nothing else: `Connect`, `CloseStdin`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OneProcess {
    /// Which.
    pub process: ProcessSelector,
}

/// A stream's message: what happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventMessage {
    /// What.
    pub event: ProcessEvent,
}

/// What happened to a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProcessEvent {
    /// It runs. Always first.
    Start(StartEvent),
    /// It wrote.
    Data(DataEvent),
    /// It ended. Always last.
    End(EndEvent),
    /// Nothing; the stream is alive.
    Keepalive(Empty),
}

/// No fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}

/// A command runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartEvent {
    /// Its process id, inside.
    #[serde(default)]
    pub pid: u32,
}

/// A command wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DataEvent {
    /// To its standard output.
    Stdout(Bytes),
    /// To its standard error.
    Stderr(Bytes),
    /// To its terminal.
    Pty(Bytes),
}

impl DataEvent {
    /// The message of it in its frame, as [`frame::message`] would make it but in one pass: output is most of what
    /// crosses a session, and a general encoder copies it three times.
    pub fn to_frame(&self) -> Vec<u8> {
        let (name, Bytes(bytes)) = match self {
            DataEvent::Stdout(bytes) => ("stdout", bytes),
            DataEvent::Stderr(bytes) => ("stderr", bytes),
            DataEvent::Pty(bytes) => ("pty", bytes),
        };
        frame::message_of(bytes.len() / 3 * 4 + 64, |text| {
            text.extend_from_slice(br#"{"event":{"data":{""#);
            text.extend_from_slice(name.as_bytes());
            text.extend_from_slice(br#"":""#);
            encode_onto(bytes, text);
            text.extend_from_slice(br#""}}}"#);
        })
    }
}

/// A command ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndEvent {
    /// What it exited with; -1 when a signal ended it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub exit_code: i32,
    /// Whether it exited by itself.
    #[serde(default, skip_serializing_if = "is_default")]
    pub exited: bool,
    /// In words: `exit status 3`, `signal: killed`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// The same words, unless it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What it used: ours, and ignored by other clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsageReport>,
}

/// What all processes of a command used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UsageReport {
    /// Time on processors, in microseconds.
    #[serde(with = "crate::number")]
    pub cpu_micros: i64,
    /// The most memory that one of them had, in bytes.
    #[serde(with = "crate::number")]
    pub max_rss: i64,
}

/// One command of a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedProcess {
    /// What is run.
    #[serde(default)]
    pub config: ProcessConfig,
    /// Its process id, inside.
    #[serde(default)]
    pub pid: u32,
    /// The name that it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// The commands that run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListResponse {
    /// In the order of their start.
    #[serde(default)]
    pub processes: Vec<ListedProcess>,
}

/// Input for a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProcessInput {
    /// For its standard input.
    Stdin(Bytes),
    /// For its terminal.
    Pty(Bytes),
}

/// Gives a command input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendInputRequest {
    /// Which.
    pub process: ProcessSelector,
    /// What it gets.
    pub input: ProcessInput,
}

/// A message of a stream of input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StreamInputRequest {
    /// Names the command. Always first.
    Start(OneProcess),
    /// Input for it.
    Data(InputEvent),
    /// Nothing; the stream is alive.
    Keepalive(Empty),
}

/// Input for the command that a stream has named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputEvent {
    /// What it gets.
    pub input: ProcessInput,
}

/// Sends a command a signal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendSignalRequest {
    /// Which.
    pub process: ProcessSelector,
    /// What: `SIGNAL_SIGKILL` ends its whole tree, any other goes to its process group.
    pub signal: Signal,
}

/// A signal. Clients of E2B know the first two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Signal {
    /// Ends the command and every process that it started.
    #[serde(rename = "SIGNAL_SIGKILL")]
    Kill,
    /// Asks the command to end.
    #[serde(rename = "SIGNAL_SIGTERM")]
    Terminate,
    /// Interrupts it, as Ctrl-C does.
    #[serde(rename = "SIGNAL_SIGINT")]
    Interrupt,
    /// Tells it that its terminal is gone.
    #[serde(rename = "SIGNAL_SIGHUP")]
    HangUp,
    /// Ends it with a dump, as Ctrl-\ does.
    #[serde(rename = "SIGNAL_SIGQUIT")]
    Quit,
    /// Its own to give a meaning to.
    #[serde(rename = "SIGNAL_SIGUSR1")]
    User1,
    /// Its own to give a meaning to.
    #[serde(rename = "SIGNAL_SIGUSR2")]
    User2,
}

impl Signal {
    /// Its number on Linux, signal(7).
    pub fn number(self) -> i32 {
        match self {
            Signal::HangUp => 1,
            Signal::Interrupt => 2,
            Signal::Quit => 3,
            Signal::Kill => 9,
            Signal::User1 => 10,
            Signal::User2 => 12,
            Signal::Terminate => 15,
        }
    }
}

/// Changes a command's terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateRequest {
    /// Which.
    pub process: ProcessSelector,
    /// What it becomes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
}

/// `POST /init`: what every command gets from now on, besides what the sandbox gives it. Kept in memory alone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InitRequest {
    /// Variables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env_vars: BTreeMap<String, String>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn output_has_the_frame_that_any_message_has(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            for event in [DataEvent::Stdout, DataEvent::Stderr, DataEvent::Pty] {
                let data = event(Bytes(bytes.clone()));
                let quick = data.to_frame();
                let event = EventMessage { event: ProcessEvent::Data(data) };
                prop_assert_eq!(&quick, &frame::message(&event));
                prop_assert_eq!(frame::parse::<EventMessage>(&quick[5..]), Ok(event));
            }
        }
    }
}
