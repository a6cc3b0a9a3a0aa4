//! Docker and Podman: containers created through the engine's API socket, with our guest as their
//! first process.
//!
//! Both engines speak the same API; [`Flavour`] describes the differences. The engines' command
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
mod variables;
mod version;

use std::future::Future;
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
};
use crate::egress::{GateSource, WayOut};
use crate::sandbox::directory::{NetworkReach, SandboxDir, channel_in};
use crate::sandbox::pause::PauseError;
use crate::session::UnixConnector;
use crate::{ContainerSpec, Host, Preset, StartError};

use client::Flavour;
use removal::Registration;
use variables::named_variables;

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
const LABEL: &str = "dev.ringfence.";
/// Prefix of the names of ringfence's containers.
const PREFIX: &str = "ringfence-";
/// Capabilities that a container can keep. Containers with the preset `dev` keep these capabilities
/// by default.
const DEV_CAPABILITIES: [&str; 5] =
    ["CHOWN", "DAC_OVERRIDE", "SETGID", "SETUID", "NET_BIND_SERVICE"];
/// Default memory limit of a container.
const MEMORY: Size = Size::mebibytes(1024);
/// Default limit of a container's processor time, in processors.
const CPUS: f64 = 1.0;
/// Default limit of the number of processes in a container.
const PROCESSES: u32 = 1024;
/// Number of ringfence's own processes in a container: two of the guest, and the process that forks
/// for it.
const OWN_PROCESSES: i64 = 3;

/// Backend for the Docker engine.
pub(super) static DOCKER: ContainerEngine = ContainerEngine { flavour: Flavour::Docker };
/// Backend for the Podman engine.
pub(super) static PODMAN: ContainerEngine = ContainerEngine { flavour: Flavour::Podman };

/// Backend that creates containers.
#[derive(Debug)]
pub(super) struct ContainerEngine {
    flavour: Flavour,
}

/// Paths that belong to the directory of a container's sandbox.
#[derive(Debug, Clone)]
struct Place {
    /// Name of the sandbox.
    name: String,
    /// Path of the sandbox directory.
    directory: PathBuf,
    /// Directory of the guest's socket.
    channel: PathBuf,
    /// Path of the guest's program.
    guest: PathBuf,
    /// Directory that contains all sandbox directories.
    state: PathBuf,
}

impl Place {
    fn of(room: &SandboxDir) -> Place {
        Place {
            name: room.name.to_string(),
            directory: room.directory.clone(),
            channel: room.channel(),
            guest: room.guest.path.clone(),
            state: room.directory.parent().unwrap_or(Path::new("/")).into(),
        }
    }

    /// Returns the name of the container at the engine.
    fn container(&self) -> String {
        container_name(&self.name)
    }
}

/// Returns the name at the engine of the container of a sandbox.
fn container_name(sandbox: &str) -> String {
    format!("{PREFIX}{sandbox}")
}

impl Backend for ContainerEngine {
    fn probe(&self, question: &ProbeRequest<'_>) -> Result<Capabilities, Unavailable> {
        block_on(probe::capabilities(self.flavour, question))
    }

    fn complete(&self, policy: &Policy, container: &ContainerSpec) -> Policy {
        with_defaults(policy, container)
    }

    fn warnings(&self, host: &Host, _policy: &Policy) -> Vec<String> {
        let client = block_on(client::connect_as(host, self.flavour, Freshness::Now));
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
        let pause = EnginePause { flavour: self.flavour, directory: directory.to_owned() };
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
        Box::pin(sweep::sweep(self.flavour, host, directories))
    }

    fn remove_remains(&self, directory: &Path) {
        // Both engines share the form of a registration, which names the engine's socket. So the
        // first engine that is asked removes the container of either.
        if directory.join(removal::REGISTRATION).exists() {
            block_on(sweep::sweep_room(directory));
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
        let BackendStart { core, context, container, room } = request;
        let site = core.site(&context, &[]);
        let client = client::connect(site.host, self.flavour).await;
        let client = client.map_err(|error| ContainerError::from(error::Failure::from(error)))?;
        let place = Place::of(room);
        let request = instance::Request {
            plan: site.plan,
            host: site.host,
            spec: container,
            workspace: site.workspace,
            guarded: site.guarded,
            place: &place,
            sealed: site.sealed,
        };
        let log = room.log().map_err(|source| {
            let what = "open the sandbox's log";
            ContainerError::from(error::Failure::Files { what, source })
        })?;
        let started = instance::start(client, &request, Some(log)).await;
        let mut instance = started.map_err(ContainerError::from)?;
        let way_out = instance.take_way_out();
        let variables = named_variables(core, &context, way_out.as_ref());
        let egress = match way_out {
            Some(WayOut::Gate(gate)) => Some(core.hold_gate(&context, GateSource::Received(gate))?),
            Some(WayOut::Proxy(proxy)) => Some(core.order_proxy(&context, proxy).await?),
            None => None,
        };
        Ok(StartedSandbox { instance: Box::new(instance), egress, variables })
    }
}

/// Pauses a container through its engine.
#[derive(Debug)]
struct EnginePause {
    flavour: Flavour,
    /// Directory of the sandbox.
    directory: PathBuf,
}

impl PauseControl for EnginePause {
    fn stopped_processes(&self) -> BoxFuture<'_, Result<Vec<i32>, PauseError>> {
        // The engine freezes the cgroup of the container, which keeps the state of each process.
        Box::pin(async { Ok(Vec::new()) })
    }

    fn pause(&self) -> BoxFuture<'_, Result<(), PauseError>> {
        Box::pin(async { Ok(set_paused(&self.directory, self.flavour, true).await?) })
    }

    fn resume(&self, _stopped_before: Vec<i32>) -> BoxFuture<'_, Result<(), PauseError>> {
        Box::pin(async { Ok(set_paused(&self.directory, self.flavour, false).await?) })
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
            let client = client::connect(host, self.flavour).await.map_err(error::Failure::from)?;
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
            let client = client::connect(host, self.flavour).await.map_err(error::Failure::from)?;
            image::build(&client, containerfile, tag, on_line).await?;
            Ok(())
        })
    }
}

/// Fills in the defaults of a container where `policy` says nothing. A container always has limits,
/// and the `dev` preset shares the host's network.
fn with_defaults(policy: &Policy, spec: &ContainerSpec) -> Policy {
    let mut full = policy.clone();
    full.limits.memory.get_or_insert(MEMORY);
    full.limits.cpus.get_or_insert(CPUS);
    full.limits.processes.get_or_insert(PROCESSES);
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
async fn set_paused(room: &Path, flavour: Flavour, is_to_rest: bool) -> Result<(), ContainerError> {
    let Some(Registration { socket, container, .. }) = Registration::read(room) else {
        return Err(error::Failure::Unregistered.into());
    };
    let client = client::connect_to(flavour, &socket).await.map_err(error::Failure::from)?;
    let failed = |what| move |source| error::Failure::Engine { what, source };
    let inspected = client.api.inspect_container(&container, None::<InspectContainerOptions>).await;
    let state = inspected.map_err(failed("look at the container"))?.state;
    match (state.and_then(|state| state.paused).unwrap_or(false), is_to_rest) {
        (false, true) => {
            client.api.pause_container(&container).await.map_err(failed("pause the container"))?
        }
        (true, false) => client
            .api
            .unpause_container(&container)
            .await
            .map_err(failed("let the container go on"))?,
        _ => {} // the state is already right, for example after an interrupted call
    }
    Ok(())
}

/// Runs a future to completion on a separate thread, because the caller may be in a runtime, which
/// must not be blocked.
fn block_on<F: Future<Output: Send> + Send>(future: F) -> F::Output {
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime
                .expect("a host that lacks descriptors for this can start nothing at all")
                .block_on(future)
        });
        waiting.join().expect("it panics only where its caller would")
    })
}

#[cfg(test)]
mod tests;
