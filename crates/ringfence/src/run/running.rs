//! One running command, for a program that waits for it asynchronously.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence_core::{ExecutionResult, Policy};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::sync::{mpsc, oneshot};

use crate::engine::Core;
use crate::run::contained;
use crate::run::prepare::{Purpose, RunRoute};
use crate::run::supervise::{Listener, Stream};
use crate::{Command, RunError};

/// Number of chunks that may wait for a reader before the command has to wait.
const WAITING_CHUNKS: usize = 64;

/// A piece of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// The stream to which the bytes were written.
    pub stream: Stream,
    /// The bytes that were written.
    pub bytes: Vec<u8>,
}

/// One command that runs in a sandbox of its own. Dropping this value ends every process of the
/// run.
#[derive(Debug)]
pub struct Running {
    chunks: mpsc::Receiver<Chunk>,
    result: oneshot::Receiver<Result<ExecutionResult, RunError>>,
    /// Pipe whose closing ends the run.
    lifeline: Option<OwnedFd>,
}

impl Running {
    pub(crate) fn spawn(core: Arc<Core>, policy: Policy, command: Command) -> Running {
        Running::spawn_keeping(core, policy, command, ())
    }

    /// Spawns a run like [`Running::spawn`], and drops `kept` only after every process of the run
    /// has ended.
    pub(crate) fn spawn_keeping(
        core: Arc<Core>,
        policy: Policy,
        command: Command,
        kept: impl Send + 'static,
    ) -> Running {
        let (sender, chunks) = mpsc::channel(WAITING_CHUNKS);
        let (answer, result) = oneshot::channel();
        let (lifeline, cancel) = match pipe_with(PipeFlags::CLOEXEC) {
            Ok((cancel, lifeline)) => (Some(lifeline), cancel),
            Err(error) => {
                // This cannot fail, because we hold the receiver.
                let _ = answer.send(Err(RunError::Watch { source: error.into() }));
                return Running { chunks, result, lifeline: None };
            }
        };
        let span = tracing::info_span!("sandbox.run", sandbox.select = tracing::field::Empty);
        std::thread::spawn(move || {
            let _entered = span.enter();
            let outcome = run(&core, &policy, &command, &cancel, &sender, &span);
            drop(kept);
            let _ = answer.send(outcome); // if nobody waits any more, the run was ended
        });
        Running { chunks, result, lifeline }
    }

    /// Returns the next piece of output, or `None` when there will be no more.
    pub async fn next(&mut self) -> Option<Chunk> {
        self.chunks.recv().await
    }

    /// Ends every process of the run.
    pub fn kill(&mut self) {
        self.lifeline = None;
    }

    /// Waits for the end of the command, and returns its result. The result contains the output,
    /// even if it was not read with [`Running::next`].
    pub async fn wait(mut self) -> Result<ExecutionResult, RunError> {
        self.chunks.close();
        (&mut self.result).await.unwrap_or(Err(RunError::Killed))
    }
}

fn run(
    core: &Arc<Core>,
    policy: &Policy,
    command: &Command,
    cancel: &OwnedFd,
    chunks: &mpsc::Sender<Chunk>,
    span: &tracing::Span,
) -> Result<ExecutionResult, RunError> {
    let prepared = core.prepare_run(policy, command, Purpose::Run)?;
    let context = prepared.context();
    span.record("sandbox.select", context.plan.backend.name());
    let deadline = context.time().and_then(|time| Instant::now().checked_add(time));
    let mut on_output = |stream, bytes: &[u8]| {
        let mut chunk = Chunk { stream, bytes: bytes.to_vec() };
        // A slow reader slows down the command. Neither of them delays the deadline or the end of a
        // cancelled run.
        while let Err(mpsc::error::TrySendError::Full(back)) = chunks.try_send(chunk) {
            chunk = back;
            if deadline.is_some_and(|deadline| Instant::now() > deadline) || is_closed(cancel) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let listener = (!chunks.is_closed()).then_some(&mut on_output as Listener<'_>);
    let cancel = Some(cancel.as_fd());
    match prepared {
        RunRoute::Launch(prepared) => {
            core.run_captured(*prepared, command, Vec::new(), cancel, listener)
        }
        RunRoute::Sandbox(context) => {
            contained::run_captured(core, *context, command, &[], cancel, listener)
        }
    }
}

fn is_closed(cancel: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(cancel, PollFlags::IN)];
    poll(&mut fds, Some(&rustix::event::Timespec::default())).is_ok_and(|count| count > 0)
}
