//! Description of one file for clients.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use ringfence_proto::code::Failure;
use ringfence_proto::filesystem::{EntryInfo, FileType as Kind};
use rustix::fs::{AtFlags, FileType, Stat, readlinkat, statat};

use super::metadata;
use super::path::{NameInDirectory, path_failure};
use crate::user::AccountNames;

/// Describes the file at a resolved path. A symbolic link itself is described, with the type and
/// mode of its target.
pub(crate) fn describe(path: &Path, names: &AccountNames) -> Result<EntryInfo, Failure> {
    let found = NameInDirectory::from_path(path)
        .and_then(|place| describe_at(place.directory.as_fd(), &place.name, path, names));
    found.map_err(|error| path_failure("find", path, &error))
}

/// Describes the file `name` in an open directory. `path` is the path of the file that the client
/// sees.
pub(crate) fn describe_at(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    path: &Path,
    names: &AccountNames,
) -> io::Result<EntryInfo> {
    let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let own = FileType::from_raw_mode(stat.st_mode);
    let mut entry = EntryInfo {
        name: path.file_name().unwrap_or(OsStr::new("/")).to_string_lossy().into_owned(),
        kind: file_kind(own),
        path: path.to_string_lossy().into_owned(),
        size: stat.st_size,
        mode: stat.st_mode & 0o777,
        permissions: permissions(&stat),
        owner: names.user(stat.st_uid),
        group: names.group(stat.st_gid),
        modified_time: modified(&stat),
        symlink_target: None,
        metadata: Default::default(),
        is_symlink: own == FileType::Symlink,
    };
    match own {
        FileType::Symlink => {
            entry.symlink_target =
                Some(link_target(directory, name, path)?.to_string_lossy().into_owned());
            if let Ok(target) = statat(directory, name, AtFlags::empty()) {
                entry.kind = file_kind(FileType::from_raw_mode(target.st_mode));
                entry.mode = target.st_mode & 0o777;
            }
        }
        // The attributes are read by a path below the directory's descriptor, because opening the
        // file could block or be denied.
        FileType::RegularFile => {
            entry.metadata = metadata::read_metadata(&descriptor_path(directory, name))
        }
        _ => {}
    }
    Ok(entry)
}

/// Returns the target of a symbolic link, with all links resolved. If the target does not exist,
/// returns the text of the link as an absolute path.
fn link_target(directory: BorrowedFd<'_>, name: &OsStr, path: &Path) -> io::Result<PathBuf> {
    let text = readlinkat(directory, name, Vec::new())?;
    let said = path.parent().unwrap_or(path).join(OsStr::from_bytes(text.as_bytes()));
    Ok(fs_err::canonicalize(descriptor_path(directory, name)).unwrap_or(said))
}

/// Returns a path to `name` in an open directory, for system calls that have no variant with a
/// descriptor.
fn descriptor_path(directory: BorrowedFd<'_>, name: &OsStr) -> PathBuf {
    Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name)
}

fn file_kind(file: FileType) -> Kind {
    match file {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        _ => Kind::Unspecified,
    }
}

fn modified(stat: &Stat) -> Option<String> {
    let nanoseconds = i32::try_from(stat.st_mtime_nsec).ok()?;
    #[expect(
        clippy::useless_conversion,
        reason = "the width of this field differs between architectures"
    )]
    Timestamp::new(stat.st_mtime.into(), nanoseconds).ok().map(|time| time.to_string())
}

/// Returns the file type and mode as letters, in the format of Go's `fs.FileMode`, as envd does. A
/// symbolic link begins with `L`.
fn permissions(stat: &Stat) -> String {
    let mut letters = String::new();
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => letters.push('d'),
        FileType::Symlink => letters.push('L'),
        FileType::BlockDevice | FileType::CharacterDevice => letters.push('D'),
        FileType::Fifo => letters.push('p'),
        FileType::Socket => letters.push('S'),
        FileType::RegularFile | FileType::Unknown => {}
    }
    for (bit, letter) in [(0o4000, 'u'), (0o2000, 'g')] {
        if stat.st_mode & bit != 0 {
            letters.push(letter);
        }
    }
    if FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice {
        letters.push('c');
    }
    if stat.st_mode & 0o1000 != 0 {
        letters.push('t');
    }
    if letters.is_empty() {
        letters.push('-');
    }
    for (position, letter) in "rwxrwxrwx".chars().enumerate() {
        letters.push(if stat.st_mode & (0o400 >> position) != 0 { letter } else { '-' });
    }
    letters
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn described(path: &Path) -> EntryInfo {
        describe(path, &AccountNames::load()).expect("is there")
    }

    #[test]
    fn a_file_is_described_by_its_own_attributes() {
        let root = tempfile::tempdir().expect("makes a directory");
        let path = root.path().join("a.txt");
        fs_err::write(&path, "hello").expect("writes");
        fs_err::set_permissions(&path, PermissionsExt::from_mode(0o640)).expect("sets the mode");
        let entry = described(&path);
        assert_eq!(
            (entry.name.as_str(), entry.kind, entry.size, entry.mode),
            ("a.txt", Kind::File, 5, 0o640)
        );
        assert_eq!(entry.permissions, "-rw-r-----");
        assert_eq!(entry.path, path.to_string_lossy());
        assert!(entry.modified_time.expect("has a time").ends_with('Z'));
        assert!(!entry.is_symlink);
        assert_eq!(described(Path::new("/")).name, "/");
    }

    #[test]
    fn a_symbolic_link_is_described_by_its_target_and_marked_as_a_link() {
        let root = tempfile::tempdir().expect("makes a directory");
        let path = root.path().canonicalize().expect("resolves");
        fs_err::create_dir(path.join("directory")).expect("makes a directory");
        std::os::unix::fs::symlink("directory", path.join("link")).expect("makes a link");
        std::os::unix::fs::symlink("nowhere", path.join("dangling")).expect("makes a link");

        let link = described(&path.join("link"));
        assert_eq!((link.kind, link.is_symlink), (Kind::Directory, true));
        assert_eq!(
            link.symlink_target.expect("leads somewhere"),
            path.join("directory").to_string_lossy()
        );
        assert_eq!(link.permissions, "Lrwxrwxrwx");
        let dangling = described(&path.join("dangling"));
        assert_eq!((dangling.kind, dangling.is_symlink), (Kind::Symlink, true));
        assert_eq!(
            dangling.symlink_target.expect("says where"),
            path.join("nowhere").to_string_lossy()
        );
    }

    #[test]
    fn a_missing_file_is_not_found() {
        let failure =
            describe(Path::new("/nonexistent/x"), &AccountNames::load()).expect_err("is not there");
        assert_eq!(failure.code, ringfence_proto::code::Code::NotFound);
    }
}
