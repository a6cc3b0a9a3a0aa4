//! What keeps a sandbox going, on the side that started it.

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

/// The number that the guest's listening socket has for it.
const LISTENER: i32 = 3;
/// The number that its end of the leash has.
const OWNER: i32 = 4;
/// Our own processes in a sandbox that stays, besides its first: the guest, and the one that forks for it.
const OWN_PROCESSES: u32 = 2;
/// How much of what a guest says is kept in the sandbox's log, in bytes.
pub(crate) const LOG_SIZE: usize = 8 << 20;
/// How much of it is read at once.
const LOG_PIECE: usize = 16 << 10;

/// A running sandbox, held by the process that started it. Dropping it ends the sandbox, too, without waiting.
pub(crate) trait Instance: Send + Sync + fmt::Debug {
    /// Waits until the sandbox has ended, by itself or not.
    fn ended(&self) -> BoxFuture<'static, ()>;

    /// Ends every process of the sandbox, and removes what was made for it.
    fn stop(self: Box<Self>) -> BoxFuture<'static, Result<(), StopError>>;

    /// The files in which the kernel counts whom it killed in it for want of memory.
    fn oom_counters(&self) -> Vec<PathBuf>;

    /// Its processes by the first of them, where they are seen from here.
    fn tree(&self) -> Option<ProcessTree>;

    /// The way out of its network, once, where nobody holds it yet.
    fn take_way_out(&mut self) -> Option<WayOut> {
        None
    }

    /// What is written down of it when it is a container.
    fn container(&self) -> Option<ContainerManifest> {
        None
    }
}

/// A sandbox could not be ended.
#[derive(Debug, thiserror::Error)]
#[error("cannot end the sandbox `{name}`: {why}")]
pub struct StopError {
    /// Which.
    pub name: String,
    /// What was tried, and what came of it.
    pub why: String,
    /// The next thing to do.
    pub hint: String,
}

/// A sandbox that is a process tree of ours, with the guest as its command.
#[derive(Debug)]
struct ProcessInstance {
    underway: Option<Underway>,
    /// The end of its first process.
    end: ProcessEnd,
    /// What the guest lives by, whatever becomes of those between: it ends when this is closed.
    _leash: OwnedFd,
}

impl Core {
    /// Starts the guest as the command of a sandbox, behind the plan of `context`.
    pub(crate) async fn start_guest(
        &self,
        backend: &'static dyn Processes,
        context: Context,
        room: &Room,
    ) -> Result<Box<dyn Instance>, RunError> {
        let failed = |what: &'static str| move |source: io::Error| RunError::Setup { step: what.to_owned(), source };
        let listener = listen(&room.channel(), SOCKET.as_ref()).map_err(failed("listen for the guest's callers"))?;
        let log = room.log().map_err(failed("open the sandbox's log"))?;
        let shown = [room.guest.path.clone()];
        let container = ContainerSpec::default();
        let site = self.site(&context, &container, &shown);
        let ResolvedWorkspace { source, destination, .. } = &context.workspace;
        let start = if backend.shares_paths(&context.plan) { source } else { destination };
        let command = Command::new(&room.guest.path).arguments(["--listener".to_owned(), LISTENER.to_string()]);
        let command = command.arguments(["--owner".to_owned(), OWNER.to_string()]);
        let command = command.argument("--directory").argument(start).directory(source);
        let mut preparation = backend.prepare(&site, &command)?;
        preparation.own_processes += OWN_PROCESSES;
        let (owner, leash) =
            rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed("make the leash")(error.into()))?;
        let (files, said) = streams(listener, owner).map_err(failed("make the guest's streams"))?;
        // No time for the first process to keep: a lease can be renewed, and its keeper's end is the sandbox's.
        let underway = self.launch(Ready { context, preparation }, files, Terminal::Detached, None)?;
        tokio::spawn(keep_log(said, log));
        let instance = ProcessInstance::of(underway, leash).map_err(|source| RunError::Watch { source })?;
        instance.started().await?;
        Ok(Box::new(instance))
    }
}

/// Listens in a directory of a room. The path may be long: it is reached by descriptor.
pub(crate) fn listen(directory: &Path, name: &Path) -> io::Result<OwnedFd> {
    let directory = rustix::fs::open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let short = Path::new("/proc/self/fd").join(std::os::fd::AsRawFd::as_raw_fd(&directory).to_string()).join(name);
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(short)?)?;
    rustix::net::listen(&socket, 1024)?;
    Ok(socket)
}

/// No input, a pipe for what the guest says, the listening socket, and what it lives by. The log itself stays outside:
/// whoever can look at the guest's descriptors could open it again through them, proc(5), and empty it or fill the disk.
fn streams(listener: OwnedFd, owner: OwnedFd) -> io::Result<(Files, pipe::Receiver)> {
    let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let (said, output) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let copy = output.try_clone()?;
    let stdio = [Some(null), Some(output), Some(copy)];
    let files = Files { stdio, terminal: None, gate: None, passed: vec![(LISTENER, listener), (OWNER, owner)] };
    Ok((files, pipe::Receiver::from_owned_fd(said)?))
}

/// Appends what the guest says to the sandbox's log, until it ends or there is enough of it.
async fn keep_log(mut said: pipe::Receiver, mut log: fs_err::File) {
    let (mut buffer, mut left) = (vec![0; LOG_PIECE], LOG_SIZE);
    while let Ok(length @ 1..) = said.read(&mut buffer[..LOG_PIECE.min(left)]).await {
        left -= length;
        if log.write_all(&buffer[..length]).is_err() {
            return; // the disk is full; a guest whose words nobody hears goes on
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
        let control = readiness::watch(underway.started.control.as_fd(), Interest::READABLE).map_err(lost)?;
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

/// Ends a process tree and waits for it. What its owner dies of does the same, without the waiting.
fn end(underway: &Underway) {
    if let Some(group) = underway.group.as_ref().filter(|_| underway.ends_by_group) {
        let _ = group.kill(); // the first process is in it, and kills what it can all the same
    }
    let _ = control::send(&underway.started.control, &Order::End); // it may have ended
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
            let _ = tokio::time::timeout(PATIENCE, self.end.awaited()).await; // dropping it waits on, and tells nobody
            drop(underway);
            Ok(())
        })
    }
}

/// How long a sandbox may take to end before it is dropped all the same.
const PATIENCE: Duration = Duration::from_secs(7);

impl Drop for ProcessInstance {
    fn drop(&mut self) {
        if let Some(underway) = self.underway.take() {
            end(&underway);
            // Its first process is waited for, and our caller is not to wait.
            std::thread::spawn(move || drop(underway));
        }
    }
}
