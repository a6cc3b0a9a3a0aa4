//! Docker and Podman: containers created through the engine's API socket, with our guest as their
//! first process.
//!
//! Both engines speak the same API; [`EngineKind`] describes the differences. The engines' command
//! line programs are never run. Reading order: `client` finds the engine, and `probe` tries it.
//! `identity`, `mounts` and `container` describe a container. `instance` creates and keeps the
//! container. `proxy_network` creates the network and the proxy of a container. `removal` removes
//! all of that, and `sweep` does so after a crash.

mod client;
mod container;
mod error;
mod evidence;
mod handover;
mod identity;
mod image;
mod instance;
mod mapped;
mod mounts;
mod probe;
mod proxy_network;
mod raw;
mod removal;
mod runtime;
mod sweep;
mod version;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bollard::query_parameters::InspectContainerOptions;
use futures_util::future::BoxFuture;
use ringfence_core::policy::{Network, Size, Workspace};
use ringfence_core::{Capabilities, Clause, Policy};

use super::facets::{
    ImageStore, KeptSandbox, OnPull, PauseControl, PortRoute, SandboxFacets, WorkspaceSource,
};
use super::{
    Backend, BackendStart, ContainerError, Freshness, ProbeRequest, StartedSandbox, Unavailable,
    block_on, named_variables,
};
use crate::egress::{ContainerEgress, GateSource};
use crate::sandbox::directory::{NetworkReach, SandboxDir, channel_in};
use crate::sandbox::pause::PauseError;
use crate::session::UnixConnector;
use crate::{ContainerSpec, Host, Preset, StartError};

use client::EngineKind;
use removal::Registration;

/// Directory of ringfence's own files in a container.
const OWN_INSIDE: &str = "/run/ringfence";
/// Path of the guest's program in a container.
const GUEST_INSIDE: &str = "/run/ringfence/guest";
/// Path in a container of the file that this process keeps locked as long as the container is
/// wanted.
const LEASH_INSIDE: &str = "/run/ringfence/leash";
/// Path in a container of the socket at which the guest receives its listening socket.
const HANDOVER_INSIDE: &str = "/run/ringfence/handover";
/// Default path of the workspace in a container with the preset `agent`.
const WORKSPACE_OF_AGENTS: &str = "/workspace";
/// Default path of the workspace in a container with the preset `dev`.
const WORKSPACE_OF_DEVELOPERS: &str = "/home/dev/workspace";
const HOME_OF_AGENTS: &str = "/home/sandbox";
const HOME_OF_DEVELOPERS: &str = "/home/dev";
/// Prefix of the names of ringfence's labels.
const LABEL_PREFIX: &str = "dev.ringfence.";
/// Prefix of the names of ringfence's containers.
const CONTAINER_NAME_PREFIX: &str = "ringfence-";
/// Capabilities that a container can keep. Containers with the preset `dev` keep these capabilities
/// by default.
const DEV_CAPABILITIES: [&str; 5] =
    ["CHOWN", "DAC_OVERRIDE", "SETGID", "SETUID", "NET_BIND_SERVICE"];
/// Default memory limit of a container.
const DEFAULT_MEMORY: Size = Size::mebibytes(1024);
/// Default limit of a container's processor time, in processors.
const DEFAULT_CPUS: f64 = 1.0;
/// Default limit of the number of processes in a container.
const DEFAULT_PROCESSES: u32 = 1024;
/// Number of ringfence's own processes in a container: two of the guest, and the process that forks
/// for it.
const OWN_PROCESSES: i64 = 3;

/// Backend for the Docker engine.
pub(super) static DOCKER: ContainerEngine = ContainerEngine { kind: EngineKind::Docker };
/// Backend for the Podman engine.
pub(super) static PODMAN: ContainerEngine = ContainerEngine { kind: EngineKind::Podman };

/// Backend that creates containers.
#[derive(Debug)]
pub(super) struct ContainerEngine {
    kind: EngineKind,
}

/// Paths that belong to the directory of a container's sandbox.
#[derive(Debug, Clone)]
struct SandboxPaths {
    /// Name of the sandbox.
    name: String,
    /// Path of the sandbox directory.
    directory: PathBuf,
    /// Directory of the guest's socket.
    channel: PathBuf,
    /// Path of the guest's program.
    guest: PathBuf,
    /// Directory that contains all sandbox directories.
    base_directory: PathBuf,
}

impl SandboxPaths {
    fn from_directory(sandbox_dir: &SandboxDir) -> SandboxPaths {
        SandboxPaths {
            name: sandbox_dir.name.to_string(),
            directory: sandbox_dir.path.clone(),
            channel: sandbox_dir.channel(),
            guest: sandbox_dir.guest.path.clone(),
            base_directory: sandbox_dir.path.parent().unwrap_or(Path::new("/")).into(),
        }
    }

    /// Returns the name of the container at the engine.
    fn container(&self) -> String {
        container_name(&self.name)
    }
}

/// Returns the name at the engine of the container of a sandbox.
fn container_name(sandbox: &str) -> String {
    format!("{CONTAINER_NAME_PREFIX}{sandbox}")
}

impl Backend for ContainerEngine {
    fn probe(&self, request: &ProbeRequest<'_>) -> Result<Capabilities, Unavailable> {
        block_on(probe::capabilities(self.kind, request))
    }

    fn complete(&self, policy: &Policy, container: &ContainerSpec) -> Policy {
        with_defaults(policy, container)
    }

    fn warnings(&self, host: &Host, _policy: &Policy) -> Vec<String> {
        let client = block_on(client::connect_with_freshness(host, self.kind, Freshness::Now));
        client.map(|client| runtime::warnings(&client.version)).unwrap_or_default()
    }

    fn start<'a>(
        &'a self,
        request: BackendStart<'a>,
    ) -> BoxFuture<'a, Result<StartedSandbox, StartError>> {
        Box::pin(self.start_container(request))
    }

    fn attach(&self, sandbox: KeptSandbox<'_>) -> io::Result<SandboxFacets> {
        let KeptSandbox { manifest, directory } = sandbox;
        let pause = EnginePause { kind: self.kind, directory: directory.to_owned() };
        Ok(SandboxFacets {
            connector: Arc::new(UnixConnector::for_guest_in(&channel_in(directory))?),
            workspace: WorkspaceSource::HostDir(manifest.workspace.clone()),
            pause: Some(Arc::new(pause)),
            observer: sandbox.read_observer()?,
            ports: match manifest.network {
                NetworkReach::Host => PortRoute::ProcessTree,
                _ => PortRoute::Guest,
            },
        })
    }

    fn sweep<'a>(&'a self, host: &'a Host, directories: &'a Path) -> BoxFuture<'a, ()> {
        Box::pin(sweep::sweep(self.kind, host, directories))
    }

    fn remove_remains(&self, directory: &Path) {
        // Both engines share the form of a registration, which names the engine's socket. So the
        // first engine that is asked removes the container of either.
        if directory.join(removal::REGISTRATION_FILE).exists() {
            block_on(sweep::sweep_sandbox_dir(directory));
        }
    }

    fn images(&self) -> Option<&dyn ImageStore> {
        Some(self)
    }
}

impl ContainerEngine {
    async fn start_container(
        &self,
        request: BackendStart<'_>,
    ) -> Result<StartedSandbox, StartError> {
        let BackendStart { core, context, container, sandbox_dir } = request;
        let inputs = core.launch_inputs(&context, &[]);
        let client = client::connect(inputs.host, self.kind).await;
        let client =
            client.map_err(|error| ContainerError::from(error::ContainerFailure::from(error)))?;
        let paths = SandboxPaths::from_directory(sandbox_dir);
        let request = instance::ContainerRequest {
            plan: inputs.plan,
            host: inputs.host,
            spec: container,
            workspace: inputs.workspace,
            guarded: inputs.guarded,
            paths: &paths,
            credentials: inputs.credentials,
        };
        let log = sandbox_dir.log().map_err(|source| {
            let what = "open the sandbox's log";
            ContainerError::from(error::ContainerFailure::Files { what, source })
        })?;
        let started = instance::start(client, &request, Some(log)).await;
        let mut instance = started.map_err(ContainerError::from)?;
        let way_out = instance.take_way_out();
        let variables = named_variables(core, &context, way_out.as_ref());
        let egress = match way_out {
            Some(ContainerEgress::Gate(gate)) => {
                Some(core.hold_gate(&context, GateSource::Received(gate))?)
            }
            Some(ContainerEgress::Proxy(proxy)) => Some(core.order_proxy(&context, proxy).await?),
            None => None,
        };
        Ok(StartedSandbox { instance: Box::new(instance), egress, variables })
    }
}

/// State of the processes of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContainerState {
    Running,
    Paused,
}

/// Pauses a container through its engine.
#[derive(Debug)]
struct EnginePause {
    kind: EngineKind,
    /// Directory of the sandbox.
    directory: PathBuf,
}

impl PauseControl for EnginePause {
    fn stopped_processes(&self) -> BoxFuture<'_, Result<Vec<i32>, PauseError>> {
        // The engine freezes the cgroup of the container, which keeps the state of each process.
        Box::pin(async { Ok(Vec::new()) })
    }

    fn pause(&self) -> BoxFuture<'_, Result<(), PauseError>> {
        Box::pin(async { Ok(set_state(&self.directory, self.kind, ContainerState::Paused).await?) })
    }

    fn resume(&self, _stopped_before: Vec<i32>) -> BoxFuture<'_, Result<(), PauseError>> {
        Box::pin(async {
            Ok(set_state(&self.directory, self.kind, ContainerState::Running).await?)
        })
    }
}

impl ImageStore for ContainerEngine {
    fn provide<'a>(
        &'a self,
        host: &'a Host,
        spec: &'a ContainerSpec,
        progress: OnPull<'a>,
    ) -> BoxFuture<'a, Result<(), ContainerError>> {
        Box::pin(async move {
            let client =
                client::connect(host, self.kind).await.map_err(error::ContainerFailure::from)?;
            image::provide(&client, spec, progress).await?;
            Ok(())
        })
    }

    fn build<'a>(
        &'a self,
        host: &'a Host,
        containerfile: &'a str,
        tag: &'a str,
        on_line: &'a mut (dyn FnMut(&str) + Send),
    ) -> BoxFuture<'a, Result<(), ContainerError>> {
        Box::pin(async move {
            let client =
                client::connect(host, self.kind).await.map_err(error::ContainerFailure::from)?;
            image::build(&client, containerfile, tag, on_line).await?;
            Ok(())
        })
    }
}

/// Fills in the defaults of a container where `policy` says nothing. A container always has limits,
/// and the `dev` preset shares the host's network.
fn with_defaults(policy: &Policy, spec: &ContainerSpec) -> Policy {
    let mut full = policy.clone();
    full.limits.memory.get_or_insert(DEFAULT_MEMORY);
    full.limits.cpus.get_or_insert(DEFAULT_CPUS);
    full.limits.processes.get_or_insert(DEFAULT_PROCESSES);
    if spec.proxy.is_some() {
        full.network.get_or_insert_with(|| Network::only([]));
    }
    if spec.preset == Preset::Dev && full.network.is_none() {
        full.network = Some(Network::Open);
        // A user who asks for this preset asks for the host's network, which includes the host's
        // abstract sockets.
        full.allow_weaker.insert(Clause::Ipc);
    }
    let workspace = full.filesystem.workspace.get_or_insert_with(|| Workspace::at("."));
    workspace.destination.get_or_insert_with(|| {
        PathBuf::from(match spec.preset {
            Preset::Agent => WORKSPACE_OF_AGENTS,
            Preset::Dev => WORKSPACE_OF_DEVELOPERS,
        })
    });
    full
}

/// Pauses or resumes all processes of a sandbox's container through its engine.
async fn set_state(
    sandbox_dir: &Path,
    kind: EngineKind,
    wanted: ContainerState,
) -> Result<(), ContainerError> {
    let Some(Registration { socket, container, .. }) = Registration::read(sandbox_dir) else {
        return Err(error::ContainerFailure::Unregistered.into());
    };
    let client = client::connect_to(kind, &socket).await.map_err(error::ContainerFailure::from)?;
    let failed = |what| move |source| error::ContainerFailure::Engine { what, source };
    let inspected = client.api.inspect_container(&container, None::<InspectContainerOptions>).await;
    let state = inspected.map_err(failed("inspect the container"))?.state;
    let is_paused = state.and_then(|state| state.paused).unwrap_or(false);
    match (is_paused, wanted) {
        (false, ContainerState::Paused) => {
            client.api.pause_container(&container).await.map_err(failed("pause the container"))?
        }
        (true, ContainerState::Running) => client
            .api
            .unpause_container(&container)
            .await
            .map_err(failed("resume the container"))?,
        _ => {} // the state is already right, for example after an interrupted call
    }
    Ok(())
}

#[cfg(test)]
mod tests;
