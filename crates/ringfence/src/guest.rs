//! The guest's program: carried in this binary, and put on disk where sandboxes can be shown it.

use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// The guest, built by this crate's build script.
static PROGRAM: &[u8] = include_bytes!(env!("RINGFENCE_GUEST"));
/// The beginning of its hash, by which versions are told apart.
const VERSION: &str = env!("RINGFENCE_GUEST_VERSION");

/// Puts the guest below `state`, if it is not there, and returns where.
pub(crate) fn install(state: &Path) -> io::Result<PathBuf> {
    let path = state.join("guest").join(VERSION).join("ringfence-guest");
    if is_whole(&path) {
        return Ok(path);
    }
    let directory = path.parent().expect("a directory was joined");
    fs_err::create_dir_all(directory)?;
    sweep(directory);
    // Whole or not at all: another process may start it at any time.
    let temporary = directory.join(format!(".{}", std::process::id()));
    let written = fs_err::write(&temporary, PROGRAM)
        .and_then(|()| fs_err::set_permissions(&temporary, std::fs::Permissions::from_mode(0o755)))
        .and_then(|()| fs_err::rename(&temporary, &path));
    if written.is_err() {
        let _ = fs_err::remove_file(&temporary); // the first error tells more
    }
    written.map(|()| path)
}

/// Removes what was half written when its writer was killed.
fn sweep(directory: &Path) {
    for entry in fs_err::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let writer = name.to_str().and_then(|name| name.strip_prefix('.')?.parse().ok()).and_then(Pid::from_raw);
        if writer.is_some_and(|writer| test_kill_process(writer) == Err(Errno::SRCH)) {
            let _ = fs_err::remove_file(entry.path()); // another ringfence may be sweeping, too
        }
    }
}

#[cfg(test)]
pub(crate) fn length() -> u64 {
    PROGRAM.len() as u64
}

/// Whether a file is the guest as far as its length and mode tell; its directory is the user's own.
fn is_whole(path: &Path) -> bool {
    fs_err::metadata(path).is_ok_and(|found| found.len() == PROGRAM.len() as u64 && found.mode() & 0o111 == 0o111)
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn the_guest_is_put_on_disk_whole_and_once() {
        let state = tempfile::tempdir().unwrap();
        let path = install(state.path()).unwrap();
        assert_eq!(fs_err::read(&path).unwrap(), PROGRAM);
        let first = fs_err::metadata(&path).unwrap().ino();
        assert_eq!(install(state.path()).unwrap(), path);
        assert_eq!(fs_err::metadata(&path).unwrap().ino(), first);
        fs_err::write(&path, "half").unwrap();
        install(state.path()).unwrap();
        assert_eq!(fs_err::read(&path).unwrap(), PROGRAM);
    }

    #[test]
    fn it_is_small() {
        assert!(PROGRAM.len() < 4_000_000, "{} bytes", PROGRAM.len());
    }

    #[test]
    fn its_version_is_that_of_its_bytes() {
        let hash: String = Sha256::digest(PROGRAM).iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(hash.starts_with(VERSION), "{hash}");
    }
}
