//! The engine: holds resolved settings and a launcher, checks in advance that a backend works, and
//! runs commands.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfence_core::{ExecutionResult, Plan, Policy, WorkspaceFacts};
use ringfence_linux::Launcher;
use ringfence_linux::launcher::LauncherError;

use crate::caller::wrapper;
use crate::run::Attached;
use crate::run::contained;
use crate::run::prepare::{PreparedRun, Purpose, RunRoute};
use crate::{Command, Interruption, RunError, Running, Settings, Wrapper, WrapperError};

/// The entry point of the library, which runs commands under policies and starts sandboxes.
#[derive(Debug, Clone)]
pub struct Engine {
    pub(crate) core: Arc<Core>,
}

/// The data that an engine and the threads of its runs share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) settings: Settings,
    pub(crate) launcher: Launcher,
}

/// Description of how a command would be run.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The plan for the policy.
    pub plan: Plan,
    /// Reason why the backend was chosen.
    pub because: String,
    /// The command line that would be executed on the host: that of bubblewrap if bubblewrap is the
    /// backend, and empty for other backends.
    pub words: Vec<String>,
}

/// Reason why an engine could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The launcher could not be started.
    #[error(transparent)]
    Launcher(#[from] LauncherError),
    /// No backend can enforce the policy of the settings on this host.
    #[error("the preflight failed")]
    Preflight(#[source] RunError),
}

impl EngineError {
    /// Returns the next steps for the user.
    pub fn hints(&self) -> Vec<String> {
        match self {
            EngineError::Launcher(_) => vec![
                "call `ringfence::launcher::serve_if_asked()` first in `main`, or name a \
                 `ringfence` binary with `Settings::with_launcher`"
                    .to_owned(),
            ],
            EngineError::Preflight(error) => error.hints(),
        }
    }
}

impl Engine {
    /// Starts a launcher, and checks that a backend can enforce the policy of the settings on this
    /// host. A service that calls this function before it binds a port does not start where it
    /// could not isolate.
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
                // The caller gets the error and reports it. Logged as an error, it would be
                // reported twice.
                tracing::info!(error = crate::chain(&error), "preflight failed");
                Err(EngineError::Preflight(error))
            }
        }
    }

    /// Returns an engine that forks the calling process itself. That process must be small and have
    /// one thread, as the command line does. Its program calls
    /// [`serve_if_asked`](crate::launcher::serve_if_asked) first in `main`, because bubblewrap
    /// starts the program inside the sandbox. Nothing is checked in advance; the one run does
    /// everything for real.
    pub fn in_this_process(settings: Settings) -> Engine {
        Engine { core: Arc::new(Core { settings, launcher: Launcher::Here }) }
    }

    /// Returns the settings from which the engine was made.
    pub fn settings(&self) -> &Settings {
        &self.core.settings
    }

    /// Checks that a backend can enforce the policy of the settings on this host, and returns the
    /// plan.
    pub fn preflight(&self) -> Result<Plan, RunError> {
        let Settings { container, .. } = &self.core.settings;
        self.core
            .choose_backend(&self.core.settings.policy, WorkspaceFacts::default(), container)
            .map(|agreed| agreed.plan)
    }

    /// Returns how a command would be run, without running it.
    pub fn plan(&self, policy: &Policy, command: &Command) -> Result<Planned, RunError> {
        let (context, words) = match self.core.prepare_run(policy, command, Purpose::Describe)? {
            RunRoute::Launch(prepared) => {
                let PreparedRun { context, preparation } = *prepared;
                (context, preparation.described)
            }
            RunRoute::Sandbox(context) => (*context, Vec::new()),
        };
        Ok(Planned { plan: context.plan, because: context.because, words })
    }

    /// Runs one command and returns its result. Dropping the future ends every process of the run.
    pub async fn run(
        &self,
        policy: &Policy,
        command: &Command,
    ) -> Result<ExecutionResult, RunError> {
        self.spawn(policy, command).wait().await
    }

    /// Starts one command, whose output can be read while it runs. Dropping the returned value ends
    /// every process of the run.
    pub fn spawn(&self, policy: &Policy, command: &Command) -> Running {
        Running::spawn(Arc::clone(&self.core), policy.clone(), command.clone())
    }

    /// Runs one command on this thread with the caller's own streams, terminal and signals. The
    /// command gets the `passed` descriptors under the given numbers.
    pub fn run_attached(
        &self,
        policy: &Policy,
        command: &Command,
        passed: Vec<(i32, OwnedFd)>,
    ) -> Result<Attached, RunError> {
        match self.core.prepare_run(policy, command, Purpose::RunAttached)? {
            RunRoute::Launch(prepared) => self.core.run_attached(*prepared, command, passed),
            RunRoute::Sandbox(context) => {
                contained::run_attached(&self.core, *context, command, &passed)
            }
        }
    }

    /// Runs one command on this thread with captured output. An interruption ends every process of
    /// the run.
    pub fn run_captured(
        &self,
        policy: &Policy,
        command: &Command,
        passed: Vec<(i32, OwnedFd)>,
        interruption: Option<&Interruption>,
    ) -> Result<ExecutionResult, RunError> {
        let cancel = interruption.map(AsFd::as_fd);
        match self.core.prepare_run(policy, command, Purpose::Run)? {
            RunRoute::Launch(prepared) => {
                self.core.run_captured(*prepared, command, passed, cancel, None)
            }
            RunRoute::Sandbox(context) => {
                contained::run_captured(&self.core, *context, command, &passed, cancel, None)
            }
        }
    }

    /// Makes an executable that runs `program` under this engine's policy, with `repository` as its
    /// workspace and with its caller's arguments. The executable is removed when the wrapper is
    /// dropped or [`Wrapper::cleanup`] is called.
    pub fn create_cli_wrapper(
        &self,
        repository: &Path,
        program: &Path,
    ) -> Result<Wrapper, WrapperError> {
        wrapper::create(&self.core.settings, repository, program)
    }
}
