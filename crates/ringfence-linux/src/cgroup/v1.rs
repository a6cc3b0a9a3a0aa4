//! Groups of version 1: a directory in the hierarchy of each controller, entered by the child itself.
//!
//! A thread that writes `0` to `tasks` moves only itself, which is cheap; moving a whole process by `cgroup.procs`
//! takes a lock that waits for all processors.

use std::os::fd::OwnedFd;

use fs_err as fs;

use super::directory::{Directory, Setting};
use super::discover::Place;
use super::name::{self, Name};
use super::{Limit, Obstacle, Wanted};

/// Makes a group below this process's own, so that what bounds this process bounds the group.
pub(super) fn make(place: &Place, name: Name) -> Result<Directory, Obstacle> {
    name::sweep(&place.own);
    Directory::make(place.own.join(name.to_string()))
        .map_err(|source| Obstacle::Directory { path: place.own.clone(), source })
}

/// Opens the file through which a child enters the group.
pub(super) fn entrance(directory: &Directory) -> Result<OwnedFd, Obstacle> {
    let tasks = fs::OpenOptions::new().write(true).open(directory.path().join("tasks"));
    let file = tasks.map_err(|source| Obstacle::Directory { path: directory.path().to_owned(), source })?;
    Ok(file.into_file().into())
}

/// Returns what must be written for a limit.
pub(super) fn settings(limit: Limit, wanted: &Wanted) -> Vec<Setting> {
    match limit {
        // In this order: memory and swap together may not be less than memory.
        Limit::Memory => wanted.memory_in_pages().map_or_else(Vec::new, |bytes| {
            vec![
                Setting::required("memory.limit_in_bytes", bytes),
                Setting::optional("memory.memsw.limit_in_bytes", bytes),
            ]
        }),
        Limit::Cpus => wanted.quota().map_or_else(Vec::new, |quota| {
            vec![Setting::required("cpu.cfs_period_us", Wanted::PERIOD), Setting::required("cpu.cfs_quota_us", quota)]
        }),
        Limit::Processes => wanted.processes.iter().map(|count| Setting::required("pids.max", count)).collect(),
        Limit::TreeKill => Vec::new(),
    }
}
