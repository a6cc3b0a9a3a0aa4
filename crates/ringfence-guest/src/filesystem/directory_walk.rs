//! Walk through a directory tree that follows no symbolic link.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use rustix::fs::{Dir, FileType, Mode, OFlags, Stat, fstat, openat};

/// Flags for opening a directory for reading. Opening a symbolic link fails.
const READ_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Position in a directory tree. One descriptor is open, however deep the position is.
#[derive(Debug)]
pub(crate) struct DirectoryWalk {
    here: OwnedFd,
    /// Device and inode numbers of the directories above, which [`DirectoryWalk::leave`] compares.
    above: Vec<(u64, u64)>,
}

impl DirectoryWalk {
    /// Starts a walk in an open directory. The descriptor must be open for reading.
    pub(crate) fn from_directory(directory: OwnedFd) -> DirectoryWalk {
        DirectoryWalk { here: directory, above: Vec::new() }
    }

    /// Starts a walk in the directory `name` below `directory`. Fails if `name` is a symbolic link.
    pub(crate) fn open(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<DirectoryWalk> {
        Ok(DirectoryWalk::from_directory(openat(directory, name, READ_FLAGS, Mode::empty())?))
    }

    /// Enters the directory `name`, one level down. Fails if `name` is a symbolic link.
    pub(crate) fn enter(&mut self, name: &OsStr) -> io::Result<()> {
        let identity = identity(&fstat(&self.here)?);
        self.here = openat(&self.here, name, READ_FLAGS, Mode::empty())?;
        self.above.push(identity);
        Ok(())
    }

    /// Returns one level up, to the directory in which [`DirectoryWalk::enter`] was called. Returns
    /// false if the walk is at its start.
    ///
    /// Fails if the directory was moved since it was entered, because `..` is then another
    /// directory.
    pub(crate) fn leave(&mut self) -> io::Result<bool> {
        let Some(expected) = self.above.pop() else { return Ok(false) };
        let parent = openat(&self.here, "..", READ_FLAGS, Mode::empty())?;
        if identity(&fstat(&parent)?) != expected {
            return Err(io::Error::other("a directory was moved while it was being walked"));
        }
        self.here = parent;
        Ok(true)
    }

    /// Returns the number of levels below the start of the walk.
    pub(crate) fn depth(&self) -> usize {
        self.above.len()
    }

    /// Returns the names in the current directory in sorted order, without `.` and `..`. Fails if
    /// there are more than `most`.
    pub(crate) fn names(&self, most: usize) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.here)? {
            let entry = entry?;
            if is_dots(entry.file_name().to_bytes()) {
                continue;
            }
            if names.len() == most {
                return Err(io::Error::other(format!("a directory has more than {most} entries")));
            }
            names.push(OsStr::from_bytes(entry.file_name().to_bytes()).to_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Returns the entries of the current directory in the order of the kernel, without `.` and
    /// `..`. The file type is a hint, and can be unknown.
    pub(crate) fn entries(
        &self,
    ) -> io::Result<impl Iterator<Item = io::Result<(CString, FileType)>>> {
        let entries = Dir::read_from(&self.here)?.map(|entry| {
            let entry = entry?;
            Ok((entry.file_name().to_owned(), entry.file_type()))
        });
        Ok(entries.filter(|entry| {
            !entry.as_ref().is_ok_and(|(name, _): &(CString, _)| is_dots(name.to_bytes()))
        }))
    }
}

impl AsFd for DirectoryWalk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.here.as_fd()
    }
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::CWD;

    #[test]
    fn a_walk_follows_no_link_and_notices_a_moved_directory() {
        let root = tempfile::tempdir().expect("makes a directory");
        fs_err::create_dir_all(root.path().join("a/b")).expect("makes directories");
        fs_err::create_dir(root.path().join("elsewhere")).expect("makes a directory");
        std::os::unix::fs::symlink("a", root.path().join("link")).expect("makes a link");

        let mut descent = DirectoryWalk::open(CWD, root.path().as_os_str()).expect("opens");
        assert!(descent.enter(OsStr::new("link")).is_err());
        descent.enter(OsStr::new("a")).expect("is a directory");
        descent.enter(OsStr::new("b")).expect("is a directory");
        assert_eq!(descent.depth(), 2);
        assert!(descent.leave().expect("`a` is where it was"));
        descent.enter(OsStr::new("b")).expect("is a directory");
        fs_err::rename(root.path().join("a/b"), root.path().join("elsewhere/b")).expect("moves");
        assert!(descent.leave().is_err());
    }

    #[test]
    fn directory_names_are_sorted_and_limited() {
        let root = tempfile::tempdir().expect("makes a directory");
        for name in ["c", "a", "b"] {
            fs_err::write(root.path().join(name), "").expect("writes");
        }
        let descent = DirectoryWalk::open(CWD, root.path().as_os_str()).expect("opens");
        assert_eq!(descent.names(3).expect("reads"), ["a", "b", "c"]);
        assert!(descent.names(2).is_err());
    }
}
