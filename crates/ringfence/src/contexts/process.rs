//! The process of a context: a harness with its two streams.

use std::time::Duration;

use ringfence_core::settings::Language;
use tokio::time::timeout;

use super::ContextError;
use super::event::Message;
use super::harness::Harness;
use super::separate::{Part, Separator};
use crate::session::{Ended, Exec, Execution, Session};
use crate::{CodeError, SessionError, Stream};

/// How long an interpreter may take to come up.
const START_PATIENCE: Duration = Duration::from_secs(60);
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

    /// Starts it with some modules imported, and waits until it takes cells.
    pub(super) async fn start(&self, session: &Session, preload: &str) -> Result<Process, ContextError> {
        let execution = session.exec(&self.exec).await.map_err(|error| match error {
            SessionError::NotFound { program } => {
                ContextError::Code(CodeError::NoProgram { language: self.name.clone(), program })
            }
            error => error.into(),
        })?;
        let mark = crate::run::identity();
        let (stdout, stderr) = (Separator::new(&mark), Separator::new(&mark));
        let mut process = Process { harness: self.harness, execution, stdout, stderr, cells: 0 };
        let ready = timeout(START_PATIENCE, process.greet(&mark, preload)).await;
        let refused = |why: String| ContextError::NotReady { language: self.name.clone(), why };
        match ready {
            Ok(Ok(())) => Ok(process),
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
}

impl Process {
    async fn greet(&mut self, mark: &str, preload: &str) -> Result<(), Failure> {
        let told = self.execution.input().write(self.harness.greeting(mark, preload).as_bytes()).await;
        let (mut stdout, mut stderr, mut words) = (false, false, Vec::new());
        while !(stdout && stderr) {
            match self.next().await {
                Ok(Said::Message(Stream::Stderr, Message::Ready, _)) => stderr = true,
                Ok(Said::Message(_, Message::Ready, _)) => stdout = true,
                Ok(Said::Message(..)) => return Err(Failure::Nonsense("it begins before it is asked to".to_owned())),
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
        loop {
            for (stream, separator) in [(Stream::Stdout, &mut self.stdout), (Stream::Stderr, &mut self.stderr)] {
                match separator.next().map_err(|why| Failure::Nonsense(why.to_owned()))? {
                    Some(Part::Text(text)) => return Ok(Said::Text(stream, text)),
                    Some(Part::Message(message)) => {
                        let parsed = serde_json::from_slice(&message);
                        let parsed = parsed.map_err(|error| Failure::Nonsense(error.to_string()))?;
                        return Ok(Said::Message(stream, parsed, message.len()));
                    }
                    None => {}
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

fn how(ended: Ended) -> String {
    match (ended.exit_code, ended.signal) {
        (Some(code), _) => format!("its process exited with {code}"),
        (None, Some(signal)) => format!("its process was ended by signal {signal}"),
        (None, None) => "its process was ended".to_owned(),
    }
}
