//! Code: text in a language that the settings know, put into a file and run by that language's command.
//!
//! It is run behind a policy as any command is; what is added is a file, a working directory of its own that is empty,
//! a deadline, and for Python the lint of [`imports`]. [`script`] is the code before it is run, [`stage`] the directory
//! of a sandbox that is started for the code alone, [`inside`] that of a sandbox that stays. [`warm`] has interpreters
//! that were started before there was code for them, and [`spare`] one in a sandbox that stays.

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
pub use spare::Spare;
use stage::{Stage, Staged};
pub use warm::Interpreters;

impl Engine {
    /// Runs code in a sandbox of its own, and returns what became of it. Dropping the future ends every process of it.
    ///
    /// `language` is one of the settings' ([`crate::CodeSettings::languages`]). The code starts in an empty directory,
    /// which is all it has of the host to write to and goes with it; where the policy names a workspace it starts there.
    /// It gets 30 seconds unless `timeout` or the policy says otherwise. It is not an error that it fails.
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
            Staged::Ready(stage) => *stage,
            Staged::Blocked(result) => return Ok(*result),
        };
        let Stage { policy, command, directory, teller, .. } = stage;
        let running = Running::spawn_keeping(Arc::clone(&self.core), policy, command, directory);
        teller.tell(running.wait().await)
    }

    /// Runs code on this thread with captured output. An interruption ends every process of it.
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
            Staged::Ready(stage) => {
                stage.teller.tell(self.run_captured(&stage.policy, &stage.command, Vec::new(), interruption))
            }
            Staged::Blocked(result) => Ok(*result),
        }
    }

    /// Runs code on this thread with the caller's own streams, terminal and signals. Code that the lint blocks ends with
    /// [`ExitStatus::NotExecutable`], and why is in the result's `stderr`.
    pub fn execute_code_attached(
        &self,
        policy: &Policy,
        code: &str,
        language: &str,
        timeout: Option<Duration>,
    ) -> Result<Attached, CodeError> {
        let script = Script::new(&self.core.settings.code, code, language)?;
        let stage = match self.core.stage(&script, &with_time(policy, timeout))? {
            Staged::Ready(stage) => stage,
            Staged::Blocked(result) => return Ok(Attached { status: ExitStatus::NotExecutable, result: *result }),
        };
        match self.run_attached(&stage.policy, &stage.command, Vec::new()) {
            Ok(Attached { status, result }) => Ok(Attached { status, result: stage.teller.tell(Ok(result))? }),
            Err(error) => Err(error::of(error, &script)),
        }
    }
}

fn with_time(policy: &Policy, timeout: Option<Duration>) -> Policy {
    let own = policy.limits.time.map(|time| time.duration());
    policy.clone().time(time(timeout, own))
}

/// How long code may take: what was asked for, or what the policy says, or 30 seconds.
fn time(asked: Option<Duration>, policy: Option<Duration>) -> Duration {
    asked.or(policy).unwrap_or(DEFAULT_TIME)
}

impl Core {
    /// Makes everything ready for a script, and looks at what speaks against running it.
    fn stage(&self, script: &Script, policy: &Policy) -> Result<Staged, CodeError> {
        let lint = script.lint();
        let stage = Stage::new(&self.settings, policy, script, lint)?;
        if !stage.teller.lint.blocks && !script.is_projects {
            return Ok(Staged::Ready(stage.into()));
        }
        let context = self.settle(&stage.policy, &self.settings.container)?;
        script.check(context.plan.backend)?;
        Ok(match stage.teller.lint.blocks {
            true => Staged::Blocked(stage.teller.refuse(&context).into()),
            false => Staged::Ready(stage.into()),
        })
    }
}
