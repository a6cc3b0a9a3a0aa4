//! Commands in a sandbox: one that runs.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use ringfence_core::result::Usage;
use ringfence_proto::code::Code;
use ringfence_proto::process::{
    DataEvent, EndEvent, EventMessage, OneProcess, ProcessEvent, ProcessSelector, UsageReport,
};
use tokio::runtime::Handle;
use tokio::time::{timeout, timeout_at};

use super::error::What;
use super::messages::Messages;
use super::{Exec, ExecutionInput, Session, SessionError, signal};
use crate::{Chunk, Stream};

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Ended {
    /// What it exited with; absent when a signal ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether its time was up.
    pub timed_out: bool,
    /// From the request to the news of its end.
    pub duration: Duration,
    /// What it used, as far as the guest tells.
    pub usage: Usage,
}

impl Ended {
    /// What a guest tells of the end of a command, which took so long.
    pub fn of(end: &EndEvent, timed_out: bool, duration: Duration) -> Ended {
        let signal = match end.status.strip_prefix("signal: ") {
            Some(words) => signal::named(words),
            None if timed_out => Some(signal::KILL),
            None => None,
        };
        Ended {
            exit_code: end.exited.then_some(end.exit_code),
            signal: if end.exited { None } else { signal },
            timed_out,
            duration,
            usage: end.usage.map(used).unwrap_or_default(),
        }
    }

    /// The end of something that was never begun.
    pub(crate) fn never_begun() -> Ended {
        let (duration, usage) = (Duration::ZERO, Usage::default());
        Ended { exit_code: None, signal: None, timed_out: false, duration, usage }
    }

    /// Whether it exited with 0 in time.
    pub fn ok(&self) -> bool {
        self.exit_code == Some(0) && !self.timed_out
    }
}

/// A command that runs in a sandbox.
///
/// Dropping it ends the command and all that it started, unless it has ended, or was found by
/// [`Session::reconnect`]. [`Execution::detach`] lets it run. The ending is done by a task of the runtime that the
/// command was started on: a program that stops its runtime at once should wait for [`ExecutionInput::kill`] instead.
#[derive(Debug)]
pub struct Execution {
    input: ExecutionInput,
    program: String,
    messages: Messages,
    state: State,
    begun: Instant,
    /// When the guest must have told of its end.
    deadline: Option<Instant>,
    owned: bool,
    runtime: Handle,
}

#[derive(Debug)]
enum State {
    Runs,
    Ended(Ended),
    /// The stream failed, and whoever read it was told.
    LostSight,
}

impl Execution {
    /// Starts a command. When the future is dropped, the command is ended.
    pub(super) async fn start(session: Session, exec: &Exec) -> Result<Execution, SessionError> {
        let (request, time) = (exec.request(), exec.time);
        let (program, terminal) = (exec.program.clone(), exec.terminal.is_some());
        let starting = Box::pin(async move {
            let begun = Instant::now();
            let what = What { verb: "start", of: &program };
            let transport = session.transport.clone();
            let deadline = time.and_then(|time| begun.checked_add(time)?.checked_add(transport.grace));
            let opening = async {
                let messages = Messages::open(transport, what, "/process.Process/Start", &request, time).await?;
                Execution::of(session, messages, what, OnceLock::from(terminal), begun, time).await
            };
            // A guest that only ever says that it is alive must not outlast the command's own time.
            let execution = until(deadline, opening).await.unwrap_or_else(|| Err(what.silent(begun.elapsed())));
            let mut execution = execution.map_err(|error| why_not_started(error, &program))?;
            execution.owned = true;
            execution.deadline = deadline;
            Ok(execution)
        });
        Starting { future: Some(starting), runtime: Handle::current() }.await
    }

    /// Looks at a command that runs already.
    pub(super) async fn find(session: Session, pid: u32) -> Result<Execution, SessionError> {
        let begun = Instant::now();
        let name = pid.to_string();
        let what = What { verb: "reconnect to the command", of: &name };
        let question = OneProcess { process: ProcessSelector::Pid(pid) };
        let transport = session.transport.clone();
        let messages = Messages::open(transport, what, "/process.Process/Connect", &question, None).await?;
        Execution::of(session, messages, what, OnceLock::new(), begun, None).await
    }

    async fn of(
        session: Session,
        mut messages: Messages,
        what: What<'_>,
        terminal: OnceLock<bool>,
        begun: Instant,
        time: Option<Duration>,
    ) -> Result<Execution, SessionError> {
        let begins = async {
            loop {
                let message = match messages.next(what).await {
                    // Not every deadline is the command's own.
                    Err(SessionError::Refused { code: Code::DeadlineExceeded, .. })
                        if time.is_some_and(|time| begun.elapsed() >= time) =>
                    {
                        return Ok(None);
                    }
                    message => message?,
                };
                match message.map(|EventMessage { event }| event) {
                    Some(ProcessEvent::Start(start)) => return Ok(Some(start.pid)),
                    Some(ProcessEvent::Keepalive(_)) => {} // not for ever: it says nothing
                    Some(ProcessEvent::Data(_) | ProcessEvent::End(_)) | None => {
                        return Err(what.nonsense("it does not begin with the command's start"));
                    }
                }
            }
        };
        let patience = session.transport.patience;
        let begun_as = timeout(patience, begins).await.unwrap_or_else(|_| Err(what.silent(patience)))?;
        let state = match begun_as {
            Some(_) => State::Runs,
            None => State::Ended(Ended::of(&EndEvent::default(), true, begun.elapsed())),
        };
        let pid = begun_as.unwrap_or_default();
        Ok(Execution {
            input: ExecutionInput { session, pid, terminal: Arc::new(terminal) },
            program: what.of.to_owned(),
            messages,
            state,
            begun,
            deadline: None,
            owned: false,
            runtime: Handle::current(),
        })
    }

    /// Its process id, inside the sandbox; 0 when its time was up before it began.
    pub fn pid(&self) -> u32 {
        self.input.pid
    }

    /// What reaches the command: input, signals, the size of its terminal.
    pub fn input(&self) -> ExecutionInput {
        self.input.clone()
    }

    /// Lets the command run, and gives its process id. What it writes from now on waits for [`Session::reconnect`].
    pub fn detach(mut self) -> u32 {
        self.owned = false;
        self.pid()
    }

    /// Has the command outlive this.
    pub(crate) fn let_run(&mut self) {
        self.owned = false;
    }

    /// Has the command end when this is dropped.
    pub(crate) fn own(&mut self) {
        self.owned = true;
    }

    /// The next piece of output; none when the command has ended, or after an error. Nothing is lost when the future is
    /// dropped. A command whose output is not read waits, once the buffers on the way are full.
    pub async fn next(&mut self) -> Option<Result<Chunk, SessionError>> {
        while let State::Runs = self.state {
            match self.event().await {
                Ok(Some(chunk)) => return Some(Ok(chunk)),
                Ok(None) => {}
                Err(error) => {
                    self.state = State::LostSight;
                    return Some(Err(error));
                }
            }
        }
        None
    }

    /// Waits for the command's end. Output that was not read is thrown away.
    pub async fn wait(mut self) -> Result<Ended, SessionError> {
        while let Some(chunk) = self.next().await {
            chunk?;
        }
        self.ended()
    }

    /// How long after its time a guest may take to tell of its end.
    pub(super) fn grace(&self) -> Duration {
        self.input.session.transport.grace
    }

    /// What is told when a guest does not tell of its end.
    pub(super) fn silent(&self, time: Duration) -> SessionError {
        self.what().silent(time)
    }

    /// How it ended, after its output came to an end.
    pub(crate) fn ended(&self) -> Result<Ended, SessionError> {
        match self.state {
            State::Ended(ended) => Ok(ended),
            State::Runs | State::LostSight => Err(self.what().lost("its stream has failed before")),
        }
    }

    fn what(&self) -> What<'_> {
        What { verb: "watch the command", of: &self.program }
    }

    /// Takes one event: output, or something that at most changes the state.
    async fn event(&mut self) -> Result<Option<Chunk>, SessionError> {
        let event = match self.message().await {
            Err(SessionError::Refused { code: Code::DeadlineExceeded, .. }) => {
                self.end(&EndEvent::default(), true);
                return Ok(None);
            }
            event => event?.ok_or_else(|| self.what().lost("the stream ended before the command"))?,
        };
        let (stream, bytes) = match event {
            ProcessEvent::Data(DataEvent::Stdout(bytes)) => (Stream::Stdout, bytes),
            ProcessEvent::Data(DataEvent::Stderr(bytes)) => (Stream::Stderr, bytes),
            ProcessEvent::Data(DataEvent::Pty(bytes)) => (Stream::Terminal, bytes),
            ProcessEvent::Keepalive(_) => return Ok(None),
            ProcessEvent::Start(_) => return Err(self.what().nonsense("it starts a second time")),
            ProcessEvent::End(end) => {
                // How the stream itself ends tells whether it was the deadline; without one there is nothing to tell.
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
        let what = What { verb: "watch the command", of: &self.program };
        let next = until(self.deadline, self.messages.next(what)).await;
        let message: Option<EventMessage> = next.unwrap_or_else(|| Err(what.silent(self.begun.elapsed())))?;
        Ok(message.map(|message| message.event))
    }

    fn end(&mut self, end: &EndEvent, timed_out: bool) {
        self.state = State::Ended(Ended::of(end, timed_out, self.begun.elapsed()));
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        if self.owned && !matches!(self.state, State::Ended(_)) {
            let input = self.input();
            // It may have ended meanwhile: then nothing is to be done.
            self.runtime.spawn(async move { input.kill().await });
        }
    }
}

/// What comes of something before a deadline, if there is one.
async fn until<T>(deadline: Option<Instant>, awaited: impl Future<Output = T>) -> Option<T> {
    match deadline {
        Some(deadline) => timeout_at(deadline.into(), awaited).await.ok(),
        None => Some(awaited.await),
    }
}

/// A command on its way. When nobody waits for it any more, it is waited for in the background, and ended.
struct Starting {
    future: Option<BoxFuture<'static, Result<Execution, SessionError>>>,
    runtime: Handle,
}

impl Future for Starting {
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

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            // It has its own deadlines. What it starts is dropped, and so ended.
            self.runtime.spawn(async move { drop(future.await) });
        }
    }
}

/// What a guest's refusal to start a command means.
fn why_not_started(error: SessionError, program: &str) -> SessionError {
    let program = program.to_owned();
    match error {
        SessionError::Refused { code: Code::NotFound, .. } => SessionError::NotFound { program },
        SessionError::Refused { code: Code::PermissionDenied, .. } => SessionError::NotExecutable { program },
        error => error,
    }
}

fn used(report: UsageReport) -> Usage {
    Usage {
        cpu_seconds: Duration::from_micros(u64::try_from(report.cpu_micros).unwrap_or(0)).as_secs_f64(),
        max_rss: u64::try_from(report.max_rss).unwrap_or(0),
    }
}
