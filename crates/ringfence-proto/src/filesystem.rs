//! `filesystem.Filesystem`: files by path. Their contents go over `/files`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::process::Empty;

/// The service's name, the first part of a method's path.
pub const SERVICE: &str = "filesystem.Filesystem";

/// Names a path: `Stat`, `MakeDir`, `Remove`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathRequest {
    /// Absolute, or relative to the user's home; `~` is that home.
    #[serde(default)]
    pub path: String,
}

/// Moves a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveRequest {
    /// From.
    #[serde(default)]
    pub source: String,
    /// To.
    #[serde(default)]
    pub destination: String,
}

/// Lists a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListDirRequest {
    /// Which.
    #[serde(default)]
    pub path: String,
    /// How many levels; 0 and 1 are the directory alone.
    #[serde(default)]
    pub depth: u32,
}

/// Watches a directory: `WatchDir`, `CreateWatcher`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchRequest {
    /// Which.
    #[serde(default)]
    pub path: String,
    /// With everything below it.
    #[serde(default)]
    pub recursive: bool,
    /// Whether events tell of the file as it is.
    #[serde(default)]
    pub include_entry: bool,
    /// Whether it may lie on a network file system, whose changes by others are not seen.
    #[serde(default)]
    pub allow_network_mounts: bool,
}

/// Names a watcher.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Watcher {
    /// Its name.
    #[serde(default)]
    pub watcher_id: String,
}

/// What a file is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileType {
    /// Neither.
    #[default]
    #[serde(rename = "FILE_TYPE_UNSPECIFIED")]
    Unspecified,
    /// A regular file.
    #[serde(rename = "FILE_TYPE_FILE")]
    File,
    /// A directory.
    #[serde(rename = "FILE_TYPE_DIRECTORY")]
    Directory,
    /// A symbolic link that leads nowhere.
    #[serde(rename = "FILE_TYPE_SYMLINK")]
    Symlink,
}

/// One file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EntryInfo {
    /// The last part of its path.
    #[serde(default)]
    pub name: String,
    /// What it is; of a link, what it leads to.
    #[serde(default, rename = "type")]
    pub kind: FileType,
    /// Where it is.
    #[serde(default)]
    pub path: String,
    /// How long it is.
    #[serde(default, with = "crate::number")]
    pub size: i64,
    /// Its permission bits.
    #[serde(default)]
    pub mode: u32,
    /// The same as `ls -l` shows them.
    #[serde(default)]
    pub permissions: String,
    /// The user it belongs to, by name.
    #[serde(default)]
    pub owner: String,
    /// The group it belongs to, by name.
    #[serde(default)]
    pub group: String,
    /// When it was last written, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_time: Option<String>,
    /// Where a link leads, resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symlink_target: Option<String>,
    /// What its uploader noted of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Whether the path itself is a link.
    #[serde(default)]
    pub is_symlink: bool,
}

/// Answers with one file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryResponse {
    /// Which.
    #[serde(default)]
    pub entry: EntryInfo,
}

/// Answers with files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntriesResponse {
    /// Which.
    #[serde(default)]
    pub entries: Vec<EntryInfo>,
}

/// What happened to a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventType {
    /// Something else.
    #[default]
    #[serde(rename = "EVENT_TYPE_UNSPECIFIED")]
    Unspecified,
    /// It was made, or moved here.
    #[serde(rename = "EVENT_TYPE_CREATE")]
    Create,
    /// It was written.
    #[serde(rename = "EVENT_TYPE_WRITE")]
    Write,
    /// It was removed.
    #[serde(rename = "EVENT_TYPE_REMOVE")]
    Remove,
    /// It was moved away.
    #[serde(rename = "EVENT_TYPE_RENAME")]
    Rename,
    /// Its mode, owner or times were changed.
    #[serde(rename = "EVENT_TYPE_CHMOD")]
    Chmod,
}

/// Something happened to a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesystemEvent {
    /// Which, relative to the watched directory.
    #[serde(default)]
    pub name: String,
    /// What.
    #[serde(default, rename = "type")]
    pub kind: EventType,
    /// The file as it is now, when that was asked for and it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<EntryInfo>,
}

/// What happened since the last time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventsResponse {
    /// In order.
    #[serde(default)]
    pub events: Vec<FilesystemEvent>,
}

/// A message of a watching stream.
#[expect(clippy::large_enum_variant, reason = "one at a time, on its way to or from the wire")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WatchMessage {
    /// It watches. Always first.
    Start(Empty),
    /// Something happened.
    Filesystem(FilesystemEvent),
    /// Nothing; the stream is alive.
    Keepalive(Empty),
}

/// A file that was written through `/files`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenFile {
    /// Where it is.
    #[serde(default)]
    pub path: String,
    /// The last part of its path.
    #[serde(default)]
    pub name: String,
    /// Always `file`.
    #[serde(default, rename = "type")]
    pub kind: String,
    /// What its uploader noted of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}
