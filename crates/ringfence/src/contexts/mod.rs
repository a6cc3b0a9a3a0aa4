//! Contexts: interpreters in a sandbox that keep their state from one cell of code to the next.
//!
//! Each is a process of its own, started as any command of the sandbox, that runs a harness of ours for its language.
//! The harness takes cells on its input, and says what comes of them in messages between what the cells write. What it
//! says is as untrusted as what they write: code can take its place.
//!
//! Reading order: `harness` are the programs inside, `separate` tells messages from output, `event` is what there
//! is to say, `process` is a harness that runs, `cell` is code that it runs, `notes` is what is written down of contexts
//! that outlive their process, `keep` finds those again, [`wire`] is E2B's form of it all.

mod cell;
mod error;
mod event;
mod harness;
mod keep;
mod notes;
mod process;
mod separate;
pub mod wire;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use ringfence_proto::code::Code;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};

pub use cell::{Cell, Outcome};
pub use error::ContextError;
pub use event::{Event, Left, Raised, Shown};

use crate::code::Script;
use crate::session::Session;
use crate::{CodeSettings, Sandbox, SessionError};
use cell::{Bounds, INTERRUPT, Life, Phase, State, Turn, in_time};
use harness::Harness;
use notes::{Note, Noted, Notes, Trace};
use process::Recipe;

/// The language of a context when nobody says.
pub const DEFAULT_LANGUAGE: &str = "python";
/// How many contexts a sandbox has at once.
const MOST: usize = 64;
/// How long an interrupt waits for a cell that is on its way.
const BEGIN_PATIENCE: Duration = Duration::from_secs(5);

/// How often a shell is told of an interrupt again, and after how long.
const MOST_REMINDERS: u32 = 10;
const REMINDER: Duration = Duration::from_millis(200);

/// The contexts that one process has in a sandbox; they end with the last copy of its [`Sandbox`], unless they are noted.
#[derive(Debug)]
pub(crate) struct Kept {
    /// In the order of their start.
    contexts: Mutex<Vec<Context>>,
    /// Held by whoever starts one that is used when none is named.
    starting: tokio::sync::Mutex<()>,
    room: Arc<Semaphore>,
    /// Where they are noted, if they are to outlive this process.
    notes: OnceCell<Arc<Notes>>,
}

impl Default for Kept {
    fn default() -> Kept {
        let room = Arc::new(Semaphore::new(MOST));
        Kept { contexts: Mutex::default(), starting: Default::default(), room, notes: OnceCell::new() }
    }
}

impl Kept {
    fn all(&self) -> std::sync::MutexGuard<'_, Vec<Context>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sandbox {
    /// Its contexts: interpreters that keep their state.
    pub fn contexts(&self) -> Contexts<'_> {
        Contexts { sandbox: self }
    }
}

/// The contexts of a sandbox: interpreters that keep their state.
#[derive(Debug, Clone, Copy)]
pub struct Contexts<'a> {
    sandbox: &'a Sandbox,
}

impl Contexts<'_> {
    /// Starts a context for a language of the settings', in a directory of the sandbox or where its commands start.
    pub async fn create(&self, language: &str, directory: Option<&str>) -> Result<Context, ContextError> {
        self.begin(language, directory, Use::Named, "").await
    }

    async fn begin(
        &self,
        language: &str,
        directory: Option<&str>,
        used: Use,
        preload: &str,
    ) -> Result<Context, ContextError> {
        let sandbox = self.sandbox;
        let recipe = self.recipe(language, directory)?;
        let room = self.room()?;
        let id = crate::run::identity();
        let noted = sandbox.kept_contexts().notes.get().map(|notes| {
            let (id, language, directory) = (id.clone(), language.to_owned(), directory.map(str::to_owned));
            let (started, process) = (Timestamp::now(), Trace::default());
            let note = Note { id, language, directory, is_usual: used == Use::Usual, started, process };
            Arc::new(Noted::new(Arc::clone(notes), note))
        });
        let life = start(&recipe, sandbox.session(), preload, noted.as_deref()).await?;
        Ok(self.add(Slot { used, noted, ..self.slot(id, recipe, directory, life, room) }))
    }

    /// What starts the process of a context.
    fn recipe(&self, language: &str, directory: Option<&str>) -> Result<Recipe, ContextError> {
        let sandbox = self.sandbox;
        let script = Script::new(sandbox.code(), "", language)?;
        script.check(sandbox.manifest().backend)?;
        let Some(harness) = Harness::of(&script.language) else {
            let languages = sandbox.code().languages.iter();
            let known = languages.filter(|(_, language)| Harness::of(language).is_some());
            let known = known.map(|(name, _)| name.clone()).collect();
            return Err(ContextError::Stateless { language: language.to_owned(), known });
        };
        Ok(Recipe::new(language, &script.language, harness, directory))
    }

    fn room(&self) -> Result<OwnedSemaphorePermit, ContextError> {
        let room = Arc::clone(&self.sandbox.kept_contexts().room).try_acquire_owned();
        room.map_err(|_| ContextError::TooMany { limit: MOST })
    }

    fn slot(
        &self,
        id: String,
        recipe: Recipe,
        directory: Option<&str>,
        life: Life,
        room: OwnedSemaphorePermit,
    ) -> Slot {
        let sandbox = self.sandbox;
        let usual = || sandbox.manifest().workspace_inside.to_string_lossy().into_owned();
        Slot {
            id,
            directory: directory.map_or_else(usual, str::to_owned),
            used: Use::Named,
            recipe,
            session: sandbox.session().clone(),
            code: sandbox.code().clone(),
            bounds: Bounds {
                output: sandbox.most_output(),
                time: sandbox.manifest().limits.time.map(|time| time.duration()),
            },
            life: Mutex::new(Arc::new(life)),
            is_removed: Default::default(),
            noted: None,
            _room: room,
        }
    }

    fn add(&self, slot: Slot) -> Context {
        let context = Context(Arc::new(slot));
        self.sandbox.kept_contexts().all().push(context.clone());
        context
    }

    /// Runs a cell in the context for a language that is used when none is named, as [`Context::execute`] does. One that
    /// ends while the cell waits for its turn is restarted.
    pub async fn execute(
        &self,
        language: &str,
        code: &str,
        env: &BTreeMap<String, String>,
    ) -> Result<Cell, ContextError> {
        loop {
            match self.usual(language).await?.execute(code, env).await {
                Err(ContextError::Ended { .. }) => {} // by another cell, or it was removed: each time it is a new one
                begun => return begun,
            }
        }
    }

    /// The context for a language that is used when none is named; started when it is first asked for, and restarted
    /// when it is asked for and has ended.
    pub async fn usual(&self, language: &str) -> Result<Context, ContextError> {
        self.prepare(language, "").await
    }

    /// The same, and if it is started now, some modules are imported before the first cell comes: their names, with spaces
    /// between, as far as they are installed. Code finds them in `sys.modules`, and not among its names.
    pub async fn prepare(&self, language: &str, preload: &str) -> Result<Context, ContextError> {
        let kept = self.sandbox.kept_contexts();
        let _turn = kept.starting.lock().await;
        let is_it = |context: &&Context| context.0.used == Use::Usual && context.language() == language;
        let found = kept.all().iter().find(is_it).cloned();
        if let Some(context) = found {
            match context.revive().await {
                Err(ContextError::Absent { .. }) => {} // it was just removed
                revived => return revived.map(|()| context),
            }
        }
        self.begin(language, None, Use::Usual, preload).await
    }

    /// All of them, in the order of their start.
    pub fn list(&self) -> Vec<Context> {
        self.sandbox.kept_contexts().all().clone()
    }

    /// The one of that id.
    pub fn get(&self, id: &str) -> Result<Context, ContextError> {
        let found = self.sandbox.kept_contexts().all().iter().find(|context| context.id() == id).cloned();
        found.ok_or_else(|| ContextError::Absent { id: id.to_owned() })
    }

    /// Ends the one of that id, with all that its cells started. One that cannot be ended is still there.
    pub async fn remove(&self, id: &str) -> Result<(), ContextError> {
        let context = self.get(id)?;
        let mut is_removed = context.0.is_removed.lock().await;
        if *is_removed {
            return Err(ContextError::Absent { id: id.to_owned() }); // somebody else was quicker
        }
        context.life().kill("it was removed").await?;
        if let Some(noted) = &context.0.noted {
            noted.forget()?;
        }
        *is_removed = true;
        self.sandbox.kept_contexts().all().retain(|kept| kept.id() != id);
        Ok(())
    }
}

/// An interpreter that keeps its state from one cell of code to the next. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Context(Arc<Slot>);

#[derive(Debug)]
struct Slot {
    id: String,
    directory: String,
    used: Use,
    recipe: Recipe,
    session: Session,
    code: CodeSettings,
    bounds: Bounds,
    life: Mutex<Arc<Life>>,
    /// Whether it was removed; held by whoever starts its process again.
    is_removed: tokio::sync::Mutex<bool>,
    /// What is written down of it, if it is to outlive this process.
    noted: Option<Arc<Noted>>,
    _room: OwnedSemaphorePermit,
}

/// Which cells a context runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Those that name it.
    Named,
    /// Those of its language that name none, too.
    Usual,
}

impl Context {
    /// What it is found by.
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// What its language is called.
    pub fn language(&self) -> &str {
        &self.0.recipe.name
    }

    /// Where it starts.
    pub fn directory(&self) -> &str {
        &self.0.directory
    }

    /// Runs a cell of code, with some variables for it alone. It waits for the cell before it; dropped, it is
    /// interrupted.
    ///
    /// It is no error that code fails: that is an event. Code that the lint of imports blocks is not run, which is one,
    /// too.
    pub async fn execute(&self, code: &str, env: &BTreeMap<String, String>) -> Result<Cell, ContextError> {
        let slot = &*self.0;
        let script = Script::new(&slot.code, code, self.language())?;
        check(code, env)?;
        let lint = tokio::task::spawn_blocking(move || script.lint()).await.expect("the lint answers in any case");
        if lint.blocks {
            let (name, value) = ("BlockedImports".to_owned(), "the code was not run".to_owned());
            return Ok(Cell::refused(Raised { name, value, traceback: lint.words() }));
        }
        let request = |number| slot.recipe.harness.request(number, code, env);
        Ok(Cell::new(Turn::take(&slot.id, self.life(), slot.bounds, slot.noted.as_ref(), request).await?))
    }

    /// Interrupts the cell that runs, as Ctrl-C does; nothing if none does. If it does not end within 20 s the context does.
    pub async fn interrupt(&self) -> Result<(), ContextError> {
        let life = self.life();
        let mut phase = life.phase.subscribe();
        let begun = phase.wait_for(|phase| *phase != Phase::Told);
        let runs = matches!(tokio::time::timeout(BEGIN_PATIENCE, begun).await, Ok(Ok(phase)) if *phase == Phase::Runs);
        if !runs {
            return Ok(());
        }
        unless_gone(life.input.signal(INTERRUPT).await)?;
        // A shell that is just starting a program can miss it, as on a terminal: it is told again while the cell runs.
        let reminders = if self.0.recipe.harness == Harness::Bash { MOST_REMINDERS } else { 0 };
        // It ends with the cell, or with its patience.
        tokio::spawn(async move {
            let end = async {
                for _ in 0..reminders {
                    if tokio::time::timeout(REMINDER, phase.changed()).await.is_ok() {
                        return;
                    }
                    let _ = life.input.signal(INTERRUPT).await; // it may just have ended
                }
                let _ = phase.changed().await; // its sender is the life's
            };
            if let Err(how) = in_time(&life.input, Duration::ZERO, end).await {
                let _ = life.kill(&how).await; // it may just have ended, and ends with its sandbox
            }
        });
        Ok(())
    }

    /// Ends its process, with all that its cells started, and starts another: what its variables held is lost.
    pub async fn restart(&self) -> Result<(), ContextError> {
        let is_removed = self.0.is_removed.lock().await;
        self.renew(*is_removed).await
    }

    /// Starts another process if its own has ended.
    async fn revive(&self) -> Result<(), ContextError> {
        let is_removed = self.0.is_removed.lock().await;
        if self.life().is_over() { self.renew(*is_removed).await } else { Ok(()) }
    }

    async fn renew(&self, is_removed: bool) -> Result<(), ContextError> {
        if is_removed {
            return Err(ContextError::Absent { id: self.0.id.clone() });
        }
        self.life().kill("it was restarted").await?;
        let life = start(&self.0.recipe, &self.0.session, "", self.0.noted.as_deref()).await?;
        *self.0.life.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(life);
        Ok(())
    }

    fn life(&self) -> Arc<Life> {
        Arc::clone(&self.0.life.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Starts the process of a context, and notes it where contexts outlive this process.
async fn start(recipe: &Recipe, session: &Session, preload: &str, noted: Option<&Noted>) -> Result<Life, ContextError> {
    let Some(noted) = noted else { return Ok(Life::new(recipe.start(session, preload, None).await?)) };
    let tag = keep::new_tag();
    let process = recipe.start(session, preload, Some(&tag)).await?;
    match noted.begins(&process, tag) {
        Ok(()) => Ok(Life::new(process)),
        Err(error) => {
            process.end();
            Err(error.into())
        }
    }
}

impl Life {
    async fn kill(&self, why: &str) -> Result<(), ContextError> {
        if self.is_over() {
            return Ok(()); // its process's id may be another's by now
        }
        let _ = self.why.set(why.to_owned()); // the first one counts
        unless_gone(self.input.kill().await)?;
        // A cell that runs holds it, and hears of it by itself.
        if let Ok(mut state) = self.state.try_lock() {
            *state = State::Gone(why.to_owned());
        }
        Ok(())
    }
}

/// It is no failure that a process has ended already.
fn unless_gone(outcome: Result<(), SessionError>) -> Result<(), ContextError> {
    match outcome {
        Ok(()) | Err(SessionError::Refused { code: Code::NotFound, .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Makes sure that a harness can be told of a cell.
fn check(code: &str, env: &BTreeMap<String, String>) -> Result<(), ContextError> {
    let is_name = |name: &str| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        name.bytes().all(is_part) && name.bytes().next().is_some_and(|first| !first.is_ascii_digit())
    };
    if code.contains('\0') || env.values().any(|value| value.contains('\0')) {
        return Err(ContextError::Unsound { why: "its code or a variable holds a NUL" });
    }
    if !env.keys().all(|name| is_name(name)) {
        return Err(ContextError::Unsound {
            why: "a variable's name is made of A-Z, a-z, 0-9 and _, and no digit first",
        });
    }
    Ok(())
}
