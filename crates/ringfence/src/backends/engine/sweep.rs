//! Removing what a killed ringfence left.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::query_parameters::{ListContainersOptionsBuilder, ListNetworksOptionsBuilder};
use tokio::time::sleep;

use super::client::{self, Client, Flavour};
use super::proxy_network::ProxyNetwork;
use super::removal::{Registration, is_ours, make_way, remove};
use super::{LABEL, container_name, mapped};
use crate::Host;
use crate::room::{Name, Rooms};

/// How often an engine is asked for what is left.
const MOST_PASSES: usize = 10;
/// How long it has between two times.
const PAUSE: Duration = Duration::from_millis(100);

/// Removes the containers of the rooms in `rooms` that nobody keeps, and no others.
pub(super) async fn sweep(flavour: Flavour, host: &Host, rooms: &Path) {
    if host.user_id == 0 {
        mapped::sweep();
    }
    let Ok(kept) = Rooms::of(host) else { return };
    let usual = client::connect(host, flavour).await.ok();
    let mut visited: BTreeSet<PathBuf> = BTreeSet::new();
    if let Some(client) = usual {
        visited.insert(client.socket.clone());
        sweep_engine(&client, rooms, &kept).await;
    }
    // Containers that were made when a variable named another engine.
    for socket in registered(rooms, &kept) {
        if visited.insert(socket.clone())
            && let Ok(client) = client::connect_to(flavour, &socket).await
        {
            sweep_engine(&client, rooms, &kept).await;
        }
    }
}

/// Removes what a room nobody keeps was registered for, wherever its engine listens.
pub(super) async fn sweep_room(room: &Path) {
    let Some(Registration { socket, container, beside }) = Registration::read(room) else { return };
    for flavour in [Flavour::Podman, Flavour::Docker] {
        if let Ok(client) = client::connect_to(flavour, &socket).await {
            tracing::info!(container, "removing a container that a crash left");
            let rooms = room.parent().unwrap_or(room);
            let _ = make_way(&client, rooms, &container).await; // a later sweep tries again; another's is left alone
            if let Some(beside) = &beside {
                let _ = beside.make_way(&client, rooms).await; // the same
            }
        }
    }
}

/// The engines that rooms nobody keeps have containers at.
fn registered(rooms: &Path, kept: &Rooms) -> Vec<PathBuf> {
    let entries = fs_err::read_dir(rooms).into_iter().flatten().flatten().map(|entry| entry.path());
    let name = |room: &PathBuf| Name::new(room.file_name()?.to_str()?).ok();
    let left = entries.filter(|room| name(room).is_some_and(|name| !kept.is_kept(&name)));
    left.filter_map(|room| Some(Registration::read(&room)?.socket)).collect()
}

async fn sweep_engine(client: &Client, rooms: &Path, kept: &Rooms) {
    let label = format!("{LABEL}state={}", rooms.display());
    let filters = HashMap::from([("label", vec![label.as_str()])]);
    // An engine may say that a container is gone which is just ending, and fail to list any meanwhile: it is asked again.
    for _ in 0..MOST_PASSES {
        if sweep_containers(client, &filters, rooms, kept).await {
            break;
        }
        sleep(PAUSE).await;
    }
    let options = ListNetworksOptionsBuilder::default().filters(&filters).build();
    for network in client.api.list_networks(Some(options)).await.unwrap_or_default() {
        let Some(name) = left(&network.labels.unwrap_or_default(), rooms, kept) else { continue };
        let beside = ProxyNetwork::of(name.as_str());
        if network.name.as_ref() == Some(&beside.network) {
            tracing::info!(network = beside.network, sandbox = %name, "removing a network that a crash left");
            let _ = beside.remove(client).await; // the next sweep tries again
        }
    }
}

/// Removes containers that nobody keeps; whether there was none.
async fn sweep_containers(client: &Client, filters: &HashMap<&str, Vec<&str>>, rooms: &Path, kept: &Rooms) -> bool {
    let options = ListContainersOptionsBuilder::default().all(true).filters(filters).build();
    let Ok(containers) = client.api.list_containers(Some(options)).await else { return false };
    let mut is_clean = true;
    for container in containers {
        let Some(name) = left(&container.labels.unwrap_or_default(), rooms, kept) else { continue };
        // An image can have these labels, too, and a container of the caller's own be made from it.
        let own_names = [container_name(name.as_str()), ProxyNetwork::of(name.as_str()).proxy];
        let is_own = |given: &String| own_names.iter().any(|own| given.trim_start_matches('/') == own);
        if let Some(id) = container.id.filter(|_| container.names.iter().flatten().any(is_own)) {
            tracing::info!(container = id, sandbox = %name, "removing a container that a crash left");
            let _ = remove(client, &id).await; // the next sweep tries again
            is_clean = false;
        }
    }
    is_clean
}

/// The sandbox that something with these labels was made for, if it is one of `rooms` that nobody keeps. Filters are the
/// engine's business; whose a thing is, is ours.
fn left(labels: &HashMap<String, String>, rooms: &Path, kept: &Rooms) -> Option<Name> {
    let name = Name::new(labels.get(&format!("{LABEL}name"))?).ok()?;
    (is_ours(labels, rooms) && !kept.is_kept(&name)).then_some(name)
}
