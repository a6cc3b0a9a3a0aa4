//! The directories of sandboxes that stay: one directory for each sandbox, below the user's state
//! directory.
//!
//! A sandbox directory belongs to the process that holds its lock. A process that dies releases the
//! lock, however it dies. So a sandbox directory whose lock can be taken was left by a crash, and
//! is cleared. Only ringfence writes to a sandbox directory: no sandbox can write to it, and only
//! containers see some of its files, read-only.

mod manifest;
mod name;

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;

use crate::sandbox::guest::InstalledGuest;
use crate::sandbox::host_observer::HostObserver;
use crate::{Host, make_private_directory};
pub use manifest::{ContainerManifest, Manifest, NetworkReach, Owner};
pub use name::{Name, NameError};

/// Number of tries to take a lock before it counts as held, and below, the time between two tries.
const LOCK_ATTEMPTS: u32 = 4;
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// Longest manifest that is read, in bytes.
const MAX_MANIFEST_BYTES: u64 = 1 << 20;

/// The directory of a sandbox, held by its owner.
#[derive(Debug)]
pub(crate) struct SandboxDir {
    pub(crate) name: Name,
    pub(crate) path: PathBuf,
    /// The guest's program on the host, which is not removed as long as the sandbox directory is
    /// held.
    pub(crate) guest: InstalledGuest,
    /// Lock of the sandbox directory, held as long as this value exists.
    _lock: OwnedFd,
}

/// Reason why an operation on sandbox directories failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxDirError {
    /// The host has no state directory.
    #[error("cannot keep a sandbox: there is no home directory, and XDG_STATE_HOME is not set")]
    Nowhere,
    /// Other users could put sandboxes into the state directory.
    #[error("cannot keep a sandbox below `{}`: others can write there, or own it", path.display())]
    NotOwn {
        /// The state directory.
        path: PathBuf,
    },
    /// The given name cannot be the name of a sandbox.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Another process keeps a sandbox of this name.
    #[error("there is a sandbox `{name}` already")]
    Taken {
        /// Name of the sandbox.
        name: Name,
    },
    /// No sandbox has this name.
    #[error("there is no sandbox `{name}`")]
    Absent {
        /// Name of the sandbox.
        name: Name,
    },
    /// The sandbox is still starting or ending after a long wait.
    #[error("the sandbox `{name}` is still starting or ending")]
    Pending {
        /// Name of the sandbox.
        name: Name,
    },
    /// An operation on a file of the sandbox directory failed.
    #[error("cannot {what} of the sandbox `{name}`")]
    File {
        /// The operation that failed, as a verb and its object.
        what: &'static str,
        /// Name of the sandbox.
        name: Name,
        /// Error of the operation.
        source: io::Error,
    },
}

impl SandboxDirError {
    /// Returns the next step for the user.
    pub fn hint(&self) -> String {
        match self {
            SandboxDirError::Nowhere | SandboxDirError::NotOwn { .. } => {
                "export XDG_STATE_HOME=/a/directory/of/yours".to_owned()
            }
            SandboxDirError::Name(_) => "give it another name: ringfence up NAME".to_owned(),
            SandboxDirError::Taken { name } => {
                format!(
                    "enter it: ringfence enter {name}; or replace it: ringfence up {name} --replace"
                )
            }
            SandboxDirError::Absent { .. } => {
                "`ringfence ps` lists the running sandboxes; `ringfence up` starts one".to_owned()
            }
            SandboxDirError::Pending { .. } => {
                "try again later; `ringfence ps` lists the running sandboxes".to_owned()
            }
            SandboxDirError::File { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                "the disk is full: free some space, or set XDG_STATE_HOME to a directory on \
                 another disk"
                    .to_owned()
            }
            SandboxDirError::File { .. } => {
                "check the permissions of ~/.local/state/ringfence".to_owned()
            }
        }
    }
}

/// All sandbox directories of a user.
#[derive(Debug, Clone)]
pub(crate) struct SandboxDirs {
    state: PathBuf,
}

impl SandboxDirs {
    /// Returns the sandbox directories of the user of `host`.
    pub(crate) fn for_host(host: &Host) -> Result<SandboxDirs, SandboxDirError> {
        let state = host.state_directory().ok_or(SandboxDirError::Nowhere)?;
        // Files in this directory decide which program is started in a sandbox, and which process
        // is killed.
        if rustix::fs::stat(&state)
            .is_ok_and(|stat| stat.st_uid != host.user_id || stat.st_mode & 0o002 != 0)
        {
            return Err(SandboxDirError::NotOwn { path: state });
        }
        Ok(SandboxDirs { state })
    }

    /// Returns the directory that contains all of ringfence's state.
    pub(crate) fn state(&self) -> &Path {
        &self.state
    }

    /// Returns the directory that contains the sandbox directories.
    pub(crate) fn base_directory(&self) -> PathBuf {
        self.state.join("sandboxes")
    }

    /// Returns the path of the directory of a sandbox.
    pub(crate) fn path(&self, name: &Name) -> PathBuf {
        self.base_directory().join(name.as_str())
    }

    /// Returns the names of all sandbox directories, including those that a crash left.
    pub(crate) fn names(&self) -> Vec<Name> {
        let entries = fs_err::read_dir(self.base_directory()).into_iter().flatten().flatten();
        let mut names: Vec<Name> =
            entries.filter_map(|entry| Name::new(entry.file_name().to_str()?).ok()).collect();
        names.sort();
        names
    }

    /// Tells whether a process keeps the sandbox of that name. Returns true if that cannot be
    /// determined, for example when no descriptor is left, because a sandbox that nobody keeps is
    /// removed.
    pub(crate) fn is_kept(&self, name: &Name) -> bool {
        match open(self.path(name).join(LOCK_FILE), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        {
            Ok(lock) => {
                flock(&lock, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
            }
            Err(error) => !matches!(error, Errno::NOENT | Errno::NOTDIR),
        }
    }

    /// Takes the sandbox directory of that name, and removes everything that a crash left in it.
    pub(crate) fn claim(&self, name: Name) -> Result<SandboxDir, SandboxDirError> {
        let failed = |what, name: &Name| {
            let name = name.clone();
            move |source: io::Error| SandboxDirError::File { what, name, source }
        };
        make_private_directory(&self.state).map_err(failed("make the directory", &name))?;
        let guest = crate::sandbox::guest::install(&self.state)
            .map_err(failed("install the guest", &name))?;
        let path = self.path(&name);
        loop {
            make_private_directory(&path).map_err(failed("make the directory", &name))?;
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let lock = match open(path.join(LOCK_FILE), flags, Mode::RUSR | Mode::WUSR) {
                Ok(lock) => lock,
                // The last owner has just removed the sandbox directory.
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(failed("open the lock", &name)(error.into())),
            };
            match take_lock(&lock) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Err(SandboxDirError::Taken { name }),
                Err(error) => return Err(failed("take the lock", &name)(error.into())),
            }
            if !is_at(&lock, &path.join(LOCK_FILE)) {
                continue; // the lock file was removed before we took the lock
            }
            let sandbox_dir = SandboxDir { name: name.clone(), path, guest, _lock: lock };
            // Delete the old manifest first: with the lock held, readers would take it as current.
            sandbox_dir.remove_manifest();
            for (_, backend) in crate::backends::BACKENDS {
                backend.remove_remains(&sandbox_dir.path);
            }
            for planted in sandbox_dir.planted() {
                tracing::warn!(
                    sandbox = %name,
                    path = planted,
                    "a sandbox that was killed planted a path that the host acts on"
                );
            }
            sandbox_dir.clear().map_err(failed("clear the directory", &name))?;
            make_private_directory(&sandbox_dir.channel())
                .map_err(failed("make the channel", &name))?;
            return Ok(sandbox_dir);
        }
    }

    /// Reads the manifest of a sandbox that a process keeps.
    pub(crate) fn manifest(&self, name: &Name) -> Result<Manifest, SandboxDirError> {
        self.open_manifest(name).map(|(manifest, _)| manifest)
    }

    /// Reads the manifest like [`manifest`](SandboxDirs::manifest), and also returns its open file.
    /// The file keeps its name until the sandbox ends.
    pub(crate) fn open_manifest(
        &self,
        name: &Name,
    ) -> Result<(Manifest, fs_err::File), SandboxDirError> {
        if !self.is_kept(name) {
            return Err(SandboxDirError::Absent { name: name.clone() });
        }
        let failed = |source| SandboxDirError::File {
            what: "read the manifest",
            name: name.clone(),
            source,
        };
        let file = fs_err::File::open(self.path(name).join(MANIFEST_FILE)).map_err(|error| {
            match error.kind() {
                // The sandbox is starting or ending.
                io::ErrorKind::NotFound => SandboxDirError::Absent { name: name.clone() },
                _ => failed(error),
            }
        })?;
        let mut text = String::new();
        (&file).take(MAX_MANIFEST_BYTES).read_to_string(&mut text).map_err(failed)?;
        let mut manifest: Manifest =
            serde_json::from_str(&text).map_err(|error| failed(error.into()))?;
        if let (Some(ends), Some(renewed)) =
            (&mut manifest.ends, crate::sandbox::lease::renewed_end(&self.path(name)))
        {
            *ends = renewed.to_string();
        }
        if let Some(changed) = crate::egress::changed(&self.path(name)).map_err(failed)? {
            changed.apply_to_manifest(&mut manifest);
        }
        Ok((manifest, file))
    }

    /// Returns the path of a sandbox's log.
    pub(crate) fn log(&self, name: &Name) -> PathBuf {
        self.path(name).join(LOG_FILE)
    }

    /// Removes the sandbox directories that no process keeps.
    pub(crate) fn sweep(&self) {
        for name in self.names() {
            if !self.is_kept(&name)
                && let Ok(sandbox_dir) = self.claim(name)
            {
                sandbox_dir.remove();
            }
        }
    }
}

const LOCK_FILE: &str = "lock";
const MANIFEST_FILE: &str = "manifest.json";
const LOG_FILE: &str = "log";
const CHANNEL_DIRECTORY: &str = "channel";

impl SandboxDir {
    /// Returns the directory that contains the guest's socket.
    pub(crate) fn channel(&self) -> PathBuf {
        channel_in(&self.path)
    }

    /// Opens the sandbox's log for appending.
    pub(crate) fn log(&self) -> io::Result<fs_err::File> {
        fs_err::OpenOptions::new().create(true).append(true).open(self.path.join(LOG_FILE))
    }

    /// Writes the observer, and then the manifest, completely or not at all.
    pub(crate) fn write(
        &self,
        manifest: &Manifest,
        observer: Option<&HostObserver>,
    ) -> io::Result<()> {
        observer.map_or(Ok(()), |observer| observer.write(&self.path))?;
        let temporary = self.path.join(".manifest");
        fs_err::write(&temporary, serde_json::to_vec_pretty(manifest)?)?;
        fs_err::rename(&temporary, self.path.join(MANIFEST_FILE))
    }

    /// Removes the manifest, so that no other process finds the sandbox: either the sandbox is
    /// about to end, or the manifest is one that a crash left.
    pub(crate) fn remove_manifest(&self) {
        let _ = fs_err::remove_file(self.path.join(MANIFEST_FILE)); // there may be no manifest yet
    }

    /// Removes the sandbox directory with all its files, and releases it. Returns the paths that
    /// the sandbox planted.
    pub(crate) fn remove(self) -> Vec<String> {
        let planted = self.planted();
        // The lock file goes last. A process that takes the lock then finds that the lock file is
        // no longer at its path, and tries again.
        let _ = self.clear(); // the next sweep removes the rest
        let _ = fs_err::remove_file(self.path.join(LOCK_FILE)); // the next sweep removes the rest
        let _ = fs_err::remove_dir(&self.path); // the next sweep removes the rest
        planted
    }

    /// Finds the paths that the sandbox planted, and remembers the links of git among them, so that
    /// they mislead no other sandbox.
    fn planted(&self) -> Vec<String> {
        let observer = HostObserver::read(&self.path).ok().flatten();
        observer.as_ref().map(HostObserver::planted).unwrap_or_default()
    }

    /// Removes everything but the lock. The user keeps the egress log.
    fn clear(&self) -> io::Result<()> {
        if let Some(state) = self.path.parent().and_then(Path::parent) {
            crate::egress::hand_over(&self.path, state);
        }
        for entry in fs_err::read_dir(&self.path)? {
            let entry = entry?;
            match entry.file_name() {
                name if name == LOCK_FILE => {}
                _ if entry.file_type()?.is_dir() => remove_tree(&entry.path())?,
                _ => fs_err::remove_file(entry.path())?,
            }
        }
        Ok(())
    }
}

/// Returns the directory of the guest's socket in the directory of a sandbox.
pub(crate) fn channel_in(directory: &Path) -> PathBuf {
    directory.join(CHANNEL_DIRECTORY)
}

/// Takes a lock that no owner holds. A process that checks whether the lock is held holds it for a
/// moment, so this function retries for a short time.
fn take_lock(lock: &OwnedFd) -> rustix::io::Result<()> {
    for _ in 0..LOCK_ATTEMPTS {
        match flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(LOCK_RETRY_INTERVAL),
            taken => return taken,
        }
    }
    flock(lock, FlockOperation::NonBlockingLockExclusive)
}

/// Removes a directory that no sandbox can write to, with everything in it. That includes
/// directories that nobody may enter, such as the covers of hidden directories.
fn remove_tree(directory: &Path) -> io::Result<()> {
    fs_err::set_permissions(directory, std::fs::Permissions::from_mode(0o700))?;
    for entry in fs_err::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        } else {
            fs_err::remove_file(entry.path())?;
        }
    }
    fs_err::remove_dir(directory)
}

/// Tells whether an open file is the file at a path.
pub(crate) fn is_at(file: &OwnedFd, path: &Path) -> bool {
    match (rustix::fs::fstat(file), rustix::fs::lstat(path)) {
        (Ok(file), Ok(there)) => (file.st_dev, file.st_ino) == (there.st_dev, there.st_ino),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox_dirs(state: &Path) -> SandboxDirs {
        SandboxDirs { state: state.to_path_buf() }
    }

    #[test]
    fn a_sandbox_directory_has_one_owner_and_is_free_after_it() {
        let state = tempfile::tempdir().unwrap();
        let sandbox_dirs = sandbox_dirs(state.path());
        let name = Name::new("one").unwrap();
        let sandbox_dir = sandbox_dirs.claim(name.clone()).unwrap();
        assert!(sandbox_dirs.is_kept(&name));
        assert!(matches!(sandbox_dirs.claim(name.clone()), Err(SandboxDirError::Taken { .. })));
        sandbox_dir.remove();
        assert!(!sandbox_dirs.is_kept(&name));
        assert_eq!(sandbox_dirs.names(), []);
        sandbox_dirs.claim(name).unwrap().remove();
    }

    #[test]
    fn a_state_directory_that_others_can_write_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let variables = [("XDG_STATE_HOME".into(), place.path().into())].into_iter().collect();
        let host = Host::new(variables, "/".into());
        let sandbox_dirs = SandboxDirs::for_host(&host).unwrap();
        sandbox_dirs.claim(Name::new("one").unwrap()).unwrap().remove();
        let mode = || fs_err::metadata(sandbox_dirs.state()).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o700);
        SandboxDirs::for_host(&host).unwrap();
        fs_err::set_permissions(sandbox_dirs.state(), std::fs::Permissions::from_mode(0o777))
            .unwrap();
        assert!(matches!(SandboxDirs::for_host(&host), Err(SandboxDirError::NotOwn { .. })));
    }

    #[test]
    fn files_that_a_crash_left_are_cleared_and_swept() {
        let state = tempfile::tempdir().unwrap();
        let sandbox_dirs = sandbox_dirs(state.path());
        let name = Name::new("one").unwrap();
        let sandbox_dir = sandbox_dirs.claim(name.clone()).unwrap();
        fs_err::write(sandbox_dir.channel().join("left"), "").unwrap();
        fs_err::write(sandbox_dir.path.join("manifest.json"), "{").unwrap();
        drop(sandbox_dir); // as a crash does: the lock is released, and nothing is removed
        assert_eq!(sandbox_dirs.names(), std::slice::from_ref(&name));
        assert!(matches!(sandbox_dirs.manifest(&name), Err(SandboxDirError::Absent { .. })));
        let again = sandbox_dirs.claim(name).unwrap();
        assert_eq!(fs_err::read_dir(again.channel()).unwrap().count(), 0);
        drop(again);
        sandbox_dirs.sweep();
        assert_eq!(sandbox_dirs.names(), []);
    }
}
