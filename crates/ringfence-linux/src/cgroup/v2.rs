//! Groups of version 2: one directory for all limits, entered by CLONE_INTO_CGROUP.
//!
//! A group that passes controllers on to its children may hold no processes (cgroups(7), "no internal processes"), so a
//! run cannot simply be put below our own group as in version 1. In this order:
//!
//! 1. our own group, if it needs to pass on nothing new, or if nobody but us, our parent and our children is in it and
//!    we may step aside into a leaf: a scope that was delegated to us;
//! 2. the nearest group above in which we may make a child, which passes the controllers on or can be made to.

use std::io;
use std::path::Path;

use fs_err as fs;
use rustix::fs::Access;
use rustix::process::Pid;

use super::directory::{self, Directory, Setting};
use super::discover::Place;
use super::name::{self, Name};
use super::{Limit, Obstacle, Wanted};
use crate::processes::Stat;

/// Limits swap; buffers of sockets are counted as memory.
pub(super) const SWAP: &str = "memory.swap.max";

/// Makes a group whose parent passes the controllers on to it.
pub(super) fn make(place: &Place, controllers: &[&'static str], name: Name) -> Result<Directory, Obstacle> {
    let mut nearest = None;
    for parent in candidates(place) {
        match pass_on(parent, place, controllers).and_then(|()| make_in(parent, name)) {
            Ok(directory) => return Ok(directory),
            Err(obstacle) => {
                nearest.get_or_insert(obstacle);
            }
        }
    }
    Err(nearest.unwrap_or(Obstacle::NoHierarchy))
}

/// Our own group and those above it; never above the group of a run that we are part of, whose limits bind us.
fn candidates(place: &Place) -> impl Iterator<Item = &Path> {
    // Once aside, our group is the one that we stepped out of.
    let own = if place.own.ends_with(name::SELF) { place.own.parent() } else { None };
    let own = own.unwrap_or(&place.own);
    let mut inside = true;
    own.ancestors().take_while(move |group| {
        let is_run = group.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.parse::<Name>().is_ok());
        std::mem::replace(&mut inside, !is_run) && group.starts_with(&place.mount)
    })
}

fn make_in(parent: &Path, name: Name) -> Result<Directory, Obstacle> {
    let failed = |source| Obstacle::Directory { path: parent.to_owned(), source };
    // Whoever moves a process needs to write here, too: it is the common ancestor of both groups.
    rustix::fs::access(parent.join("cgroup.procs"), Access::WRITE_OK).map_err(|errno| failed(errno.into()))?;
    name::sweep(parent);
    Directory::make(parent.join(name.to_string())).map_err(failed)
}

/// Sees to it that the children of a group have the controllers.
fn pass_on(parent: &Path, place: &Place, controllers: &[&'static str]) -> Result<(), Obstacle> {
    let failed = |source| Obstacle::Directory { path: parent.to_owned(), source };
    let control = parent.join("cgroup.subtree_control");
    let passed_on = words(&control).map_err(failed)?;
    let missing: Vec<&'static str> =
        controllers.iter().copied().filter(|name| !passed_on.iter().any(|word| word == name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let offered = words(&parent.join("cgroup.controllers")).map_err(failed)?;
    if let Some(&controller) = missing.iter().find(|name| !offered.iter().any(|word| word == *name)) {
        return Err(Obstacle::NotOffered { path: parent.to_owned(), controller });
    }
    let request = missing.iter().map(|name| format!("+{name}")).collect::<Vec<_>>().join(" ");
    let enable = || {
        directory::write(&control, &request).map_err(|source| match source.kind() {
            io::ErrorKind::ResourceBusy => Obstacle::Occupied { path: parent.to_owned() },
            _ => failed(source),
        })
    };
    // The root of all groups may hold processes; it is the one without a type.
    if parent == place.own && parent.join("cgroup.type").exists() {
        rustix::fs::access(&control, Access::WRITE_OK).map_err(|errno| failed(errno.into()))?;
        let aside = step_aside(parent)?;
        return enable().inspect_err(|_| aside.step_back(parent));
    }
    enable()
}

/// The processes that were moved into a leaf of their group.
struct Aside {
    moved: Vec<Pid>,
}

/// Moves this process, the one that started it and those that it started out of the way. They stay there.
fn step_aside(group: &Path) -> Result<Aside, Obstacle> {
    let failed = |source| Obstacle::Directory { path: group.to_owned(), source };
    let listed = words(&group.join("cgroup.procs")).map_err(failed)?;
    // Processes outside our pid namespace are listed as 0, and are not ours.
    let ours = listed.iter().map(|word| word.parse().ok().and_then(Pid::from_raw).filter(|&pid| is_ours(pid)));
    let Some(ours) = ours.collect::<Option<Vec<Pid>>>() else {
        return Err(Obstacle::Occupied { path: group.to_owned() });
    };
    let leaf = group.join(name::SELF);
    match fs::create_dir(&leaf) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    let mut aside = Aside { moved: Vec::new() };
    for pid in ours {
        if let Err(error) = directory::write(&leaf.join("cgroup.procs"), &pid.as_raw_nonzero().to_string()) {
            aside.step_back(group);
            return Err(failed(error));
        }
        aside.moved.push(pid);
    }
    Ok(aside)
}

/// Tells whether a process is our parent, ourselves, or was started by us or by one that we started.
fn is_ours(pid: Pid) -> bool {
    let us = rustix::process::getpid();
    let mut ancestry = std::iter::successors(Some(pid), |&pid| parent_of(pid));
    Some(pid) == rustix::process::getppid() || ancestry.any(|ancestor| ancestor == us)
}

fn parent_of(pid: Pid) -> Option<Pid> {
    Stat::of(pid.as_raw_nonzero().get()).and_then(|stat| Pid::from_raw(stat.parent))
}

impl Aside {
    fn step_back(&self, group: &Path) {
        for pid in &self.moved {
            // A process that cannot go back is as well off in the leaf.
            let _ = directory::write(&group.join("cgroup.procs"), &pid.as_raw_nonzero().to_string());
        }
        let _ = fs::remove_dir(group.join(name::SELF)); // fails while somebody is in it, rightly
    }
}

fn words(path: &Path) -> io::Result<Vec<String>> {
    Ok(fs::read_to_string(path)?.split_whitespace().map(str::to_owned).collect())
}

/// Returns what must be written for a limit.
pub(super) fn settings(limit: Limit, wanted: &Wanted) -> Vec<Setting> {
    match limit {
        Limit::Memory => wanted
            .memory_in_pages()
            .map_or_else(Vec::new, |bytes| vec![Setting::required("memory.max", bytes), Setting::optional(SWAP, 0)]),
        Limit::Cpus => wanted
            .quota()
            .map(|quota| Setting::required("cpu.max", format_args!("{quota} {}", Wanted::PERIOD)))
            .into_iter()
            .collect(),
        Limit::Processes => wanted.processes.iter().map(|count| Setting::required("pids.max", count)).collect(),
        Limit::TreeKill => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(own: &str, expected: &[&str]) {
        let place = Place { mount: "/sys/fs/cgroup".into(), own: own.into() };
        assert_eq!(candidates(&place).collect::<Vec<_>>(), expected.iter().map(Path::new).collect::<Vec<_>>());
    }

    #[test]
    fn the_search_climbs_from_our_own_group_to_the_mount() {
        check("/sys/fs/cgroup", &["/sys/fs/cgroup"]);
        check("/sys/fs/cgroup/a/b", &["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"]);
        check("/sys/fs/cgroup/a/ringfence-self", &["/sys/fs/cgroup/a", "/sys/fs/cgroup"]);
    }

    #[test]
    fn the_search_does_not_leave_the_group_of_an_outer_run() {
        check("/sys/fs/cgroup/a/ringfence-7-8-9", &["/sys/fs/cgroup/a/ringfence-7-8-9"]);
        check(
            "/sys/fs/cgroup/a/ringfence-7-8-9/b",
            &["/sys/fs/cgroup/a/ringfence-7-8-9/b", "/sys/fs/cgroup/a/ringfence-7-8-9"],
        );
    }

    #[test]
    fn limits_are_written_as_version_2_spells_them() {
        let wanted = Wanted { memory: Some((1 << 20) + 1), cpus: Some(1.5), processes: Some(7), tree_kill: true };
        let written: Vec<String> = Limit::ALL
            .iter()
            .flat_map(|&limit| settings(limit, &wanted))
            .map(|setting| format!("{}={}", setting.file, setting.value))
            .collect();
        assert_eq!(written, ["memory.max=1048576", "memory.swap.max=0", "cpu.max=150000 100000", "pids.max=7"]);
    }

    /// A directory that looks like a group, as far as plain files can.
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
        pass_on(group.path(), &place, controllers)
    }

    #[test]
    fn a_group_that_already_passes_the_controllers_on_is_left_alone() {
        let group = imitation("memory pids", "cpu memory pids", "1\n2\n");
        pass_on_in(&group, &["pids", "memory"]).unwrap();
        assert_eq!(fs::read_to_string(group.path().join("cgroup.subtree_control")).unwrap(), "memory pids");
    }

    #[test]
    fn a_controller_that_is_not_offered_is_named() {
        let group = imitation("", "memory pids", "");
        let obstacle = pass_on_in(&group, &["memory", "cpu"]).unwrap_err();
        assert!(matches!(obstacle, Obstacle::NotOffered { controller: "cpu", .. }), "{obstacle}");
    }

    #[test]
    fn we_our_parent_and_our_children_are_ours_and_nobody_else_is() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(is_ours(Pid::from_child(&child)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_ours(rustix::process::getpid()));
        let parent = rustix::process::getppid().unwrap();
        assert!(is_ours(parent));
        if let Some(stranger) = parent_of(parent) {
            assert!(!is_ours(stranger));
        }
    }

    #[test]
    fn a_scope_of_our_own_passes_controllers_on_after_we_stepped_aside() {
        // Plain files show what would be written where; the last write to a file stays.
        let us = std::process::id();
        let group = imitation("", "memory pids", &format!("{us}\n"));
        let leaf = group.path().join(name::SELF);
        fs::create_dir(&leaf).unwrap();
        fs::write(leaf.join("cgroup.procs"), "").unwrap();
        pass_on_in(&group, &["memory", "pids"]).unwrap();
        assert_eq!(fs::read_to_string(leaf.join("cgroup.procs")).unwrap(), us.to_string());
        assert_eq!(fs::read_to_string(group.path().join("cgroup.subtree_control")).unwrap(), "+memory +pids");
    }

    #[test]
    fn a_group_with_strangers_in_it_is_not_touched() {
        let group = imitation("", "memory", &format!("{}\n0\n", std::process::id()));
        let obstacle = pass_on_in(&group, &["memory"]).unwrap_err();
        assert!(matches!(obstacle, Obstacle::Occupied { .. }), "{obstacle}");
        assert!(!group.path().join(name::SELF).exists());
    }
}
