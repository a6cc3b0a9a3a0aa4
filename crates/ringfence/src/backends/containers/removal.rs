//! Removal of containers. A registration is written before anything is created, so that a crash
//! leaves a record.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::query_parameters::{InspectContainerOptions, RemoveContainerOptionsBuilder};
use tokio::time::{Instant, sleep};

use super::client::EngineClient;
use super::error::ContainerFailure;
use super::image::is_missing;
use super::proxy_network::ProxyNetwork;
use super::{LABEL_PREFIX, SandboxPaths};

/// File of a sandbox directory that names what to remove after a crash. The file is written before
/// anything is created.
pub(super) const REGISTRATION_FILE: &str = "container.json";
/// Time within which an engine must complete a request that is retried.
const RETRY_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause between two tries.
const RETRY_INTERVAL: Duration = Duration::from_millis(30);

/// Container that must be removed, with the socket of its engine.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Registration {
    pub(super) socket: PathBuf,
    pub(super) container: String,
    /// Network and proxy that were made for the container.
    #[serde(default, rename = "beside")]
    pub(super) proxy_network: Option<ProxyNetwork>,
}

impl Registration {
    /// Writes the registration to the sandbox directory.
    pub(super) fn write(&self, paths: &SandboxPaths) -> Result<(), ContainerFailure> {
        let text = serde_json::to_vec(self).expect("it has only string keys");
        fs_err::write(paths.directory.join(REGISTRATION_FILE), text).map_err(|source| {
            ContainerFailure::Files { what: "write the registration of the container", source }
        })
    }

    /// Reads the registration of a sandbox directory, if it has one.
    pub(super) fn read(sandbox_dir: &Path) -> Option<Registration> {
        serde_json::from_str(&fs_err::read_to_string(sandbox_dir.join(REGISTRATION_FILE)).ok()?)
            .ok()
    }
}

/// Tells whether an object with these labels was made for a sandbox directory in `base_directory`.
pub(super) fn is_ours(labels: &HashMap<String, String>, base_directory: &Path) -> bool {
    labels.get(&format!("{LABEL_PREFIX}state")).map(Path::new) == Some(base_directory)
}

/// Removes a container of that name that a crash left. Fails if the name is taken by a container
/// that is not ringfence's.
pub(super) async fn remove_leftover(
    client: &EngineClient,
    base_directory: &Path,
    container: &str,
) -> Result<(), ContainerFailure> {
    let inspected =
        match client.api.inspect_container(container, None::<InspectContainerOptions>).await {
            Ok(inspected) => inspected,
            Err(error) if is_missing(&error) => return Ok(()),
            Err(source) => {
                return Err(ContainerFailure::Engine {
                    what: "look for a container of that name",
                    source,
                });
            }
        };
    let labels = inspected.config.and_then(|config| config.labels).unwrap_or_default();
    // This process holds the sandbox directory of that name, so the process that created the
    // container is dead.
    if !is_ours(&labels, base_directory) {
        return Err(ContainerFailure::NameTaken {
            container: container.to_owned(),
            kind: client.kind,
        });
    }
    remove(client, container).await.map_err(|source| ContainerFailure::Engine {
        what: "remove the container that a crash left",
        source,
    })
}

/// Removes the container of a sandbox, its network and its proxy. Succeeds if the objects are gone
/// already.
pub(super) async fn remove_all(
    client: &EngineClient,
    container: &str,
    proxy_network: Option<&ProxyNetwork>,
) -> Result<(), bollard::errors::Error> {
    remove(client, container).await?;
    match proxy_network {
        Some(proxy_network) => proxy_network.remove(client).await,
        None => Ok(()),
    }
}

/// Removes a container with its volumes. Succeeds if the container is gone already.
pub(super) async fn remove(
    client: &EngineClient,
    container: &str,
) -> Result<(), bollard::errors::Error> {
    // Retry, because another process may be removing the container, or the engine may be starting
    // it.
    let removed = retry_until_answered(|| {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        client.api.remove_container(container, Some(options))
    });
    removed.await.map(drop)
}

/// Repeats a request until the engine can answer it, for at most `RETRY_TIMEOUT`. Returns `None` if
/// the object of the request does not exist.
pub(super) async fn retry_until_answered<T, Answer>(
    ask: impl Fn() -> Answer,
) -> Result<Option<T>, bollard::errors::Error>
where
    Answer: Future<Output = Result<T, bollard::errors::Error>>,
{
    let deadline = Instant::now() + RETRY_TIMEOUT;
    loop {
        match ask().await {
            Ok(answer) => return Ok(Some(answer)),
            Err(error) if is_missing(&error) => return Ok(None),
            Err(_) if Instant::now() < deadline => sleep(RETRY_INTERVAL).await,
            Err(error) => return Err(error),
        }
    }
}
