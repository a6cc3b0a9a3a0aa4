//! The engine: settings that were resolved, a backend that was preflighted, and the commands it runs.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfence_core::{ExecutionResult, Ground, Plan, Policy};
use ringfence_linux::Launcher;
use ringfence_linux::launcher::LauncherError;

use crate::contained;
use crate::ready::{Prepared, Purpose, Ready};
use crate::run::Attached;
use crate::{Command, Interruption, RunError, Running, Settings, Wrapper, WrapperError, wrapper};

/// Runs commands behind policies.
#[derive(Debug, Clone)]
pub struct Engine {
    pub(crate) core: Arc<Core>,
}

/// What an engine and the threads of its runs share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) settings: Settings,
    pub(crate) launcher: Launcher,
}

/// What a command would be run under.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The plan.
    pub plan: Plan,
    /// Why its backend was chosen.
    pub because: String,
    /// The words that would be executed on the host: bubblewrap's, where that is the backend, and none elsewhere.
    pub words: Vec<String>,
}

/// An engine could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// There is no launcher.
    #[error(transparent)]
    Launcher(#[from] LauncherError),
    /// The settings' policy cannot be held here.
    #[error("the preflight failed")]
    Preflight(#[source] RunError),
}

impl EngineError {
    /// The next things to do.
    pub fn hints(&self) -> Vec<String> {
        match self {
            EngineError::Launcher(_) => vec![
                "call `ringfence::launcher::serve_if_asked()` first in `main`, or name a `ringfence` binary with \
                 `Settings::with_launcher`"
                    .to_owned(),
            ],
            EngineError::Preflight(error) => error.hints(),
        }
    }
}

impl Engine {
    /// Starts a launcher, and checks that the settings' policy can be held here. A service that calls this
    /// before it binds a port does not start where it could not isolate.
    pub fn new(settings: Settings) -> Result<Engine, EngineError> {
        let program = settings.launcher.clone().unwrap_or_else(|| PathBuf::from("/proc/self/exe"));
        let launcher = Launcher::spawn(&program)?;
        let engine = Engine { core: Arc::new(Core { settings, launcher }) };
        match engine.preflight() {
            Ok(plan) => {
                tracing::info!(backend = %plan.backend, summary = plan.summary, "preflight passed");
                Ok(engine)
            }
            Err(error) => {
                // Whoever called this is told, and tells: as an error it would be told twice.
                tracing::info!(error = crate::chain(&error), "preflight failed");
                Err(EngineError::Preflight(error))
            }
        }
    }

    /// An engine that forks the calling process itself, which must be small and have one thread: what the
    /// command line is. Its program calls [`serve_if_asked`](crate::launcher::serve_if_asked) first in `main`, as
    /// bubblewrap starts it inside. Nothing is preflighted; the one run does everything for real.
    pub fn in_this_process(settings: Settings) -> Engine {
        Engine { core: Arc::new(Core { settings, launcher: Launcher::Here }) }
    }

    /// The settings it was made from.
    pub fn settings(&self) -> &Settings {
        &self.core.settings
    }

    /// Checks that the settings' policy can be held here, and says by what.
    pub fn preflight(&self) -> Result<Plan, RunError> {
        let Settings { container, .. } = &self.core.settings;
        self.core.agree(&self.core.settings.policy, Ground::default(), container).map(|agreed| agreed.plan)
    }

    /// What a command would be run under.
    pub fn plan(&self, policy: &Policy, command: &Command) -> Result<Planned, RunError> {
        let (context, words) = match self.core.ready(policy, command, Purpose::Describe)? {
            Prepared::Launch(ready) => {
                let Ready { context, preparation } = *ready;
                (context, preparation.described)
            }
            Prepared::Container(context) => (*context, Vec::new()),
        };
        Ok(Planned { plan: context.plan, because: context.because, words })
    }

    /// Runs one command and returns what became of it. Dropping the future ends every process of the run.
    pub async fn run(&self, policy: &Policy, command: &Command) -> Result<ExecutionResult, RunError> {
        self.spawn(policy, command).wait().await
    }

    /// Starts one command; its output can be read as it comes. Dropping what is returned ends every process of it.
    pub fn spawn(&self, policy: &Policy, command: &Command) -> Running {
        Running::spawn(Arc::clone(&self.core), policy.clone(), command.clone())
    }

    /// Runs one command on this thread with the caller's own streams, terminal and signals, and `passed`
    /// descriptors under their numbers.
    pub fn run_attached(
        &self,
        policy: &Policy,
        command: &Command,
        passed: Vec<(i32, OwnedFd)>,
    ) -> Result<Attached, RunError> {
        match self.core.ready(policy, command, Purpose::RunAttached)? {
            Prepared::Launch(ready) => self.core.run_attached(*ready, command, passed),
            Prepared::Container(_) => contained::run_attached(&self.core, policy, command, &passed),
        }
    }

    /// Runs one command on this thread with captured output. An interruption ends every process of it.
    pub fn run_captured(
        &self,
        policy: &Policy,
        command: &Command,
        passed: Vec<(i32, OwnedFd)>,
        interruption: Option<&Interruption>,
    ) -> Result<ExecutionResult, RunError> {
        let cancel = interruption.map(AsFd::as_fd);
        match self.core.ready(policy, command, Purpose::Run)? {
            Prepared::Launch(ready) => self.core.run_captured(*ready, command, passed, cancel, None),
            Prepared::Container(_) => contained::run_captured(&self.core, policy, command, &passed, cancel, None),
        }
    }

    /// Makes an executable that runs `program` behind this engine's policy, with `repository` as its workspace
    /// and its caller's arguments. It is removed when the wrapper is dropped or [`Wrapper::cleanup`] is called.
    pub fn create_cli_wrapper(&self, repository: &Path, program: &Path) -> Result<Wrapper, WrapperError> {
        wrapper::create(&self.core.settings, repository, program)
    }
}
