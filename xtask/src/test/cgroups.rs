//! The cgroups that engines make and leave: removed with the run.

use std::path::{Path, PathBuf};

use anyhow::Result;

/// What the name of a run's cgroup starts with; the id of the process that made it follows.
const PREFIX: &str = "ringfence-test-";
/// Where Podman puts its containers, whatever its configuration says.
const PODMAN: &str = "libpod_parent";

/// The cgroups of one run, in every hierarchy.
pub(super) struct Cgroups {
    name: String,
    hierarchies: Vec<PathBuf>,
    /// Whether another Podman was there first; what it uses stays.
    podman_was_there: bool,
}

impl Cgroups {
    /// Claims a name for the run, after removing what interrupted runs left behind.
    pub(super) fn claim() -> Result<Self> {
        let hierarchies = hierarchies(&fs_err::read_to_string("/proc/self/mountinfo")?);
        for hierarchy in &hierarchies {
            for entry in fs_err::read_dir(hierarchy)? {
                let entry = entry?;
                let process = entry.file_name().to_str().and_then(|name| name.strip_prefix(PREFIX)).map(str::to_owned);
                if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
                    remove(&entry.path());
                }
            }
        }
        let podman_was_there = hierarchies.iter().any(|hierarchy| hierarchy.join(PODMAN).exists());
        Ok(Self { name: format!("{PREFIX}{}", std::process::id()), hierarchies, podman_was_there })
    }

    /// Names the cgroup for containers of the run, below the root of each hierarchy.
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for hierarchy in &self.hierarchies {
            remove(&hierarchy.join(&self.name));
            if !self.podman_was_there {
                remove(&hierarchy.join(PODMAN));
            }
        }
    }
}

/// Removes a cgroup and those below it, as far as no process is in them.
fn remove(cgroup: &Path) {
    for entry in fs_err::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    let _ = fs_err::remove_dir(cgroup); // never made, or in use: then it is not ours to remove
}

/// Lists where cgroups of either version are mounted, by proc_pid_mountinfo(5).
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
    fn cgroups_are_found_wherever_they_are_mounted() {
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
