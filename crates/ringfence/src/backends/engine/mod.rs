//! Docker and Podman: containers made through the engine's API socket, with our guest as their first process.
//!
//! Both speak one API; where they differ, [`Flavour`] says. No program of theirs is ever run. Reading order: `client`
//! finds the engine, `probe` tries it, `identity`, `mounts` and `container` say what a container is, `instance` makes
//! it and keeps it, `proxy_network` makes what can be beside it, `removal` removes all of that, and `sweep` does when a
//! crash left it.

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

/// What our own files inside are below.
const OWN_INSIDE: &str = "/run/ringfence";
/// Where the guest's program is inside.
const GUEST_INSIDE: &str = "/run/ringfence/guest";
/// Where the file is inside that this process locks as long as it wants the container.
const LEASH_INSIDE: &str = "/run/ringfence/leash";
/// Where the guest is handed the socket that it takes calls on.
const HANDOVER_INSIDE: &str = "/run/ringfence/handover";
/// Where the workspace is inside when nobody says, and an agent works there.
const WORKSPACE_OF_AGENTS: &str = "/workspace";
/// Where the workspace is inside when nobody says, and a person works there.
const WORKSPACE_OF_DEVELOPERS: &str = "/home/dev/workspace";
const HOME_OF_AGENTS: &str = "/home/sandbox";
const HOME_OF_DEVELOPERS: &str = "/home/dev";
/// What the names of our labels begin with.
const LABEL: &str = "dev.ringfence.";
/// What the names of our containers begin with.
const PREFIX: &str = "ringfence-";
/// The capabilities that a container can keep, and that one for people keeps.
const DEV_CAPABILITIES: [&str; 5] = ["CHOWN", "DAC_OVERRIDE", "SETGID", "SETUID", "NET_BIND_SERVICE"];
/// Memory that a container may use when nobody says.
const MEMORY: Size = Size::mebibytes(1024);
/// Processors' worth of time that a container may use when nobody says.
const CPUS: f64 = 1.0;
/// Processes that a container may have when nobody says.
const PROCESSES: u32 = 1024;
/// Our own processes in a container: the guest's two, and the one that forks for it.
const OWN_PROCESSES: i64 = 3;

/// Docker's engine.
pub(super) static DOCKER: Engine = Engine { flavour: Flavour::Docker };
/// Podman's engine.
pub(super) static PODMAN: Engine = Engine { flavour: Flavour::Podman };

/// The backend that makes containers.
#[derive(Debug)]
pub(super) struct Engine {
    flavour: Flavour,
}

/// The room of a container, and what is in it.
#[derive(Debug, Clone)]
struct Place {
    /// What the sandbox is called.
    name: String,
    /// The room.
    directory: PathBuf,
    /// The directory of the guest's socket.
    channel: PathBuf,
    /// The guest's program.
    guest: PathBuf,
    /// The directory that all rooms are in.
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

    /// What the container is called at the engine.
    fn container(&self) -> String {
        container_name(&self.name)
    }
}

/// What the container of a sandbox is called at the engine.
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
            let client = client::connect(site.host, self.flavour).await.map_err(error::Failure::from)?;
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
            let log = room.log().map_err(|source| error::Failure::Files { what: "open the sandbox's log", source })?;
            let instance = instance::start(client, &request, Some(log)).await?;
            Ok(Box::new(instance) as Box<dyn Instance>)
        })
    }

    fn sweep<'a>(&'a self, host: &'a Host, rooms: &'a Path) -> BoxFuture<'a, ()> {
        Box::pin(sweep::sweep(self.flavour, host, rooms))
    }
}

/// The policy that a container is held to, where `policy` says nothing: limits always hold, and people's own
/// environments share the host's network.
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
        // Whoever asks for the preset asks for the host's network, and its abstract sockets come with it.
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

/// Removes the container of a room that nobody keeps, if it has one.
pub(crate) fn clear_away(room: &Path) {
    if room.join(removal::REGISTRATION).exists() {
        block_on(sweep::sweep_room(room));
    }
}

/// Has the engine that a room's container is at bring all of its processes to rest, or let them go on.
pub(crate) async fn set_paused(room: &Path, flavour: Flavour, is_to_rest: bool) -> Result<(), ContainerError> {
    let Some(Registration { socket, container, .. }) = Registration::read(room) else {
        return Err(error::Failure::Unregistered.into());
    };
    let client = client::connect_to(flavour, &socket).await.map_err(error::Failure::from)?;
    let failed = |what| move |source| error::Failure::Engine { what, source };
    let inspected = client.api.inspect_container(&container, None::<InspectContainerOptions>).await;
    let state = inspected.map_err(failed("look at the container"))?.state;
    match (state.and_then(|state| state.paused).unwrap_or(false), is_to_rest) {
        (false, true) => client.api.pause_container(&container).await.map_err(failed("pause the container"))?,
        (true, false) => client.api.unpause_container(&container).await.map_err(failed("let the container go on"))?,
        _ => {} // somebody was interrupted after that
    }
    Ok(())
}

/// What is known against the runtime of an engine; nothing when there is no engine.
pub(crate) fn runtime_warnings(host: &Host, flavour: Flavour) -> Vec<String> {
    let client = block_on(client::connect_as(host, flavour, Freshness::Now));
    client.map(|client| runtime::warnings(&client.version)).unwrap_or_default()
}

/// Fetches the image that `spec` names, as it says when, and tells how far that is.
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

/// Builds an image from a Containerfile, and tells of each line that the engine says.
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

/// The flavour of a backend that is an engine.
pub(crate) fn flavour(backend: Name) -> Option<Flavour> {
    [Flavour::Docker, Flavour::Podman].into_iter().find(|flavour| flavour.backend() == backend)
}

/// Waits for a future on a thread of its own: the caller may be in a runtime, which must not be blocked.
fn block_on<F: Future<Output: Send> + Send>(future: F) -> F::Output {
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a host that lacks descriptors for this can start nothing at all").block_on(future)
        });
        waiting.join().expect("it panics only where its caller would")
    })
}

#[cfg(test)]
mod tests;
