//! One interpreter that waits for code in a sandbox of its own, and then runs the code.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fs_err::File;
use ringfence_core::policy::Span;
use ringfence_core::{ExecutionResult, Policy};
use ringfence_linux::control;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

use crate::code::CodeError;
use crate::code::script::{LintResult, Script};
use crate::code::stage::CodeStage;
use crate::engine::Core;
use crate::host_paths::granted::MountTable;
use crate::host_paths::untrusted;
use crate::host_paths::workspace::ResolvedWorkspace;
use crate::run::end_report::{CommandTree, EndReport};
use crate::run::launch::LaunchedRun;
use crate::run::prepare::{Purpose, RunRoute};
use crate::run::supervise::{Capture, SupervisionInputs};
use crate::view::Guarded;
use crate::{Command, RunError};

/// Program that an interpreter runs until there is code.
pub(in crate::code) const INTERPRETER_SCRIPT: &str = include_str!("interpreter.py");
/// Number of the socket's descriptor in the interpreter. It is the highest number, so that code
/// finds the lower ones free.
const CHANNEL_DESCRIPTOR: i32 = crate::HIGHEST_CALLER_DESCRIPTOR;
/// Longest time that the interpreter may take to import its modules.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(60);
/// Time after the start of code in which the watching thread polls without sleeping. It is a small
/// part of the time that the start of the next interpreter costs.
const BUSY_POLL_TIME: Duration = Duration::from_millis(1);
/// Longest message with which the interpreter reports that it is ready, in bytes.
const MAX_READY_BYTES: usize = 16 * 1024;
/// Longest excerpt of the interpreter's output in an error, in characters.
const MAX_EXCERPT_CHARS: usize = 500;

/// Description from which a [`WarmInterpreter`] is started.
#[derive(Debug, Clone)]
pub(super) struct InterpreterSpec {
    pub(super) policy: Policy,
    /// Script that waits: [`INTERPRETER_SCRIPT`], in the language of the code.
    pub(super) interpreter: Script,
    /// Modules that are imported beforehand, in one line.
    pub(super) preload: String,
}

/// An interpreter that waits for code.
#[derive(Debug)]
pub(super) struct WarmInterpreter {
    /// Run of the interpreter; dropped before its directory in `stage`.
    launched_run: LaunchedRun,
    capture: Capture,
    command: Command,
    channel: Arc<OwnedFd>,
    /// File that the code is written to. It is emptied after the interpreter has read its own
    /// program from it.
    file: Arc<File>,
    tree: Option<CommandTree>,
    /// Modules that could not be imported, each with the reason.
    pub(super) not_imported: Vec<String>,
    stage: CodeStage,
}

/// State of a workspace at the start of an interpreter.
#[derive(Debug)]
pub(super) struct GuardedState {
    policy: Policy,
    workspace: ResolvedWorkspace,
    guarded: Guarded,
}

impl GuardedState {
    /// Returns true if a new search finds the same guarded paths in the workspace.
    pub(super) fn is_unchanged(&self, core: &Core) -> bool {
        let guarded = core.guarded(&self.policy, &self.workspace, &MountTable::read());
        guarded.is_ok_and(|guarded| guarded.is_same(&self.guarded))
    }
}

/// Event that ends the wait of an interpreter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InterpreterEvent {
    /// The owner has code for the interpreter.
    Called,
    /// The owner no longer needs the interpreter.
    Dismissed,
    /// The interpreter wrote to its socket or ended.
    Ended,
}

impl WarmInterpreter {
    /// Starts an interpreter, and waits until it is ready for code. The interpreter is ended when
    /// the other end of `line` closes.
    pub(super) fn start(
        core: &Core,
        spec: &InterpreterSpec,
        line: &OwnedFd,
    ) -> Result<WarmInterpreter, CodeError> {
        let stage =
            CodeStage::new(&core.settings, &spec.policy, &spec.interpreter, LintResult::default())?;
        let RunRoute::Launch(ready) =
            core.prepare_run(&stage.policy, &stage.command, Purpose::Run)?
        else {
            return Err(CodeError::NotWaiting {
                why: "in a container none is started beforehand".to_owned(),
            });
        };
        spec.interpreter.check(ready.context.plan.backend)?;
        let failed = |source| RunError::Setup {
            step: "make a socket for the interpreter".to_owned(),
            source,
        };
        let (channel, theirs) = control::socket_pair().map_err(failed)?;
        // No deadline yet, because the time of the code begins when there is code.
        let (launched_run, capture) =
            core.launch_captured(*ready, vec![(CHANNEL_DESCRIPTOR, theirs)], None)?;
        let file = File::options()
            .write(true)
            .open(&stage.file)
            .map_err(|source| CodeError::Stage { source })?;
        let command = stage.command.clone();
        let mut child = WarmInterpreter {
            launched_run,
            capture,
            command,
            channel: Arc::new(channel),
            file: Arc::new(file),
            tree: None,
            not_imported: Vec::new(),
            stage,
        };
        child.send_modules(spec, line)?;
        // Empty the file now, through a descriptor of its own: ext4 writes a file that was
        // truncated to the disk when it is closed.
        fs_err::write(&child.stage.file, "").map_err(|source| CodeError::Stage { source })?;
        child.tree = CommandTree::find(child.launched_run.started.launched.pid);
        Ok(child)
    }

    /// Returns the file that the code is written to.
    pub(super) fn file(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    /// Returns the state of the workspace at the start, if the policy names a workspace, which
    /// others can change, too.
    pub(super) fn guarded_state(&self, spec: &InterpreterSpec) -> Option<GuardedState> {
        let context = &self.launched_run.context;
        let (workspace, guarded) = (context.workspace.clone(), context.guarded.clone());
        let is_shared = spec.policy.filesystem.workspace.is_some();
        is_shared.then(|| GuardedState { policy: self.stage.policy.clone(), workspace, guarded })
    }

    /// Returns the socket on which the interpreter learns that code is ready.
    pub(super) fn channel(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.channel)
    }

    /// Sends the list of modules to import, and waits for the message that the interpreter is
    /// ready.
    fn send_modules(&mut self, spec: &InterpreterSpec, line: &OwnedFd) -> Result<(), CodeError> {
        let lost = |why: &str| CodeError::NotWaiting { why: why.to_owned() };
        let sent = rustix::net::send(&*self.channel, spec.preload.as_bytes(), SendFlags::NOSIGNAL);
        if sent.is_ok() {
            match self.poll(line, Some(Instant::now() + IMPORT_TIMEOUT)) {
                None => return Err(lost("its imports did not end in time")),
                Some(InterpreterEvent::Called | InterpreterEvent::Dismissed) => {
                    return Err(lost("it is no longer needed"));
                }
                Some(InterpreterEvent::Ended) => {}
            }
            let mut buffer = [0; MAX_READY_BYTES];
            let heard = rustix::net::recv(&*self.channel, &mut buffer[..], RecvFlags::DONTWAIT);
            let length = heard.map_or(0, |(_, length)| length);
            let text = String::from_utf8_lossy(&buffer[..length]);
            let mut lines = text.lines();
            if lines.next() == Some("ready") {
                self.not_imported = lines.map(untrusted::printable).collect();
                return Ok(());
            }
        }
        // The interpreter has ended: its status and its output say why.
        let watch = SupervisionInputs {
            capture: Some(&mut self.capture),
            cancel: Some(line.as_fd()),
            ..SupervisionInputs::default()
        };
        let ExecutionResult { exit_code, signal, stderr, .. } =
            self.launched_run.watch(&self.command, watch, None)?;
        let how = exit_code.map_or_else(
            || format!("ended by signal {}", signal.unwrap_or_default()),
            |code| format!("exited with {code}"),
        );
        let said: String =
            untrusted::printable(stderr.trim()).chars().take(MAX_EXCERPT_CHARS).collect();
        Err(CodeError::NotWaiting {
            why: format!("it {how}; {said}").trim_end_matches(['.', ';', ' ']).to_owned(),
        })
    }

    /// Waits for a call of the owner, or for the end of the interpreter.
    pub(super) fn wait(&self, line: &OwnedFd) -> InterpreterEvent {
        self.poll(line, None).unwrap_or(InterpreterEvent::Ended)
    }

    /// Waits until the owner calls, or until the interpreter writes or ends. Returns `None` at the
    /// deadline.
    fn poll(&self, line: &OwnedFd, deadline: Option<Instant>) -> Option<InterpreterEvent> {
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            let mut fds =
                [PollFd::new(line, PollFlags::IN), PollFd::new(&*self.channel, PollFlags::IN)];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(_) => return Some(InterpreterEvent::Dismissed),
            }
            if fds[0].revents().contains(PollFlags::IN) {
                let _ = is_called(line); // poll has found the byte, so this read cannot block
                return Some(InterpreterEvent::Called);
            }
            return Some(if fds[0].revents().is_empty() {
                InterpreterEvent::Ended
            } else {
                InterpreterEvent::Dismissed
            });
        }
    }

    /// Watches the code that the interpreter was told of, for at most `time`. Returns `None` if the
    /// interpreter ended before it read the code.
    pub(super) fn run(
        &mut self,
        time: Duration,
        line: &OwnedFd,
    ) -> Option<Result<ExecutionResult, RunError>> {
        self.launched_run.context.plan.policy.limits.time = Some(Span::from(time));
        // Read the usage once while the code runs, because the first read takes longest and the
        // next one comes when the code ends.
        let mut fds = [PollFd::new(&*self.channel, PollFlags::IN)];
        if poll(&mut fds, Some(&Timespec::default())) == Ok(0) {
            let _ = self.tree.as_ref().and_then(CommandTree::usage);
        }
        let was_told = Cell::new(None);
        let watch = SupervisionInputs {
            capture: Some(&mut self.capture),
            cancel: Some(line.as_fd()),
            end_report: Some(EndReport::on(&self.channel, self.tree.as_ref(), &was_told)),
            awake_until: Some(Instant::now() + BUSY_POLL_TIME),
            ..SupervisionInputs::default()
        };
        let result = self.launched_run.watch(&self.command, watch, None);
        let was_killed =
            result.as_ref().map_or(true, |result| result.signal.is_some() && !result.timed_out);
        (!was_killed || was_told.get().unwrap_or_else(|| self.has_read_code())).then_some(result)
    }

    /// Returns true if an interpreter that has ended had read the message about the code. A socket
    /// that is closed with unread data resets its peer (unix(7)).
    fn has_read_code(&self) -> bool {
        // The first process holds the other end, too, and ends now. The call fails if that process
        // is gone already.
        let _ = rustix::net::shutdown(&self.launched_run.started.control, Shutdown::Both);
        let mut fds = [PollFd::new(&*self.channel, PollFlags::IN)];
        // An interpreter that does not end in time has read the message.
        let _ = poll(&mut fds, Timespec::try_from(IMPORT_TIMEOUT).ok().as_ref());
        rustix::net::recv(&*self.channel, &mut [0][..], RecvFlags::DONTWAIT)
            != Err(Errno::CONNRESET)
    }
}

/// Waits for the owner's call. Returns false when the owner is gone.
pub(super) fn is_called(line: &OwnedFd) -> bool {
    rustix::io::retry_on_intr(|| rustix::io::read(line, &mut [0])) == Ok(1)
}
