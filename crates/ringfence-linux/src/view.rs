//! What a sandbox sees: a tree built from nothing, entry by entry.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What may be done with a part of the host's tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// Read and execute.
    Read,
    /// Read, execute and write.
    Write,
}

/// One step in building the tree. Destinations are absolute paths inside the sandbox; their parents are made
/// when missing, in memory, never on the host's files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    /// A directory in memory.
    Directory {
        /// Where.
        path: PathBuf,
    },
    /// A symbolic link.
    Symlink {
        /// Where.
        path: PathBuf,
        /// What it says.
        target: PathBuf,
    },
    /// A small file in memory, read-only.
    File {
        /// Where.
        path: PathBuf,
        /// What is in it.
        contents: Vec<u8>,
    },
    /// A writable directory in memory, private to the run.
    Scratch {
        /// Where.
        path: PathBuf,
        /// How much it can hold, in bytes.
        size: u64,
        /// Its mode.
        mode: u32,
    },
    /// A part of the host's tree, with every mount below it.
    Bind {
        /// On the host, resolved: no component is a symbolic link.
        source: PathBuf,
        /// Inside.
        destination: PathBuf,
        /// What may be done with it.
        access: Access,
    },
    /// Makes a path of an earlier entry a mount point of its own, so that it cannot be renamed away.
    Pin {
        /// Inside.
        path: PathBuf,
    },
    /// Makes a path of an earlier entry unwritable.
    Protect {
        /// Inside.
        path: PathBuf,
    },
    /// Makes a file or directory of an earlier entry unreadable.
    Hide {
        /// Inside.
        path: PathBuf,
    },
}

/// What a sandbox sees. `/proc` and `/dev` are always there and are not entries.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The steps, in order: a later one may lie inside an earlier one.
    pub entries: Vec<Entry>,
}

impl View {
    /// The paths inside that can be written.
    pub fn writable(&self) -> impl Iterator<Item = &PathBuf> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Scratch { path, .. } => Some(path),
            Entry::Bind { destination, access: Access::Write, .. } => Some(destination),
            _ => None,
        })
    }
}
