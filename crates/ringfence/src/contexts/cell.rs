//! A cell that runs: its events, and what becomes of it when nobody listens any more.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use rustix::pipe::PIPE_BUF;
use tokio::runtime::Handle;
use tokio::sync::{OwnedMutexGuard, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout_at};

use super::ContextError;
use super::event::{Event, Left, Message, Raised, Shown};
use super::notes::Noted;
use super::process::{Failure, Process, Said};
use super::separate::Text;
use crate::session::ExecutionInput;
use crate::{SessionError, Stream};

/// The number of SIGINT, signal(7).
pub(super) const INTERRUPT: i32 = 2;
/// How long after the end on one stream the end on the other may take, and the end of a process that takes no cells.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// How often a cell that nobody listens to is interrupted.
pub(super) const INSISTENCE: Duration = Duration::from_secs(1);
/// How long a cell may take to end after an interrupt, and how often that is looked at.
const PATIENCE: Duration = Duration::from_secs(20);
const MOMENT: Duration = Duration::from_secs(1);
/// How much the results of one cell may come to, in bytes.
const RESULTS: usize = 64 << 20;

/// The process of a context, from its start to its end.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) input: ExecutionInput,
    pub(super) phase: watch::Sender<Phase>,
    /// Held by the cell that runs.
    pub(super) state: Arc<tokio::sync::Mutex<State>>,
    /// Why it was ended from here while a cell ran.
    pub(super) why: OnceLock<String>,
}

/// How far the cell of the moment has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// There is none.
    Idle,
    /// It is on its way. An interrupt would be lost.
    Told,
    Runs,
}

#[derive(Debug)]
pub(super) enum State {
    Alive(Box<Process>),
    /// How it ended.
    Gone(String),
}

impl Life {
    pub(super) fn new(process: Process) -> Life {
        let (input, phase) = (process.execution.input(), watch::Sender::new(Phase::Idle));
        let state = Arc::new(tokio::sync::Mutex::new(State::Alive(Box::new(process))));
        Life { input, phase, state, why: OnceLock::new() }
    }

    /// Whether it is known to have ended.
    pub(super) fn is_over(&self) -> bool {
        self.state.try_lock().is_ok_and(|state| matches!(*state, State::Gone(_)))
    }
}

/// Waits for what ends with a cell that is interrupted after `first`. When that takes too long its process is to be ended,
/// for the reason that is returned. Time at rest does not count: nobody inside answers then.
pub(super) async fn in_time<T>(
    input: &ExecutionInput,
    first: Duration,
    end: impl Future<Output = T>,
) -> Result<T, String> {
    let late = async {
        let mut passed = Duration::ZERO;
        while passed < first + PATIENCE {
            sleep(MOMENT).await;
            if input.health().await.is_ok() {
                passed += MOMENT;
            }
        }
    };
    tokio::select! {
        biased;
        ended = end => Ok(ended),
        () = late => Err(format!("its cell did not end within {} s of an interrupt", PATIENCE.as_secs())),
    }
}

/// How much a cell may say, and for how long.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Bytes of each stream.
    pub(super) output: u64,
    pub(super) time: Option<Duration>,
}

/// A cell of code that runs in a context.
///
/// Dropping it interrupts the cell, by a task of the runtime that it was started on. The next one waits for its end; the
/// context ends if that does not come within 20 s.
#[derive(Debug)]
pub struct Cell {
    turn: Option<Box<Turn>>,
    /// What there is to say without a turn.
    said: VecDeque<Event>,
    runtime: Handle,
}

/// All that a cell said.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Outcome {
    /// How many cells the context has run, with this one; 0 if it was not run.
    pub count: u64,
    /// What it wrote to its standard output.
    pub stdout: String,
    /// What it wrote to its standard error.
    pub stderr: String,
    /// The values that it showed, in order.
    pub results: Vec<Shown>,
    /// What it failed with.
    pub error: Option<Raised>,
    /// What was left out.
    pub left: Left,
}

impl Cell {
    pub(super) fn new(turn: Turn) -> Cell {
        Cell { turn: Some(Box::new(turn)), said: VecDeque::new(), runtime: Handle::current() }
    }

    /// One that is not run.
    pub(super) fn refused(raised: Raised) -> Cell {
        let said = [Event::Error(raised), Event::Ended(Left::default())].into();
        Cell { turn: None, said, runtime: Handle::current() }
    }

    /// What happens next; none when it is over, or after an error, which tells that the context has ended. Nothing is
    /// lost when the future is dropped. A cell whose events are not taken waits, once the buffers on the way are full.
    pub async fn next(&mut self) -> Option<Result<Event, ContextError>> {
        let Some(turn) = &mut self.turn else { return self.said.pop_front().map(Ok) };
        let event = turn.next().await;
        if matches!(event, Ok(Event::Ended(_)) | Err(_)) {
            self.turn = None;
        }
        Some(event)
    }

    /// Waits for its end, and keeps all that it says.
    pub async fn outcome(mut self) -> Result<Outcome, ContextError> {
        let mut outcome = Outcome::default();
        while let Some(event) = self.next().await {
            match event? {
                Event::Begun { count } => outcome.count = count,
                Event::Stdout(text) => outcome.stdout.push_str(&text),
                Event::Stderr(text) => outcome.stderr.push_str(&text),
                Event::Result(shown) => outcome.results.push(shown),
                Event::Error(raised) => outcome.error = Some(raised),
                Event::Ended(left) => outcome.left = left,
            }
        }
        Ok(outcome)
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        if let Some(turn) = self.turn.take() {
            // It ends with the cell, or with its patience.
            self.runtime.spawn(turn.give_up());
        }
    }
}

/// A cell's turn at its context's process.
pub(super) struct Turn {
    pub(super) id: String,
    life: Arc<Life>,
    state: OwnedMutexGuard<State>,
    /// Where it is still to be noted that the process was told all of the cell.
    half_told: Option<Arc<Noted>>,
    /// The code on its way: half of it would leave the process waiting for the rest.
    telling: Option<BoxFuture<'static, Result<(), SessionError>>>,
    untold: Option<SessionError>,
    number: u64,
    stdout: Output,
    stderr: Output,
    results: usize,
    refused_results: u64,
    has_failed: bool,
    /// When the process must have said the last of the cell.
    last_words_by: Option<Instant>,
    time: Option<Duration>,
    deadline: Option<Instant>,
}

/// One stream of a cell.
#[derive(Debug)]
struct Output {
    text: Text,
    room: u64,
    left: u64,
    is_over: bool,
}

impl Output {
    fn new(room: u64) -> Output {
        Output { text: Text::default(), room, left: 0, is_over: false }
    }

    /// What is to be told of bytes.
    fn take(&mut self, mut bytes: Vec<u8>) -> String {
        let fits = usize::try_from(self.room).unwrap_or(usize::MAX).min(bytes.len());
        self.left += (bytes.len() - fits) as u64;
        self.room -= fits as u64;
        bytes.truncate(fits);
        self.text.push(bytes)
    }
}

impl std::fmt::Debug for Turn {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Turn").field("id", &self.id).field("number", &self.number).finish_non_exhaustive()
    }
}

impl Turn {
    /// Waits for its turn, and begins it. `request` is what the process is told of the cell of a number.
    pub(super) async fn take(
        id: &str,
        life: Arc<Life>,
        bounds: Bounds,
        noted: Option<&Arc<Noted>>,
        request: impl FnOnce(u64) -> String,
    ) -> Result<Turn, ContextError> {
        let mut state = Arc::clone(&life.state).lock_owned().await;
        let process = match &mut *state {
            State::Alive(process) => process,
            State::Gone(how) => return Err(ContextError::Ended { id: id.to_owned(), how: how.clone() }),
        };
        let (number, input) = (process.cells + 1, life.input.clone());
        let request = request(number);
        // What is longer can be cut short by our own end, pipe(7).
        let is_long = request.len() > PIPE_BUF;
        if let Some(noted) = noted {
            noted.tells(&process.mark, number, is_long)?;
        }
        process.cells = number;
        life.phase.send_replace(Phase::Told);
        Ok(Turn {
            id: id.to_owned(),
            life,
            state,
            half_told: noted.filter(|_| is_long).cloned(),
            telling: Some(Box::pin(async move { input.write(request.as_bytes()).await })),
            untold: None,
            number,
            stdout: Output::new(bounds.output),
            stderr: Output::new(bounds.output),
            results: RESULTS,
            refused_results: 0,
            has_failed: false,
            last_words_by: None,
            time: bounds.time,
            deadline: bounds.time.and_then(|time| Instant::now().checked_add(time)),
        })
    }

    async fn next(&mut self) -> Result<Event, ContextError> {
        loop {
            if self.stdout.is_over && self.stderr.is_over {
                return Ok(self.rest());
            }
            let State::Alive(process) = &mut *self.state else {
                return Err(ContextError::Ended { id: self.id.clone(), how: "its last cell failed".to_owned() });
            };
            let late = [self.last_words_by, self.deadline].into_iter().flatten().min();
            let said = async {
                match late {
                    Some(at) => timeout_at(at, process.next()).await.ok(),
                    None => Some(process.next().await),
                }
            };
            // It is listened to meanwhile: one that waits for what it says to be heard takes nothing.
            let said = match &mut self.telling {
                None => said.await,
                Some(telling) => tokio::select! {
                    biased;
                    told = telling => {
                        self.is_told(told);
                        continue;
                    }
                    said = said => said,
                },
            };
            let said = match said {
                Some(Ok(said)) => said,
                Some(Err(failure)) => return Err(self.fail(failure)),
                None => return Err(self.late()),
            };
            if let Some(event) = self.hear(said)? {
                return Ok(event);
            }
        }
    }

    /// It has been told of the cell, or could not be. A process that takes nothing has ended, and its stream tells how; or
    /// it must be ended.
    fn is_told(&mut self, told: Result<(), SessionError>) {
        self.telling = None;
        self.untold = told.err();
        self.last_words_by = self.untold.as_ref().map(|_| Instant::now() + END_PATIENCE);
        if let (Some(noted), None, State::Alive(process)) = (&self.half_told, &self.untold, &*self.state) {
            let _ = noted.tells(&process.mark, self.number, false); // then it counts as half told, and ends too early
        }
    }

    /// What something that the process says means for the cell, if anything.
    fn hear(&mut self, said: Said) -> Result<Option<Event>, ContextError> {
        let told = |text: String, event: fn(String) -> Event| (!text.is_empty()).then(|| event(text));
        Ok(match said {
            Said::Text(Stream::Stderr, bytes) => told(self.stderr.take(bytes), Event::Stderr),
            Said::Text(Stream::Stdout | Stream::Terminal, bytes) => told(self.stdout.take(bytes), Event::Stdout),
            Said::Unreadable => {
                self.refused_results += 1;
                None
            }
            Said::Message(stream, message, length) => match message {
                Message::Begun { cell } if cell == self.number => {
                    self.life.phase.send_replace(Phase::Runs);
                    Some(Event::Begun { count: cell })
                }
                Message::End { cell } if cell == self.number => {
                    let output = if stream == Stream::Stderr { &mut self.stderr } else { &mut self.stdout };
                    output.is_over = true;
                    self.last_words_by.get_or_insert_with(|| Instant::now() + END_PATIENCE);
                    None
                }
                Message::Begun { .. } | Message::End { .. } => None, // said twice, of an earlier one
                Message::Ready => return Err(self.fail(Failure::Nonsense("it starts a second time".to_owned()))),
                Message::Result(_) if length > self.results => {
                    self.refused_results += 1;
                    None
                }
                Message::Result(shown) => {
                    self.results -= length;
                    Some(Event::Result(shown))
                }
                // Never too much: it is what the cell came to. A second one says nothing that the first did not.
                Message::Error(raised) => {
                    (!std::mem::replace(&mut self.has_failed, true)).then_some(Event::Error(raised))
                }
            },
        })
    }

    /// What is left to say after both streams came to the cell's end.
    fn rest(&mut self) -> Event {
        let stdout = self.stdout.text.finish();
        if !stdout.is_empty() {
            return Event::Stdout(stdout);
        }
        let stderr = self.stderr.text.finish();
        if !stderr.is_empty() {
            return Event::Stderr(stderr);
        }
        self.life.phase.send_replace(Phase::Idle);
        Event::Ended(Left { stdout: self.stdout.left, stderr: self.stderr.left, results: self.refused_results })
    }

    /// Ends the process: nothing sound is to be expected of it any more.
    fn fail(&mut self, failure: Failure) -> ContextError {
        let id = self.id.clone();
        let (how, error) = match failure {
            Failure::Ended(how) => {
                let how = self.life.why.get().cloned().unwrap_or(how);
                (how.clone(), ContextError::Ended { id, how })
            }
            Failure::Nonsense(why) => {
                ("its harness said what makes no sense".to_owned(), ContextError::Nonsense { id, why })
            }
            Failure::Session(error) => ("it was lost sight of".to_owned(), error.into()),
        };
        self.end(how);
        error
    }

    fn late(&mut self) -> ContextError {
        match (self.untold.take(), self.time) {
            (Some(error), _) => self.fail(Failure::Session(error)),
            (None, Some(time)) if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) => {
                self.end("its cell took longer than the policy allows".to_owned());
                ContextError::TimedOut { id: self.id.clone(), time }
            }
            _ => self.fail(Failure::Nonsense("its streams do not end together".to_owned())),
        }
    }

    fn end(&mut self, how: String) {
        if let State::Alive(process) = std::mem::replace(&mut *self.state, State::Gone(how)) {
            process.end();
        }
        self.life.phase.send_replace(Phase::Idle);
    }

    /// Interrupts the cell, and ends a process that does not end it.
    async fn give_up(mut self: Box<Self>) {
        let input = self.life.input.clone();
        if let Err(how) = in_time(&input, Duration::ZERO, self.insist()).await {
            self.end(how);
        }
    }

    /// Interrupts the cell until it ends.
    async fn insist(&mut self) {
        let (input, phase) = (self.life.input.clone(), self.life.phase.subscribe());
        let mut again = interval(INSISTENCE);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let runs = *phase.borrow() == Phase::Runs;
            tokio::select! {
                event = self.next() => if matches!(event, Ok(Event::Ended(_)) | Err(_)) { return },
                _ = again.tick(), if runs => {
                    let _ = input.signal(INTERRUPT).await; // it may just have ended
                }
            }
        }
    }
}
