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

use super::directory::{self, Directory, Setting};
use super::discover::{Hierarchies, Place};
use super::name::{self, Name};
use super::systemd::{self, GroupOwner};
use super::{Limit, Obstacle, Wanted};
use crate::processes::Stat;

/// File that limits swap. Version 2 needs no such file for socket buffers, because it counts them
/// as memory.
pub(super) const SWAP: &str = "memory.swap.max";

/// Creates a group in our own group, which delegates the controllers to it.
///
/// The group is never created elsewhere, because the limits of our own group must apply to every
/// process that we start.
pub(super) fn make(
    place: &Place,
    controllers: &[&'static str],
    name: Name,
) -> Result<Directory, Obstacle> {
    let place = stepped_out_of(place);
    if controllers.is_empty() {
        return make_in(&place.own, name);
    }
    let place = match systemd::owner_of(&place) {
        GroupOwner::Writer => place,
        GroupOwner::Systemd => {
            let failed = |source| Obstacle::Directory { path: place.own.clone(), source };
            let ours = directory::members(&place.own)
                .map_err(failed)?
                .into_iter()
                .filter(|pid| is_ours(*pid));
            systemd::move_to_scope(&place, &ours.collect::<Vec<_>>(), &name.to_string())?;
            let hierarchies = Hierarchies::of_this_process().map_err(failed)?;
            stepped_out_of(&hierarchies.unified.ok_or(Obstacle::NoHierarchy)?)
        }
    };
    pass_on(&place, controllers)?;
    make_in(&place.own, name)
}

/// Returns our place as it was before our processes moved into the leaf.
fn stepped_out_of(place: &Place) -> Place {
    let own = place.own.parent().filter(|_| place.own.ends_with(name::SELF)).unwrap_or(&place.own);
    Place { mount: place.mount.clone(), own: own.to_path_buf() }
}

fn make_in(parent: &Path, name: Name) -> Result<Directory, Obstacle> {
    let failed = |source| Obstacle::Directory { path: parent.to_owned(), source };
    // Moving a process needs write access to this file as well, because this group is the common
    // ancestor of the old and the new group.
    rustix::fs::access(parent.join("cgroup.procs"), Access::WRITE_OK)
        .map_err(|errno| failed(errno.into()))?;
    name::sweep(parent);
    Directory::make(parent.join(name.to_string())).map_err(failed)
}

/// Ensures that the children of our group have the controllers.
fn pass_on(place: &Place, controllers: &[&'static str]) -> Result<(), Obstacle> {
    let group = place.own.as_path();
    let failed = |source| Obstacle::Directory { path: group.to_owned(), source };
    let control = group.join("cgroup.subtree_control");
    let passed_on = words(&control).map_err(failed)?;
    let missing: Vec<&'static str> = controllers
        .iter()
        .copied()
        .filter(|name| !passed_on.iter().any(|word| word == name))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let offered = words(&group.join("cgroup.controllers")).map_err(failed)?;
    if let Some(&controller) = missing.iter().find(|name| !offered.iter().any(|word| word == *name))
    {
        return Err(Obstacle::NotOffered { path: group.to_owned(), controller });
    }
    rustix::fs::access(&control, Access::WRITE_OK).map_err(|errno| failed(errno.into()))?;
    let request = missing.iter().map(|name| format!("+{name}")).collect::<Vec<_>>().join(" ");
    let enable = || {
        directory::write(&control, &request).map_err(|source| match source.kind() {
            io::ErrorKind::ResourceBusy => Obstacle::Occupied { path: group.to_owned() },
            _ => failed(source),
        })
    };
    // The root of the hierarchy may hold processes. The root is the only group without the file
    // `cgroup.type`.
    if !group.join("cgroup.type").exists() {
        return enable();
    }
    let aside = step_aside(group)?;
    enable().inspect_err(|_| aside.step_back(group))
}

/// Processes that were moved into a leaf of their group.
struct Aside {
    moved: Vec<Pid>,
}

/// Limit on the rounds in which a group is emptied. Other processes may fork in it meanwhile.
const MOVE_ATTEMPTS: usize = 50;

/// Moves every process of a group into a leaf, because a group with processes of its own cannot
/// delegate controllers.
///
/// The processes stay there. Systemd's documentation of delegation asks for such a leaf.
fn step_aside(group: &Path) -> Result<Aside, Obstacle> {
    let failed = |source| Obstacle::Directory { path: group.to_owned(), source };
    let leaf = group.join(name::SELF);
    match fs::create_dir(&leaf) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    let mut aside = Aside { moved: Vec::new() };
    match aside.move_all(group, &leaf) {
        Ok(()) => Ok(aside),
        Err(obstacle) => {
            aside.step_back(group);
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
    Stat::of(pid.as_raw_nonzero().get()).and_then(|stat| Pid::from_raw(stat.parent))
}

impl Aside {
    fn move_all(&mut self, group: &Path, leaf: &Path) -> Result<(), Obstacle> {
        let failed = |source| Obstacle::Directory { path: group.to_owned(), source };
        for _ in 0..MOVE_ATTEMPTS {
            let listed = words(&group.join("cgroup.procs")).map_err(failed)?;
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
                match directory::write(
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
        Err(Obstacle::Occupied { path: group.to_owned() })
    }

    fn step_back(&self, group: &Path) {
        for pid in &self.moved {
            // A process that cannot move back can stay in the leaf without harm.
            let _ =
                directory::write(&group.join("cgroup.procs"), &pid.as_raw_nonzero().to_string());
        }
        let _ = fs::remove_dir(group.join(name::SELF)); // fails, rightly, while a process is in it
    }
}

fn words(path: &Path) -> io::Result<Vec<String>> {
    Ok(fs::read_to_string(path)?.split_whitespace().map(str::to_owned).collect())
}

/// Returns the settings that must be written for a limit.
pub(super) fn settings(limit: Limit, wanted: &Wanted) -> Vec<Setting> {
    match limit {
        Limit::Memory => wanted.memory_in_pages().map_or_else(Vec::new, |bytes| {
            vec![Setting::required("memory.max", bytes), Setting::optional(SWAP, 0)]
        }),
        Limit::Cpus => wanted
            .quota()
            .map(|quota| Setting::required("cpu.max", format_args!("{quota} {}", Wanted::PERIOD)))
            .into_iter()
            .collect(),
        Limit::Processes => {
            wanted.processes.iter().map(|count| Setting::required("pids.max", count)).collect()
        }
        Limit::TreeKill => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn whoever_stepped_aside_makes_groups_where_it_was_before() {
        for (own, expected) in
            [("a/b", "a/b"), ("a/ringfence-self", "a"), ("a/ringfence-7-8-9", "a/ringfence-7-8-9")]
        {
            let mount = PathBuf::from("/sys/fs/cgroup");
            let place = Place { own: mount.join(own), mount: mount.clone() };
            assert_eq!(stepped_out_of(&place).own, mount.join(expected), "{own}");
        }
    }

    #[test]
    fn limits_are_written_as_version_2_spells_them() {
        let wanted = Wanted {
            memory: Some((1 << 20) + 1),
            cpus: Some(1.5),
            processes: Some(7),
            tree_kill: true,
        };
        let written: Vec<String> = Limit::ALL
            .iter()
            .flat_map(|&limit| settings(limit, &wanted))
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

    fn pass_on_in(group: &tempfile::TempDir, controllers: &[&'static str]) -> Result<(), Obstacle> {
        let place = Place { mount: group.path().to_owned(), own: group.path().to_owned() };
        pass_on(&place, controllers)
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
        assert!(matches!(obstacle, Obstacle::NotOffered { controller: "cpu", .. }), "{obstacle}");
    }

    #[test]
    fn we_and_our_children_are_ours_and_nobody_else_is() {
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
        assert!(matches!(obstacle, Obstacle::Occupied { .. }), "{obstacle}");
        assert!(!group.path().join(name::SELF).exists());
    }
}
