use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

use super::*;

const AMPLE_LIMITS: CopyLimits = CopyLimits { bytes: 1 << 20, entries: 1000 };

/// Makes a temporary directory with an empty tree to copy, and returns the paths of the tree and of
/// its copy.
fn new_tree() -> (TempDir, PathBuf, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let (tree, copy) = (directory.path().join("tree"), directory.path().join("copy"));
    fs_err::create_dir(&tree).unwrap();
    (directory, tree, copy)
}

fn copied(tree: &Path, copy: &Path, limits: CopyLimits) -> Result<CopySummary, CopyError> {
    copy_untrusted(tree, copy, limits, &AtomicBool::new(false))
}

/// Returns the names in the temporary directory, sorted.
fn beside(directory: &TempDir) -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> = fs_err::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    names
}

#[test]
fn a_copy_is_what_the_tree_is_and_follows_none_of_its_links() {
    let (directory, tree, copy) = new_tree();
    fs_err::write(directory.path().join("secret"), "not for others").unwrap();
    fs_err::create_dir_all(tree.join("a/closed")).unwrap();
    fs_err::write(tree.join("a/closed/file"), "text").unwrap();
    fs_err::write(tree.join("program"), "#!/bin/sh").unwrap();
    fs_err::hard_link(tree.join("program"), tree.join("a/same")).unwrap();
    symlink("../secret", tree.join("link")).unwrap();
    symlink(directory.path(), tree.join("a/around")).unwrap();
    rustix::fs::mknodat(CWD, tree.join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let _socket = UnixListener::bind(tree.join("socket")).unwrap();
    let then = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 7);
    fs_err::File::open(tree.join("a/closed/file")).unwrap().file().set_modified(then).unwrap();
    fs_err::set_permissions(tree.join("program"), Permissions::from_mode(0o4751)).unwrap();
    fs_err::set_permissions(tree.join("a/closed"), Permissions::from_mode(0o555)).unwrap();
    let set = |name: &str, value: &[u8]| {
        rustix::fs::setxattr(tree.join("program"), name, value, XattrFlags::empty()).is_ok()
    };
    let has_attributes = set("user.note", b"kept");
    // CAP_NET_RAW for every process that executes the file, in the format of capabilities(7).
    let mut right = [0; 20];
    (right[3], right[5]) = (2, 0x20);
    let has_rights = set("security.capability", &right);

    let done = copied(&tree, &copy, AMPLE_LIMITS).unwrap();
    assert_eq!((done.entries, done.left_out), (9, 2));
    assert_eq!(fs_err::read_to_string(copy.join("a/closed/file")).unwrap(), "text");
    assert_eq!(fs_err::metadata(copy.join("a/closed/file")).unwrap().modified().unwrap(), then);
    assert_eq!(fs_err::metadata(copy.join("a/closed")).unwrap().mode() & 0o7777, 0o555);
    let program = fs_err::metadata(copy.join("program")).unwrap();
    assert_eq!(program.mode() & 0o7777, 0o751, "no special bit");
    assert_eq!(
        (program.nlink(), program.ino()),
        (2, fs_err::metadata(copy.join("a/same")).unwrap().ino())
    );
    assert_ne!(program.ino(), fs_err::metadata(tree.join("program")).unwrap().ino());
    assert_eq!(fs_err::read_link(copy.join("link")).unwrap(), Path::new("../secret"));
    assert_eq!(fs_err::read_link(copy.join("a/around")).unwrap(), directory.path());
    assert!(!copy.join("pipe").exists() && !copy.join("socket").exists());
    if has_attributes {
        let mut value = [0; 16];
        let length =
            rustix::fs::getxattr(copy.join("program"), "user.note", &mut value[..]).unwrap();
        assert_eq!(&value[..length], b"kept");
    }
    if has_rights {
        let found =
            |path: &Path| rustix::fs::getxattr(path, "security.capability", &mut [0; 32][..]);
        assert_eq!(found(&tree.join("program")), Ok(right.len()));
        assert_eq!(found(&copy.join("program")), Err(Errno::NODATA));
    }
    // Copy the copy, as is done when a sandbox is started from a snapshot.
    copied(&copy, &directory.path().join("next"), AMPLE_LIMITS).unwrap();
    assert_eq!(beside(&directory), ["copy", "next", "secret", "tree"]);
}

#[test]
fn a_tree_that_is_itself_a_link_is_not_copied() {
    let (directory, tree, copy) = new_tree();
    symlink(&tree, directory.path().join("link")).unwrap();
    let error = copied(&directory.path().join("link"), &copy, AMPLE_LIMITS).unwrap_err();
    assert!(matches!(error, CopyError::Read { .. }), "{error:?}");
    assert_eq!(beside(&directory), ["link", "tree"]);
}

/// A tree must not change while it is copied. If it does, an opened entry may differ from the one
/// that was checked.
#[test]
fn a_file_that_was_replaced_before_its_copy_is_not_opened() {
    let (directory, tree, _) = new_tree();
    fs_err::write(directory.path().join("secret"), "not for others").unwrap();
    fs_err::write(tree.join("file"), "text").unwrap();
    fs_err::create_dir(tree.join("directory")).unwrap();
    symlink("../secret", tree.join("link")).unwrap();
    symlink("..", tree.join("around")).unwrap();
    rustix::fs::mknodat(CWD, tree.join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let opened = |path: &Path| openat(CWD, path, DIRECTORY_FLAGS, Mode::empty()).unwrap();
    let (stop, links, done) = (AtomicBool::new(false), opened(&tree), CopySummary::default());
    let (path, names, value) = (PathBuf::new(), Vec::new(), Vec::new());
    let copier = TreeCopier { limits: AMPLE_LIMITS, stop: &stop, links, path, done, names, value };
    let check = |below: &Path, name: &CStr, kind: FileType, expected: Result<(), Option<Errno>>| {
        let flags = if kind == FileType::Directory { DIRECTORY_FLAGS } else { READ_FLAGS };
        let found =
            copier.open(opened(below).as_fd(), name, flags, kind).map(|_| ()).map_err(|error| {
                match error {
                    CopyError::Read { source, .. } => source.raw_os_error(),
                    other => panic!("{other:?}"),
                }
            });
        assert_eq!(found, expected.map_err(|error| error.map(Errno::raw_os_error)), "{name:?}");
    };
    check(&tree, c"file", FileType::RegularFile, Ok(()));
    check(&tree, c"directory", FileType::Directory, Ok(()));
    check(&tree, c"link", FileType::RegularFile, Err(Some(Errno::LOOP)));
    check(&tree, c"around", FileType::Directory, Err(Some(Errno::NOTDIR)));
    // These entries can be opened, but are not of the expected type.
    check(&tree, c"pipe", FileType::RegularFile, Err(None));
    check(&tree, c"directory", FileType::RegularFile, Err(None));
    // A mount point is not opened, either.
    check(Path::new("/"), c"proc", FileType::Directory, Err(Some(Errno::XDEV)));
}

#[test]
fn attributes_count_as_what_is_in_files_does() {
    let (directory, tree, copy) = new_tree();
    fs_err::write(tree.join("file"), "text").unwrap();
    if rustix::fs::setxattr(tree.join("file"), "user.note", &[1; 1000], XattrFlags::empty())
        .is_err()
    {
        return; // this file system has no extended attributes
    }
    let error = copied(&tree, &copy, CopyLimits { bytes: 1003, ..AMPLE_LIMITS }).unwrap_err();
    assert!(matches!(error, CopyError::TooLarge { limit: 1003 }), "{error:?}");
    assert_eq!(beside(&directory), ["tree"]);
    assert_eq!(
        copied(&tree, &copy, CopyLimits { bytes: 1 << 13, ..AMPLE_LIMITS }).unwrap().entries,
        1
    );
}

#[test]
fn a_hole_costs_nothing_and_stays_one() {
    let (_directory, tree, copy) = new_tree();
    let file = fs_err::File::create(tree.join("sparse")).unwrap();
    file.set_len(1 << 40).unwrap();
    pwrite(file.file(), b"far", (1 << 39) + 5).unwrap();
    let done = copied(&tree, &copy, AMPLE_LIMITS).unwrap();
    assert!((3..1 << 17).contains(&done.bytes), "{done:?}");
    let metadata = fs_err::metadata(copy.join("sparse")).unwrap();
    assert_eq!(metadata.len(), 1 << 40);
    assert!(metadata.blocks() < 1 << 10, "{} blocks", metadata.blocks());
    let (mut found, copied) = ([0; 3], fs_err::File::open(copy.join("sparse")).unwrap());
    pread(copied.file(), &mut found, (1 << 39) + 5).unwrap();
    assert_eq!(&found, b"far");
}

#[test]
fn too_much_is_refused_and_nothing_is_left() {
    let (directory, tree, copy) = new_tree();
    fs_err::create_dir(tree.join("a")).unwrap();
    fs_err::write(tree.join("a/file"), vec![1; 100_000]).unwrap();
    fs_err::write(tree.join("other"), "x").unwrap();
    let check = |limits, expected: &str| {
        let error = copied(&tree, &copy, limits).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.fault()), (expected, Fault::User));
        assert_eq!(beside(&directory), ["tree"]);
    };
    let few = CopyLimits { entries: 2, ..AMPLE_LIMITS };
    check(few, "cannot copy the tree: it has more than 2 files and directories");
    let small = CopyLimits { bytes: 99_999, ..AMPLE_LIMITS };
    check(small, "cannot copy the tree: it has more than 99999 bytes in its files");
    let error = copy_untrusted(&tree, &copy, AMPLE_LIMITS, &AtomicBool::new(true)).unwrap_err();
    assert!(matches!(error, CopyError::Stopped));
    assert_eq!(beside(&directory), ["tree"]);
    copied(&tree, &copy, CopyLimits { bytes: 1 << 17, entries: 3 }).unwrap();
}

#[test]
fn a_tree_that_is_too_deep_is_refused_with_words_and_nothing_is_left() {
    let (directory, tree, copy) = new_tree();
    let mut deepest = openat(CWD, &tree, DIRECTORY_FLAGS, Mode::empty()).unwrap();
    for level in 0..MAX_DEPTH + 2 {
        if level == MAX_DEPTH {
            copied(&tree, &copy, AMPLE_LIMITS).unwrap();
            remove_untrusted(&copy).unwrap();
        }
        mkdirat(&deepest, "deep", Mode::RWXU).unwrap();
        deepest = openat(&deepest, "deep", DIRECTORY_FLAGS, Mode::empty()).unwrap();
    }
    let error = copied(&tree, &copy, AMPLE_LIMITS).unwrap_err();
    assert!(
        error.to_string().starts_with(
            "cannot copy the tree: it is more than 128 directories deep, at `deep/deep"
        )
    );
    assert_eq!(beside(&directory), ["tree"]);
}
