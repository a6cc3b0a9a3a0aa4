//! The life of a sandbox's first process: it sets the sandbox up, starts the command, reaps, and sees to it
//! that nothing outlives the run.
//!
//! With a pid namespace it is process 1 there, and its end is the end of everything inside. Without one it is
//! a subreaper, and kills its descendants until none is left.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::RecvFlags;
use rustix::process::{
    Pid, Resource, Signal, getrlimit, kill_process_group, set_child_subreaper, set_parent_process_death_signal,
};

use crate::confine;
use crate::control::{self, Ending, Order, Report};
use crate::launch::{Birthplace, Confinement, Files, Launch, Network, Survivors};
use crate::streams::ReopenedStream;
use crate::sys::process::{self, Waited};
use crate::sys::signal::{self, Mask};
use crate::{exec, gate, mounts, streams, tree};

/// What the first process gets from its parent.
#[derive(Debug)]
pub(crate) struct Inherited<'a> {
    pub(crate) files: &'a Files,
    pub(crate) birthplace: &'a Birthplace<'a>,
    pub(crate) control: BorrowedFd<'a>,
    /// The caller's user and group, which a process in a new user namespace can no longer ask for.
    pub(crate) user: u32,
    pub(crate) group: u32,
}

/// The descriptors that the first process keeps, out of the way of the numbers that the command gets.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) control: OwnedFd,
    pub(crate) terminal: Option<OwnedFd>,
    pub(crate) gate: Option<OwnedFd>,
    pub(crate) passed: Vec<(i32, OwnedFd)>,
}

/// A step of the set-up that failed.
#[derive(Debug)]
pub(crate) struct SetupError {
    pub(crate) step: String,
    pub(crate) source: io::Error,
}

/// Names the step that an error belongs to.
pub(crate) trait Step<T> {
    fn step(self, step: impl fmt::Display) -> Result<T, SetupError>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, step: impl fmt::Display) -> Result<T, SetupError> {
        self.map_err(|source| SetupError { step: step.to_string(), source: source.into() })
    }
}

/// Runs the sandbox and ends the process. Never returns into the parent's code.
pub(crate) fn run(launch: &Launch, inherited: Inherited<'_>) -> ! {
    // When a report cannot be sent, either, nobody is left to tell.
    let fail =
        |control: BorrowedFd<'_>, error: SetupError| control::send(control, &error.report()).map_or(125, |()| 125);
    let code = match arrive(&inherited) {
        Err(error) => fail(inherited.control, error),
        Ok(held) => match set_up(launch, &inherited, &held) {
            Err(error) => fail(held.control.as_fd(), error),
            Ok(SetUp { signals, command, reopened }) => {
                let owns_pid_namespace = matches!(launch.confinement, Confinement::Namespaces { .. });
                let private = launch.private.clone();
                let Launch { time, survivors, .. } = *launch;
                let first = First { held, signals, command, reopened, time, survivors, private, owns_pid_namespace };
                // Its control socket closes with the process, at the very end: whoever waits for one waits for both.
                process::exit_now(first.live())
            }
        },
    };
    process::exit_now(code)
}

impl SetupError {
    pub(crate) fn report(self) -> Report {
        match self.source.raw_os_error() {
            Some(errno) => Report::SetupFailed { step: self.step, errno },
            None => Report::SetupFailed { step: format!("{}: {}", self.step, self.source), errno: 0 },
        }
    }
}

/// The first process, with its sandbox around it and its command started.
struct First {
    held: Held,
    signals: OwnedFd,
    command: Pid,
    /// The standard streams that the command has in place of the caller's.
    reopened: Vec<ReopenedStream>,
    /// How long the command may take. The launching side keeps the same time, unless it is stopped.
    time: Option<Duration>,
    /// What becomes of processes that outlive the command.
    survivors: Survivors,
    /// A directory that goes with the run.
    private: Option<PathBuf>,
    /// Whether our end is, by the kernel's word, the end of every process of the run.
    owns_pid_namespace: bool,
}

/// A sandbox that stands, with its command started.
struct SetUp {
    signals: OwnedFd,
    command: Pid,
    reopened: Vec<ReopenedStream>,
}

/// Leaves everything of the launcher's behind but its memory: signals, group, cgroup, descriptors.
fn arrive(inherited: &Inherited<'_>) -> Result<Held, SetupError> {
    Mask::full().set().step("block signals")?;
    // One that is ignored stays ignored through a clone, and children would vanish instead of being waited for.
    signal::restore_default(libc::SIGCHLD);
    // A group of its own: what a terminal sends to the caller's group is the caller's business.
    rustix::process::setpgid(None, None).step("make a process group")?;
    for tasks in inherited.birthplace.tasks {
        // A thread that moves itself does not wait for a grace period, as one that is moved does; "0" is the writer.
        rustix::io::write(tasks, b"0").step("enter the cgroup")?;
    }
    keep_descriptors(inherited).step("arrange the descriptors")
}

/// Builds the sandbox around this process and starts the command in it.
fn set_up(launch: &Launch, inherited: &Inherited<'_>, held: &Held) -> Result<SetUp, SetupError> {
    let mut reopened = Vec::new();
    match &launch.confinement {
        Confinement::Namespaces { view, network, landlock_abi, streams } => {
            confine::map_identity(inherited.user, inherited.group).step("map the user and group ids")?;
            die_with_parent(&held.control)?;
            confine::forget_launcher().step("forget the launcher's command line and environment")?;
            process::enter_new_cgroup_namespace().step("enter a cgroup namespace")?;
            rustix::system::sethostname(b"ringfence").step("set the host name")?;
            if *network != Network::Host {
                crate::sys::network::loopback_up().step("bring the loopback interface up")?;
            }
            if let Network::Gated(kind) = network {
                let holder = held.gate.as_ref().ok_or(Errno::BADF).step("find who is to hold the gate")?;
                gate::open(*kind, holder).step("open the gate of the sandbox's network")?;
            }
            mounts::build(view, rustix::stdio::stdin())?;
            reopened = streams::reopen(streams).step("open the standard streams inside")?;
            confine::confine_in_namespaces(view, *landlock_abi, &held.passed)?;
        }
        Confinement::Landlock { .. } | Confinement::Delegated | Confinement::Bare => {
            set_child_subreaper(Some(rustix::process::getpid())).step("become a subreaper")?;
        }
    }
    let signals = Mask::of(&[libc::SIGCHLD]).descriptor().step("listen for signals")?;
    let first = rustix::process::getpid();
    let command = process::vfork(&mut || exec::run(launch, held, first)).step("fork the command")?;
    // The streams are the command's: whoever reads them learns of its end by theirs, and not by ours.
    process::close_range(0, 2).step("close the standard streams")?;
    Ok(SetUp { signals, command, reopened })
}

/// How many numbers are left for the first process where few files may be open.
const OWN_DESCRIPTORS: i32 = 32;
/// How much later than its launcher it ends a command whose time is over: the launcher tells why it did.
const LATER: Duration = Duration::from_millis(250);

/// Puts the command's standard streams in their places, moves what is kept above the numbers that the command
/// may get, and closes everything else: the launcher's end of the control socket above all.
fn keep_descriptors(inherited: &Inherited<'_>) -> io::Result<Held> {
    // Above what the command may get, as far as the limit of open files allows.
    let limit = getrlimit(Resource::Nofile).current.and_then(|limit| i32::try_from(limit).ok()).unwrap_or(i32::MAX);
    let own = (Files::HIGHEST + 1).min(limit.saturating_sub(OWN_DESCRIPTORS)).max(3);
    let files = inherited.files;
    let [stdin, stdout, stderr] = &files.stdio;
    if let Some(stdin) = stdin {
        rustix::stdio::dup2_stdin(stdin)?;
    }
    if let Some(stdout) = stdout {
        rustix::stdio::dup2_stdout(stdout)?;
    }
    if let Some(stderr) = stderr {
        rustix::stdio::dup2_stderr(stderr)?;
    }
    let held = Held {
        control: fcntl_dupfd_cloexec(inherited.control, own)?,
        terminal: files.terminal.as_ref().map(|terminal| fcntl_dupfd_cloexec(terminal, own)).transpose()?,
        gate: files.gate.as_ref().map(|gate| fcntl_dupfd_cloexec(gate, own)).transpose()?,
        passed: files
            .passed
            .iter()
            .map(|(number, fd)| Ok((*number, fcntl_dupfd_cloexec(fd, own)?)))
            .collect::<io::Result<_>>()?,
    };
    let mut kept: Vec<u32> = held.passed.iter().map(|(_, fd)| fd.as_raw_fd() as u32).collect();
    kept.push(held.control.as_raw_fd() as u32);
    kept.extend(held.terminal.iter().chain(&held.gate).map(|fd| fd.as_raw_fd() as u32));
    kept.sort_unstable();
    let mut next = 3;
    for fd in kept {
        if fd > next {
            process::close_range(next, fd - 1)?;
        }
        next = fd + 1;
    }
    process::close_range(next, u32::MAX)?;
    Ok(held)
}

/// Arranges to be killed when the launching thread ends, and checks that it has not ended before.
fn die_with_parent(control: &OwnedFd) -> Result<(), SetupError> {
    set_parent_process_death_signal(Some(Signal::KILL)).step("tie the sandbox to its launcher")?;
    let mut fds = [PollFd::new(control, PollFlags::empty())];
    poll(&mut fds, Some(&rustix::event::Timespec::default())).step("look for the launcher")?;
    if fds[0].revents().contains(PollFlags::HUP) {
        process::exit_now(125);
    }
    Ok(())
}

/// Reaps every child that has ended; true when none is left.
fn is_childless() -> bool {
    loop {
        match process::wait_any() {
            Ok(Some(_)) => {}
            Ok(None) => return false,
            Err(_) => return true, // ECHILD
        }
    }
}

impl First {
    /// Reaps and obeys until the command has ended and nothing is left of it.
    fn live(&self) -> i32 {
        let deadline = self.time.and_then(|time| Instant::now().checked_add(time.saturating_add(LATER)));
        let pid = self.command.as_raw_nonzero().get();
        let _ = control::send(&self.held.control, &Report::Started { pid }); // a gone peer is seen by poll
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return self.end_everything(None);
            }
            let mut fds = [PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&self.held.control, PollFlags::IN)];
            match poll(&mut fds, left.and_then(|left| left.try_into().ok()).as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return self.end_everything(None),
            }
            let (signalled, ordered) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
            if signalled {
                signal::pending(&self.signals);
                match (self.reap(), self.survivors) {
                    (Some(ended), Survivors::End) => return self.end_everything(Some(ended)),
                    (Some(ended), Survivors::Leave) => {
                        let swept = is_childless();
                        self.tell(ended.status, swept);
                        return if swept { 0 } else { self.stay() };
                    }
                    (None, _) => {}
                }
            }
            if ordered && !self.obey() {
                return self.end_everything(None);
            }
        }
    }

    /// Reaps whoever outlived the command, until nobody is left, and ends them when the launching side has gone. They
    /// keep their place below this process: that is how they can be told from what a killed one left.
    fn stay(&self) -> i32 {
        loop {
            let mut fds = [PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&self.held.control, PollFlags::IN)];
            let is_over = !matches!(poll(&mut fds, None), Ok(_) | Err(Errno::INTR));
            if is_over || (!fds[1].revents().is_empty() && !self.obey()) {
                tree::end_descendants(self.command);
                return 0;
            }
            signal::pending(&self.signals);
            if is_childless() {
                return 0;
            }
        }
    }

    /// Waits for every child that changed; returns the command's end when it is among them.
    fn reap(&self) -> Option<Waited> {
        while let Ok(Some(waited)) = process::wait_any() {
            let is_command = waited.pid == self.command.as_raw_nonzero().get();
            if libc::WIFSTOPPED(waited.status) {
                if is_command {
                    let signal = libc::WSTOPSIG(waited.status);
                    // A gone peer is seen by poll, and whoever keeps a sandbox that stays reads none of these.
                    let _ = control::mention(&self.held.control, &Report::Stopped { signal });
                }
            } else if is_command {
                return Some(waited);
            }
        }
        None
    }

    /// Carries out one order; false when it is to end, or when nobody is left to give orders.
    fn obey(&self) -> bool {
        match control::receive(&self.held.control, RecvFlags::DONTWAIT) {
            Ok(Some(Order::Signal(number))) => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    let _ = kill_process_group(self.command, signal); // it may have ended meanwhile
                }
                true
            }
            Ok(Some(Order::Continue { foreground })) => {
                if let (true, Some(terminal)) = (foreground, &self.held.terminal) {
                    let _ = rustix::termios::tcsetpgrp(terminal, self.command); // the terminal may be gone
                }
                let _ = kill_process_group(self.command, Signal::CONT); // it may have ended meanwhile
                true
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => true,
            Ok(Some(Order::End) | None) | Err(_) => false,
        }
    }

    /// Ends what is left and says how the command ended.
    fn end_everything(&self, command: Option<Waited>) -> i32 {
        let sweep = if self.owns_pid_namespace {
            tree::end_namespace(self.command)
        } else {
            tree::end_descendants(self.command)
        };
        // In a pid namespace of our own, our exit ends whoever is left; the kernel waits for it.
        let swept = sweep.complete || self.owns_pid_namespace;
        let command = command.or(sweep.command);
        if let Some(private) = &self.private {
            let _ = fs_err::remove_dir_all(private); // what is left waits for the next run's sweep
            let _ = private.parent().map(rustix::fs::rmdir); // others may be in it
        }
        self.tell(command.map_or(libc::SIGKILL, |waited| waited.status), swept)
    }

    /// Says how the command ended, and whether nobody is left of it.
    fn tell(&self, status: i32, swept: bool) -> i32 {
        self.reopened.iter().for_each(ReopenedStream::restore_position);
        let ending = Ending::from_status(status, process::children_usage(), swept);
        let _ = control::send(&self.held.control, &Report::Ended(ending)); // nobody else to tell
        0
    }
}
