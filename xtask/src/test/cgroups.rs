//! The cgroups that engines make and leave behind. They are removed at the end of the run.

use std::path::{Path, PathBuf};

use anyhow::Result;

/// Prefix of the name of a run's cgroup. The id of the process that made the cgroup follows.
const CGROUP_PREFIX: &str = "ringfence-test-";
/// Cgroup in which Podman puts its containers, regardless of its configuration.
const PODMAN_CGROUP: &str = "libpod_parent";

/// The cgroups of one run, in every hierarchy.
pub(super) struct RunCgroups {
    name: String,
    hierarchies: Vec<PathBuf>,
    /// True if the cgroup of another Podman existed before, in which case it is kept.
    podman_was_there: bool,
}

impl RunCgroups {
    /// Claims a name for the run, and removes the cgroups that interrupted runs left behind.
    pub(super) fn claim() -> Result<Self> {
        remove_ended_cgroups(CGROUP_PREFIX)?;
        let hierarchies = mounted_hierarchies()?;
        let podman_was_there =
            hierarchies.iter().any(|hierarchy| hierarchy.join(PODMAN_CGROUP).exists());
        Ok(Self {
            name: format!("{CGROUP_PREFIX}{}", std::process::id()),
            hierarchies,
            podman_was_there,
        })
    }

    /// Returns the name of the cgroup for containers of the run, below the root of each hierarchy.
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for RunCgroups {
    fn drop(&mut self) {
        for hierarchy in &self.hierarchies {
            remove(&hierarchy.join(&self.name));
            if !self.podman_was_there {
                remove(&hierarchy.join(PODMAN_CGROUP));
            }
        }
    }
}

/// Removes the cgroups of runs whose process has ended. Their names are a prefix and the id of the
/// process.
pub(crate) fn remove_ended_cgroups(prefix: &str) -> Result<()> {
    for hierarchy in mounted_hierarchies()? {
        for entry in fs_err::read_dir(hierarchy)? {
            let entry = entry?;
            let name = entry.file_name();
            let process = name.to_str().and_then(|name| name.strip_prefix(prefix));
            if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
                remove(&entry.path());
            }
        }
    }
    Ok(())
}

/// Removes the cgroup with this name from every hierarchy, unless a process is in it.
pub(crate) fn remove_cgroup_everywhere(name: &str) -> Result<()> {
    for hierarchy in mounted_hierarchies()? {
        remove(&hierarchy.join(name));
    }
    Ok(())
}

fn mounted_hierarchies() -> Result<Vec<PathBuf>> {
    Ok(hierarchies(&fs_err::read_to_string("/proc/self/mountinfo")?))
}

/// Removes a cgroup and its descendants, unless a process is in them.
fn remove(cgroup: &Path) {
    for entry in fs_err::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    // The cgroup was never made, or is in use and not ours to remove.
    let _ = fs_err::remove_dir(cgroup);
}

/// Returns the mount points of cgroup hierarchies of both versions, from proc_pid_mountinfo(5).
fn hierarchies(mounts: &str) -> Vec<PathBuf> {
    let hierarchies = mounts.lines().filter_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let is_cgroup = matches!(filesystem.split(' ').next()?, "cgroup" | "cgroup2");
        is_cgroup.then(|| mount.split(' ').nth(4).map(PathBuf::from))?
    });
    hierarchies.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_hierarchies_are_found_at_any_mount_point() {
        let mounts = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
        let expected = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified"].map(PathBuf::from);
        assert_eq!(hierarchies(mounts), expected);
    }

    #[test]
    fn a_tree_of_empty_cgroups_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let cgroup = directory.path().join("run");
        fs_err::create_dir_all(cgroup.join("container/child")).unwrap();
        remove(&cgroup);
        assert!(!cgroup.exists());
    }
}
