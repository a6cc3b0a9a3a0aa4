//! A running command in a sandbox.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use ringfence_core::result::RunUsage;
use ringfence_proto::code::Code;
use ringfence_proto::process::{
    DataEvent, EndEvent, EventMessage, ProcessEvent, ProcessRequest, ProcessSelector, UsageReport,
};
use tokio::runtime::Handle;
use tokio::time::{timeout, timeout_at};

use super::error::Operation;
use super::messages::MessageStream;
use super::{Exec, ExecutionInput, Session, SessionError, signal};
use crate::{Chunk, Stream};

/// End of a command.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct CommandEnd {
    /// Exit code of the command; absent when a signal ended it.
    pub exit_code: Option<i32>,
    /// Number of the signal that ended the command.
    pub signal: Option<i32>,
    /// True if the command was ended because its time was up.
    pub timed_out: bool,
    /// Time from the request to the report of the end.
    pub duration: Duration,
    /// Resources that the command used, as far as the guest reports them.
    pub usage: RunUsage,
}

impl CommandEnd {
    /// Converts a guest's report of the end of a command that took `duration`.
    pub fn from_event(end: &EndEvent, timed_out: bool, duration: Duration) -> CommandEnd {
        let signal = match end.status.strip_prefix("signal: ") {
            Some(words) => signal::number_from_name(words),
            None if timed_out => Some(signal::SIGKILL_NUMBER),
            None => None,
        };
        CommandEnd {
            exit_code: end.exited.then_some(end.exit_code),
            signal: if end.exited { None } else { signal },
            timed_out,
            duration,
            usage: end.usage.map(convert_usage).unwrap_or_default(),
        }
    }

    /// Returns the end of a command that was never started.
    pub(crate) fn not_started() -> CommandEnd {
        let (duration, usage) = (Duration::ZERO, RunUsage::default());
        CommandEnd { exit_code: None, signal: None, timed_out: false, duration, usage }
    }

    /// Returns true if the command exited with 0 in time.
    pub fn ok(&self) -> bool {
        self.exit_code == Some(0) && !self.timed_out
    }
}

/// A command that runs in a sandbox.
///
/// Dropping the execution ends the command and every process that it started, unless the command
/// has ended, or was found by [`Session::reconnect`]. [`Execution::detach`] lets the command run. A
/// task on the runtime that the command was started on ends the command. A program that stops its
/// runtime at once should therefore wait for [`ExecutionInput::kill`] instead.
#[derive(Debug)]
pub struct Execution {
    input: ExecutionInput,
    program: String,
    messages: MessageStream,
    state: ExecutionState,
    started_at: Instant,
    /// Time by which the guest must have reported the end.
    deadline: Option<Instant>,
    owned: bool,
    runtime: Handle,
}

#[derive(Debug)]
enum ExecutionState {
    Runs,
    Ended(CommandEnd),
    /// The stream failed, and its reader was given the error.
    Failed,
}

impl Execution {
    /// Starts a command. Dropping the future ends the command.
    pub(super) async fn start(session: Session, exec: &Exec) -> Result<Execution, SessionError> {
        let (request, time) = (exec.request(), exec.time);
        let (program, terminal) = (exec.program.clone(), exec.terminal.is_some());
        let starting = Box::pin(async move {
            let started_at = Instant::now();
            let operation = Operation { verb: "start", object: &program };
            let transport = session.transport.clone();
            let deadline = time
                .and_then(|time| started_at.checked_add(time)?.checked_add(transport.grace_period));
            let opening = async {
                let messages = MessageStream::open(
                    transport,
                    operation,
                    "/process.Process/Start",
                    &request,
                    time,
                )
                .await?;
                Execution::from_messages(
                    session,
                    messages,
                    operation,
                    OnceLock::from(terminal),
                    started_at,
                    time,
                )
                .await
            };
            // A guest that only sends keepalives must not outlast the command's own time.
            let execution = await_until(deadline, opening)
                .await
                .unwrap_or_else(|| Err(operation.no_answer(started_at.elapsed())));
            let mut execution = execution.map_err(|error| map_start_error(error, &program))?;
            execution.owned = true;
            execution.deadline = deadline;
            Ok(execution)
        });
        StartingExecution { future: Some(starting), runtime: Handle::current() }.await
    }

    /// Attaches to a command that runs already.
    pub(super) async fn find(session: Session, pid: u32) -> Result<Execution, SessionError> {
        let started_at = Instant::now();
        let name = pid.to_string();
        let operation = Operation { verb: "reconnect to the command", object: &name };
        let request = ProcessRequest { process: ProcessSelector::Pid(pid) };
        let transport = session.transport.clone();
        let messages =
            MessageStream::open(transport, operation, "/process.Process/Connect", &request, None)
                .await?;
        Execution::from_messages(session, messages, operation, OnceLock::new(), started_at, None)
            .await
    }

    async fn from_messages(
        session: Session,
        mut messages: MessageStream,
        operation: Operation<'_>,
        terminal: OnceLock<bool>,
        started_at: Instant,
        time: Option<Duration>,
    ) -> Result<Execution, SessionError> {
        let starting = async {
            loop {
                let message = match messages.next(operation).await {
                    // The guest may report a deadline that is not the command's own.
                    Err(SessionError::Refused { code: Code::DeadlineExceeded, .. })
                        if time.is_some_and(|time| started_at.elapsed() >= time) =>
                    {
                        return Ok(None);
                    }
                    message => message?,
                };
                match message.map(|EventMessage { event }| event) {
                    Some(ProcessEvent::Start(start)) => return Ok(Some(start.pid)),
                    // The timeout below bounds the number of keepalives.
                    Some(ProcessEvent::Keepalive(_)) => {}
                    Some(ProcessEvent::Data(_) | ProcessEvent::End(_)) | None => {
                        return Err(
                            operation.invalid_answer("it does not begin with the command's start")
                        );
                    }
                }
            }
        };
        let answer_timeout = session.transport.answer_timeout;
        let started_pid = timeout(answer_timeout, starting)
            .await
            .unwrap_or_else(|_| Err(operation.no_answer(answer_timeout)))?;
        let state = match started_pid {
            Some(_) => ExecutionState::Runs,
            None => ExecutionState::Ended(CommandEnd::from_event(
                &EndEvent::default(),
                true,
                started_at.elapsed(),
            )),
        };
        let pid = started_pid.unwrap_or_default();
        Ok(Execution {
            input: ExecutionInput { session, pid, terminal: Arc::new(terminal) },
            program: operation.object.to_owned(),
            messages,
            state,
            started_at,
            deadline: None,
            owned: false,
            runtime: Handle::current(),
        })
    }

    /// Returns the process id inside the sandbox; 0 if the command's time was up before it began.
    pub fn pid(&self) -> u32 {
        self.input.pid
    }

    /// Returns the handle to the command's input, its signals, and the size of its terminal.
    pub fn input(&self) -> ExecutionInput {
        self.input.clone()
    }

    /// Lets the command run, and returns its process id. Later output waits for
    /// [`Session::reconnect`].
    pub fn detach(mut self) -> u32 {
        self.owned = false;
        self.pid()
    }

    /// Lets the command outlive this execution.
    pub(crate) fn disown(&mut self) {
        self.owned = false;
    }

    /// Makes the command end when this execution is dropped.
    pub(crate) fn own(&mut self) {
        self.owned = true;
    }

    /// Returns the next chunk of output, or `None` when the command has ended or after an error.
    /// Dropping the future loses no output. A command whose output is not read blocks when the
    /// buffers between it and the caller are full.
    pub async fn next(&mut self) -> Option<Result<Chunk, SessionError>> {
        while let ExecutionState::Runs = self.state {
            match self.event().await {
                Ok(Some(chunk)) => return Some(Ok(chunk)),
                Ok(None) => {}
                Err(error) => {
                    self.state = ExecutionState::Failed;
                    return Some(Err(error));
                }
            }
        }
        None
    }

    /// Waits for the command's end. Unread output is discarded.
    pub async fn wait(mut self) -> Result<CommandEnd, SessionError> {
        while let Some(chunk) = self.next().await {
            chunk?;
        }
        self.ended()
    }

    /// Returns the time after a command's deadline within which the guest must report its end.
    pub(super) fn grace(&self) -> Duration {
        self.input.session.transport.grace_period
    }

    /// Returns the error for a guest that does not report the end within `time`.
    pub(super) fn no_answer(&self, time: Duration) -> SessionError {
        self.operation().no_answer(time)
    }

    /// Returns the end of the command, after its output has ended.
    pub(crate) fn ended(&self) -> Result<CommandEnd, SessionError> {
        match self.state {
            ExecutionState::Ended(ended) => Ok(ended),
            ExecutionState::Runs | ExecutionState::Failed => {
                Err(self.operation().lost("its stream has failed before"))
            }
        }
    }

    fn operation(&self) -> Operation<'_> {
        Operation { verb: "watch the command", object: &self.program }
    }

    /// Takes one event. Returns output, or `None` for an event that at most changes the state.
    async fn event(&mut self) -> Result<Option<Chunk>, SessionError> {
        let event = match self.message().await {
            Err(SessionError::Refused { code: Code::DeadlineExceeded, .. }) => {
                self.end(&EndEvent::default(), true);
                return Ok(None);
            }
            event => event?
                .ok_or_else(|| self.operation().lost("the stream ended before the command"))?,
        };
        let (stream, bytes) = match event {
            ProcessEvent::Data(DataEvent::Stdout(bytes)) => (Stream::Stdout, bytes),
            ProcessEvent::Data(DataEvent::Stderr(bytes)) => (Stream::Stderr, bytes),
            ProcessEvent::Data(DataEvent::Pty(bytes)) => (Stream::Terminal, bytes),
            ProcessEvent::Keepalive(_) => return Ok(None),
            ProcessEvent::Start(_) => {
                return Err(self.operation().invalid_answer("it starts a second time"));
            }
            ProcessEvent::End(end) => {
                // The end of the stream itself says whether the deadline ended the command. Without
                // a deadline, there is nothing to find out.
                let timed_out = !end.exited && self.deadline.is_some() && {
                    let rest = self.message().await;
                    matches!(rest, Err(SessionError::Refused { code: Code::DeadlineExceeded, .. }))
                };
                self.messages.finish();
                self.end(&end, timed_out);
                return Ok(None);
            }
        };
        Ok(Some(Chunk { stream, bytes: bytes.0 }))
    }

    async fn message(&mut self) -> Result<Option<ProcessEvent>, SessionError> {
        let operation = Operation { verb: "watch the command", object: &self.program };
        let next = await_until(self.deadline, self.messages.next(operation)).await;
        let message: Option<EventMessage> =
            next.unwrap_or_else(|| Err(operation.no_answer(self.started_at.elapsed())))?;
        Ok(message.map(|message| message.event))
    }

    fn end(&mut self, end: &EndEvent, timed_out: bool) {
        self.state = ExecutionState::Ended(CommandEnd::from_event(
            end,
            timed_out,
            self.started_at.elapsed(),
        ));
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        if self.owned && !matches!(self.state, ExecutionState::Ended(_)) {
            let input = self.input();
            // An error means that the command has ended meanwhile, so nothing is left to do.
            self.runtime.spawn(async move { input.kill().await });
        }
    }
}

/// Awaits a future up to a deadline, if there is one. Returns `None` at the deadline.
async fn await_until<T>(deadline: Option<Instant>, awaited: impl Future<Output = T>) -> Option<T> {
    match deadline {
        Some(deadline) => timeout_at(deadline.into(), awaited).await.ok(),
        None => Some(awaited.await),
    }
}

/// A command that is being started. If this future is dropped, a background task waits for the
/// start and then ends the command.
struct StartingExecution {
    future: Option<BoxFuture<'static, Result<Execution, SessionError>>>,
    runtime: Handle,
}

impl Future for StartingExecution {
    type Output = Result<Execution, SessionError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let future = self.future.as_mut().expect("nobody polls a future that is over");
        let polled = future.as_mut().poll(context);
        if polled.is_ready() {
            self.future = None;
        }
        polled
    }
}

impl Drop for StartingExecution {
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            // The future has its own deadlines. The command that it starts is dropped, and so
            // ended.
            self.runtime.spawn(async move { drop(future.await) });
        }
    }
}

/// Converts a guest's refusal to start a command into a specific error.
fn map_start_error(error: SessionError, program: &str) -> SessionError {
    let program = program.to_owned();
    match error {
        SessionError::Refused { code: Code::NotFound, .. } => SessionError::NotFound { program },
        SessionError::Refused { code: Code::PermissionDenied, .. } => {
            SessionError::NotExecutable { program }
        }
        error => error,
    }
}

fn convert_usage(report: UsageReport) -> RunUsage {
    RunUsage {
        cpu_seconds: Duration::from_micros(u64::try_from(report.cpu_micros).unwrap_or(0))
            .as_secs_f64(),
        max_rss: u64::try_from(report.max_rss).unwrap_or(0),
    }
}
