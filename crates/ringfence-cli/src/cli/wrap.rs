//! The `ringfence wrap` and `ringfence unwrap` commands.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ringfence::{Command, Engine, Host};

use super::flags::PolicyFlags;
use crate::answer::print;
use crate::report::Failure;

/// Makes an executable that runs PROGRAM sandboxed, and prints its path.
///
/// It passes its caller's arguments on and works from any directory. The policy is the one that holds now, flags
/// included; it lies beside the wrapper, whose directory can be put in front of a PATH. Remove it with `ringfence
/// unwrap`.
#[derive(Debug, Args)]
pub(crate) struct Wrap {
    /// The program, by path or by name.
    program: PathBuf,
    #[command(flatten)]
    policy: PolicyFlags,
}

/// Removes a wrapper that `ringfence wrap` made.
#[derive(Debug, Args)]
pub(crate) struct Unwrap {
    /// The wrapper's path.
    path: PathBuf,
}

impl Wrap {
    pub(crate) fn run(self, host: Host) -> Result<ExitCode, Failure> {
        let ringfence = std::env::current_exe().map_err(|error| {
            Failure::failed(format!("cannot find the path of ringfence itself: {error}"), "is /proc mounted?")
        })?;
        let engine = Engine::in_this_process(self.policy.settings(host)?.with_launcher(ringfence));
        let policy = &engine.settings().policy;
        // Refuse now and not at the first call of the wrapper.
        engine.plan(policy, &Command::new(&self.program))?;
        let workspace = policy.filesystem.workspace.as_ref().map_or_else(|| ".".into(), |named| named.source.clone());
        let path = engine.create_cli_wrapper(&workspace, &self.program)?.keep();
        print(&format!("{}\n", path.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Unwrap {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        ringfence::unwrap(&self.path)?;
        Ok(ExitCode::SUCCESS)
    }
}
