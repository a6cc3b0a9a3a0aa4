//! Record of a copied workspace: what both sides had in common after the last sync. The record is a
//! private file in the sandbox's own directory on the host.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ringfence_proto::bytes::Base64Bytes;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use serde::{Deserialize, Serialize};

use super::entry::RecordedEntry;
use super::rules::CopyRules;
use crate::view::WatchedPaths;
use crate::write_private_file;

const RECORD_FILE: &str = "workspace.json";
const LOCK_FILE: &str = "workspace.lock";

/// Record of a copied workspace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "SerializedRecord", into = "SerializedRecord")]
pub(super) struct SyncRecord {
    /// The workspace on the host, as a path without links.
    pub(super) workspace: PathBuf,
    /// The workspace in the sandbox.
    pub(super) inside: String,
    pub(super) rules: CopyRules,
    /// State at the start of the paths that decide what programs on the host execute.
    pub(super) watched: WatchedPaths,
    entries: BTreeMap<PathBuf, RecordedEntry>,
}

/// Form of a record in its file. Paths need not be UTF-8.
#[derive(Debug, Serialize, Deserialize)]
struct SerializedRecord {
    workspace: Base64Bytes,
    inside: String,
    rules: CopyRules,
    watched: WatchedPaths,
    entries: Vec<(Base64Bytes, RecordedEntry)>,
}

impl SyncRecord {
    /// Makes the record of a workspace that was not sent yet.
    pub(super) fn new(
        workspace: &Path,
        inside: &str,
        rules: CopyRules,
        watched: WatchedPaths,
    ) -> SyncRecord {
        let (workspace, inside) = (workspace.to_owned(), inside.to_owned());
        SyncRecord { workspace, inside, rules, watched, entries: BTreeMap::new() }
    }

    /// Reads the record in the directory of a sandbox.
    pub(super) fn read(directory: &Path) -> io::Result<SyncRecord> {
        Ok(serde_json::from_slice(&fs_err::read(directory.join(RECORD_FILE))?)?)
    }

    /// Writes the record, completely or not at all.
    pub(super) fn write(&self, directory: &Path) -> io::Result<()> {
        write_private_file(&directory.join(RECORD_FILE), &serde_json::to_string(self)?)
    }

    pub(super) fn entry(&self, path: &Path) -> Option<&RecordedEntry> {
        self.entries.get(path)
    }

    pub(super) fn insert(&mut self, path: PathBuf, entry: RecordedEntry) {
        self.entries.insert(path, entry);
    }

    pub(super) fn remove(&mut self, path: &Path) {
        self.entries.remove(path);
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.entries.keys()
    }
}

impl From<SerializedRecord> for SyncRecord {
    fn from(record: SerializedRecord) -> SyncRecord {
        let path = |bytes: Base64Bytes| PathBuf::from(OsStr::from_bytes(&bytes.0));
        let SerializedRecord { workspace, inside, rules, watched, entries } = record;
        let entries = entries.into_iter().map(|(name, entry)| (path(name), entry)).collect();
        SyncRecord { workspace: path(workspace), inside, rules, watched, entries }
    }
}

impl From<SyncRecord> for SerializedRecord {
    fn from(record: SyncRecord) -> SerializedRecord {
        let bytes = |path: PathBuf| Base64Bytes(path.into_os_string().into_encoded_bytes());
        let SyncRecord { workspace, inside, rules, watched, entries } = record;
        let entries = entries.into_iter().map(|(path, entry)| (bytes(path), entry)).collect();
        SerializedRecord { workspace: bytes(workspace), inside, rules, watched, entries }
    }
}

/// Lock of a record, which one sync at a time holds.
#[derive(Debug)]
pub(super) struct RecordLock {
    _lock: OwnedFd,
}

impl RecordLock {
    /// Waits for the lock.
    pub(super) fn take(directory: &Path) -> io::Result<RecordLock> {
        let lock = open_lock(directory, OFlags::CREATE)?;
        flock(&lock, FlockOperation::LockExclusive)?;
        Ok(RecordLock { _lock: lock })
    }

    /// Tells whether a sync holds the lock.
    pub(super) fn is_held(directory: &Path) -> bool {
        open_lock(directory, OFlags::empty()).is_ok_and(|lock| {
            flock(&lock, FlockOperation::NonBlockingLockShared)
                == Err(rustix::io::Errno::WOULDBLOCK)
        })
    }
}

fn open_lock(directory: &Path, creation: OFlags) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | creation;
    Ok(open(directory.join(LOCK_FILE), flags, Mode::RUSR | Mode::WUSR)?)
}

#[cfg(test)]
mod tests {
    use super::super::entry::{EntryContent, FileStamp};
    use super::*;

    #[test]
    fn a_record_is_private_and_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = Path::new(OsStr::from_bytes(b"/w/\xff"));
        let mut record =
            SyncRecord::new(path, "/workspace", CopyRules::default(), WatchedPaths::default());
        let stamp = FileStamp { inode: 7, size: 1, modified: (1, 2), changed: (3, 4) };
        let entry = RecordedEntry {
            content: EntryContent::File { size: 1, digest: [3; 32] },
            host_mode: 0o600,
            inside_mode: 0o644,
            stamp: Some(stamp),
        };
        record.insert(OsStr::from_bytes(b"a\xfe\n").into(), entry);
        record.write(directory.path()).unwrap();
        assert_eq!(SyncRecord::read(directory.path()).unwrap(), record);
        let file = fs_err::metadata(directory.path().join(RECORD_FILE)).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::mode(&file) & 0o777, 0o600);
    }

    #[test]
    fn one_sync_at_a_time_holds_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        assert!(!RecordLock::is_held(directory.path()));
        assert_eq!(fs_err::read_dir(directory.path()).unwrap().count(), 0);
        let lock = RecordLock::take(directory.path()).unwrap();
        assert!(RecordLock::is_held(directory.path()));
        drop(lock);
        assert!(!RecordLock::is_held(directory.path()));
    }
}
