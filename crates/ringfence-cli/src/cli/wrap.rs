//! The `ringfence wrap` and `ringfence unwrap` commands.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ringfence::{Command, Engine, Host};

use super::flags::PolicyFlags;
use crate::answer::print;
use crate::report::Failure;

/// Creates an executable that runs PROGRAM in a sandbox, and prints the path of the executable.
///
/// The executable, called the wrapper, passes its arguments on to PROGRAM and works from any
/// directory. Its policy is the current policy with the given flags, in a file beside the wrapper.
/// The directory of the wrapper can be put in front of PATH. `ringfence unwrap` removes the
/// wrapper.
#[derive(Debug, Args)]
pub(crate) struct Wrap {
    /// Path or name of the program.
    program: PathBuf,
    #[command(flatten)]
    policy: PolicyFlags,
}

/// Removes a wrapper that `ringfence wrap` created.
#[derive(Debug, Args)]
pub(crate) struct Unwrap {
    /// Path of the wrapper.
    path: PathBuf,
}

impl Wrap {
    pub(crate) fn run(self, host: Host) -> Result<ExitCode, Failure> {
        let ringfence = std::env::current_exe().map_err(|error| {
            Failure::failed(
                format!("cannot find the path of ringfence itself: {error}"),
                "check that /proc is mounted",
            )
        })?;
        let engine = Engine::in_this_process(self.policy.settings(host)?.with_launcher(ringfence));
        let policy = &engine.settings().policy;
        // Refuse now and not at the first call of the wrapper.
        engine.plan(policy, &Command::new(&self.program))?;
        let workspace = policy
            .filesystem
            .workspace
            .as_ref()
            .map_or_else(|| ".".into(), |named| named.source.clone());
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
