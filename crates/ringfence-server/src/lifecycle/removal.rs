//! Removal of the directories of ended sandboxes and deleted snapshots.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

/// Maximum time that a server waits for removals when it ends. The next server removes the rest.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(20);

/// Running removals. Clients do not wait for a removal, because a directory may be large, but the
/// server does before it ends.
#[derive(Debug, Clone, Default)]
pub(crate) struct Removals(TaskTracker);

impl Removals {
    /// Runs `work`, which ends with a removal, even if nobody waits for it.
    pub(crate) fn spawn<Work>(&self, work: Work) -> JoinHandle<Work::Output>
    where
        Work: Future<Output: Send + 'static> + Send + 'static,
    {
        self.0.spawn(work)
    }

    /// Removes a directory after `first` has completed. The result of `first` is held until the
    /// directory is removed.
    pub(crate) fn begin<Held: Send>(
        &self,
        directory: PathBuf,
        first: impl Future<Output = Held> + Send + 'static,
    ) {
        self.spawn(async move {
            let _held = first.await;
            remove_aside(directory).await;
        });
    }

    /// Waits for all running removals, up to [`REMOVAL_TIMEOUT`].
    pub(crate) async fn ended(&self) {
        self.0.close();
        if timeout(REMOVAL_TIMEOUT, self.0.wait()).await.is_err() {
            tracing::warn!(
                directories = self.0.len(),
                "not all directories are removed; the next server removes the rest"
            );
        }
    }
}

/// Removes a directory on a blocking thread and waits for the end.
pub(crate) async fn remove_aside(directory: PathBuf) {
    let removed = tokio::task::spawn_blocking(move || remove(directory)).await;
    removed.expect("removing does not panic");
}

/// Removes a directory that code in a sandbox has written to, or a copy of such a directory.
pub(crate) fn remove(directory: PathBuf) {
    if let Err(error) = ringfence::remove_untrusted(&directory)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(directory = %directory.display(), %error, "cannot remove a directory");
    }
}
