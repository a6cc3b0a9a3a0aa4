//! The launcher process: a small, single-threaded process that forks on behalf of a large process.
//!
//! The cost of fork(2) grows with the parent's memory, and a process with threads cannot be forked
//! safely. A library therefore does not fork its caller. The library starts the launcher process
//! once, with posix_spawn(3), and sends it a request for each launch. The launcher process keeps no
//! state: each sandbox talks directly to the process that asked for it. A sandbox ends when the
//! launcher process ends, and the launcher process ends when its socket closes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, Mode, OFlags, SeekFrom, memfd_create, seek};
use rustix::net::RecvFlags;
use rustix::process::{WaitId, WaitIdOptions, set_child_subreaper, waitid};
use serde::{Deserialize, Serialize};

use crate::cgroup::Cgroup;
use crate::launch::{Launch, LaunchError, LaunchFiles, LaunchedProcess, StartCgroups, launch};
use crate::sys::signal::ignore_children;
use crate::{control, fd_passing, kill_tree};

/// Value of `argv[0]` with which a program is started to become a launcher process.
pub const NAME: &str = "ringfence-launcher";

/// Version that both sides must share, because the encoding of a description carries no version of
/// its own.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The process that forks to start a sandbox.
#[derive(Debug)]
pub enum Launcher {
    /// The calling process, which must be small and have one thread.
    Here,
    /// A separate launcher process.
    Process(LauncherProcess),
}

/// A launcher process, seen from the process that sends it requests.
#[derive(Debug)]
pub struct LauncherProcess {
    socket: Mutex<OwnedFd>,
    process: Child,
}

impl Drop for LauncherProcess {
    fn drop(&mut self) {
        let socket = self.socket.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        // The process may be gone already.
        let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        let _ = self.process.wait(); // the process ends when its socket closes
    }
}

/// A sandbox that was started, seen from the process that asked for it.
#[derive(Debug)]
pub struct StartedSandbox {
    /// First process of the sandbox.
    pub launched: LaunchedProcess,
    /// Control socket: reports arrive here and orders are sent here. Closing it ends the sandbox.
    pub control: OwnedFd,
}

impl Drop for StartedSandbox {
    /// Ends the sandbox if it is still running, and waits for its first process.
    ///
    /// Without the wait, the first process would stay a zombie on hosts whose process 1 does not
    /// reap.
    fn drop(&mut self) {
        // The peer may be gone.
        let _ = rustix::net::shutdown(&self.control, rustix::net::Shutdown::Both);
        let mut fds = [PollFd::new(&self.launched.pidfd, PollFlags::IN)];
        // A process that has not ended by then is left to process 1.
        let _ = poll(&mut fds, Some(&EXIT_TIMEOUT));
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        // The call fails if a launcher process forked, because then the first process is not our
        // child.
        let _ = waitid(WaitId::PidFd(self.launched.pidfd.as_fd()), options);
    }
}

/// Timeout for the end of a first process after its last report.
const EXIT_TIMEOUT: Timespec = Timespec { tv_sec: 7, tv_nsec: 0 };

/// Error of starting a launcher process.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the launcher process `{program}`")]
pub struct LauncherError {
    /// Program that was to become the launcher process.
    pub program: String,
    /// Error of the spawn or of the first message.
    pub source: io::Error,
}

/// Size limit, in bytes, of a description that is part of its request. A longer description is in a
/// memory file whose descriptor is sent first.
///
/// Most commands have a few kilobytes of environment variables, and namespaces add a view.
const MAX_DESCRIPTION_BYTES: usize = 32 * 1024;
/// Size limit of a request, in bytes. Apart from the description, a request has a few bytes per
/// descriptor.
const MAX_REQUEST_BYTES: usize = MAX_DESCRIPTION_BYTES + 4096;

/// Size limit of an answer, in bytes.
const MAX_ANSWER_BYTES: usize = 4096;

/// A request for a launch. The fields state which descriptors accompany it, in the order in which
/// the descriptors are sent.
#[derive(Debug, Serialize, Deserialize)]
struct LaunchRequest {
    description: Option<Vec<u8>>,
    stdio: [bool; 3],
    terminal: bool,
    gate: bool,
    passed: Vec<i32>,
    cgroup: bool,
    tasks: usize,
}

/// The answer to a request: a process id, or an error message and its errno (0 if there is none).
/// The pidfd of the first process accompanies an `Ok`.
type LaunchAnswer = Result<i32, (String, i32)>;

impl Launcher {
    /// Starts `program` as a launcher process. The program must call [`serve_if_asked`] first in
    /// `main`.
    pub fn spawn(program: &Path) -> Result<Launcher, LauncherError> {
        let failed = |source| LauncherError { program: program.display().to_string(), source };
        let (ours, theirs) = control::socket_pair().map_err(failed)?;
        let process = Command::new(program)
            .arg0(NAME)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        // The first message proves that the program became a launcher process instead of ignoring
        // its `argv[0]`.
        match control::receive::<LauncherHello>(&ours, RecvFlags::empty()) {
            Ok(Some(LauncherHello { version })) if version == VERSION => {
                Ok(Launcher::Process(LauncherProcess { socket: Mutex::new(ours), process }))
            }
            Ok(Some(LauncherHello { version })) => Err(failed(io::Error::other(format!(
                "it is of version {version}, and this is {VERSION}"
            )))),
            Ok(None) => Err(failed(io::Error::other(
                "it does not call `ringfence::launcher::serve_if_asked`",
            ))),
            Err(source) => Err(failed(source)),
        }
    }

    /// Opens the program file of the launcher. That program calls [`serve_if_asked`] first in
    /// `main`.
    pub fn program(&self) -> io::Result<OwnedFd> {
        let process = match self {
            Launcher::Here => "self".to_owned(),
            Launcher::Process(remote) => remote.process.id().to_string(),
        };
        let program = format!("/proc/{process}/exe");
        Ok(rustix::fs::open(program, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Ends the processes that were left behind when a first process without a pid namespace was
    /// killed. Returns false if a process is left.
    ///
    /// These strays are the descendants of the launcher process that are neither one of `firsts`
    /// nor below one. No launch may be in progress, because its first process would be taken for a
    /// stray if it is not in `firsts`.
    pub fn end_strays(&self, firsts: &[i32]) -> bool {
        match self {
            // Strays became children of process 1, where they look like any other process.
            Launcher::Here => true,
            Launcher::Process(remote) => {
                kill_tree::end_strays(remote.process.id().cast_signed(), firsts)
            }
        }
    }

    /// Starts a sandbox, whose first process joins the cgroup `group` if there is one.
    pub fn start(
        &self,
        description: &Launch,
        files: LaunchFiles,
        group: Option<&Cgroup>,
    ) -> Result<StartedSandbox, LaunchError> {
        let (ours, theirs) =
            control::socket_pair().map_err(|source| LaunchError::Ask { source })?;
        let launched = match self {
            Launcher::Here => {
                launch(description, &files, &StartCgroups::for_group(group), &theirs)?
            }
            Launcher::Process(remote) => remote.request_launch(
                description,
                &files,
                &StartCgroups::for_group(group),
                &theirs,
            )?,
        };
        Ok(StartedSandbox { launched, control: ours })
    }
}

/// The first message of a launcher process.
#[derive(Debug, Serialize, Deserialize)]
struct LauncherHello {
    version: String,
}

impl LauncherProcess {
    fn request_launch(
        &self,
        description: &Launch,
        files: &LaunchFiles,
        start_cgroups: &StartCgroups<'_>,
        control: &OwnedFd,
    ) -> Result<LaunchedProcess, LaunchError> {
        let failed = |source: io::Error| LaunchError::Ask { source };
        let described =
            postcard::to_stdvec(description).map_err(|error| failed(io::Error::other(error)))?;
        let (part, file) = match described.len() {
            ..=MAX_DESCRIPTION_BYTES => (Some(described), None),
            _ => (None, Some(create_memory_file(&described).map_err(failed)?)),
        };
        let request = LaunchRequest {
            description: part,
            stdio: files.stdio.each_ref().map(Option::is_some),
            terminal: files.terminal.is_some(),
            gate: files.gate.is_some(),
            passed: files.passed.iter().map(|(number, _)| *number).collect(),
            cgroup: start_cgroups.cgroup.is_some(),
            tasks: start_cgroups.tasks.len(),
        };
        let mut fds: Vec<_> = file.iter().map(AsFd::as_fd).collect();
        fds.push(control.as_fd());
        fds.extend(files.stdio.iter().flatten().map(AsFd::as_fd));
        fds.extend(files.terminal.iter().map(AsFd::as_fd));
        fds.extend(files.gate.iter().map(AsFd::as_fd));
        fds.extend(files.passed.iter().map(|(_, fd)| fd.as_fd()));
        fds.extend(start_cgroups.cgroup);
        fds.extend(start_cgroups.tasks.iter().map(AsFd::as_fd));

        let socket = self.socket.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let request =
            postcard::to_stdvec(&request).map_err(|error| failed(io::Error::other(error)))?;
        fd_passing::send(&*socket, &request, &fds).map_err(failed)?;
        let mut buffer = [0; MAX_ANSWER_BYTES];
        let (answer, mut fds) = fd_passing::receive(&*socket, &mut buffer).map_err(failed)?;
        if answer.is_empty() {
            return Err(failed(io::ErrorKind::ConnectionReset.into()));
        }
        let answer: LaunchAnswer =
            postcard::from_bytes(answer).map_err(|error| failed(io::Error::other(error)))?;
        match (answer, fds.pop()) {
            (Ok(pid), Some(pidfd)) => Ok(LaunchedProcess { pidfd, pid }),
            (Ok(_), None) => Err(failed(io::Error::other("the launcher sent no process"))),
            (Err((message, 0)), _) => Err(failed(io::Error::other(message))),
            (Err((_, errno)), _) => {
                Err(LaunchError::Clone { source: io::Error::from_raw_os_error(errno) })
            }
        }
    }
}

/// Runs a launcher process if this process was started as one. Does not return in that case.
///
/// A program calls this function first in `main`, before it starts a thread.
pub fn serve_if_asked() {
    if std::env::args_os().next().is_some_and(|name| name == NAME) {
        serve();
    }
}

fn serve() -> ! {
    let socket = rustix::stdio::stdin();
    ignore_children(); // a first process reports its own end
    // Descendants of a killed first process become our children, see `end_strays`. If the kernel
    // refuses the subreaper attribute, they become children of process 1.
    let _ = set_child_subreaper(Some(rustix::process::getpid()));
    if control::send(socket, &LauncherHello { version: VERSION.to_owned() }).is_ok() {
        // Allocate the buffer once: after a fork, the kernel copies each page of it that is
        // written.
        let mut buffer = vec![0; MAX_REQUEST_BYTES];
        while let Ok((request, fds)) = fd_passing::receive(socket, &mut buffer) {
            if request.is_empty() {
                break;
            }
            let (answer, pidfd) = match start(request, fds) {
                Ok(LaunchedProcess { pidfd, pid }) => (LaunchAnswer::Ok(pid), Some(pidfd)),
                Err(error) => (
                    LaunchAnswer::Err((error.to_string(), error.raw_os_error().unwrap_or(0))),
                    None,
                ),
            };
            let Ok(answer) = postcard::to_stdvec(&answer) else { break };
            let fds: Vec<_> = pidfd.iter().map(AsFd::as_fd).collect();
            if fd_passing::send(socket, &answer, &fds).is_err() {
                break;
            }
        }
    }
    crate::sys::process::exit_now(0)
}

fn start(request: &[u8], fds: Vec<OwnedFd>) -> io::Result<LaunchedProcess> {
    let request: LaunchRequest = postcard::from_bytes(request).map_err(io::Error::other)?;
    let mut fds = fds.into_iter();
    let mut next =
        || fds.next().ok_or_else(|| io::Error::other("a request came without its descriptors"));
    let description = match request.description {
        Some(part) => part,
        None => {
            let mut bytes = Vec::new();
            io::Read::read_to_end(
                &mut fs_err::File::from_parts(next()?.into(), "the request"),
                &mut bytes,
            )?;
            bytes
        }
    };
    let description: Launch = postcard::from_bytes(&description).map_err(io::Error::other)?;
    let control = next()?;
    let mut files = LaunchFiles::default();
    for (stream, is_sent) in files.stdio.iter_mut().zip(request.stdio) {
        *stream = is_sent.then(&mut next).transpose()?;
    }
    files.terminal = request.terminal.then(&mut next).transpose()?;
    files.gate = request.gate.then(&mut next).transpose()?;
    for number in request.passed {
        files.passed.push((number, next()?));
    }
    let cgroup = request.cgroup.then(&mut next).transpose()?;
    let tasks = (0..request.tasks).map(|_| next()).collect::<io::Result<Vec<_>>>()?;

    let start_cgroups = StartCgroups { cgroup: cgroup.as_ref().map(AsFd::as_fd), tasks: &tasks };
    launch(&description, &files, &start_cgroups, &control).map_err(|error| match error {
        LaunchError::Clone { source } | LaunchError::Ask { source } => source,
    })
}

/// Creates a file in memory that holds `bytes`, with the file offset at its start.
pub fn create_memory_file(bytes: &[u8]) -> io::Result<OwnedFd> {
    let file = memfd_create("ringfence", MemfdFlags::CLOEXEC)?;
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest)?;
        rest = &rest[written..];
    }
    seek(&file, SeekFrom::Start(0))?;
    Ok(file)
}
