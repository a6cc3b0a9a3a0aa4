//! What there is to remove, written down before it is there, and removed.

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

/// The file of a room that says what to remove after a crash; written before there is anything.
pub(super) const REGISTRATION: &str = "container.json";
/// How long an engine may take to do what it is asked for.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long it has between two times.
const MOMENT: Duration = Duration::from_millis(30);

/// Where a container is that must be removed.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Registration {
    pub(super) socket: PathBuf,
    pub(super) container: String,
    /// What was made beside it.
    #[serde(default)]
    pub(super) beside: Option<ProxyNetwork>,
}

impl Registration {
    /// Writes it down.
    pub(super) fn write(&self, place: &Place) -> Result<(), Failure> {
        let text = serde_json::to_vec(self).expect("it has only string keys");
        fs_err::write(place.directory.join(REGISTRATION), text)
            .map_err(|source| Failure::Files { what: "write down what is to be removed", source })
    }

    /// What is written down in a room.
    pub(super) fn read(room: &Path) -> Option<Registration> {
        serde_json::from_str(&fs_err::read_to_string(room.join(REGISTRATION)).ok()?).ok()
    }
}

/// Whether something with these labels was made for one of `rooms`.
pub(super) fn is_ours(labels: &HashMap<String, String>, rooms: &Path) -> bool {
    labels.get(&format!("{LABEL}state")).map(Path::new) == Some(rooms)
}

/// Removes a container of that name that a crash left. One that is not ours stays, and its name is taken.
pub(super) async fn make_way(client: &Client, rooms: &Path, container: &str) -> Result<(), Failure> {
    let inspected = match client.api.inspect_container(container, None::<InspectContainerOptions>).await {
        Ok(inspected) => inspected,
        Err(error) if is_missing(&error) => return Ok(()),
        Err(source) => return Err(Failure::Engine { what: "look for a container of that name", source }),
    };
    let labels = inspected.config.and_then(|config| config.labels).unwrap_or_default();
    // We hold the room of that name: whoever made it is dead.
    if !is_ours(&labels, rooms) {
        return Err(Failure::NameTaken { container: container.to_owned(), flavour: client.flavour });
    }
    remove(client, container)
        .await
        .map_err(|source| Failure::Engine { what: "remove the container that was left", source })
}

/// Removes the container of a sandbox, and what was made beside it; what is gone already is fine.
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

/// Removes a container with everything in it; one that is gone already is fine.
pub(super) async fn remove(client: &Client, container: &str) -> Result<(), bollard::errors::Error> {
    // Somebody else may be removing it, or the engine starting it.
    let removed = patiently(|| {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        client.api.remove_container(container, Some(options))
    });
    removed.await.map(drop)
}

/// Asks an engine for something until it can answer; nothing when what it is asked about is not there.
pub(super) async fn patiently<T, Answer>(ask: impl Fn() -> Answer) -> Result<Option<T>, bollard::errors::Error>
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
