//! Removal of containers and networks that a killed ringfence left.

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
use crate::sandbox::directory::{Name, SandboxDirs};

/// Maximum number of passes over an engine's objects.
const MOST_PASSES: usize = 10;
/// Maximum number of passes after failed requests.
const MOST_RETRIES: usize = 3;
/// Pause between two passes.
const PAUSE: Duration = Duration::from_millis(100);

/// Removes the containers of the unused sandbox directories in `rooms`, and no others.
pub(super) async fn sweep(flavour: Flavour, host: &Host, rooms: &Path) {
    if host.user_id == 0 {
        mapped::sweep();
    }
    let Ok(kept) = SandboxDirs::of(host) else { return };
    let usual = client::connect(host, flavour).await.ok();
    let mut visited: BTreeSet<PathBuf> = BTreeSet::new();
    if let Some(client) = usual {
        visited.insert(client.socket.clone());
        sweep_engine(&client, rooms, &kept).await;
    }
    // Containers may have been created while a variable named another engine.
    for socket in registered(rooms, &kept) {
        if visited.insert(socket.clone())
            && let Ok(client) = client::connect_to(flavour, &socket).await
        {
            sweep_engine(&client, rooms, &kept).await;
        }
    }
}

/// Removes what an unused sandbox directory has registered, at whichever engine that is.
pub(super) async fn sweep_room(room: &Path) {
    let Some(Registration { socket, container, beside }) = Registration::read(room) else { return };
    for flavour in [Flavour::Podman, Flavour::Docker] {
        if let Ok(client) = client::connect_to(flavour, &socket).await {
            tracing::info!(container, "removing a container that a crash left");
            let rooms = room.parent().unwrap_or(room);
            // Ignore errors: a later sweep tries again, and containers of others are left alone.
            let _ = make_way(&client, rooms, &container).await;
            if let Some(beside) = &beside {
                let _ = beside.make_way(&client, rooms).await; // as above
            }
        }
    }
}

/// Returns the sockets of the engines at which unused sandbox directories have containers.
fn registered(rooms: &Path, kept: &SandboxDirs) -> Vec<PathBuf> {
    let entries = fs_err::read_dir(rooms).into_iter().flatten().flatten().map(|entry| entry.path());
    let name = |room: &PathBuf| Name::new(room.file_name()?.to_str()?).ok();
    let left = entries.filter(|room| name(room).is_some_and(|name| !kept.is_kept(&name)));
    left.filter_map(|room| Some(Registration::read(&room)?.socket)).collect()
}

async fn sweep_engine(client: &Client, rooms: &Path, kept: &SandboxDirs) {
    let label = format!("{LABEL}state={}", rooms.display());
    let filters = HashMap::from([("label", vec![label.as_str()])]);
    until_clean(|| sweep_containers(client, &filters, rooms, kept)).await;
    until_clean(|| sweep_networks(client, &filters, rooms, kept)).await;
}

/// Repeats a pass until it finds nothing, at most `MOST_PASSES` times.
///
/// An engine may report a container as gone that is just ending, and may fail to list any container
/// or network meanwhile. A pass is repeated only after it found something or failed, because a busy
/// engine takes seconds for a list.
async fn until_clean<E, Pass: Future<Output = Result<usize, E>>>(mut pass: impl FnMut() -> Pass) {
    let mut retries = 0..MOST_RETRIES;
    for _ in 0..MOST_PASSES {
        match pass().await {
            Ok(0) => return,
            Err(_) if retries.next().is_none() => return,
            _ => sleep(PAUSE).await,
        }
    }
}

/// Removes containers of unused sandbox directories. Returns how many were found.
async fn sweep_containers(
    client: &Client,
    filters: &HashMap<&str, Vec<&str>>,
    rooms: &Path,
    kept: &SandboxDirs,
) -> Result<usize, bollard::errors::Error> {
    let options = ListContainersOptionsBuilder::default().all(true).filters(filters).build();
    let mut found = 0;
    for container in client.api.list_containers(Some(options)).await? {
        let Some(name) = left(&container.labels.unwrap_or_default(), rooms, kept) else { continue };
        // Also check the name: an image can have these labels, too, and the caller may have created
        // a container from it.
        let own_names = [container_name(name.as_str()), ProxyNetwork::of(name.as_str()).proxy];
        let is_own =
            |given: &String| own_names.iter().any(|own| given.trim_start_matches('/') == own);
        if let Some(id) = container.id.filter(|_| container.names.iter().flatten().any(is_own)) {
            tracing::info!(
                container = id,
                sandbox = %name,
                "removing a container that a crash left"
            );
            let _ = remove(client, &id).await; // the next sweep tries again
            found += 1;
        }
    }
    Ok(found)
}

/// Removes networks of unused sandbox directories with their proxies. Returns how many were
/// removed.
async fn sweep_networks(
    client: &Client,
    filters: &HashMap<&str, Vec<&str>>,
    rooms: &Path,
    kept: &SandboxDirs,
) -> Result<usize, bollard::errors::Error> {
    let options = ListNetworksOptionsBuilder::default().filters(filters).build();
    let mut found = 0;
    for network in client.api.list_networks(Some(options)).await? {
        let Some(name) = left(&network.labels.unwrap_or_default(), rooms, kept) else { continue };
        let beside = ProxyNetwork::of(name.as_str());
        if network.name.as_ref() == Some(&beside.network) {
            tracing::info!(
                network = beside.network,
                sandbox = %name,
                "removing a network that a crash left"
            );
            // A network that cannot be removed is left to the next sweep.
            found += usize::from(beside.remove(client).await.is_ok());
        }
    }
    Ok(found)
}

/// Returns the sandbox that an object with these labels was made for, if its directory is an unused
/// one in `rooms`.
///
/// The labels are checked again here, so that ownership does not depend on the engine's filters.
fn left(labels: &HashMap<String, String>, rooms: &Path, kept: &SandboxDirs) -> Option<Name> {
    let name = Name::new(labels.get(&format!("{LABEL}name"))?).ok()?;
    (is_ours(labels, rooms) && !kept.is_kept(&name)).then_some(name)
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    #[tokio::test]
    async fn an_engine_is_asked_again_only_after_something_was_left_or_it_could_not_tell() {
        const CLEAN: Result<usize, ()> = Ok(0);
        const LEFT: Result<usize, ()> = Ok(1);
        const FAILED: Result<usize, ()> = Err(());
        for (answers, expected) in [
            (&[CLEAN] as &[_], 1),
            (&[LEFT, LEFT, CLEAN], 3),
            (&[FAILED, LEFT, FAILED, CLEAN], 4),
            (&[FAILED; 99], 1 + MOST_RETRIES),
            (&[LEFT; 99], MOST_PASSES),
        ] {
            let mut asked = 0;
            until_clean(|| {
                asked += 1;
                ready(answers[asked - 1])
            })
            .await;
            assert_eq!(asked, expected, "{answers:?}");
        }
    }
}
