//! The `ringfence up` command, which starts a sandbox that stays.

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use ringfence::monitor::{MonitorAnswer, MonitorHandle, MonitorRequest};
use ringfence::policy::{Network, Span};
use ringfence::{
    Clause, Existing, Host, Manifest, Name, NetworkReach, Settings, StartRequest, Support,
};

use super::attach::{block_on, plain};
use super::flags::{ContainerFlags, PolicyFlags, is_engine};
use super::monitor::{EndSignals, run as run_monitor};
use crate::answer::{print, print_json};
use crate::report::{Failure, warn};

const EXAMPLES: &str = "\
Examples:
  ringfence up
  ringfence up demo --backend podman --image debian:stable --lease 8h
  ringfence up --container
  ringfence up --container --proxy --allow github.com";

/// Starts a sandbox that stays up, and prints how to enter the sandbox.
///
/// The sandbox is called NAME, or by default like the directory of its workspace, and stays up
/// until `ringfence stop`, the end of its lease, or a reboot. If a sandbox of the same name is up
/// with the same settings, that sandbox is used again. A sandbox of the same name with other
/// settings is an error unless --replace is given.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Up {
    /// Name of the sandbox, made of a-z, 0-9, `-`, `_` and `.`, at most 48 characters long.
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Maximum lifetime of the sandbox, such as 30m or 8h; unlimited by default.
    #[arg(long, value_name = "TIME")]
    lease: Option<Span>,
    /// Stops an existing sandbox of the same name first.
    #[arg(long)]
    replace: bool,
    /// Prints the manifest of the sandbox as JSON.
    #[arg(long)]
    pub(super) json: bool,
    /// Runs as the monitor of the sandbox, and answers the caller on standard output.
    #[arg(long, hide = true)]
    monitor: bool,
    /// Runs the egress proxy in a container of its own, in a network that other containers can
    /// join.
    #[arg(long, help_heading = "Containers")]
    proxy: bool,
    #[command(flatten)]
    container: ContainerFlags,
    // `policy` must be the last field, because its help heading also applies to the flags that
    // follow.
    #[command(flatten)]
    policy: PolicyFlags,
}

impl Up {
    /// Starts the sandbox with a monitor, which logs as much as `verbosity` says.
    pub(crate) fn run(self, host: Host, verbosity: u8) -> Result<ExitCode, Failure> {
        if self.monitor {
            return Ok(run_monitor(host));
        }
        let wants_json = self.json;
        let (settings, request) = self.request(host)?;
        let request = MonitorRequest::new(&settings, request, verbosity)?;
        match block_on(ask(&request, &settings.host.directory))? {
            MonitorAnswer::Failed(error) => Err(error.into()),
            MonitorAnswer::Ready { manifest, .. } if wants_json => {
                print_json(&manifest)?;
                Ok(ExitCode::SUCCESS)
            }
            MonitorAnswer::Ready { manifest, is_new } => {
                print(&welcome(&manifest, is_new))?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }

    /// Returns true if this process is the monitor of a sandbox.
    pub(super) fn is_monitor(&self) -> bool {
        self.monitor
    }

    /// Returns the settings and the request for the sandbox that the flags ask for.
    fn request(self, host: Host) -> Result<(Settings, StartRequest), Failure> {
        let mut settings = self.container.settings(&self.policy, host)?;
        if self.proxy {
            settings.container.proxy = Some(proxy_program(&settings)?);
            if settings.policy.network.as_ref().is_none_or(lets_nothing_out) {
                warn(
                    "the proxy denies every connection, because no host is allowed; allow a host \
                     with --allow HOST",
                );
            }
        }
        let name = self.name.unwrap_or_else(|| default_name(&settings).to_string());
        let request = StartRequest {
            name: Some(name),
            policy: settings.policy.clone(),
            lease: self.lease.map(|lease| lease.duration()),
            existing: if self.replace { Existing::Replace } else { Existing::Reuse },
            container: settings.container.clone(),
        };
        Ok((settings, request))
    }
}

/// Returns the path of this program, which also runs as the proxy beside a container.
fn proxy_program(settings: &Settings) -> Result<String, Failure> {
    if !is_engine(settings.selection) {
        return Err(Failure::usage(
            format!(
                "--proxy is for containers, and the backend is {}",
                settings.selection.choice()
            ),
            "add --container, or leave --proxy out: without a container, --allow HOST already uses \
             a proxy",
        ));
    }
    let program = std::env::current_exe()
        .ok()
        .and_then(|program| program.into_os_string().into_string().ok());
    program.ok_or_else(|| {
        Failure::failed(
            "cannot find the path of this program",
            "install ringfence at a path that is UTF-8 text",
        )
    })
}

/// Returns whether a network has a list of allowed hosts and the list is empty.
fn lets_nothing_out(network: &Network) -> bool {
    network.egress().is_some_and(|egress| egress.allow.is_empty() && !egress.observe)
}

/// Returns the default name of a sandbox: the name of its workspace directory.
fn default_name(settings: &Settings) -> Name {
    let host = &settings.host;
    match &settings.policy.filesystem.workspace {
        Some(workspace) => Name::for_directory(&host.absolute(&workspace.source)),
        None => Name::for_directory(&host.directory),
    }
}

/// Starts a monitor for the sandbox, and waits for its answer. An interruption also ends the
/// monitor.
async fn ask(request: &MonitorRequest, directory: &Path) -> Result<MonitorAnswer, Failure> {
    let mut ends = EndSignals::listen()?;
    let mut monitor = MonitorHandle::start(request, directory)?;
    let signal = tokio::select! {
        answer = monitor.answer() => return Ok(answer?),
        signal = ends.signalled() => signal,
    };
    monitor.ask_to_end();
    monitor.wait();
    Err(Failure::interrupted(signal.as_raw_value() as u8))
}

/// Returns the text that tells the user about a started sandbox.
fn welcome(manifest: &Manifest, is_new: bool) -> String {
    let Manifest { name, backend, workspace, workspace_inside, network, .. } = manifest;
    let up = if is_new { "is up" } else { "was already up with these settings" };
    let mut lines = vec![format!("sandbox `{name}` {up}, on {backend}")];
    if let Some(Support::Absent { why, .. }) = manifest.held.get(&Clause::Filesystem) {
        lines.push(format!("  isolation  none: {}", plain(why)));
    }
    lines.push(match network {
        NetworkReach::Closed => "  network    closed: no host can be reached".to_owned(),
        NetworkReach::Host => {
            let closed =
                if manifest.container.is_some() { "; close it with --net closed" } else { "" };
            format!(
                "  network    the network of the host: this machine and every host that it can \
                 reach{closed}"
            )
        }
        NetworkReach::Allowed { network: Some(name) } => format!(
            "  network    {}: only the hosts that the policy allows, and the containers in that \
             network",
            plain(name)
        ),
        NetworkReach::Allowed { network: None } => {
            "  network    only the hosts that the policy allows".to_owned()
        }
        NetworkReach::Open => {
            "  network    open: every host that this machine can reach".to_owned()
        }
    });
    let (outside, inside) =
        (plain(&workspace.to_string_lossy()), plain(&workspace_inside.to_string_lossy()));
    lines.push(match outside == inside {
        true => format!("  workspace  {outside}"),
        false => format!("  workspace  {outside}, in the sandbox at {inside}"),
    });
    if let Some(container) = &manifest.container {
        lines.push(format!(
            "  image      {}, as user {}",
            plain(&container.image),
            plain(&container.user)
        ));
    }
    if let Some(ends) = &manifest.ends {
        let seconds = ends.split('.').next().unwrap_or(ends).trim_end_matches('Z');
        lines.push(format!("  lease      until {}Z", plain(seconds)));
    }
    lines.push(format!("enter:  ringfence enter {name}"));
    lines.push(format!("run:    ringfence exec {name} -- COMMAND"));
    lines.push(format!("stop:   ringfence stop {name}"));
    lines.join("\n") + "\n"
}
