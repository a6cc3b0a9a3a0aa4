//! A sandbox in which many attempts are made, one after the other.

use ringfence_core::{ExecutionResult, Plan, Policy};
use tokio::runtime::Runtime;

use super::tree::AttemptTree;
use crate::run::contained;
use crate::{Command, Engine, RunError, Sandbox, StartRequest};

/// A sandbox that stays, with the files that attempts in the sandbox may find.
#[derive(Debug)]
pub(super) struct SharedSandbox {
    runtime: Runtime,
    sandbox: Sandbox,
    plan: Plan,
    tree: AttemptTree,
}

impl SharedSandbox {
    /// Starts a sandbox with a policy.
    pub(super) fn start(
        engine: &Engine,
        policy: Policy,
        plan: Plan,
        tree: AttemptTree,
    ) -> Result<SharedSandbox, RunError> {
        // The runtime has no thread of its own, because the attempts without a sandbox are forked
        // from this process.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|source| RunError::Watch { source })?;
        let request = StartRequest {
            container: engine.settings().container.clone(),
            ..StartRequest::new(policy)
        };
        let sandbox = runtime.block_on(engine.start(request)).map_err(RunError::from)?;
        Ok(SharedSandbox { runtime, sandbox, plan, tree })
    }

    /// Returns the plan of the sandbox.
    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the files that attempts in the sandbox may find.
    pub(super) fn tree(&self) -> &AttemptTree {
        &self.tree
    }

    /// Runs a command in the sandbox and captures its output.
    pub(super) fn capture(
        &self,
        engine: &Engine,
        command: &Command,
    ) -> Result<ExecutionResult, RunError> {
        let exec = contained::exec(&engine.core, &self.sandbox, command)?;
        Ok(self.runtime.block_on(self.sandbox.capture(exec))?)
    }
}

impl Drop for SharedSandbox {
    fn drop(&mut self) {
        if let Err(error) = self.runtime.block_on(self.sandbox.clone().stop()) {
            tracing::warn!(
                error = crate::chain(&error),
                "the sandbox of an attempt was not stopped"
            );
        }
    }
}
