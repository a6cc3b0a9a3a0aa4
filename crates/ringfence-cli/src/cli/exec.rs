//! The `ringfence exec` command, which runs a command in a running sandbox.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use ringfence::policy::Span;
use ringfence::{
    AttachedStreams, Command, CommandEnd, ExecutionResult, ExitStatus, Host, PtySize, Sandbox,
    Settings,
};
use ringfence_core::settings::Config;

use super::attach::{Named, block_on};
use super::flags::Variable;
use super::run::{interruption, keep, warn_of_end, warn_of_planted};
use crate::answer::print_json;
use crate::report::{Failure, warn};

const EXAMPLES: &str = "\
Examples:
  ringfence exec demo -- make test
  ringfence exec demo --tty -- vim README.md
  tar c src | ringfence exec demo -- tar x";

/// Runs one command in a sandbox that is up.
///
/// Without --json, standard streams, signals and exit code are the command's own. ringfence itself
/// uses the exit codes of `ringfence run`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Exec {
    #[command(flatten)]
    sandbox: Named,
    /// Gives the command a terminal of its own.
    #[arg(short, long, conflicts_with = "json")]
    tty: bool,
    /// Ends the command after TIME, such as 30s or 2m.
    #[arg(long, value_name = "TIME")]
    time: Option<Span>,
    /// Passes on the caller's variable NAME, or sets NAME to VALUE; repeatable.
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<Variable>,
    /// Starts the command in DIR in the sandbox, instead of the workspace.
    #[arg(short = 'C', long, value_name = "DIR")]
    directory: Option<String>,
    /// Captures the output and prints a result object.
    #[arg(long)]
    pub(super) json: bool,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Exec {
    pub(crate) fn run(self, host: Host) -> Result<ExitCode, Failure> {
        let settings = self.settings(host)?;
        // Take over the signals before another thread exists that could receive them.
        let interruption = self.json.then(interruption).transpose()?;
        block_on(async {
            let sandbox = self.sandbox.attach(&settings.host).await?;
            let exec = self.exec(&sandbox, &settings);
            let time = exec.time;
            let (result, status) = if let Some(interruption) = &interruption {
                let captured = sandbox.capture_unless(exec, interruption).await;
                let result = captured.map_err(|error| self.sandbox.failed(error))?;
                warn_of_planted("the sandbox", &result.meta.planted);
                print_json(&result)?;
                (result, interruption.signal().map_or(ExitStatus::Code(0), ExitStatus::Signal))
            } else {
                let before = sandbox.observe();
                let ended =
                    attach(&sandbox, exec).await.map_err(|error| self.sandbox.failed(error))?;
                let result = before.result(ended);
                warn_of_exec_end(&result, time);
                (result, status(&ended))
            };
            self.record(&settings, &result);
            Ok(status.code().into())
        })
    }

    /// Loads the settings by which the record is kept. The variables of the flags are part of the
    /// settings, so that no record shows their values.
    fn settings(&self, host: Host) -> Result<Settings, Failure> {
        let mut config = Config::default();
        self.env.iter().for_each(|variable| variable.apply(&mut config.env));
        Ok(Settings::load(host, Vec::new(), config)?)
    }

    fn exec(&self, sandbox: &Sandbox, settings: &Settings) -> ringfence::Exec {
        let (program, arguments) = self.command.split_first().expect("clap requires a command");
        let mut exec = ringfence::Exec::new(program).arguments(arguments);
        for variable in &self.env {
            match variable {
                Variable::Set(name, value) => exec = exec.variable(name, value),
                Variable::Pass(name) => match settings.host.text(name) {
                    Some(value) => exec = exec.variable(name, value),
                    None => warn(&format!(
                        "the variable {name} is not passed on, because it is not set or not UTF-8 \
                         text"
                    )),
                },
            }
        }
        if let Some(directory) = &self.directory {
            let inside = sandbox.manifest().workspace_inside.join(directory);
            exec = exec.directory(inside.to_string_lossy());
        }
        let limit = sandbox.manifest().limits.time;
        if let Some(time) = self.time.or(limit) {
            exec = exec.time(time.duration());
        }
        if self.tty { on_terminal(exec, &settings.host) } else { exec }
    }

    fn record(&self, settings: &Settings, result: &ExecutionResult) {
        let (program, arguments) = self.command.split_first().expect("clap requires a command");
        keep(settings, &Command::new(program).arguments(arguments), result);
    }
}

/// Gives a command a terminal of the same type as that of the caller.
pub(super) fn on_terminal(exec: ringfence::Exec, host: &Host) -> ringfence::Exec {
    let exec = exec.terminal(PtySize { cols: 80, rows: 24 });
    match host.text("TERM") {
        Some(terminal) => exec.variable("TERM", terminal),
        None => exec,
    }
}

/// Runs a command with the standard streams of this process. Restores the mode of the terminal even
/// after a panic.
pub(super) async fn attach(
    sandbox: &Sandbox,
    exec: ringfence::Exec,
) -> Result<CommandEnd, ringfence::SessionError> {
    if let (true, Ok(mode)) =
        (exec.terminal.is_some(), rustix::termios::tcgetattr(rustix::stdio::stdin()))
    {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let now = rustix::termios::OptionalActions::Now;
            // The terminal may be gone.
            let _ = rustix::termios::tcsetattr(rustix::stdio::stdin(), now, &mode);
            before(panic);
        }));
    }
    ringfence::exec_attached(sandbox, exec, AttachedStreams::for_this_process()).await
}

/// Returns the exit status for the end of a command.
pub(super) fn status(ended: &CommandEnd) -> ExitStatus {
    match (ended.timed_out, ended.exit_code, ended.signal) {
        (true, ..) => ExitStatus::Deadline,
        (false, Some(code), _) => ExitStatus::Code(code as u8),
        (false, None, signal) => ExitStatus::Signal(signal.unwrap_or(9) as u8),
    }
}

/// Warns about ends of a command in a sandbox that the command itself could not report.
fn warn_of_exec_end(result: &ExecutionResult, time: Option<Duration>) {
    let deadline = time.map(|time| format!("{} s", time.as_secs_f64()));
    warn_of_end(result, deadline, "command", "sandbox");
}
