//! The files that a sandbox sees: a tree built from nothing, entry by entry.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Access that a sandbox has to a part of the host's tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// Reading and executing.
    Read,
    /// Reading, executing and writing.
    Write,
}

/// One step in building the tree.
///
/// Destinations are absolute paths inside the sandbox. Missing parents are created in memory, never
/// on the host's files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    /// A directory in memory.
    Directory {
        /// Path of the directory inside the sandbox.
        path: PathBuf,
    },
    /// A symbolic link.
    Symlink {
        /// Path of the link inside the sandbox.
        path: PathBuf,
        /// Text of the link; the target need not exist.
        target: PathBuf,
    },
    /// A small read-only file in memory.
    File {
        /// Path of the file inside the sandbox.
        path: PathBuf,
        /// Complete contents of the file.
        contents: Vec<u8>,
    },
    /// A writable directory in memory, private to the run.
    Scratch {
        /// Path of the mount point inside the sandbox.
        path: PathBuf,
        /// Capacity in bytes.
        size: u64,
        /// Permission bits of the directory, such as `0o1777`.
        mode: u32,
    },
    /// A part of the host's tree, with every mount below it.
    Bind {
        /// Path on the host, resolved: no component is a symbolic link.
        source: PathBuf,
        /// Path of the mount point inside the sandbox.
        destination: PathBuf,
        /// Access that the sandbox has below `destination`.
        access: Access,
    },
    /// A path of an earlier entry that becomes a mount point of its own, so that it cannot be
    /// renamed away.
    Pin {
        /// Path inside the sandbox.
        path: PathBuf,
    },
    /// A path of an earlier entry that becomes unwritable.
    Protect {
        /// Path inside the sandbox.
        path: PathBuf,
    },
    /// A file or directory of an earlier entry that becomes unreadable.
    Hide {
        /// Path inside the sandbox.
        path: PathBuf,
    },
}

/// The tree that a sandbox sees. `/proc` and `/dev` are always present and are not entries.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// Steps in the order in which they are applied: a later entry may lie inside an earlier entry.
    pub entries: Vec<Entry>,
}

/// Unreadable parts of `/proc`: they reveal facts about the host, or control the host.
const PROC_HIDDEN: [&str; 7] =
    ["kcore", "keys", "timer_list", "sched_debug", "latency_stats", "scsi", "acpi"];
/// Parts of `/proc` that only root's user id can read, and that reveal the layout of the kernel's
/// memory.
const PROC_HIDDEN_FROM_ROOT: [&str; 6] =
    ["kpagecgroup", "kpagecount", "kpageflags", "pagetypeinfo", "slabinfo", "vmallocinfo"];
/// Unwritable parts of `/proc`: through them, root's user id alone could change the kernel.
const PROC_PROTECTED: [&str; 5] = ["bus", "fs", "irq", "sys", "sysrq-trigger"];

impl Entry {
    /// Returns the path inside the sandbox that the entry applies to.
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

/// Capacity of a private `/dev/shm`, in bytes.
pub const SHARED_MEMORY_SIZE: u64 = 1 << 30;
/// Bytes of a file system in memory per inode that it may have. Because every non-empty file
/// occupies a page of this size, such files reach the size limit first.
const BYTES_PER_INODE: u64 = 4096;
/// Inodes that even the smallest file system in memory may have.
const MIN_INODES: u64 = 64;

/// Returns how many inodes a file system in memory of `size` bytes may have.
///
/// The bound is needed because an empty file uses no space of the file system, but about a kilobyte
/// of the kernel's memory. Linux 6.6 gave files in memory extended attributes; since then the
/// length of each attribute is charged to the same bound (mm/shmem.c).
pub fn inode_limit(size: u64) -> u64 {
    (size / BYTES_PER_INODE).max(MIN_INODES)
}

impl View {
    /// Name, in the root, of the directory that is mounted over hidden directories.
    pub const COVER_DIRECTORY: &'static str = ".hidden-directory";
    /// Name, in the root, of the file that is mounted over hidden files.
    pub const COVER_FILE: &'static str = ".hidden-file";

    /// Returns the entries that hide and protect parts of the fresh `/proc` of every view.
    ///
    /// A kernel may lack some of these paths.
    pub fn proc_entries() -> Vec<Entry> {
        let from_root: &[&str] =
            if rustix::process::geteuid().is_root() { &PROC_HIDDEN_FROM_ROOT } else { &[] };
        let path = |name: &&str| Path::new("/proc").join(name);
        let hidden =
            PROC_HIDDEN.iter().chain(from_root).map(|name| Entry::Hide { path: path(name) });
        hidden
            .chain(PROC_PROTECTED.iter().map(|name| Entry::Protect { path: path(name) }))
            .collect()
    }

    /// Returns the paths inside the sandbox that can be written.
    pub fn writable(&self) -> impl Iterator<Item = &PathBuf> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Scratch { path, .. } => Some(path),
            Entry::Bind { destination, access: Access::Write, .. } => Some(destination),
            _ => None,
        })
    }
}
