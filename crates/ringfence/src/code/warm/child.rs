//! One interpreter that waits for code, in a sandbox of its own, and runs it.

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
use crate::code::script::{Lint, Script};
use crate::code::stage::Stage;
use crate::engine::Core;
use crate::last_word::{LastWord, Tree};
use crate::ready::{Prepared, Purpose};
use crate::run::Underway;
use crate::supervise::{Capture, Watch};
use crate::view::Guarded;
use crate::workspace::ResolvedWorkspace;
use crate::{Command, RunError, untrusted};

/// What an interpreter that waits is made to run first.
pub(in crate::code) const INTERPRETER: &str = include_str!("interpreter.py");
/// The descriptor that it is spoken to by: the highest there is, for code is to find the lower ones free.
const CHANNEL: i32 = crate::HIGHEST_DESCRIPTOR;
/// How long it may take to import what it is to import.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long nobody sleeps over code that was begun: a small part of what the next interpreter costs.
const AWAKE: Duration = Duration::from_millis(1);
/// The longest that it says when it is ready.
const LONGEST: usize = 16 * 1024;
/// How much of what it wrote is told when it never came to wait.
const TOLD: usize = 500;

/// How a child is made.
#[derive(Debug, Clone)]
pub(super) struct Recipe {
    pub(super) policy: Policy,
    /// What waits: [`INTERPRETER`], in the language of the code.
    pub(super) interpreter: Script,
    /// The modules that are imported beforehand, in one line.
    pub(super) preload: String,
}

/// An interpreter that waits.
#[derive(Debug)]
pub(super) struct Child {
    /// Dropped before its directory is.
    underway: Underway,
    capture: Capture,
    command: Command,
    channel: Arc<OwnedFd>,
    /// Where the code goes; empty, once the interpreter has read its own text there.
    file: Arc<File>,
    tree: Option<Tree>,
    /// What could not be imported, and why.
    pub(super) not_imported: Vec<String>,
    stage: Stage,
}

/// What a workspace was like when an interpreter was started in it.
#[derive(Debug)]
pub(super) struct Scene {
    policy: Policy,
    workspace: ResolvedWorkspace,
    guarded: Guarded,
}

impl Scene {
    /// Whether the same of it would be guarded now.
    pub(super) fn is_as_it_was(&self, core: &Core) -> bool {
        core.guarded(&self.policy, &self.workspace).is_ok_and(|guarded| guarded.is_same(&self.guarded))
    }
}

/// What an interpreter waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// Its owner has something for it.
    Called,
    /// Its owner has no more use for it.
    Dismissed,
    /// It has ended by itself.
    Ended,
}

impl Child {
    /// Starts one, and waits until it waits. `line` ends it when its other end closes.
    pub(super) fn start(core: &Core, recipe: &Recipe, line: &OwnedFd) -> Result<Child, CodeError> {
        let stage = Stage::new(&core.settings, &recipe.policy, &recipe.interpreter, Lint::default())?;
        let Prepared::Launch(ready) = core.ready(&stage.policy, &stage.command, Purpose::Run)? else {
            return Err(CodeError::NotWaiting { why: "in a container none is started beforehand".to_owned() });
        };
        recipe.interpreter.check(ready.context.plan.backend)?;
        let failed = |source| RunError::Setup { step: "make a socket for the interpreter".to_owned(), source };
        let (channel, theirs) = control::pair().map_err(failed)?;
        // Its time begins when there is code for it.
        let (underway, capture) = core.launch_captured(*ready, vec![(CHANNEL, theirs)], None)?;
        let file = File::options().write(true).open(&stage.file).map_err(|source| CodeError::Stage { source })?;
        let command = stage.command.clone();
        let mut child = Child {
            underway,
            capture,
            command,
            channel: Arc::new(channel),
            file: Arc::new(file),
            tree: None,
            not_imported: Vec::new(),
            stage,
        };
        child.greet(recipe, line)?;
        // Now, and by an opening of its own: ext4 writes a file that was emptied to the disk when it is closed again.
        fs_err::write(&child.stage.file, "").map_err(|source| CodeError::Stage { source })?;
        child.tree = Tree::of(child.underway.started.launched.pid);
        Ok(child)
    }

    /// Where the code goes.
    pub(super) fn file(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    /// What its workspace was like, if it is one that others change, too.
    pub(super) fn scene(&self, recipe: &Recipe) -> Option<Scene> {
        let context = &self.underway.context;
        let (workspace, guarded) = (context.workspace.clone(), context.guarded.clone());
        let is_shared = recipe.policy.filesystem.workspace.is_some();
        is_shared.then(|| Scene { policy: self.stage.policy.clone(), workspace, guarded })
    }

    /// The socket that it is told by that there is code.
    pub(super) fn channel(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.channel)
    }

    /// Says what it is to import, and hears that it is ready.
    fn greet(&mut self, recipe: &Recipe, line: &OwnedFd) -> Result<(), CodeError> {
        let lost = |why: &str| CodeError::NotWaiting { why: why.to_owned() };
        let sent = rustix::net::send(&*self.channel, recipe.preload.as_bytes(), SendFlags::NOSIGNAL);
        if sent.is_ok() {
            match self.poll(line, Some(Instant::now() + PATIENCE)) {
                None => return Err(lost("it does not come to an end with its imports")),
                Some(Event::Called | Event::Dismissed) => return Err(lost("it is not wanted any more")),
                Some(Event::Ended) => {}
            }
            let mut buffer = [0; LONGEST];
            let heard = rustix::net::recv(&*self.channel, &mut buffer[..], RecvFlags::DONTWAIT);
            let length = heard.map_or(0, |(_, length)| length);
            let text = String::from_utf8_lossy(&buffer[..length]);
            let mut lines = text.lines();
            if lines.next() == Some("ready") {
                self.not_imported = lines.map(untrusted::printable).collect();
                return Ok(());
            }
        }
        // It has ended: how, and with what words, says why.
        let watch = Watch { capture: Some(&mut self.capture), cancel: Some(line.as_fd()), ..Watch::default() };
        let ExecutionResult { exit_code, signal, stderr, .. } = self.underway.watch(&self.command, watch, None)?;
        let how = exit_code.map_or_else(
            || format!("ended by signal {}", signal.unwrap_or_default()),
            |code| format!("exited with {code}"),
        );
        let said: String = untrusted::printable(stderr.trim()).chars().take(TOLD).collect();
        Err(CodeError::NotWaiting { why: format!("it {how}; {said}").trim_end_matches(['.', ';', ' ']).to_owned() })
    }

    /// Waits for its owner, and for its end.
    pub(super) fn wait(&self, line: &OwnedFd) -> Event {
        self.poll(line, None).unwrap_or(Event::Ended)
    }

    /// Waits until its owner calls, or it says something or ends; none when it is too late.
    fn poll(&self, line: &OwnedFd, deadline: Option<Instant>) -> Option<Event> {
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            let mut fds = [PollFd::new(line, PollFlags::IN), PollFd::new(&*self.channel, PollFlags::IN)];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(_) => return Some(Event::Dismissed),
            }
            if fds[0].revents().contains(PollFlags::IN) {
                let _ = is_called(line); // it is there to be read
                return Some(Event::Called);
            }
            return Some(if fds[0].revents().is_empty() { Event::Ended } else { Event::Dismissed });
        }
    }

    /// Sees the code through that it was told of, for `time` at most; none if it ended before it heard of it.
    pub(super) fn run(&mut self, time: Duration, line: &OwnedFd) -> Option<Result<ExecutionResult, RunError>> {
        self.underway.context.plan.policy.limits.time = Some(Span::from(time));
        // What will be asked at the end is asked once while the code runs: the first time takes longest.
        let mut fds = [PollFd::new(&*self.channel, PollFlags::IN)];
        if poll(&mut fds, Some(&Timespec::default())) == Ok(0) {
            let _ = self.tree.as_ref().and_then(Tree::usage);
        }
        let was_told = Cell::new(None);
        let watch = Watch {
            capture: Some(&mut self.capture),
            cancel: Some(line.as_fd()),
            last_word: Some(LastWord::on(&self.channel, self.tree.as_ref(), &was_told)),
            awake_until: Some(Instant::now() + AWAKE),
            ..Watch::default()
        };
        let result = self.underway.watch(&self.command, watch, None);
        let was_killed = result.as_ref().map_or(true, |result| result.signal.is_some() && !result.timed_out);
        (!was_killed || was_told.get().unwrap_or_else(|| self.has_heard())).then_some(result)
    }

    /// Whether one that has ended had heard of the code: what closes a socket with words unread resets it (unix(7)).
    fn has_heard(&self) -> bool {
        // The first process holds the other end, too, and goes now.
        let _ = rustix::net::shutdown(&self.underway.started.control, Shutdown::Both); // it may be gone already
        let mut fds = [PollFd::new(&*self.channel, PollFlags::IN)];
        let _ = poll(&mut fds, Timespec::try_from(PATIENCE).ok().as_ref()); // what does not end by then has heard
        rustix::net::recv(&*self.channel, &mut [0][..], RecvFlags::DONTWAIT) != Err(Errno::CONNRESET)
    }
}

/// Waits for an owner's call; false when the owner is gone.
pub(super) fn is_called(line: &OwnedFd) -> bool {
    rustix::io::retry_on_intr(|| rustix::io::read(line, &mut [0])) == Ok(1)
}
