//! The lease of a sandbox, stored in its directory. Any process that reaches the sandbox can renew
//! the lease.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use jiff::Timestamp;

const LEASE_FILE: &str = "lease";
/// Name of the file while it is written, before it is renamed.
const TEMPORARY_FILE: &str = ".lease";
/// Time between two checks of the lease by the process that keeps the sandbox.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Longest lease: longer than any real one, and short enough to be added to any time.
const MAX_LEASE: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Sets the end of the lease to `lease` from now, for the sandbox whose directory is
/// `directory`.
pub(crate) fn renew(directory: &Path, lease: Duration) -> io::Result<()> {
    let ends = Timestamp::now().checked_add(lease.min(MAX_LEASE)).map_err(io::Error::other)?;
    fs_err::write(directory.join(TEMPORARY_FILE), ends.to_string())?;
    fs_err::rename(directory.join(TEMPORARY_FILE), directory.join(LEASE_FILE))
}

/// Returns the end of a renewed lease, or `None` if the lease was not renewed.
pub(crate) fn renewed_end(directory: &Path) -> Option<Timestamp> {
    fs_err::read_to_string(directory.join(LEASE_FILE)).ok()?.parse().ok()
}

/// Waits until the lease of a sandbox is over: `lease` from now, or at the time to which the lease
/// was renewed.
pub(crate) async fn wait_until_over(directory: &Path, lease: Duration) {
    let started = Instant::now();
    loop {
        let left = match renewed_end(directory) {
            // A negative duration means that the lease is over.
            Some(ends) => {
                Duration::try_from(ends.duration_since(Timestamp::now())).unwrap_or_default()
            }
            None => lease.saturating_sub(started.elapsed()),
        };
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(CHECK_INTERVAL)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lease_is_what_it_was_renewed_to_last() {
        let sandbox_dir = tempfile::tempdir().unwrap();
        assert_eq!(renewed_end(sandbox_dir.path()), None);
        wait_until_over(sandbox_dir.path(), Duration::from_millis(1)).await;
        renew(sandbox_dir.path(), Duration::MAX).unwrap();
        let hour = Duration::from_secs(3600);
        assert!(renewed_end(sandbox_dir.path()).unwrap() > Timestamp::now() + hour);
        let waited = tokio::time::timeout(
            Duration::from_millis(20),
            wait_until_over(sandbox_dir.path(), Duration::ZERO),
        )
        .await;
        assert!(waited.is_err(), "it was renewed");
        renew(sandbox_dir.path(), Duration::ZERO).unwrap();
        wait_until_over(sandbox_dir.path(), hour).await;
    }
}
