//! Guest process for one test, and a client that reads only when the test asks for more.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ringfence_proto::code::{EndOfStream, Failure};
use ringfence_proto::frame::{self, Frame, FrameDecoder};
use ringfence_proto::process::{
    DataEvent, EndEvent, EventMessage, ProcessConfig, ProcessEvent, StartRequest,
};
use serde::Serialize;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Time limit for each wait in a test.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Guest process that is killed when the test ends.
pub(crate) struct GuestProcess {
    pub(crate) process: Child,
    pub(crate) directory: TempDir,
}

impl GuestProcess {
    pub(crate) fn start() -> GuestProcess {
        GuestProcess::start_with(&[])
    }

    pub(crate) fn start_with(more: &[&str]) -> GuestProcess {
        let directory = tempfile::tempdir().unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_ringfence-guest"))
            .arg("--socket")
            .arg(directory.path().join("socket"))
            .arg("--directory")
            .arg(directory.path())
            .args(more)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let guest = GuestProcess { process, directory };
        eventually("the guest listens", || UnixStream::connect(guest.socket()).is_ok());
        guest
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    pub(crate) fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        stream
    }

    /// Sends a whole request, and reads the head of the answer.
    pub(crate) fn request(&self, head: &str, body: &[u8]) -> HttpAnswer {
        let mut stream = self.connect();
        let head = format!("{head}\r\nhost: guest\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        HttpAnswer::read(stream)
    }

    /// Calls a unary method of `process.Process`.
    pub(crate) fn call(&self, method: &str, message: &Value) -> (u16, Value) {
        let head =
            format!("POST /process.Process/{method} HTTP/1.1\r\ncontent-type: application/json");
        let mut answer = self.request(&head, message.to_string().as_bytes());
        let body = answer.rest();
        (answer.status, serde_json::from_slice(&body).unwrap())
    }

    /// Calls a method of `process.Process` that answers with a stream.
    pub(crate) fn stream(
        &self,
        method: &str,
        headers: &str,
        message: &impl Serialize,
    ) -> CommandEvents {
        let head = format!(
            "POST /process.Process/{method} HTTP/1.1\r\ncontent-type: \
             application/connect+json{headers}"
        );
        CommandEvents::from_answer(self.request(&head, &frame::encode_message(message)))
    }

    pub(crate) fn start_request(&self, request: &StartRequest) -> CommandEvents {
        self.stream("Start", "", request)
    }

    /// Starts `sh -c script` without input.
    pub(crate) fn shell(&self, script: &str) -> CommandEvents {
        self.start_request(&shell(script))
    }

    /// Runs `sh -c script` to its end.
    pub(crate) fn run(&self, script: &str) -> FinishedCommand {
        self.shell(script).finish()
    }

    pub(crate) fn list(&self) -> Vec<u64> {
        let (status, answer) = self.call("List", &json!({}));
        assert_eq!(status, 200);
        answer["processes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|process| process["pid"].as_u64().unwrap())
            .collect()
    }

    /// Returns the resident memory of the guest in KiB.
    pub(crate) fn memory(&self) -> u64 {
        let status = fs_err::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Returns the number of descriptors that the guest has open.
    pub(crate) fn descriptors(&self) -> usize {
        fs_err::read_dir(format!("/proc/{}/fd", self.process.id())).unwrap().count()
    }
}

impl Drop for GuestProcess {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

pub(crate) fn shell(script: &str) -> StartRequest {
    let process = ProcessConfig {
        cmd: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
        ..ProcessConfig::default()
    };
    StartRequest { process, stdin: Some(false), ..StartRequest::default() }
}

/// Waits until a condition is true. Panics after [`DEADLINE`].
#[track_caller]
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns true if a process exists and is not a zombie.
pub(crate) fn lives(pid: u64) -> bool {
    let stat = fs_err::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// HTTP answer whose body is read piece by piece.
pub(crate) struct HttpAnswer {
    pub(crate) status: u16,
    pub(crate) stream: BufReader<UnixStream>,
    chunked: bool,
    length: usize,
}

impl HttpAnswer {
    pub(crate) fn read(stream: UnixStream) -> HttpAnswer {
        let mut answer =
            HttpAnswer { status: 0, stream: BufReader::new(stream), chunked: false, length: 0 };
        let first = answer.line();
        answer.status = first
            .split(' ')
            .nth(1)
            .unwrap_or_else(|| panic!("no status in {first:?}"))
            .parse()
            .unwrap();
        loop {
            let line = answer.line().to_ascii_lowercase();
            match line.split_once(": ") {
                Some(("transfer-encoding", "chunked")) => answer.chunked = true,
                Some(("content-length", length)) => answer.length = length.parse().unwrap(),
                Some(_) => {}
                None => return answer,
            }
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Returns the next piece of the body, or `None` at its end.
    pub(crate) fn piece(&mut self) -> Option<Vec<u8>> {
        if self.chunked {
            let size = usize::from_str_radix(&self.line(), 16).unwrap();
            let mut piece = vec![0; size];
            self.stream.read_exact(&mut piece).unwrap();
            self.line();
            (size > 0).then_some(piece)
        } else {
            let mut piece = vec![0; std::mem::take(&mut self.length)];
            self.stream.read_exact(&mut piece).unwrap();
            (!piece.is_empty()).then_some(piece)
        }
    }

    pub(crate) fn rest(&mut self) -> Vec<u8> {
        std::iter::from_fn(|| self.piece()).flatten().collect()
    }
}

/// Stream of a command's events.
pub(crate) struct CommandEvents {
    answer: HttpAnswer,
    decoder: FrameDecoder,
    ready: VecDeque<Frame>,
}

/// Everything that a stream carried until its end.
#[derive(Debug, Default)]
pub(crate) struct FinishedCommand {
    pub(crate) pid: u64,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) pty: String,
    pub(crate) keepalives: usize,
    pub(crate) end: Option<EndEvent>,
    pub(crate) error: Option<Failure>,
}

impl CommandEvents {
    pub(crate) fn from_answer(answer: HttpAnswer) -> CommandEvents {
        assert_eq!(answer.status, 200);
        CommandEvents { answer, decoder: FrameDecoder::default(), ready: VecDeque::new() }
    }

    fn frame(&mut self) -> Frame {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return frame;
            }
            let piece = self.answer.piece().expect("a stream ends with its last frame");
            self.decoder.push(&piece);
            while let Some(frame) = self.decoder.next_frame().unwrap() {
                self.ready.push_back(frame);
            }
        }
    }

    pub(crate) fn next(&mut self) -> Result<ProcessEvent, EndOfStream> {
        match self.frame() {
            Frame::Message(message) => Ok(frame::parse::<EventMessage>(&message).unwrap().event),
            Frame::End(end) => Err(frame::parse(&end).unwrap()),
        }
    }

    /// Reads the first event of a stream, and returns the process id of the command.
    #[track_caller]
    pub(crate) fn pid(&mut self) -> u64 {
        match self.next() {
            Ok(ProcessEvent::Start(start)) => u64::from(start.pid),
            other => panic!("the first event is {other:?}"),
        }
    }

    /// Reads events until the command's standard output or terminal contains `text`. Returns all
    /// output that was read.
    pub(crate) fn until(&mut self, text: &str) -> String {
        let mut seen = String::new();
        while !seen.contains(text) {
            match self.next() {
                Ok(ProcessEvent::Data(DataEvent::Stdout(bytes) | DataEvent::Pty(bytes))) => {
                    seen.push_str(&String::from_utf8_lossy(&bytes.0));
                }
                Ok(_) => {}
                Err(end) => panic!("ended with {end:?} after {seen:?}"),
            }
        }
        seen
    }

    pub(crate) fn finish(mut self) -> FinishedCommand {
        let mut finished = FinishedCommand::default();
        loop {
            let text = |bytes: &ringfence_proto::bytes::Base64Bytes| {
                String::from_utf8_lossy(&bytes.0).into_owned()
            };
            match self.next() {
                Ok(ProcessEvent::Start(start)) => finished.pid = u64::from(start.pid),
                Ok(ProcessEvent::Data(DataEvent::Stdout(bytes))) => {
                    finished.stdout += &text(&bytes)
                }
                Ok(ProcessEvent::Data(DataEvent::Stderr(bytes))) => {
                    finished.stderr += &text(&bytes)
                }
                Ok(ProcessEvent::Data(DataEvent::Pty(bytes))) => finished.pty += &text(&bytes),
                Ok(ProcessEvent::Keepalive(_)) => finished.keepalives += 1,
                Ok(ProcessEvent::End(end)) => finished.end = Some(end),
                Err(end) => {
                    finished.error = end.error;
                    return finished;
                }
            }
        }
    }

    pub(crate) fn hang_up(self) {
        self.answer.stream.get_ref().shutdown(Shutdown::Both).unwrap();
    }
}
