//! Runs one command from its launch to its result, on the calling thread.

pub(crate) mod contained;
pub(crate) mod end_report;
pub(crate) mod output;
pub(crate) mod prepare;
pub(crate) mod readiness;
pub(crate) mod running;
pub(crate) mod supervise;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ringfence_core::result::{Denial, DroppedBytes, RunMetadata, RunUsage};
use ringfence_core::{ExecutionResult, ExitStatus};
use ringfence_linux::cgroup::Cgroup;
use ringfence_linux::{Launch, LaunchFiles, StartedSandbox, Survivors, TerminalMode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use crate::backends::probe_cache::{ProbeCache, ProbeSubject};
use crate::backends::{GroupNeed, Preparation, PrivateDirectory, limits};
use crate::caller::streams::StreamFailure;
use crate::egress::{GateHolder, GateSource};
use crate::engine::Core;
use crate::run::prepare::{PreparedRun, RunContext};
use crate::run::supervise::{
    Capture, End, Foreground, Listener, Outcome, PIPE_SIZE, SupervisionInputs, order_end, supervise,
};
use crate::{Command, RunError};

/// Time that the processes of a run that failed have to end.
const END_TIMEOUT: Duration = Duration::from_secs(6);

/// Result of a command that ran with the caller's own streams.
#[derive(Debug)]
pub struct Attached {
    /// Status with which the process exits.
    pub status: ExitStatus,
    /// Result without output, because the output went to the caller's streams.
    pub result: ExecutionResult,
}

/// A launch that was started, and the resources that must exist as long as it runs.
#[derive(Debug)]
pub(crate) struct RunningTree {
    /// The started launch. This field is dropped first, so that the resources below are removed
    /// only after every process has ended.
    pub(crate) started: StartedSandbox,
    pub(crate) context: RunContext,
    pub(crate) group: Option<Cgroup>,
    /// True if only the control group can end the whole process tree.
    pub(crate) ends_by_group: bool,
    /// Holder of the gate of the sandbox's network.
    pub(crate) egress: Option<GateHolder>,
    /// Directory on the host that is removed with the run.
    _private: Option<PrivateDirectory>,
}

impl Core {
    /// Runs a command with the caller's own streams, terminal and signals.
    pub(crate) fn run_attached(
        &self,
        ready: PreparedRun,
        command: &Command,
        passed: Vec<(i32, OwnedFd)>,
    ) -> Result<Attached, RunError> {
        let foreground = Foreground::take().map_err(|source| RunError::Watch { source })?;
        let (terminal, position) = foreground.terminal();
        let terminal = terminal
            .map(OwnedFd::try_clone)
            .transpose()
            .map_err(|source| RunError::Watch { source })?;
        let setup = |source| RunError::Setup {
            step: "make pipes for the standard streams".to_owned(),
            source,
        };
        let (stdio, relays) = ready.context.streams.relay().map_err(setup)?;
        let files = LaunchFiles { stdio, terminal, gate: None, passed };
        let time = ready.context.time();
        let running = self.launch(ready, files, position, time)?;
        let watch = SupervisionInputs {
            foreground: Some(foreground),
            relays,
            ..SupervisionInputs::default()
        };
        let result = running.finish(command, watch, None)?;
        Ok(Attached { status: status(&result), result })
    }

    /// Runs a command with no input and with captured output. Ends the run when `cancel` becomes
    /// readable, or closes.
    pub(crate) fn run_captured(
        &self,
        ready: PreparedRun,
        command: &Command,
        passed: Vec<(i32, OwnedFd)>,
        cancel: Option<BorrowedFd<'_>>,
        on_output: Option<Listener<'_>>,
    ) -> Result<ExecutionResult, RunError> {
        let time = ready.context.time();
        let (running, mut capture) = self.launch_captured(ready, passed, time)?;
        running.finish(
            command,
            SupervisionInputs {
                capture: Some(&mut capture),
                cancel,
                ..SupervisionInputs::default()
            },
            on_output,
        )
    }

    /// Starts a run with no input and with pipes for its output. The run may take `time` at most.
    pub(crate) fn launch_captured(
        &self,
        ready: PreparedRun,
        passed: Vec<(i32, OwnedFd)>,
        time: Option<Duration>,
    ) -> Result<(RunningTree, Capture), RunError> {
        let failed = |source: io::Error| RunError::Setup {
            step: "make the pipes of the run".to_owned(),
            source,
        };
        let null = rustix::fs::open(
            "/dev/null",
            rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )
        .map_err(|error| failed(error.into()))?;
        let (stdout, stdout_inside) = pipe().map_err(failed)?;
        let (stderr, stderr_inside) = pipe().map_err(failed)?;
        let limit = ready.context.plan.policy.limits.output.map_or(u64::MAX, |size| size.bytes());
        let files = LaunchFiles {
            stdio: [Some(null), Some(stdout_inside), Some(stderr_inside)],
            terminal: None,
            gate: None,
            passed,
        };
        let running = self.launch(ready, files, TerminalMode::Detached, time)?;
        Ok((running, Capture::new([stdout, stderr], limit)))
    }

    /// Starts a prepared run, which may take `time` at most.
    pub(crate) fn launch(
        &self,
        ready: PreparedRun,
        mut files: LaunchFiles,
        terminal: TerminalMode,
        time: Option<Duration>,
    ) -> Result<RunningTree, RunError> {
        refuse_directories(&files)?;
        let PreparedRun { context, preparation } = ready;
        let group = limits::create_group(&context.plan, &preparation)?;
        let ends_by_group = preparation.group != GroupNeed::None;
        let Preparation { exec, confinement, mut passed, gate, holder, private, .. } = preparation;
        files.passed.append(&mut passed);
        files.gate = holder;
        let path = private.as_ref().map(|private| private.path().to_path_buf());
        let launch =
            Launch { exec, confinement, terminal, time, survivors: Survivors::End, private: path };
        let forget =
            || ProbeCache::for_subject(&self.settings.host, ProbeSubject::Namespaces).forget();
        let started =
            self.launcher.start(&launch, files, group.as_ref()).inspect_err(|_| forget())?;
        // Start the thread of the gate only after the fork, because a process that is forked must
        // not have a second thread.
        let egress =
            gate.map(|gate| self.hold_gate(&context, GateSource::Sent(gate))).transpose()?;
        Ok(RunningTree { started, context, group, ends_by_group, egress, _private: private })
    }
}

impl RunningTree {
    /// Supervises the run until it has ended and nothing of it is left.
    fn finish(
        mut self,
        command: &Command,
        watch: SupervisionInputs<'_>,
        on_output: Option<Listener<'_>>,
    ) -> Result<ExecutionResult, RunError> {
        // Do this while the command is starting, when nobody waits for it.
        self.context.guarded.survey();
        self.watch(command, watch, on_output)
    }

    /// Supervises the run until its command has ended. Dropping this value removes the rest.
    pub(crate) fn watch(
        &mut self,
        command: &Command,
        watch: SupervisionInputs<'_>,
        on_output: Option<Listener<'_>>,
    ) -> Result<ExecutionResult, RunError> {
        self.watch_to_end(command, watch, on_output).map_err(|error| {
            // The command may have planted something before it made the run fail.
            self.kill_and_wait();
            error.with_planted(self.context.guarded.planted())
        })
    }

    /// Tells the process tree to end, without waiting for that. The death of its owner has the same
    /// effect.
    pub(crate) fn order_end(&self) {
        let group = self.group.as_ref().filter(|_| self.ends_by_group);
        let _ = order_end(&self.started, group); // the sandbox may have ended already
    }

    /// Kills every process, and waits until they are gone. The wait is necessary, because a first
    /// process that is killed closes its control socket before the kernel ends the other processes
    /// of its pid namespace.
    fn kill_and_wait(&self) {
        if let Some(group) = &self.group {
            let _ = group.kill(); // the first process, which is in the group, is also killed below
        }
        let pidfd = &self.started.launched.pidfd;
        // The first process may have ended already.
        let _ = rustix::process::pidfd_send_signal(pidfd, rustix::process::Signal::KILL);
        let timeout = Timespec { tv_sec: END_TIMEOUT.as_secs().cast_signed(), tv_nsec: 0 };
        // After a timeout, dropping `started` continues to wait.
        let _ = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&timeout));
    }

    fn watch_to_end(
        &mut self,
        command: &Command,
        watch: SupervisionInputs<'_>,
        on_output: Option<Listener<'_>>,
    ) -> Result<ExecutionResult, RunError> {
        let RunningTree { started, context, group, ends_by_group, egress, .. } = self;
        let deadline = context.time().and_then(|time| Instant::now().checked_add(time));
        let watch = SupervisionInputs {
            deadline,
            group: group.as_ref(),
            ends_by_group: *ends_by_group,
            ..watch
        };
        let meta = context.meta(); // made while the command runs, when nobody waits for it
        let mut outcome =
            supervise(started, watch, on_output).map_err(|source| RunError::Watch { source })?;
        let stream_failure = outcome.stream_failure.take();
        if let Some(limit) = outcome.lost_limit {
            return Err(RunError::LimitLost { limit });
        }
        let oom_killed = group.as_ref().is_some_and(Cgroup::oom_killed);
        let denials = egress.take().map(GateHolder::close).unwrap_or_default();
        // Make the result before an error is returned, because making it remembers what the run
        // planted.
        let result = result(context, meta, outcome, oom_killed, denials, command)?;
        match stream_failure {
            Some(StreamFailure { stream, source }) => Err(RunError::Stream { stream, source }),
            None => Ok(result),
        }
    }
}

/// Fails if a descriptor is a directory, because files in and above that directory could be reached
/// through it, whatever the view shows.
fn refuse_directories(files: &LaunchFiles) -> Result<(), RunError> {
    let is_directory = |fd: BorrowedFd<'_>| {
        fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    };
    let own = [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()];
    let streams = files
        .stdio
        .iter()
        .zip(own)
        .map(|(given, own)| given.as_ref().map_or(own, AsFd::as_fd))
        .zip(0..);
    let passed = files.passed.iter().map(|(number, fd)| (fd.as_fd(), *number));
    match streams.chain(passed).find(|(fd, _)| is_directory(*fd)) {
        Some((_, number)) => Err(RunError::Directory { number }),
        None => Ok(()),
    }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    let _ = fcntl_setpipe_size(&reader, PIPE_SIZE); // a smaller pipe is only slower
    rustix::io::ioctl_fionbio(reader.as_fd(), true)?;
    Ok((reader, writer))
}

/// Makes the result of a run, or the error if the run failed.
fn result(
    context: &RunContext,
    meta: RunMetadata,
    outcome: Outcome,
    oom_killed: bool,
    denials: Vec<Denial>,
    command: &Command,
) -> Result<ExecutionResult, RunError> {
    let program = || command.program.to_string_lossy().into_owned();
    let ending = match outcome.end {
        End::Ended(ending) => Some(ending),
        End::Vanished if outcome.timed_out || oom_killed => None,
        End::Vanished => return Err(RunError::Killed),
        End::SetupFailed { step, errno: 0 } => {
            return Err(RunError::Setup {
                step,
                source: io::Error::other("the kernel gave no error"),
            });
        }
        End::SetupFailed { step, errno } => {
            return Err(RunError::Setup { step, source: io::Error::from_raw_os_error(errno) });
        }
        End::ExecFailed { errno } => {
            let source = io::Error::from_raw_os_error(errno);
            return Err(match source.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                    RunError::NotFound { program: program(), on_host: on_host(command) }
                }
                _ => RunError::NotExecutable { program: program(), source },
            });
        }
    };
    if ending.is_some_and(|ending| !ending.swept) {
        tracing::warn!(
            "processes of the run may be left: no pid namespace and no cgroup held them"
        );
    }
    let exit_code = ending.and_then(|ending| ending.exit_code);
    let signal = ending.map_or(Some(9), |ending| ending.signal);
    let (stdout, stderr) = (outcome.stdout, outcome.stderr);
    let usage = ending.map(|ending| ending.usage).unwrap_or_default();
    Ok(ExecutionResult {
        id: identity(),
        exit_code,
        signal,
        ok: exit_code == Some(0) && !outcome.timed_out,
        timed_out: outcome.timed_out,
        oom_killed,
        stdout: stdout.0,
        stderr: stderr.0,
        dropped: DroppedBytes { stdout: stdout.1, stderr: stderr.1 },
        duration: outcome.duration.as_secs_f64(),
        meta: RunMetadata {
            usage: RunUsage { cpu_seconds: usage.cpu_micros as f64 / 1e6, max_rss: usage.max_rss },
            denials,
            planted: context.guarded.planted(),
            ..meta
        },
    })
}

/// Returns the path on the host of a command that does not exist inside.
fn on_host(command: &Command) -> Option<String> {
    let path = std::path::Path::new(&command.program);
    (path.is_absolute() && path.exists()).then(|| path.display().to_string())
}

pub(crate) fn status(result: &ExecutionResult) -> ExitStatus {
    match (result.timed_out, result.exit_code, result.signal) {
        (true, _, _) => ExitStatus::Deadline,
        (false, Some(code), _) => ExitStatus::Code(code as u8),
        (false, None, signal) => ExitStatus::Signal(signal.unwrap_or(9) as u8),
    }
}

/// Returns a random id that no other run has.
pub(crate) fn identity() -> String {
    let mut bytes = [0; size_of::<u128>()];
    // On failure the id is all zeroes, which is valid, too.
    let _ = rustix::rand::getrandom(&mut bytes[..12], rustix::rand::GetRandomFlags::empty());
    format!("{:024x}", u128::from_le_bytes(bytes))
}
