//! Control groups: a new group for each run, to enforce its limits and to end its processes.
//!
//! Versions 1 and 2 are used alike, also side by side, because each controller is bound to one of
//! them. A limit that the kernel did not store is an error. Start at [`Cgroup::create`]. The
//! function [`probe`] creates real groups to find out what works on this host.

mod directory;
mod discover;
mod error;
mod name;
mod systemd;
mod v1;
mod v2;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use fs_err as fs;

use directory::{CgroupDirectory, CgroupSetting};
use discover::{CgroupHierarchies, CgroupLocation};
use name::CgroupName;

pub use error::{CgroupError, CgroupObstacle};

/// The limits that a group must enforce.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct WantedLimits {
    /// Memory limit in bytes, swap included.
    pub memory: Option<u64>,
    /// Processor time limit, in processors.
    pub cpus: Option<f64>,
    /// Limit on the number of processes and threads.
    pub processes: Option<u32>,
    /// True if the whole process tree must end at once, whatever its processes did to escape.
    pub tree_kill: bool,
}

impl WantedLimits {
    /// Period of processor time in microseconds, which is the kernel's own default.
    const CPU_PERIOD_MICROS: u64 = 100_000;

    fn limits(&self) -> impl Iterator<Item = CgroupLimit> {
        CgroupLimit::ALL.into_iter().filter(|limit| match limit {
            CgroupLimit::Memory => self.memory.is_some(),
            CgroupLimit::Cpus => self.cpus.is_some(),
            CgroupLimit::Processes => self.processes.is_some(),
            CgroupLimit::TreeKill => self.tree_kill,
        })
    }

    /// Divisor of the memory limit: with version 1, sockets may use one eighth of the limit in
    /// addition.
    const SOCKET_SHARE_DIVISOR: u64 = 8;

    /// Returns the memory limit, rounded down to whole pages, because the kernel counts memory in
    /// pages.
    fn memory_in_pages(&self) -> Option<u64> {
        self.memory.map(whole_pages)
    }

    /// Returns the limit on bytes of socket buffers for kernels that count them apart from memory.
    /// The limit is only a share of the memory limit, because it adds to that limit.
    fn socket_memory(&self) -> u64 {
        whole_pages(self.memory.unwrap_or(0) / Self::SOCKET_SHARE_DIVISOR)
            .max(rustix::param::page_size() as u64)
    }

    /// Returns the microseconds of processor time per period. The kernel refuses less than 1000.
    fn quota(&self) -> Option<u64> {
        self.cpus.map(|cpus| (cpus * Self::CPU_PERIOD_MICROS as f64).round() as u64)
    }
}

fn whole_pages(bytes: u64) -> u64 {
    let page = rustix::param::page_size() as u64;
    bytes / page * page
}

/// One limit that a group can enforce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "named as the fields of `Wanted`")]
pub enum CgroupLimit {
    Memory,
    Cpus,
    Processes,
    TreeKill,
}

impl CgroupLimit {
    const ALL: [Self; 4] = [Self::Memory, Self::Cpus, Self::Processes, Self::TreeKill];

    fn controller(self) -> Option<&'static str> {
        match self {
            Self::Memory => Some("memory"),
            Self::Cpus => Some("cpu"),
            Self::Processes => Some("pids"),
            Self::TreeKill => None,
        }
    }
}

impl fmt::Display for CgroupLimit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Memory => "memory",
            Self::Cpus => "cpus",
            Self::Processes => "processes",
            Self::TreeKill => "the life of the process tree",
        })
    }
}

/// The cgroup interface that enforces a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CgroupVersion {
    /// Version 1: each controller, or set of controllers, has a hierarchy of its own.
    V1,
    /// Version 2: the unified hierarchy.
    V2,
}

impl CgroupVersion {
    /// Returns the name that reports use.
    pub fn name(self) -> &'static str {
        match self {
            Self::V1 => "cgroup v1",
            Self::V2 => "cgroup v2",
        }
    }
}

/// The limits that control groups can enforce on this host, each found by a real attempt.
#[derive(Debug)]
#[expect(missing_docs, reason = "named as the fields of `Wanted`")]
pub struct CgroupSupport {
    pub memory: Result<LimitHolder, CgroupError>,
    pub cpus: Result<LimitHolder, CgroupError>,
    pub processes: Result<LimitHolder, CgroupError>,
    pub tree_kill: Result<LimitHolder, CgroupError>,
}

/// The way in which a group enforces one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitHolder {
    /// Interface that enforces the limit.
    pub version: CgroupVersion,
    /// True if a process with the rights of the probing process can leave the group.
    pub can_be_left: bool,
    /// Memory that the limit does not count. Only relevant for a memory limit.
    pub uncounted: UncountedMemory,
}

/// Kinds of memory that a group's limit does not cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UncountedMemory {
    /// True if buffers of TCP and UDP sockets are not counted.
    pub sockets: bool,
    /// True if the host swaps and swapped memory is not counted.
    pub swap: bool,
}

/// Creates and removes a group for each limit, to find out what this process may use.
///
/// In a delegated scope of version 2 this moves the process into a leaf, as any run with limits
/// does.
pub fn probe() -> CgroupSupport {
    let attempt = |limit, wanted| Cgroup::create(&wanted).map(|group| group.holder(limit));
    let nothing = WantedLimits::default();
    CgroupSupport {
        memory: attempt(CgroupLimit::Memory, WantedLimits { memory: Some(64 << 20), ..nothing }),
        // The smallest quota fits below every limit that applies to us.
        cpus: attempt(CgroupLimit::Cpus, WantedLimits { cpus: Some(0.01), ..nothing }),
        processes: attempt(CgroupLimit::Processes, WantedLimits { processes: Some(1), ..nothing }),
        tree_kill: attempt(CgroupLimit::TreeKill, WantedLimits { tree_kill: true, ..nothing }),
    }
}

/// Returns true if this host has a swap area. The first line of the table holds titles
/// (proc_swaps(5)).
pub fn has_swap() -> bool {
    fs::read_to_string("/proc/swaps").is_ok_and(|table| table.lines().count() > 1)
}

/// Returns the mount points of cgroup file systems.
pub fn mount_points() -> Vec<PathBuf> {
    discover::mount_points(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
}

/// File in which version 1 counts the processes that the kernel killed for lack of memory.
const V1_OOM_COUNTER: &str = "memory.oom_control";
/// File in which version 2 counts the processes that the kernel killed for lack of memory.
const V2_OOM_COUNTER: &str = "memory.events";

/// Returns the number of processes that the kernel has killed for lack of memory, from one of its
/// counters. Returns 0 if the counter is gone.
pub fn oom_kills(counter: &Path) -> u64 {
    directory::read_counter(counter, "oom_kill")
}

/// Returns the out-of-memory counter that applies to a process in another group, if the counter is
/// visible here.
///
/// The group's path must contain `name`, because the process may be in another pid namespace.
pub fn find_oom_counter(process: i32, name: &str) -> Option<PathBuf> {
    let memberships = fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let hierarchies = CgroupHierarchies::parse(&memberships, &mounts);
    let (place, file) = match (hierarchies.legacy_location("memory"), &hierarchies.unified) {
        (Some(place), _) => (place, V1_OOM_COUNTER),
        (None, Some(place)) => (place, V2_OOM_COUNTER),
        (None, None) => return None,
    };
    // A group that does not delegate the memory controller to its children counts for them.
    let groups = place.own.ancestors().take_while(|group| group.to_string_lossy().contains(name));
    groups.map(|group| group.join(file)).find(|counter| counter.exists())
}

/// The control group of one run, in as many hierarchies as its limits need. Dropping the group ends
/// the processes in it.
#[derive(Debug, Default)]
pub struct Cgroup {
    unified: Option<CgroupDirectory>,
    legacy: Vec<(PathBuf, CgroupDirectory)>,
    entrances: Vec<OwnedFd>,
    held: Vec<(CgroupLimit, CgroupVersion)>,
    /// Values that were written to version 2, which can lose them together with their controller.
    unified_settings: Vec<(CgroupLimit, CgroupSetting)>,
}

impl Cgroup {
    /// Creates a group that enforces all limits of `wanted`, and removes groups beside it whose
    /// owner is gone.
    pub fn create(wanted: &WantedLimits) -> Result<Self, CgroupError> {
        let failed = |source| CgroupError::Discover { source };
        let hierarchies = CgroupHierarchies::for_this_process().map_err(failed)?;
        let name = CgroupName::next().map_err(failed)?;
        Self::create_in(&hierarchies, wanted, name)
    }

    fn create_in(
        hierarchies: &CgroupHierarchies,
        wanted: &WantedLimits,
        name: CgroupName,
    ) -> Result<Self, CgroupError> {
        // On failure, dropping `group` removes the directories that exist so far.
        let mut group = Self::default();
        let mut unified = Vec::new();
        for limit in wanted.limits() {
            match limit.controller().and_then(|controller| hierarchies.legacy_location(controller))
            {
                Some(place) => group.hold_by_v1(limit, place, wanted, name)?,
                None => unified.push(limit),
            }
        }
        if !unified.is_empty() {
            group.hold_by_v2(&unified, hierarchies, wanted, name)?;
        }
        Ok(group)
    }

    fn hold_by_v1(
        &mut self,
        limit: CgroupLimit,
        place: &CgroupLocation,
        wanted: &WantedLimits,
        name: CgroupName,
    ) -> Result<(), CgroupError> {
        let failed = |source| CgroupError::Unavailable { limit, source };
        let known = self.legacy.iter().position(|(mount, _)| *mount == place.mount);
        let index = match known {
            Some(index) => index,
            None => {
                let directory = v1::create_group(place, name).map_err(failed)?;
                self.legacy.push((place.mount.clone(), directory));
                let index = self.legacy.len() - 1;
                self.entrances.push(v1::open_tasks_file(&self.legacy[index].1).map_err(failed)?);
                index
            }
        };
        let (_, directory) = &self.legacy[index];
        v1::limit_settings(limit, wanted).iter().try_for_each(|setting| directory.set(setting))?;
        self.held.push((limit, CgroupVersion::V1));
        Ok(())
    }

    fn hold_by_v2(
        &mut self,
        limits: &[CgroupLimit],
        hierarchies: &CgroupHierarchies,
        wanted: &WantedLimits,
        name: CgroupName,
    ) -> Result<(), CgroupError> {
        let controllers: Vec<&'static str> =
            limits.iter().filter_map(|limit| limit.controller()).collect();
        let made = match (&hierarchies.unified, controllers.first()) {
            (Some(place), _) => v2::create_group(place, &controllers, name),
            (None, Some(controller)) => Err(CgroupObstacle::NotBound { controller }),
            (None, None) => Err(CgroupObstacle::NoHierarchy),
        };
        match made {
            Ok(directory) => {
                let directory = self.unified.insert(directory);
                for &limit in limits {
                    let settings = v2::limit_settings(limit, wanted);
                    settings.iter().try_for_each(|setting| directory.set(setting))?;
                    self.unified_settings
                        .extend(settings.into_iter().map(|setting| (limit, setting)));
                    self.held.push((limit, CgroupVersion::V2));
                }
                Ok(())
            }
            // The `pids` controller of version 1 can serve instead: once the group may not fork, it
            // can be killed completely.
            Err(source) if controllers.is_empty() => match hierarchies.legacy_location("pids") {
                Some(place) => self.hold_by_v1(CgroupLimit::TreeKill, place, wanted, name),
                None => Err(CgroupError::Unavailable { limit: CgroupLimit::TreeKill, source }),
            },
            Err(source) => {
                let refused = |limit: &&CgroupLimit| match &source {
                    CgroupObstacle::NotBound { controller }
                    | CgroupObstacle::NotOffered { controller, .. } => {
                        limit.controller() == Some(controller)
                    }
                    _ => true,
                };
                let limit = limits.iter().find(refused).copied().unwrap_or(limits[0]);
                Err(CgroupError::Unavailable { limit, source })
            }
        }
    }

    /// Returns the directory for `CLONE_INTO_CGROUP`, if the group has one of version 2.
    pub fn clone_directory(&self) -> Option<BorrowedFd<'_>> {
        self.unified.as_ref().map(CgroupDirectory::handle)
    }

    /// Returns the `tasks` files of version 1. The child writes `0` to each while it still has one
    /// thread, and so enters these groups.
    pub fn tasks(&self) -> &[OwnedFd] {
        &self.entrances
    }

    /// Returns the interface that enforces a limit.
    ///
    /// # Panics
    ///
    /// Panics if the limit was not wanted.
    pub fn version(&self, limit: CgroupLimit) -> CgroupVersion {
        let held = self.held.iter().find(|(held, _)| *held == limit);
        held.expect("only wanted limits are asked for").1
    }

    fn holder(&self, limit: CgroupLimit) -> LimitHolder {
        let version = self.version(limit);
        LimitHolder {
            version,
            can_be_left: self.can_be_left(),
            uncounted: self.uncounted_memory(version),
        }
    }

    /// Returns true if a process with the rights of this process can leave the group, in any
    /// hierarchy.
    fn can_be_left(&self) -> bool {
        self.directories().any(CgroupDirectory::can_be_left)
    }

    fn uncounted_memory(&self, version: CgroupVersion) -> UncountedMemory {
        let lacks = |file: &str| !self.directories().any(|directory| directory.has_file(file));
        match version {
            CgroupVersion::V1 => UncountedMemory {
                sockets: lacks(v1::SOCKET_BUFFER_FILE),
                swap: lacks(v1::SWAP_FILE) && has_swap(),
            },
            CgroupVersion::V2 => {
                UncountedMemory { sockets: false, swap: lacks(v2::SWAP_FILE) && has_swap() }
            }
        }
    }

    /// Returns true if a limit of this group may get lost while it is in use. A controller of
    /// version 2 can be taken away.
    pub fn can_lose_limits(&self) -> bool {
        !self.unified_settings.is_empty()
    }

    /// Returns a limit that the group no longer enforces, because another process took the
    /// controller away or changed the value.
    pub fn lost_limit(&self) -> Option<CgroupLimit> {
        let directory = self.unified.as_ref()?;
        let is_lost = |(_, setting): &&(CgroupLimit, CgroupSetting)| !directory.holds(setting);
        self.unified_settings.iter().find(is_lost).map(|(limit, _)| *limit)
    }

    /// Kills every process of the run. The group must not be used afterwards.
    ///
    /// The kill covers every hierarchy, because a child that is just entering may be in some
    /// hierarchies and not yet in others.
    pub fn kill(&self) -> io::Result<()> {
        let results: Vec<io::Result<()>> = self.directories().map(CgroupDirectory::kill).collect();
        results.into_iter().collect()
    }

    /// Returns the directories in the order in which they are killed.
    ///
    /// Version 2 comes first, because its kill is one write after which no process is left. In
    /// version 1 the `pids` hierarchy, which was added last, comes first, because forks can be
    /// stopped there.
    fn directories(&self) -> impl Iterator<Item = &CgroupDirectory> {
        self.unified.iter().chain(self.legacy.iter().rev().map(|(_, directory)| directory))
    }

    /// Returns true if the kernel killed a process of the run for lack of memory.
    pub fn oom_killed(&self) -> bool {
        self.oom_counters().any(|counter| oom_kills(&counter) > 0)
    }

    /// Returns the files in which the kernel counts kills for lack of memory. Every process that
    /// sees these files can read them.
    pub fn oom_counters(&self) -> impl Iterator<Item = PathBuf> {
        let legacy = self.legacy.iter().map(|(_, directory)| directory.path().join(V1_OOM_COUNTER));
        let unified = self.unified.iter().map(|directory| directory.path().join(V2_OOM_COUNTER));
        legacy.chain(unified).filter(|counter| counter.exists())
    }

    /// Kills the remaining processes of the group and removes the group.
    pub fn remove(mut self) -> io::Result<()> {
        self.kill()?;
        self.remove_directories()
    }

    fn remove_directories(&mut self) -> io::Result<()> {
        self.entrances.clear();
        let legacy = self.legacy.drain(..).map(|(_, directory)| directory);
        let results: Vec<io::Result<()>> =
            legacy.chain(self.unified.take()).map(|directory| directory.remove()).collect();
        results.into_iter().collect()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = self.kill(); // the removal fails if a process is left
        let _ = self.remove_directories(); // a later run sweeps the rest
    }
}
