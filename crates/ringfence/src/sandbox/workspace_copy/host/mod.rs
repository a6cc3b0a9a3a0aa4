//! Workspace on the host, as a sync reads and changes it. Every path is opened below a descriptor
//! of the workspace by the kernel's own rules (openat2(2)), and no symbolic link is followed,
//! because other programs, and sandboxes that share the workspace, can plant links meanwhile.

mod scan;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat, fchmod, fstat, linkat,
    mkdirat, openat2, readlinkat, renameat, renameat_with, symlinkat, unlinkat,
};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::entry::{
    EntryContent, FileDigest, PERMISSIONS, PresentEntry, SideState, TEMPORARY_PREFIX,
};
pub(super) use scan::HostScan;

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

/// Workspace of a sandbox on the host.
#[derive(Debug)]
pub(super) struct HostTree {
    root: OwnedFd,
    /// Part of the temporary names that no other sync uses.
    identity: String,
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

fn open_at(directory: impl AsFd, name: &OsStr, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(openat2(directory, name, flags, Mode::empty(), WITHIN)?)
}
