//! One run of a command, in five stages: `plan` chooses a backend and plans what it enforces
//! ([`PlannedRun`](plan::PlannedRun)), `prepare` describes the launch
//! ([`PreparedRun`](prepare::PreparedRun)), `launch` starts the process tree
//! ([`LaunchedRun`](launch::LaunchedRun)), `supervise` watches it to its end
//! ([`SupervisedEnd`](supervise::SupervisedEnd)), and `result` makes the `ExecutionResult`.
//!
//! On a backend without process trees, `contained` takes the planned run and starts a sandbox for
//! the command.

pub(crate) mod contained;
pub(crate) mod end_report;
pub(crate) mod launch;
pub(crate) mod output;
pub(crate) mod plan;
pub(crate) mod prepare;
pub(crate) mod readiness;
pub(crate) mod result;
pub(crate) mod running;
pub(crate) mod supervise;

use std::os::fd::{BorrowedFd, OwnedFd};

use ringfence_core::{ExecutionResult, ExitStatus};
use ringfence_linux::LaunchFiles;

use crate::engine::Core;
use crate::run::prepare::PreparedRun;
use crate::run::result::status;
use crate::run::supervise::{Foreground, Listener, SupervisionInputs};
use crate::{Command, RunError};

/// Result of a command that ran with the caller's own streams.
#[derive(Debug)]
pub struct Attached {
    /// Status with which the process exits.
    pub status: ExitStatus,
    /// Result without output, because the output went to the caller's streams.
    pub result: ExecutionResult,
}

impl Core {
    /// Runs a command with the caller's own streams, terminal and signals.
    pub(crate) fn run_attached(
        &self,
        prepared: PreparedRun,
        command: &Command,
        passed: Vec<(i32, OwnedFd)>,
    ) -> Result<Attached, RunError> {
        let foreground = Foreground::take().map_err(|source| RunError::Watch { source })?;
        let (terminal, position) = foreground.terminal();
        let terminal = terminal
            .map(OwnedFd::try_clone)
            .transpose()
            .map_err(|source| RunError::Watch { source })?;
        let setup = |source| RunError::Setup {
            step: "make pipes for the standard streams".to_owned(),
            source,
        };
        let (stdio, relays) = prepared.context.streams.relay().map_err(setup)?;
        let files = LaunchFiles { stdio, terminal, gate: None, passed };
        let time = prepared.context.time();
        let running = self.launch(prepared, files, position, time)?;
        let watch = SupervisionInputs {
            foreground: Some(foreground),
            relays,
            ..SupervisionInputs::default()
        };
        let result = running.finish(command, watch, None)?;
        Ok(Attached { status: status(&result), result })
    }

    /// Runs a command with no input and with captured output. Ends the run when `cancel` becomes
    /// readable, or closes.
    pub(crate) fn run_captured(
        &self,
        prepared: PreparedRun,
        command: &Command,
        passed: Vec<(i32, OwnedFd)>,
        cancel: Option<BorrowedFd<'_>>,
        on_output: Option<Listener<'_>>,
    ) -> Result<ExecutionResult, RunError> {
        let time = prepared.context.time();
        let (running, mut capture) = self.launch_captured(prepared, passed, time)?;
        running.finish(
            command,
            SupervisionInputs {
                capture: Some(&mut capture),
                cancel,
                ..SupervisionInputs::default()
            },
            on_output,
        )
    }
}

/// Returns a random id that no other run has.
pub(crate) fn identity() -> String {
    let mut bytes = [0; size_of::<u128>()];
    // On failure the id is all zeroes, which is valid, too.
    let _ = rustix::rand::getrandom(&mut bytes[..12], rustix::rand::GetRandomFlags::empty());
    format!("{:024x}", u128::from_le_bytes(bytes))
}
