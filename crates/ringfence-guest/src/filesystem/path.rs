//! Resolution of a path in a request to a name in an open directory.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use ringfence_proto::code::{Code, Failure};
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;

use crate::user::SandboxUser;

/// Flags for opening a directory only to reach its entries.
const TRAVERSE_FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Returns the absolute path that a request means, without `.` and `..`. `~` and relative paths
/// start from the user's home directory.
pub(crate) fn resolve(path: &str, user: &SandboxUser) -> Result<PathBuf, Failure> {
    if path.contains('\0') {
        return Err(Failure::new(Code::InvalidArgument, "a path contains a zero byte"));
    }
    let expanded = match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            user.home.join(rest.trim_start_matches('/'))
        }
        Some(_) => {
            let message =
                format!("cannot tell the home of another user in `{path}`; write its path");
            return Err(Failure::new(Code::InvalidArgument, message));
        }
        None => user.home.join(path),
    };
    Ok(without_dots(&expanded))
}

fn without_dots(path: &Path) -> PathBuf {
    let mut clean = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => clean.push(name),
            // The parent of the root directory is the root directory.
            Component::ParentDir => _ = clean.pop(),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    clean
}

/// Name in an open directory. Operations on the name act in that directory, even if links in the
/// path change meanwhile.
#[derive(Debug)]
pub(crate) struct NameInDirectory {
    /// Parent directory, opened with O_PATH, so it can only be used to resolve names.
    pub(crate) directory: OwnedFd,
    /// Name of the entry in the directory; `.` for the root directory.
    pub(crate) name: OsString,
}

impl NameInDirectory {
    /// Opens the parent directory of a resolved path. Symbolic links in the parent path are
    /// followed. The last component is not examined.
    pub(crate) fn from_path(path: &Path) -> io::Result<NameInDirectory> {
        let (parent, name) = split_parent(path);
        Ok(NameInDirectory {
            directory: openat(CWD, parent, TRAVERSE_FLAGS, Mode::empty())?,
            name: name.to_owned(),
        })
    }

    /// Opens the parent directory of a resolved path like [`NameInDirectory::from_path`], and
    /// creates missing directories.
    pub(crate) fn with_parents(path: &Path) -> io::Result<NameInDirectory> {
        let (parent, name) = split_parent(path);
        Ok(NameInDirectory { directory: make_directories(parent)?, name: name.to_owned() })
    }
}

fn split_parent(path: &Path) -> (&Path, &OsStr) {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => (parent, name),
        _ => (Path::new("/"), OsStr::new(".")),
    }
}

/// Opens a directory. Creates the directory and its parents where they are missing.
pub(crate) fn make_directories(path: &Path) -> io::Result<OwnedFd> {
    match openat(CWD, path, TRAVERSE_FLAGS, Mode::empty()) {
        Err(Errno::NOENT) => {}
        opened => return Ok(opened?),
    }
    let mut directory = openat(CWD, "/", TRAVERSE_FLAGS, Mode::empty())?;
    for component in path.components() {
        let Component::Normal(name) = component else { continue };
        directory = match openat(&directory, name, TRAVERSE_FLAGS, Mode::empty()) {
            Err(Errno::NOENT) => {
                match mkdirat(&directory, name, Mode::from_raw_mode(0o755)) {
                    // With EEXIST, another process made the directory, or the name is a link
                    // without a target, which makes the openat(2) below fail.
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                openat(&directory, name, TRAVERSE_FLAGS, Mode::empty())?
            }
            opened => opened?,
        };
    }
    Ok(directory)
}

/// Returns the failure to report for an error on a path. `attempt` is a verb phrase that precedes
/// the path.
pub(crate) fn path_failure(attempt: &str, path: &Path, error: &io::Error) -> Failure {
    let code = match Errno::from_io_error(error) {
        Some(Errno::NOENT) => Code::NotFound,
        Some(Errno::EXIST) => Code::AlreadyExists,
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Code::PermissionDenied,
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => Code::ResourceExhausted,
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => Code::Unavailable,
        Some(Errno::NOTDIR | Errno::ISDIR | Errno::LOOP | Errno::NAMETOOLONG | Errno::INVAL) => {
            Code::InvalidArgument
        }
        Some(Errno::NOTEMPTY | Errno::BUSY | Errno::XDEV) => Code::FailedPrecondition,
        _ => Code::Internal,
    };
    Failure::new(code, format!("cannot {attempt} `{}`: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> SandboxUser {
        SandboxUser { name: "dev".to_owned(), uid: 1000, gid: 1000, home: "/home/dev".into() }
    }

    #[track_caller]
    fn check(path: &str, expected: &str) {
        assert_eq!(resolve(path, &user()).expect(path), Path::new(expected));
    }

    #[test]
    fn paths_start_from_home_unless_they_are_absolute() {
        check("", "/home/dev");
        check("a.txt", "/home/dev/a.txt");
        check("~", "/home/dev");
        check("~/a", "/home/dev/a");
        check("~//etc", "/home/dev/etc");
        check("/etc/../tmp/./x/", "/tmp/x");
        check("../../../..", "/");
        check("a/~", "/home/dev/a/~");
    }

    #[test]
    fn home_directories_of_other_users_and_zero_bytes_are_refused() {
        for wrong in ["~root/x", "a\0b"] {
            assert_eq!(resolve(wrong, &user()).expect_err(wrong).code, Code::InvalidArgument);
        }
    }

    #[test]
    fn missing_directories_are_made_and_a_dangling_link_is_not_followed() {
        let root = tempfile::tempdir().expect("makes a directory");
        let place = NameInDirectory::with_parents(&root.path().join("a/b/c"))
            .expect("makes the directories");
        assert_eq!(place.name, "c");
        assert!(root.path().join("a/b").is_dir());
        std::os::unix::fs::symlink("nowhere", root.path().join("link")).expect("makes a link");
        let error =
            NameInDirectory::with_parents(&root.path().join("link/x")).expect_err("leads nowhere");
        assert_eq!(path_failure("make", root.path(), &error).code, Code::NotFound);
        assert!(!root.path().join("nowhere").exists());
    }
}
