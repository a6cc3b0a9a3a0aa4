//! Flags of a policy, which all commands that create a sandbox share.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use ringfence::policy::{
    Environment, HostRule, Limits, NetworkMode, NetworkTable, PathGlob, Policy, Size, Span,
    VariableError, Workspace,
};
use ringfence::{
    BackendChoice, Clause, ContainerSpec, Engine, Host, LoadError, PolicyFile, Preset, Pull,
    RunError, Settings, images,
};
use ringfence_core::settings::{BackendSelection, Config, ContainerConfig};

use crate::report::Failure;

/// Flags that set the policy of a sandbox.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Policy")]
pub(crate) struct PolicyFlags {
    /// Backend that enforces the policy: auto, native, bwrap, docker, podman, outer or local.
    #[arg(long, value_name = "BACKEND")]
    backend: Option<BackendChoice>,
    /// Directory SRC that the sandbox can write, optionally at the path DST in the sandbox.
    #[arg(long, value_name = "SRC[:DST]")]
    workspace: Option<Workspace>,
    /// Lets the sandbox read PATH; repeatable.
    #[arg(long, value_name = "PATH")]
    read: Vec<PathBuf>,
    /// Lets the sandbox read and write PATH; repeatable.
    #[arg(long, value_name = "PATH")]
    write: Vec<PathBuf>,
    /// Makes files of the workspace that match GLOB unreadable; repeatable.
    #[arg(long, value_name = "GLOB")]
    hide: Vec<PathGlob>,
    /// Makes files that match GLOB read-only, in addition to git's hooks and config; repeatable.
    #[arg(long, value_name = "GLOB")]
    protect: Vec<PathGlob>,
    /// Network access: none (closed, the default), allowed hosts (allow), or all hosts (open).
    ///
    /// With `open`, the sandbox can reach everything that the host can reach.
    #[arg(long, value_name = "closed|allow|open")]
    net: Option<NetworkMode>,
    /// Allows connections to HOST, on ports 80 and 443 unless PORT is given; repeatable.
    ///
    /// The sandbox can reach only the allowed hosts.
    #[arg(long, value_name = "HOST[:PORT]")]
    allow: Vec<HostRule>,
    /// Denies connections to HOST, even if --allow allows HOST; repeatable.
    #[arg(long, value_name = "HOST[:PORT]")]
    deny: Vec<HostRule>,
    /// Lets programs that do not use a proxy reach the allowed hosts, too.
    #[arg(long)]
    transparent: bool,
    /// Allows connections to every public host, and records the hosts.
    #[arg(long)]
    observe: bool,
    /// Passes on the caller's variable NAME, or sets NAME to VALUE; repeatable.
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<Variable>,
    /// Ends each command after TIME, such as 30s, 2m or 1h30m.
    #[arg(long, value_name = "TIME")]
    time: Option<Span>,
    /// Maximum memory of all processes together, such as 512M or 2G.
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,
    /// Maximum number of processors that the processes use together, such as 1.5.
    #[arg(long, value_name = "N", value_parser = cpus)]
    cpus: Option<f64>,
    /// Maximum number of processes and threads at once.
    #[arg(long, value_name = "N", value_parser = processes)]
    processes: Option<u32>,
    /// Maximum output to keep of each stream with --json; 10M by default.
    #[arg(long, value_name = "SIZE")]
    output: Option<Size>,
    /// Maximum size of /tmp, and of the private home; 1G by default.
    #[arg(long, value_name = "SIZE")]
    tmp: Option<Size>,
    /// Maximum growth of the workspace; no backend can enforce this limit yet.
    #[arg(long, value_name = "SIZE")]
    disk: Option<Size>,
    /// File with a policy in TOML or JSON; the flags take precedence.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Requires that PROMISE is fully enforced; repeatable.
    #[arg(long, value_name = "PROMISE")]
    require: Vec<Clause>,
    /// Accepts that the promise CLAUSE is enforced only in part, or not at all; repeatable.
    #[arg(long, value_name = "CLAUSE")]
    allow_weaker: Vec<Clause>,
    /// Changes to the directory DIR first.
    #[arg(short = 'C', long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// Flags for container engines only.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Containers")]
pub(crate) struct ContainerFlags {
    /// Uses a container for development, on podman or else docker.
    ///
    /// The container has the host's network unless the policy sets a network, for example with
    /// --net.
    #[arg(long)]
    container: bool,
    /// Image of the container; by default the image in the settings, or else ringfence's own.
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Rule for fetching the image: always, missing or never.
    #[arg(long, value_name = "WHEN")]
    pull: Option<Pull>,
    /// Linux capabilities that are not dropped, separated by commas; repeatable.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    cap: Vec<String>,
}

/// Returns whether a container engine creates the sandboxes.
pub(super) fn is_engine(selection: BackendSelection) -> bool {
    match selection {
        BackendSelection::Only(backend) => images::is_engine(backend),
        BackendSelection::DockerElseAuto => true,
        _ => false,
    }
}

/// Fails for `flag`, which is for containers, unless a container engine creates the sandboxes.
pub(super) fn require_engine(flag: &str, selection: BackendSelection) -> Result<(), Failure> {
    if is_engine(selection) {
        return Ok(());
    }
    Err(Failure::usage(
        format!("{flag} is for containers, and the backend is {}", selection.choice()),
        "add --backend podman or --backend docker, or leave the flag out",
    ))
}

impl ContainerFlags {
    /// Loads the settings that apply here, with these flags and the policy flags on top.
    pub(crate) fn settings(
        &self,
        policy: &PolicyFlags,
        mut host: Host,
    ) -> Result<Settings, Failure> {
        policy.enter(&mut host)?;
        if self.container && policy.backend.is_none() {
            return self.first_that_works(policy, &host);
        }
        self.with_container(self.load(policy, host, policy.backend)?)
    }

    /// Loads the settings with the first container engine that works.
    fn first_that_works(&self, policy: &PolicyFlags, host: &Host) -> Result<Settings, Failure> {
        let (mut missing, mut refused) = (Vec::new(), None);
        for backend in images::engines() {
            let settings =
                self.with_container(self.load(policy, host.clone(), Some(backend.into()))?)?;
            let settings = settings.selected_by_flag("--container");
            match Engine::in_this_process(settings.clone()).preflight() {
                Err(RunError::Unavailable { backend, why, fix }) => {
                    missing.push((backend, why, fix))
                }
                Err(_) => drop(refused.get_or_insert(settings)),
                Ok(_) => return Ok(settings),
            }
        }
        // The start reports why the first available engine refuses.
        if let Some(settings) = refused {
            return Ok(settings);
        }
        let whys: Vec<String> =
            missing.iter().map(|(backend, why, _)| format!("{backend}: {why}")).collect();
        let fixes = missing
            .into_iter()
            .map(|(_, _, fix)| fix)
            .chain(["without a container: ringfence up".to_owned()]);
        Err(Failure::unavailable(
            format!("no container engine works here: {}", whys.join("; ")),
            fixes,
        ))
    }

    fn load(
        &self,
        policy: &PolicyFlags,
        host: Host,
        backend: Option<BackendChoice>,
    ) -> Result<Settings, Failure> {
        policy.load(host, backend, ContainerConfig { image: self.image.clone() })
    }

    fn with_container(&self, mut settings: Settings) -> Result<Settings, Failure> {
        let flag = [
            ("--container", self.container),
            ("--image", self.image.is_some()),
            ("--pull", self.pull.is_some()),
            ("--cap", !self.cap.is_empty()),
        ];
        if let Some((flag, _)) = flag.into_iter().find(|(_, given)| *given) {
            require_engine(flag, settings.selection)?;
        }
        settings.container = ContainerSpec {
            preset: if self.container { Preset::Dev } else { Preset::Agent },
            image: settings.image.clone(),
            pull: self.pull,
            capabilities: self.cap.clone(),
            ..ContainerSpec::default()
        };
        Ok(settings)
    }
}

/// Variable of the environment inside the sandbox.
#[derive(Debug, Clone)]
pub(crate) enum Variable {
    Pass(String),
    Set(String, String),
}

impl FromStr for Variable {
    type Err = VariableError;

    fn from_str(text: &str) -> Result<Variable, VariableError> {
        match text.split_once('=') {
            Some((name, value)) => Environment::check(name, value)
                .map(|()| Variable::Set(name.to_owned(), value.to_owned())),
            None => Environment::check_name(text).map(|()| Variable::Pass(text.to_owned())),
        }
    }
}

impl Variable {
    /// Adds the variable to the environment of a policy.
    pub(crate) fn apply(&self, env: &mut Environment) {
        match self {
            Variable::Pass(name) => extend(&mut env.pass, std::slice::from_ref(name)),
            Variable::Set(name, value) => drop(env.set.insert(name.clone(), value.clone())),
        }
    }
}

type Wrong = Box<dyn Error + Send + Sync>;

fn cpus(text: &str) -> Result<f64, Wrong> {
    Ok(Limits::check_cpus(text.parse()?)?)
}

fn processes(text: &str) -> Result<u32, Wrong> {
    Ok(Limits::check_processes(text.parse()?)?)
}

/// Returns the host, as seen by this process.
pub(crate) fn host() -> Result<Host, Failure> {
    Host::for_this_process().map_err(|source| LoadError::Directory { source }.into())
}

impl PolicyFlags {
    /// Returns the backend that the flags ask for.
    pub(crate) fn chosen(&self) -> Option<BackendChoice> {
        self.backend
    }

    /// Loads the settings that apply here, with these flags on top.
    pub(crate) fn settings(&self, mut host: Host) -> Result<Settings, Failure> {
        self.enter(&mut host)?;
        self.load(host, self.backend, ContainerConfig::default())
    }

    /// Changes to the directory that `--directory` names.
    fn enter(&self, host: &mut Host) -> Result<(), Failure> {
        if let Some(directory) = &self.directory {
            host.directory = enter(directory)?;
        }
        Ok(())
    }

    fn load(
        &self,
        host: Host,
        backend: Option<BackendChoice>,
        container: ContainerConfig,
    ) -> Result<Settings, Failure> {
        let PolicyFile { given, config } = self.named_policy()?;
        let config = Config { container, ..self.config(config, backend)? };
        Ok(Settings::load(host, given, config)?)
    }

    /// Returns the configuration of the flags, on top of `base`.
    fn config(&self, base: Config, backend: Option<BackendChoice>) -> Result<Config, Failure> {
        let mut config = base;
        config.backend = backend.or(config.backend);

        let files = &mut config.filesystem;
        files.workspace = self.workspace.clone().or(files.workspace.take());
        extend(&mut files.read, &self.read);
        extend(&mut files.write, &self.write);
        extend(&mut files.hide, &self.hide);
        if !self.protect.is_empty() {
            // An explicit list replaces the default list, so include the defaults: protecting more
            // files must not give up protected ones.
            extend(&mut files.protect, &Policy::DEFAULT_PROTECTED.map(PathGlob::literal));
            extend(&mut files.protect, &self.protect);
        }

        let flags = self.network();
        flags
            .check()
            .map_err(|error| Failure::usage(error.to_string(), "leave one of the two flags out"))?;
        let network = &mut config.network;
        if flags.mode.is_some() || flags.allow.is_some() {
            (network.mode, network.allow) = (flags.mode, flags.allow);
        }
        extend(&mut network.deny, &self.deny);
        network.transparent = flags.transparent.or(network.transparent);
        network.observe = flags.observe.or(network.observe);
        self.env.iter().for_each(|variable| variable.apply(&mut config.env));

        let limits = &mut config.limits;
        limits.time = self.time.or(limits.time);
        limits.memory = self.memory.or(limits.memory);
        limits.cpus = self.cpus.or(limits.cpus);
        limits.processes = self.processes.or(limits.processes);
        limits.output = self.output.or(limits.output);
        limits.tmp = self.tmp.or(limits.tmp);
        limits.disk = self.disk.or(limits.disk);
        config.require.extend(&self.require);
        config.allow_weaker.extend(&self.allow_weaker);
        Ok(config)
    }

    /// Returns the network table of the flags.
    fn network(&self) -> NetworkTable {
        let list = |hosts: &[HostRule]| (!hosts.is_empty()).then(|| hosts.to_vec());
        NetworkTable {
            mode: self.net,
            allow: list(&self.allow),
            deny: list(&self.deny),
            transparent: self.transparent.then_some(true),
            observe: self.observe.then_some(true),
        }
    }

    /// Reads the policy file that `--policy` names.
    fn named_policy(&self) -> Result<PolicyFile, Failure> {
        let read = self.policy.as_deref().map(PolicyFile::read).transpose();
        let file = read.map_err(|error| Failure::usage(error.to_string(), error.hint()))?;
        Ok(file.unwrap_or_default())
    }
}

/// Changes the working directory, and returns its real path.
fn enter(directory: &Path) -> Result<PathBuf, Failure> {
    std::env::set_current_dir(directory).and_then(|()| std::env::current_dir()).map_err(|error| {
        Failure::usage(
            format!("cannot change to the directory `{}`: {error}", directory.display()),
            "name a directory that exists",
        )
    })
}

fn extend<T: Clone>(into: &mut Option<Vec<T>>, from: &[T]) {
    if !from.is_empty() {
        into.get_or_insert_default().extend_from_slice(from);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{CommandFactory, Parser};
    use ringfence_core::settings::{self, KEYS, SettingsInputs, ValueSource};

    use super::super::Arguments;
    use super::*;

    /// Flags of `ringfence run` that concern only the one run, and set no key.
    const FLAGS_WITHOUT_KEY: [&str; 11] = [
        "--cap",
        "--container",
        "--directory",
        "--dry-run",
        "--fd",
        "--help",
        "--json",
        "--policy",
        "--pull",
        "--verbose",
        "--version",
    ];

    /// Returns the long flags of a command, with the name of the value of each.
    fn flags_of(command: &str) -> Vec<(String, String)> {
        let mut root = Arguments::<super::super::Command>::command();
        root.build();
        let command = root.find_subcommand(command).expect("there is such a command");
        let named = command.get_arguments().filter_map(|argument| {
            let value = if argument.get_action().takes_values() {
                argument.get_value_names().map_or("", |names| names[0].as_str())
            } else {
                ""
            };
            Some((format!("--{}", argument.get_long()?), value.to_owned()))
        });
        named.collect()
    }

    #[test]
    fn every_flag_of_run_sets_a_key_or_is_known_to_set_none() {
        let declared: BTreeSet<&str> = KEYS.iter().filter_map(|setting| setting.flag).collect();
        for (flag, _) in flags_of("run") {
            let sets_none = FLAGS_WITHOUT_KEY.contains(&flag.as_str());
            assert_ne!(
                declared.contains(flag.as_str()),
                sets_none,
                "{flag} must be in settings/keys.rs of ringfence-core, or in FLAGS_WITHOUT_KEY"
            );
        }
    }

    #[test]
    fn every_declared_flag_sets_its_key() {
        #[derive(Parser)]
        struct Flags {
            #[command(flatten)]
            container: ContainerFlags,
            #[command(flatten)]
            policy: PolicyFlags,
        }

        let (of_run, of_code) = (flags_of("run"), flags_of("code"));
        for setting in KEYS {
            let Some(flag) = setting.flag else { continue };
            let Some((_, value)) = of_run.iter().find(|(known, _)| known == flag) else {
                // `ringfence code` has further flags, which it applies itself.
                assert!(of_code.iter().any(|(known, _)| known == flag), "there is no {flag}");
                continue;
            };
            let value = match value.as_str() {
                "" => None,
                "BACKEND" => Some("bwrap"),
                "closed|allow|open" => Some("open"),
                "HOST[:PORT]" => Some("example.org"),
                "NAME[=VALUE]" if setting.name == "env.set" => Some("A=1"),
                "TIME" => Some("1s"),
                "SIZE" => Some("1M"),
                "N" => Some("1"),
                "PROMISE" | "CLAUSE" => Some("memory"),
                _ => Some("a"),
            };
            let words = ["flags", flag].into_iter().chain(value);
            let flags = Flags::try_parse_from(words).unwrap();
            let mut config = flags.policy.config(Config::default(), flags.policy.backend).unwrap();
            config.container = ContainerConfig { image: flags.container.image };
            let settings = settings::Settings::load(SettingsInputs {
                files: &[],
                variables: [],
                flags: config,
                home: None,
                directory: Path::new("/"),
            });
            let sources = settings.unwrap().sources;
            let key = if setting.name == "env.set" { "env.set.A" } else { setting.name };
            assert_eq!(sources.last(key), &ValueSource::Flag(flag.into()), "{key}");
        }
    }
}
