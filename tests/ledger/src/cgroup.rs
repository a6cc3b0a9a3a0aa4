//! Probe for the right to make a cgroup that limits memory and processes: version 2 first, then
//! version 1.

use std::path::{Path, PathBuf};

/// Creates such a cgroup and removes it again. Returns the reason if that fails.
pub(crate) fn limits() -> Result<(), String> {
    let membership = read("/proc/self/cgroup")?;
    let mounts = read("/proc/self/mountinfo")?;
    let unified = unified(&mounts, &membership);
    let Err(why_not_two) = unified else { return Ok(()) };
    let legacy = ["memory", "pids"]
        .into_iter()
        .try_for_each(|controller| legacy(controller, &mounts, &membership));
    legacy.map_err(|why_not_one| format!("cgroup v2: {why_not_two}; cgroup v1: {why_not_one}"))
}

fn read(path: &str) -> Result<String, String> {
    fs_err::read_to_string(path).map_err(|error| error.to_string())
}

fn unified(mounts: &str, membership: &str) -> Result<(), String> {
    let own = own_cgroup(mounts, membership, Hierarchy::Unified).ok_or("it is not mounted")?;
    let child = Child::make_in(&own)?;
    let has = |file: &str| child.0.join(file).exists();
    if !(has("memory.max") && has("pids.max")) {
        // The kernel refuses this write with EBUSY if the parent has processes of its own, unless
        // the parent is the root (cgroup-v2.rst).
        fs_err::write(own.join("cgroup.subtree_control"), "+memory +pids")
            .map_err(|error| error.to_string())?;
    }
    fs_err::write(child.0.join("memory.max"), "67108864").map_err(|error| error.to_string())?;
    fs_err::write(child.0.join("pids.max"), "64").map_err(|error| error.to_string())
}

fn legacy(controller: &str, mounts: &str, membership: &str) -> Result<(), String> {
    let own = own_cgroup(mounts, membership, Hierarchy::Legacy(controller))
        .ok_or_else(|| format!("the {controller} controller is not mounted"))?;
    let child = Child::make_in(&own)?;
    let (file, limit) = if controller == "memory" {
        ("memory.limit_in_bytes", "67108864")
    } else {
        ("pids.max", "64")
    };
    fs_err::write(child.0.join(file), limit).map_err(|error| error.to_string())
}

#[derive(Clone, Copy)]
enum Hierarchy<'a> {
    Unified,
    Legacy(&'a str),
}

/// Returns the directory of this process's own cgroup, as proc_pid_cgroup(5) and
/// proc_pid_mountinfo(5) describe it.
fn own_cgroup(mounts: &str, membership: &str, hierarchy: Hierarchy<'_>) -> Option<PathBuf> {
    let path = membership.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let belongs = match hierarchy {
            Hierarchy::Unified => controllers.is_empty(),
            Hierarchy::Legacy(name) => controllers.split(',').any(|controller| controller == name),
        };
        belongs.then_some(path)
    })?;
    let (root, point) = mounts.lines().find_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut filesystem = filesystem.split(' ');
        let (kind, options) = (filesystem.next()?, filesystem.nth(1)?);
        let belongs = match hierarchy {
            Hierarchy::Unified => kind == "cgroup2",
            Hierarchy::Legacy(name) => {
                kind == "cgroup" && options.split(',').any(|option| option == name)
            }
        };
        let mut mount = mount.split(' ').skip(3);
        belongs.then_some((mount.next()?, mount.next()?))
    })?;
    let below = Path::new(path).strip_prefix(root).ok()?;
    Some(Path::new(point).join(below))
}

/// A cgroup for the probe, removed when the value is dropped.
struct Child(PathBuf);

impl Child {
    fn make_in(parent: &Path) -> Result<Self, String> {
        let path = parent.join(format!("ringfence-probe-{}", std::process::id()));
        fs_err::create_dir(&path).map_err(|error| error.to_string())?;
        Ok(Self(path))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // No process entered the cgroup, so this only fails if the parent is gone.
        let _ = fs_err::remove_dir(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
36 31 0:33 /docker/7 /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const MEMBERSHIP: &str = "4:memory:/jobs/1\n3:cpu,pids:/docker/7/run\n0::/user.slice\n";

    #[track_caller]
    fn check(hierarchy: Hierarchy<'_>, expected: Option<&str>) {
        assert_eq!(own_cgroup(MOUNTS, MEMBERSHIP, hierarchy).as_deref(), expected.map(Path::new));
    }

    #[test]
    fn the_own_cgroup_is_found_in_each_hierarchy() {
        check(Hierarchy::Unified, Some("/sys/fs/cgroup/unified/user.slice"));
        check(Hierarchy::Legacy("memory"), Some("/sys/fs/cgroup/memory/jobs/1"));
    }

    #[test]
    fn a_mount_of_a_part_of_the_hierarchy_is_subtracted() {
        check(Hierarchy::Legacy("pids"), Some("/sys/fs/cgroup/pids/run"));
    }

    #[test]
    fn a_controller_that_is_not_mounted_has_no_directory() {
        check(Hierarchy::Legacy("cpu"), None);
    }
}
