//! The guest's program: this binary contains it compressed, and writes it to disk once, so that
//! sandboxes can be shown the file.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use flate2::read::DeflateDecoder;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::sandbox::directory::is_at;

/// The guest, built and compressed by this crate's build script.
static COMPRESSED_GUEST: &[u8] = include_bytes!(env!("RINGFENCE_GUEST"));
/// Length of the decompressed guest, in bytes.
pub(crate) const GUEST_BYTES: u64 = match u64::from_str_radix(env!("RINGFENCE_GUEST_LENGTH"), 10) {
    Ok(length) => length,
    Err(_) => panic!("the build script writes a number"),
};
/// Start of the guest's hash, which distinguishes versions.
const GUEST_VERSION: &str = env!("RINGFENCE_GUEST_VERSION");

/// The guest on disk. No process removes it as long as this value exists.
#[derive(Debug)]
pub(crate) struct InstalledGuest {
    /// Path of the guest's program.
    pub(crate) path: PathBuf,
    /// Shared lock on the directory of the program, held by every process that uses the program.
    _used: OwnedFd,
}

/// Writes the guest below `state` if it is not there, and removes other versions that no process
/// uses.
pub(crate) fn install(state: &Path) -> io::Result<InstalledGuest> {
    let versions = state.join("guest");
    let directory = versions.join(GUEST_VERSION);
    let used = loop {
        fs_err::create_dir_all(&directory)?;
        if let Some(used) = lock(&directory, FlockOperation::LockShared)? {
            break used;
        }
    };
    sweep_versions(&versions);
    let path = directory.join("ringfence-guest");
    if !is_complete(&path) {
        write_guest(&directory, &path)?;
    }
    Ok(InstalledGuest { path, _used: used })
}

/// Locks a directory; returns `None` if the directory was removed meanwhile.
fn lock(directory: &Path, how: FlockOperation) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = match open(directory, flags, Mode::empty()) {
        Ok(opened) => opened,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    flock(&opened, how)?;
    Ok(is_at(&opened, directory).then_some(opened))
}

/// Removes the versions that no sandbox uses, because an update leaves the previous version.
fn sweep_versions(versions: &Path) {
    for entry in fs_err::read_dir(versions).into_iter().flatten().flatten() {
        // The lock also fails for our own version, because we hold a shared lock on it.
        if let Ok(Some(_alone)) = lock(&entry.path(), FlockOperation::NonBlockingLockExclusive) {
            let _ = fs_err::remove_dir_all(entry.path()); // the next start tries again
        }
    }
}

/// Writes the guest completely or not at all, because another process may start it at any time.
fn write_guest(directory: &Path, path: &Path) -> io::Result<()> {
    sweep_partial_files(directory);
    let temporary = directory.join(format!(".{}", std::process::id()));
    let written = fs_err::File::create(&temporary)
        .and_then(|mut file| io::copy(&mut DeflateDecoder::new(COMPRESSED_GUEST), &mut file))
        .and_then(|_| fs_err::set_permissions(&temporary, std::fs::Permissions::from_mode(0o755)))
        .and_then(|()| fs_err::rename(&temporary, path));
    if written.is_err() {
        let _ = fs_err::remove_file(&temporary); // the first error is more informative
    }
    written
}

/// Removes partial files whose writer was killed.
fn sweep_partial_files(directory: &Path) {
    for entry in fs_err::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let writer = name
            .to_str()
            .and_then(|name| name.strip_prefix('.')?.parse().ok())
            .and_then(Pid::from_raw);
        if writer.is_some_and(|writer| test_kill_process(writer) == Err(Errno::SRCH)) {
            let _ = fs_err::remove_file(entry.path()); // another process may have removed the file
        }
    }
}

/// Tells whether a file is the complete guest, judged by its length and mode. That is enough,
/// because only the user can write to the directory.
fn is_complete(path: &Path) -> bool {
    fs_err::metadata(path)
        .is_ok_and(|found| found.len() == GUEST_BYTES && found.mode() & 0o111 == 0o111)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn the_guest_is_put_on_disk_whole_and_once() {
        let state = tempfile::tempdir().unwrap();
        let path = install(state.path()).unwrap().path;
        assert_eq!(version_of(&path), GUEST_VERSION);
        let first = fs_err::metadata(&path).unwrap().ino();
        assert_eq!(install(state.path()).unwrap().path, path);
        assert_eq!(fs_err::metadata(&path).unwrap().ino(), first);
        fs_err::write(&path, "half").unwrap();
        install(state.path()).unwrap();
        assert_eq!(version_of(&path), GUEST_VERSION);
    }

    /// Returns the start of a file's hash.
    fn version_of(path: &Path) -> String {
        let hash = Sha256::digest(fs_err::read(path).unwrap());
        ringfence_core::to_hex(&hash[..8])
    }

    #[test]
    fn versions_that_nobody_uses_are_removed_and_others_stay() {
        let state = tempfile::tempdir().unwrap();
        let [used, unused] = ["0123456789abcdef", "fedcba9876543210"].map(|version| {
            let directory = state.path().join("guest").join(version);
            fs_err::create_dir_all(&directory).unwrap();
            fs_err::write(directory.join("ringfence-guest"), "of another version").unwrap();
            directory
        });
        let held = lock(&used, FlockOperation::LockShared).unwrap();
        let first = install(state.path()).unwrap();
        assert!(used.exists() && !unused.exists());
        drop(held);
        let begun = Instant::now();
        let second = loop {
            let second = install(state.path()).unwrap();
            // A process that another test is just forking still has our descriptor, and so holds
            // the lock.
            if !used.exists() || begun.elapsed() > Duration::from_secs(20) {
                break second;
            }
        };
        assert!(
            !used.exists() && first.path == second.path && first.path.exists(),
            "our own is in use"
        );
    }

    #[test]
    fn the_guest_is_small() {
        let state = tempfile::tempdir().unwrap();
        let length = fs_err::metadata(install(state.path()).unwrap().path).unwrap().len();
        assert!(length < 4_000_000, "{length} bytes");
    }
}
