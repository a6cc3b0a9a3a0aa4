//! How long a sandbox may stay, as its room says: whoever reaches it may renew that.

use std::io;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;

const FILE: &str = "lease";
/// Where it is written before it is there whole.
const TEMPORARY: &str = ".lease";
/// Longer than anybody waits for, and short enough to be added to any time of day.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Has the lease of the sandbox whose room is at `directory` end after `lease` from now.
pub(crate) fn renew(directory: &Path, lease: Duration) -> io::Result<()> {
    let ends = Timestamp::now().checked_add(lease.min(LONGEST)).map_err(io::Error::other)?;
    fs_err::write(directory.join(TEMPORARY), ends.to_string())?;
    fs_err::rename(directory.join(TEMPORARY), directory.join(FILE))
}

/// When a renewed lease ends; nothing where nobody renewed it.
pub(crate) fn ends(directory: &Path) -> Option<Timestamp> {
    fs_err::read_to_string(directory.join(FILE)).ok()?.parse().ok()
}

/// How much of a renewed lease is left; nothing where it has ended or nobody renewed it.
pub(crate) fn left(directory: &Path) -> Option<Duration> {
    let left = ends(directory)?.duration_since(Timestamp::now());
    Duration::try_from(left).ok().filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_what_it_was_renewed_to_last() {
        let room = tempfile::tempdir().unwrap();
        assert_eq!((ends(room.path()), left(room.path())), (None, None));
        renew(room.path(), Duration::from_secs(60)).unwrap();
        let minute = left(room.path()).unwrap();
        assert!(minute <= Duration::from_secs(60) && minute > Duration::from_secs(30), "{minute:?}");
        renew(room.path(), Duration::ZERO).unwrap();
        assert_eq!(left(room.path()), None);
        assert!(ends(room.path()).is_some());
        renew(room.path(), Duration::MAX).unwrap();
        assert!(left(room.path()).is_some());
    }
}
