//! Private directory on the host that belongs to one run and is removed with it.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{
    AtFlags, CWD, Dir, Mode, OFlags, chmod, fstat, mkdir, mkdirat, openat, renameat, unlinkat,
};
use rustix::io::Errno;
use rustix::path::Arg;
use rustix::process::{Pid, test_kill_process};

/// Private directories that this process has created and not removed.
static LIVE_DIRECTORIES: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Private directory, removed with its contents when dropped. The next ringfence removes a
/// directory that a killed ringfence left.
#[derive(Debug)]
pub(crate) struct PrivateDirectory {
    path: PathBuf,
}

impl PrivateDirectory {
    /// Creates a directory below `/tmp/ringfence-<user>`, and removes those whose creators are
    /// gone.
    pub(crate) fn create(user_id: u32) -> io::Result<PrivateDirectory> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let base = PrivateDirectory::base(user_id);
        let name = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        loop {
            let opened = make_base(&base, user_id)?;
            sweep(&opened);
            match mkdirat(&opened, &name, Mode::RWXU) {
                Ok(()) => {
                    let path = base.join(name);
                    LIVE_DIRECTORIES
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .insert(path.clone());
                    return Ok(PrivateDirectory { path });
                }
                Err(Errno::NOENT) => {} // another ringfence ended and removed the empty base
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Tells whether a resolved path lies in a private directory that this process made and still
    /// has, or in one of the parent process. The parent counts because a proof starts a ringfence
    /// of its own.
    pub(crate) fn holds(path: &Path) -> bool {
        let live = LIVE_DIRECTORIES.lock().unwrap_or_else(PoisonError::into_inner);
        live.iter().any(|own| fs_err::canonicalize(own).is_ok_and(|own| path.starts_with(own)))
            || Self::is_of_parent(path)
    }

    fn is_of_parent(path: &Path) -> bool {
        let base = Self::base(rustix::process::geteuid().as_raw());
        let Ok(base) = fs_err::canonicalize(base) else { return false };
        let name = path.strip_prefix(base).ok().and_then(|rest| rest.iter().next()?.to_str());
        let maker = name.and_then(|name| name.split_once('-')?.0.parse().ok());
        maker == Some(std::os::unix::process::parent_id())
    }

    /// Returns the directory that contains all private directories of a user.
    pub(crate) fn base(user_id: u32) -> PathBuf {
        format!("/tmp/ringfence-{user_id}").into()
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        LIVE_DIRECTORIES.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.path);
        let _ = remove(CWD, &self.path); // the next run sweeps what is left
        if let Some(base) = self.path.parent() {
            let _ = rustix::fs::rmdir(base); // fails if the base is not empty
        }
    }
}

/// Removes a directory that code in a sandbox has written to, with all its contents. No process of
/// that sandbox may run any more.
///
/// No symbolic link is followed, directories without permissions are opened, and any depth of the
/// tree is supported.
pub fn remove_untrusted(directory: &Path) -> io::Result<()> {
    Ok(remove(CWD, directory)?)
}

/// Removes a directory of a run that has ended, with all its contents, which may be hostile.
///
/// No symbolic link is followed, and directories without permissions are opened. Stack and
/// descriptors do not grow with the depth of the tree, because the subdirectories of a directory
/// are moved up beside it before it is removed.
fn remove(parent: impl AsFd, name: impl Arg + Copy) -> rustix::io::Result<()> {
    let root = open(&parent, name)?;
    let mut count = 0;
    loop {
        let directories = unlink_files(&root)?;
        if directories.is_empty() {
            return unlinkat(&parent, name, AtFlags::REMOVEDIR);
        }
        for name in directories {
            match remove_one(&root, &name, &mut count) {
                Ok(()) | Err(Errno::NOENT) => {} // another ringfence may be sweeping, too
                Err(error) => return Err(error),
            }
        }
    }
}

/// Removes a directory, after moving its subdirectories beside it. Their new names are numbers from
/// `count` on.
fn remove_one(root: &OwnedFd, name: &CStr, count: &mut u64) -> rustix::io::Result<()> {
    let directory = open(root, name)?;
    for inner in unlink_files(&directory)? {
        open(&directory, &inner)?; // must be writable, because the rename changes `..`
        while let Err(error) = renameat(&directory, &inner, root, count.to_string()) {
            match error {
                Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR => *count += 1,
                error => return Err(error),
            }
        }
    }
    unlinkat(root, name, AtFlags::REMOVEDIR)
}

/// Removes everything but directories, and returns the names of the directories.
fn unlink_files(directory: &OwnedFd) -> rustix::io::Result<Vec<CString>> {
    let mut directories = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_owned();
        match unlinkat(directory, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR) if matches!(name.to_bytes(), b"." | b"..") => {}
            Err(Errno::ISDIR) => directories.push(name),
            Err(error) => return Err(error),
        }
    }
    Ok(directories)
}

/// Opens a directory for reading, after giving its owner all permissions.
fn open(parent: impl AsFd, name: impl Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let found = openat(parent, name, flags | OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())?;
    // The mode of an O_PATH descriptor can only be changed by way of a path to it.
    chmod(format!("/proc/self/fd/{}", found.as_raw_fd()), Mode::RWXU)?;
    openat(&found, ".", flags | OFlags::RDONLY, Mode::empty())
}

/// Creates and opens the directory that contains all private directories of a user.
///
/// Another user may have created the path before, or may do so as soon as it is removed. The opened
/// path must therefore be a real directory, belong to the user, and be closed to others.
fn make_base(base: &Path, user_id: u32) -> io::Result<OwnedFd> {
    let strange = || {
        io::Error::other(format!(
            "`{}` is not a private directory of user {user_id}",
            base.display()
        ))
    };
    loop {
        match mkdir(base, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = match openat(CWD, base, flags, Mode::empty()) {
            Ok(opened) => opened,
            Err(Errno::NOENT) => continue, // another ringfence ended and removed the base
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(strange()),
            Err(error) => return Err(error.into()),
        };
        let stat = fstat(&opened)?;
        let is_private = stat.st_uid == user_id && stat.st_mode & 0o077 == 0;
        return is_private.then_some(opened).ok_or_else(strange);
    }
}

/// Removes private directories whose creators are gone.
fn sweep(base: &OwnedFd) {
    let listed =
        openat(base, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let Ok(entries) = listed.and_then(Dir::new) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let maker = name
            .to_str()
            .ok()
            .and_then(|name| name.split('-').next()?.parse().ok())
            .and_then(Pid::from_raw);
        if maker.is_some_and(|maker| test_kill_process(maker) == Err(Errno::SRCH)) {
            let _ = remove(base, name); // another ringfence may be sweeping, too
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_base_that_others_own_or_can_open_is_refused() {
        let around = tempfile::tempdir().unwrap();
        let (base, user_id) = (around.path().join("base"), rustix::process::getuid().as_raw());
        make_base(&base, user_id).unwrap();
        make_base(&base, user_id).unwrap();
        assert!(make_base(&base, user_id + 1).is_err(), "another user's");
        fs_err::set_permissions(&base, Permissions::from_mode(0o750)).unwrap();
        assert!(make_base(&base, user_id).is_err(), "open to a group");
        fs_err::set_permissions(&base, Permissions::from_mode(0o700)).unwrap();
        symlink(&base, around.path().join("link")).unwrap();
        symlink("nowhere", around.path().join("dangling")).unwrap();
        fs_err::write(around.path().join("file"), "").unwrap();
        for name in ["link", "dangling", "file"] {
            let error = make_base(&around.path().join(name), user_id).unwrap_err();
            assert!(error.to_string().contains("is not a private directory"), "{name}: {error}");
        }
    }

    #[test]
    fn removed_directories_do_not_hide_new_ones() {
        let user_id = rustix::process::getuid().as_raw();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (0..500).for_each(|_| drop(PrivateDirectory::create(user_id).unwrap()))
                });
            }
        });
    }

    #[test]
    fn a_tree_is_removed_whatever_is_in_it_and_nothing_that_its_links_lead_to() {
        let around = tempfile::tempdir().unwrap();
        let (tree, kept) = (around.path().join("tree"), around.path().join("kept"));
        fs_err::create_dir_all(tree.join("a/b/c")).unwrap();
        fs_err::create_dir_all(tree.join("0")).unwrap();
        fs_err::write(tree.join("1"), "x").unwrap();
        fs_err::write(tree.join("a/b/c/file"), "x").unwrap();
        fs_err::create_dir(&kept).unwrap();
        fs_err::write(kept.join("file"), "x").unwrap();
        symlink(&kept, tree.join("link")).unwrap();
        symlink(&kept, tree.join("a/b/link")).unwrap();
        for closed in ["a/b/c", "a/b", "a", "0"] {
            fs_err::set_permissions(tree.join(closed), Permissions::from_mode(0o000)).unwrap();
        }
        let mode = || fs_err::metadata(&kept).unwrap().permissions().mode();
        let before = mode();
        remove(CWD, &tree).unwrap();
        assert!(!tree.exists() && kept.join("file").exists());
        assert_eq!(mode(), before);
        assert!(remove(CWD, &tree).is_err(), "it is gone");
    }

    #[test]
    fn a_tree_far_deeper_than_a_path_and_the_descriptors_reach_is_removed() {
        let around = tempfile::tempdir().unwrap();
        let tree = around.path().join("tree");
        fs_err::create_dir(&tree).unwrap();
        let mut directory = open(CWD, &tree).unwrap();
        for _ in 0..20_000 {
            mkdirat(&directory, "deep", Mode::RWXU).unwrap();
            directory = open(&directory, "deep").unwrap();
        }
        remove(CWD, &tree).unwrap();
        assert!(!tree.exists());
    }
}
