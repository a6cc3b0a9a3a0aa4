//! Third stage of a run: starts the process tree of a prepared run, and keeps what the tree needs
//! until it has ended.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ringfence_core::ExecutionResult;
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
use crate::run::plan::PlannedRun;
use crate::run::prepare::PreparedRun;
use crate::run::result::make_result;
use crate::run::supervise::{
    Capture, Listener, PIPE_SIZE, SupervisionInputs, order_end, supervise,
};
use crate::{Command, RunError};

/// Time that the processes of a run that failed have to end.
const END_TIMEOUT: Duration = Duration::from_secs(6);

/// A launch that was started, and the resources that must exist as long as it runs.
#[derive(Debug)]
pub(crate) struct LaunchedRun {
    /// The started launch. This field is dropped first, so that the resources below are removed
    /// only after every process has ended.
    pub(crate) started: StartedSandbox,
    pub(crate) context: PlannedRun,
    pub(crate) group: Option<Cgroup>,
    /// True if only the control group can end the whole process tree.
    pub(crate) ends_by_group: bool,
    /// Holder of the gate of the sandbox's network.
    pub(crate) egress: Option<GateHolder>,
    /// Directory on the host that is removed with the run.
    _private: Option<PrivateDirectory>,
}

impl Core {
    /// Starts a run with no input and with pipes for its output. The run may take `time` at most.
    pub(crate) fn launch_captured(
        &self,
        prepared: PreparedRun,
        passed: Vec<(i32, OwnedFd)>,
        time: Option<Duration>,
    ) -> Result<(LaunchedRun, Capture), RunError> {
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
        let limit =
            prepared.context.plan.policy.limits.output.map_or(u64::MAX, |size| size.bytes());
        let files = LaunchFiles {
            stdio: [Some(null), Some(stdout_inside), Some(stderr_inside)],
            terminal: None,
            gate: None,
            passed,
        };
        let running = self.launch(prepared, files, TerminalMode::Detached, time)?;
        Ok((running, Capture::new([stdout, stderr], limit)))
    }

    /// Starts a prepared run, which may take `time` at most.
    pub(crate) fn launch(
        &self,
        prepared: PreparedRun,
        mut files: LaunchFiles,
        terminal: TerminalMode,
        time: Option<Duration>,
    ) -> Result<LaunchedRun, RunError> {
        refuse_directories(&files)?;
        let PreparedRun { context, preparation } = prepared;
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
        Ok(LaunchedRun { started, context, group, ends_by_group, egress, _private: private })
    }
}

impl LaunchedRun {
    /// Supervises the run until it has ended and nothing of it is left.
    pub(super) fn finish(
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
        let LaunchedRun { started, context, group, ends_by_group, egress, .. } = self;
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
        let result = make_result(context, meta, outcome, oom_killed, denials, command)?;
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
