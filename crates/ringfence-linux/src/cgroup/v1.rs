//! Groups of version 1: a directory in the hierarchy of each controller, entered by the child
//! itself.
//!
//! A thread that writes `0` to `tasks` moves only itself, which is cheap. Moving a whole process
//! with `cgroup.procs` takes a lock that waits for all processors.

use std::os::fd::OwnedFd;

use fs_err as fs;

use super::directory::{CgroupDirectory, CgroupSetting};
use super::discover::CgroupLocation;
use super::name::{self, CgroupName};
use super::{CgroupLimit, CgroupObstacle, WantedLimits};

/// File that limits memory and swap together.
pub(super) const SWAP_FILE: &str = "memory.memsw.limit_in_bytes";
/// File that limits the buffers of sockets, which no other file of version 1 counts.
///
/// The limit covers TCP, as the name says, and data that waits at UDP sockets to be read. It
/// applies to sockets that are created after it was written.
pub(super) const SOCKET_BUFFER_FILE: &str = "memory.kmem.tcp.limit_in_bytes";

/// Creates a group below this process's own group, so that every limit on this process also applies
/// to the new group.
pub(super) fn create_group(
    place: &CgroupLocation,
    name: CgroupName,
) -> Result<CgroupDirectory, CgroupObstacle> {
    name::sweep(&place.own);
    CgroupDirectory::create(place.own.join(name.to_string()))
        .map_err(|source| CgroupObstacle::Directory { path: place.own.clone(), source })
}

/// Opens the file through which a child enters the group.
pub(super) fn open_tasks_file(directory: &CgroupDirectory) -> Result<OwnedFd, CgroupObstacle> {
    let tasks = fs::OpenOptions::new().write(true).open(directory.path().join("tasks"));
    let file = tasks.map_err(|source| CgroupObstacle::Directory {
        path: directory.path().to_owned(),
        source,
    })?;
    Ok(file.into_file().into())
}

/// Returns the settings that must be written for a limit.
pub(super) fn limit_settings(limit: CgroupLimit, wanted: &WantedLimits) -> Vec<CgroupSetting> {
    match limit {
        // The order matters, because the limit on memory and swap together may not be below the
        // limit on memory.
        CgroupLimit::Memory => wanted.memory_in_pages().map_or_else(Vec::new, |bytes| {
            vec![
                CgroupSetting::required("memory.limit_in_bytes", bytes),
                CgroupSetting::optional(SWAP_FILE, bytes),
                CgroupSetting::optional(SOCKET_BUFFER_FILE, wanted.socket_memory()),
            ]
        }),
        CgroupLimit::Cpus => wanted.quota().map_or_else(Vec::new, |quota| {
            vec![
                CgroupSetting::required("cpu.cfs_period_us", WantedLimits::CPU_PERIOD_MICROS),
                CgroupSetting::required("cpu.cfs_quota_us", quota),
            ]
        }),
        CgroupLimit::Processes => wanted
            .processes
            .iter()
            .map(|count| CgroupSetting::required("pids.max", count))
            .collect(),
        CgroupLimit::TreeKill => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_written_as_version_1_spells_them() {
        let wanted = WantedLimits {
            memory: Some((1 << 20) + 1),
            cpus: Some(1.5),
            processes: Some(7),
            tree_kill: true,
        };
        let settings = CgroupLimit::ALL.iter().flat_map(|&limit| limit_settings(limit, &wanted));
        let written: Vec<String> =
            settings.map(|setting| format!("{}={}", setting.file, setting.value)).collect();
        let memory = ["memory.limit_in_bytes=1048576", "memory.memsw.limit_in_bytes=1048576"];
        let sockets = ["memory.kmem.tcp.limit_in_bytes=131072"];
        let others = ["cpu.cfs_period_us=100000", "cpu.cfs_quota_us=150000", "pids.max=7"];
        assert_eq!(written, [&memory[..], &sockets, &others].concat());
    }
}
