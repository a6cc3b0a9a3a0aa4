//! Messages of the service `process.Process`, which runs commands.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bytes::{Base64Bytes, encode_onto};
use crate::frame;

/// Name of the service, which is the first part of the URL path of each of its methods.
pub const SERVICE: &str = "process.Process";

/// Command to run: program, arguments, variables and working directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessConfig {
    /// Program, as a path or as a name that is looked up in `PATH`.
    #[serde(default)]
    pub cmd: String,
    /// Arguments of the program, without the program's own name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Environment variables that are added to those of the sandbox, and replace them where the
    /// names are equal.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub envs: BTreeMap<String, String>,
    /// Working directory, absolute or relative to the user's home directory. If absent, the command
    /// starts in the sandbox's default directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// Size of a terminal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PtySize {
    /// Width in characters; 0 leaves the width as it is.
    #[serde(default)]
    pub cols: u32,
    /// Height in lines; 0 leaves the height as it is.
    #[serde(default)]
    pub rows: u32,
}

/// Pseudoterminal of a command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pty {
    /// Size of the terminal. If absent, a new terminal has 80 columns and 24 rows, and `Update`
    /// changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<PtySize>,
}

/// Request of `Start`, which starts a command.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartRequest {
    /// Command to run.
    #[serde(default)]
    pub process: ProcessConfig,
    /// Pseudoterminal for the command; if absent, the command writes to pipes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
    /// Name by which later calls find the command, besides its process id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// True to give the command an input pipe, false to give it `/dev/null`. Clients that predate
    /// this flag omit it and expect a pipe, so absent means true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<bool>,
    /// True to end, together with the command, the processes that the command leaves running. This
    /// field is an extension of ringfence: envd ignores the field and lets such processes run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not", rename = "endSurvivors")]
    pub end_survivors: bool,
}

/// Identification of a running command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProcessSelector {
    /// Process id of the command, as seen inside the sandbox.
    Pid(u32),
    /// Tag of the command. If several running commands have the tag, the latest is meant.
    Tag(String),
}

/// Request that identifies a command and has no other field: `Connect`, `CloseStdin`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRequest {
    /// Command that the request is about.
    pub process: ProcessSelector,
}

/// Message of a `Start` or `Connect` stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventMessage {
    /// Event that the message carries.
    pub event: ProcessEvent,
}

/// Event in the life of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProcessEvent {
    /// The command runs. This event is always the first.
    Start(StartEvent),
    /// The command wrote to one of its streams.
    Data(DataEvent),
    /// The command ended. This event is always the last.
    End(EndEvent),
    /// Event without content, which shows that the stream is alive.
    Keepalive(EmptyMessage),
}

/// Message that has no fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmptyMessage {}

/// Event that reports the start of a command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartEvent {
    /// Process id of the command, as seen inside the sandbox.
    #[serde(default)]
    pub pid: u32,
}

/// Event that carries what a command wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DataEvent {
    /// Bytes from the standard output.
    Stdout(Base64Bytes),
    /// Bytes from the standard error.
    Stderr(Base64Bytes),
    /// Bytes from the pseudoterminal.
    Pty(Base64Bytes),
}

impl DataEvent {
    /// Encodes the event as a frame, in one pass. The result is equal to that of
    /// [`frame::encode_message`]. This method exists because output is most of what crosses a
    /// session, and the general encoder copies the output three times.
    pub fn to_frame(&self) -> Vec<u8> {
        let (name, Base64Bytes(bytes)) = match self {
            DataEvent::Stdout(bytes) => ("stdout", bytes),
            DataEvent::Stderr(bytes) => ("stderr", bytes),
            DataEvent::Pty(bytes) => ("pty", bytes),
        };
        frame::build_message_frame(bytes.len() / 3 * 4 + 64, |text| {
            text.extend_from_slice(br#"{"event":{"data":{""#);
            text.extend_from_slice(name.as_bytes());
            text.extend_from_slice(br#"":""#);
            encode_onto(bytes, text);
            text.extend_from_slice(br#""}}}"#);
        })
    }
}

/// Event that reports the end of a command.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndEvent {
    /// Exit code of the command; -1 if a signal ended the command.
    #[serde(default, skip_serializing_if = "is_default")]
    pub exit_code: i32,
    /// True if the command exited by itself, false if a signal ended the command.
    #[serde(default, skip_serializing_if = "is_default")]
    pub exited: bool,
    /// Description of the end: `exit status 3`, `signal: killed`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// Same text as `status`; absent if the command exited with code 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Resources that the command used; absent if the command's first process was killed. This
    /// field is an extension of ringfence: envd does not send the field, and other clients ignore
    /// the field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsageReport>,
}

/// Resources that all processes of a command used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UsageReport {
    /// Processor time in microseconds.
    #[serde(with = "crate::number")]
    pub cpu_micros: i64,
    /// Largest resident set of any one of the processes, in bytes.
    #[serde(with = "crate::number")]
    pub max_rss: i64,
}

/// Running command, as `List` describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedProcess {
    /// Command as the client requested it.
    #[serde(default)]
    pub config: ProcessConfig,
    /// Process id of the command, as seen inside the sandbox.
    #[serde(default)]
    pub pid: u32,
    /// Tag that `Start` gave the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// Answer of `List`: the running commands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListResponse {
    /// Commands in the order in which they were started.
    #[serde(default)]
    pub processes: Vec<ListedProcess>,
}

/// Input for a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProcessInput {
    /// Bytes for the standard input.
    Stdin(Base64Bytes),
    /// Bytes for the pseudoterminal.
    Pty(Base64Bytes),
}

/// Request of `SendInput`, which writes to a command's input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendInputRequest {
    /// Command that receives the input.
    pub process: ProcessSelector,
    /// Bytes to write, and their destination.
    pub input: ProcessInput,
}

/// Message of a `StreamInput` stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StreamInputRequest {
    /// Names the command. This message is always the first, and is sent once.
    Start(ProcessRequest),
    /// Carries input for the command.
    Data(InputEvent),
    /// Message without content, which shows that the stream is alive.
    Keepalive(EmptyMessage),
}

/// Input for the command that the first message of the stream named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputEvent {
    /// Bytes to write, and their destination.
    pub input: ProcessInput,
}

/// Request of `SendSignal`, which sends a signal to a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendSignalRequest {
    /// Command that receives the signal.
    pub process: ProcessSelector,
    /// Signal to send. `SIGNAL_SIGKILL` ends the whole process tree of the command; any other
    /// signal goes to the command's process group.
    pub signal: Signal,
}

/// Signal that can be sent to a command. E2B's clients know only the first two variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Signal {
    /// Ends the command and every process that the command started.
    #[serde(rename = "SIGNAL_SIGKILL")]
    Kill,
    /// Asks the command to end.
    #[serde(rename = "SIGNAL_SIGTERM")]
    Terminate,
    /// Interrupts the command, as Ctrl-C does.
    #[serde(rename = "SIGNAL_SIGINT")]
    Interrupt,
    /// Tells the command that its terminal is closed.
    #[serde(rename = "SIGNAL_SIGHUP")]
    HangUp,
    /// Ends the command with a core dump, as Ctrl-\ does.
    #[serde(rename = "SIGNAL_SIGQUIT")]
    Quit,
    /// First user-defined signal, whose meaning the command chooses.
    #[serde(rename = "SIGNAL_SIGUSR1")]
    User1,
    /// Second user-defined signal, whose meaning the command chooses.
    #[serde(rename = "SIGNAL_SIGUSR2")]
    User2,
}

impl Signal {
    /// Returns the number of the signal on Linux, signal(7).
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

/// Request of `Update`, which resizes the terminal of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateRequest {
    /// Command that has the terminal.
    pub process: ProcessSelector,
    /// Terminal with its new size; absent to change nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
}

/// Request of `POST /init`: environment variables for every command that is started from now on, in
/// addition to those of the sandbox. The guest keeps them in memory only.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InitRequest {
    /// Values of the variables, by name.
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
        fn output_events_have_the_same_frame_as_other_messages(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            for event in [DataEvent::Stdout, DataEvent::Stderr, DataEvent::Pty] {
                let data = event(Base64Bytes(bytes.clone()));
                let quick = data.to_frame();
                let event = EventMessage { event: ProcessEvent::Data(data) };
                prop_assert_eq!(&quick, &frame::encode_message(&event));
                prop_assert_eq!(frame::parse::<EventMessage>(&quick[5..]), Ok(event));
            }
        }
    }
}
