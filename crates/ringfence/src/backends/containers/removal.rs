//! Removal of containers. A registration is written before anything is created, so that a crash
//! leaves a record.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::query_parameters::{InspectContainerOptions, RemoveContainerOptionsBuilder};
use tokio::time::{Instant, sleep};

use super::client::Client;
use super::error::Failure;
use super::image::is_missing;
use super::proxy_network::ProxyNetwork;
use super::{LABEL, Place};

/// File of a sandbox directory that names what to remove after a crash. The file is written before
/// anything is created.
pub(super) const REGISTRATION: &str = "container.json";
/// Time within which an engine must complete a request that is retried.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two tries.
const MOMENT: Duration = Duration::from_millis(30);

/// Container that must be removed, with the socket of its engine.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Registration {
    pub(super) socket: PathBuf,
    pub(super) container: String,
    /// Network and proxy that were made for the container.
    #[serde(default)]
    pub(super) beside: Option<ProxyNetwork>,
}

impl Registration {
    /// Writes the registration to the sandbox directory.
    pub(super) fn write(&self, place: &Place) -> Result<(), Failure> {
        let text = serde_json::to_vec(self).expect("it has only string keys");
        fs_err::write(place.directory.join(REGISTRATION), text)
            .map_err(|source| Failure::Files { what: "write down what is to be removed", source })
    }

    /// Reads the registration of a sandbox directory, if it has one.
    pub(super) fn read(room: &Path) -> Option<Registration> {
        serde_json::from_str(&fs_err::read_to_string(room.join(REGISTRATION)).ok()?).ok()
    }
}

/// Tells whether an object with these labels was made for a sandbox directory in `rooms`.
pub(super) fn is_ours(labels: &HashMap<String, String>, rooms: &Path) -> bool {
    labels.get(&format!("{LABEL}state")).map(Path::new) == Some(rooms)
}

/// Removes a container of that name that a crash left. Fails if the name is taken by a container
/// that is not ringfence's.
pub(super) async fn make_way(
    client: &Client,
    rooms: &Path,
    container: &str,
) -> Result<(), Failure> {
    let inspected =
        match client.api.inspect_container(container, None::<InspectContainerOptions>).await {
            Ok(inspected) => inspected,
            Err(error) if is_missing(&error) => return Ok(()),
            Err(source) => {
                return Err(Failure::Engine { what: "look for a container of that name", source });
            }
        };
    let labels = inspected.config.and_then(|config| config.labels).unwrap_or_default();
    // This process holds the sandbox directory of that name, so the process that created the
    // container is dead.
    if !is_ours(&labels, rooms) {
        return Err(Failure::NameTaken {
            container: container.to_owned(),
            flavour: client.flavour,
        });
    }
    remove(client, container)
        .await
        .map_err(|source| Failure::Engine { what: "remove the container that was left", source })
}

/// Removes the container of a sandbox, its network and its proxy. Succeeds if the objects are gone
/// already.
pub(super) async fn remove_all(
    client: &Client,
    container: &str,
    beside: Option<&ProxyNetwork>,
) -> Result<(), bollard::errors::Error> {
    remove(client, container).await?;
    match beside {
        Some(beside) => beside.remove(client).await,
        None => Ok(()),
    }
}

/// Removes a container with its volumes. Succeeds if the container is gone already.
pub(super) async fn remove(client: &Client, container: &str) -> Result<(), bollard::errors::Error> {
    // Retry, because another process may be removing the container, or the engine may be starting
    // it.
    let removed = patiently(|| {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        client.api.remove_container(container, Some(options))
    });
    removed.await.map(drop)
}

/// Repeats a request until the engine can answer it, for at most `PATIENCE`. Returns `None` if the
/// object of the request does not exist.
pub(super) async fn patiently<T, Answer>(
    ask: impl Fn() -> Answer,
) -> Result<Option<T>, bollard::errors::Error>
where
    Answer: Future<Output = Result<T, bollard::errors::Error>>,
{
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ask().await {
            Ok(answer) => return Ok(Some(answer)),
            Err(error) if is_missing(&error) => return Ok(None),
            Err(_) if Instant::now() < deadline => sleep(MOMENT).await,
            Err(error) => return Err(error),
        }
    }
}
