//! `Remove`: removes a file, or a directory with everything in it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use ringfence_proto::code::{Code, Failure};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, chmod, openat, unlinkat};
use rustix::io::Errno;

use super::DirectoryWalk;
use super::path::{NameInDirectory, path_failure};

/// Maximum number of attempts to remove directories into which another process puts new files
/// meanwhile.
const MAX_ATTEMPTS: u32 = 64;

/// Removes the file or directory at a resolved path. A path that does not exist is no failure.
/// Symbolic links are removed, not followed.
pub(super) fn remove(path: &Path) -> Result<(), Failure> {
    if path == Path::new("/") {
        return Err(Failure::new(Code::InvalidArgument, "the root directory cannot be removed"));
    }
    let place = match NameInDirectory::from_path(path) {
        Ok(place) => place,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(path_failure("remove", path, &error)),
    };
    remove_entry(&place).map_err(|error| path_failure("remove", path, &error))
}

/// Removes a name in a directory, and everything below the name.
pub(super) fn remove_entry(place: &NameInDirectory) -> io::Result<()> {
    for _ in 0..MAX_ATTEMPTS {
        if unlink(&place.directory, &place.name)? {
            return Ok(());
        }
        allow_owner(place.directory.as_fd(), &place.name);
        match DirectoryWalk::open(place.directory.as_fd(), &place.name) {
            Ok(descent) => remove_contents(descent)?,
            // The name is not a directory any more. The next round removes the new file.
            Err(error)
                if matches!(
                    Errno::from_io_error(&error),
                    Some(Errno::NOTDIR | Errno::LOOP | Errno::NOENT)
                ) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Errno::NOTEMPTY.into())
}

/// Removes everything below a directory. Uses one descriptor, however deep the tree is.
fn remove_contents(mut descent: DirectoryWalk) -> io::Result<()> {
    let mut entered: Vec<OsString> = Vec::new();
    let mut rounds = 0;
    loop {
        match unlink_until_full(&descent)? {
            Some(full) => {
                allow_owner(descent.as_fd(), &full);
                descent.enter(&full)?;
                entered.push(full);
            }
            None => {
                let Some(name) = entered.pop() else { return Ok(()) };
                descent.leave()?;
                // Another process put a file into the directory after it was found empty. The next
                // read of the parent finds the directory again.
                if !unlink(&descent, &name)? {
                    rounds += 1;
                    if rounds == MAX_ATTEMPTS {
                        return Err(Errno::NOTEMPTY.into());
                    }
                }
            }
        }
    }
}

/// Gives the owner all permissions for a directory that is to be emptied. envd runs as root and
/// needs no such change.
fn allow_owner(parent: BorrowedFd<'_>, name: &OsStr) {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if let Ok(directory) = openat(parent, name, flags, Mode::empty()) {
        // fchmod(2) does not accept an O_PATH descriptor, so the path in /proc is used. A failure,
        // such as for a directory of another user, is reported when the directory is emptied.
        let _ = chmod(format!("/proc/self/fd/{}", directory.as_raw_fd()), Mode::RWXU);
    }
}

/// Removes the entries of a directory until one is a directory that is not empty, and returns the
/// name of that one. Returns `None` if the directory is empty now.
fn unlink_until_full(descent: &DirectoryWalk) -> io::Result<Option<OsString>> {
    for entry in descent.entries()? {
        let (name, hint) = entry?;
        let name = OsStr::from_bytes(name.to_bytes());
        let removed = match hint {
            FileType::Directory | FileType::Unknown => unlink(descent, name)?,
            _ => unlink_file(descent, name)? || unlink(descent, name)?,
        };
        if !removed {
            return Ok(Some(name.to_owned()));
        }
    }
    Ok(None)
}

/// Removes a file or an empty directory. Returns false for a directory that is not empty.
fn unlink(directory: impl AsFd, name: &OsStr) -> io::Result<bool> {
    match unlinkat(&directory, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTDIR) => unlink_file(directory, name),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Removes a file. Returns false for a directory.
fn unlink_file(directory: impl AsFd, name: &OsStr) -> io::Result<bool> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::ISDIR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, mkdirat};

    #[test]
    fn removing_a_tree_keeps_the_targets_of_its_links() {
        let root = tempfile::tempdir().expect("makes a directory");
        let tree = root.path().join("tree");
        fs_err::create_dir_all(tree.join("a/b")).expect("makes directories");
        fs_err::write(tree.join("a/b/file"), "x").expect("writes");
        fs_err::create_dir(root.path().join("kept")).expect("makes a directory");
        fs_err::write(root.path().join("kept/file"), "x").expect("writes");
        std::os::unix::fs::symlink("../kept", tree.join("link")).expect("makes a link");
        std::os::unix::fs::symlink("../../kept", tree.join("a/link")).expect("makes a link");

        remove(&tree).expect("removes");
        assert!(!tree.exists());
        assert!(root.path().join("kept/file").exists());
        remove(&tree).expect("is not there, which is no failure");
        remove(&tree.join("below/it")).expect("is not there, which is no failure");
    }

    #[test]
    fn a_directory_without_owner_permissions_is_removed() {
        let root = tempfile::tempdir().expect("makes a directory");
        let tree = root.path().join("tree");
        fs_err::create_dir_all(tree.join("a/b")).expect("makes directories");
        fs_err::write(tree.join("a/b/file"), "x").expect("writes");
        for (path, mode) in [("a/b", 0o500), ("a", 0), ("", 0o400)] {
            chmod(tree.join(path), Mode::from_raw_mode(mode)).expect("closes");
        }
        remove(&tree).expect("removes");
        assert!(!tree.exists());
    }

    #[test]
    fn a_symbolic_link_itself_is_removed() {
        let root = tempfile::tempdir().expect("makes a directory");
        fs_err::write(root.path().join("file"), "x").expect("writes");
        std::os::unix::fs::symlink("file", root.path().join("link")).expect("makes a link");
        remove(&root.path().join("link")).expect("removes");
        assert!(root.path().join("file").exists());
        assert!(!root.path().join("link").is_symlink());
    }

    #[test]
    fn a_tree_far_deeper_than_a_path_can_be_is_removed() {
        let root = tempfile::tempdir().expect("makes a directory");
        let mut directory =
            openat(CWD, root.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
                .expect("opens");
        for _ in 0..1_000 {
            mkdirat(&directory, "deep", Mode::RWXU).expect("makes a directory");
            directory =
                openat(&directory, "deep", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
                    .expect("opens");
        }
        remove(&root.path().join("deep")).expect("removes");
        assert_eq!(fs_err::read_dir(root.path()).expect("reads").count(), 0);
    }

    #[test]
    fn removal_of_the_root_is_refused() {
        assert_eq!(remove(Path::new("/")).expect_err("is refused").code, Code::InvalidArgument);
    }
}
