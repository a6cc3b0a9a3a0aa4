//! The `ringfence completions` command, and other files that are generated from the description of
//! the command line.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::Shell;
use ringfence_core::settings::{KEYS, SettingKey};

use super::config::pretty;
use super::{Arguments, Command};
use crate::answer::print;
use crate::report::Failure;

/// Text in the footer of a man page.
const SOURCE: &str = concat!("ringfence ", env!("CARGO_PKG_VERSION"));

/// Prints the completions of a shell.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Shell that the completions are for.
    shell: KnownShell,
}

/// Writes man pages, completions and references into a directory.
#[derive(Debug, Args)]
pub(crate) struct Generate {
    /// Directory for the generated files.
    directory: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum KnownShell {
    Bash,
    Zsh,
    Fish,
}

impl KnownShell {
    /// Returns the shell, and the file name under which the shell looks for completions.
    const fn file(self) -> (Shell, &'static str) {
        match self {
            KnownShell::Bash => (Shell::Bash, "ringfence.bash"),
            KnownShell::Zsh => (Shell::Zsh, "_ringfence"),
            KnownShell::Fish => (Shell::Fish, "ringfence.fish"),
        }
    }

    fn completions(self) -> String {
        let mut bytes = Vec::new();
        clap_complete::generate(
            self.file().0,
            &mut Arguments::<Command>::command(),
            "ringfence",
            &mut bytes,
        );
        let script = String::from_utf8(bytes).expect("completions are text");
        self.with_names(&script)
    }

    /// Adds completion of the names of running sandboxes to a script, wherever a command takes such
    /// a name.
    fn with_names(self, script: &str) -> String {
        match self {
            KnownShell::Bash => {
                let script = named_commands().iter().fold(script.to_owned(), |script, command| {
                    let start = bash_block(command);
                    // bash expands a command substitution in the list of words.
                    script.replace(&start, &format!("{start}$({NAMES}) "))
                });
                with_ends_in_bash(&script)
            }
            KnownShell::Zsh => {
                let complete = |line: &str| match line.rsplit_once(':') {
                    Some((start, "_default' \\"))
                        if start.starts_with("':sandbox --")
                            || start.starts_with("'*::sandboxes --") =>
                    {
                        format!("{start}:_ringfence_names' \\\n")
                    }
                    Some((start, "_files' \\"))
                        if COPY_ARGUMENTS
                            .iter()
                            .any(|end| start.starts_with(&format!("':{end} --"))) =>
                    {
                        format!("{start}:_ringfence_ends' \\\n")
                    }
                    _ => format!("{line}\n"),
                };
                script
                    .lines()
                    .map(complete)
                    .collect::<String>()
                    .replace("\n_ringfence() {\n", &zsh_names())
            }
            KnownShell::Fish => {
                let complete = |command: &String| {
                    let condition = format!("__fish_ringfence_using_subcommand {command}");
                    format!("complete -c ringfence -n \"{condition}\" -f -a \"({NAMES})\"\n")
                };
                // fish appends the text after an expansion to each of its words. Files are
                // completed, too.
                let ends = format!(
                    "complete -c ringfence -n \"__fish_ringfence_using_subcommand cp\" -a \
                     \"({NAMES}):\"\n"
                );
                script.to_owned()
                    + &named_commands().iter().map(complete).collect::<String>()
                    + &ends
            }
        }
    }
}

/// Command that prints the names of running sandboxes.
const NAMES: &str = "ringfence ps --names 2>/dev/null";

/// Arguments of `cp`: each is a file or `NAME:PATH`.
const COPY_ARGUMENTS: [&str; 2] = ["from", "to"];

/// Returns zsh functions that complete names, alone and as the start of an argument of `cp`. They
/// stand before the main function.
fn zsh_names() -> String {
    format!(
        "\n_ringfence_names() {{\n    local -a names\n    names=(${{(f)\"$({NAMES})\"}})\n    \
         compadd \"$@\" -a names\n}}\n\n\
         _ringfence_ends() {{\n    _ringfence_names -S :\n    _files\n}}\n\n\
         _ringfence() {{\n"
    )
}

/// Returns the start of the block of a command in the bash script.
fn bash_block(command: &str) -> String {
    format!("ringfence__subcmd__{})\n            opts=\"", command.replace('-', "__subcmd__"))
}

/// Adds completion of the arguments of `cp` to the bash script. A name ends with a colon and no
/// space, because a path follows. bash completes files where no word fits.
fn with_ends_in_bash(script: &str) -> String {
    let start = bash_block("cp");
    let (before, rest) = script.split_once(&start).expect("there is such a command");
    let (block, after) = rest.split_once("\n            ;;\n").expect("every block has an end");
    let block = block.replace(
        "return 0",
        "[[ ${COMPREPLY[0]} == *: ]] && compopt -o nospace\n            return 0",
    );
    format!("{before}{start}$({NAMES} | sed 's/$/:/') {block}\n            ;;\n{after}")
}

/// Returns the commands that take the name of a running sandbox.
fn named_commands() -> Vec<String> {
    let is_named = |command: &&clap::Command| {
        command
            .get_positionals()
            .any(|argument| ["sandbox", "sandboxes"].contains(&argument.get_id().as_str()))
    };
    Arguments::<Command>::command()
        .get_subcommands()
        .filter(is_named)
        .map(|command| command.get_name().to_owned())
        .collect()
}

impl Completions {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        print(&self.shell.completions())?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Generate {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        self.write().map_err(|error| {
            Failure::failed(error.to_string(), "name a directory that can be written")
        })?;
        Ok(ExitCode::SUCCESS)
    }

    fn write(&self) -> io::Result<()> {
        for shell in KnownShell::value_variants() {
            self.file(&Path::new("completions").join(shell.file().1), shell.completions())?;
        }
        let mut command = Arguments::<Command>::command().term_width(100);
        command.build();
        let mut commands = Vec::new();
        collect(&command, &mut commands);
        for command in &commands {
            let mut page = Vec::new();
            let man = clap_mangen::Man::new((*command).clone()).source(SOURCE);
            man.render(&mut page)?;
            self.file(&Path::new("man").join(man.get_filename()), page)?;
        }
        self.file(Path::new("reference/cli.md"), reference(&commands))?;
        self.file(Path::new("reference/variables.md"), variables())?;
        self.file(
            Path::new("reference/policy.schema.json"),
            pretty(&ringfence_core::policy::schema()),
        )?;
        self.file(
            Path::new("reference/config.schema.json"),
            pretty(&ringfence_core::settings::schema()),
        )
    }

    fn file(&self, name: &Path, contents: impl AsRef<[u8]>) -> io::Result<()> {
        let path = self.directory.join(name);
        fs_err::create_dir_all(path.parent().unwrap_or(&path))?;
        fs_err::write(path, contents)
    }
}

/// Collects a command and its visible subcommands, in order.
fn collect<'a>(command: &'a clap::Command, into: &mut Vec<&'a clap::Command>) {
    into.push(command);
    command
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .for_each(|command| collect(command, into));
}

/// Returns the reference page with the `--help` text of every command.
fn reference(commands: &[&clap::Command]) -> String {
    let mut text = "# Commands\n".to_owned();
    for command in commands {
        let mut command = (*command).clone();
        let name = command.get_bin_name().unwrap_or("ringfence").to_owned();
        let help = command.render_long_help().to_string();
        let lines: Vec<_> = help.trim().lines().map(str::trim_end).collect();
        text.push_str(&format!("\n## {name}\n\n```text\n{}\n```\n", lines.join("\n")));
    }
    text
}

/// Returns the reference page of all keys with their flags and variables.
fn variables() -> String {
    let mut text = "# Keys, flags and variables\n\n\
                    Settings come from these sources, and a later source takes precedence: the \
                    system's file, the user's file, the project's file (which may only narrow the \
                    policy), variables, the policy of `--policy`, flags. `ringfence config \
                    explain` prints every effective value with its source.\n\n\
                    | key | flag | variable | value of the variable |\n|---|---|---|---|\n"
        .to_owned();
    for SettingKey { name, flag, variable, .. } in KEYS {
        let code = |word: Option<&str>| word.map_or(String::new(), |word| format!("`{word}`"));
        let (flag, value) = (code(*flag), variable.map_or("", |variable| variable.value));
        let variable = code(variable.map(|variable| variable.name));
        text.push_str(&format!("| `{name}` | {flag} | {variable} | {value} |\n"));
    }
    text.push_str(
        "\n`RINGFENCE_LOG` sets the level of the log on standard error: `warn`, `info`, `debug`, \
         or levels by module, as in `ringfence_linux=trace,warn`. `RINGFENCE_MCP_TOKEN` is the \
         token that clients of `ringfence mcp --listen` must send.\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_completes_names_wherever_one_is_to_be_written() {
        let commands = named_commands();
        assert!(
            ["exec", "enter", "logs", "port", "stop", "inspect"]
                .iter()
                .all(|name| commands.contains(&(*name).into()))
        );
        assert!(!commands.contains(&"up".to_owned()), "a new sandbox has a new name");
        for shell in KnownShell::value_variants() {
            let expected = match shell {
                KnownShell::Bash => "opts=\"$(ringfence ps --names",
                KnownShell::Zsh => ":_ringfence_names' ",
                KnownShell::Fish => "-a \"(ringfence ps --names",
            };
            let ends = match shell {
                KnownShell::Bash => "opts=\"$(ringfence ps --names 2>/dev/null | sed 's/$/:/') ",
                KnownShell::Zsh => ":_ringfence_ends' ",
                KnownShell::Fish => "-a \"(ringfence ps --names 2>/dev/null):\"",
            };
            let (completions, is_one) =
                (shell.completions(), |shell: &KnownShell| !matches!(shell, KnownShell::Zsh));
            assert_eq!(
                completions.matches(ends).count(),
                if is_one(shell) { 1 } else { COPY_ARGUMENTS.len() },
                "{shell:?}"
            );
            let names = completions.matches(expected).count() - if is_one(shell) { 1 } else { 0 };
            assert_eq!(names, commands.len(), "{shell:?}");
        }
    }

    #[test]
    fn bash_completes_a_name_with_its_colon_and_a_file_as_ever() {
        let place = tempfile::tempdir().unwrap();
        let script = place.path().join("script");
        fs_err::write(&script, KnownShell::Bash.completions()).unwrap();
        let complete = |command: &str, word: &str| {
            let line = format!(
                "ringfence() {{ echo demo; }}; compopt() {{ echo \"$@\"; }}; . '{}'; \
                 COMP_WORDS=(ringfence {command} {word}); COMP_CWORD=2; _ringfence ringfence \
                 '{word}' {command}; echo \"${{COMPREPLY[*]}}\"",
                script.display()
            );
            let output = std::process::Command::new("bash").args(["-c", &line]).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(complete("exec", "de"), "demo\n");
        assert_eq!(complete("cp", "de"), "-o nospace\ndemo:\n");
        assert_eq!(complete("cp", "./de"), "\n"); // bash itself then looks for files
    }
}
