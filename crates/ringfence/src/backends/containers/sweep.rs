//! Removal of containers and networks that a killed ringfence left.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::query_parameters::{ListContainersOptionsBuilder, ListNetworksOptionsBuilder};
use tokio::time::sleep;

use super::client::{self, EngineClient, EngineKind};
use super::proxy_network::ProxyNetwork;
use super::removal::{Registration, is_ours, remove, remove_leftover};
use super::{LABEL_PREFIX, container_name, mapped};
use crate::Host;
use crate::sandbox::directory::{Name, SandboxDirs};

/// Maximum number of passes over an engine's objects.
const MAX_PASSES: usize = 10;
/// Maximum number of passes after failed requests.
const MAX_RETRIES: usize = 3;
/// Pause between two passes.
const PASS_INTERVAL: Duration = Duration::from_millis(100);

/// Removes the containers of the unused sandbox directories in `base_directory`, and no others.
pub(super) async fn sweep(kind: EngineKind, host: &Host, base_directory: &Path) {
    if host.user_id == 0 {
        mapped::sweep();
    }
    let Ok(sandbox_dirs) = SandboxDirs::for_host(host) else { return };
    let usual = client::connect(host, kind).await.ok();
    let mut visited: BTreeSet<PathBuf> = BTreeSet::new();
    if let Some(client) = usual {
        visited.insert(client.socket.clone());
        sweep_engine(&client, base_directory, &sandbox_dirs).await;
    }
    // Containers may have been created while a variable named another engine.
    for socket in registered_sockets(base_directory, &sandbox_dirs) {
        if visited.insert(socket.clone())
            && let Ok(client) = client::connect_to(kind, &socket).await
        {
            sweep_engine(&client, base_directory, &sandbox_dirs).await;
        }
    }
}

/// Removes what an unused sandbox directory has registered, at whichever engine that is.
pub(super) async fn sweep_sandbox_dir(sandbox_dir: &Path) {
    let Some(Registration { socket, container, proxy_network }) = Registration::read(sandbox_dir)
    else {
        return;
    };
    for kind in [EngineKind::Podman, EngineKind::Docker] {
        if let Ok(client) = client::connect_to(kind, &socket).await {
            tracing::info!(container, "removing a container that a crash left");
            let base_directory = sandbox_dir.parent().unwrap_or(sandbox_dir);
            // Ignore errors: a later sweep tries again, and containers of others are left alone.
            let _ = remove_leftover(&client, base_directory, &container).await;
            if let Some(proxy_network) = &proxy_network {
                let _ = proxy_network.remove_leftover(&client, base_directory).await; // as above
            }
        }
    }
}

/// Returns the sockets of the engines at which unused sandbox directories have containers.
fn registered_sockets(base_directory: &Path, sandbox_dirs: &SandboxDirs) -> Vec<PathBuf> {
    let entries =
        fs_err::read_dir(base_directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let name = |sandbox_dir: &PathBuf| Name::new(sandbox_dir.file_name()?.to_str()?).ok();
    let left = entries
        .filter(|sandbox_dir| name(sandbox_dir).is_some_and(|name| !sandbox_dirs.is_kept(&name)));
    left.filter_map(|sandbox_dir| Some(Registration::read(&sandbox_dir)?.socket)).collect()
}

async fn sweep_engine(client: &EngineClient, base_directory: &Path, sandbox_dirs: &SandboxDirs) {
    let label = format!("{LABEL_PREFIX}state={}", base_directory.display());
    let filters = HashMap::from([("label", vec![label.as_str()])]);
    repeat_until_clean(|| sweep_containers(client, &filters, base_directory, sandbox_dirs)).await;
    repeat_until_clean(|| sweep_networks(client, &filters, base_directory, sandbox_dirs)).await;
}

/// Repeats a pass until it finds nothing, at most `MAX_PASSES` times.
///
/// An engine may report a container as gone that is just ending, and may fail to list any container
/// or network meanwhile. A pass is repeated only after it found something or failed, because a busy
/// engine takes seconds for a list.
async fn repeat_until_clean<E, Pass: Future<Output = Result<usize, E>>>(
    mut pass: impl FnMut() -> Pass,
) {
    let mut retries = 0..MAX_RETRIES;
    for _ in 0..MAX_PASSES {
        match pass().await {
            Ok(0) => return,
            Err(_) if retries.next().is_none() => return,
            _ => sleep(PASS_INTERVAL).await,
        }
    }
}

/// Removes containers of unused sandbox directories. Returns how many were found.
async fn sweep_containers(
    client: &EngineClient,
    filters: &HashMap<&str, Vec<&str>>,
    base_directory: &Path,
    sandbox_dirs: &SandboxDirs,
) -> Result<usize, bollard::errors::Error> {
    let options = ListContainersOptionsBuilder::default().all(true).filters(filters).build();
    let mut found = 0;
    for container in client.api.list_containers(Some(options)).await? {
        let Some(name) =
            unused_sandbox(&container.labels.unwrap_or_default(), base_directory, sandbox_dirs)
        else {
            continue;
        };
        // Also check the name: an image can have these labels, too, and the caller may have created
        // a container from it.
        let expected_names =
            [container_name(name.as_str()), ProxyNetwork::for_sandbox(name.as_str()).proxy];
        let is_own =
            |given: &String| expected_names.iter().any(|own| given.trim_start_matches('/') == own);
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
    client: &EngineClient,
    filters: &HashMap<&str, Vec<&str>>,
    base_directory: &Path,
    sandbox_dirs: &SandboxDirs,
) -> Result<usize, bollard::errors::Error> {
    let options = ListNetworksOptionsBuilder::default().filters(filters).build();
    let mut found = 0;
    for network in client.api.list_networks(Some(options)).await? {
        let Some(name) =
            unused_sandbox(&network.labels.unwrap_or_default(), base_directory, sandbox_dirs)
        else {
            continue;
        };
        let proxy_network = ProxyNetwork::for_sandbox(name.as_str());
        if network.name.as_ref() == Some(&proxy_network.network) {
            tracing::info!(
                network = proxy_network.network,
                sandbox = %name,
                "removing a network that a crash left"
            );
            // A network that cannot be removed is left to the next sweep.
            found += usize::from(proxy_network.remove(client).await.is_ok());
        }
    }
    Ok(found)
}

/// Returns the sandbox that an object with these labels was made for, if its directory is an unused
/// one in `base_directory`.
///
/// The labels are checked again here, so that ownership does not depend on the engine's filters.
fn unused_sandbox(
    labels: &HashMap<String, String>,
    base_directory: &Path,
    sandbox_dirs: &SandboxDirs,
) -> Option<Name> {
    let name = Name::new(labels.get(&format!("{LABEL_PREFIX}name"))?).ok()?;
    (is_ours(labels, base_directory) && !sandbox_dirs.is_kept(&name)).then_some(name)
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
            (&[FAILED; 99], 1 + MAX_RETRIES),
            (&[LEFT; 99], MAX_PASSES),
        ] {
            let mut asked = 0;
            repeat_until_clean(|| {
                asked += 1;
                ready(answers[asked - 1])
            })
            .await;
            assert_eq!(asked, expected, "{answers:?}");
        }
    }
}
