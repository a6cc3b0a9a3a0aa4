//! Interpreters that wait for code: started, confined and with modules imported before there is any.
//!
//! Each is a process tree in a sandbox of its own, as code that is run cold has one, and runs one piece of code. It is not
//! forked from another: addresses, hash seeds and the state of random generators are its own. [`child`] is one of them,
//! `interpreter.py` what it runs until there is code; here is who keeps them.

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

use super::script::{Lint, Script};
use super::stage::Teller;
use super::{CodeError, time, with_time};
use crate::engine::Core;
use crate::{Engine, RunError, chain};
pub(super) use child::INTERPRETER;
use child::{Child, Event, Recipe, Scene, is_called};

/// The longest code that an interpreter is told rather than left to read.
const SHORT: usize = 8 * 1024;

/// Interpreters that wait for code, each in a sandbox of its own that it never leaves and nothing else ever enters. Each
/// runs one piece of code, and is then replaced. Dropping the last handle ends them all.
///
/// How many there are and what they import beforehand is in the settings ([`crate::CodeSettings::warm`] and
/// [`crate::CodeSettings::preload`]). Each takes the memory of an interpreter with these modules: some 10 MB, and 70 MB
/// with pandas; a policy's memory limit counts it.
#[derive(Debug, Clone)]
pub struct Interpreters {
    pool: Arc<Pool>,
}

impl Engine {
    /// Keeps interpreters of `language`, one of Python's, behind `policy`. The first of them are started now, and nobody
    /// waits for that: until one is ready, code is run as by [`Engine::execute_code`].
    pub fn interpreters(&self, policy: &Policy, language: &str) -> Result<Interpreters, CodeError> {
        let settings = &self.core.settings.code;
        let interpreter = Script::new(settings, INTERPRETER, language)?;
        if !interpreter.language.is_python() {
            return Err(CodeError::NotPython { language: language.to_owned() });
        }
        let policy = with_time(policy, None);
        let (changed, _) = watch::channel(());
        let pool = Arc::new(Pool {
            core: Arc::clone(&self.core),
            policy_sha256: policy.sha256(),
            recipe: Arc::new(Recipe { policy, interpreter, preload: settings.preload_line() }),
            state: Mutex::default(),
            changed,
        });
        pool.refill();
        Ok(Interpreters { pool })
    }
}

impl Interpreters {
    /// Runs code in an interpreter that has waited for it, or cold if none has, and returns what became of it. Dropping the
    /// future ends every process of it.
    ///
    /// It is as with [`Engine::execute_code`], and [`crate::result::Meta::warm`] tells the two apart. What was imported
    /// beforehand is in `sys.modules`, and two frames of ours are below the code's own.
    pub async fn execute_code(&self, code: &str, timeout: Option<Duration>) -> Result<ExecutionResult, CodeError> {
        let Pool { core, recipe, .. } = &*self.pool;
        let script = Script::new(&core.settings.code, code, &recipe.interpreter.name)?;
        let lint = match script.is_looked_at() {
            false => Lint::default(),
            true => {
                let looked_at = script.clone();
                tokio::task::spawn_blocking(move || looked_at.lint()).await.expect("the lint answers in any case")
            }
        };
        let mut timeout = timeout;
        if !lint.blocks
            && let Some(waiting) = self.pool.take_current().await
        {
            let begun = Instant::now();
            let time = time(timeout, recipe.policy.limits.time.map(|time| time.duration()));
            if let Some(outcome) = waiting.run(code, time).await {
                let policy_sha256 = match timeout {
                    None => self.pool.policy_sha256.clone(),
                    Some(_) => with_time(&recipe.policy, timeout).sha256(),
                };
                let mut result = Teller::new(script, lint, policy_sha256).tell(outcome)?;
                result.meta.warm = true;
                return Ok(result);
            }
            // It counts from the call, whoever was asked first.
            timeout = Some(time.saturating_sub(begun.elapsed()));
        }
        self.pool.refill();
        let engine = Engine { core: Arc::clone(core) };
        engine.execute_code(&recipe.policy, code, &recipe.interpreter.name, timeout).await
    }

    /// Waits until as many interpreters wait as are kept, or one of them could not be started.
    pub async fn ready(&self) {
        let mut changed = self.pool.changed.subscribe();
        loop {
            {
                let state = self.pool.state();
                let waiting = state.seats.iter().filter(|seat| seat.waiting.is_some()).count();
                if waiting >= self.pool.size() || state.trouble.is_some() {
                    return;
                }
            }
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// How many interpreters wait.
    pub fn waiting(&self) -> usize {
        self.pool.state().seats.iter().filter(|seat| seat.waiting.is_some()).count()
    }

    /// The modules that could not be imported beforehand, each with the reason. Code runs without them.
    pub fn not_imported(&self) -> Vec<String> {
        self.pool.state().not_imported.clone()
    }

    /// Why an interpreter could not be started, if that was so with the last one. Code is run cold meanwhile.
    pub fn trouble(&self) -> Option<String> {
        self.pool.state().trouble.clone()
    }
}

#[derive(Debug)]
struct Pool {
    core: Arc<Core>,
    recipe: Arc<Recipe>,
    policy_sha256: String,
    state: Mutex<State>,
    /// Says that the state is another.
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    seats: Vec<Seat>,
    /// The number of the next seat.
    next: u64,
    not_imported: Vec<String>,
    trouble: Option<String>,
}

/// A place in the pool, of an interpreter that is being started or waits.
#[derive(Debug)]
struct Seat {
    number: u64,
    /// Closing it ends the interpreter.
    line: OwnedFd,
    waiting: Option<Waiting>,
}

/// How an interpreter that waits is given code.
#[derive(Debug)]
struct Waiting {
    calls: mpsc::SyncSender<Call>,
    channel: Arc<OwnedFd>,
    file: Arc<File>,
    scene: Option<Arc<Scene>>,
}

/// What an interpreter is called for.
#[derive(Debug)]
struct Call {
    begun: Instant,
    time: Duration,
    answer: oneshot::Sender<Result<ExecutionResult, RunError>>,
}

/// An interpreter that was taken from the pool. Dropping it ends it.
#[derive(Debug)]
struct Taken {
    line: OwnedFd,
    waiting: Waiting,
}

impl Taken {
    /// Gives it the code, and waits for what becomes of it; none if it was gone before it had the code.
    async fn run(self, code: &str, time: Duration) -> Option<Result<ExecutionResult, RunError>> {
        let Taken { line, waiting: Waiting { calls, channel, file, .. } } = self;
        let (answer, result) = oneshot::channel();
        calls.try_send(Call { begun: Instant::now(), time, answer }).ok()?;
        let say = |words: &str| rustix::net::send(&*channel, words.as_bytes(), SendFlags::NOSIGNAL).ok();
        // Done here and not on another thread, which would take longer to wake than this takes. Short code is compiled
        // while its file is written.
        let is_short = code.len() <= SHORT;
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
        drop(line); // until now: what drops this future ends the run
        result
    }
}

impl Pool {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many are kept.
    fn size(&self) -> usize {
        self.core.settings.code.warm
    }

    /// Takes one that waits.
    fn take(&self) -> Option<Taken> {
        let mut state = self.state();
        let index = state.seats.iter().position(|seat| seat.waiting.is_some())?;
        let Seat { line, waiting, .. } = state.seats.remove(index);
        Some(Taken { line, waiting: waiting? })
    }

    /// Takes one that waits and sees what one would that is started now: of a workspace that others change, too, what is
    /// hidden and protected is what was there at the start.
    async fn take_current(&self) -> Option<Taken> {
        loop {
            let taken = self.take()?;
            let Some(scene) = taken.waiting.scene.clone() else { return Some(taken) };
            let core = Arc::clone(&self.core);
            let looked = tokio::task::spawn_blocking(move || scene.is_as_it_was(&core)).await;
            if looked.expect("looking at a workspace does not panic") {
                return Some(taken);
            }
        }
    }

    /// Starts as many as are missing, a few at a time. Called when code has ended rather than when it begins: then it has
    /// the processors to itself.
    fn refill(self: &Arc<Pool>) {
        let at_once = std::thread::available_parallelism().map_or(1, |count| count.get().div_ceil(2));
        let mut state = self.state();
        while state.seats.len() < self.size()
            && state.seats.iter().filter(|seat| seat.waiting.is_none()).count() < at_once
        {
            let Ok((own, line)) = pipe_with(PipeFlags::CLOEXEC) else { return };
            let number = state.next;
            state.next += 1;
            state.seats.push(Seat { number, line, waiting: None });
            let (pool, core, recipe) = (Arc::downgrade(self), Arc::clone(&self.core), Arc::clone(&self.recipe));
            std::thread::spawn(move || keep(&pool, &core, &recipe, number, &own));
        }
    }

    /// One waits, if its seat is still there.
    fn seat(self: &Arc<Pool>, number: u64, child: &Child, calls: mpsc::SyncSender<Call>) {
        let scene = child.scene(&self.recipe).map(Arc::new);
        let waiting = Waiting { calls, channel: child.channel(), file: child.file(), scene };
        let mut state = self.state();
        if let Some(seat) = state.seats.iter_mut().find(|seat| seat.number == number) {
            seat.waiting = Some(waiting);
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

    /// One is gone.
    fn leave(&self, number: u64, trouble: Option<String>) {
        let mut state = self.state();
        state.seats.retain(|seat| seat.number != number);
        if let Some(trouble) = &trouble {
            tracing::warn!(trouble, "no interpreter waits for code");
        }
        state.trouble = trouble;
        drop(state);
        self.changed.send_replace(());
    }
}

/// The life of one interpreter, on a thread of its own.
fn keep(pool: &Weak<Pool>, core: &Core, recipe: &Recipe, number: u64, line: &OwnedFd) {
    let mut child = match Child::start(core, recipe, line) {
        Ok(child) => child,
        Err(error) => {
            // It is not tried again before there is code to run: what is wrong would be wrong again.
            if let Some(pool) = pool.upgrade() {
                pool.leave(number, Some(chain(&error)));
            }
            return;
        }
    };
    let (sender, calls) = mpsc::sync_channel(1);
    let Some(owner) = pool.upgrade() else { return };
    owner.seat(number, &child, sender);
    drop(owner);
    let called = match child.wait(line) {
        Event::Called => calls.try_recv().ok(),
        Event::Dismissed => return,
        // It may have heard of the code, and be done with it, before we do.
        Event::Ended => calls.try_recv().ok().filter(|_| is_called(line)),
    };
    if let Some(Call { begun, time, answer }) = called {
        if let Some(result) = child.run(time, line) {
            let duration = begun.elapsed().as_secs_f64();
            let _ = answer.send(result.map(|result| ExecutionResult { duration, ..result })); // nobody waits: it was ended
            std::thread::yield_now(); // whoever waits goes first
        }
    } else if let Some(pool) = pool.upgrade() {
        pool.leave(number, None);
    }
    drop(child);
    if let Some(pool) = pool.upgrade() {
        pool.refill();
    }
}
