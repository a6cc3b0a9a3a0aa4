//! Contexts: interpreters in a sandbox that keep their state from one cell of code to the next.
//!
//! Each context is a process of its own. The process is started as any command of the sandbox, and
//! runs a harness of ours for its language. The harness reads cells from its input, and reports
//! their events in messages between the output of the cells. These messages are as untrusted as the
//! output, because code can take the place of the harness.
//!
//! Reading order: `harness` holds the programs inside the sandbox, `separate` tells messages from
//! output, `event` lists the events of a cell, `process` is a running harness, `cell` is code that
//! the harness runs, `notes` records contexts that outlive the process that started them, `keep`
//! finds those contexts again, and [`wire`] converts all of this to E2B's form.

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

pub use cell::{Cell, CellOutcome};
pub use error::ContextError;
pub use event::{CellEvent, OmittedOutput, RaisedError, ShownValue};

use crate::code::Script;
use crate::session::Session;
use crate::{CodeSettings, Sandbox, SessionError};
use cell::{
    CellLimits, CellLock, CellPhase, ContextProcess, HarnessState, INTERRUPT_SIGNAL, in_time,
};
use harness::Harness;
use notes::{ContextNote, ContextNotes, NotedContext, ProcessTrace};
use process::ContextSpec;

/// Language of a context for which the caller names none.
pub const DEFAULT_LANGUAGE: &str = "python";
/// Highest number of contexts of a sandbox.
const MAX_CONTEXTS: usize = 64;
/// Longest time that an interrupt waits for a cell that is sent but has not begun.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of times that a shell is interrupted again, and the pause between two times
/// (`REMINDER_INTERVAL`).
const MAX_REMINDERS: u32 = 10;
const REMINDER_INTERVAL: Duration = Duration::from_millis(200);

/// Contexts that this process has in a sandbox. They end with the last copy of its [`Sandbox`],
/// unless they have notes.
#[derive(Debug)]
pub(crate) struct KeptContexts {
    /// Contexts in the order of their start.
    contexts: Mutex<Vec<CodeContext>>,
    /// Lock of the task that starts a usual context, so that a language gets only one.
    starting: tokio::sync::Mutex<()>,
    semaphore: Arc<Semaphore>,
    /// Notes of the contexts, if these are to outlive this process.
    notes: OnceCell<Arc<ContextNotes>>,
}

impl Default for KeptContexts {
    fn default() -> KeptContexts {
        let semaphore = Arc::new(Semaphore::new(MAX_CONTEXTS));
        KeptContexts {
            contexts: Mutex::default(),
            starting: Default::default(),
            semaphore,
            notes: OnceCell::new(),
        }
    }
}

impl KeptContexts {
    fn all(&self) -> std::sync::MutexGuard<'_, Vec<CodeContext>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sandbox {
    /// Returns the contexts of this sandbox: interpreters that keep their state.
    pub fn contexts(&self) -> Contexts<'_> {
        Contexts { sandbox: self }
    }
}

/// Contexts of a sandbox: interpreters that keep their state.
#[derive(Debug, Clone, Copy)]
pub struct Contexts<'a> {
    sandbox: &'a Sandbox,
}

impl Contexts<'_> {
    /// Starts a context for a language of the settings. It starts in `directory` of the sandbox, or
    /// where commands of the sandbox start.
    pub async fn create(
        &self,
        language: &str,
        directory: Option<&str>,
    ) -> Result<CodeContext, ContextError> {
        self.begin(language, directory, ContextUse::Named, "").await
    }

    async fn begin(
        &self,
        language: &str,
        directory: Option<&str>,
        used: ContextUse,
        preload: &str,
    ) -> Result<CodeContext, ContextError> {
        let sandbox = self.sandbox;
        let spec = self.spec(language, directory)?;
        let permit = self.acquire_permit()?;
        let id = crate::run::identity();
        let noted = sandbox.kept_contexts().notes.get().map(|notes| {
            let (id, language, directory) =
                (id.clone(), language.to_owned(), directory.map(str::to_owned));
            let (started, process) = (Timestamp::now(), ProcessTrace::default());
            let note = ContextNote {
                id,
                language,
                directory,
                is_usual: used == ContextUse::Usual,
                started,
                process,
            };
            Arc::new(NotedContext::new(Arc::clone(notes), note))
        });
        let context_process = start(&spec, sandbox.session(), preload, noted.as_deref()).await?;
        Ok(self.add(ContextSlot {
            used,
            noted,
            ..self.slot(id, spec, directory, context_process, permit)
        }))
    }

    /// Returns the description from which the process of a context is started.
    fn spec(&self, language: &str, directory: Option<&str>) -> Result<ContextSpec, ContextError> {
        let sandbox = self.sandbox;
        let script = Script::new(sandbox.code(), "", language)?;
        script.check(sandbox.manifest().backend)?;
        let Some(harness) = Harness::for_language(&script.language) else {
            let languages = sandbox.code().languages.iter();
            let known = languages.filter(|(_, language)| Harness::for_language(language).is_some());
            let known = known.map(|(name, _)| name.clone()).collect();
            return Err(ContextError::Stateless { language: language.to_owned(), known });
        };
        Ok(ContextSpec::new(language, &script.language, harness, directory))
    }

    fn acquire_permit(&self) -> Result<OwnedSemaphorePermit, ContextError> {
        let permit = Arc::clone(&self.sandbox.kept_contexts().semaphore).try_acquire_owned();
        permit.map_err(|_| ContextError::TooMany { limit: MAX_CONTEXTS })
    }

    fn slot(
        &self,
        id: String,
        spec: ContextSpec,
        directory: Option<&str>,
        context_process: ContextProcess,
        permit: OwnedSemaphorePermit,
    ) -> ContextSlot {
        let sandbox = self.sandbox;
        let usual = || sandbox.manifest().workspace_inside.to_string_lossy().into_owned();
        ContextSlot {
            id,
            directory: directory.map_or_else(usual, str::to_owned),
            used: ContextUse::Named,
            spec,
            session: sandbox.session().clone(),
            code: sandbox.code().clone(),
            bounds: CellLimits {
                output: sandbox.max_output_bytes(),
                time: sandbox.manifest().limits.time.map(|time| time.duration()),
            },
            context_process: Mutex::new(Arc::new(context_process)),
            is_removed: Default::default(),
            noted: None,
            _permit: permit,
        }
    }

    fn add(&self, slot: ContextSlot) -> CodeContext {
        let context = CodeContext(Arc::new(slot));
        self.sandbox.kept_contexts().all().push(context.clone());
        context
    }

    /// Runs a cell in the usual context of a language, as [`CodeContext::execute`] does. If that
    /// context ends while the cell waits for its turn, the context is restarted.
    pub async fn execute(
        &self,
        language: &str,
        code: &str,
        env: &BTreeMap<String, String>,
    ) -> Result<Cell, ContextError> {
        loop {
            match self.usual(language).await?.execute(code, env).await {
                // Another cell ended the context, or it was removed. The next attempt gets a
                // process that was just started.
                Err(ContextError::Ended { .. }) => {}
                begun => return begun,
            }
        }
    }

    /// Returns the usual context of a language, which runs the cells that name no context. The
    /// context is started at the first call, and restarted if it has ended.
    pub async fn usual(&self, language: &str) -> Result<CodeContext, ContextError> {
        self.prepare(language, "").await
    }

    /// Returns the usual context, as [`Contexts::usual`] does. If the context is started now, it
    /// imports the modules in `preload` before the first cell. `preload` holds names with spaces
    /// between them; modules that are not installed are skipped. Code finds the modules in
    /// `sys.modules`, but not among its own names.
    pub async fn prepare(
        &self,
        language: &str,
        preload: &str,
    ) -> Result<CodeContext, ContextError> {
        let kept = self.sandbox.kept_contexts();
        let _start_lock = kept.starting.lock().await;
        let is_it = |context: &&CodeContext| {
            context.0.used == ContextUse::Usual && context.language() == language
        };
        let found = kept.all().iter().find(is_it).cloned();
        if let Some(context) = found {
            match context.restart_if_ended().await {
                Err(ContextError::Absent { .. }) => {} // it was just removed
                revived => return revived.map(|()| context),
            }
        }
        self.begin(language, None, ContextUse::Usual, preload).await
    }

    /// Returns all contexts in the order of their start.
    pub fn list(&self) -> Vec<CodeContext> {
        self.sandbox.kept_contexts().all().clone()
    }

    /// Returns the context with this id.
    pub fn get(&self, id: &str) -> Result<CodeContext, ContextError> {
        let found =
            self.sandbox.kept_contexts().all().iter().find(|context| context.id() == id).cloned();
        found.ok_or_else(|| ContextError::Absent { id: id.to_owned() })
    }

    /// Ends the context with this id and every process that its cells started. If the context
    /// cannot be ended, it stays in the list.
    pub async fn remove(&self, id: &str) -> Result<(), ContextError> {
        let context = self.get(id)?;
        let mut is_removed = context.0.is_removed.lock().await;
        if *is_removed {
            // Another task removed the context first.
            return Err(ContextError::Absent { id: id.to_owned() });
        }
        context.context_process().kill("it was removed").await?;
        if let Some(noted) = &context.0.noted {
            noted.forget()?;
        }
        *is_removed = true;
        self.sandbox.kept_contexts().all().retain(|kept| kept.id() != id);
        Ok(())
    }
}

/// An interpreter that keeps its state from one cell of code to the next. Clones refer to the same
/// interpreter.
#[derive(Debug, Clone)]
pub struct CodeContext(Arc<ContextSlot>);

#[derive(Debug)]
struct ContextSlot {
    id: String,
    directory: String,
    used: ContextUse,
    spec: ContextSpec,
    session: Session,
    code: CodeSettings,
    bounds: CellLimits,
    context_process: Mutex<Arc<ContextProcess>>,
    /// True if the context was removed. The lock is held by the task that starts the process again.
    is_removed: tokio::sync::Mutex<bool>,
    /// Note of the context, if the context is to outlive this process.
    noted: Option<Arc<NotedContext>>,
    _permit: OwnedSemaphorePermit,
}

/// Set of cells that a context runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContextUse {
    /// Cells that name the context.
    Named,
    /// Cells that name the context, and cells of its language that name none.
    Usual,
}

impl CodeContext {
    /// Returns the id of the context.
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// Returns the name of the context's language.
    pub fn language(&self) -> &str {
        &self.0.spec.name
    }

    /// Returns the directory in which the context starts.
    pub fn directory(&self) -> &str {
        &self.0.directory
    }

    /// Runs a cell of code with some variables for this cell alone. The cell waits for the end of
    /// the cell before it. Dropping the returned [`Cell`] interrupts the code.
    ///
    /// Code that fails is not an error of this function: the failure is an event. Code that the
    /// lint of imports blocks is not run, which is an event, too.
    pub async fn execute(
        &self,
        code: &str,
        env: &BTreeMap<String, String>,
    ) -> Result<Cell, ContextError> {
        let slot = &*self.0;
        let script = Script::new(&slot.code, code, self.language())?;
        check(code, env)?;
        let lint = tokio::task::spawn_blocking(move || script.lint())
            .await
            .expect("the lint answers in any case");
        if lint.blocks {
            let (name, value) = ("BlockedImports".to_owned(), "the code was not run".to_owned());
            return Ok(Cell::refused(RaisedError {
                name,
                value,
                traceback: lint.refusal_message(),
            }));
        }
        let request = |number| slot.spec.harness.request(number, code, env);
        Ok(Cell::new(
            CellLock::take(
                &slot.id,
                self.context_process(),
                slot.bounds,
                slot.noted.as_ref(),
                request,
            )
            .await?,
        ))
    }

    /// Interrupts the cell that runs, as Ctrl-C does. If no cell runs, nothing happens. If the cell
    /// does not end within 20 s, the context is ended.
    pub async fn interrupt(&self) -> Result<(), ContextError> {
        let context_process = self.context_process();
        let mut phase = context_process.phase.subscribe();
        let begun = phase.wait_for(|phase| *phase != CellPhase::Sent);
        let runs = match tokio::time::timeout(BEGIN_TIMEOUT, begun).await {
            Ok(Ok(phase)) => *phase == CellPhase::Runs,
            _ => false,
        };
        if !runs {
            return Ok(());
        }
        accept_ended(context_process.input.signal(INTERRUPT_SIGNAL).await)?;
        // A shell that is just starting a program can miss the signal, as on a terminal. Therefore
        // send the signal again while the cell runs.
        let reminders = if self.0.spec.harness == Harness::Bash { MAX_REMINDERS } else { 0 };
        // The task ends with the cell, or when `in_time` gives up.
        tokio::spawn(async move {
            let end = async {
                for _ in 0..reminders {
                    if tokio::time::timeout(REMINDER_INTERVAL, phase.changed()).await.is_ok() {
                        return;
                    }
                    // The cell may just have ended.
                    let _ = context_process.input.signal(INTERRUPT_SIGNAL).await;
                }
                let _ = phase.changed().await; // `context_process` owns the sender
            };
            if let Err(how) = in_time(&context_process.input, Duration::ZERO, end).await {
                // The process may just have ended, and it ends with its sandbox.
                let _ = context_process.kill(&how).await;
            }
        });
        Ok(())
    }

    /// Ends the process of the context with every process that its cells started, and starts
    /// another one. The values of its variables are lost.
    pub async fn restart(&self) -> Result<(), ContextError> {
        let is_removed = self.0.is_removed.lock().await;
        self.renew(*is_removed).await
    }

    /// Starts another process if the current one has ended.
    async fn restart_if_ended(&self) -> Result<(), ContextError> {
        let is_removed = self.0.is_removed.lock().await;
        if self.context_process().is_over() { self.renew(*is_removed).await } else { Ok(()) }
    }

    async fn renew(&self, is_removed: bool) -> Result<(), ContextError> {
        if is_removed {
            return Err(ContextError::Absent { id: self.0.id.clone() });
        }
        self.context_process().kill("it was restarted").await?;
        let context_process =
            start(&self.0.spec, &self.0.session, "", self.0.noted.as_deref()).await?;
        *self.0.context_process.lock().unwrap_or_else(PoisonError::into_inner) =
            Arc::new(context_process);
        Ok(())
    }

    fn context_process(&self) -> Arc<ContextProcess> {
        Arc::clone(&self.0.context_process.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Starts the process of a context, and writes its note if the context is to outlive this process.
async fn start(
    spec: &ContextSpec,
    session: &Session,
    preload: &str,
    noted: Option<&NotedContext>,
) -> Result<ContextProcess, ContextError> {
    let Some(noted) = noted else {
        return Ok(ContextProcess::new(spec.start(session, preload, None).await?));
    };
    let tag = keep::new_tag();
    let process = spec.start(session, preload, Some(&tag)).await?;
    match noted.record_process(&process, tag) {
        Ok(()) => Ok(ContextProcess::new(process)),
        Err(error) => {
            process.end();
            Err(error.into())
        }
    }
}

impl ContextProcess {
    async fn kill(&self, why: &str) -> Result<(), ContextError> {
        if self.is_over() {
            return Ok(()); // another process may have its id by now
        }
        let _ = self.why.set(why.to_owned()); // the first reason counts
        accept_ended(self.input.kill().await)?;
        // A cell that runs holds the lock, and sees the end of the process by itself.
        if let Ok(mut state) = self.state.try_lock() {
            *state = HarnessState::Gone(why.to_owned());
        }
        Ok(())
    }
}

/// Treats a process that has ended already as success.
fn accept_ended(outcome: Result<(), SessionError>) -> Result<(), ContextError> {
    match outcome {
        Ok(()) | Err(SessionError::Refused { code: Code::NotFound, .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Checks that a harness can be sent this cell.
fn check(code: &str, env: &BTreeMap<String, String>) -> Result<(), ContextError> {
    let is_name = |name: &str| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        name.bytes().all(is_part)
            && name.bytes().next().is_some_and(|first| !first.is_ascii_digit())
    };
    if code.contains('\0') || env.values().any(|value| value.contains('\0')) {
        return Err(ContextError::Unsound { why: "the code or a variable contains a NUL byte" });
    }
    if !env.keys().all(|name| is_name(name)) {
        return Err(ContextError::Unsound {
            why: "the name of a variable consists of A-Z, a-z, 0-9 and _, and does not begin with \
                  a digit",
        });
    }
    Ok(())
}
