//! Execution of code: text in a language that the settings know, written to a file and run by that
//! language's command.
//!
//! Code runs behind a policy as any command does. An execution adds a file, an empty working
//! directory of its own, a deadline, and for Python the lint of [`imports`].
//!
//! [`script`] holds the code before it runs. [`stage`] makes the directory of a sandbox that is
//! started for the code alone, [`inside`] makes one in a sandbox that stays. [`warm`] keeps
//! interpreters that are started before there is code for them, and [`spare`] keeps one in a
//! sandbox that stays.

mod error;
mod imports;
mod inside;
mod script;
mod spare;
mod stage;
mod warm;

use std::sync::Arc;
use std::time::Duration;

use ringfence_core::{ExecutionResult, ExitStatus, Policy};

use crate::engine::Core;
use crate::{Attached, DEFAULT_TIME, Engine, Interruption, Running};

pub use error::CodeError;
pub(crate) use script::Script;
pub use spare::SpareInterpreter;
use stage::{CodeStage, StagedCode};
pub use warm::Interpreters;

impl Engine {
    /// Runs code in a sandbox of its own and returns its result. Dropping the future ends every
    /// process of the code.
    ///
    /// `language` is a name in [`crate::CodeSettings::languages`]. The code starts in an empty
    /// directory. That directory is the only one of the host that the code can write to, and it is
    /// removed when the code ends. If the policy names a workspace, the code starts there instead.
    /// The code may run for 30 seconds unless `timeout` or the policy sets another limit. Code that
    /// fails is not an error: its result says so.
    pub async fn execute_code(
        &self,
        policy: &Policy,
        code: &str,
        language: &str,
        timeout: Option<Duration>,
    ) -> Result<ExecutionResult, CodeError> {
        let script = Script::new(&self.core.settings.code, code, language)?;
        let (core, policy) = (Arc::clone(&self.core), with_time(policy, timeout));
        let staged = tokio::task::spawn_blocking(move || core.stage(&script, &policy));
        let stage = match staged.await.expect("a stage is made or refused")? {
            StagedCode::Ready(stage) => *stage,
            StagedCode::Blocked(result) => return Ok(*result),
        };
        let CodeStage { policy, command, directory, result_builder, .. } = stage;
        let running = Running::spawn_keeping(Arc::clone(&self.core), policy, command, directory);
        result_builder.complete(running.wait().await)
    }

    /// Runs code on this thread with captured output. An interruption ends every process of the
    /// code.
    pub fn execute_code_captured(
        &self,
        policy: &Policy,
        code: &str,
        language: &str,
        timeout: Option<Duration>,
        interruption: Option<&Interruption>,
    ) -> Result<ExecutionResult, CodeError> {
        let script = Script::new(&self.core.settings.code, code, language)?;
        match self.core.stage(&script, &with_time(policy, timeout))? {
            StagedCode::Ready(stage) => stage.result_builder.complete(self.run_captured(
                &stage.policy,
                &stage.command,
                Vec::new(),
                interruption,
            )),
            StagedCode::Blocked(result) => Ok(*result),
        }
    }

    /// Runs code on this thread with the caller's own streams, terminal and signals. Code that the
    /// lint blocks ends with [`ExitStatus::NotExecutable`], and the result's `stderr` holds the
    /// reason.
    pub fn execute_code_attached(
        &self,
        policy: &Policy,
        code: &str,
        language: &str,
        timeout: Option<Duration>,
    ) -> Result<Attached, CodeError> {
        let script = Script::new(&self.core.settings.code, code, language)?;
        let stage = match self.core.stage(&script, &with_time(policy, timeout))? {
            StagedCode::Ready(stage) => stage,
            StagedCode::Blocked(result) => {
                return Ok(Attached { status: ExitStatus::NotExecutable, result: *result });
            }
        };
        match self.run_attached(&stage.policy, &stage.command, Vec::new()) {
            Ok(Attached { status, result }) => {
                Ok(Attached { status, result: stage.result_builder.complete(Ok(result))? })
            }
            Err(error) => Err(error::for_script(error, &script)),
        }
    }
}

fn with_time(policy: &Policy, timeout: Option<Duration>) -> Policy {
    let own = policy.limits.time.map(|time| time.duration());
    policy.clone().time(time_limit(timeout, own))
}

/// Returns the time limit of code: `asked`, or else the policy's limit, or else 30 seconds.
fn time_limit(asked: Option<Duration>, policy: Option<Duration>) -> Duration {
    asked.or(policy).unwrap_or(DEFAULT_TIME)
}

impl Core {
    /// Makes the directory and the command for a script, and checks whether the script may run.
    fn stage(&self, script: &Script, policy: &Policy) -> Result<StagedCode, CodeError> {
        let lint = script.lint();
        let stage = CodeStage::new(&self.settings, policy, script, lint)?;
        if !stage.result_builder.lint.blocks && !script.is_projects {
            return Ok(StagedCode::Ready(stage.into()));
        }
        let context = self.plan_run(&stage.policy, &self.settings.container)?;
        script.check(context.plan.backend)?;
        Ok(match stage.result_builder.lint.blocks {
            true => StagedCode::Blocked(stage.result_builder.refuse(&context).into()),
            false => StagedCode::Ready(stage.into()),
        })
    }
}
