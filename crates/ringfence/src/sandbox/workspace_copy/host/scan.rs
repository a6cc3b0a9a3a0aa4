//! Scan of the workspace on the host.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ringfence_proto::bytes::Base64Bytes;
use rustix::fs::{AtFlags, Dir, FileType, OFlags, Stat, fstat, readlinkat, statat};

use super::super::MAX_COPIED_ENTRIES;
use super::super::entry::{
    EntryContent, FileStamp, PERMISSIONS, PresentEntry, RecordedEntry, SideState, TEMPORARY_PREFIX,
};
use super::super::record::SyncRecord;
use super::super::rules::{CopyRules, PathRule};
use super::{HostTree, READ_FLAGS, digest_file, open_at};

/// Deepest level of a workspace that is copied, because each level takes a descriptor.
const MAX_DEPTH: usize = 128;
/// Time after which a change of a file certainly leaves another stamp. Time stamps are as fine as
/// the clock tick of the kernel, or 2 s on some file systems.
const STAMP_SETTLES: Duration = Duration::from_secs(3);
const SPECIAL: &str = "it is a socket, a pipe or a device";
const UNREADABLE: &str = "it cannot be read on the host";
const TOO_DEEP: &str = "it lies too deep";
const INTERRUPTED: &str =
    "a sync that was interrupted left it; compare it with the file beside it, and remove it";

/// Result of a scan of the workspace, by relative path.
#[derive(Debug, Default)]
pub(in super::super) struct HostScan {
    pub(in super::super) states: BTreeMap<PathBuf, SideState>,
    pub(in super::super) stamps: BTreeMap<PathBuf, FileStamp>,
}

impl HostTree {
    /// Reads the whole workspace without the paths that the rules hide. The digest of a file whose
    /// stamp is the recorded one is taken from the record.
    pub(in super::super) fn scan(
        &self,
        rules: &CopyRules,
        record: &SyncRecord,
    ) -> io::Result<HostScan> {
        let mut scanner = Scanner { rules, record, scan: HostScan::default(), entries: 0 };
        scanner.directory(&self.root, Path::new(""), MAX_DEPTH)?;
        Ok(scanner.scan)
    }
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
