//! The `ringfence inspect` command, which describes a sandbox.

use std::process::ExitCode;

use clap::Args;
use ringfence::{Host, ListedProcess, Manifest};
use serde::Serialize;

use super::attach::{Named, block_on, plain};
use crate::answer::{print, print_json};
use crate::report::Failure;

/// Describes a sandbox: its backend, network and workspace, its promises, and its processes.
#[derive(Debug, Args)]
pub(crate) struct Inspect {
    #[command(flatten)]
    sandbox: Named,
    /// Prints the output as JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// Description of a sandbox, for output.
#[derive(Debug, Serialize)]
struct InspectedSandbox<'a> {
    #[serde(flatten)]
    manifest: &'a Manifest,
    processes: Vec<Process>,
}

/// Running command. Its variables are not shown, because they may be secrets.
#[derive(Debug, Serialize)]
struct Process {
    pid: u32,
    command: Vec<String>,
    directory: Option<String>,
    tag: Option<String>,
}

impl From<ListedProcess> for Process {
    fn from(listed: ListedProcess) -> Process {
        let ListedProcess { config, pid, tag } = listed;
        let command = std::iter::once(config.cmd).chain(config.args).collect();
        Process { pid, command, directory: config.cwd, tag }
    }
}

impl Inspect {
    pub(crate) fn run(self, host: Host) -> Result<ExitCode, Failure> {
        block_on(async {
            let sandbox = self.sandbox.attach(&host).await?;
            let listed = sandbox.processes().await.map_err(|error| self.sandbox.failed(error))?;
            let processes = listed.into_iter().map(Process::from).collect();
            let inspected = InspectedSandbox { manifest: sandbox.manifest(), processes };
            if self.json {
                print_json(&inspected)?
            } else {
                print(&described(&inspected))?
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

fn described(inspected: &InspectedSandbox<'_>) -> String {
    let InspectedSandbox { manifest, processes } = inspected;
    let mut text = String::new();
    let mut line = |key: &str, value: &str| {
        text.push_str(&format!("{:<11} {}\n", format!("{key}:"), plain(value)))
    };
    line("name", manifest.name.as_str());
    line("backend", manifest.backend.name());
    line("because", &manifest.chosen_because);
    line("started", &manifest.started);
    line("ends", manifest.ends.as_deref().unwrap_or("when it is stopped"));
    line("kept by", &format!("process {}", manifest.owner.pid));
    line("network", &manifest.network.to_string());
    line("workspace", &manifest.workspace.to_string_lossy());
    line("inside", &manifest.workspace_inside.to_string_lossy());
    if let Some(container) = &manifest.container {
        line("container", &container.name);
        line("image", &container.image);
        line("user", &container.user);
    }
    text.push_str("held:\n");
    for (clause, by) in &manifest.held {
        text.push_str(&format!("  {:<14} {}\n", clause.name(), plain(&by.to_string())));
    }
    text.push_str(if processes.is_empty() { "processes: none\n" } else { "processes:\n" });
    for process in processes {
        text.push_str(&format!("  {:>7}  {}\n", process.pid, plain(&process.command.join(" "))));
    }
    text
}
