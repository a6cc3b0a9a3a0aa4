//! The flags of a policy, shared by every command that makes a sandbox.

use std::path::PathBuf;

use clap::Args;
use ringfence::policy::{HostRule, Network, PathGlob, Policy, Size, Span, Workspace};
use ringfence::{Choice, Clause, Host, LoadError, Settings};
use ringfence_core::settings::Config;

use crate::report::Failure;

/// What must hold.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Policy")]
pub(crate) struct PolicyFlags {
    /// How it is made to hold: auto, native, bwrap, outer or local.
    #[arg(long, value_name = "BACKEND")]
    backend: Option<Choice>,
    /// The directory that can be written, optionally at another path inside.
    #[arg(long, value_name = "SRC[:DST]")]
    workspace: Option<Workspace>,
    /// Lets PATH be read; repeatable.
    #[arg(long, value_name = "PATH")]
    read: Vec<PathBuf>,
    /// Lets PATH be read and written; repeatable.
    #[arg(long, value_name = "PATH")]
    write: Vec<PathBuf>,
    /// Makes files of the workspace unreadable; repeatable.
    #[arg(long, value_name = "GLOB")]
    hide: Vec<PathGlob>,
    /// Makes files of the workspace unchangeable; repeatable, in addition to the configured ones.
    #[arg(long, value_name = "GLOB")]
    protect: Vec<PathGlob>,
    /// What can be reached: closed or open.
    #[arg(long, value_name = "MODE")]
    net: Option<String>,
    /// Lets HOST be reached, and only such hosts; repeatable.
    #[arg(long, value_name = "HOST")]
    allow: Vec<HostRule>,
    /// Passes a variable on, or sets it; repeatable.
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Ends the run after this long: 30s, 2m, 1h30m.
    #[arg(long, value_name = "TIME")]
    time: Option<Span>,
    /// Memory of all processes together: 512M, 2G.
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,
    /// Processors' worth of time: 1.5.
    #[arg(long, value_name = "N")]
    cpus: Option<f64>,
    /// Processes and threads at once.
    #[arg(long, value_name = "N")]
    processes: Option<u32>,
    /// Output kept of each stream, with --json.
    #[arg(long, value_name = "SIZE")]
    output: Option<Size>,
    /// What /tmp can hold.
    #[arg(long, value_name = "SIZE")]
    tmp: Option<Size>,
    /// What the workspace may grow by.
    #[arg(long, value_name = "SIZE")]
    disk: Option<Size>,
    /// A policy in TOML or JSON, under the flags.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// A policy in JSON, as wrappers carry it.
    #[arg(long, value_name = "JSON", hide = true)]
    policy_json: Option<String>,
    /// Demands that a promise be fully enforced; repeatable.
    #[arg(long, value_name = "PROMISE")]
    require: Vec<Clause>,
    /// Accepts that a promise be weaker than written, or absent; repeatable.
    #[arg(long, value_name = "CLAUSE")]
    allow_weaker: Vec<Clause>,
    /// Starts in DIR, as if called there.
    #[arg(short = 'C', long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// The host, as this process sees it.
pub(crate) fn host() -> Result<Host, Failure> {
    let failed = |source| Failure::from(LoadError::Directory { source });
    Host::of_this_process().map_err(failed)
}

impl PolicyFlags {
    /// The settings that apply here, with these flags on top.
    pub(crate) fn settings(&self, mut host: Host) -> Result<Settings, Failure> {
        if let Some(directory) = &self.directory {
            let absolute = host.absolute(directory);
            std::env::set_current_dir(&absolute).map_err(|error| {
                Failure::usage(
                    format!("cannot enter `{}`: {error}", absolute.display()),
                    "name a directory that exists",
                )
            })?;
            host.directory = absolute;
        }
        Ok(Settings::load(host, self.config()?)?)
    }

    fn config(&self) -> Result<Config, Failure> {
        let mut config = Config::from(self.named_policy()?);
        fn list<T: Clone>(into: &mut Option<Vec<T>>, from: &[T]) {
            if !from.is_empty() {
                into.get_or_insert_default().extend_from_slice(from);
            }
        }
        let replace = |into: &mut Option<Size>, from: Option<Size>| *into = from.or(*into);
        config.backend = self.backend.or(config.backend);
        config.filesystem.workspace = self.workspace.clone().or(config.filesystem.workspace);
        list(&mut config.filesystem.read, &self.read);
        list(&mut config.filesystem.write, &self.write);
        list(&mut config.filesystem.hide, &self.hide);
        list(&mut config.filesystem.protect, &self.protect);
        config.network = self.network()?.or(config.network);
        for variable in &self.env {
            match variable.split_once('=') {
                Some((name, value)) => drop(config.env.set.insert(name.to_owned(), value.to_owned())),
                None => list(&mut config.env.pass, std::slice::from_ref(variable)),
            }
        }
        config.limits.time = self.time.or(config.limits.time);
        config.limits.cpus = self.cpus.or(config.limits.cpus);
        config.limits.processes = self.processes.or(config.limits.processes);
        replace(&mut config.limits.memory, self.memory);
        replace(&mut config.limits.output, self.output);
        replace(&mut config.limits.tmp, self.tmp);
        replace(&mut config.limits.disk, self.disk);
        config.require.extend(&self.require);
        config.allow_weaker.extend(&self.allow_weaker);
        Ok(config)
    }

    fn network(&self) -> Result<Option<Network>, Failure> {
        match (self.net.as_deref(), self.allow.is_empty()) {
            (None, true) => Ok(None),
            (Some("closed"), true) => Ok(Some(Network::Closed)),
            (Some("open"), true) => Ok(Some(Network::Open)),
            (None | Some("allow"), _) => Ok(Some(Network::Allow(self.allow.clone()))),
            (Some(mode @ ("closed" | "open")), false) => {
                Err(Failure::usage(format!("--net {mode} and --allow contradict each other"), "leave one of them out"))
            }
            (Some(mode), _) => Err(Failure::usage(
                format!("unknown network mode `{mode}`: it is one of closed, allow, open"),
                "--net closed is the default",
            )),
        }
    }

    fn named_policy(&self) -> Result<Policy, Failure> {
        let wrong = |what: &str, error: &dyn std::error::Error| {
            Failure::usage(
                format!("{what}: {}", ringfence::chain(error)),
                "`ringfence config schema` prints what a policy may say",
            )
        };
        if let Some(json) = &self.policy_json {
            return Policy::from_json(json).map_err(|error| wrong("cannot read --policy-json", &error));
        }
        let Some(path) = &self.policy else { return Ok(Policy::default()) };
        let name = path.display().to_string();
        let text = fs_err::read_to_string(path)
            .map_err(|error| Failure::usage(error.to_string(), "give the path of a policy file"))?;
        let is_json = path.extension().is_some_and(|extension| extension == "json");
        let parsed = if is_json { Policy::from_json(&text) } else { Policy::from_toml(&text) };
        parsed.map_err(|error| wrong(&name, &error))
    }
}
