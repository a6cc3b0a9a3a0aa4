//! Second stage of a run: turns a planned run and a command into the description of a launch.

use std::path::{Path, PathBuf};

use ringfence_core::{Clause, Policy, Support};

use crate::backends::{LaunchInputs, Preparation};
use crate::caller::streams::{CallerStreams, UnnamedTerminal};
use crate::engine::Core;
use crate::run::plan::PlannedRun;
use crate::view;
use crate::{Command, RunError};

/// A run that has a plan and can be launched.
#[derive(Debug)]
pub(crate) struct PreparedRun {
    pub(crate) context: PlannedRun,
    pub(crate) preparation: Preparation,
}

/// A run that has a plan.
#[derive(Debug)]
pub(crate) enum RunRoute {
    /// Our launcher starts the run.
    Launch(Box<PreparedRun>),
    /// A sandbox is started for the run.
    Sandbox(Box<PlannedRun>),
}

impl RunRoute {
    pub(crate) fn context(&self) -> &PlannedRun {
        match self {
            RunRoute::Launch(prepared) => &prepared.context,
            RunRoute::Sandbox(context) => context,
        }
    }
}

/// Purpose of preparing a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The launch will be run.
    Run,
    /// The launch will be run with the standard streams of this process.
    RunAttached,
    /// The launch is only described, and so no secret is read.
    Describe,
}

impl Core {
    /// Makes a plan for `policy` and prepares `command` under it.
    pub(crate) fn prepare_run(
        &self,
        policy: &Policy,
        command: &Command,
        purpose: Purpose,
    ) -> Result<RunRoute, RunError> {
        let container = &self.settings.container;
        let mut context = self.plan_run(policy, container)?;
        let Some(backend) = Core::backend(&context.plan)?.process_launch() else {
            return Ok(RunRoute::Sandbox(context.into()));
        };
        if purpose != Purpose::Describe {
            context.credentials = self.load_credentials(&context.plan)?;
        }
        let holds_files =
            context.plan.held.get(&Clause::Filesystem).is_some_and(Support::is_enforced);
        if purpose == Purpose::RunAttached && holds_files {
            let inputs = self.launch_inputs(&context, &[]);
            let may_write = |path: &Path| view::may_write(&inputs, path);
            let streams = CallerStreams::for_this_process(&may_write, &context.guarded);
            context.streams = streams
                .map_err(|UnnamedTerminal { number }| RunError::UnnamedTerminal { number })?;
        }
        let preparation = backend.prepare(&self.launch_inputs(&context, &[]), command)?;
        Ok(RunRoute::Launch(Box::new(PreparedRun { context, preparation })))
    }

    /// Collects what a backend needs to know to make a sandbox of `context`.
    pub(crate) fn launch_inputs<'a>(
        &'a self,
        context: &'a PlannedRun,
        shown: &'a [PathBuf],
    ) -> LaunchInputs<'a> {
        let PlannedRun { plan, workspace, grants, guarded, streams, .. } = context;
        let (host, launcher, credentials) =
            (&self.settings.host, &self.launcher, context.credentials.as_ref());
        LaunchInputs {
            plan,
            host,
            launcher,
            workspace,
            grants,
            guarded,
            shown,
            credentials,
            streams,
        }
    }
}
