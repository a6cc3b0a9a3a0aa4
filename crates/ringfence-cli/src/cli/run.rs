//! The `ringfence run` command, which runs one command in a new sandbox.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use clap::Args;
use ringfence::{
    Command, Engine, ExecutionResult, ExitStatus, Host, Interruption, Plan, Planned, Records,
    RunError, Settings,
};

use super::flags::{ContainerFlags, PolicyFlags};
use super::sync::{sync_listener, warn_of_workspace};
use crate::answer::{Form, print, print_json};
use crate::report::{Failure, warn};

const EXAMPLES: &str = "\
Examples:
  ringfence run -- make test
  ringfence run --net open --env API_KEY -- my-agent
  ringfence run --json --time 30s --memory 512M -- python3 script.py";

/// Runs one command behind a policy that is enforced or refused.
///
/// Without --json, terminal, job control, signals, standard input and exit code are the command's
/// own. Exit codes of ringfence itself: 2 usage, 124 deadline, 125 the sandbox failed, 126 not
/// executable, 127 not found, 128+n signal.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Run {
    /// Passes the open file descriptor N to the command, under the same number; repeatable.
    #[arg(long, value_name = "N")]
    fd: Vec<i32>,
    /// Prints the plan instead of running the command.
    #[arg(long)]
    dry_run: bool,
    /// Captures the output and prints a result object.
    #[arg(long)]
    pub(super) json: bool,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    #[command(flatten)]
    container: ContainerFlags,
    // `policy` must be the last field, because its help heading also applies to the flags that
    // follow.
    #[command(flatten)]
    policy: PolicyFlags,
}

impl Run {
    pub(crate) fn run(self, host: Host) -> Result<ExitCode, Failure> {
        let mut settings = self.container.settings(&self.policy, host)?;
        settings.on_sync = Some(sync_listener());
        let passed = self.passed_descriptors()?;
        let (program, arguments) = self.command.split_first().expect("clap requires a command");
        let command = Command::new(program).arguments(arguments);
        let engine = Engine::in_this_process(settings);
        let policy = &engine.settings().policy;
        if self.dry_run {
            return self.describe(&engine, &command);
        }
        if self.json {
            return interruptible(|interruption| {
                let result = engine.run_captured(policy, &command, passed, Some(interruption))?;
                keep(engine.settings(), &command, &result);
                warn_of_planted("the run", &result.meta.planted);
                result.meta.workspace.iter().for_each(|report| warn_of_workspace(report));
                print_json(&result)
            });
        }
        let attached = engine.run_attached(policy, &command, passed)?;
        warn_of_run_end(&attached.result);
        keep(engine.settings(), &command, &attached.result);
        Ok(attached.status.code().into())
    }

    fn passed_descriptors(&self) -> Result<Vec<(i32, OwnedFd)>, Failure> {
        let pass = |number: &i32| {
            let wrong = |why: String| {
                let hint =
                    "open the descriptor in the shell: ringfence run --fd 3 -- COMMAND 3<FILE";
                Failure::usage(format!("cannot pass descriptor {number}: {why}"), hint)
            };
            if !(3..=ringfence::HIGHEST_CALLER_DESCRIPTOR).contains(number) {
                return Err(wrong(format!(
                    "the number must be from 3 to {}",
                    ringfence::HIGHEST_CALLER_DESCRIPTOR
                )));
            }
            let copy = ringfence::duplicate(*number).map_err(|error| wrong(error.to_string()))?;
            Ok((*number, copy))
        };
        self.fd.iter().map(pass).collect()
    }

    fn describe(&self, engine: &Engine, command: &Command) -> Result<ExitCode, Failure> {
        let Planned { mut plan, because, words } =
            engine.plan(&engine.settings().policy, command)?;
        plan.policy = plan.policy.without_values();
        if self.json {
            let mut value = serde_json::json!({ "plan": plan, "chosen_because": because });
            if !words.is_empty() {
                value["bwrap_argv"] = words.into();
            }
            print_json(&value)?;
        } else {
            print(&described(&plan, &because))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn described(plan: &Plan, because: &str) -> String {
    let mut text =
        format!("backend: {} ({})\nbecause: {because}\nheld:\n", plan.backend, plan.summary);
    for (clause, support) in &plan.held {
        text.push_str(&format!("  {:<14} {support}\n", clause.name()));
    }
    let policy =
        toml::to_string(&plan.policy).expect("a policy is made of tables and plain values");
    text.push_str("policy:\n");
    for line in policy.lines() {
        let indent = if line.is_empty() { "" } else { "  " };
        text.push_str(&format!("{indent}{line}\n"));
    }
    text
}

/// Takes over the signals that would otherwise end only this process.
pub(super) fn interruption() -> Result<Interruption, Failure> {
    Ok(Interruption::take().map_err(|source| RunError::Watch { source })?)
}

/// Runs `act` so that signals end the work of `act` and not only this process. After a signal, the
/// exit code says that the signal ended this process.
pub(super) fn interruptible(
    act: impl FnOnce(&Interruption) -> Result<(), Failure>,
) -> Result<ExitCode, Failure> {
    let interruption = interruption()?;
    let outcome = act(&interruption);
    match (interruption.signal(), outcome) {
        (Some(signal), outcome) => {
            if let Err(failure) = outcome {
                failure.report(Form::Text);
            }
            Ok(ExitStatus::Signal(signal).code().into())
        }
        (None, outcome) => outcome.map(|()| ExitCode::SUCCESS),
    }
}

/// Warns about ends of a run that the command itself could not report.
pub(super) fn warn_of_run_end(result: &ExecutionResult) {
    let deadline = result.meta.limits.time.map(|time| time.to_string());
    warn_of_end(result, deadline, "run", "run");
}

/// Warns if a limit ended the command, and about planted files. The warnings name `ended` as the
/// thing that the deadline ended, and `owner` as the thing that has the memory limit.
pub(super) fn warn_of_end(
    result: &ExecutionResult,
    deadline: Option<String>,
    ended: &str,
    owner: &str,
) {
    if let (true, Some(deadline)) = (result.timed_out, deadline) {
        warn(&format!("the deadline of {deadline} passed: every process of the {ended} was ended"));
    }
    if let (true, Some(memory)) = (result.oom_killed, result.meta.limits.memory) {
        warn(&format!(
            "the memory limit of {memory} was reached, and a process of the {owner} was ended"
        ));
    }
    warn_of_planted(&format!("the {owner}"), &result.meta.planted);
    result.meta.workspace.iter().for_each(|report| warn_of_workspace(report));
}

/// Warns about paths that a sandbox made, changed or removed and that programs on the host act on.
/// Warns with `--json`, too, because the person at the terminal is the one who starts git next.
pub(super) fn warn_of_planted(maker: &str, planted: &[String]) {
    for planted in planted {
        let what = "and programs on the host may act on this path: inspect it first";
        warn(&format!("{maker} made, changed or removed `{planted}`, {what}"));
    }
}

/// Keeps a record of the run. If the record cannot be written, only warns, because the command has
/// already run.
pub(super) fn keep(settings: &Settings, command: &Command, result: &ExecutionResult) {
    if let Err(error) = Records::keep(settings, command, result) {
        warn(&format!("cannot keep a record: {}; {}", ringfence::chain(&error), error.hint()));
    }
}
