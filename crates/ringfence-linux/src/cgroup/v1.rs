//! Groups of version 1: a directory in the hierarchy of each controller, entered by the child
//! itself.
//!
//! A thread that writes `0` to `tasks` moves only itself, which is cheap. Moving a whole process
//! with `cgroup.procs` takes a lock that waits for all processors.

use std::os::fd::OwnedFd;

use fs_err as fs;

use super::directory::{Directory, Setting};
use super::discover::Place;
use super::name::{self, Name};
use super::{Limit, Obstacle, Wanted};

/// File that limits memory and swap together.
pub(super) const SWAP: &str = "memory.memsw.limit_in_bytes";
/// File that limits the buffers of sockets, which no other file of version 1 counts.
///
/// The limit covers TCP, as the name says, and data that waits at UDP sockets to be read. It
/// applies to sockets that are created after it was written.
pub(super) const SOCKETS: &str = "memory.kmem.tcp.limit_in_bytes";

/// Creates a group below this process's own group, so that every limit on this process also applies
/// to the new group.
pub(super) fn make(place: &Place, name: Name) -> Result<Directory, Obstacle> {
    name::sweep(&place.own);
    Directory::make(place.own.join(name.to_string()))
        .map_err(|source| Obstacle::Directory { path: place.own.clone(), source })
}

/// Opens the file through which a child enters the group.
pub(super) fn entrance(directory: &Directory) -> Result<OwnedFd, Obstacle> {
    let tasks = fs::OpenOptions::new().write(true).open(directory.path().join("tasks"));
    let file = tasks
        .map_err(|source| Obstacle::Directory { path: directory.path().to_owned(), source })?;
    Ok(file.into_file().into())
}

/// Returns the settings that must be written for a limit.
pub(super) fn settings(limit: Limit, wanted: &Wanted) -> Vec<Setting> {
    match limit {
        // The order matters, because the limit on memory and swap together may not be below the
        // limit on memory.
        Limit::Memory => wanted.memory_in_pages().map_or_else(Vec::new, |bytes| {
            vec![
                Setting::required("memory.limit_in_bytes", bytes),
                Setting::optional(SWAP, bytes),
                Setting::optional(SOCKETS, wanted.socket_memory()),
            ]
        }),
        Limit::Cpus => wanted.quota().map_or_else(Vec::new, |quota| {
            vec![
                Setting::required("cpu.cfs_period_us", Wanted::PERIOD),
                Setting::required("cpu.cfs_quota_us", quota),
            ]
        }),
        Limit::Processes => {
            wanted.processes.iter().map(|count| Setting::required("pids.max", count)).collect()
        }
        Limit::TreeKill => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_written_as_version_1_spells_them() {
        let wanted = Wanted {
            memory: Some((1 << 20) + 1),
            cpus: Some(1.5),
            processes: Some(7),
            tree_kill: true,
        };
        let settings = Limit::ALL.iter().flat_map(|&limit| settings(limit, &wanted));
        let written: Vec<String> =
            settings.map(|setting| format!("{}={}", setting.file, setting.value)).collect();
        let memory = ["memory.limit_in_bytes=1048576", "memory.memsw.limit_in_bytes=1048576"];
        let sockets = ["memory.kmem.tcp.limit_in_bytes=131072"];
        let others = ["cpu.cfs_period_us=100000", "cpu.cfs_quota_us=150000", "pids.max=7"];
        assert_eq!(written, [&memory[..], &sockets, &others].concat());
    }
}
