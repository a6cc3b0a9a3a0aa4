//! Removing what a killed ringfence left.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use bollard::query_parameters::ListContainersOptionsBuilder;

use super::client::{self, Client, Flavour};
use super::instance::{REGISTRATION, Registration, make_way, remove};
use super::{LABEL, container_name, mapped};
use crate::Host;
use crate::room::{Name, Rooms};

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

/// Removes the container that a room nobody keeps was registered for, wherever its engine listens.
pub(super) async fn sweep_room(room: &Path) {
    let Some(Registration { socket, container }) = registration(room) else { return };
    for flavour in [Flavour::Podman, Flavour::Docker] {
        if let Ok(client) = client::connect_to(flavour, &socket).await {
            tracing::info!(container, "removing a container that a crash left");
            let rooms = room.parent().unwrap_or(room);
            let _ = make_way(&client, rooms, &container).await; // a later sweep tries again; another's is left alone
        }
    }
}

fn registration(room: &Path) -> Option<Registration> {
    serde_json::from_str(&fs_err::read_to_string(room.join(REGISTRATION)).ok()?).ok()
}

/// The engines that rooms nobody keeps have containers at.
fn registered(rooms: &Path, kept: &Rooms) -> Vec<PathBuf> {
    let entries = fs_err::read_dir(rooms).into_iter().flatten().flatten().map(|entry| entry.path());
    let name = |room: &PathBuf| Name::new(room.file_name()?.to_str()?).ok();
    let left = entries.filter(|room| name(room).is_some_and(|name| !kept.is_kept(&name)));
    left.filter_map(|room| Some(registration(&room)?.socket)).collect()
}

async fn sweep_engine(client: &Client, rooms: &Path, kept: &Rooms) {
    let label = format!("{LABEL}state={}", rooms.display());
    let filters = HashMap::from([("label", vec![label.as_str()])]);
    let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
    let Ok(containers) = client.api.list_containers(Some(options)).await else { return };
    for container in containers {
        let labels = container.labels.unwrap_or_default();
        // Filters are the engine's business; whose a container is, is ours.
        let is_ours = labels.get(&format!("{LABEL}state")).map(Path::new) == Some(rooms);
        let Some(name) = labels.get(&format!("{LABEL}name")).filter(|_| is_ours) else { continue };
        let Ok(name) = Name::new(name) else { continue };
        // An image can have these labels, too, and a container of the caller's own be made from it.
        let own_name = container_name(name.as_str());
        let has_our_name = container.names.iter().flatten().any(|given| given.trim_start_matches('/') == own_name);
        if !has_our_name || kept.is_kept(&name) {
            continue;
        }
        if let Some(id) = container.id {
            tracing::info!(container = id, sandbox = %name, "removing a container that a crash left");
            let _ = remove(client, &id).await; // the next sweep tries again
        }
    }
}
