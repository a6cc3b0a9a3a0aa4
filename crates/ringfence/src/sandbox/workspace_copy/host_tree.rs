//! Workspace on the host, as a sync reads and changes it. Every path is opened below a descriptor
//! of the workspace by the kernel's own rules (openat2(2)), and no symbolic link is followed,
//! because other programs, and sandboxes that share the workspace, can plant links meanwhile.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ringfence_proto::bytes::Base64Bytes;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat, fchmod, fstat,
    linkat, mkdirat, openat2, readlinkat, renameat, renameat_with, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::MAX_COPIED_ENTRIES;
use super::entry::{
    EntryContent, FileDigest, FileStamp, PERMISSIONS, PresentEntry, RecordedEntry, SideState,
    TEMPORARY_PREFIX,
};
use super::record::SyncRecord;
use super::rules::{CopyRules, PathRule};

/// Deepest level of a workspace that is copied, because each level takes a descriptor.
const MAX_DEPTH: usize = 128;
/// Time after which a change of a file certainly leaves another stamp. Time stamps are as fine as
/// the clock tick of the kernel, or 2 s on some file systems.
const STAMP_SETTLES: Duration = Duration::from_secs(3);
/// Number of bytes that are read from a file at once.
const READ_BYTES: usize = 128 << 10;
/// Flags with which files are opened. The open does not wait for a pipe that takes the place of a
/// file.
const READ_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);
/// Rules by which paths in the workspace are opened.
const WITHIN: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

const SPECIAL: &str = "it is a socket, a pipe or a device";
const UNREADABLE: &str = "it cannot be read on the host";
const TOO_DEEP: &str = "it lies too deep";
const INTERRUPTED: &str =
    "a sync that was interrupted left it; compare it with the file beside it, and remove it";

/// Workspace of a sandbox on the host.
#[derive(Debug)]
pub(super) struct HostTree {
    root: OwnedFd,
    /// Part of the temporary names that no other sync uses.
    identity: String,
}

/// What a scan of the workspace found, by relative path.
#[derive(Debug, Default)]
pub(super) struct HostScan {
    pub(super) states: BTreeMap<PathBuf, SideState>,
    pub(super) stamps: BTreeMap<PathBuf, FileStamp>,
}

/// Result of a change of one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HostChange {
    Done,
    /// Nothing was changed, for this reason.
    Conflict(&'static str),
}

pub(super) const NOT_AS_SCANNED: &str = "it was changed on the host during the sync";
pub(super) const NOT_EMPTY: &str =
    "it was removed in the sandbox, and holds other files on the host";
pub(super) const NO_DIRECTORY: &str = "a link or a file on the host is in the place of a \
                                       directory above it";

/// File that is complete under a temporary name beside its destination.
#[derive(Debug)]
pub(super) struct StagedEntry {
    parent: OwnedFd,
    temporary: OsString,
    /// Permissions that the entry has on the host.
    pub(super) mode: u32,
    pub(super) file: Option<File>,
    is_placed: bool,
}

impl Drop for StagedEntry {
    fn drop(&mut self) {
        if !self.is_placed {
            // Ignore the error: the next sync names a file that stays.
            let _ = unlinkat(&self.parent, &self.temporary, AtFlags::empty());
        }
    }
}

impl HostTree {
    /// Opens the workspace at an absolute path without links in it.
    pub(super) fn open(workspace: &Path) -> io::Result<HostTree> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat2(CWD, workspace, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
        Ok(HostTree { root, identity: crate::run::identity() })
    }

    /// Reads the whole workspace without the paths that the rules hide. The digest of a file whose
    /// stamp is the recorded one is taken from the record.
    pub(super) fn scan(&self, rules: &CopyRules, record: &SyncRecord) -> io::Result<HostScan> {
        let mut scanner = Scanner { rules, record, scan: HostScan::default(), entries: 0 };
        scanner.directory(&self.root, Path::new(""), MAX_DEPTH)?;
        Ok(scanner.scan)
    }

    /// Opens a file of the workspace for reading.
    pub(super) fn open_file(&self, path: &Path) -> io::Result<(File, Stat)> {
        let file = openat2(&self.root, path, READ_FLAGS, Mode::empty(), WITHIN)?;
        let stat = fstat(&file)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok((file.into(), stat)),
            _ => Err(io::Error::other("it is no longer a regular file")),
        }
    }

    /// Begins a new file beside its destination. The umask restricts its permissions, unless it
    /// replaces a file whose permissions it keeps.
    pub(super) fn stage_file(
        &self,
        path: &Path,
        mode: u32,
        keep_mode: Option<u32>,
        number: u64,
    ) -> io::Result<StagedEntry> {
        let parent = self.make_parent(path)?;
        let temporary = self.temporary(number);
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode & PERMISSIONS);
        let file = openat2(&parent, &temporary, flags, mode, WITHIN)?;
        if let Some(mode) = keep_mode {
            fchmod(&file, Mode::from_raw_mode(mode & PERMISSIONS))?;
        }
        let mode = fstat(&file)?.st_mode & PERMISSIONS;
        Ok(StagedEntry { parent, temporary, mode, file: Some(file.into()), is_placed: false })
    }

    /// Makes a link under a temporary name beside its destination.
    pub(super) fn stage_link(
        &self,
        path: &Path,
        target: &[u8],
        number: u64,
    ) -> io::Result<StagedEntry> {
        let parent = self.make_parent(path)?;
        let temporary = self.temporary(number);
        symlinkat(OsStr::from_bytes(target), &parent, &temporary)?;
        Ok(StagedEntry { parent, temporary, mode: PERMISSIONS, file: None, is_placed: false })
    }

    /// Gives a staged entry its name, if the host still has there what `expected` says.
    pub(super) fn place(
        &self,
        mut staged: StagedEntry,
        path: &Path,
        expected: &SideState,
    ) -> io::Result<HostChange> {
        let name = file_name(path)?;
        let StagedEntry { parent, temporary, .. } = &staged;
        match expected {
            SideState::Uncarriable(_) => return Ok(HostChange::Conflict(NOT_AS_SCANNED)),
            SideState::Absent => match rename_new(parent, temporary, name) {
                Ok(()) => {}
                Err(Errno::EXIST) => return Ok(HostChange::Conflict(NOT_AS_SCANNED)),
                Err(error) => return Err(error.into()),
            },
            SideState::Present(PresentEntry { content: EntryContent::Directory, .. }) => {
                match unlinkat(parent, name, AtFlags::REMOVEDIR) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(Errno::NOTEMPTY | Errno::EXIST) => {
                        return Ok(HostChange::Conflict(NOT_EMPTY));
                    }
                    Err(Errno::NOTDIR) => return Ok(HostChange::Conflict(NOT_AS_SCANNED)),
                    Err(error) => return Err(error.into()),
                }
                match rename_new(parent, temporary, name) {
                    Ok(()) => {}
                    Err(Errno::EXIST) => return Ok(HostChange::Conflict(NOT_AS_SCANNED)),
                    Err(error) => return Err(error.into()),
                }
            }
            SideState::Present(entry) => {
                match renameat_with(parent, temporary, parent, name, RenameFlags::EXCHANGE) {
                    Ok(()) => {
                        // The former entry now has the temporary name, and nobody changes it there.
                        if !is_entry(parent, temporary, entry) {
                            renameat_with(parent, temporary, parent, name, RenameFlags::EXCHANGE)?;
                            return Ok(HostChange::Conflict(NOT_AS_SCANNED));
                        }
                        unlinkat(parent, temporary, AtFlags::empty())?;
                    }
                    Err(Errno::NOENT) => return Ok(HostChange::Conflict(NOT_AS_SCANNED)),
                    // The file system cannot exchange two names.
                    Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                        if !is_entry(parent, name, entry) {
                            return Ok(HostChange::Conflict(NOT_AS_SCANNED));
                        }
                        renameat(parent, temporary, parent, name)?;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        staged.is_placed = true;
        Ok(HostChange::Done)
    }

    /// Makes a directory, if the host still has there what `expected` says.
    pub(super) fn make_directory(
        &self,
        path: &Path,
        mode: u32,
        expected: &SideState,
        number: u64,
    ) -> io::Result<HostChange> {
        if let SideState::Present(PresentEntry { content, .. }) = expected
            && *content != EntryContent::Directory
            && let conflict @ HostChange::Conflict(_) = self.remove(path, expected, number)?
        {
            return Ok(conflict);
        }
        let parent = self.make_parent(path)?;
        // The owner must be able to fill the directory.
        let mode = Mode::from_raw_mode(mode & PERMISSIONS | 0o700);
        match mkdirat(&parent, file_name(path)?, mode) {
            Ok(()) => Ok(HostChange::Done),
            Err(Errno::EXIST) => match open_at(&parent, file_name(path)?, READ_FLAGS) {
                Ok(found) if is_directory(&found) => Ok(HostChange::Done),
                _ => Ok(HostChange::Conflict(NOT_AS_SCANNED)),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// Removes an entry, if the host still has there what `expected` says.
    pub(super) fn remove(
        &self,
        path: &Path,
        expected: &SideState,
        number: u64,
    ) -> io::Result<HostChange> {
        let SideState::Present(entry) = expected else {
            return Ok(HostChange::Conflict(NOT_AS_SCANNED));
        };
        let parent = self.parent(path)?;
        let name = file_name(path)?;
        if entry.content == EntryContent::Directory {
            return match unlinkat(&parent, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => Ok(HostChange::Done),
                Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(HostChange::Conflict(NOT_EMPTY)),
                Err(Errno::NOTDIR) => Ok(HostChange::Conflict(NOT_AS_SCANNED)),
                Err(error) => Err(error.into()),
            };
        }
        let temporary = self.temporary(number);
        match rename_new(&parent, name, &temporary) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(HostChange::Done),
            Err(error) => return Err(error.into()),
        }
        if is_entry(&parent, &temporary, entry) {
            unlinkat(&parent, &temporary, AtFlags::empty())?;
            return Ok(HostChange::Done);
        }
        rename_new(&parent, &temporary, name)?;
        Ok(HostChange::Conflict(NOT_AS_SCANNED))
    }

    fn temporary(&self, number: u64) -> OsString {
        format!("{TEMPORARY_PREFIX}{}-{number}", self.identity).into()
    }

    /// Opens the directory of an entry.
    fn parent(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat2(&self.root, parent.unwrap_or(Path::new(".")), flags, Mode::empty(), WITHIN)
    }

    /// Opens the directory of an entry, and makes the directories that do not exist.
    fn make_parent(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        match self.parent(path) {
            Err(Errno::NOENT) => {}
            opened => return opened,
        }
        let parent = path.parent().unwrap_or(Path::new(""));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut at = openat2(&self.root, ".", flags, Mode::empty(), WITHIN)?;
        for name in parent {
            match mkdirat(&at, name, Mode::from_raw_mode(PERMISSIONS)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
            at = openat2(&at, name, flags, Mode::empty(), WITHIN)?;
        }
        Ok(at)
    }
}

/// Tells whether an error means that a directory above a path is not a directory.
pub(super) fn is_obstructed(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::LOOP | Errno::NOTDIR | Errno::NOENT | Errno::XDEV)
    )
}

/// Renames an entry within a directory, unless the new name exists.
fn rename_new(
    parent: &OwnedFd,
    from: impl AsRef<OsStr>,
    to: impl AsRef<OsStr>,
) -> rustix::io::Result<()> {
    let (from, to) = (from.as_ref(), to.as_ref());
    match renameat_with(parent, from, parent, to, RenameFlags::NOREPLACE) {
        // The file system has no such rename. A hard link fails if the name exists.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            linkat(parent, from, parent, to, AtFlags::empty())?;
            unlinkat(parent, from, AtFlags::empty())
        }
        renamed => renamed,
    }
}

/// Tells whether a name in a directory holds a file or a link as it was scanned.
fn is_entry(parent: &OwnedFd, name: &OsStr, expected: &PresentEntry) -> bool {
    match &expected.content {
        EntryContent::Directory => false,
        EntryContent::Link { target } => {
            readlinkat(parent, name, Vec::new()).is_ok_and(|found| found.as_bytes() == target.0)
        }
        EntryContent::File { size, digest } => {
            let opened = openat2(parent, name, READ_FLAGS, Mode::empty(), WITHIN);
            let Ok(file) = opened else { return false };
            let is_same = |stat: &Stat| {
                FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                    && u64::try_from(stat.st_size) == Ok(*size)
                    && stat.st_mode & PERMISSIONS == expected.mode
            };
            fstat(&file).is_ok_and(|stat| is_same(&stat))
                && digest_file(&mut file.into())
                    .is_ok_and(|(read, found)| (read, &found) == (*size, digest))
        }
    }
}

fn is_directory(file: &OwnedFd) -> bool {
    fstat(file).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

fn file_name(path: &Path) -> io::Result<&OsStr> {
    path.file_name().ok_or_else(|| io::Error::other("it names no file"))
}

/// Digests a file, and returns the number of its bytes.
fn digest_file(file: &mut File) -> io::Result<(u64, FileDigest)> {
    let mut digest = Sha256::new();
    let mut buffer = vec![0; READ_BYTES];
    let mut size = 0;
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok((size, digest.finalize().into()));
        }
        digest.update(&buffer[..read]);
        size += read as u64;
    }
}

fn stamp(stat: &Stat) -> FileStamp {
    FileStamp {
        inode: stat.st_ino,
        size: u64::try_from(stat.st_size).unwrap_or_default(),
        modified: (stat.st_mtime, stat.st_mtime_nsec),
        changed: (stat.st_ctime, stat.st_ctime_nsec),
    }
}

/// Returns a stamp that a later change of the file cannot leave again.
fn settled(stamp: FileStamp) -> Option<FileStamp> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    let limit = i64::try_from(now.checked_sub(STAMP_SETTLES)?.as_secs()).ok()?;
    (stamp.modified.0 < limit && stamp.changed.0 < limit).then_some(stamp)
}

/// Scan of a workspace.
struct Scanner<'a> {
    rules: &'a CopyRules,
    record: &'a SyncRecord,
    scan: HostScan,
    entries: u64,
}

impl Scanner<'_> {
    fn directory(&mut self, directory: &OwnedFd, here: &Path, levels: usize) -> io::Result<()> {
        for name in names(directory)? {
            self.entries += 1;
            if self.entries > MAX_COPIED_ENTRIES {
                return Err(io::Error::other(format!(
                    "it has more than {MAX_COPIED_ENTRIES} files and directories"
                )));
            }
            let name = OsStr::from_bytes(name.as_bytes());
            let path = here.join(name);
            if self.rules.rule(&path) == PathRule::Hidden {
                continue;
            }
            match self.entry(directory, name, &path, levels) {
                Ok(Some(state)) => drop(self.scan.states.insert(path, state)),
                Ok(None) => {}
                // The entry was removed since its directory was read.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    self.scan.states.insert(path, SideState::Uncarriable(UNREADABLE));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the state of an entry, or `None` if it was inserted already.
    fn entry(
        &mut self,
        directory: &OwnedFd,
        name: &OsStr,
        path: &Path,
        levels: usize,
    ) -> io::Result<Option<SideState>> {
        if name.as_bytes().starts_with(TEMPORARY_PREFIX.as_bytes()) {
            return Ok(Some(SideState::Uncarriable(INTERRUPTED)));
        }
        let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let mode = stat.st_mode & PERMISSIONS;
        let present = |content, mode| Ok(Some(SideState::Present(PresentEntry { content, mode })));
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let Some(levels) = levels.checked_sub(1) else {
                    return Ok(Some(SideState::Uncarriable(TOO_DEEP)));
                };
                let below = open_at(directory, name, READ_FLAGS | OFlags::DIRECTORY)?;
                let state = PresentEntry { content: EntryContent::Directory, mode };
                self.scan.states.insert(path.to_owned(), SideState::Present(state));
                self.directory(&below, path, levels)?;
                Ok(None)
            }
            FileType::Symlink => {
                let target = readlinkat(directory, name, Vec::new())?.into_bytes();
                present(EntryContent::Link { target: Base64Bytes(target) }, PERMISSIONS)
            }
            FileType::RegularFile => {
                let found = stamp(&stat);
                if let Some(RecordedEntry {
                    stamp: Some(known),
                    content: content @ EntryContent::File { .. },
                    ..
                }) = self.record.entry(path)
                    && *known == found
                {
                    self.scan.stamps.insert(path.to_owned(), found);
                    return present(content.clone(), mode);
                }
                let file = open_at(directory, name, READ_FLAGS)?;
                let stat = fstat(&file)?;
                if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                    return Ok(Some(SideState::Uncarriable(SPECIAL)));
                }
                let (size, digest) = digest_file(&mut file.into())?;
                if let Some(stamp) = settled(stamp(&stat)).filter(|stamp| stamp.size == size) {
                    self.scan.stamps.insert(path.to_owned(), stamp);
                }
                present(EntryContent::File { size, digest }, stat.st_mode & PERMISSIONS)
            }
            _ => Ok(Some(SideState::Uncarriable(SPECIAL))),
        }
    }
}

fn open_at(directory: impl AsFd, name: &OsStr, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(openat2(directory, name, flags, Mode::empty(), WITHIN)?)
}

/// Returns the names in a directory, sorted.
fn names(directory: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.as_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}
