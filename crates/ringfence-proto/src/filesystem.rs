//! Messages of the service `filesystem.Filesystem`, which works on files by path. The endpoint
//! `/files` transfers the contents of files.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::process::EmptyMessage;

/// Name of the service, which is the first part of the URL path of each of its methods.
pub const SERVICE: &str = "filesystem.Filesystem";

/// Request that names one path: `Stat`, `MakeDir`, `Remove`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathRequest {
    /// Path, absolute or relative to the user's home directory. A leading `~` stands for the home
    /// directory.
    #[serde(default)]
    pub path: String,
}

/// Request of `Move`, which renames or moves a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveRequest {
    /// Path of the file to move.
    #[serde(default)]
    pub source: String,
    /// New path of the file.
    #[serde(default)]
    pub destination: String,
}

/// Request of `ListDir`, which lists a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListDirRequest {
    /// Path of the directory, absolute or relative to the user's home directory.
    #[serde(default)]
    pub path: String,
    /// Number of directory levels to list. Both 0 and 1 list the directory alone.
    #[serde(default)]
    pub depth: u32,
}

/// Request to watch a directory: `WatchDir`, `CreateWatcher`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchRequest {
    /// Path of the directory, absolute or relative to the user's home directory.
    #[serde(default)]
    pub path: String,
    /// True to watch all directories below `path`, too.
    #[serde(default)]
    pub recursive: bool,
    /// True to describe, in each event, the file as it is when the event is sent.
    #[serde(default)]
    pub include_entry: bool,
    /// True to allow a directory on a network file system. Changes that other machines make there
    /// are not seen.
    #[serde(default)]
    pub allow_network_mounts: bool,
}

/// Identification of a watcher: the answer of `CreateWatcher`, and the request of
/// `GetWatcherEvents` and `RemoveWatcher`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Watcher {
    /// Identifier that `CreateWatcher` returned.
    #[serde(default)]
    pub watcher_id: String,
}

/// Type of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileType {
    /// Any type that the other variants do not name: a FIFO, a socket or a device.
    #[default]
    #[serde(rename = "FILE_TYPE_UNSPECIFIED")]
    Unspecified,
    /// A regular file.
    #[serde(rename = "FILE_TYPE_FILE")]
    File,
    /// A directory, or a link to one.
    #[serde(rename = "FILE_TYPE_DIRECTORY")]
    Directory,
    /// A symbolic link whose target does not exist or cannot be reached.
    #[serde(rename = "FILE_TYPE_SYMLINK")]
    Symlink,
}

/// Description of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EntryInfo {
    /// Last component of the path; `/` for the root directory.
    #[serde(default)]
    pub name: String,
    /// Type of the file; for a symbolic link, the type of its target.
    #[serde(default, rename = "type")]
    pub kind: FileType,
    /// Absolute path of the file.
    #[serde(default)]
    pub path: String,
    /// Length of the file in bytes; for a symbolic link, the length of the link itself.
    #[serde(default, with = "crate::number")]
    pub size: i64,
    /// Permission bits (`0o777`); for a symbolic link, those of its target if the target exists.
    #[serde(default)]
    pub mode: u32,
    /// File type and permission bits as text, in the format of Go's `fs.FileMode`, for example
    /// `-rw-r--r--`. A symbolic link has its own bits here, as in `Lrwxrwxrwx`.
    #[serde(default)]
    pub permissions: String,
    /// Name of the user that owns the file; the user id in decimal if the user has no name.
    #[serde(default)]
    pub owner: String,
    /// Name of the group of the file; the group id in decimal if the group has no name.
    #[serde(default)]
    pub group: String,
    /// Time of the last modification, in the format of RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_time: Option<String>,
    /// Target of a symbolic link as an absolute path, with all links resolved if the target exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symlink_target: Option<String>,
    /// Metadata that the uploader attached with `X-Metadata-*` headers, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// True if the path itself is a symbolic link.
    #[serde(default)]
    pub is_symlink: bool,
}

/// Answer that describes one file: `Stat`, `MakeDir`, `Move`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryResponse {
    /// Description of the file.
    #[serde(default)]
    pub entry: EntryInfo,
}

/// Answer of `ListDir`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntriesResponse {
    /// Descriptions of the files in the directory, sorted by name on each level.
    #[serde(default)]
    pub entries: Vec<EntryInfo>,
}

/// Type of a change to a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventType {
    /// A change that the other variants do not name.
    #[default]
    #[serde(rename = "EVENT_TYPE_UNSPECIFIED")]
    Unspecified,
    /// The file was created, or moved to this path.
    #[serde(rename = "EVENT_TYPE_CREATE")]
    Create,
    /// The contents of the file were written.
    #[serde(rename = "EVENT_TYPE_WRITE")]
    Write,
    /// The file was removed.
    #[serde(rename = "EVENT_TYPE_REMOVE")]
    Remove,
    /// The file was moved away from this path.
    #[serde(rename = "EVENT_TYPE_RENAME")]
    Rename,
    /// The mode, owner, times or other attributes of the file changed.
    #[serde(rename = "EVENT_TYPE_CHMOD")]
    Chmod,
}

/// Event that reports one change to one file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesystemEvent {
    /// Path of the file relative to the watched directory; `.` for the watched directory itself.
    #[serde(default)]
    pub name: String,
    /// Type of the change.
    #[serde(default, rename = "type")]
    pub kind: EventType,
    /// Description of the file as it is now. Present only if `include_entry` was set and the file
    /// exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<EntryInfo>,
}

/// Answer of `GetWatcherEvents`: the events since the previous call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventsResponse {
    /// Events in the order in which they happened.
    #[serde(default)]
    pub events: Vec<FilesystemEvent>,
}

/// Message of a `WatchDir` stream.
#[expect(clippy::large_enum_variant, reason = "one at a time, on its way to or from the wire")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WatchMessage {
    /// The watch is active. This message is always the first.
    Start(EmptyMessage),
    /// A file in the watched directory changed.
    Filesystem(FilesystemEvent),
    /// Message without content, which shows that the stream is alive.
    Keepalive(EmptyMessage),
}

/// Answer of `POST /files` for each file that was written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenFile {
    /// Absolute path of the file.
    #[serde(default)]
    pub path: String,
    /// Last component of the path.
    #[serde(default)]
    pub name: String,
    /// Type of the file, which is always `file`.
    #[serde(default, rename = "type")]
    pub kind: String,
    /// Metadata that the uploader attached with `X-Metadata-*` headers, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}
