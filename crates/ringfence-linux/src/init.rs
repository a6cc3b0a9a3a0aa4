//! The life of a sandbox's first process: it sets the sandbox up, starts the command, reaps
//! children, and ensures that no process outlives the run.
//!
//! With a pid namespace the first process is process 1 there, so the kernel ends everything inside
//! when it exits. Without a pid namespace the first process is a subreaper, and kills its
//! descendants until none is left.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::RecvFlags;
use rustix::process::{
    Pid, Resource, Signal, getrlimit, kill_process_group, set_child_subreaper,
    set_parent_process_death_signal,
};

use crate::confine;
use crate::control::{self, CommandEnding, ControlOrder, ControlReport};
use crate::launch::{Confinement, Launch, LaunchFiles, SandboxNetwork, StartCgroups, Survivors};
use crate::streams::ReopenedStream;
use crate::sys::process::{self, WaitedChild};
use crate::sys::signal::{self, SignalMask};
use crate::{exec, gate, kill_tree, mounts, streams};

/// Values that the first process gets from its parent.
#[derive(Debug)]
pub(crate) struct InheritedState<'a> {
    pub(crate) files: &'a LaunchFiles,
    pub(crate) start_cgroups: &'a StartCgroups<'a>,
    pub(crate) control: BorrowedFd<'a>,
    /// Caller's user id. A process in a new user namespace can no longer ask the kernel for the
    /// caller's user and group.
    pub(crate) user: u32,
    pub(crate) group: u32,
}

/// Descriptors that the first process keeps, above the numbers that the command may get.
#[derive(Debug)]
pub(crate) struct KeptDescriptors {
    pub(crate) control: OwnedFd,
    pub(crate) terminal: Option<OwnedFd>,
    pub(crate) gate: Option<OwnedFd>,
    pub(crate) passed: Vec<(i32, OwnedFd)>,
}

/// A set-up step that failed, with the error of its system call.
#[derive(Debug)]
pub(crate) struct SetupError {
    pub(crate) step: String,
    pub(crate) source: io::Error,
}

/// Adds the name of the set-up step to an error.
pub(crate) trait StepContext<T> {
    fn step(self, step: impl fmt::Display) -> Result<T, SetupError>;
}

impl<T, E: Into<io::Error>> StepContext<T> for Result<T, E> {
    fn step(self, step: impl fmt::Display) -> Result<T, SetupError> {
        self.map_err(|source| SetupError { step: step.to_string(), source: source.into() })
    }
}

/// Runs the sandbox and exits the process. Never returns into the parent's code.
pub(crate) fn run(launch: &Launch, inherited: InheritedState<'_>) -> ! {
    // The exit code is 125 even when the report cannot be sent, because no other reader exists.
    let fail = |control: BorrowedFd<'_>, error: SetupError| {
        control::send(control, &error.report()).map_or(125, |()| 125)
    };
    let code = match shed_inherited_state(&inherited) {
        Err(error) => fail(inherited.control, error),
        Ok(held) => match set_up(launch, &inherited, &held) {
            Err(error) => fail(held.control.as_fd(), error),
            Ok(PreparedSandbox { signals, command, reopened }) => {
                let owns_pid_namespace =
                    matches!(launch.confinement, Confinement::Namespaces { .. });
                let private = launch.private.clone();
                let Launch { time, survivors, .. } = *launch;
                let first = FirstProcess {
                    held,
                    signals,
                    command,
                    reopened,
                    time,
                    survivors,
                    private,
                    owns_pid_namespace,
                };
                // The control socket closes only when the process exits, so that a peer that waits
                // for the end of the socket has also waited for the end of the process.
                process::exit_now(first.run_until_ended())
            }
        },
    };
    process::exit_now(code)
}

impl SetupError {
    pub(crate) fn report(self) -> ControlReport {
        match self.source.raw_os_error() {
            Some(errno) => ControlReport::SetupFailed { step: self.step, errno },
            None => ControlReport::SetupFailed {
                step: format!("{}: {}", self.step, self.source),
                errno: 0,
            },
        }
    }
}

/// The first process, with its sandbox built and its command started.
struct FirstProcess {
    held: KeptDescriptors,
    signals: OwnedFd,
    command: Pid,
    /// Standard streams that the command has in place of the caller's.
    reopened: Vec<ReopenedStream>,
    /// Time limit of the command. The launching side enforces the same limit, unless it is stopped.
    time: Option<Duration>,
    /// Treatment of processes that outlive the command.
    survivors: Survivors,
    /// Directory on the host that is removed at the end of the run.
    private: Option<PathBuf>,
    /// True if the kernel guarantees that no process of the run outlives this process.
    owns_pid_namespace: bool,
}

/// Result of [`set_up`]: a sandbox whose command has been started.
struct PreparedSandbox {
    signals: OwnedFd,
    command: Pid,
    reopened: Vec<ReopenedStream>,
}

/// Gives up everything inherited from the launcher except its memory: signal handling, process
/// group, cgroup, descriptors.
fn shed_inherited_state(inherited: &InheritedState<'_>) -> Result<KeptDescriptors, SetupError> {
    SignalMask::full().set().step("block signals")?;
    // An ignored SIGCHLD stays ignored through clone(2). Children would then be discarded at their
    // end, and this process could not wait for them.
    signal::restore_default(libc::SIGCHLD);
    // Signals that a terminal sends to the caller's process group are for the caller alone.
    rustix::process::setpgid(None, None).step("make a process group")?;
    for tasks in inherited.start_cgroups.tasks {
        // Writing "0" moves the writing thread itself. Such a move does not wait for an RCU grace
        // period, unlike the move of another thread.
        rustix::io::write(tasks, b"0").step("enter the cgroup")?;
    }
    keep_descriptors(inherited).step("arrange the descriptors")
}

/// Builds the sandbox around this process and starts the command in it.
fn set_up(
    launch: &Launch,
    inherited: &InheritedState<'_>,
    held: &KeptDescriptors,
) -> Result<PreparedSandbox, SetupError> {
    let mut reopened = Vec::new();
    match &launch.confinement {
        Confinement::Namespaces { view, network, landlock_abi, streams } => {
            confine::map_identity(inherited.user, inherited.group)
                .step("map the user and group ids")?;
            exit_with_parent(&held.control)?;
            confine::forget_launcher()
                .step("forget the launcher's command line and environment")?;
            process::enter_new_cgroup_namespace().step("enter a cgroup namespace")?;
            rustix::system::sethostname(b"ringfence").step("set the host name")?;
            if *network != SandboxNetwork::Host {
                crate::sys::network::activate_loopback().step("bring the loopback interface up")?;
            }
            if let SandboxNetwork::Gated(kind) = network {
                let holder =
                    held.gate.as_ref().ok_or(Errno::BADF).step("find who is to hold the gate")?;
                gate::open(*kind, holder).step("open the gate of the sandbox's network")?;
            }
            mounts::build_root(view)?;
            reopened = streams::reopen_streams(streams)?;
            confine::confine_in_namespaces(view, *landlock_abi, &held.passed)?;
        }
        Confinement::Landlock { .. } | Confinement::Delegated | Confinement::Bare => {
            set_child_subreaper(Some(rustix::process::getpid())).step("become a subreaper")?;
        }
    }
    let signals =
        SignalMask::with_signals(&[libc::SIGCHLD]).descriptor().step("listen for signals")?;
    let first = rustix::process::getpid();
    let command =
        process::vfork(&mut || exec::run(launch, held, first)).step("fork the command")?;
    // Close our copies of the standard streams, because a reader of the command's output expects
    // end of file when the command ends, not when this process ends.
    process::close_range(0, 2).step("close the standard streams")?;
    Ok(PreparedSandbox { signals, command, reopened })
}

/// Descriptor numbers that are reserved for the first process when the limit of open files is low.
const OWN_DESCRIPTORS: i32 = 32;
/// Extra time before the first process ends a command whose time is over. The launcher acts first,
/// because it reports the reason.
const DEADLINE_GRACE: Duration = Duration::from_millis(250);

/// Installs the command's standard streams, moves the kept descriptors above the numbers that the
/// command may get, and closes every other descriptor.
///
/// The most important descriptor to close is the launcher's end of the control socket.
fn keep_descriptors(inherited: &InheritedState<'_>) -> io::Result<KeptDescriptors> {
    // First number above the command's descriptors, or a lower one if the limit of open files
    // requires it.
    let limit = getrlimit(Resource::Nofile)
        .current
        .and_then(|limit| i32::try_from(limit).ok())
        .unwrap_or(i32::MAX);
    let own = (LaunchFiles::HIGHEST_BACKEND_DESCRIPTOR + 1)
        .min(limit.saturating_sub(OWN_DESCRIPTORS))
        .max(3);
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
    let held = KeptDescriptors {
        control: fcntl_dupfd_cloexec(inherited.control, own)?,
        terminal: files
            .terminal
            .as_ref()
            .map(|terminal| fcntl_dupfd_cloexec(terminal, own))
            .transpose()?,
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

/// Requests SIGKILL at the end of the launching thread, and exits if that thread has already ended.
fn exit_with_parent(control: &OwnedFd) -> Result<(), SetupError> {
    set_parent_process_death_signal(Some(Signal::KILL)).step("tie the sandbox to its launcher")?;
    let mut fds = [PollFd::new(control, PollFlags::empty())];
    poll(&mut fds, Some(&rustix::event::Timespec::default())).step("look for the launcher")?;
    if fds[0].revents().contains(PollFlags::HUP) {
        process::exit_now(125);
    }
    Ok(())
}

/// Reaps every child that has ended. Returns true if no child is left.
fn reap_all_children() -> bool {
    loop {
        match process::wait_any() {
            Ok(Some(_)) => {}
            Ok(None) => return false,
            Err(_) => return true, // ECHILD: no child is left
        }
    }
}

impl FirstProcess {
    /// Reaps children and obeys orders until the command has ended and none of its processes is
    /// left.
    ///
    /// With [`Survivors::Leave`], processes that outlive the command are reaped by
    /// [`FirstProcess::wait_for_survivors`].
    /// Returns the exit code of the first process.
    fn run_until_ended(&self) -> i32 {
        let deadline = self
            .time
            .and_then(|time| Instant::now().checked_add(time.saturating_add(DEADLINE_GRACE)));
        let pid = self.command.as_raw_nonzero().get();
        // Poll notices a peer that is gone.
        let _ = control::send(&self.held.control, &ControlReport::Started { pid });
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return self.end_everything(None);
            }
            let mut fds = [
                PollFd::new(&self.signals, PollFlags::IN),
                PollFd::new(&self.held.control, PollFlags::IN),
            ];
            match poll(&mut fds, left.and_then(|left| left.try_into().ok()).as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return self.end_everything(None),
            }
            let (signalled, ordered) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
            if signalled {
                signal::read_pending(&self.signals);
                match (self.reap(), self.survivors) {
                    (Some(ended), Survivors::End) => return self.end_everything(Some(ended)),
                    (Some(ended), Survivors::Leave) => {
                        let swept = reap_all_children();
                        self.report_ending(ended.status, swept);
                        return if swept { 0 } else { self.wait_for_survivors() };
                    }
                    (None, _) => {}
                }
            }
            if ordered && !self.carry_out_order() {
                return self.end_everything(None);
            }
        }
    }

    /// Reaps the processes that outlived the command until none is left, and ends them when the
    /// launching side is gone.
    ///
    /// The survivors stay descendants of this process. That distinguishes them from processes whose
    /// first process was killed.
    fn wait_for_survivors(&self) -> i32 {
        loop {
            let mut fds = [
                PollFd::new(&self.signals, PollFlags::IN),
                PollFd::new(&self.held.control, PollFlags::IN),
            ];
            let is_over = !matches!(poll(&mut fds, None), Ok(_) | Err(Errno::INTR));
            if is_over || (!fds[1].revents().is_empty() && !self.carry_out_order()) {
                kill_tree::end_descendants(self.command);
                return 0;
            }
            signal::read_pending(&self.signals);
            if reap_all_children() {
                return 0;
            }
        }
    }

    /// Waits for every child that changed state. Returns the command's status if the command has
    /// ended.
    fn reap(&self) -> Option<WaitedChild> {
        while let Ok(Some(waited)) = process::wait_any() {
            let is_command = waited.pid == self.command.as_raw_nonzero().get();
            if libc::WIFSTOPPED(waited.status) {
                if is_command {
                    let signal = libc::WSTOPSIG(waited.status);
                    // Poll notices a peer that is gone. The owner of a long-lived sandbox reads no
                    // such report, so the message is dropped when the socket's buffer is full.
                    let _ =
                        control::try_send(&self.held.control, &ControlReport::Stopped { signal });
                }
            } else if is_command {
                return Some(waited);
            }
        }
        None
    }

    /// Carries out one order. Returns false if the order is [`ControlOrder::End`] or the
    /// peer is gone.
    fn carry_out_order(&self) -> bool {
        match control::receive(&self.held.control, RecvFlags::DONTWAIT) {
            Ok(Some(ControlOrder::Signal(number))) => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    // The group may have ended meanwhile.
                    let _ = kill_process_group(self.command, signal);
                }
                true
            }
            Ok(Some(ControlOrder::Continue { foreground })) => {
                if let (true, Some(terminal)) = (foreground, &self.held.terminal) {
                    // The terminal may be gone.
                    let _ = rustix::termios::tcsetpgrp(terminal, self.command);
                }
                // The group may have ended meanwhile.
                let _ = kill_process_group(self.command, Signal::CONT);
                true
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => true,
            Ok(Some(ControlOrder::End) | None) | Err(_) => false,
        }
    }

    /// Ends every process that is left and reports how the command ended.
    fn end_everything(&self, command: Option<WaitedChild>) -> i32 {
        let sweep = if self.owns_pid_namespace {
            kill_tree::end_namespace(self.command)
        } else {
            kill_tree::end_descendants(self.command)
        };
        // When process 1 of a pid namespace exits, the kernel kills every other process of the
        // namespace and waits for their end.
        let swept = sweep.complete || self.owns_pid_namespace;
        let command = command.or(sweep.command);
        if let Some(private) = &self.private {
            let _ = fs_err::remove_dir_all(private); // the next run's sweep removes the rest
            let _ = private.parent().map(rustix::fs::rmdir); // other runs may use it
        }
        self.report_ending(command.map_or(libc::SIGKILL, |waited| waited.status), swept)
    }

    /// Reports how the command ended, and whether every process of the run is gone.
    fn report_ending(&self, status: i32, swept: bool) -> i32 {
        self.reopened.iter().for_each(ReopenedStream::restore_position);
        let ending = CommandEnding::from_status(status, process::children_usage(), swept);
        // An error is ignored, because no other reader could receive the report.
        let _ = control::send(&self.held.control, &ControlReport::Ended(ending));
        0
    }
}
