//! Control groups: a fresh one for each run, for its limits and for its end.
//!
//! Versions 1 and 2 work alike, also side by side (a controller is bound to one of them). A limit that the kernel did
//! not keep is an error. Start at [`Group::create`]; [`probe`] makes real groups to find out what works here.

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

use directory::{Directory, Setting};
use discover::{Hierarchies, Place};
use name::Name;

pub use error::{CgroupError, Obstacle};

/// What a group must hold.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Wanted {
    /// Bytes of memory, swap included.
    pub memory: Option<u64>,
    /// Processors' worth of time.
    pub cpus: Option<f64>,
    /// Processes and threads.
    pub processes: Option<u32>,
    /// Whether the whole tree must end at once, whatever its processes did to get away.
    pub tree_kill: bool,
}

impl Wanted {
    /// The period of processor time in microseconds: the kernel's own default.
    const PERIOD: u64 = 100_000;

    fn limits(&self) -> impl Iterator<Item = Limit> {
        Limit::ALL.into_iter().filter(|limit| match limit {
            Limit::Memory => self.memory.is_some(),
            Limit::Cpus => self.cpus.is_some(),
            Limit::Processes => self.processes.is_some(),
            Limit::TreeKill => self.tree_kill,
        })
    }

    /// The part of the memory limit that version 1 lets sockets have besides: one of so many.
    const SOCKET_SHARE: u64 = 8;

    /// The kernel counts memory in pages and rounds down.
    fn memory_in_pages(&self) -> Option<u64> {
        self.memory.map(whole_pages)
    }

    /// Bytes of socket buffers where they are counted apart from memory. A share, because it comes on top.
    fn socket_memory(&self) -> u64 {
        whole_pages(self.memory.unwrap_or(0) / Self::SOCKET_SHARE).max(rustix::param::page_size() as u64)
    }

    /// Microseconds of processor time in each period; the kernel refuses less than a thousand.
    fn quota(&self) -> Option<u64> {
        self.cpus.map(|cpus| (cpus * Self::PERIOD as f64).round() as u64)
    }
}

fn whole_pages(bytes: u64) -> u64 {
    let page = rustix::param::page_size() as u64;
    bytes / page * page
}

/// One thing that a group can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "named as the fields of `Wanted`")]
pub enum Limit {
    Memory,
    Cpus,
    Processes,
    TreeKill,
}

impl Limit {
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

impl fmt::Display for Limit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Memory => "memory",
            Self::Cpus => "cpus",
            Self::Processes => "processes",
            Self::TreeKill => "the life of the process tree",
        })
    }
}

/// The interface that holds a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Version {
    /// A hierarchy of its own for each controller.
    V1,
    /// The unified hierarchy.
    V2,
}

impl Version {
    /// Returns the name that reports use.
    pub fn name(self) -> &'static str {
        match self {
            Self::V1 => "cgroup v1",
            Self::V2 => "cgroup v2",
        }
    }
}

/// What control groups can hold on this host, each found by doing it.
#[derive(Debug)]
#[expect(missing_docs, reason = "named as the fields of `Wanted`")]
pub struct CgroupSupport {
    pub memory: Result<Holder, CgroupError>,
    pub cpus: Result<Holder, CgroupError>,
    pub processes: Result<Holder, CgroupError>,
    pub tree_kill: Result<Holder, CgroupError>,
}

/// How a group holds one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The interface.
    pub version: Version,
    /// Whether a process with the rights of the probing one can leave the group.
    pub can_be_left: bool,
    /// What the limit does not count, where it is one of memory.
    pub uncounted: UncountedMemory,
}

/// Kinds of memory that a group's limit does not cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UncountedMemory {
    /// Buffers of TCP and UDP sockets.
    pub sockets: bool,
    /// What is swapped out, on a host that swaps.
    pub swap: bool,
}

/// Makes a group for each limit and removes it again, to learn what this process can have.
///
/// In a delegated scope of version 2 this moves the process into a leaf, as any run with limits does.
pub fn probe() -> CgroupSupport {
    let attempt = |limit, wanted| Group::create(&wanted).map(|group| group.holder(limit));
    let nothing = Wanted::default();
    CgroupSupport {
        memory: attempt(Limit::Memory, Wanted { memory: Some(64 << 20), ..nothing }),
        // The least there is: it fits below whatever bounds us.
        cpus: attempt(Limit::Cpus, Wanted { cpus: Some(0.01), ..nothing }),
        processes: attempt(Limit::Processes, Wanted { processes: Some(1), ..nothing }),
        tree_kill: attempt(Limit::TreeKill, Wanted { tree_kill: true, ..nothing }),
    }
}

/// Tells whether this host has a place to swap to; its table has a line of titles (proc_swaps(5)).
pub fn is_swapping() -> bool {
    fs::read_to_string("/proc/swaps").is_ok_and(|table| table.lines().count() > 1)
}

/// Returns where file systems of control groups are mounted.
pub fn mount_points() -> Vec<PathBuf> {
    discover::mount_points(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
}

/// Where version 1 counts processes that were killed for want of memory.
const V1_COUNTER: &str = "memory.oom_control";
/// Where version 2 does.
const V2_COUNTER: &str = "memory.events";

/// Returns how many processes the kernel has killed for want of memory, by one of its counters; none when it is gone.
pub fn oom_kills(counter: &Path) -> u64 {
    directory::number(counter, "oom_kill")
}

/// Returns the counter of such kills that holds for a process of another's group, if it is seen from here. `name` must
/// be in the group's path, as the process may be one of another pid namespace.
pub fn oom_counter_of(process: i32, name: &str) -> Option<PathBuf> {
    let memberships = fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let hierarchies = Hierarchies::parse(&memberships, &mounts);
    let (place, file) = match (hierarchies.legacy("memory"), &hierarchies.unified) {
        (Some(place), _) => (place, V1_COUNTER),
        (None, Some(place)) => (place, V2_COUNTER),
        (None, None) => return None,
    };
    // A group that delegates no memory control to its children counts for them.
    let groups = place.own.ancestors().take_while(|group| group.to_string_lossy().contains(name));
    groups.map(|group| group.join(file)).find(|counter| counter.exists())
}

/// The control group of one run, in as many hierarchies as its limits need; dropping it ends what is in it.
#[derive(Debug, Default)]
pub struct Group {
    unified: Option<Directory>,
    legacy: Vec<(PathBuf, Directory)>,
    entrances: Vec<OwnedFd>,
    held: Vec<(Limit, Version)>,
    /// The values that version 2 was given: it can lose them with their controller.
    unified_settings: Vec<(Limit, Setting)>,
}

impl Group {
    /// Makes a group that holds all that is wanted, and removes those that dead owners left beside it.
    pub fn create(wanted: &Wanted) -> Result<Self, CgroupError> {
        let failed = |source| CgroupError::Discover { source };
        let hierarchies = Hierarchies::of_this_process().map_err(failed)?;
        let name = Name::next().map_err(failed)?;
        Self::create_in(&hierarchies, wanted, name)
    }

    fn create_in(hierarchies: &Hierarchies, wanted: &Wanted, name: Name) -> Result<Self, CgroupError> {
        // On failure the drop of what is there so far cleans up.
        let mut group = Self::default();
        let mut unified = Vec::new();
        for limit in wanted.limits() {
            match limit.controller().and_then(|controller| hierarchies.legacy(controller)) {
                Some(place) => group.hold_by_v1(limit, place, wanted, name)?,
                None => unified.push(limit),
            }
        }
        if !unified.is_empty() {
            group.hold_by_v2(&unified, hierarchies, wanted, name)?;
        }
        Ok(group)
    }

    fn hold_by_v1(&mut self, limit: Limit, place: &Place, wanted: &Wanted, name: Name) -> Result<(), CgroupError> {
        let failed = |source| CgroupError::Unavailable { limit, source };
        let known = self.legacy.iter().position(|(mount, _)| *mount == place.mount);
        let index = match known {
            Some(index) => index,
            None => {
                let directory = v1::make(place, name).map_err(failed)?;
                self.legacy.push((place.mount.clone(), directory));
                let index = self.legacy.len() - 1;
                self.entrances.push(v1::entrance(&self.legacy[index].1).map_err(failed)?);
                index
            }
        };
        let (_, directory) = &self.legacy[index];
        v1::settings(limit, wanted).iter().try_for_each(|setting| directory.set(setting))?;
        self.held.push((limit, Version::V1));
        Ok(())
    }

    fn hold_by_v2(
        &mut self,
        limits: &[Limit],
        hierarchies: &Hierarchies,
        wanted: &Wanted,
        name: Name,
    ) -> Result<(), CgroupError> {
        let controllers: Vec<&'static str> = limits.iter().filter_map(|limit| limit.controller()).collect();
        let made = match (&hierarchies.unified, controllers.first()) {
            (Some(place), _) => v2::make(place, &controllers, name),
            (None, Some(controller)) => Err(Obstacle::NotBound { controller }),
            (None, None) => Err(Obstacle::NoHierarchy),
        };
        match made {
            Ok(directory) => {
                let directory = self.unified.insert(directory);
                for &limit in limits {
                    let settings = v2::settings(limit, wanted);
                    settings.iter().try_for_each(|setting| directory.set(setting))?;
                    self.unified_settings.extend(settings.into_iter().map(|setting| (limit, setting)));
                    self.held.push((limit, Version::V2));
                }
                Ok(())
            }
            // The counter of processes serves, too: a group that may fork no more is killed to the last.
            Err(source) if controllers.is_empty() => match hierarchies.legacy("pids") {
                Some(place) => self.hold_by_v1(Limit::TreeKill, place, wanted, name),
                None => Err(CgroupError::Unavailable { limit: Limit::TreeKill, source }),
            },
            Err(source) => {
                let refused = |limit: &&Limit| match &source {
                    Obstacle::NotBound { controller } | Obstacle::NotOffered { controller, .. } => {
                        limit.controller() == Some(controller)
                    }
                    _ => true,
                };
                let limit = limits.iter().find(refused).copied().unwrap_or(limits[0]);
                Err(CgroupError::Unavailable { limit, source })
            }
        }
    }

    /// Returns the directory for `CLONE_INTO_CGROUP`, if the group is one of version 2.
    pub fn clone_into(&self) -> Option<BorrowedFd<'_>> {
        self.unified.as_ref().map(Directory::handle)
    }

    /// Returns the files to which the child, still alone and single-threaded, writes `0` to enter the rest.
    pub fn tasks(&self) -> &[OwnedFd] {
        &self.entrances
    }

    /// Returns what holds a limit.
    ///
    /// # Panics
    ///
    /// Panics if the limit was not wanted.
    pub fn version(&self, limit: Limit) -> Version {
        let held = self.held.iter().find(|(held, _)| *held == limit);
        held.expect("only wanted limits are asked for").1
    }

    fn holder(&self, limit: Limit) -> Holder {
        let version = self.version(limit);
        Holder { version, can_be_left: self.can_be_left(), uncounted: self.uncounted_memory(version) }
    }

    /// Tells whether a process with the rights of this one can leave the group, in any hierarchy.
    fn can_be_left(&self) -> bool {
        self.directories().any(Directory::can_be_left)
    }

    fn uncounted_memory(&self, version: Version) -> UncountedMemory {
        let lacks = |file: &str| !self.directories().any(|directory| directory.has(file));
        match version {
            Version::V1 => UncountedMemory { sockets: lacks(v1::SOCKETS), swap: lacks(v1::SWAP) && is_swapping() },
            Version::V2 => UncountedMemory { sockets: false, swap: lacks(v2::SWAP) && is_swapping() },
        }
    }

    /// Tells whether a limit of this group may get lost while it is in use: a controller of version 2 can be taken away.
    pub fn can_lose_limits(&self) -> bool {
        !self.unified_settings.is_empty()
    }

    /// Names a limit that the group no longer holds, because somebody took the controller away or changed the value.
    pub fn lost_limit(&self) -> Option<Limit> {
        let directory = self.unified.as_ref()?;
        let is_lost = |(_, setting): &&(Limit, Setting)| !directory.holds(setting);
        self.unified_settings.iter().find(is_lost).map(|(limit, _)| *limit)
    }

    /// Kills every process of the run. The group takes no new ones afterwards.
    ///
    /// A child on its way in may be in some hierarchies and not yet in others, so none is left out.
    pub fn kill(&self) -> io::Result<()> {
        let results: Vec<io::Result<()>> = self.directories().map(Directory::kill).collect();
        results.into_iter().collect()
    }

    /// In the order of a kill: in version 2 that is one write, and what follows finds nobody; in version 1 the counter
    /// of processes, which was added last, is where forks can be stopped.
    fn directories(&self) -> impl Iterator<Item = &Directory> {
        self.unified.iter().chain(self.legacy.iter().rev().map(|(_, directory)| directory))
    }

    /// Tells whether the kernel killed a process of the run for want of memory.
    pub fn oom_killed(&self) -> bool {
        self.oom_counters().any(|counter| oom_kills(&counter) > 0)
    }

    /// Returns the files in which the kernel counts such kills; whoever can see them can read them.
    pub fn oom_counters(&self) -> impl Iterator<Item = PathBuf> {
        let legacy = self.legacy.iter().map(|(_, directory)| directory.path().join(V1_COUNTER));
        let unified = self.unified.iter().map(|directory| directory.path().join(V2_COUNTER));
        legacy.chain(unified).filter(|counter| counter.exists())
    }

    /// Ends what is left in the group and removes it.
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

impl Drop for Group {
    fn drop(&mut self) {
        let _ = self.kill(); // the removal fails if anything lives on
        let _ = self.remove_directories(); // a later run sweeps what is left
    }
}
