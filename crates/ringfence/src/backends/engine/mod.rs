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
mod version;

use std::future::Future;
use std::path::{Path, PathBuf};

use bollard::query_parameters::InspectContainerOptions;
use futures_util::future::BoxFuture;
use ringfence_core::policy::{Network, Size, Workspace};
use ringfence_core::{Backend as Name, Capabilities, Clause, Policy};

use super::{Backend, ContainerError, Containers, Freshness, Question, Site, Unavailable};
use crate::instance::Instance;
use crate::room::Room;
use crate::{ContainerSpec, Host, Preset};

pub(crate) use client::{Flavour, engine_sockets};
pub use image::{OWN_IMAGE, PullProgress};
use removal::Registration;
pub(crate) use runtime::Version;

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
pub(super) static DOCKER: Engine = Engine { flavour: Flavour::Docker };
/// Backend for the Podman engine.
pub(super) static PODMAN: Engine = Engine { flavour: Flavour::Podman };

/// Backend that creates containers.
#[derive(Debug)]
pub(super) struct Engine {
    flavour: Flavour,
}

/// Room of a container, and the paths that belong to it.
#[derive(Debug, Clone)]
struct Place {
    /// Name of the sandbox.
    name: String,
    /// Path of the room.
    directory: PathBuf,
    /// Directory of the guest's socket.
    channel: PathBuf,
    /// Path of the guest's program.
    guest: PathBuf,
    /// Directory that contains all rooms.
    state: PathBuf,
}

impl Place {
    fn of(room: &Room) -> Place {
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

impl Backend for Engine {
    fn capabilities(&self, question: &Question<'_>) -> Result<Capabilities, Unavailable> {
        block_on(probe::capabilities(self.flavour, question))
    }

    fn complete(&self, policy: &Policy, container: &ContainerSpec) -> Policy {
        with_defaults(policy, container)
    }
}

impl Containers for Engine {
    fn start<'a>(
        &'a self,
        site: &'a Site<'a>,
        room: &'a Room,
    ) -> BoxFuture<'a, Result<Box<dyn Instance>, ContainerError>> {
        Box::pin(async move {
            let client =
                client::connect(site.host, self.flavour).await.map_err(error::Failure::from)?;
            let place = Place::of(room);
            let request = instance::Request {
                plan: site.plan,
                host: site.host,
                spec: site.container,
                workspace: site.workspace,
                guarded: site.guarded,
                place: &place,
                sealed: site.sealed,
            };
            let log = room.log().map_err(|source| error::Failure::Files {
                what: "open the sandbox's log",
                source,
            })?;
            let instance = instance::start(client, &request, Some(log)).await?;
            Ok(Box::new(instance) as Box<dyn Instance>)
        })
    }

    fn sweep<'a>(&'a self, host: &'a Host, rooms: &'a Path) -> BoxFuture<'a, ()> {
        Box::pin(sweep::sweep(self.flavour, host, rooms))
    }
}

/// Fills in the defaults of a container where `policy` says nothing. A container always has limits,
/// and the `dev` preset shares the host's network.
pub(crate) fn with_defaults(policy: &Policy, spec: &ContainerSpec) -> Policy {
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

/// Removes the container of an unused room, if there is one.
pub(crate) fn clear_away(room: &Path) {
    if room.join(removal::REGISTRATION).exists() {
        block_on(sweep::sweep_room(room));
    }
}

/// Pauses or resumes all processes of a room's container through its engine.
pub(crate) async fn set_paused(
    room: &Path,
    flavour: Flavour,
    is_to_rest: bool,
) -> Result<(), ContainerError> {
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

/// Returns warnings about the runtime of an engine. Without an engine there are none.
pub(crate) fn runtime_warnings(host: &Host, flavour: Flavour) -> Vec<String> {
    let client = block_on(client::connect_as(host, flavour, Freshness::Now));
    client.map(|client| runtime::warnings(&client.version)).unwrap_or_default()
}

/// Provides the image that `spec` names, and reports the progress. `spec` also says when to fetch
/// the image.
pub(crate) async fn provide_image(
    host: &Host,
    flavour: Flavour,
    spec: &ContainerSpec,
    progress: image::OnPull<'_>,
) -> Result<(), ContainerError> {
    let client = client::connect(host, flavour).await.map_err(error::Failure::from)?;
    image::provide(&client, spec, progress).await?;
    Ok(())
}

/// Builds an image from a Containerfile, and calls `on_line` with each line of the engine's output.
pub(crate) async fn build_image(
    host: &Host,
    flavour: Flavour,
    containerfile: &str,
    tag: &str,
    on_line: &mut (dyn FnMut(&str) + Send),
) -> Result<(), ContainerError> {
    let client = client::connect(host, flavour).await.map_err(error::Failure::from)?;
    image::build(&client, containerfile, tag, on_line).await?;
    Ok(())
}

/// Returns the flavour of a backend, or `None` if the backend is not a container engine.
pub(crate) fn flavour(backend: Name) -> Option<Flavour> {
    [Flavour::Docker, Flavour::Podman].into_iter().find(|flavour| flavour.backend() == backend)
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
