//! A directory on the host that belongs to one run and goes with it.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, chmod, mkdir, openat, renameat, unlinkat};
use rustix::io::Errno;
use rustix::path::Arg;
use rustix::process::{Pid, test_kill_process};

/// A private directory, removed with its contents when dropped. One that a killed ringfence left is removed
/// by the next.
#[derive(Debug)]
pub(crate) struct PrivateDirectory {
    path: PathBuf,
}

impl PrivateDirectory {
    /// Makes one below `/tmp/ringfence-<user>`, and removes those whose makers are gone.
    pub(crate) fn create(user_id: u32) -> io::Result<PrivateDirectory> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let base = base(user_id);
        let path = base.join(format!("{}{}", own_prefix(), COUNT.fetch_add(1, Ordering::Relaxed)));
        loop {
            make_base(&base, user_id)?;
            sweep(&base);
            match mkdir(&path, Mode::RWXU) {
                Ok(()) => return Ok(PrivateDirectory { path }),
                Err(Errno::NOENT) => {} // another ringfence ended and took the empty base along
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a resolved path is one that this process made for a run.
    pub(crate) fn is_ours(user_id: u32, path: &Path) -> bool {
        let name = path.file_name().and_then(OsStr::to_str);
        path.parent() == Some(&base(user_id)) && name.is_some_and(|name| name.starts_with(&own_prefix()))
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        let _ = remove(&self.path); // the next run sweeps what is left
        if let Some(base) = self.path.parent() {
            let _ = rustix::fs::rmdir(base); // others may be in it
        }
    }
}

/// The directory that all of a user's are in.
fn base(user_id: u32) -> PathBuf {
    format!("/tmp/ringfence-{user_id}").into()
}

/// How the names of this process's own begin.
fn own_prefix() -> String {
    format!("{}-", std::process::id())
}

/// Removes a directory that code in a sandbox has written to, with all that it put there, when nothing of it runs any
/// more. No link is followed, what was closed is opened, and it may be as deep as it likes.
pub fn remove_untrusted(directory: &Path) -> io::Result<()> {
    Ok(remove(directory)?)
}

/// Removes a directory of a run that has ended, with all that the run put there. It may have been hostile: no link is
/// followed, what it closed is opened, and nothing grows with the depth of what it made, neither stack nor descriptors,
/// for what is below a directory is moved up beside it before that goes.
fn remove(path: &Path) -> rustix::io::Result<()> {
    let root = open(CWD, path)?;
    let mut count = 0;
    loop {
        let directories = unlink_files(&root)?;
        if directories.is_empty() {
            return unlinkat(CWD, path, AtFlags::REMOVEDIR);
        }
        for name in directories {
            match remove_one(&root, &name, &mut count) {
                Ok(()) | Err(Errno::NOENT) => {} // another ringfence may be sweeping, too
                Err(error) => return Err(error),
            }
        }
    }
}

/// Removes a directory. Those in it get names beside it: numbers from `count` on.
fn remove_one(root: &OwnedFd, name: &CStr, count: &mut u64) -> rustix::io::Result<()> {
    let directory = open(root, name)?;
    for inner in unlink_files(&directory)? {
        open(&directory, &inner)?; // its `..` changes: it must be writable
        while let Err(error) = renameat(&directory, &inner, root, count.to_string()) {
            match error {
                Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR => *count += 1,
                error => return Err(error),
            }
        }
    }
    unlinkat(root, name, AtFlags::REMOVEDIR)
}

/// Removes all that is no directory, and returns the names of the rest.
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

/// Opens a directory for reading, after its owner was given every right to it.
fn open(parent: impl AsFd, name: impl Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let found = openat(parent, name, flags | OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())?;
    // What is open as a path alone can be changed only by a name of it.
    chmod(format!("/proc/self/fd/{}", found.as_raw_fd()), Mode::RWXU)?;
    openat(&found, ".", flags | OFlags::RDONLY, Mode::empty())
}

/// Makes the directory that all of a user's are in. Somebody else may have made it first: it must be a real
/// directory, the user's own, and closed to others.
fn make_base(base: &Path, user_id: u32) -> io::Result<()> {
    match mkdir(base, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let stat = rustix::fs::lstat(base)?;
    let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    if is_directory && stat.st_uid == user_id && stat.st_mode & 0o077 == 0 {
        return Ok(());
    }
    Err(io::Error::other(format!("`{}` is not a private directory of user {user_id}", base.display())))
}

fn sweep(base: &Path) {
    let Ok(entries) = fs_err::read_dir(base) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let maker = name.to_str().and_then(|name| name.split('-').next()?.parse().ok()).and_then(Pid::from_raw);
        if maker.is_some_and(|maker| test_kill_process(maker) == Err(Errno::SRCH)) {
            let _ = remove(&entry.path()); // another ringfence may be sweeping, too
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use rustix::fs::mkdirat;

    use super::*;

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
        remove(&tree).unwrap();
        assert!(!tree.exists() && kept.join("file").exists());
        assert_eq!(mode(), before);
        assert!(remove(&tree).is_err(), "it is gone");
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
        remove(&tree).unwrap();
        assert!(!tree.exists());
    }
}
