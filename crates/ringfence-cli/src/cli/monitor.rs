//! The process that keeps a sandbox: it starts it, answers its caller, and waits for the end.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use ringfence::{Engine, Preset, Sandbox, Settings, Spec, ssh};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::attach::block_on;
use super::fetch::fetch;
use crate::keeper::{Answer, tell};
use crate::report::Failure;

/// How long a start that nobody wants any more may take: only what was started can be stopped.
const PATIENCE: Duration = Duration::from_secs(20);

/// Starts what is asked for, and keeps it.
pub(super) fn run(asked: impl FnOnce() -> Result<(Settings, Spec), Failure>) -> ExitCode {
    // Whoever reads from a pipe that the caller happens to have open is not to wait for it. Nothing was opened yet.
    let _ = ringfence::close_range(3, u32::MAX);
    // No terminal's signals are meant for it. It fails only where that is so already, setsid(2).
    let _ = rustix::process::setsid();
    let kept = asked().and_then(|(mut settings, spec)| {
        settings.is_monitor = true;
        block_on(keep(&Engine::in_this_process(settings), spec))
    });
    match kept {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = tell(&Answer::Failed(failure.into())); // then nobody wants to know
            ExitCode::FAILURE
        }
    }
}

async fn keep(engine: &Engine, spec: Spec) -> Result<(), Failure> {
    let mut ends = Ends::listen()?;
    let mut starting = pin!(start(engine, spec));
    let sandbox = tokio::select! {
        started = &mut starting => started?,
        _ = ends.signalled() => {
            if let Ok(Ok(sandbox)) = tokio::time::timeout(PATIENCE, starting).await && is_ours(&sandbox) {
                sandbox.stop().await?;
            }
            return Ok(());
        }
    };
    let is_new = is_ours(&sandbox);
    let listener = if is_new && is_for_people(&sandbox) { ssh::listen(&sandbox).await.ok() } else { None };
    // A caller that was killed meanwhile has left a sandbox that is up, and is found by its name.
    let _ = tell(&Answer::Ready { manifest: Box::new(sandbox.manifest().clone()), is_new });
    if !is_new {
        return Ok(());
    }
    let_go(&sandbox.log());
    let host = &engine.settings().host;
    let carried = async {
        if let Some(listener) = listener {
            ssh::serve(&sandbox, host, listener).await;
        }
        std::future::pending::<()>().await
    };
    let has_ended = tokio::select! {
        () = sandbox.ended() => true,
        _ = ends.signalled() => false,
        () = carried => false,
    };
    ssh::forget(host, &sandbox.manifest().name);
    if has_ended {
        return Ok(());
    }
    if let Err(error) = sandbox.stop().await {
        tracing::error!(error = ringfence::chain(&error), "the sandbox was not stopped");
    }
    Ok(())
}

/// Whether a sandbox is one that people work in, so that a port of the host leads to its sshd.
fn is_for_people(sandbox: &Sandbox) -> bool {
    sandbox.manifest().container.as_ref().is_some_and(|container| container.spec.preset == Preset::Dev)
}

async fn start(engine: &Engine, mut spec: Spec) -> Result<Sandbox, Failure> {
    fetch(engine.settings(), &mut spec).await?;
    Ok(engine.start(spec).await?)
}

/// Whether it is this process that keeps a sandbox.
fn is_ours(sandbox: &Sandbox) -> bool {
    u32::try_from(sandbox.manifest().owner.pid).is_ok_and(|pid| pid == std::process::id())
}

/// Signals that ask a process to end.
pub(super) struct Ends([Signal; 3]);

impl Ends {
    pub(super) fn listen() -> Result<Ends, Failure> {
        let cannot =
            |error: io::Error| Failure::failed(format!("cannot listen for signals: {error}"), "ringfence doctor");
        let listen = |kind| signal(kind).map_err(cannot);
        let (terminate, interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
        Ok(Ends([terminate, interrupt, listen(SignalKind::hangup())?]))
    }

    /// Waits for one, and says which.
    pub(super) async fn signalled(&mut self) -> SignalKind {
        let [terminate, interrupt, hang_up] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => SignalKind::terminate(),
            _ = interrupt.recv() => SignalKind::interrupt(),
            _ = hang_up.recv() => SignalKind::hangup(),
        }
    }
}

/// Lets go of all that belongs to the caller: its directory and its streams. What is still to be said goes to the log.
fn let_go(log: &Path) {
    // Each may fail without harm: the sandbox stays all the same.
    let _ = std::env::set_current_dir("/");
    if let Ok(null) = fs_err::OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(null.as_fd());
        let _ = rustix::stdio::dup2_stdout(null.as_fd());
        let log = fs_err::OpenOptions::new().append(true).open(log);
        let _ = rustix::stdio::dup2_stderr(log.as_ref().map_or(null.as_fd(), AsFd::as_fd));
    }
}
