//! The directory of code that gets a sandbox of its own.

use std::path::PathBuf;

use fs_err::os::unix::fs::OpenOptionsExt;
use ringfence_core::policy::Workspace;
use ringfence_core::result::{DroppedBytes, RunMetadata};
use ringfence_core::{ExecutionResult, Policy};

use super::script::{LintResult, Script};
use super::{CodeError, error};
use crate::backends::PrivateDirectory;
use crate::run::plan::PlannedRun;
use crate::{Command, RunError, Settings};

/// Empty directory that code starts in, below the execution's own directory.
pub(super) const WORK_DIRECTORY: &str = "work";

/// Result of the preparation of code.
#[derive(Debug)]
pub(super) enum StagedCode {
    Ready(Box<CodeStage>),
    /// The lint blocks the code; the result says why.
    Blocked(Box<ExecutionResult>),
}

/// Private directory with the code's file, and the command that runs the code there.
#[derive(Debug)]
pub(super) struct CodeStage {
    /// Policy of the caller, with the directory added.
    pub(super) policy: Policy,
    pub(super) command: Command,
    /// Path of the code's file.
    pub(super) file: PathBuf,
    /// Directory that is removed with all files that the code wrote there.
    pub(super) directory: PrivateDirectory,
    pub(super) result_builder: ResultBuilder,
}

impl CodeStage {
    pub(super) fn new(
        settings: &Settings,
        policy: &Policy,
        script: &Script,
        lint: LintResult,
    ) -> Result<CodeStage, CodeError> {
        let result_builder = ResultBuilder::new(script.clone(), lint, policy.sha256());
        let failed = |source| CodeError::Stage { source };
        let directory = PrivateDirectory::create(settings.host.user_id).map_err(failed)?;
        // Resolve links first, because the same paths are used inside the sandbox.
        let root = fs_err::canonicalize(directory.path()).map_err(failed)?;
        let file = root.join(script.file());
        let options =
            fs_err::OpenOptions::new().write(true).create_new(true).mode(0o600).to_owned();
        let written = options
            .open(&file)
            .and_then(|mut file| std::io::Write::write_all(&mut file, script.text.as_bytes()));
        written.map_err(failed)?;

        let mut policy = policy.clone();
        // Without a workspace in the policy, code must not start in the caller's current directory
        // by accident.
        let start = if policy.filesystem.workspace.is_some() {
            policy = policy.read(&root);
            None
        } else {
            let work = root.join(WORK_DIRECTORY);
            fs_err::create_dir(&work).map_err(failed)?;
            policy.filesystem.workspace =
                Some(Workspace { source: root.clone(), destination: Some(root) });
            Some(work)
        };
        let command = command(script, file.clone(), start);
        Ok(CodeStage { policy, command, file, directory, result_builder })
    }
}

fn command(script: &Script, file: PathBuf, start: Option<PathBuf>) -> Command {
    let (program, arguments) = script.language.command();
    let command = Command::new(program).arguments(arguments).argument(file);
    Command { directory: start, ..command }
}

/// Converts the result of a command into the result of an execution of code.
#[derive(Debug)]
pub(super) struct ResultBuilder {
    script: Script,
    pub(super) lint: LintResult,
    /// Hash of the caller's policy. The policy that is enforced names the directory of one
    /// execution, so its own hash would differ each time.
    policy_sha256: String,
}

impl ResultBuilder {
    pub(super) fn new(script: Script, lint: LintResult, policy_sha256: String) -> ResultBuilder {
        ResultBuilder { script, lint, policy_sha256 }
    }

    pub(super) fn complete(
        self,
        outcome: Result<ExecutionResult, RunError>,
    ) -> Result<ExecutionResult, CodeError> {
        let mut result = outcome.map_err(|error| error::for_script(error, &self.script))?;
        result.meta.policy_sha256 = self.policy_sha256;
        Ok(self.lint.complete(result))
    }

    /// Returns the result of code that is not run; its metadata describes the plan that would have
    /// been enforced.
    pub(super) fn refuse(self, context: &PlannedRun) -> ExecutionResult {
        let result = ExecutionResult {
            id: crate::run::identity(),
            exit_code: None,
            signal: None,
            ok: false,
            timed_out: false,
            oom_killed: false,
            stdout: String::new(),
            stderr: String::new(),
            dropped: DroppedBytes::default(),
            duration: 0.0,
            meta: RunMetadata { policy_sha256: self.policy_sha256, ..context.meta() },
        };
        self.lint.refuse(result)
    }
}
