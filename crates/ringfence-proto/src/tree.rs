//! Listings of directory trees with digests, and requests for parts of a tree. These messages are
//! an extension of ringfence at the endpoint `/tree`; envd has no equivalent.
//!
//! A listing is a stream of lines, each of which is one [`TreeEntry`] as JSON. The contents of
//! files are a stream of chunks: for each requested file, chunks of a four-byte length in network
//! order and as many bytes, and then either [`FILE_END`] or [`FILE_BROKEN`] in place of a length.

use serde::{Deserialize, Serialize};

use crate::bytes::Base64Bytes;

/// Value of the query parameter `list` that asks for a listing with digests.
pub const LIST_DIGESTS: &str = "digests";
/// Value of the query parameter `action` that asks for the contents of files.
pub const ACTION_READ: &str = "read";
/// Value of the query parameter `action` that asks for the removal of entries.
pub const ACTION_REMOVE: &str = "remove";
/// Length of a SHA-256 digest in bytes.
pub const DIGEST_BYTES: usize = 32;
/// Maximum length of a chunk of a file in bytes.
pub const MAX_CHUNK_BYTES: u32 = 1 << 20;
/// Number in place of a chunk's length after a file that was sent completely.
pub const FILE_END: u32 = 0;
/// Number in place of a chunk's length after a file that could not be read, or not completely.
pub const FILE_BROKEN: u32 = u32::MAX;

/// One line of a listing. A directory comes before the entries in it, and paths are relative to the
/// root of the listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TreeEntry {
    /// A regular file.
    File {
        /// Path of the file.
        path: Base64Bytes,
        /// Permissions of the file.
        mode: u32,
        /// Number of bytes that were digested.
        size: u64,
        /// SHA-256 digest of the content.
        digest: Base64Bytes,
    },
    /// Directory, which may be empty.
    Directory {
        /// Path of the directory.
        path: Base64Bytes,
        /// Permissions of the directory.
        mode: u32,
    },
    /// A symbolic link.
    Link {
        /// Path of the link.
        path: Base64Bytes,
        /// Text of the link.
        target: Base64Bytes,
    },
    /// A socket, a FIFO or a device.
    Special {
        /// Path of the file.
        path: Base64Bytes,
    },
    /// A file or a directory that the guest may not read.
    Unreadable {
        /// Path of the file or directory.
        path: Base64Bytes,
    },
    /// A sign of life while a large file is digested.
    Busy,
    /// The end of a complete listing.
    End,
}

/// Request for the contents of files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadFilesRequest {
    /// The files, in the order in which their contents are sent.
    pub files: Vec<RequestedFile>,
}

/// File whose content is requested.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestedFile {
    /// Path of the file, relative to the root of the tree.
    pub path: Base64Bytes,
    /// Number of bytes to send at most.
    pub size: u64,
}

/// Request to remove entries in their given order. A directory is removed only if it is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveEntriesRequest {
    /// Paths of the entries, relative to the root of the tree.
    pub paths: Vec<Base64Bytes>,
}

/// Answer to a request to remove entries.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveEntriesResponse {
    /// Positions in the request of the entries that still exist.
    pub kept: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_listing_survives_serialisation() {
        let path = Base64Bytes(b"a/\xff\n".to_vec());
        let entry = TreeEntry::Link { path, target: Base64Bytes(b"../b".to_vec()) };
        let line = serde_json::to_string(&entry).unwrap();
        assert!(line.starts_with(r#"{"kind":"link","#) && !line.contains('\n'), "{line}");
        assert_eq!(serde_json::from_str::<TreeEntry>(&line).unwrap(), entry);
        assert_eq!(serde_json::to_string(&TreeEntry::End).unwrap(), r#"{"kind":"end"}"#);
    }
}
