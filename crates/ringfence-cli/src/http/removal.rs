//! Directories of sandboxes and snapshots that are gone, on their way out.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

/// How long a server that ends waits for what it removes. The next one removes what is left.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is being removed. No client waits for it, as it may be large; the server does, before it ends.
#[derive(Debug, Clone, Default)]
pub(super) struct Removals(TaskTracker);

impl Removals {
    /// Does something that ends with a removal, whether or not anybody waits for it.
    pub(super) fn see_to<Work>(&self, work: Work) -> JoinHandle<Work::Output>
    where
        Work: Future<Output: Send + 'static> + Send + 'static,
    {
        self.0.spawn(work)
    }

    /// Removes a directory, after something else has come to its end; what that gives is held meanwhile.
    pub(super) fn begin<Held: Send>(&self, directory: PathBuf, first: impl Future<Output = Held> + Send + 'static) {
        self.see_to(async move {
            let _held = first.await;
            remove_aside(directory).await;
        });
    }

    /// Waits until everything that was begun is removed.
    pub(super) async fn ended(&self) {
        self.0.close();
        if timeout(PATIENCE, self.0.wait()).await.is_err() {
            tracing::warn!(directories = self.0.len(), "not everything is removed: the next server goes on with it");
        }
    }
}

/// Removes a directory on another thread, and waits for that.
pub(super) async fn remove_aside(directory: PathBuf) {
    let removed = tokio::task::spawn_blocking(move || remove(directory)).await;
    removed.expect("removing does not panic");
}

/// Removes a directory that code in a sandbox has written to, or a copy of one.
pub(super) fn remove(directory: PathBuf) {
    if let Err(error) = ringfence::remove_untrusted(&directory)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(directory = %directory.display(), %error, "a directory is not removed");
    }
}
