//! Interpreters that wait for code: they are started, confined, and have imported modules before
//! there is any code.
//!
//! Each interpreter is a process tree in a sandbox of its own, as code that is run cold has, and
//! runs one piece of code. It is not forked from another interpreter, so its addresses, its hash
//! seeds and the state of its random generators are its own. [`child`] is one interpreter, and
//! `interpreter.py` is the program that it runs until there is code. This file keeps the pool of
//! them.

mod child;

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::time::{Duration, Instant};

use fs_err::File;
use fs_err::os::unix::fs::FileExt;
use ringfence_core::{ExecutionResult, Policy};
use rustix::net::SendFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::sync::{oneshot, watch};

use super::script::{LintResult, Script};
use super::stage::ResultBuilder;
use super::{CodeError, time_limit, with_time};
use crate::engine::Core;
use crate::{Engine, RunError, chain};
pub(super) use child::INTERPRETER_SCRIPT;
use child::{GuardedState, InterpreterEvent, InterpreterSpec, WarmInterpreter, is_called};

/// Longest code, in bytes, that is sent to an interpreter in a message. Longer code is read from
/// the file.
const MAX_SENT_CODE_BYTES: usize = 8 * 1024;

/// Pool of interpreters that wait for code, each in a sandbox of its own that it never leaves and
/// that nothing else enters. Each interpreter runs one piece of code and is then replaced. Dropping
/// the last handle ends all of them.
///
/// The settings say how many interpreters are kept and which modules they import beforehand
/// ([`crate::CodeSettings::warm`] and [`crate::CodeSettings::preload`]). Each interpreter takes the
/// memory of an interpreter with these modules: some 10 MB, and 70 MB with pandas. The memory limit
/// of a policy counts this memory.
#[derive(Debug, Clone)]
pub struct Interpreters {
    pool: Arc<InterpreterPool>,
}

impl Engine {
    /// Keeps interpreters of `language`, which must be a Python language, behind `policy`. The
    /// first interpreters are started now, and this function does not wait for them. Until one is
    /// ready, code runs as by [`Engine::execute_code`].
    pub fn interpreters(&self, policy: &Policy, language: &str) -> Result<Interpreters, CodeError> {
        let settings = &self.core.settings.code;
        let interpreter = Script::new(settings, INTERPRETER_SCRIPT, language)?;
        if !interpreter.language.is_python() {
            return Err(CodeError::NotPython { language: language.to_owned() });
        }
        let policy = with_time(policy, None);
        let (changed, _) = watch::channel(());
        let pool = Arc::new(InterpreterPool {
            core: Arc::clone(&self.core),
            policy_sha256: policy.sha256(),
            spec: Arc::new(InterpreterSpec {
                policy,
                interpreter,
                preload: settings.preload_line(),
            }),
            state: Mutex::default(),
            changed,
        });
        pool.refill();
        Ok(Interpreters { pool })
    }
}

impl Interpreters {
    /// Runs code in an interpreter that waits, or cold if none waits, and returns its result.
    /// Dropping the future ends every process of the code.
    ///
    /// Everything else is as with [`Engine::execute_code`], and
    /// [`crate::result::RunMetadata::warm`] tells the two apart. Modules that were imported
    /// beforehand are in `sys.modules`, and two frames of the interpreter program are below the
    /// code's own frames.
    pub async fn execute_code(
        &self,
        code: &str,
        timeout: Option<Duration>,
    ) -> Result<ExecutionResult, CodeError> {
        let InterpreterPool { core, spec, .. } = &*self.pool;
        let script = Script::new(&core.settings.code, code, &spec.interpreter.name)?;
        let lint = match script.is_linted() {
            false => LintResult::default(),
            true => {
                let looked_at = script.clone();
                tokio::task::spawn_blocking(move || looked_at.lint())
                    .await
                    .expect("the lint answers in any case")
            }
        };
        let mut timeout = timeout;
        if !lint.blocks
            && let Some(waiting) = self.pool.take_current().await
        {
            let begun = Instant::now();
            let time = time_limit(timeout, spec.policy.limits.time.map(|time| time.duration()));
            if let Some(outcome) = waiting.run(code, time).await {
                let policy_sha256 = match timeout {
                    None => self.pool.policy_sha256.clone(),
                    Some(_) => with_time(&spec.policy, timeout).sha256(),
                };
                let mut result =
                    ResultBuilder::new(script, lint, policy_sha256).complete(outcome)?;
                result.meta.warm = true;
                return Ok(result);
            }
            // The time limit counts from the call, so subtract the time of the attempt above.
            timeout = Some(time.saturating_sub(begun.elapsed()));
        }
        self.pool.refill();
        let engine = Engine { core: Arc::clone(core) };
        engine.execute_code(&spec.policy, code, &spec.interpreter.name, timeout).await
    }

    /// Waits until the pool is full, or until an interpreter could not be started.
    pub async fn ready(&self) {
        let mut changed = self.pool.changed.subscribe();
        loop {
            {
                let state = self.pool.state();
                let waiting = state.entries.iter().filter(|entry| entry.waiting.is_some()).count();
                if waiting >= self.pool.size() || state.trouble.is_some() {
                    return;
                }
            }
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Returns the number of interpreters that wait.
    pub fn waiting(&self) -> usize {
        self.pool.state().entries.iter().filter(|entry| entry.waiting.is_some()).count()
    }

    /// Returns the modules that could not be imported beforehand, each with the reason. Code runs
    /// without them.
    pub fn not_imported(&self) -> Vec<String> {
        self.pool.state().not_imported.clone()
    }

    /// Returns the reason why the last interpreter could not be started. Meanwhile code runs cold.
    pub fn trouble(&self) -> Option<String> {
        self.pool.state().trouble.clone()
    }
}

#[derive(Debug)]
struct InterpreterPool {
    core: Arc<Core>,
    spec: Arc<InterpreterSpec>,
    policy_sha256: String,
    state: Mutex<PoolState>,
    /// Notifies waiters of [`Interpreters::ready`] that the state has changed.
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct PoolState {
    entries: Vec<PoolEntry>,
    /// Number of the next entry.
    next: u64,
    not_imported: Vec<String>,
    trouble: Option<String>,
}

/// Entry of the pool for an interpreter that is being started or waits.
#[derive(Debug)]
struct PoolEntry {
    number: u64,
    /// Pipe to the interpreter's thread; closing it ends the interpreter.
    line: OwnedFd,
    waiting: Option<WaitingInterpreter>,
}

/// Handles through which a waiting interpreter gets code.
#[derive(Debug)]
struct WaitingInterpreter {
    calls: mpsc::SyncSender<RunRequest>,
    channel: Arc<OwnedFd>,
    file: Arc<File>,
    scene: Option<Arc<GuardedState>>,
}

/// Request to run the code that was just written.
#[derive(Debug)]
struct RunRequest {
    begun: Instant,
    time: Duration,
    answer: oneshot::Sender<Result<ExecutionResult, RunError>>,
}

/// An interpreter that was taken from the pool. Dropping it ends the interpreter.
#[derive(Debug)]
struct TakenInterpreter {
    line: OwnedFd,
    waiting: WaitingInterpreter,
}

impl TakenInterpreter {
    /// Gives the interpreter the code, and waits for the result. Returns `None` if the interpreter
    /// ended before it had the code.
    async fn run(self, code: &str, time: Duration) -> Option<Result<ExecutionResult, RunError>> {
        let TakenInterpreter { line, waiting: WaitingInterpreter { calls, channel, file, .. } } =
            self;
        let (answer, result) = oneshot::channel();
        calls.try_send(RunRequest { begun: Instant::now(), time, answer }).ok()?;
        let say =
            |words: &str| rustix::net::send(&*channel, words.as_bytes(), SendFlags::NOSIGNAL).ok();
        // Write on this thread, because to wake another thread would take longer than the writes
        // take. Short code is compiled while its file is written.
        let is_short = code.len() <= MAX_SENT_CODE_BYTES;
        if is_short {
            say(&["!", code].concat())?;
        }
        file.write_all_at(code.as_bytes(), 0).ok()?;
        if !is_short {
            say("!")?;
        }
        say("!")?;
        rustix::io::write(&line, b"!").ok()?;
        let result = result.await.ok();
        drop(line); // kept until now, so that dropping this future ends the run
        result
    }
}

impl InterpreterPool {
    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of interpreters that the pool keeps.
    fn size(&self) -> usize {
        self.core.settings.code.warm
    }

    /// Takes an interpreter that waits.
    fn take(&self) -> Option<TakenInterpreter> {
        let mut state = self.state();
        let index = state.entries.iter().position(|entry| entry.waiting.is_some())?;
        let PoolEntry { line, waiting, .. } = state.entries.remove(index);
        Some(TakenInterpreter { line, waiting: waiting? })
    }

    /// Takes an interpreter that waits and sees the same as an interpreter that is started now. In
    /// a workspace that others change, too, an interpreter has only those paths hidden and
    /// protected that existed at its start.
    async fn take_current(&self) -> Option<TakenInterpreter> {
        loop {
            let taken = self.take()?;
            let Some(scene) = taken.waiting.scene.clone() else { return Some(taken) };
            let core = Arc::clone(&self.core);
            let looked = tokio::task::spawn_blocking(move || scene.is_unchanged(&core)).await;
            if looked.expect("looking at a workspace does not panic") {
                return Some(taken);
            }
        }
    }

    /// Starts the missing interpreters, a few at a time. After a warm run, the pool is refilled
    /// when the code has ended and not when it begins, so that the code does not share the
    /// processors with a start.
    fn refill(self: &Arc<InterpreterPool>) {
        let at_once =
            std::thread::available_parallelism().map_or(1, |count| count.get().div_ceil(2));
        let mut state = self.state();
        while state.entries.len() < self.size()
            && state.entries.iter().filter(|entry| entry.waiting.is_none()).count() < at_once
        {
            let Ok((own, line)) = pipe_with(PipeFlags::CLOEXEC) else { return };
            let number = state.next;
            state.next += 1;
            state.entries.push(PoolEntry { number, line, waiting: None });
            let (pool, core, spec) =
                (Arc::downgrade(self), Arc::clone(&self.core), Arc::clone(&self.spec));
            std::thread::spawn(move || keep(&pool, &core, &spec, number, &own));
        }
    }

    /// Records that an interpreter waits, if its entry still exists.
    fn add_waiting(
        self: &Arc<InterpreterPool>,
        number: u64,
        child: &WarmInterpreter,
        calls: mpsc::SyncSender<RunRequest>,
    ) {
        let scene = child.guarded_state(&self.spec).map(Arc::new);
        let waiting =
            WaitingInterpreter { calls, channel: child.channel(), file: child.file(), scene };
        let mut state = self.state();
        if let Some(entry) = state.entries.iter_mut().find(|entry| entry.number == number) {
            entry.waiting = Some(waiting);
        }
        state.trouble = None;
        if state.not_imported != child.not_imported {
            state.not_imported.clone_from(&child.not_imported);
            for module in &child.not_imported {
                tracing::warn!(module, "a module could not be imported beforehand");
            }
        }
        drop(state);
        self.changed.send_replace(());
        self.refill();
    }

    /// Removes the entry of an interpreter that has ended.
    fn remove_entry(&self, number: u64, trouble: Option<String>) {
        let mut state = self.state();
        state.entries.retain(|entry| entry.number != number);
        if let Some(trouble) = &trouble {
            tracing::warn!(trouble, "no interpreter waits for code");
        }
        state.trouble = trouble;
        drop(state);
        self.changed.send_replace(());
    }
}

/// Runs one interpreter from its start to its end, on a thread of its own.
fn keep(
    pool: &Weak<InterpreterPool>,
    core: &Core,
    spec: &InterpreterSpec,
    number: u64,
    line: &OwnedFd,
) {
    let mut child = match WarmInterpreter::start(core, spec, line) {
        Ok(child) => child,
        Err(error) => {
            // Do not try again before there is code to run, because the same error would occur
            // again.
            if let Some(pool) = pool.upgrade() {
                pool.remove_entry(number, Some(chain(&error)));
            }
            return;
        }
    };
    let (sender, calls) = mpsc::sync_channel(1);
    let Some(owner) = pool.upgrade() else { return };
    owner.add_waiting(number, &child, sender);
    drop(owner);
    let called = match child.wait(line) {
        InterpreterEvent::Called => calls.try_recv().ok(),
        InterpreterEvent::Dismissed => return,
        // The interpreter may have read the code, and may have ended, before this thread sees the
        // call.
        InterpreterEvent::Ended => calls.try_recv().ok().filter(|_| is_called(line)),
    };
    if let Some(RunRequest { begun, time, answer }) = called {
        if let Some(result) = child.run(time, line) {
            let duration = begun.elapsed().as_secs_f64();
            // If nobody waits, the run was ended by its caller.
            let _ = answer.send(result.map(|result| ExecutionResult { duration, ..result }));
            std::thread::yield_now(); // let the thread that waits for the result go first
        }
    } else if let Some(pool) = pool.upgrade() {
        pool.remove_entry(number, None);
    }
    drop(child);
    if let Some(pool) = pool.upgrade() {
        pool.refill();
    }
}
