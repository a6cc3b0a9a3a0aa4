//! `ringfence run`.

use std::ffi::OsString;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use clap::Args;
use ringfence::{Command, Engine, ExecutionResult, Host, Records, RunError, Settings};

use super::flags::PolicyFlags;
use crate::report::{Failure, warn};

/// Runs one command behind a policy that is enforced or refused.
///
/// Without --json it is transparent: terminal, job control, signals, standard input and exit code are the
/// command's own. Exit codes of ringfence itself: 2 usage, 124 deadline, 125 the sandbox failed, 126 not
/// executable, 127 not found, 128+n signal.
#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    policy: PolicyFlags,
    /// Passes an open descriptor on under the same number; repeatable.
    #[arg(long, value_name = "N")]
    fd: Vec<i32>,
    /// Prints the plan instead of running.
    #[arg(long)]
    dry_run: bool,
    /// Captures the output and prints a result object.
    #[arg(long)]
    json: bool,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Run {
    pub(crate) fn run(self, host: Host) -> Result<ExitCode, Failure> {
        let settings = self.policy.settings(host)?;
        let passed = self.passed()?;
        let (program, arguments) = self.command.split_first().expect("clap requires a command");
        let command = Command::new(program).arguments(arguments);
        let engine = Engine::in_this_process(settings);
        let policy = engine.settings().policy.clone();
        if self.dry_run {
            return self.describe(&engine, &command);
        }
        if self.json {
            let result = engine.run_captured(&policy, &command, passed)?;
            keep(engine.settings(), &command, &result);
            print_json(&result)?;
            return Ok(ExitCode::SUCCESS);
        }
        let attached = engine.run_attached(&policy, &command, passed)?;
        for planted in &attached.result.meta.planted {
            warn(&format!("the run made `{planted}`, which programs on the host may act on; look at it first"));
        }
        keep(engine.settings(), &command, &attached.result);
        Ok(attached.status.code().into())
    }

    fn passed(&self) -> Result<Vec<(i32, OwnedFd)>, Failure> {
        let pass = |number: &i32| {
            let wrong =
                |why: String| Failure::usage(format!("cannot pass descriptor {number}: {why}"), "--fd 3 3<FILE");
            if !(3..=ringfence::HIGHEST_DESCRIPTOR).contains(number) {
                return Err(wrong(format!("it is not from 3 to {}", ringfence::HIGHEST_DESCRIPTOR)));
            }
            let copy = ringfence::duplicate(*number).map_err(|error| wrong(error.to_string()))?;
            Ok((*number, copy))
        };
        self.fd.iter().map(pass).collect()
    }

    fn describe(&self, engine: &Engine, command: &Command) -> Result<ExitCode, Failure> {
        let policy = &engine.settings().policy;
        let (plan, because) = engine.plan(policy, command)?;
        if self.json {
            let words = engine.words(policy, command)?;
            let mut value = serde_json::json!({ "plan": plan, "chosen_because": because });
            if !words.is_empty() {
                value["bwrap_argv"] = words.into();
            }
            print_json(&value)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut text = format!("backend: {} ({})\nbecause: {because}\nheld:\n", plan.backend, plan.summary);
        for (clause, support) in &plan.held {
            text.push_str(&format!("  {:<14} {support}\n", clause.name()));
        }
        print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Keeps a record, if the settings want one. A run that happened is not undone by a record that could not be
/// written: it is said.
fn keep(settings: &Settings, command: &Command, result: &ExecutionResult) {
    if !settings.audit.store.wants(result) {
        return;
    }
    let passed = settings.policy.env.pass.iter().flatten().filter_map(|name| settings.host.text(name));
    let set = settings.policy.env.set.values().map(String::as_str);
    let secrets: Vec<String> = passed.chain(set).map(str::to_owned).collect();
    if let Err(error) = Records::at(&settings.audit.dir).append(command, result.clone(), &secrets) {
        warn(&format!("no record was kept: {}", ringfence::chain(&error)));
    }
}

/// Prints an answer; a reader that went away is not an error.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(RunError::Watch { source: error }.into()),
        _ => Ok(()),
    }
}

/// Prints an answer as one line of JSON, without ever holding it whole.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let mut out = std::io::BufWriter::with_capacity(64 * 1024, std::io::stdout().lock());
    match serde_json::to_writer(&mut out, value)
        .map_err(std::io::Error::from)
        .and_then(|()| writeln!(out))
        .and_then(|()| out.flush())
    {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(RunError::Watch { source: error }.into()),
        _ => Ok(()),
    }
}
