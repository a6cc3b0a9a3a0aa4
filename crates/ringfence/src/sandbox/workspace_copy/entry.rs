//! Entries of a workspace: what a path holds on one side, and what the last sync left there.

use std::path::{Path, PathBuf};

use ringfence_proto::bytes::Base64Bytes;
use ringfence_proto::tree::DIGEST_BYTES;
use serde::{Deserialize, Serialize};

use crate::session::clean;

/// SHA-256 digest of the content of a file.
pub(super) type FileDigest = [u8; DIGEST_BYTES];

/// Prefix of the temporary names that a sync uses on the host.
pub(super) const TEMPORARY_PREFIX: &str = ".ringfence-sync-";
/// Permissions that are carried. Special bits such as set-user-ID are never carried.
pub(super) const PERMISSIONS: u32 = 0o777;
/// Permission of the owner to execute a file.
const OWNER_EXECUTE: u32 = 0o100;

/// Content of a path that can be carried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum EntryContent {
    File { size: u64, digest: FileDigest },
    Directory,
    Link { target: Base64Bytes },
}

/// Content and permissions of a path on one side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PresentEntry {
    pub(super) content: EntryContent,
    pub(super) mode: u32,
}

/// State of a path on one side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SideState {
    Absent,
    Present(PresentEntry),
    /// Something exists that cannot be carried, for this reason.
    Uncarriable(&'static str),
}

/// Times and size of a file on the host. While they are the same, the file is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileStamp {
    pub(super) inode: u64,
    pub(super) size: u64,
    /// Modification and status change, each in seconds and nanoseconds.
    pub(super) modified: (i64, u64),
    pub(super) changed: (i64, u64),
}

/// Path that both sides had in common after the last sync.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RecordedEntry {
    pub(super) content: EntryContent,
    /// Permissions on the host. They can differ from those inside because of the umask.
    pub(super) host_mode: u32,
    pub(super) inside_mode: u32,
    /// Stamp of the host's file. None if the file changed so recently that a later change could
    /// leave the same stamp.
    pub(super) stamp: Option<FileStamp>,
}

impl PresentEntry {
    /// Tells whether two sides hold the same, apart from permissions that the umask decides.
    pub(super) fn is_equivalent(&self, other: &PresentEntry) -> bool {
        self.content == other.content
            && (!matches!(self.content, EntryContent::File { .. })
                || self.mode & OWNER_EXECUTE == other.mode & OWNER_EXECUTE)
    }

    /// Tells whether the entry differs from a recorded content with recorded permissions. The
    /// permissions of directories and links are carried only when these are made.
    pub(super) fn differs(&self, content: &EntryContent, mode: u32) -> bool {
        self.content != *content
            || (matches!(content, EntryContent::File { .. }) && self.mode != mode)
    }
}

impl EntryContent {
    /// Returns the number of bytes of the content.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            EntryContent::File { size, .. } => *size,
            EntryContent::Directory | EntryContent::Link { .. } => 0,
        }
    }
}

/// Returns the number of directories above a relative path.
pub(super) fn depth(path: &Path) -> usize {
    path.components().count().saturating_sub(1)
}

/// Returns the paths ordered so that entries come before the directory that holds them.
pub(super) fn deepest_first(mut paths: Vec<PathBuf>) -> Vec<PathBuf> {
    paths.sort_by(|one, other| other.cmp(one));
    paths
}

/// Returns a path in a form that may be shown.
pub(super) fn shown(path: &Path) -> String {
    clean(&path.to_string_lossy())
}
