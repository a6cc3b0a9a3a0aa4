//! What a sandbox sees: a tree built from nothing, entry by entry.

use std::path::{Path, PathBuf};

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

/// Parts of `/proc` that tell of the host or steer it: unreadable.
const PROC_HIDDEN: [&str; 7] = ["kcore", "keys", "timer_list", "sched_debug", "latency_stats", "scsi", "acpi"];
/// Parts of `/proc` that root's user id alone can read, and that tell how the kernel's memory is laid out.
const PROC_HIDDEN_FROM_ROOT: [&str; 6] =
    ["kpagecgroup", "kpagecount", "kpageflags", "pagetypeinfo", "slabinfo", "vmallocinfo"];
/// Parts of `/proc` through which root's user id alone could change the kernel: unwritable.
const PROC_PROTECTED: [&str; 5] = ["bus", "fs", "irq", "sys", "sysrq-trigger"];

impl Entry {
    /// Where it is inside.
    pub fn path(&self) -> &Path {
        match self {
            Entry::Directory { path }
            | Entry::Symlink { path, .. }
            | Entry::File { path, .. }
            | Entry::Scratch { path, .. }
            | Entry::Bind { destination: path, .. }
            | Entry::Pin { path }
            | Entry::Protect { path }
            | Entry::Hide { path } => path,
        }
    }
}

/// What `/dev/shm` may hold when it is private.
pub const SHARED_MEMORY_SIZE: u64 = 1 << 30;
/// Bytes of a file system in memory for which it may hold one file: with a page to each, files fill it first.
const BYTES_PER_INODE: u64 = 4096;
/// Inodes that even the smallest file system in memory may have.
const LEAST_INODES: u64 = 64;

/// Returns how many inodes a file system in memory of `size` bytes may have.
///
/// A file without a page costs no space there, and still a kilobyte of the kernel's memory. Since Linux 6.6, when
/// files in memory got extended attributes, an attribute is charged to the same bound by its length (mm/shmem.c).
pub fn inode_limit(size: u64) -> u64 {
    (size / BYTES_PER_INODE).max(LEAST_INODES)
}

impl View {
    /// Name, in the root, of the directory that covers hidden ones.
    pub const COVER_DIRECTORY: &'static str = ".hidden-directory";
    /// Name, in the root, of the file that covers hidden ones.
    pub const COVER_FILE: &'static str = ".hidden-file";

    /// What is hidden and protected in the fresh `/proc` of every view, as far as the kernel has it.
    pub fn of_proc() -> Vec<Entry> {
        let from_root: &[&str] = if rustix::process::geteuid().is_root() { &PROC_HIDDEN_FROM_ROOT } else { &[] };
        let path = |name: &&str| Path::new("/proc").join(name);
        let hidden = PROC_HIDDEN.iter().chain(from_root).map(|name| Entry::Hide { path: path(name) });
        hidden.chain(PROC_PROTECTED.iter().map(|name| Entry::Protect { path: path(name) })).collect()
    }

    /// The paths inside that can be written.
    pub fn writable(&self) -> impl Iterator<Item = &PathBuf> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Scratch { path, .. } => Some(path),
            Entry::Bind { destination, access: Access::Write, .. } => Some(destination),
            _ => None,
        })
    }
}
