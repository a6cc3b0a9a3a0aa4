//! Start of the monitor, the process that keeps a sandbox, and the messages between the monitor and
//! its caller. The monitor is `ringfence up`, which the caller starts from its own executable, so
//! the caller must be the `ringfence` program.

use std::borrow::Cow;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use ringfence_core::settings::Settings as MergedSettings;
use ringfence_core::{ExitStatus, Fault};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit, setrlimit};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Take};
use tokio::net::unix::pipe;

use crate::sandbox::directory::Manifest;
use crate::{Host, Settings, StartRequest};

/// Maximum length of an answer from a monitor, in bytes.
const MAX_ANSWER_BYTES: u64 = 4 << 20;

/// Limit on open descriptors that this process had before it raised the limit.
static ORIGINAL_DESCRIPTOR_LIMIT: OnceLock<Rlimit> = OnceLock::new();

/// Raises the limit on open descriptors of this process to its maximum. The monitors that this
/// process starts, and so all sandboxes, keep the previous limit, because programs that use
/// select(2) fail with a higher limit.
pub fn raise_descriptor_limit() {
    let before = ORIGINAL_DESCRIPTOR_LIMIT.get_or_init(|| getrlimit(Resource::Nofile));
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

/// Request to a monitor: the sandbox to start, and the settings that apply to it. The monitor reads
/// the request as JSON on its standard input.
#[derive(Debug, Serialize, Deserialize)]
pub struct MonitorRequest {
    start: StartRequest,
    settings: MergedSettings,
    is_for_server: bool,
    /// Verbosity of the monitor's messages: the number of `-v` flags.
    pub verbosity: u8,
}

impl MonitorRequest {
    /// Makes the request for a sandbox under `settings`. Fails if a path cannot be sent.
    pub fn new(
        settings: &Settings,
        start: StartRequest,
        verbosity: u8,
    ) -> Result<MonitorRequest, MonitorError> {
        if let Some(path) = start.policy.path_that_is_not_text() {
            let message = format!(
                "cannot keep a sandbox that is given the path `{}`: the path is not UTF-8",
                path.display()
            );
            let hints = vec!["use a path of plain text, or rename the file".to_owned()];
            return Err(MonitorError::new(message, hints, ExitStatus::Usage, "usage".into()));
        }
        let merged = MergedSettings::clone(settings);
        let is_for_server = settings.is_for_server;
        Ok(MonitorRequest { start, settings: merged, is_for_server, verbosity })
    }

    /// Reads the request that the caller of this monitor sends.
    pub fn receive() -> io::Result<MonitorRequest> {
        // Read the text first: a parser of another kind of reader would be a second copy of the
        // code that parses policies.
        let text = io::read_to_string(io::stdin().lock())?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Returns the settings of the monitor, and the sandbox to start.
    pub fn into_parts(self, host: Host) -> (Settings, StartRequest) {
        let mut settings = Settings::from_merged(self.settings, host);
        settings.container = self.start.container.clone();
        settings.is_monitor = true;
        settings.is_for_server = self.is_for_server;
        (settings, self.start)
    }
}

/// Handle of a monitor that this process started.
#[derive(Debug)]
pub struct MonitorHandle {
    process: Child,
    answers: BufReader<Take<pipe::Receiver>>,
}

impl MonitorHandle {
    /// Starts a monitor in the working directory `directory`, and sends it its request.
    pub fn start(
        request: &MonitorRequest,
        directory: &Path,
    ) -> Result<MonitorHandle, MonitorError> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("ringfence").args(["up", "--monitor"]).current_dir(directory);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| failed("start", error))?;
        if let Some(limit) = ORIGINAL_DESCRIPTOR_LIMIT.get() {
            // The process may have ended already.
            let _ = prlimit(Some(Pid::from_child(&process)), Resource::Nofile, *limit);
        }
        // The request does not go into the monitor's arguments, because the monitor lives long and
        // every user of the host can read those arguments.
        let mut input = process.stdin.take().expect("it was asked for");
        let sent = serde_json::to_vec(request).map_err(io::Error::from);
        let sent = sent.and_then(|bytes| input.write_all(&bytes));
        sent.map_err(|error| failed("send the request to", error))?;
        drop(input); // the end of the input is the end of the request
        let answers = OwnedFd::from(process.stdout.take().expect("it was asked for"));
        let answers = pipe::Receiver::from_owned_fd(answers)
            .map_err(|error| failed("read the answer of", error))?;
        Ok(MonitorHandle { process, answers: BufReader::new(answers.take(MAX_ANSWER_BYTES)) })
    }

    /// Waits for the answer of the monitor.
    pub async fn answer(&mut self) -> Result<MonitorAnswer, MonitorError> {
        let mut line = String::new();
        self.answers
            .read_line(&mut line)
            .await
            .map_err(|error| failed("read the answer of", error))?;
        if let Ok(answer) = serde_json::from_str(&line) {
            return Ok(answer);
        }
        let status = self.process.wait().map_err(|error| failed("wait for", error))?;
        Err(MonitorError::from_host(
            format!("the process that keeps the sandbox ended before the sandbox was up: {status}"),
            "`ringfence -vv up` shows details; `ringfence doctor` shows what works on this host",
        ))
    }

    /// Asks the monitor to end. The monitor obeys even before it has answered.
    pub fn ask_to_end(&self) {
        // The process may have ended by itself.
        let _ = rustix::process::kill_process(Pid::from_child(&self.process), Signal::TERM);
    }

    /// Waits on this thread until the monitor has ended. After [`MonitorHandle::ask_to_end`] the
    /// wait is bounded, because the monitor then undoes what it has begun.
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

/// Sends an answer to the caller of this monitor.
pub fn send_answer(answer: &MonitorAnswer) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, answer)?;
    out.write_all(b"\n")?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;
    use std::time::Duration;

    use super::*;
    use crate::{Existing, Policy};

    fn settings() -> Settings {
        Settings::new(Host::new(Default::default(), "/".into()))
    }

    #[test]
    fn a_request_arrives_as_it_was_sent() {
        let request = StartRequest {
            lease: Some(Duration::from_millis(90_500)),
            existing: Existing::Replace,
            ..StartRequest::new(Policy::default().read("/opt")).name("one")
        };
        let sent = MonitorRequest::new(&settings(), request.clone(), 2).unwrap();
        let text = serde_json::to_string(&sent).unwrap();
        let received: MonitorRequest = serde_json::from_str(&text).unwrap();
        assert_eq!(received.verbosity, 2);
        let (settings, received) = received.into_parts(Host::new(Default::default(), "/".into()));
        assert_eq!(received, request);
        assert!(settings.is_monitor && !settings.is_for_server);
    }

    #[test]
    fn a_path_that_is_not_text_is_refused_before_a_monitor_is_started() {
        let path = std::ffi::OsString::from_vec(vec![b'/', 0xff]);
        let request = StartRequest::new(Policy::default().read(path));
        let error = MonitorRequest::new(&settings(), request, 0).unwrap_err();
        assert!(error.message().contains("is not UTF-8"), "{error}");
        assert_eq!(error.fault(), Fault::User);
    }
}
