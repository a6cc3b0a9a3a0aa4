//! The process of a context: a harness with its two output streams.

use std::collections::BTreeMap;
use std::time::Duration;

use ringfence_core::settings::Language;
use tokio::time::{Instant, interval_at, timeout};

use super::ContextError;
use super::cell::{INTERRUPT_INTERVAL, INTERRUPT_SIGNAL};
use super::event::{HarnessMessage, MessageKind};
use super::harness::Harness;
use super::notes::ProcessTrace;
use super::separate::{StreamPart, StreamSeparator};
use crate::session::{CommandEnd, Exec, Execution, Session};
use crate::{CodeError, SessionError, Stream};

/// Longest time that an interpreter may take to get ready.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Time in which a process that was found again must run an empty cell. After it, an earlier cell
/// is assumed to run and is interrupted. The interrupt must not come earlier, because it would hit
/// the children of an idle process.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest excerpt of the output of a process that does not get ready, in bytes.
const MAX_EXCERPT_BYTES: usize = 1024;

/// Description from which the process of a context is started.
#[derive(Debug, Clone)]
pub(super) struct ContextSpec {
    /// Name of the language.
    pub(super) name: String,
    pub(super) harness: Harness,
    exec: Exec,
}

impl ContextSpec {
    pub(super) fn new(
        name: &str,
        language: &Language,
        harness: Harness,
        directory: Option<&str>,
    ) -> ContextSpec {
        let exec = Exec { directory: directory.map(str::to_owned), ..harness.exec(language) };
        ContextSpec { name: name.to_owned(), harness, exec }
    }

    /// Starts the process with some modules imported, and waits until it takes cells. A process
    /// with a tag can be found again, and outlives its [`HarnessProcess`].
    pub(super) async fn start(
        &self,
        session: &Session,
        preload: &str,
        tag: Option<&str>,
    ) -> Result<HarnessProcess, ContextError> {
        let exec = Exec { tag: tag.map(str::to_owned), ..self.exec.clone() };
        let execution = session.exec(&exec).await.map_err(|error| match error {
            SessionError::NotFound { program } => {
                ContextError::Code(CodeError::NoProgram { language: self.name.clone(), program })
            }
            error => error.into(),
        })?;
        let mut process = HarnessProcess::new(self.harness, execution, crate::run::identity());
        let ready = timeout(START_TIMEOUT, process.begin_harness(preload)).await;
        let refused = |why: String| ContextError::NotReady { language: self.name.clone(), why };
        match ready {
            Ok(Ok(())) => {
                if tag.is_some() {
                    process.execution.disown();
                }
                Ok(process)
            }
            Ok(Err(HarnessFailure::Ended(how))) => Err(refused(how)),
            Ok(Err(HarnessFailure::Nonsense(why))) => Err(refused(why)),
            Ok(Err(HarnessFailure::Session(error))) => Err(error.into()),
            Err(_) => Err(refused(format!("it did not answer for {} s", START_TIMEOUT.as_secs()))),
        }
    }
}

/// Reason why a process sends no more messages.
#[derive(Debug)]
pub(super) enum HarnessFailure {
    Ended(String),
    Nonsense(String),
    Session(SessionError),
}

/// A running harness.
#[derive(Debug)]
pub(super) struct HarnessProcess {
    pub(super) harness: Harness,
    pub(super) execution: Execution,
    /// Prefix of the harness's messages. No other process has the same prefix.
    pub(super) mark: String,
    stdout: StreamSeparator,
    stderr: StreamSeparator,
    /// Number of cells that the process was sent.
    pub(super) cells: u64,
}

/// Next output or message of a process.
#[derive(Debug)]
pub(super) enum HarnessOutput {
    Text(Stream, Vec<u8>),
    /// A message and its length in bytes.
    Message(Stream, HarnessMessage, usize),
    /// A result that is valid JSON, but that is nested too deeply or holds a number that is too
    /// large to be read.
    Unreadable,
}

impl HarnessProcess {
    fn new(harness: Harness, execution: Execution, mark: String) -> HarnessProcess {
        let (stdout, stderr) = (StreamSeparator::new(&mark), StreamSeparator::new(&mark));
        HarnessProcess { harness, execution, mark, stdout, stderr, cells: 0 }
    }

    /// Finds a process that runs already, and waits until it takes cells. Until then, its output
    /// belongs to a cell whose events nobody reads, and that cell is interrupted. The end of that
    /// cell may have been reported before this process listened. Therefore this function sends an
    /// empty cell and waits for the end of that one.
    pub(super) async fn find(
        session: &Session,
        harness: Harness,
        trace: ProcessTrace,
    ) -> Result<HarnessProcess, HarnessFailure> {
        let execution = session.reconnect(trace.pid).await.map_err(HarnessFailure::Session)?;
        let mut process = HarnessProcess::new(harness, execution, trace.mark);
        process.cells = trace.cells;
        let (input, number) = (session.input(trace.pid), unused_number());
        let nothing = harness.request(number, "", &BTreeMap::new());
        input.write(nothing.as_bytes()).await.map_err(HarnessFailure::Session)?;
        let mut again = interval_at(Instant::now() + IDLE_TIMEOUT, INTERRUPT_INTERVAL);
        let (mut stdout, mut stderr) = (false, false);
        while !(stdout && stderr) {
            tokio::select! {
                part = process.next_part() => {
                    let (stream, part) = part?;
                    // Of a message that began before this process listened, only the last part may
                    // arrive.
                    let StreamPart::Message(message) = part else { continue };
                    match serde_json::from_slice(&message) {
                        Ok(HarnessMessage::End { cell }) if cell == number => {
                            if stream == Stream::Stderr {
                                stderr = true;
                            } else {
                                stdout = true;
                            }
                        }
                        _ => {}
                    }
                }
                _ = again.tick() => {
                    let _ = input.signal(INTERRUPT_SIGNAL).await; // the process may just have ended
                }
            }
        }
        Ok(process)
    }

    /// Ends the process and every process that it started.
    pub(super) fn end(mut self) {
        self.execution.own();
    }

    async fn begin_harness(&mut self, preload: &str) -> Result<(), HarnessFailure> {
        let first_input = self.harness.first_input(&self.mark, preload);
        let written = self.execution.input().write(first_input.as_bytes()).await;
        let (mut stdout, mut stderr, mut words) = (false, false, Vec::new());
        while !(stdout && stderr) {
            match self.next().await {
                Ok(HarnessOutput::Message(Stream::Stderr, HarnessMessage::Ready, _)) => {
                    stderr = true
                }
                Ok(HarnessOutput::Message(_, HarnessMessage::Ready, _)) => stdout = true,
                Ok(HarnessOutput::Message(..) | HarnessOutput::Unreadable) => {
                    return Err(HarnessFailure::Nonsense(
                        "it begins before it received a request".to_owned(),
                    ));
                }
                Ok(HarnessOutput::Text(_, text)) => {
                    words.extend(text);
                    words.drain(..words.len().saturating_sub(MAX_EXCERPT_BYTES));
                }
                Err(HarnessFailure::Ended(how)) => {
                    let words = crate::host_paths::untrusted::printable(
                        String::from_utf8_lossy(&words).trim(),
                    );
                    return Err(HarnessFailure::Ended(format!("{how}; its last output: {words}")));
                }
                Err(failure) => return Err(failure),
            }
        }
        written.map_err(HarnessFailure::Session)
    }

    /// Returns the next output or message. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Result<HarnessOutput, HarnessFailure> {
        Ok(match self.next_part().await? {
            (stream, StreamPart::Text(text)) => HarnessOutput::Text(stream, text),
            (stream, StreamPart::Message(message)) => match serde_json::from_slice(&message) {
                Ok(parsed) => HarnessOutput::Message(stream, parsed, message.len()),
                Err(_) if MessageKind::parse(&message) == Some(MessageKind::Result) => {
                    HarnessOutput::Unreadable
                }
                Err(error) => return Err(HarnessFailure::Nonsense(error.to_string())),
            },
        })
    }

    async fn next_part(&mut self) -> Result<(Stream, StreamPart), HarnessFailure> {
        loop {
            for (stream, separator) in
                [(Stream::Stdout, &mut self.stdout), (Stream::Stderr, &mut self.stderr)]
            {
                if let Some(part) =
                    separator.next().map_err(|why| HarnessFailure::Nonsense(why.to_owned()))?
                {
                    return Ok((stream, part));
                }
            }
            match self.execution.next().await {
                Some(Ok(chunk)) => match chunk.stream {
                    Stream::Stderr => self.stderr.push(&chunk.bytes),
                    Stream::Stdout | Stream::Terminal => self.stdout.push(&chunk.bytes),
                },
                Some(Err(error)) => return Err(HarnessFailure::Session(error)),
                None => {
                    return Err(self
                        .execution
                        .ended()
                        .map_or_else(HarnessFailure::Session, |ended| {
                            HarnessFailure::Ended(describe_end(ended))
                        }));
                }
            }
        }
    }
}

/// Returns a number that no cell has, and that no earlier empty cell is likely to have had.
fn unused_number() -> u64 {
    let mut bytes = [0u8; 4];
    // Zeroes are a valid number, too.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    (1 << 32) + u64::from(u32::from_ne_bytes(bytes))
}

fn describe_end(ended: CommandEnd) -> String {
    match (ended.exit_code, ended.signal) {
        (Some(code), _) => format!("its process exited with {code}"),
        (None, Some(signal)) => format!("its process was ended by signal {signal}"),
        (None, None) => "its process was ended".to_owned(),
    }
}
