//! Groups of version 2: one directory for all limits, entered with CLONE_INTO_CGROUP.
//!
//! The group of a run is created in our own group, so that every limit on us also applies to the
//! run. A group that delegates controllers to its children may hold no processes (cgroups(7), "no
//! internal processes"). Therefore every process of our own group moves into a leaf beside the
//! group of the run. If our own group belongs to systemd, we first ask systemd for a scope, which
//! becomes our own group.

use std::io;
use std::path::Path;

use fs_err as fs;
use rustix::fs::Access;
use rustix::process::Pid;

use super::directory::{self, CgroupDirectory, CgroupSetting};
use super::discover::{CgroupHierarchies, CgroupLocation};
use super::name::{self, CgroupName};
use super::systemd::{self, CgroupOwner};
use super::{CgroupLimit, CgroupObstacle, WantedLimits};
use crate::processes::ProcessStat;

/// File that limits swap. Version 2 needs no such file for socket buffers, because it counts them
/// as memory.
pub(super) const SWAP_FILE: &str = "memory.swap.max";

/// Creates a group in our own group, which delegates the controllers to it.
///
/// The group is never created elsewhere, because the limits of our own group must apply to every
/// process that we start.
pub(super) fn create_group(
    place: &CgroupLocation,
    controllers: &[&'static str],
    name: CgroupName,
) -> Result<CgroupDirectory, CgroupObstacle> {
    let place = location_before_leaf(place);
    if controllers.is_empty() {
        return create_group_in(&place.own, name);
    }
    let place = match systemd::owner_of(&place) {
        CgroupOwner::Writer => place,
        CgroupOwner::Systemd => {
            let failed = |source| CgroupObstacle::Directory { path: place.own.clone(), source };
            let ours = directory::list_members(&place.own)
                .map_err(failed)?
                .into_iter()
                .filter(|pid| is_ours(*pid));
            systemd::move_to_scope(&place, &ours.collect::<Vec<_>>(), &name.to_string())?;
            let hierarchies = CgroupHierarchies::for_this_process().map_err(failed)?;
            location_before_leaf(&hierarchies.unified.ok_or(CgroupObstacle::NoHierarchy)?)
        }
    };
    delegate_controllers(&place, controllers)?;
    create_group_in(&place.own, name)
}

/// Returns our place as it was before our processes moved into the leaf.
fn location_before_leaf(place: &CgroupLocation) -> CgroupLocation {
    let own = place
        .own
        .parent()
        .filter(|_| place.own.ends_with(name::OWN_LEAF_NAME))
        .unwrap_or(&place.own);
    CgroupLocation { mount: place.mount.clone(), own: own.to_path_buf() }
}

fn create_group_in(parent: &Path, name: CgroupName) -> Result<CgroupDirectory, CgroupObstacle> {
    let failed = |source| CgroupObstacle::Directory { path: parent.to_owned(), source };
    // Moving a process needs write access to this file as well, because this group is the common
    // ancestor of the old and the new group.
    rustix::fs::access(parent.join("cgroup.procs"), Access::WRITE_OK)
        .map_err(|errno| failed(errno.into()))?;
    name::sweep(parent);
    CgroupDirectory::create(parent.join(name.to_string())).map_err(failed)
}

/// Ensures that the children of our group have the controllers.
fn delegate_controllers(
    place: &CgroupLocation,
    controllers: &[&'static str],
) -> Result<(), CgroupObstacle> {
    let group = place.own.as_path();
    let failed = |source| CgroupObstacle::Directory { path: group.to_owned(), source };
    let control = group.join("cgroup.subtree_control");
    let passed_on = read_words(&control).map_err(failed)?;
    let missing: Vec<&'static str> = controllers
        .iter()
        .copied()
        .filter(|name| !passed_on.iter().any(|word| word == name))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let offered = read_words(&group.join("cgroup.controllers")).map_err(failed)?;
    if let Some(&controller) = missing.iter().find(|name| !offered.iter().any(|word| word == *name))
    {
        return Err(CgroupObstacle::NotOffered { path: group.to_owned(), controller });
    }
    rustix::fs::access(&control, Access::WRITE_OK).map_err(|errno| failed(errno.into()))?;
    let request = missing.iter().map(|name| format!("+{name}")).collect::<Vec<_>>().join(" ");
    let enable = || {
        directory::write_file(&control, &request).map_err(|source| match source.kind() {
            io::ErrorKind::ResourceBusy => CgroupObstacle::Occupied { path: group.to_owned() },
            _ => failed(source),
        })
    };
    // The root of the hierarchy may hold processes. The root is the only group without the file
    // `cgroup.type`.
    if !group.join("cgroup.type").exists() {
        return enable();
    }
    let aside = move_to_leaf(group)?;
    enable().inspect_err(|_| aside.move_back(group))
}

/// Processes that were moved into a leaf of their group.
struct MovedProcesses {
    moved: Vec<Pid>,
}

/// Limit on the rounds in which a group is emptied. Other processes may fork in it meanwhile.
const MOVE_ATTEMPTS: usize = 50;

/// Moves every process of a group into a leaf, because a group with processes of its own cannot
/// delegate controllers.
///
/// The processes stay there. Systemd's documentation of delegation asks for such a leaf.
fn move_to_leaf(group: &Path) -> Result<MovedProcesses, CgroupObstacle> {
    let failed = |source| CgroupObstacle::Directory { path: group.to_owned(), source };
    let leaf = group.join(name::OWN_LEAF_NAME);
    match fs::create_dir(&leaf) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    let mut aside = MovedProcesses { moved: Vec::new() };
    match aside.move_all(group, &leaf) {
        Ok(()) => Ok(aside),
        Err(obstacle) => {
            aside.move_back(group);
            Err(obstacle)
        }
    }
}

/// Returns true if a process is this process or one of its descendants.
fn is_ours(pid: Pid) -> bool {
    let us = rustix::process::getpid();
    std::iter::successors(Some(pid), |&pid| parent_of(pid)).any(|ancestor| ancestor == us)
}

fn parent_of(pid: Pid) -> Option<Pid> {
    ProcessStat::read(pid.as_raw_nonzero().get()).and_then(|stat| Pid::from_raw(stat.parent))
}

impl MovedProcesses {
    fn move_all(&mut self, group: &Path, leaf: &Path) -> Result<(), CgroupObstacle> {
        let failed = |source| CgroupObstacle::Directory { path: group.to_owned(), source };
        for _ in 0..MOVE_ATTEMPTS {
            let listed = read_words(&group.join("cgroup.procs")).map_err(failed)?;
            if listed.is_empty() {
                return Ok(());
            }
            // Processes outside our pid namespace are listed as 0, so they cannot be moved.
            let Some(listed) =
                listed.iter().map(|word| word.parse().ok().and_then(Pid::from_raw)).collect()
            else {
                break;
            };
            let listed: Vec<Pid> = listed;
            for pid in listed {
                match directory::write_file(
                    &leaf.join("cgroup.procs"),
                    &pid.as_raw_nonzero().to_string(),
                ) {
                    Ok(()) => self.moved.push(pid),
                    // The process has ended.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(error) => return Err(failed(error)),
                }
            }
        }
        Err(CgroupObstacle::Occupied { path: group.to_owned() })
    }

    fn move_back(&self, group: &Path) {
        for pid in &self.moved {
            // A process that cannot move back can stay in the leaf without harm.
            let _ = directory::write_file(
                &group.join("cgroup.procs"),
                &pid.as_raw_nonzero().to_string(),
            );
        }
        // The removal fails, rightly, while a process is in the leaf.
        let _ = fs::remove_dir(group.join(name::OWN_LEAF_NAME));
    }
}

fn read_words(path: &Path) -> io::Result<Vec<String>> {
    Ok(fs::read_to_string(path)?.split_whitespace().map(str::to_owned).collect())
}

/// Returns the settings that must be written for a limit.
pub(super) fn limit_settings(limit: CgroupLimit, wanted: &WantedLimits) -> Vec<CgroupSetting> {
    match limit {
        CgroupLimit::Memory => wanted.memory_in_pages().map_or_else(Vec::new, |bytes| {
            vec![
                CgroupSetting::required("memory.max", bytes),
                CgroupSetting::optional(SWAP_FILE, 0),
            ]
        }),
        CgroupLimit::Cpus => wanted
            .quota()
            .map(|quota| {
                CgroupSetting::required(
                    "cpu.max",
                    format_args!("{quota} {}", WantedLimits::CPU_PERIOD_MICROS),
                )
            })
            .into_iter()
            .collect(),
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
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_process_in_the_leaf_creates_groups_in_its_former_group() {
        for (own, expected) in
            [("a/b", "a/b"), ("a/ringfence-self", "a"), ("a/ringfence-7-8-9", "a/ringfence-7-8-9")]
        {
            let mount = PathBuf::from("/sys/fs/cgroup");
            let place = CgroupLocation { own: mount.join(own), mount: mount.clone() };
            assert_eq!(location_before_leaf(&place).own, mount.join(expected), "{own}");
        }
    }

    #[test]
    fn limits_are_written_as_version_2_spells_them() {
        let wanted = WantedLimits {
            memory: Some((1 << 20) + 1),
            cpus: Some(1.5),
            processes: Some(7),
            tree_kill: true,
        };
        let written: Vec<String> = CgroupLimit::ALL
            .iter()
            .flat_map(|&limit| limit_settings(limit, &wanted))
            .map(|setting| format!("{}={}", setting.file, setting.value))
            .collect();
        assert_eq!(
            written,
            ["memory.max=1048576", "memory.swap.max=0", "cpu.max=150000 100000", "pids.max=7"]
        );
    }

    /// Creates a directory with the plain files of a group.
    fn imitation(passed_on: &str, offered: &str, processes: &str) -> tempfile::TempDir {
        let group = tempfile::tempdir().unwrap();
        for (file, text) in [
            ("cgroup.subtree_control", passed_on),
            ("cgroup.controllers", offered),
            ("cgroup.procs", processes),
            ("cgroup.type", "domain"),
        ] {
            fs::write(group.path().join(file), text).unwrap();
        }
        group
    }

    fn pass_on_in(
        group: &tempfile::TempDir,
        controllers: &[&'static str],
    ) -> Result<(), CgroupObstacle> {
        let place = CgroupLocation { mount: group.path().to_owned(), own: group.path().to_owned() };
        delegate_controllers(&place, controllers)
    }

    #[test]
    fn a_group_that_already_passes_the_controllers_on_is_left_alone() {
        let group = imitation("memory pids", "cpu memory pids", "1\n2\n");
        pass_on_in(&group, &["pids", "memory"]).unwrap();
        assert_eq!(
            fs::read_to_string(group.path().join("cgroup.subtree_control")).unwrap(),
            "memory pids"
        );
    }

    #[test]
    fn a_controller_that_is_not_offered_is_named() {
        let group = imitation("", "memory pids", "");
        let obstacle = pass_on_in(&group, &["memory", "cpu"]).unwrap_err();
        assert!(
            matches!(obstacle, CgroupObstacle::NotOffered { controller: "cpu", .. }),
            "{obstacle}"
        );
    }

    #[test]
    fn only_this_process_and_its_descendants_are_ours() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(is_ours(Pid::from_child(&child)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_ours(rustix::process::getpid()));
        assert!(!is_ours(rustix::process::getppid().unwrap()));
    }

    #[test]
    fn a_group_without_processes_passes_controllers_on() {
        // Plain files show what would be written. Tests on real kernels show that processes are
        // moved.
        let group = imitation("", "memory pids", "");
        pass_on_in(&group, &["memory", "pids"]).unwrap();
        assert_eq!(
            fs::read_to_string(group.path().join("cgroup.subtree_control")).unwrap(),
            "+memory +pids"
        );
    }

    #[test]
    fn a_group_with_processes_that_cannot_be_named_is_left_alone() {
        let group = imitation("", "memory", &format!("{}\n0\n", std::process::id()));
        let obstacle = pass_on_in(&group, &["memory"]).unwrap_err();
        assert!(matches!(obstacle, CgroupObstacle::Occupied { .. }), "{obstacle}");
        assert!(!group.path().join(name::OWN_LEAF_NAME).exists());
    }
}
