//! Running sandboxes, as the process that started them holds them.

use std::fmt;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::BoxFuture;
use ringfence_linux::cgroup::Group;
use ringfence_linux::pause::ProcessTree;
use ringfence_linux::{Files, Order, Report, Terminal, control};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::unix::pipe;

use crate::backends::Processes;
use crate::egress::WayOut;
use crate::engine::Core;
use crate::readiness::{self, ProcessEnd};
use crate::ready::{Context, Ready};
use crate::room::{ContainerManifest, Room};
use crate::run::Underway;
use crate::session::SOCKET;
use crate::{Command, ContainerSpec, ResolvedWorkspace, RunError};

/// Number of the descriptor that is the guest's listening socket.
const LISTENER: i32 = 3;
/// Number of the descriptor that is the guest's end of the leash.
const OWNER: i32 = 4;
/// Number of our own processes in a sandbox that stays, besides its first process: the guest, and
/// the process that forks for it.
const OWN_PROCESSES: u32 = 2;
/// Number of bytes of the guest's output that are kept in the sandbox's log.
pub(crate) const LOG_SIZE: usize = 8 << 20;
/// Number of bytes of the guest's output that are read at once.
const LOG_PIECE: usize = 16 << 10;

/// A running sandbox, held by the process that started it. Dropping the value also ends the
/// sandbox, without waiting for the end.
pub(crate) trait Instance: Send + Sync + fmt::Debug {
    /// Waits until the sandbox has ended, by itself or not.
    fn ended(&self) -> BoxFuture<'static, ()>;

    /// Ends every process of the sandbox, and removes the resources that were made for it.
    fn stop(self: Box<Self>) -> BoxFuture<'static, Result<(), StopError>>;

    /// Returns the files in which the kernel counts the processes of the sandbox that it killed for
    /// lack of memory.
    fn oom_counters(&self) -> Vec<PathBuf>;

    /// Returns the process tree of the sandbox, if its processes are visible from here.
    fn tree(&self) -> Option<ProcessTree>;

    /// Returns the way out of the sandbox's network, if no process holds it yet. The way out can be
    /// taken only once.
    fn take_way_out(&mut self) -> Option<WayOut> {
        None
    }

    /// Returns the description for the manifest, if the sandbox is a container.
    fn container(&self) -> Option<ContainerManifest> {
        None
    }
}

/// Reason why a sandbox could not be ended.
#[derive(Debug, thiserror::Error)]
#[error("cannot end the sandbox `{name}`: {why}")]
pub struct StopError {
    /// Name of the sandbox.
    pub name: String,
    /// The step that failed, and its result.
    pub why: String,
    /// The next step for the user.
    pub hint: String,
}

/// A sandbox that is a process tree of ours, with the guest as its command.
#[derive(Debug)]
struct ProcessInstance {
    underway: Option<Underway>,
    /// End of the sandbox's first process.
    end: ProcessEnd,
    /// Our end of the leash. The guest ends when it is closed, even if the processes between the
    /// guest and this process are gone.
    _leash: OwnedFd,
}

impl Core {
    /// Starts the guest as the command of a sandbox, under the plan of `context`.
    pub(crate) async fn start_guest(
        &self,
        backend: &'static dyn Processes,
        context: Context,
        room: &Room,
    ) -> Result<Box<dyn Instance>, RunError> {
        let failed = |what: &'static str| {
            move |source: io::Error| RunError::Setup { step: what.to_owned(), source }
        };
        let listener = listen(&room.channel(), SOCKET.as_ref())
            .map_err(failed("listen for the guest's callers"))?;
        let log = room.log().map_err(failed("open the sandbox's log"))?;
        let shown = [room.guest.path.clone()];
        let container = ContainerSpec::default();
        let site = self.site(&context, &container, &shown);
        let ResolvedWorkspace { source, destination, .. } = &context.workspace;
        let start = if backend.shares_paths(&context.plan) { source } else { destination };
        let command = Command::new(&room.guest.path)
            .arguments(["--listener".to_owned(), LISTENER.to_string()]);
        let command = command.arguments(["--owner".to_owned(), OWNER.to_string()]);
        let command = command.argument("--directory").argument(start).directory(source);
        let mut preparation = backend.prepare(&site, &command)?;
        preparation.own_processes += OWN_PROCESSES;
        let (owner, leash) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)
            .map_err(|error| failed("make the leash")(error.into()))?;
        let (files, said) = streams(listener, owner).map_err(failed("make the guest's streams"))?;
        // The first process gets no deadline, because a lease can be renewed, and the sandbox ends
        // with its keeper anyway.
        let underway =
            self.launch(Ready { context, preparation }, files, Terminal::Detached, None)?;
        tokio::spawn(keep_log(said, log));
        let instance =
            ProcessInstance::of(underway, leash).map_err(|source| RunError::Watch { source })?;
        instance.started().await?;
        Ok(Box::new(instance))
    }
}

/// Listens on a socket in a directory of a room. The socket is bound through a descriptor of the
/// directory, because the path may be too long for a socket address.
pub(crate) fn listen(directory: &Path, name: &Path) -> io::Result<OwnedFd> {
    let directory = rustix::fs::open(
        directory,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let short = Path::new("/proc/self/fd")
        .join(std::os::fd::AsRawFd::as_raw_fd(&directory).to_string())
        .join(name);
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(short)?)?;
    rustix::net::listen(&socket, 1024)?;
    Ok(socket)
}

/// Makes the guest's descriptors: no input, a pipe for its output, the listening socket, and its
/// end of the leash. The guest does not get the log itself: a process that can look at the guest's
/// descriptors could open the log again through them, proc(5), and truncate it or fill the disk.
fn streams(listener: OwnedFd, owner: OwnedFd) -> io::Result<(Files, pipe::Receiver)> {
    let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let (said, output) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let copy = output.try_clone()?;
    let stdio = [Some(null), Some(output), Some(copy)];
    let files = Files {
        stdio,
        terminal: None,
        gate: None,
        passed: vec![(LISTENER, listener), (OWNER, owner)],
    };
    Ok((files, pipe::Receiver::from_owned_fd(said)?))
}

/// Appends the guest's output to the sandbox's log, until the guest ends or the log is long enough.
async fn keep_log(mut said: pipe::Receiver, mut log: fs_err::File) {
    let (mut buffer, mut left) = (vec![0; LOG_PIECE], LOG_SIZE);
    while let Ok(length @ 1..) = said.read(&mut buffer[..LOG_PIECE.min(left)]).await {
        left -= length;
        if log.write_all(&buffer[..length]).is_err() {
            return; // the disk is full; the guest continues without a log
        }
    }
}

impl ProcessInstance {
    fn of(underway: Underway, leash: OwnedFd) -> io::Result<ProcessInstance> {
        let end = ProcessEnd::of(underway.started.launched.pidfd.try_clone()?)?;
        Ok(ProcessInstance { underway: Some(underway), end, _leash: leash })
    }

    /// Waits until the guest's program was executed.
    async fn started(&self) -> Result<(), RunError> {
        let lost = |source| RunError::Watch { source };
        let underway = self.underway.as_ref().expect("it is taken only when it is stopped");
        let control =
            readiness::watch(underway.started.control.as_fd(), Interest::READABLE).map_err(lost)?;
        loop {
            let mut ready = control.readable().await.map_err(lost)?;
            return match control::receive(&underway.started.control, RecvFlags::DONTWAIT) {
                Ok(Some(Report::Started { .. })) => Ok(()),
                Ok(Some(Report::SetupFailed { step, errno })) => {
                    Err(RunError::Setup { step, source: io::Error::from_raw_os_error(errno) })
                }
                Ok(Some(Report::ExecFailed { errno })) => Err(RunError::NotExecutable {
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

/// Tells a process tree to end, without waiting for that. The death of its owner has the same
/// effect.
fn end(underway: &Underway) {
    if let Some(group) = underway.group.as_ref().filter(|_| underway.ends_by_group) {
        let _ = group.kill(); // the first process also kills what it can
    }
    let _ = control::send(&underway.started.control, &Order::End); // the sandbox may have ended
}

impl Instance for ProcessInstance {
    fn oom_counters(&self) -> Vec<PathBuf> {
        let group = self.underway.as_ref().and_then(|underway| underway.group.as_ref());
        group.into_iter().flat_map(Group::oom_counters).collect()
    }

    fn tree(&self) -> Option<ProcessTree> {
        self.underway.as_ref().and_then(|underway| ProcessTree::of(underway.started.launched.pid))
    }

    fn ended(&self) -> BoxFuture<'static, ()> {
        self.end.awaited()
    }

    fn stop(mut self: Box<Self>) -> BoxFuture<'static, Result<(), StopError>> {
        let underway = self.underway.take();
        Box::pin(async move {
            let Some(underway) = underway else { return Ok(()) };
            end(&underway);
            // After a timeout, dropping `underway` below continues to wait, and reports nothing.
            let _ = tokio::time::timeout(PATIENCE, self.end.awaited()).await;
            drop(underway);
            Ok(())
        })
    }
}

/// Longest time that a sandbox may take to end before it is dropped.
const PATIENCE: Duration = Duration::from_secs(7);

impl Drop for ProcessInstance {
    fn drop(&mut self) {
        if let Some(underway) = self.underway.take() {
            end(&underway);
            // Drop on another thread, because dropping waits for the first process, and the caller
            // must not wait.
            std::thread::spawn(move || drop(underway));
        }
    }
}
