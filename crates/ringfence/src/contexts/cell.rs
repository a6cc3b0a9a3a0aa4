//! A cell that runs: its events, and its interruption when nobody reads these events any more.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use rustix::pipe::PIPE_BUF;
use tokio::runtime::Handle;
use tokio::sync::{OwnedMutexGuard, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout_at};

use super::ContextError;
use super::event::{CellEvent, HarnessMessage, OmittedOutput, RaisedError, ShownValue};
use super::notes::NotedContext;
use super::process::{HarnessFailure, HarnessOutput, HarnessProcess};
use super::separate::TextDecoder;
use crate::session::ExecutionInput;
use crate::{SessionError, Stream};

/// The number of SIGINT, signal(7).
pub(super) const INTERRUPT_SIGNAL: i32 = 2;
/// Longest time between the end of a cell on one stream and its end on the other. A process that
/// takes no input must end within the same time.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two interrupts of a cell whose events nobody reads.
pub(super) const INTERRUPT_INTERVAL: Duration = Duration::from_secs(1);
/// Longest time that a cell may take to end after an interrupt; `POLL_INTERVAL` is the pause
/// between two checks.
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Highest total size of the results of one cell, in bytes.
const MAX_RESULT_BYTES: usize = 64 << 20;

/// The process of a context, from its start to its end.
#[derive(Debug)]
pub(super) struct ContextProcess {
    pub(super) input: ExecutionInput,
    pub(super) phase: watch::Sender<CellPhase>,
    /// State of the process; the cell that runs holds the lock.
    pub(super) state: Arc<tokio::sync::Mutex<HarnessState>>,
    /// Reason why this side ended the process while a cell ran.
    pub(super) why: OnceLock<String>,
}

/// Progress of the current cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CellPhase {
    /// No cell runs.
    Idle,
    /// The cell is sent but has not begun. An interrupt would be lost.
    Sent,
    Runs,
}

#[derive(Debug)]
pub(super) enum HarnessState {
    Alive(Box<HarnessProcess>),
    /// The process has ended, in the way that the text describes.
    Gone(String),
}

impl ContextProcess {
    pub(super) fn new(process: HarnessProcess) -> ContextProcess {
        let (input, phase) = (process.execution.input(), watch::Sender::new(CellPhase::Idle));
        let state = Arc::new(tokio::sync::Mutex::new(HarnessState::Alive(Box::new(process))));
        ContextProcess { input, phase, state, why: OnceLock::new() }
    }

    /// Returns true if the process is known to have ended.
    pub(super) fn is_over(&self) -> bool {
        self.state.try_lock().is_ok_and(|state| matches!(*state, HarnessState::Gone(_)))
    }
}

/// Waits for `end`, which completes when a cell ends that is interrupted after `first`. Returns an
/// error if that takes too long: the caller then ends the process for the returned reason. Time in
/// which the sandbox is paused does not count, because nobody inside answers then.
pub(super) async fn in_time<T>(
    input: &ExecutionInput,
    first: Duration,
    end: impl Future<Output = T>,
) -> Result<T, String> {
    let late = async {
        let mut passed = Duration::ZERO;
        while passed < first + INTERRUPT_TIMEOUT {
            sleep(POLL_INTERVAL).await;
            if input.health().await.is_ok() {
                passed += POLL_INTERVAL;
            }
        }
    };
    tokio::select! {
        biased;
        ended = end => Ok(ended),
        () = late => Err(format!("its cell did not end within {} s of an \
            interrupt", INTERRUPT_TIMEOUT.as_secs())),
    }
}

/// Limits of the output and the time of a cell.
#[derive(Debug, Clone, Copy)]
pub(super) struct CellLimits {
    /// Highest number of bytes that are kept of each stream.
    pub(super) output: u64,
    pub(super) time: Option<Duration>,
}

/// A cell of code that runs in a context.
///
/// Dropping the cell interrupts its code, by a task on the runtime that the cell was started on.
/// The next cell waits for the end of this code. If the code does not end within 20 s, the context
/// is ended.
#[derive(Debug)]
pub struct Cell {
    lock: Option<Box<CellLock>>,
    /// Events of a cell that is not run.
    output: VecDeque<CellEvent>,
    runtime: Handle,
}

/// All events of a cell, collected.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct CellOutcome {
    /// Number of cells that the context has run, including this one; 0 if the cell was not run.
    pub count: u64,
    /// Text that the cell wrote to its standard output.
    pub stdout: String,
    /// Text that the cell wrote to its standard error.
    pub stderr: String,
    /// Values that the cell showed, in order.
    pub results: Vec<ShownValue>,
    /// Error that the cell failed with.
    pub error: Option<RaisedError>,
    /// Amount of output and results that was left out.
    pub omitted: OmittedOutput,
}

impl Cell {
    pub(super) fn new(lock: CellLock) -> Cell {
        Cell { lock: Some(Box::new(lock)), output: VecDeque::new(), runtime: Handle::current() }
    }

    /// Returns a cell that is not run and reports the error `raised`.
    pub(super) fn refused(raised: RaisedError) -> Cell {
        let output = [CellEvent::Error(raised), CellEvent::Ended(OmittedOutput::default())].into();
        Cell { lock: None, output, runtime: Handle::current() }
    }

    /// Returns the next event. Returns `None` when the cell is over, or after an error, which means
    /// that the context has ended. Dropping the future loses no event. A cell whose events are not
    /// taken blocks when the buffers between it and the caller are full.
    pub async fn next(&mut self) -> Option<Result<CellEvent, ContextError>> {
        let Some(lock) = &mut self.lock else { return self.output.pop_front().map(Ok) };
        let event = lock.next().await;
        if matches!(event, Ok(CellEvent::Ended(_)) | Err(_)) {
            self.lock = None;
        }
        Some(event)
    }

    /// Waits for the end of the cell and collects all its events.
    pub async fn outcome(mut self) -> Result<CellOutcome, ContextError> {
        let mut outcome = CellOutcome::default();
        while let Some(event) = self.next().await {
            match event? {
                CellEvent::Begun { count } => outcome.count = count,
                CellEvent::Stdout(text) => outcome.stdout.push_str(&text),
                CellEvent::Stderr(text) => outcome.stderr.push_str(&text),
                CellEvent::Result(shown) => outcome.results.push(shown),
                CellEvent::Error(raised) => outcome.error = Some(raised),
                CellEvent::Ended(omitted) => outcome.omitted = omitted,
            }
        }
        Ok(outcome)
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        if let Some(lock) = self.lock.take() {
            // The task ends with the cell, or when `in_time` gives up.
            self.runtime.spawn(lock.give_up());
        }
    }
}

/// Exclusive use of a context's process by one cell.
pub(super) struct CellLock {
    pub(super) id: String,
    context_process: Arc<ContextProcess>,
    state: OwnedMutexGuard<HarnessState>,
    /// Note in which the cell must still be recorded as sent completely.
    long_request_note: Option<Arc<NotedContext>>,
    /// Write of the request that is under way. It must be completed, because half of the code would
    /// leave the process waiting for the rest.
    request_write: Option<BoxFuture<'static, Result<(), SessionError>>>,
    write_error: Option<SessionError>,
    number: u64,
    stdout: CellOutput,
    stderr: CellOutput,
    results: usize,
    refused_results: u64,
    has_failed: bool,
    /// Time by which the process must have ended the cell on both streams.
    last_words_by: Option<Instant>,
    time: Option<Duration>,
    deadline: Option<Instant>,
}

/// One output stream of a cell.
#[derive(Debug)]
struct CellOutput {
    text: TextDecoder,
    bytes_left: u64,
    omitted: u64,
    is_over: bool,
}

impl CellOutput {
    fn new(bytes_left: u64) -> CellOutput {
        CellOutput { text: TextDecoder::default(), bytes_left, omitted: 0, is_over: false }
    }

    /// Takes bytes of the stream, and returns the text to report.
    fn take(&mut self, mut bytes: Vec<u8>) -> String {
        let fits = usize::try_from(self.bytes_left).unwrap_or(usize::MAX).min(bytes.len());
        self.omitted += (bytes.len() - fits) as u64;
        self.bytes_left -= fits as u64;
        bytes.truncate(fits);
        self.text.push(bytes)
    }
}

impl std::fmt::Debug for CellLock {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Turn")
            .field("id", &self.id)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl CellLock {
    /// Waits until the process is free, and locks the process. `request` returns the request for a
    /// cell with a given number.
    pub(super) async fn take(
        id: &str,
        context_process: Arc<ContextProcess>,
        bounds: CellLimits,
        noted: Option<&Arc<NotedContext>>,
        request: impl FnOnce(u64) -> String,
    ) -> Result<CellLock, ContextError> {
        let mut state = Arc::clone(&context_process.state).lock_owned().await;
        let process = match &mut *state {
            HarnessState::Alive(process) => process,
            HarnessState::Gone(how) => {
                return Err(ContextError::Ended { id: id.to_owned(), how: how.clone() });
            }
        };
        let (number, input) = (process.cells + 1, context_process.input.clone());
        let request = request(number);
        // A longer write is not atomic (pipe(7)): it can be cut short if this process ends.
        let is_long = request.len() > PIPE_BUF;
        if let Some(noted) = noted {
            noted.record_cells(&process.mark, number, is_long)?;
        }
        process.cells = number;
        context_process.phase.send_replace(CellPhase::Sent);
        Ok(CellLock {
            id: id.to_owned(),
            context_process,
            state,
            long_request_note: noted.filter(|_| is_long).cloned(),
            request_write: Some(Box::pin(async move { input.write(request.as_bytes()).await })),
            write_error: None,
            number,
            stdout: CellOutput::new(bounds.output),
            stderr: CellOutput::new(bounds.output),
            results: MAX_RESULT_BYTES,
            refused_results: 0,
            has_failed: false,
            last_words_by: None,
            time: bounds.time,
            deadline: bounds.time.and_then(|time| Instant::now().checked_add(time)),
        })
    }

    async fn next(&mut self) -> Result<CellEvent, ContextError> {
        loop {
            if self.stdout.is_over && self.stderr.is_over {
                return Ok(self.remaining_event());
            }
            let HarnessState::Alive(process) = &mut *self.state else {
                return Err(ContextError::Ended {
                    id: self.id.clone(),
                    how: "its last cell failed".to_owned(),
                });
            };
            let late = [self.last_words_by, self.deadline].into_iter().flatten().min();
            let output = async {
                match late {
                    Some(at) => timeout_at(at, process.next()).await.ok(),
                    None => Some(process.next().await),
                }
            };
            // Read messages while the request is written, because a process that blocks on its
            // output takes no input.
            let output = match &mut self.request_write {
                None => output.await,
                Some(request_write) => tokio::select! {
                    biased;
                    written = request_write => {
                        self.record_write(written);
                        continue;
                    }
                    output = output => output,
                },
            };
            let output = match output {
                Some(Ok(output)) => output,
                Some(Err(failure)) => return Err(self.fail(failure)),
                None => return Err(self.timeout_error()),
            };
            if let Some(event) = self.handle_output(output)? {
                return Ok(event);
            }
        }
    }

    /// Records that the request was written, or that the write failed. If the write failed, either
    /// the process has ended, and its stream says how, or the process must be ended.
    fn record_write(&mut self, written: Result<(), SessionError>) {
        self.request_write = None;
        self.write_error = written.err();
        self.last_words_by = self.write_error.as_ref().map(|_| Instant::now() + END_TIMEOUT);
        if let (Some(noted), None, HarnessState::Alive(process)) =
            (&self.long_request_note, &self.write_error, &*self.state)
        {
            // If this fails, the cell counts as half sent, and the context ends too early.
            let _ = noted.record_cells(&process.mark, self.number, false);
        }
    }

    /// Converts a message or output of the process into an event of the cell, if there is one.
    fn handle_output(&mut self, output: HarnessOutput) -> Result<Option<CellEvent>, ContextError> {
        let make_event =
            |text: String, event: fn(String) -> CellEvent| (!text.is_empty()).then(|| event(text));
        Ok(match output {
            HarnessOutput::Text(Stream::Stderr, bytes) => {
                make_event(self.stderr.take(bytes), CellEvent::Stderr)
            }
            HarnessOutput::Text(Stream::Stdout | Stream::Terminal, bytes) => {
                make_event(self.stdout.take(bytes), CellEvent::Stdout)
            }
            HarnessOutput::Unreadable => {
                self.refused_results += 1;
                None
            }
            HarnessOutput::Message(stream, message, length) => match message {
                HarnessMessage::Begun { cell } if cell == self.number => {
                    self.context_process.phase.send_replace(CellPhase::Runs);
                    Some(CellEvent::Begun { count: cell })
                }
                HarnessMessage::End { cell } if cell == self.number => {
                    let output =
                        if stream == Stream::Stderr { &mut self.stderr } else { &mut self.stdout };
                    output.is_over = true;
                    self.last_words_by.get_or_insert_with(|| Instant::now() + END_TIMEOUT);
                    None
                }
                // The message is repeated, or belongs to an earlier cell.
                HarnessMessage::Begun { .. } | HarnessMessage::End { .. } => None,
                HarnessMessage::Ready => {
                    return Err(
                        self.fail(HarnessFailure::Nonsense("it starts a second time".to_owned()))
                    );
                }
                HarnessMessage::Result(_) if length > self.results => {
                    self.refused_results += 1;
                    None
                }
                HarnessMessage::Result(shown) => {
                    self.results -= length;
                    Some(CellEvent::Result(shown))
                }
                // An error is never left out, because it is the outcome of the cell. A second error
                // adds nothing.
                HarnessMessage::Error(raised) => (!std::mem::replace(&mut self.has_failed, true))
                    .then_some(CellEvent::Error(raised)),
            },
        })
    }

    /// Returns the remaining events, after both streams came to the cell's end.
    fn remaining_event(&mut self) -> CellEvent {
        let stdout = self.stdout.text.finish();
        if !stdout.is_empty() {
            return CellEvent::Stdout(stdout);
        }
        let stderr = self.stderr.text.finish();
        if !stderr.is_empty() {
            return CellEvent::Stderr(stderr);
        }
        self.context_process.phase.send_replace(CellPhase::Idle);
        CellEvent::Ended(OmittedOutput {
            stdout: self.stdout.omitted,
            stderr: self.stderr.omitted,
            results: self.refused_results,
        })
    }

    /// Ends the process, because its further messages cannot be relied on.
    fn fail(&mut self, failure: HarnessFailure) -> ContextError {
        let id = self.id.clone();
        let (how, error) = match failure {
            HarnessFailure::Ended(how) => {
                let how = self.context_process.why.get().cloned().unwrap_or(how);
                (how.clone(), ContextError::Ended { id, how })
            }
            HarnessFailure::Nonsense(why) => (
                "the output of its harness is invalid".to_owned(),
                ContextError::Nonsense { id, why },
            ),
            HarnessFailure::Session(error) => {
                ("the connection to it was lost".to_owned(), error.into())
            }
        };
        self.end(how);
        error
    }

    fn timeout_error(&mut self) -> ContextError {
        match (self.write_error.take(), self.time) {
            (Some(error), _) => self.fail(HarnessFailure::Session(error)),
            (None, Some(time))
                if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) =>
            {
                self.end("its cell took longer than the policy allows".to_owned());
                ContextError::TimedOut { id: self.id.clone(), time }
            }
            _ => self.fail(HarnessFailure::Nonsense("its streams do not end together".to_owned())),
        }
    }

    fn end(&mut self, how: String) {
        if let HarnessState::Alive(process) =
            std::mem::replace(&mut *self.state, HarnessState::Gone(how))
        {
            process.end();
        }
        self.context_process.phase.send_replace(CellPhase::Idle);
    }

    /// Interrupts the cell, and ends the process if the cell does not end.
    async fn give_up(mut self: Box<Self>) {
        let input = self.context_process.input.clone();
        if let Err(how) = in_time(&input, Duration::ZERO, self.interrupt_until_ended()).await {
            self.end(how);
        }
    }

    /// Interrupts the cell until it ends.
    async fn interrupt_until_ended(&mut self) {
        let (input, phase) =
            (self.context_process.input.clone(), self.context_process.phase.subscribe());
        let mut again = interval(INTERRUPT_INTERVAL);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let runs = *phase.borrow() == CellPhase::Runs;
            tokio::select! {
                event = self.next() => {
                    if matches!(event, Ok(CellEvent::Ended(_)) | Err(_)) {
                        return;
                    }
                }
                _ = again.tick(), if runs => {
                    let _ = input.signal(INTERRUPT_SIGNAL).await; // the cell may just have ended
                }
            }
        }
    }
}
