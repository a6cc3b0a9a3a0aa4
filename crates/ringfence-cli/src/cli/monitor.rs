//! The monitor: the process that keeps a sandbox. It starts the sandbox, answers its caller, and
//! waits for the end.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use ringfence::monitor::{MonitorAnswer, MonitorRequest, send_answer};
use ringfence::{Engine, Host, Preset, Sandbox, StartRequest, ssh};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::attach::block_on;
use super::fetch::fetch;
use super::sync::sync_listener;
use crate::report::{Failure, listen};

/// Maximum time to wait for a start that was interrupted, because a sandbox can be stopped only
/// after its start.
const INTERRUPTED_START_TIMEOUT: Duration = Duration::from_secs(20);

/// Starts the sandbox of the request on standard input, and keeps it.
pub(super) fn run(host: Host) -> ExitCode {
    // Close descriptors that the caller had open, so that no reader of such a pipe waits for this
    // process. This process has not opened any descriptor yet.
    let _ = ringfence::close_range(3, u32::MAX);
    // Leave the session of the caller, so that signals of its terminal do not reach this process.
    // setsid(2) fails only if the process already leads a session.
    let _ = rustix::process::setsid();
    match start_and_keep(host) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // The send fails only if the caller is gone.
            let _ = send_answer(&MonitorAnswer::Failed(failure.into()));
            ExitCode::FAILURE
        }
    }
}

fn start_and_keep(host: Host) -> Result<(), Failure> {
    let request = MonitorRequest::receive().map_err(|_| {
        Failure::usage(
            "cannot read the request for a sandbox: only ringfence itself starts a monitor",
            "ringfence up",
        )
    })?;
    listen(request.verbosity, host.text("RINGFENCE_LOG"))?;
    let (mut settings, request) = request.into_parts(host);
    settings.on_sync = Some(sync_listener());
    block_on(keep(&Engine::in_this_process(settings), request))
}

async fn keep(engine: &Engine, request: StartRequest) -> Result<(), Failure> {
    let mut ends = EndSignals::listen()?;
    let mut starting = pin!(start(engine, request));
    let sandbox = tokio::select! {
        started = &mut starting => started?,
        _ = ends.signalled() => {
            if let Ok(Ok(sandbox)) =
                tokio::time::timeout(INTERRUPTED_START_TIMEOUT, starting).await
                && is_ours(&sandbox)
            {
                sandbox.stop().await?;
            }
            return Ok(());
        }
    };
    let is_new = is_ours(&sandbox);
    let listener =
        if is_new && is_for_people(&sandbox) { ssh::listen(&sandbox).await.ok() } else { None };
    // If the caller was killed meanwhile, the sandbox stays up and can be found by its name.
    let _ = send_answer(&MonitorAnswer::Ready {
        manifest: Box::new(sandbox.manifest().clone()),
        is_new,
    });
    if !is_new {
        return Ok(());
    }
    detach(&sandbox.log());
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
        tracing::error!(error = ringfence::chain(&error), "cannot stop the sandbox");
    }
    Ok(())
}

/// Returns whether people work in a sandbox, so that a port of the host leads to its sshd.
fn is_for_people(sandbox: &Sandbox) -> bool {
    sandbox
        .manifest()
        .container
        .as_ref()
        .is_some_and(|container| container.spec.preset == Preset::Dev)
}

async fn start(engine: &Engine, mut request: StartRequest) -> Result<Sandbox, Failure> {
    fetch(engine.settings(), &mut request).await?;
    Ok(engine.start(request).await?)
}

/// Returns whether this process keeps a sandbox.
fn is_ours(sandbox: &Sandbox) -> bool {
    u32::try_from(sandbox.manifest().owner.pid).is_ok_and(|pid| pid == std::process::id())
}

/// Signals that ask a process to end.
pub(super) struct EndSignals([Signal; 3]);

impl EndSignals {
    pub(super) fn listen() -> Result<EndSignals, Failure> {
        let cannot = |error: io::Error| {
            Failure::failed(format!("cannot listen for signals: {error}"), "ringfence doctor")
        };
        let listen = |kind| signal(kind).map_err(cannot);
        let (terminate, interrupt) =
            (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
        Ok(EndSignals([terminate, interrupt, listen(SignalKind::hangup())?]))
    }

    /// Waits for a signal, and returns its kind.
    pub(super) async fn signalled(&mut self) -> SignalKind {
        let [terminate, interrupt, hang_up] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => SignalKind::terminate(),
            _ = interrupt.recv() => SignalKind::interrupt(),
            _ = hang_up.recv() => SignalKind::hangup(),
        }
    }
}

/// Releases the directory and the standard streams of the caller. Later messages go to the log.
fn detach(log: &Path) {
    // Each of these calls may fail without harm, because the sandbox stays in any case.
    let _ = std::env::set_current_dir("/");
    if let Ok(null) = fs_err::OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(null.as_fd());
        let _ = rustix::stdio::dup2_stdout(null.as_fd());
        let log = fs_err::OpenOptions::new().append(true).open(log);
        let _ = rustix::stdio::dup2_stderr(log.as_ref().map_or(null.as_fd(), AsFd::as_fd));
    }
}
