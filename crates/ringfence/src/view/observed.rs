//! Access to files that sandboxed code may have arranged, with a record of each look.
//!
//! Only "no such file" and "not a directory" mean that a path is absent. Every other failure is
//! reported, because a directory that cannot be searched may hold anything. Everything that was
//! looked at is recorded with its identity. A later check then tells, with one system call per
//! path, whether the same search could have another result.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{
    AtFlags, CWD, FileType, FsWord, Mode, OFlags, Stat, fstat, openat, statat, statfs,
};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::visible_names::lies_in;

/// Maximum number of links on the way of a path, as in the kernel (path_resolution(7)).
const MAX_LINKS: usize = 40;
/// Length in bytes, including the NUL, beyond which a path cannot be looked up
/// (path_resolution(7)). The file may exist anyway: a program in a directory on the way has a
/// shorter path for it.
const PATH_MAX: usize = 4096;
/// Maximum length of a file name in bytes.
const NAME_MAX: usize = 255;
/// File systems whose directories have two links, and one more for each subdirectory: ext4, XFS and
/// tmpfs (statfs(2)). Others give every directory one link, or any number.
const COUNTING_FILE_SYSTEMS: [FsWord; 3] = [0xEF53, 0x5846_5342, 0x0102_1994];
/// Time within which a change after a look can leave the same time stamp, because kernels count
/// time stamps in ticks.
const TIMESTAMP_GRANULARITY_NANOS: i64 = 20_000_000;
/// The same for a time stamp without nanoseconds, which may come from a file system with whole
/// seconds.
const WHOLE_SECOND_GRANULARITY_NANOS: i64 = 2_000_000_000;

/// Kind of file at a path, without following links.
#[derive(Debug, Clone, PartialEq, Eq)]
enum NodeKind {
    Absent,
    Directory,
    File,
    Link(PathBuf),
    Other,
    /// The path cannot be looked up.
    Denied,
}

/// Identity of a file, as far as a search depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ObservedIdentity {
    Absent,
    /// The search went through this directory, or saw that this file exists.
    Passed {
        device: u64,
        inode: u64,
        mode: u32,
    },
    /// The search read this file, listed this directory or followed this link.
    Read {
        device: u64,
        inode: u64,
        mode: u32,
        size: i64,
        changed: FileTime,
    },
    Denied,
}

/// End of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TraceEnd {
    /// The path exists. `path` is its form without links.
    At { path: PathBuf, is_directory: bool },
    /// Nothing exists at this path, whose existing part has no links.
    Missing(PathBuf),
    /// A file is at this path, where a directory is needed.
    BelowFile(PathBuf),
    /// This directory cannot be searched.
    Denied(PathBuf),
}

/// Result of following a path link by link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PathTrace {
    /// Links on the way, each with its own path and its target text.
    pub(super) links: Vec<(PathBuf, PathBuf)>,
    pub(super) end: TraceEnd,
}

/// File that exists but cannot be read.
#[derive(Debug)]
pub(super) struct Unreadable {
    pub(super) path: PathBuf,
    pub(super) source: io::Error,
}

/// Entries of a directory, sorted by name.
pub(super) type Listing = Rc<Vec<(OsString, FileType)>>;

/// Entries of a directory that lead further.
#[derive(Debug, Default)]
pub(super) struct DirectoryScan {
    pub(super) links: Vec<PathBuf>,
    pub(super) directories: Vec<PathBuf>,
    /// `true` if an entry is called `HEAD`, as in every repository.
    pub(super) has_head: bool,
    /// `true` if an entry is called `.git`.
    pub(super) has_git: bool,
    /// `true` if the directory has no subdirectories. Such a directory was not listed.
    pub(super) is_leaf: bool,
}

/// Walk through all directories of a tree except those called `.git`. Links are not followed.
pub(super) struct TreeWalk {
    pending: VecDeque<PathBuf>,
    count: usize,
    /// Device of a file system that counts the subdirectories of a directory, so that directories
    /// without any are known.
    counting_device: Option<u64>,
}

/// Directory that a [`TreeWalk`] has reached.
#[derive(Debug)]
pub(super) struct WalkedDirectory {
    pub(super) path: PathBuf,
    /// Entries of the directory, or `None` if it cannot be listed.
    pub(super) scan: Option<DirectoryScan>,
}

impl TreeWalk {
    pub(super) fn new(root: &Path) -> TreeWalk {
        let is_counting =
            statfs(root).is_ok_and(|system| COUNTING_FILE_SYSTEMS.contains(&system.f_type));
        let counting_device = statat(CWD, root, AtFlags::empty()).ok().filter(|_| is_counting);
        let counting_device = counting_device.map(|found| found.st_dev);
        TreeWalk { pending: VecDeque::from([root.to_path_buf()]), count: 0, counting_device }
    }

    /// Returns the number of directories so far.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Returns the next directory, those near the root first.
    pub(super) fn next_directory(&mut self) -> Option<WalkedDirectory> {
        let path = self.pending.pop_front()?;
        self.count += 1;
        let looked = self
            .counting_device
            .map(|device| (device, statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW)));
        let is_leaf = match looked {
            Some((device, Ok(found))) => found.st_dev == device && found.st_nlink == 2,
            _ => false,
        };
        if is_leaf {
            return Some(WalkedDirectory {
                path,
                scan: Some(DirectoryScan { is_leaf, ..DirectoryScan::default() }),
            });
        }
        let scan = match scan_directory(&path) {
            Err(Errno::NOENT | Errno::NOTDIR) => Some(DirectoryScan::default()),
            scanned => scanned.ok(),
        };
        let directories = scan.iter().flat_map(|scan| &scan.directories);
        self.pending.extend(directories.filter(|directory| !directory.ends_with(".git")).cloned());
        Some(WalkedDirectory { path, scan })
    }
}

/// Time stamp of the file system, in seconds and nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct FileTime(i64, i64);

impl FileTime {
    const END: FileTime = FileTime(i64::MAX, 0);

    /// Returns the time stamp that a file would get now.
    pub(super) fn now() -> FileTime {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        FileTime(now.tv_sec, now.tv_nsec)
    }

    #[expect(
        clippy::useless_conversion,
        reason = "the width of these fields differs between architectures"
    )]
    fn from_stat(stat: &Stat) -> FileTime {
        FileTime(i64::from(stat.st_ctime), i64::try_from(stat.st_ctime_nsec).unwrap_or(0))
    }

    /// Returns the time of the last change of a file, directory or link itself, or `None` if it
    /// does not exist. Returns the end of time if the path cannot be looked at.
    fn from_existing(path: &Path) -> Option<FileTime> {
        match statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Some(FileTime::from_stat(&found)),
            Err(Errno::NOENT | Errno::NOTDIR) => None,
            Err(_) => Some(FileTime::END),
        }
    }

    /// Returns the time of the last change of a file, directory or link itself, or the end of time
    /// if it is gone.
    pub(super) fn from_change(path: &Path) -> FileTime {
        FileTime::from_existing(path).unwrap_or(FileTime::END)
    }

    /// Tells whether this may be the time of a change after `began`. A time stamp without
    /// nanoseconds may have lost them, because some file systems keep whole seconds.
    fn may_follow(self, began: FileTime) -> bool {
        let FileTime(seconds, nanoseconds) = self;
        self >= began || nanoseconds == 0 && seconds == began.0
    }

    /// Tells whether a change after `now` gets a later time stamp. Some file systems keep whole
    /// seconds.
    fn is_before(self, now: FileTime) -> bool {
        let FileTime(seconds, nanoseconds) = self;
        let granularity = if nanoseconds == 0 {
            WHOLE_SECOND_GRANULARITY_NANOS
        } else {
            TIMESTAMP_GRANULARITY_NANOS
        };
        let age = i128::from(now.0 - seconds) * 1_000_000_000 + i128::from(now.1 - nanoseconds);
        age > i128::from(granularity)
    }
}

/// Tells whether a file, directory or link is gone or may have changed since `began`.
pub(super) fn is_changed_since(path: &Path, began: FileTime) -> bool {
    FileTime::from_change(path).may_follow(began)
}

/// Tells whether a file, directory or link exists and may have changed since `began`.
pub(super) fn is_present_and_changed_since(path: &Path, began: FileTime) -> bool {
    FileTime::from_existing(path).is_some_and(|changed| changed.may_follow(began))
}

/// Tells whether no file, directory or link exists at a path.
pub(super) fn is_absent(path: &Path) -> bool {
    FileTime::from_existing(path).is_none()
}

/// Tells whether `path` was certainly at its place in `tree` at the time `began`. If a file is
/// moved, the file and the directory that it is moved to get a new time of change. A directory also
/// gets a new time if a file is made in it, so only both times together show a move.
fn existed_before(tree: &Path, path: &Path, began: FileTime) -> bool {
    let below = path.ancestors().take_while(|above| *above != tree);
    let mut steps = below.filter_map(|child| Some((child, child.parent()?)));
    steps.all(|(child, parent)| !is_changed_since(child, began) || !is_changed_since(parent, began))
}

/// Time at which a directory got its repository, compared with a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RepositoryOrigin {
    /// The directory has no repository, or a `.git` file or link leads to the repository and has a
    /// time of change of its own.
    None,
    BeforeRun,
    /// The run may have moved the repository or a part of it here. Files that are moved can be
    /// older than the run.
    Unsure,
}

impl RepositoryOrigin {
    /// Examines a directory of `tree` after a run that began at `began`.
    pub(super) fn find(tree: &Path, directory: &Path, began: FileTime) -> RepositoryOrigin {
        let entry = directory.join(".git");
        let gitdir = match statat(CWD, &entry, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Directory => entry,
            Ok(_) => return RepositoryOrigin::None,
            Err(_) => directory.to_path_buf(),
        };
        let [head, common, objects, references] = ["HEAD", "commondir", "objects", "refs"]
            .map(|name| Some(gitdir.join(name)).filter(|part| !is_absent(part)));
        if head.is_none() || common.is_none() && (objects.is_none() || references.is_none()) {
            return RepositoryOrigin::None;
        }
        let mut parts = [head, common, objects, references].into_iter().flatten();
        if existed_before(tree, &gitdir, began)
            && parts.all(|part| existed_before(&gitdir, &part, began))
        {
            RepositoryOrigin::BeforeRun
        } else {
            RepositoryOrigin::Unsure
        }
    }
}

/// Lists a directory itself, and all files, links and directories below it. Returns `None` if there
/// are more than `limit`, or if a directory cannot be listed.
pub(super) fn paths_below(directory: &Path, limit: usize) -> Option<Vec<PathBuf>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut found = vec![directory.to_path_buf()];
    let mut next = 0;
    while let Some(path) = found.get(next).cloned() {
        next += 1;
        let opened = match openat(CWD, &path, flags, Mode::empty()) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
            opened => opened.ok()?,
        };
        for entry in rustix::fs::Dir::new(opened).ok()? {
            let entry = entry.ok()?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                found.push(path.join(name));
            }
            if found.len() > limit {
                return None;
            }
        }
    }
    Some(found)
}

/// Lists the links and directories in a directory that is not a link. A directory of references can
/// contain thousands of files, so files are skipped without a copy of their names.
pub(super) fn scan_directory(path: &Path) -> Result<DirectoryScan, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut scan = DirectoryScan::default();
    for entry in rustix::fs::Dir::new(openat(CWD, path, flags, Mode::empty())?)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        let kind = match entry.file_type() {
            // Some file systems do not report the kind.
            FileType::Unknown => {
                let found = statat(CWD, path.join(name), AtFlags::SYMLINK_NOFOLLOW);
                found.map_or(FileType::Unknown, |found| FileType::from_raw_mode(found.st_mode))
            }
            kind => kind,
        };
        scan.has_head |= name == "HEAD";
        scan.has_git |= name == ".git";
        match kind {
            FileType::Directory if name != "." && name != ".." => {
                scan.directories.push(path.join(name))
            }
            FileType::Symlink => scan.links.push(path.join(name)),
            _ => {}
        }
    }
    Ok(scan)
}

/// Files of the host, with a record of everything that was looked at.
#[derive(Debug)]
pub(super) struct ObservedFiles {
    /// Directory whose path has no links.
    base: PathBuf,
    /// Results by path. The keys are plain strings, because comparing components takes longer than
    /// looking twice.
    seen: HashMap<OsString, (NodeKind, ObservedIdentity)>,
    /// Entries by directory. While a directory has not changed, its entries have the same names and
    /// kinds.
    listed: HashMap<OsString, Listing>,
    /// Directories whose paths have no symbolic links.
    direct: HashSet<OsString>,
    /// Identities from an earlier search that still hold.
    kept: Vec<(PathBuf, ObservedIdentity)>,
    /// Time of the start of the search, by the clock of file time stamps.
    began: FileTime,
}

impl ObservedFiles {
    /// Begins a search. No component of `base` is a symbolic link.
    pub(super) fn new(base: &Path) -> ObservedFiles {
        ObservedFiles {
            base: base.to_path_buf(),
            seen: HashMap::new(),
            listed: HashMap::new(),
            direct: HashSet::from([base.into()]),
            kept: Vec::new(),
            began: FileTime::now(),
        }
    }

    /// Follows an absolute path to its end.
    pub(super) fn trace(&mut self, path: &Path) -> PathTrace {
        if let Some(end) = self.trace_directly(path) {
            return PathTrace { links: Vec::new(), end };
        }
        let mut links = Vec::new();
        let mut pending: Vec<OsString> = Vec::new();
        let mut so_far = PathBuf::from("/");
        let push = |pending: &mut Vec<OsString>, path: &Path| {
            pending.extend(path.components().rev().filter_map(|component| match component {
                Component::Normal(name) => Some(name.to_owned()),
                Component::ParentDir => Some(OsString::from("..")),
                _ => None,
            }));
        };
        match path.strip_prefix(&self.base) {
            Ok(rest) => {
                so_far.clone_from(&self.base);
                push(&mut pending, rest);
            }
            Err(_) => push(&mut pending, path),
        }
        let mut is_directory = true;
        while let Some(name) = pending.pop() {
            if name == ".." {
                so_far.pop();
                continue;
            }
            let above = so_far.clone();
            so_far.push(&name);
            match self.look(&so_far) {
                NodeKind::Directory => is_directory = true,
                NodeKind::Absent => {
                    // The rest of the path cannot exist either, so `..` is resolved by name.
                    while let Some(name) = pending.pop() {
                        if name == ".." {
                            so_far.pop();
                        } else {
                            so_far.push(name);
                        }
                    }
                    return PathTrace { links, end: TraceEnd::Missing(so_far) };
                }
                NodeKind::Link(text) => {
                    if links.len() == MAX_LINKS {
                        return PathTrace { links, end: TraceEnd::Missing(so_far) };
                    }
                    links.push((so_far.clone(), text.clone()));
                    so_far = if text.is_absolute() { PathBuf::from("/") } else { above };
                    push(&mut pending, &text);
                }
                NodeKind::Denied => return PathTrace { links, end: TraceEnd::Denied(above) },
                NodeKind::File | NodeKind::Other if pending.is_empty() => is_directory = false,
                NodeKind::File | NodeKind::Other => {
                    return PathTrace { links, end: TraceEnd::BelowFile(so_far) };
                }
            }
        }
        if is_directory {
            self.direct.insert(so_far.clone().into());
        }
        PathTrace { links, end: TraceEnd::At { path: so_far, is_directory } }
    }

    /// Returns the end of a path whose directory is known, or `None` if the path is a link.
    fn trace_directly(&mut self, path: &Path) -> Option<TraceEnd> {
        let (directory, _) = split_name(path)?;
        if !self.direct.contains(directory) && !self.listed.contains_key(directory) {
            return None;
        }
        let is_directory = match self.look(path) {
            NodeKind::Absent => return Some(TraceEnd::Missing(path.to_path_buf())),
            NodeKind::Directory => true,
            NodeKind::File | NodeKind::Other => false,
            NodeKind::Link(_) => return None,
            NodeKind::Denied => return Some(TraceEnd::Denied(directory.into())),
        };
        if is_directory {
            self.direct.insert(path.into());
        }
        Some(TraceEnd::At { path: path.to_path_buf(), is_directory })
    }

    /// Reads a file of at most `limit` bytes that is not a link. Returns `None` if there is no
    /// regular file.
    pub(super) fn read(&mut self, path: &Path, limit: u64) -> Result<Option<Vec<u8>>, Unreadable> {
        let failed = |source: io::Error| Unreadable { path: path.to_path_buf(), source };
        let Some((mut file, size)) = self.open_with_size(path)? else { return Ok(None) };
        if size > limit {
            return Err(failed(io::Error::other(format!("it is longer than {limit} bytes"))));
        }
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
        // A file that is truncated meanwhile has another identity afterwards, and is then read
        // again.
        let mut length = 0;
        while length < bytes.len() {
            match file.read(&mut bytes[length..]).map_err(failed)? {
                0 => break,
                read => length += read,
            }
        }
        bytes.truncate(length);
        Ok(Some(bytes))
    }

    /// Opens a file that is not a link, for reading. Returns `None` if there is no regular file.
    pub(super) fn open(&mut self, path: &Path) -> Result<Option<File>, Unreadable> {
        Ok(self.open_with_size(path)?.map(|(file, _)| file))
    }

    fn open_with_size(&mut self, path: &Path) -> Result<Option<(File, u64)>, Unreadable> {
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let failed = |error: Errno| Unreadable { path: path.to_path_buf(), source: error.into() };
        // Do not open a device or a pipe, because opening one can have an effect.
        match self.look(path) {
            NodeKind::File => {}
            NodeKind::Denied => return Err(failed(Errno::ACCESS)),
            _ => return Ok(None),
        }
        let file = match openat(CWD, path, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let stat = self.strengthen(path, &file).map_err(failed)?;
        let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        Ok(is_regular.then(|| (File::from(file), size)))
    }

    /// Lists the names and kinds in a directory that is not a link. The result is empty if there is
    /// no directory.
    pub(super) fn list(&mut self, path: &Path) -> Result<Listing, Unreadable> {
        if let Some(listing) = self.listed.get(path.as_os_str()) {
            return Ok(Rc::clone(listing));
        }
        if !matches!(self.look(path), NodeKind::Directory | NodeKind::Denied) {
            return Ok(Listing::default());
        }
        let failed = |error: Errno| Unreadable { path: path.to_path_buf(), source: error.into() };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = match openat(CWD, path, flags, Mode::empty()) {
            Ok(directory) => directory,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Listing::default()),
            Err(error) => return Err(failed(error)),
        };
        self.strengthen(path, &directory).map_err(failed)?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let kind = match entry.file_type() {
                // Some file systems do not report the kind.
                FileType::Unknown => match self.look(&path.join(name)) {
                    NodeKind::Directory => FileType::Directory,
                    NodeKind::Link(_) => FileType::Symlink,
                    _ => FileType::RegularFile,
                },
                kind => kind,
            };
            names.push((name.to_owned(), kind));
        }
        names.sort_by(|one, other| one.0.cmp(&other.0));
        let listing = Rc::new(names);
        self.listed.insert(path.into(), Rc::clone(&listing));
        Ok(listing)
    }

    /// Tells whether anything exists at a path, including a link that leads nowhere.
    pub(super) fn has_name(&mut self, path: &Path) -> bool {
        self.look(path) != NodeKind::Absent
    }

    /// Returns the identities of all paths in `roots` that were looked at, or `None` if a change
    /// could go unnoticed.
    pub(super) fn into_identities(
        self,
        roots: &[PathBuf],
    ) -> Option<Vec<(PathBuf, ObservedIdentity)>> {
        let inside = |path: &Path| roots.iter().any(|root| lies_in(path, root));
        let seen =
            self.seen.into_iter().map(|(path, (_, identity))| (PathBuf::from(path), identity));
        let identities: Vec<_> = seen.chain(self.kept).filter(|(path, _)| inside(path)).collect();
        identities.iter().all(|(_, identity)| identity.is_settled(self.began)).then_some(identities)
    }

    /// Returns the identities of all paths that were looked at, or `None` if a change could go
    /// unnoticed.
    pub(super) fn settled_identities(&self) -> Option<Vec<(PathBuf, ObservedIdentity)>> {
        let is_settled = |identity: &ObservedIdentity| {
            *identity != ObservedIdentity::Denied && identity.is_settled(self.began)
        };
        let seen = self.seen.iter().map(|(path, (_, identity))| (PathBuf::from(path), *identity));
        let identities: Vec<_> = seen.chain(self.kept.iter().cloned()).collect();
        identities.iter().all(|(_, identity)| is_settled(identity)).then_some(identities)
    }

    /// Adds identities from an earlier search that still hold.
    pub(super) fn keep(&mut self, identities: Vec<(PathBuf, ObservedIdentity)>) {
        self.kept = identities;
    }

    fn look(&mut self, path: &Path) -> NodeKind {
        if let Some((kind, _)) = self.seen.get(path.as_os_str()) {
            return kind.clone();
        }
        if let Some(kind) = self.look_in_listing(path) {
            return kind;
        }
        let (kind, identity) = match statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => (NodeKind::Directory, ObservedIdentity::passed(&stat)),
                FileType::RegularFile => (NodeKind::File, ObservedIdentity::passed(&stat)),
                FileType::Symlink => match rustix::fs::readlinkat(CWD, path, Vec::new()) {
                    Ok(text) => {
                        let text = PathBuf::from(OsStr::from_bytes(text.to_bytes()));
                        (NodeKind::Link(text), ObservedIdentity::read(&stat))
                    }
                    Err(_) => (NodeKind::Denied, ObservedIdentity::Denied),
                },
                _ => (NodeKind::Other, ObservedIdentity::passed(&stat)),
            },
            Err(Errno::NAMETOOLONG) if is_too_deep(path) => {
                (NodeKind::Denied, ObservedIdentity::Denied)
            }
            // A name that no file can have is absent, too.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => {
                (NodeKind::Absent, ObservedIdentity::Absent)
            }
            Err(_) => (NodeKind::Denied, ObservedIdentity::Denied),
        };
        self.seen.insert(path.into(), (kind.clone(), identity));
        kind
    }

    /// Returns the kind of a file whose directory was listed. Returns `None` for a link, which has
    /// to be read, and for an entry of unknown kind.
    fn look_in_listing(&self, path: &Path) -> Option<NodeKind> {
        let (directory, name) = split_name(path)?;
        let listing = self.listed.get(directory)?;
        match listing
            .binary_search_by(|(entry, _)| entry.as_os_str().cmp(name))
            .map(|at| listing[at].1)
        {
            Err(_) => Some(NodeKind::Absent),
            Ok(FileType::Directory) => Some(NodeKind::Directory),
            Ok(FileType::RegularFile) => Some(NodeKind::File),
            Ok(_) => None,
        }
    }

    /// Records that the content of an open file or directory was used.
    fn strengthen(&mut self, path: &Path, file: &OwnedFd) -> Result<Stat, Errno> {
        let stat = fstat(file)?;
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => NodeKind::Directory,
            FileType::RegularFile => NodeKind::File,
            _ => NodeKind::Other,
        };
        self.seen.insert(path.into(), (kind, ObservedIdentity::read(&stat)));
        Ok(stat)
    }
}

impl ObservedIdentity {
    fn passed(stat: &Stat) -> ObservedIdentity {
        ObservedIdentity::Passed { device: stat.st_dev, inode: stat.st_ino, mode: stat.st_mode }
    }

    #[expect(
        clippy::useless_conversion,
        reason = "the width of these fields differs between architectures"
    )]
    fn read(stat: &Stat) -> ObservedIdentity {
        ObservedIdentity::Read {
            device: stat.st_dev,
            inode: stat.st_ino,
            mode: stat.st_mode,
            size: i64::from(stat.st_size),
            changed: FileTime::from_stat(stat),
        }
    }

    /// Tells whether a change after `now` would give the file another identity.
    fn is_settled(&self, now: FileTime) -> bool {
        match self {
            ObservedIdentity::Read { changed, .. } => changed.is_before(now),
            _ => true,
        }
    }

    /// Tells whether this is a directory whose entries were listed.
    pub(super) fn is_listed_directory(&self) -> bool {
        match self {
            ObservedIdentity::Read { mode, .. } => {
                FileType::from_raw_mode(*mode) == FileType::Directory
            }
            _ => false,
        }
    }

    /// Tells whether the file at `path` still has this identity.
    pub(super) fn still_holds(&self, path: &Path) -> bool {
        let now = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW);
        match (self, now) {
            (ObservedIdentity::Absent, Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG)) => {
                true
            }
            (ObservedIdentity::Passed { .. }, Ok(stat)) => *self == ObservedIdentity::passed(&stat),
            (ObservedIdentity::Read { .. }, Ok(stat)) => *self == ObservedIdentity::read(&stat),
            _ => false,
        }
    }
}

/// Splits a path into its directory and its file name. Returns `None` if the path does not end in a
/// name.
fn split_name(path: &Path) -> Option<(&OsStr, &OsStr)> {
    let bytes = path.as_os_str().as_bytes();
    let slash = bytes.iter().rposition(|byte| *byte == b'/').filter(|slash| *slash > 0)?;
    let name = &bytes[slash + 1..];
    let is_name = !matches!(name, b"" | b"." | b"..");
    is_name.then(|| (OsStr::from_bytes(&bytes[..slash]), OsStr::from_bytes(name)))
}

/// Tells whether a path is too long although its file name is not.
fn is_too_deep(path: &Path) -> bool {
    let name_length = path.file_name().map_or(0, OsStr::len);
    path.as_os_str().len() + 1 > PATH_MAX && name_length <= NAME_MAX
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn place() -> (tempfile::TempDir, PathBuf) {
        let place = tempfile::tempdir().unwrap();
        let root = fs_err::canonicalize(place.path()).unwrap();
        (place, root)
    }

    #[track_caller]
    fn check(root: &Path, path: &str, links: &[&str], end: TraceEnd) {
        let trace = ObservedFiles::new(root).trace(&root.join(path));
        let found: Vec<_> =
            trace.links.iter().map(|(link, _)| link.strip_prefix(root).unwrap()).collect();
        assert_eq!(found, links.iter().map(Path::new).collect::<Vec<_>>(), "{path}");
        assert_eq!(trace.end, end, "{path}");
    }

    #[test]
    fn a_path_is_followed_through_every_link_to_its_end() {
        let (_place, root) = place();
        fs_err::create_dir_all(root.join("real/deep")).unwrap();
        fs_err::write(root.join("real/deep/file"), "").unwrap();
        symlink("real", root.join("one")).unwrap();
        symlink(root.join("one/deep"), root.join("two")).unwrap();
        symlink("nowhere/at/all", root.join("dangling")).unwrap();
        symlink("turn", root.join("turn")).unwrap();
        let file = TraceEnd::At { path: root.join("real/deep/file"), is_directory: false };
        check(&root, "two/file", &["two", "one"], file.clone());
        check(&root, "one/../real/deep/file", &["one"], file);
        check(
            &root,
            "one/missing/x/../y",
            &["one"],
            TraceEnd::Missing(root.join("real/missing/y")),
        );
        check(&root, "dangling", &["dangling"], TraceEnd::Missing(root.join("nowhere/at/all")));
        check(
            &root,
            "two/file/below",
            &["two", "one"],
            TraceEnd::BelowFile(root.join("real/deep/file")),
        );
        let turns = ObservedFiles::new(&root).trace(&root.join("turn"));
        assert_eq!(
            (turns.links.len(), turns.end),
            (MAX_LINKS, TraceEnd::Missing(root.join("turn")))
        );
    }

    #[test]
    fn a_file_whose_path_is_too_long_may_be_there_and_one_whose_name_is_cannot() {
        let (_place, root) = place();
        let depth = (PATH_MAX - root.as_os_str().len()) / 201;
        let deep = root.join(vec!["d".repeat(200); depth].join("/"));
        fs_err::create_dir_all(&deep).unwrap();
        let mut files = ObservedFiles::new(&root);
        let name = "n".repeat(250);
        assert_eq!(files.trace(&deep.join(name)).end, TraceEnd::Denied(deep));
        let long = root.join("n".repeat(PATH_MAX));
        assert_eq!(files.trace(&long).end, TraceEnd::Missing(long));
    }

    #[test]
    fn a_change_of_anything_that_was_looked_at_is_noticed() {
        let (_place, root) = place();
        let file = root.join("file");
        fs_err::write(&file, "one").unwrap();
        fs_err::create_dir(root.join("listed")).unwrap();
        symlink("file", root.join("link")).unwrap();
        // Wait until the time stamps differ from those of a later change.
        let mut identities = None;
        while identities.is_none() {
            let mut files = ObservedFiles::new(&root);
            assert_eq!(files.read(&file, 8).unwrap().unwrap(), b"one");
            files.list(&root.join("listed")).unwrap();
            files.trace(&root.join("link"));
            files.trace(&root.join("missing/below"));
            identities = files.into_identities(std::slice::from_ref(&root));
        }
        let identities = identities.unwrap();
        let holds = || identities.iter().all(|(path, identity)| identity.still_holds(path));
        let identity_of =
            |wanted: &Path| identities.iter().find(|(path, _)| path == wanted).unwrap().1;
        assert!(holds());
        fs_err::write(root.join("unrelated"), "").unwrap();
        assert!(holds());
        let steps: [(&str, &dyn Fn()); 4] = [
            ("file", &|| fs_err::write(&file, "two").unwrap()),
            ("listed", &|| fs_err::write(root.join("listed/new"), "").unwrap()),
            ("link", &|| {
                fs_err::remove_file(root.join("link")).unwrap();
                symlink("file", root.join("link")).unwrap();
            }),
            ("missing", &|| fs_err::create_dir(root.join("missing")).unwrap()),
        ];
        for (name, change) in steps {
            let path = root.join(name);
            let identity = identity_of(&path);
            assert!(identity.still_holds(&path), "{name}");
            change();
            assert!(!identity.still_holds(&path), "{name}");
        }
    }

    #[test]
    fn a_time_stamp_in_whole_seconds_may_follow_any_moment_of_its_second() {
        let began = FileTime(7, 500);
        let cases =
            [((7, 500), true), ((7, 499), false), ((7, 0), true), ((6, 0), false), ((8, 0), true)];
        for ((seconds, nanoseconds), expected) in cases {
            assert_eq!(
                FileTime(seconds, nanoseconds).may_follow(began),
                expected,
                "{seconds}.{nanoseconds}"
            );
        }
    }

    #[test]
    fn only_a_regular_file_is_read() {
        let (_place, root) = place();
        fs_err::write(root.join("file"), "text").unwrap();
        symlink("file", root.join("link")).unwrap();
        let pipe = root.join("pipe");
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let mut files = ObservedFiles::new(&root);
        assert_eq!(files.read(&root.join("file"), 4).unwrap().unwrap(), b"text");
        assert!(files.read(&root.join("file"), 3).is_err());
        for name in ["link", "pipe", "missing", "."] {
            assert_eq!(files.read(&root.join(name), 8).unwrap(), None, "{name}");
        }
    }
}
