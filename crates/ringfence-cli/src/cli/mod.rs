//! The commands of the program, one file each.

mod attach;
mod attempt;
mod audit;
mod code;
mod config;
mod cp;
mod doctor;
mod egress;
mod enter;
mod exec;
mod fetch;
mod flags;
mod generate;
mod image;
mod inspect;
mod keys;
mod kubernetes;
mod logs;
mod mcp;
mod monitor;
mod port;
mod prove;
mod ps;
mod run;
mod serve;
mod ssh;
mod stop;
mod sync;
mod up;
mod wrap;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

use crate::answer::Form;
use crate::report::{Failure, listen};

/// Runs an agent's commands behind one policy, enforced or refused.
#[derive(Debug, Parser)]
#[command(name = "ringfence", version, propagate_version = true, disable_help_subcommand = true)]
pub(crate) struct Arguments<C: Subcommand = Command> {
    /// Logs more: given once, also events; given twice, also decisions.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    #[command(subcommand)]
    command: C,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(run::Run),
    Code(code::Code),
    Up(up::Up),
    Exec(exec::Exec),
    Enter(enter::Enter),
    Cp(cp::Cp),
    Sync(sync::Sync),
    Ps(ps::Ps),
    Logs(logs::Logs),
    Port(port::Port),
    Ssh(ssh::Ssh),
    SshConfig(ssh::SshConfig),
    #[command(hide = true)]
    SshProxy(ssh::SshProxy),
    Stop(stop::Stop),
    Inspect(inspect::Inspect),
    Image(image::ImageArguments),
    Mcp(mcp::Mcp),
    Doctor(doctor::Doctor),
    Wrap(wrap::Wrap),
    Unwrap(wrap::Unwrap),
    Config(config::ConfigArguments),
    Audit(audit::Audit),
    Egress(egress::EgressArguments),
    Serve(serve::Serve),
    Keys(keys::KeysArguments),
    Kubernetes(kubernetes::KubernetesArguments),
    Completions(generate::Completions),
    #[command(hide = true)]
    Attempt(attempt::Attempt),
    #[command(hide = true)]
    Generate(generate::Generate),
}

/// Commands that are called in quick succession. Creating the flags of all commands takes a tenth
/// of the time of a short run, so the command line is parsed with these commands alone first.
#[derive(Debug, Subcommand)]
enum FrequentCommand {
    Run(Box<run::Run>),
    Exec(exec::Exec),
}

impl From<FrequentCommand> for Command {
    fn from(command: FrequentCommand) -> Command {
        match command {
            FrequentCommand::Run(command) => Command::Run(*command),
            FrequentCommand::Exec(command) => Command::Exec(command),
        }
    }
}

/// Parses the command line, runs the command, and returns the exit code.
pub(crate) fn run() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let wants_json = words.iter().take_while(|word| *word != "--").any(|word| word == "--json");
    match parse(words) {
        Ok(arguments) => {
            let form = arguments.command.form();
            arguments.carry_out().unwrap_or_else(|failure| failure.report(form))
        }
        Err(failure) => failure.report(Form::from_flag(wants_json)),
    }
}

/// Parses a command line. Prints help and the version directly, and exits.
pub(crate) fn parse(words: Vec<OsString>) -> Result<Arguments, Failure> {
    if words.get(1).is_some_and(|word| word == "run" || word == "exec")
        && let Ok(Arguments { verbose, command }) =
            Arguments::<FrequentCommand>::try_parse_from(&words)
    {
        return Ok(Arguments { verbose, command: command.into() });
    }
    // Report a mistake with all commands in view, because another command may be meant.
    Arguments::<Command>::try_parse_from(&words).map_err(|error| {
        if !error.use_stderr()
            || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        {
            error.exit();
        }
        Failure::misunderstood(&error, help(&words))
    })
}

/// Returns the command that shows the help for the command in `words`.
fn help(words: &[OsString]) -> String {
    let root = Arguments::<Command>::command();
    let (mut command, mut path) = (&root, "ringfence".to_owned());
    for word in words.iter().skip(1) {
        if let Some(inner) = command.find_subcommand(word) {
            command = inner;
            path = format!("{path} {}", inner.get_name());
        }
    }
    format!("{path} --help")
}

impl Arguments {
    fn carry_out(self) -> Result<ExitCode, Failure> {
        let host = flags::host()?;
        // A server logs at level `info` by default, because that is its log.
        let verbosity = self.verbose.max(matches!(self.command, Command::Serve(_)).into());
        // A monitor gets its verbosity with its request.
        if !matches!(&self.command, Command::Up(up) if up.is_monitor()) {
            listen(verbosity, host.text("RINGFENCE_LOG"))?;
        }
        match self.command {
            Command::Run(command) => command.run(host),
            Command::Code(command) => command.run(host),
            Command::Up(command) => command.run(host, self.verbose),
            Command::Exec(command) => command.run(host),
            Command::Enter(command) => command.run(host),
            Command::Cp(command) => command.run(host),
            Command::Sync(command) => command.run(host),
            Command::Ps(command) => command.run(host),
            Command::Logs(command) => command.run(host),
            Command::Port(command) => command.run(host),
            Command::Ssh(command) => command.run(host),
            Command::SshConfig(command) => command.run(host),
            Command::SshProxy(command) => command.run(host),
            Command::Stop(command) => command.run(host),
            Command::Inspect(command) => command.run(host),
            Command::Image(command) => command.run(host),
            Command::Mcp(command) => command.run(host),
            Command::Doctor(command) => command.run(host),
            Command::Wrap(command) => command.run(host),
            Command::Unwrap(command) => command.run(),
            Command::Config(command) => command.run(host),
            Command::Audit(command) => command.run(host),
            Command::Egress(command) => command.run(host),
            Command::Serve(command) => command.run(host),
            Command::Keys(command) => command.run(host),
            Command::Kubernetes(command) => command.run(host),
            Command::Completions(command) => command.run(),
            Command::Generate(command) => command.run(),
            Command::Attempt(command) => command.run(),
        }
    }
}

impl Command {
    fn form(&self) -> Form {
        Form::from_flag(match self {
            Command::Run(command) => command.json,
            Command::Code(command) => command.json,
            Command::Up(command) => command.json,
            Command::Exec(command) => command.json,
            Command::Sync(command) => command.json,
            Command::Ps(command) => command.json,
            Command::Inspect(command) => command.json,
            Command::Doctor(command) => command.json,
            Command::Config(command) => command.is_json(),
            Command::Audit(command) => command.json,
            Command::Egress(command) => command.json,
            Command::Keys(command) => command.is_json(),
            _ => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::<Command>::command().debug_assert();
    }
}
