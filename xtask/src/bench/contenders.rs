//! The contenders, and the way in which each starts a command.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::driver::BenchDriver;
use crate::workspace::{find_program, output_of};

pub(super) const PLAIN: &str = "plain spawn";
pub(super) const NATIVE: &str = "ringfence, native";
pub(super) const LIBRARY: &str = "ringfence, library cold";
pub(super) const EQUAL_BWRAP: &str = "bwrap, equal view";
pub(super) const AS_USUAL: &str = "bwrap, as usual";

/// Number of library runs that one process times. Runs are bundled because the start of the process
/// must not be measured.
const RUNS_PER_PROCESS: usize = 10;

/// The programs of ringfence that are measured.
pub(super) struct RingfencePrograms {
    pub(super) ringfence: PathBuf,
    /// Program that takes a number of runs and a command, and prints the nanoseconds of each run on
    /// its own line.
    pub(super) library: PathBuf,
    /// Program that keeps a sandbox, and answers each line of input with the nanoseconds that the
    /// work took.
    pub(super) session: PathBuf,
    /// Program that keeps interpreters, and answers each line of input with the nanoseconds that
    /// the code took.
    pub(super) code: PathBuf,
}

/// One way to run the command, or the reason why the way is missing on this host.
pub(super) struct Contender {
    pub(super) name: &'static str,
    pub(super) start: Result<RunMethod, String>,
}

/// The way in which a contender starts a run.
pub(super) enum RunMethod {
    Spawn(Vec<OsString>),
    Library {
        program: PathBuf,
        command: Vec<OsString>,
    },
    /// Line that a driver answers with the times of `runs` runs.
    Asked {
        driver: Rc<BenchDriver>,
        line: String,
        runs: usize,
    },
    /// Action that this process performs and times by itself.
    Done(Box<dyn Fn() -> Result<Duration>>),
}

impl RunMethod {
    /// Runs once, and returns the reason if the run fails.
    pub(super) fn run_once(&self) -> Result<(), String> {
        let mut command = match self {
            Self::Spawn(words) => command_of(words),
            Self::Library { program, command } => library_command(program, 1, command),
            Self::Asked { driver, line, .. } => {
                return driver.ask(line).map(drop).map_err(|error| error.to_string());
            }
            Self::Done(act) => return act().map(drop).map_err(|error| format!("{error:#}")),
        };
        output_of(&mut command).map(drop).map_err(|error| error.to_string())
    }

    /// Returns the number of runs that one call of [`Self::time`] makes.
    pub(super) fn runs_at_once(&self) -> usize {
        match self {
            Self::Spawn(_) | Self::Done(_) => 1,
            Self::Library { .. } => RUNS_PER_PROCESS,
            Self::Asked { runs, .. } => *runs,
        }
    }

    /// Runs once, or a block of times where one process makes all runs of the block, and returns
    /// the time of each run.
    pub(super) fn time(&self) -> Result<Vec<Duration>> {
        match self {
            Self::Spawn(words) => {
                let mut command = command_of(words);
                command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                let start = Instant::now();
                let status = command.status()?;
                let time = start.elapsed();
                ensure!(status.success(), "it ended with {status}");
                Ok(vec![time])
            }
            Self::Library { program, command } => {
                let figures = output_of(&mut library_command(program, RUNS_PER_PROCESS, command))?;
                let time = |line: &str| {
                    Ok(Duration::from_nanos(line.trim().parse().context("not a figure")?))
                };
                figures.lines().map(time).collect()
            }
            Self::Asked { driver, line, .. } => driver.ask(line),
            Self::Done(act) => Ok(vec![act()?]),
        }
    }
}

fn command_of(words: &[OsString]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

fn library_command(program: &Path, runs: usize, words: &[OsString]) -> Command {
    let mut command = Command::new(program);
    command.arg(runs.to_string()).args(words);
    command
}

/// Returns all contenders, present or not, and a sentence on the origin of the equal view.
pub(super) fn line_up(
    programs: &RingfencePrograms,
    directory: &Path,
    command: &[&str],
) -> (Vec<Contender>, String) {
    let words: Vec<OsString> = command.iter().map(OsString::from).collect();
    let spawn =
        |prefix: Vec<OsString>| RunMethod::Spawn(prefix.into_iter().chain(words.clone()).collect());
    let ringfence = |flags: &str| spawn(with_flags(&programs.ringfence, flags));
    let installed = |program: &str, flags: &str| installed(program, flags, &words);
    let library = RunMethod::Library { program: programs.library.clone(), command: words.clone() };
    let native = match chosen_backend(&programs.ringfence, &words) {
        Ok(chosen) if chosen == "native" => Ok(()),
        Ok(chosen) => Err(format!("the default backend here is {chosen}")),
        Err(error) => Err(format!("{error:#}")),
    };
    let by_hand = [vec!["bwrap".into()], equal_view(directory)].concat();
    let (equal_bwrap, source) = match ask_for_equal_view(&programs.ringfence, &words) {
        Ok(start) => (start, "as ringfence calls bwrap, without the filter".to_owned()),
        Err(error) => (spawn(by_hand), format!("spelled by hand: {error:#}")),
    };
    let contenders = vec![
        Contender { name: PLAIN, start: Ok(spawn(Vec::new())) },
        Contender { name: NATIVE, start: native.map(|()| ringfence("run --")) },
        Contender { name: "ringfence, bwrap", start: Ok(ringfence("run --backend bwrap --")) },
        Contender { name: LIBRARY, start: Ok(library) },
        Contender { name: EQUAL_BWRAP, start: Ok(equal_bwrap) },
        Contender { name: AS_USUAL, start: bwrap_as_usual(&words) },
        Contender {
            name: "unshare",
            start: installed(
                "unshare",
                "--user --map-root-user --mount --pid --net --ipc --uts --cgroup --fork \
                 --kill-child",
            ),
        },
        Contender {
            name: "firejail",
            start: installed("firejail", "--quiet --noprofile --net=none --"),
        },
    ];
    (contenders, source)
}

/// Returns a call of bwrap with the flags that most of its callers use.
pub(super) fn bwrap_as_usual(words: &[OsString]) -> Result<RunMethod, String> {
    installed(
        "bwrap",
        "--unshare-all --die-with-parent --ro-bind / / --proc /proc --dev /dev --tmpfs /tmp",
        words,
    )
}

fn installed(program: &str, flags: &str, words: &[OsString]) -> Result<RunMethod, String> {
    let path = find_program(program).ok_or_else(|| format!("{program} is not installed"))?;
    Ok(RunMethod::Spawn([with_flags(&path, flags).as_slice(), words].concat()))
}

fn with_flags(program: &Path, flags: &str) -> Vec<OsString> {
    std::iter::once(program.into()).chain(flags.split(' ').map(OsString::from)).collect()
}

/// Asks ringfence for the backend that it chooses by default.
fn chosen_backend(ringfence: &Path, words: &[OsString]) -> Result<String> {
    let result = output_of(Command::new(ringfence).args(["run", "--json", "--"]).args(words))?;
    let result: serde_json::Value =
        serde_json::from_str(&result).context("the result is not JSON")?;
    result["meta"]["backend"].as_str().map(str::to_owned).context("the result names no backend")
}

/// Asks ringfence for the call of bwrap that it would make for the same policy.
fn ask_for_equal_view(ringfence: &Path, words: &[OsString]) -> Result<RunMethod> {
    let mut command = Command::new(ringfence);
    command.args(["run", "--backend", "bwrap", "--dry-run", "--json", "--"]).args(words);
    let plan: serde_json::Value = serde_json::from_str(&output_of(&mut command)?)?;
    let argv = plan["bwrap_argv"].as_array().context("the plan has no `bwrap_argv`")?;
    let argv: Option<Vec<&str>> = argv.iter().map(serde_json::Value::as_str).collect();
    let words = without_descriptors(&argv.context("`bwrap_argv` has more than strings")?)?;
    Ok(RunMethod::Spawn(words.into_iter().map(OsString::from).collect()))
}

/// Removes the options that name a descriptor, because only ringfence could pass that descriptor.
fn without_descriptors(argv: &[&str]) -> Result<Vec<String>> {
    let mut kept = Vec::new();
    let mut words = argv.iter().copied();
    while let Some(word) = words.next() {
        match word {
            "--seccomp" | "--add-seccomp-fd" | "--sync-fd" | "--block-fd" | "--info-fd"
            | "--json-status-fd" | "--userns-block-fd" => {
                words.next().with_context(|| format!("`{word}` has no descriptor"))?;
            }
            // Replace the data with a bind mount at the same destination. The source exists and has
            // its own mode, so `--perms` must go.
            "--ro-bind-data" | "--bind-data" | "--file" => {
                let destination =
                    words.nth(1).with_context(|| format!("`{word}` has no destination"))?;
                if kept.len() >= 2 && kept[kept.len() - 2] == "--perms" {
                    kept.truncate(kept.len() - 2);
                }
                kept.extend(["--ro-bind", "/dev/null", destination].map(str::to_owned));
            }
            "--args" | "--bind-fd" | "--ro-bind-fd" | "--userns" | "--userns2" | "--pidns" => {
                bail!("`{word}` cannot be called again")
            }
            "--" => {
                kept.extend(std::iter::once("--").chain(words.by_ref()).map(str::to_owned));
            }
            _ => kept.push(word.to_owned()),
        }
    }
    Ok(kept)
}

/// Builds by hand the bwrap arguments for the default view of ringfence.
fn equal_view(directory: &Path) -> Vec<OsString> {
    const SYSTEM: &[&str] = &["/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt"];
    const SETTINGS: &[&str] = &[
        "passwd",
        "group",
        "nsswitch.conf",
        "hosts",
        "host.conf",
        "localtime",
        "ld.so.cache",
        "ld.so.conf",
        "ld.so.conf.d",
        "alternatives",
        "ssl",
        "ca-certificates",
        "protocols",
        "services",
        "mime.types",
        "os-release",
    ];
    let mut arguments: Vec<OsString> =
        ["--unshare-all", "--die-with-parent", "--new-session", "--clearenv"]
            .map(OsString::from)
            .into();
    let settings = SETTINGS.iter().map(|name| Path::new("/etc").join(name));
    for path in SYSTEM.iter().map(PathBuf::from).chain(settings).filter(|path| path.exists()) {
        arguments.extend([OsString::from("--ro-bind"), path.clone().into(), path.into()]);
    }
    let home = std::env::var_os("HOME").unwrap_or_else(|| "/root".into());
    arguments.extend(
        ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs"].map(OsString::from),
    );
    arguments.extend([home.clone(), "--bind".into(), directory.into(), directory.into()]);
    arguments.extend(["--chdir".into(), directory.into(), "--setenv".into(), "HOME".into(), home]);
    arguments.extend(
        ["--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin", "--cap-drop", "ALL", "--"]
            .map(OsString::from),
    );
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(argv: &str, expected: &str) {
        let argv: Vec<&str> = argv.split(' ').collect();
        assert_eq!(without_descriptors(&argv).unwrap().join(" "), expected);
    }

    #[test]
    fn options_that_name_a_descriptor_are_taken_out() {
        check(
            "bwrap --seccomp 10 --ro-bind /usr /usr -- true",
            "bwrap --ro-bind /usr /usr -- true",
        );
        check(
            "bwrap --perms 0644 --file 9 /etc/hosts -- true",
            "bwrap --ro-bind /dev/null /etc/hosts -- true",
        );
        check(
            "bwrap --ro-bind-data 9 /etc/passwd -- true",
            "bwrap --ro-bind /dev/null /etc/passwd -- true",
        );
    }

    #[test]
    fn the_words_of_the_command_are_kept() {
        check("bwrap -- cat --seccomp 10 --file", "bwrap -- cat --seccomp 10 --file");
    }

    #[test]
    fn a_call_that_cannot_be_repeated_is_an_error() {
        assert!(without_descriptors(&["bwrap", "--args", "8"]).is_err());
        assert!(without_descriptors(&["bwrap", "--seccomp"]).is_err());
    }
}
