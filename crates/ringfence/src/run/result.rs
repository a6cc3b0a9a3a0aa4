//! Last stage of a run: makes the result of a run that was supervised to its end.

use std::io;

use ringfence_core::result::{Denial, DroppedBytes, RunMetadata, RunUsage};
use ringfence_core::{ExecutionResult, ExitStatus};

use crate::run::plan::PlannedRun;
use crate::run::supervise::{End, SupervisedEnd};
use crate::{Command, RunError};

/// Makes the result of a run, or the error if the run failed.
pub(crate) fn make_result(
    context: &PlannedRun,
    meta: RunMetadata,
    outcome: SupervisedEnd,
    oom_killed: bool,
    denials: Vec<Denial>,
    command: &Command,
) -> Result<ExecutionResult, RunError> {
    let program = || command.program.to_string_lossy().into_owned();
    let ending = match outcome.end {
        End::Ended(ending) => Some(ending),
        End::Vanished if outcome.timed_out || oom_killed => None,
        End::Vanished => return Err(RunError::Killed),
        End::SetupFailed { step, errno: 0 } => {
            return Err(RunError::Setup {
                step,
                source: io::Error::other("the kernel gave no error"),
            });
        }
        End::SetupFailed { step, errno } => {
            return Err(RunError::Setup { step, source: io::Error::from_raw_os_error(errno) });
        }
        End::ExecFailed { errno } => {
            let source = io::Error::from_raw_os_error(errno);
            return Err(match source.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                    RunError::NotFound { program: program(), on_host: on_host(command) }
                }
                _ => RunError::NotExecutable { program: program(), source },
            });
        }
    };
    if ending.is_some_and(|ending| !ending.swept) {
        tracing::warn!(
            "processes of the run may be left: no pid namespace and no cgroup held them"
        );
    }
    let exit_code = ending.and_then(|ending| ending.exit_code);
    let signal = ending.map_or(Some(9), |ending| ending.signal);
    let (stdout, stderr) = (outcome.stdout, outcome.stderr);
    let usage = ending.map(|ending| ending.usage).unwrap_or_default();
    Ok(ExecutionResult {
        id: crate::run::identity(),
        exit_code,
        signal,
        ok: exit_code == Some(0) && !outcome.timed_out,
        timed_out: outcome.timed_out,
        oom_killed,
        stdout: stdout.0,
        stderr: stderr.0,
        dropped: DroppedBytes { stdout: stdout.1, stderr: stderr.1 },
        duration: outcome.duration.as_secs_f64(),
        meta: RunMetadata {
            usage: RunUsage { cpu_seconds: usage.cpu_micros as f64 / 1e6, max_rss: usage.max_rss },
            denials,
            planted: context.guarded.planted(),
            ..meta
        },
    })
}

/// Returns the path on the host of a command that does not exist inside.
fn on_host(command: &Command) -> Option<String> {
    let path = std::path::Path::new(&command.program);
    (path.is_absolute() && path.exists()).then(|| path.display().to_string())
}

pub(crate) fn status(result: &ExecutionResult) -> ExitStatus {
    match (result.timed_out, result.exit_code, result.signal) {
        (true, _, _) => ExitStatus::Deadline,
        (false, Some(code), _) => ExitStatus::Code(code as u8),
        (false, None, signal) => ExitStatus::Signal(signal.unwrap_or(9) as u8),
    }
}
