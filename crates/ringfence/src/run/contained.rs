//! Runs one command in a sandbox of its own, on a backend that cannot run it as a process tree:
//! starts a sandbox for the command, and stops the sandbox after it.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use ringfence_core::ExecutionResult;
use tokio::io::Interest;

use crate::caller::attached::{AttachedStreams, exec_attached};
use crate::engine::Core;
use crate::run::Attached;
use crate::run::plan::PlannedRun;
use crate::run::readiness;
use crate::run::result::status;
use crate::run::supervise::Listener;
use crate::session::Exec;
use crate::{Command, Engine, Interruption, RunError, Sandbox, StartRequest, Stopped};

/// Runs a command with the caller's own streams and terminal.
pub(crate) fn run_attached(
    core: &Arc<Core>,
    context: PlannedRun,
    command: &Command,
    passed: &[(i32, OwnedFd)],
) -> Result<Attached, RunError> {
    refuse(passed)?;
    // Threads of the runtime inherit the signal mask of this thread. A thread that blocked fewer
    // signals would let a signal end the process before the sandbox is removed.
    let interruption = Interruption::take().map_err(|source| RunError::Watch { source })?;
    let result = block_on(async {
        let is_up = Cell::new(false);
        let run = scoped(core, context, async |sandbox: &Sandbox| {
            is_up.set(true);
            let streams = AttachedStreams::for_this_process();
            let mut exec = exec(core, sandbox, command)?;
            exec.terminal = streams.terminal();
            let before = sandbox.observe();
            let ended = exec_attached(sandbox, exec, streams).await?;
            Ok(before.result(ended))
        });
        // A command that runs gets the signal, and `scoped` stops the sandbox.
        let cancelled_before = async {
            interruption.awaited().await;
            if is_up.get() {
                std::future::pending().await
            }
        };
        tokio::select! {
            result = run => result,
            () = cancelled_before => Err(RunError::Killed),
        }
    })?;
    Ok(Attached { status: status(&result), result })
}

/// Runs a command with no input and with captured output. Ends the command when `cancel` becomes
/// readable, or closes.
pub(crate) fn run_captured(
    core: &Arc<Core>,
    context: PlannedRun,
    command: &Command,
    passed: &[(i32, OwnedFd)],
    cancel: Option<BorrowedFd<'_>>,
    on_output: Option<Listener<'_>>,
) -> Result<ExecutionResult, RunError> {
    refuse(passed)?;
    block_on(async {
        let cancel = cancel.and_then(|cancel| readiness::watch(cancel, Interest::READABLE).ok());
        let cancelled = async || match &cancel {
            Some(cancel) => drop(cancel.readable().await),
            None => std::future::pending().await,
        };
        let is_up = Cell::new(false);
        let run = scoped(core, context, async |sandbox| {
            is_up.set(true);
            let exec = exec(core, sandbox, command)?;
            let mut on_output = on_output;
            let told = |stream, bytes: &[u8]| {
                if let Some(on_output) = &mut on_output {
                    on_output(stream, bytes);
                }
            };
            Ok(sandbox.capture_with(exec, cancelled(), told).await?)
        });
        // A sandbox that is up is stopped by `scoped`, so wait for that.
        let cancelled_before = async {
            cancelled().await;
            if is_up.get() {
                std::future::pending().await
            }
        };
        tokio::select! {
            result = run => result,
            () = cancelled_before => Err(RunError::Killed),
        }
    })
}

/// Runs a command in a nameless sandbox for a run that has a plan, and stops the sandbox.
///
/// Processes that the command left in the background can plant something until the sandbox has
/// ended. So the paths in the result are those that are found after that, and an error names them,
/// too.
async fn scoped(
    core: &Arc<Core>,
    context: PlannedRun,
    used: impl AsyncFnOnce(&Sandbox) -> Result<ExecutionResult, RunError>,
) -> Result<ExecutionResult, RunError> {
    let engine = Engine { core: Arc::clone(core) };
    let container = core.settings.container.clone();
    let spec = StartRequest { container, ..StartRequest::new(context.plan.policy.clone()) };
    let (outcome, Stopped { planted, workspace }) =
        engine.scoped_for_run(spec, context, used).await?;
    match outcome {
        Ok(mut result) => {
            result.meta.planted = planted;
            result.meta.workspace = workspace.map(Box::new);
            Ok(result)
        }
        Err(error) => Err(error.with_planted(planted)),
    }
}

fn block_on<T>(future: impl Future<Output = Result<T, RunError>>) -> Result<T, RunError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|source| RunError::Watch { source })?.block_on(future)
}

/// Fails if descriptors are to be passed, because a container engine passes none.
fn refuse(passed: &[(i32, OwnedFd)]) -> Result<(), RunError> {
    match passed.first() {
        None => Ok(()),
        Some((number, _)) => Err(RunError::Setup {
            step: format!("pass descriptor {number} to a container"),
            source: io::Error::other("a container engine starts it, and takes none"),
        }),
    }
}

/// Converts a command to the form that the guest expects.
pub(crate) fn exec(core: &Core, sandbox: &Sandbox, command: &Command) -> Result<Exec, RunError> {
    let mut words = command.text()?.into_iter();
    let program = words.next().expect("a command has a program");
    let manifest = sandbox.manifest();
    let start = command.starting_directory(&core.settings.host, &manifest.workspace);
    let directory: PathBuf = match start.strip_prefix(&manifest.workspace) {
        Ok(rest) => manifest.workspace_inside.join(rest),
        Err(_) => manifest.workspace_inside.clone(),
    };
    let mut exec = Exec::new(program).arguments(words).directory(directory.to_string_lossy());
    if let Some(time) = manifest.limits.time {
        exec = exec.time(time.duration());
    }
    Ok(exec)
}
