//! Start of the monitor, the process that keeps a sandbox, and the messages between the monitor and
//! its caller. The monitor is `ringfence up`, which the caller starts from its own executable, so
//! the caller must be the `ringfence` program.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use ringfence_core::{ExitStatus, Fault};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit, setrlimit};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Take};
use tokio::net::unix::pipe;

use crate::room::Manifest;

/// Maximum length of an answer from a monitor, in bytes.
const LONGEST_ANSWER: u64 = 4 << 20;

/// Limit on open descriptors that this process had before it raised the limit.
static DESCRIPTORS: OnceLock<Rlimit> = OnceLock::new();

/// Raises the limit on open descriptors of this process to its maximum. The monitors that this
/// process starts, and so all sandboxes, keep the previous limit, because programs that use
/// select(2) fail with a higher limit.
pub fn raise_descriptor_limit() {
    let before = DESCRIPTORS.get_or_init(|| getrlimit(Resource::Nofile));
    let raised = Rlimit { current: before.maximum, maximum: before.maximum };
    let _ = setrlimit(Resource::Nofile, raised); // with the lower limit, fewer sandboxes fit
}

/// Message from a monitor to its caller.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MonitorAnswer {
    /// The sandbox is running.
    Ready {
        /// Manifest of the sandbox.
        manifest: Box<Manifest>,
        /// Set if the monitor started the sandbox, unset if the sandbox already ran.
        is_new: bool,
    },
    /// The sandbox did not start.
    Failed(MonitorError),
}

/// Error of a sandbox that did not start, or of a monitor that did not answer: a message, hints for
/// the next step, and the exit status of the program.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct MonitorError {
    message: String,
    hints: Vec<String>,
    status: u8,
    code: Cow<'static, str>,
}

impl MonitorError {
    /// Creates the error that a monitor sends to its caller. `code` is the stable error code for
    /// programs.
    pub fn new(
        message: String,
        hints: Vec<String>,
        status: ExitStatus,
        code: Cow<'static, str>,
    ) -> MonitorError {
        MonitorError { message, hints, status: status.code(), code }
    }

    /// Creates the error of a monitor that could not be started or did not answer.
    fn from_host(message: String, hint: &str) -> MonitorError {
        let status = ExitStatus::from(Fault::Host);
        MonitorError::new(message, vec![hint.to_owned()], status, "failed".into())
    }

    /// Returns the message, which says what was tried, on what, and why it failed.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the hints for the next step.
    pub fn hints(&self) -> &[String] {
        &self.hints
    }

    /// Returns the party that can correct the error.
    pub fn fault(&self) -> Fault {
        match (self.status, &*self.code) {
            (_, "bug") => Fault::Bug,
            (status, _) if status == ExitStatus::Usage.code() => Fault::User,
            _ => Fault::Host,
        }
    }

    /// Returns the exit status with which the program ends.
    pub fn exit_status(&self) -> ExitStatus {
        ExitStatus::Code(self.status)
    }

    /// Returns the stable error code for programs.
    pub fn code(&self) -> &str {
        &self.code
    }
}

/// Handle of a monitor that this process started.
#[derive(Debug)]
pub struct MonitorHandle {
    process: Child,
    answers: BufReader<Take<pipe::Receiver>>,
}

impl MonitorHandle {
    /// Starts a monitor with the arguments in `words`, a complete command line of `ringfence up`.
    pub fn start(words: &[OsString]) -> Result<MonitorHandle, MonitorError> {
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("ringfence")
            .args(["up", "--monitor"])
            .args(words.iter().filter(|word| is_verbose(word)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| failed("start", error))?;
        if let Some(limit) = DESCRIPTORS.get() {
            // The process may have ended already.
            let _ = prlimit(Some(Pid::from_child(&process)), Resource::Nofile, *limit);
        }
        // The words do not go into the monitor's arguments, because the monitor lives long and
        // every user of the host can read those arguments.
        let mut input = process.stdin.take().expect("it was asked for");
        words::send(words, &mut input).map_err(|error| failed("tell", error))?;
        let answers = OwnedFd::from(process.stdout.take().expect("it was asked for"));
        let answers =
            pipe::Receiver::from_owned_fd(answers).map_err(|error| failed("hear of", error))?;
        Ok(MonitorHandle { process, answers: BufReader::new(answers.take(LONGEST_ANSWER)) })
    }

    /// Waits for the answer of the monitor.
    pub async fn answer(&mut self) -> Result<MonitorAnswer, MonitorError> {
        let mut line = String::new();
        self.answers.read_line(&mut line).await.map_err(|error| failed("hear of", error))?;
        if let Ok(answer) = serde_json::from_str(&line) {
            return Ok(answer);
        }
        let status = self.process.wait().map_err(|error| failed("wait for", error))?;
        Err(MonitorError::from_host(
            format!("the process that keeps the sandbox ended before it was up: {status}"),
            "`ringfence -vv up` tells more; `ringfence doctor` shows what works here",
        ))
    }

    /// Asks the monitor to end. The monitor obeys even before it has answered.
    pub fn ask_to_end(&self) {
        // The process may have ended by itself.
        let _ = rustix::process::kill_process(Pid::from_child(&self.process), Signal::TERM);
    }

    /// Waits on this thread until the monitor has ended. After [`MonitorHandle::ask_to_end`] the wait is
    /// bounded, because the monitor then undoes what it has begun.
    pub fn wait(mut self) {
        let _ = self.process.wait(); // no other code waits for the process
    }
}

fn failed(what: &str, error: io::Error) -> MonitorError {
    MonitorError::from_host(
        format!("cannot {what} the process that keeps the sandbox: {error}"),
        "ringfence doctor",
    )
}

/// Returns whether `word` is a flag that raises the verbosity. The monitor gets such flags as
/// arguments, because verbosity takes effect before it reads the other words.
fn is_verbose(word: &OsStr) -> bool {
    word == "--verbose"
        || word
            .to_str()
            .and_then(|word| word.strip_prefix('-'))
            .is_some_and(|flags| !flags.is_empty() && flags.bytes().all(|flag| flag == b'v'))
}

/// Reads the command line that the caller of this monitor sends on standard input: its own command
/// line, or one that it has made.
pub fn called() -> io::Result<Vec<OsString>> {
    words::receive(&mut io::stdin().lock())
}

/// Sends an answer to the caller of this monitor.
pub fn tell(answer: &MonitorAnswer) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, answer)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Encoding of a command line in a pipe: the number of words, then each word. NUL ends the number
/// and each word.
mod words {
    use std::ffi::OsString;
    use std::io::{self, BufRead, Write};
    use std::os::unix::ffi::{OsStrExt, OsStringExt};

    pub(super) fn send(words: &[OsString], to: &mut impl Write) -> io::Result<()> {
        let mut bytes = format!("{}\0", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(word.as_bytes());
            bytes.push(0);
        }
        to.write_all(&bytes)
    }

    pub(super) fn receive(from: &mut impl BufRead) -> io::Result<Vec<OsString>> {
        let count =
            String::from_utf8(one(from)?).ok().and_then(|count| count.parse::<usize>().ok());
        let count = count.ok_or(io::ErrorKind::InvalidData)?;
        (0..count).map(|_| one(from).map(OsString::from_vec)).collect()
    }

    fn one(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
        let mut word = Vec::new();
        from.read_until(0, &mut word)?;
        match word.pop() {
            Some(0) => Ok(word),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn words_arrive_as_they_were_sent_or_not_at_all() {
        let sent = [OsString::from("up"), OsString::new(), OsString::from_vec(vec![0xff, b'x'])];
        let mut bytes = Vec::new();
        words::send(&sent, &mut bytes).unwrap();
        assert_eq!(words::receive(&mut bytes.as_slice()).unwrap(), sent);
        bytes.pop();
        assert!(words::receive(&mut bytes.as_slice()).is_err());
        assert!(words::receive(&mut b"".as_slice()).is_err());
    }

    #[test]
    fn a_monitor_says_as_much_as_its_caller() {
        for (word, expected) in [
            ("-v", true),
            ("-vv", true),
            ("--verbose", true),
            ("-", false),
            ("-C", false),
            ("v", false),
        ] {
            assert_eq!(is_verbose(OsStr::new(word)), expected, "{word}");
        }
    }
}
