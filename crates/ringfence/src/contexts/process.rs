//! The process of a context: a harness with its two streams.

use std::collections::BTreeMap;
use std::time::Duration;

use ringfence_core::settings::Language;
use tokio::time::{Instant, interval_at, timeout};

use super::ContextError;
use super::cell::{INSISTENCE, INTERRUPT};
use super::event::{Kind, Message};
use super::harness::Harness;
use super::notes::Trace;
use super::separate::{Part, Separator};
use crate::session::{Ended, Exec, Execution, Session};
use crate::{CodeError, SessionError, Stream};

/// How long an interpreter may take to come up.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// How long one that was found may take to end a cell of nothing, before another is taken to run. Children of an idle one
/// would be hit by the interrupt of that.
pub(super) const IDLE_PATIENCE: Duration = Duration::from_secs(3);
/// How much of what one says that does not come up is shown.
const LAST_WORDS: usize = 1024;

/// What starts the process of a context.
#[derive(Debug, Clone)]
pub(super) struct Recipe {
    /// What its language is called.
    pub(super) name: String,
    pub(super) harness: Harness,
    exec: Exec,
}

impl Recipe {
    pub(super) fn new(name: &str, language: &Language, harness: Harness, directory: Option<&str>) -> Recipe {
        let exec = Exec { directory: directory.map(str::to_owned), ..harness.exec(language) };
        Recipe { name: name.to_owned(), harness, exec }
    }

    /// Starts it with some modules imported, and waits until it takes cells. With a tag, it can be found again, and
    /// outlives its [`Process`].
    pub(super) async fn start(
        &self,
        session: &Session,
        preload: &str,
        tag: Option<&str>,
    ) -> Result<Process, ContextError> {
        let exec = Exec { tag: tag.map(str::to_owned), ..self.exec.clone() };
        let execution = session.exec(&exec).await.map_err(|error| match error {
            SessionError::NotFound { program } => {
                ContextError::Code(CodeError::NoProgram { language: self.name.clone(), program })
            }
            error => error.into(),
        })?;
        let mut process = Process::new(self.harness, execution, crate::run::identity());
        let ready = timeout(START_PATIENCE, process.greet(preload)).await;
        let refused = |why: String| ContextError::NotReady { language: self.name.clone(), why };
        match ready {
            Ok(Ok(())) => {
                if tag.is_some() {
                    process.execution.let_run();
                }
                Ok(process)
            }
            Ok(Err(Failure::Ended(how))) => Err(refused(how)),
            Ok(Err(Failure::Nonsense(why))) => Err(refused(why)),
            Ok(Err(Failure::Session(error))) => Err(error.into()),
            Err(_) => Err(refused(format!("it said nothing for {} s", START_PATIENCE.as_secs()))),
        }
    }
}

/// Why a process says nothing more.
#[derive(Debug)]
pub(super) enum Failure {
    Ended(String),
    Nonsense(String),
    Session(SessionError),
}

/// A harness that runs.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) harness: Harness,
    pub(super) execution: Execution,
    /// What its messages begin with. No other process has the same.
    pub(super) mark: String,
    stdout: Separator,
    stderr: Separator,
    /// How many cells it was given.
    pub(super) cells: u64,
}

/// What comes next from a process.
#[derive(Debug)]
pub(super) enum Said {
    Text(Stream, Vec<u8>),
    /// A message and its length.
    Message(Stream, Message, usize),
    /// A result that is sound JSON, but nested too deep or with a number too large to be read.
    Unreadable,
}

impl Process {
    fn new(harness: Harness, execution: Execution, mark: String) -> Process {
        let (stdout, stderr) = (Separator::new(&mark), Separator::new(&mark));
        Process { harness, execution, mark, stdout, stderr, cells: 0 }
    }

    /// Finds one that runs already, and waits until it takes cells. What it says until then is of a cell that nobody
    /// listens to, which is interrupted; an end of it may have been said to nobody, so the end of another is waited for.
    pub(super) async fn find(session: &Session, harness: Harness, trace: Trace) -> Result<Process, Failure> {
        let execution = session.reconnect(trace.pid).await.map_err(Failure::Session)?;
        let mut process = Process::new(harness, execution, trace.mark);
        process.cells = trace.cells;
        let (input, number) = (session.input(trace.pid), unused_number());
        let nothing = harness.request(number, "", &BTreeMap::new());
        input.write(nothing.as_bytes()).await.map_err(Failure::Session)?;
        let mut again = interval_at(Instant::now() + IDLE_PATIENCE, INSISTENCE);
        let (mut stdout, mut stderr) = (false, false);
        while !(stdout && stderr) {
            tokio::select! {
                part = process.part() => {
                    let (stream, part) = part?;
                    // Of one that began before, there may be a part alone.
                    let Part::Message(message) = part else { continue };
                    match serde_json::from_slice(&message) {
                        Ok(Message::End { cell }) if cell == number && stream == Stream::Stderr => stderr = true,
                        Ok(Message::End { cell }) if cell == number => stdout = true,
                        _ => {}
                    }
                }
                _ = again.tick() => {
                    let _ = input.signal(INTERRUPT).await; // it may just have ended
                }
            }
        }
        Ok(process)
    }

    /// Ends it, with all that it started.
    pub(super) fn end(mut self) {
        self.execution.own();
    }

    async fn greet(&mut self, preload: &str) -> Result<(), Failure> {
        let greeting = self.harness.greeting(&self.mark, preload);
        let told = self.execution.input().write(greeting.as_bytes()).await;
        let (mut stdout, mut stderr, mut words) = (false, false, Vec::new());
        while !(stdout && stderr) {
            match self.next().await {
                Ok(Said::Message(Stream::Stderr, Message::Ready, _)) => stderr = true,
                Ok(Said::Message(_, Message::Ready, _)) => stdout = true,
                Ok(Said::Message(..) | Said::Unreadable) => {
                    return Err(Failure::Nonsense("it begins before it is asked to".to_owned()));
                }
                Ok(Said::Text(_, text)) => {
                    words.extend(text);
                    words.drain(..words.len().saturating_sub(LAST_WORDS));
                }
                Err(Failure::Ended(how)) => {
                    let words = crate::untrusted::printable(String::from_utf8_lossy(&words).trim());
                    return Err(Failure::Ended(format!("{how}; its last words: {words}")));
                }
                Err(failure) => return Err(failure),
            }
        }
        told.map_err(Failure::Session)
    }

    /// What it says next. Nothing is lost when the future is dropped.
    pub(super) async fn next(&mut self) -> Result<Said, Failure> {
        Ok(match self.part().await? {
            (stream, Part::Text(text)) => Said::Text(stream, text),
            (stream, Part::Message(message)) => match serde_json::from_slice(&message) {
                Ok(parsed) => Said::Message(stream, parsed, message.len()),
                Err(_) if Kind::of(&message) == Some(Kind::Result) => Said::Unreadable,
                Err(error) => return Err(Failure::Nonsense(error.to_string())),
            },
        })
    }

    async fn part(&mut self) -> Result<(Stream, Part), Failure> {
        loop {
            for (stream, separator) in [(Stream::Stdout, &mut self.stdout), (Stream::Stderr, &mut self.stderr)] {
                if let Some(part) = separator.next().map_err(|why| Failure::Nonsense(why.to_owned()))? {
                    return Ok((stream, part));
                }
            }
            match self.execution.next().await {
                Some(Ok(chunk)) => match chunk.stream {
                    Stream::Stderr => self.stderr.push(&chunk.bytes),
                    Stream::Stdout | Stream::Terminal => self.stdout.push(&chunk.bytes),
                },
                Some(Err(error)) => return Err(Failure::Session(error)),
                None => {
                    return Err(self
                        .execution
                        .ended()
                        .map_or_else(Failure::Session, |ended| Failure::Ended(how(ended))));
                }
            }
        }
    }
}

/// A number that no cell has, and none had of those that were run to find the process before.
fn unused_number() -> u64 {
    let mut bytes = [0u8; 4];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()); // zeroes are a number, too
    (1 << 32) + u64::from(u32::from_ne_bytes(bytes))
}

fn how(ended: Ended) -> String {
    match (ended.exit_code, ended.signal) {
        (Some(code), _) => format!("its process exited with {code}"),
        (None, Some(signal)) => format!("its process was ended by signal {signal}"),
        (None, None) => "its process was ended".to_owned(),
    }
}
