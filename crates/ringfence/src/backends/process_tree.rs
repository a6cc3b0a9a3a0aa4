//! Sandboxes that are process trees of this host, with the guest as their command.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use ringfence_linux::cgroup::Cgroup;
use ringfence_linux::pause::ProcessTree;
use ringfence_linux::{ControlReport, LaunchFiles, TerminalMode, control};
use rustix::fs::{Mode, OFlags};
use rustix::net::RecvFlags;
use rustix::pipe::PipeFlags;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::unix::pipe;

use super::facets::{KeptSandbox, PauseControl, PortRoute, SandboxFacets, WorkspaceSource};
use super::instance::{HostView, SandboxInstance, StopError};
use super::{BackendStart, ProcessLaunch, StartedSandbox};
use crate::run::launch::LaunchedRun;
use crate::run::prepare::PreparedRun;
use crate::run::readiness::{self, ProcessEnd};
use crate::sandbox::directory::{Name, NetworkReach, channel_in};
use crate::sandbox::pause::PauseError;
use crate::session::{GUEST_SOCKET, UnixConnector, listen_in};
use crate::{Command, ResolvedWorkspace, RunError, StartError};

/// Number of the descriptor that is the guest's listening socket.
const LISTENER_DESCRIPTOR: i32 = 3;
/// Number of the descriptor that is the guest's end of the leash.
const OWNER_DESCRIPTOR: i32 = 4;
/// Number of our own processes in a sandbox that stays, besides its first process: the guest, and
/// the process that forks for it.
const OWN_PROCESSES: u32 = 2;
/// Number of bytes of the guest's output that are kept in the sandbox's log.
pub(crate) const MAX_LOG_BYTES: usize = 8 << 20;
/// Number of bytes of the guest's output that are read at once.
const READ_BYTES: usize = 16 << 10;

/// A sandbox that is a process tree of ours, with the guest as its command.
#[derive(Debug)]
pub(super) struct ProcessInstance {
    running: Option<LaunchedRun>,
    /// End of the sandbox's first process.
    end: ProcessEnd,
    /// Our end of the leash. The guest ends when it is closed, even if the processes between the
    /// guest and this process are gone.
    _leash: OwnedFd,
}

/// Starts the guest as the command of a process tree that `backend` confines.
pub(super) async fn start(
    backend: &dyn ProcessLaunch,
    request: BackendStart<'_>,
) -> Result<StartedSandbox, StartError> {
    let instance: Box<dyn SandboxInstance> = Box::new(start_guest(backend, request).await?);
    Ok(StartedSandbox { instance, egress: None, variables: BTreeMap::new() })
}

/// Returns the facets of a sandbox that is a process tree of this host.
pub(super) fn attach(sandbox: KeptSandbox<'_>) -> io::Result<SandboxFacets> {
    let KeptSandbox { manifest, directory } = sandbox;
    let observer = sandbox.read_observer()?;
    let tree = observer.as_ref().and_then(|observer| observer.tree());
    let pause: Arc<dyn PauseControl> = Arc::new(TreePause { name: manifest.name.clone(), tree });
    // An open network is the host's own network.
    let ports = match manifest.network {
        NetworkReach::Host | NetworkReach::Open => PortRoute::ProcessTree,
        NetworkReach::Closed | NetworkReach::Allowed { .. } => PortRoute::Guest,
    };
    Ok(SandboxFacets {
        connector: Arc::new(UnixConnector::for_guest_in(&channel_in(directory))?),
        workspace: WorkspaceSource::HostDir(manifest.workspace.clone()),
        pause: Some(pause),
        observer,
        ports,
    })
}

async fn start_guest(
    backend: &dyn ProcessLaunch,
    request: BackendStart<'_>,
) -> Result<ProcessInstance, RunError> {
    let BackendStart { core, context, sandbox_dir, .. } = request;
    let failed = |what: &'static str| {
        move |source: io::Error| RunError::Setup { step: what.to_owned(), source }
    };
    let listener = listen_in(&sandbox_dir.channel(), GUEST_SOCKET.as_ref())
        .map_err(failed("listen for the guest's callers"))?;
    let log = sandbox_dir.log().map_err(failed("open the sandbox's log"))?;
    let shown = [sandbox_dir.guest.path.clone()];
    let inputs = core.launch_inputs(&context, &shown);
    let ResolvedWorkspace { source, destination, .. } = &context.workspace;
    let start = if backend.shares_paths(&context.plan) { source } else { destination };
    let command = Command::new(&sandbox_dir.guest.path)
        .arguments(["--listener".to_owned(), LISTENER_DESCRIPTOR.to_string()])
        .arguments(["--owner".to_owned(), OWNER_DESCRIPTOR.to_string()])
        .argument("--directory")
        .argument(start)
        .directory(source);
    let mut preparation = backend.prepare(&inputs, &command)?;
    preparation.own_processes += OWN_PROCESSES;
    let (owner, leash) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)
        .map_err(|error| failed("make the leash")(error.into()))?;
    let (files, output) =
        guest_files(listener, owner).map_err(failed("make the guest's streams"))?;
    // The first process gets no deadline, because a lease can be renewed, and the sandbox ends
    // with its keeper anyway.
    let running =
        core.launch(PreparedRun { context, preparation }, files, TerminalMode::Detached, None)?;
    tokio::spawn(keep_log(output, log));
    let instance =
        ProcessInstance::new(running, leash).map_err(|source| RunError::Watch { source })?;
    instance.started().await?;
    Ok(instance)
}

/// Makes the guest's descriptors: no input, a pipe for its output, the listening socket, and its
/// end of the leash. The guest does not get the log itself: a process that can look at the guest's
/// descriptors could open the log again through them, proc(5), and truncate it or fill the disk.
fn guest_files(listener: OwnedFd, owner: OwnedFd) -> io::Result<(LaunchFiles, pipe::Receiver)> {
    let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let copy = writer.try_clone()?;
    let stdio = [Some(null), Some(writer), Some(copy)];
    let files = LaunchFiles {
        stdio,
        terminal: None,
        gate: None,
        passed: vec![(LISTENER_DESCRIPTOR, listener), (OWNER_DESCRIPTOR, owner)],
    };
    Ok((files, pipe::Receiver::from_owned_fd(reader)?))
}

/// Appends the guest's output to the sandbox's log, until the guest ends or the log is long enough.
async fn keep_log(mut output: pipe::Receiver, mut log: fs_err::File) {
    let (mut buffer, mut left) = (vec![0; READ_BYTES], MAX_LOG_BYTES);
    while let Ok(length @ 1..) = output.read(&mut buffer[..READ_BYTES.min(left)]).await {
        left -= length;
        if log.write_all(&buffer[..length]).is_err() {
            return; // the disk is full; the guest continues without a log
        }
    }
}

impl ProcessInstance {
    pub(super) fn new(running: LaunchedRun, leash: OwnedFd) -> io::Result<ProcessInstance> {
        let end = ProcessEnd::for_process(running.started.launched.pidfd.try_clone()?)?;
        Ok(ProcessInstance { running: Some(running), end, _leash: leash })
    }

    /// Waits until the guest's program was executed.
    pub(super) async fn started(&self) -> Result<(), RunError> {
        let lost = |source| RunError::Watch { source };
        let running = self.running.as_ref().expect("it is taken only when it is stopped");
        let control =
            readiness::watch(running.started.control.as_fd(), Interest::READABLE).map_err(lost)?;
        loop {
            let mut ready = control.readable().await.map_err(lost)?;
            return match control::receive(&running.started.control, RecvFlags::DONTWAIT) {
                Ok(Some(ControlReport::Started { .. })) => Ok(()),
                Ok(Some(ControlReport::SetupFailed { step, errno })) => {
                    Err(RunError::Setup { step, source: io::Error::from_raw_os_error(errno) })
                }
                Ok(Some(ControlReport::ExecFailed { errno })) => Err(RunError::NotExecutable {
                    program: "ringfence-guest".to_owned(),
                    source: io::Error::from_raw_os_error(errno),
                }),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready.clear_ready();
                    continue;
                }
                Ok(_) => Err(RunError::Killed),
                Err(source) => Err(RunError::Watch { source }),
            };
        }
    }
}

impl SandboxInstance for ProcessInstance {
    fn host_view(&self) -> Option<HostView> {
        let running = self.running.as_ref()?;
        Some(HostView {
            oom_counters: running.group.iter().flat_map(Cgroup::oom_counters).collect(),
            tree: ProcessTree::from_pid(running.started.launched.pid),
        })
    }

    fn ended(&self) -> BoxFuture<'static, ()> {
        self.end.awaited()
    }

    fn stop(mut self: Box<Self>) -> BoxFuture<'static, Result<(), StopError>> {
        let running = self.running.take();
        Box::pin(async move {
            let Some(running) = running else { return Ok(()) };
            running.order_end();
            // After a timeout, dropping `running` below continues to wait, and reports nothing.
            let _ = tokio::time::timeout(STOP_TIMEOUT, self.end.awaited()).await;
            drop(running);
            Ok(())
        })
    }
}

/// Longest time that a sandbox may take to end before it is dropped.
const STOP_TIMEOUT: Duration = Duration::from_secs(7);

impl Drop for ProcessInstance {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.order_end();
            // Drop on another thread, because dropping waits for the first process, and the caller
            // must not wait.
            std::thread::spawn(move || drop(running));
        }
    }
}

/// Pauses a process tree by stopping each of its processes.
#[derive(Debug)]
struct TreePause {
    name: Name,
    /// The tree, if its processes are visible from here.
    tree: Option<ProcessTree>,
}

impl TreePause {
    fn tree(&self) -> Result<ProcessTree, PauseError> {
        let unseen = || PauseError::Unseen { name: self.name.clone() };
        let tree = self.tree.ok_or_else(unseen)?;
        match tree.is_alive() {
            Ok(true) => Ok(tree),
            Ok(false) => Err(unseen()),
            Err(source) => Err(PauseError::Unread { name: self.name.clone(), source }),
        }
    }

    /// Runs a function that examines processes, or waits for them, on another thread.
    async fn on_other_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, PauseError> {
        let done = tokio::task::spawn_blocking(work).await;
        done.expect("looking at processes does not panic").map_err(|source| {
            let name = self.name.clone();
            match source.kind() {
                io::ErrorKind::TimedOut => PauseError::Restless { name, source },
                _ => PauseError::Unread { name, source },
            }
        })
    }
}

impl PauseControl for TreePause {
    fn stopped_processes(&self) -> BoxFuture<'_, Result<Vec<i32>, PauseError>> {
        Box::pin(async {
            let tree = self.tree()?;
            self.on_other_thread(move || tree.list_stopped()).await
        })
    }

    fn pause(&self) -> BoxFuture<'_, Result<(), PauseError>> {
        Box::pin(async {
            let tree = self.tree()?;
            self.on_other_thread(move || tree.stop()).await
        })
    }

    fn resume(&self, stopped_before: Vec<i32>) -> BoxFuture<'_, Result<(), PauseError>> {
        Box::pin(async {
            let tree = self.tree()?;
            self.on_other_thread(move || tree.resume(&stopped_before)).await
        })
    }
}
