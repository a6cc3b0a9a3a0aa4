//! Finding the control groups of this process in `/proc/self/cgroup` and `/proc/self/mountinfo`.
//!
//! The parsers are pure: they turn text into paths (cgroups(7), proc_pid_mountinfo(5)).

use std::path::{Path, PathBuf};

/// Every hierarchy whose mount this process can see.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CgroupHierarchies {
    /// Hierarchy of version 2, with or without controllers.
    pub(super) unified: Option<CgroupLocation>,
    /// Hierarchies of version 1.
    pub(super) legacy: Vec<LegacyHierarchy>,
}

/// A hierarchy of version 1 and the controllers that are bound to it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LegacyHierarchy {
    pub(super) controllers: Vec<String>,
    pub(super) place: CgroupLocation,
}

/// The mount point of a hierarchy and this process's group below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CgroupLocation {
    pub(super) mount: PathBuf,
    pub(super) own: PathBuf,
}

impl CgroupHierarchies {
    /// Finds the hierarchies of this process.
    pub(super) fn for_this_process() -> std::io::Result<Self> {
        let read =
            |path| fs_err::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ok(Self::parse(&read("/proc/self/cgroup")?, &read("/proc/self/mountinfo")?))
    }

    /// Parses the texts of `/proc/self/cgroup` and `/proc/self/mountinfo`.
    pub(super) fn parse(memberships: &str, mounts: &str) -> Self {
        let memberships: Vec<CgroupMembership<'_>> =
            memberships.lines().filter_map(CgroupMembership::parse).collect();
        let mounts: Vec<CgroupMount> = mounts.lines().filter_map(CgroupMount::parse).collect();
        let mut found = Self::default();
        for membership in &memberships {
            let mut candidates = mounts.iter().filter(|mount| mount.carries(membership));
            let Some(first) = candidates.clone().next() else { continue };
            // One hierarchy may be mounted more than once, and with another root. Prefer a mount
            // that shows our group.
            let mount =
                candidates.find(|mount| mount.below(membership.path).is_some()).unwrap_or(first);
            let place = mount.locate(membership.path);
            if membership.controllers.is_empty() {
                found.unified = Some(place);
            } else {
                let controllers =
                    membership.controllers.iter().map(|&name| name.to_owned()).collect();
                found.legacy.push(LegacyHierarchy { controllers, place });
            }
        }
        found
    }

    /// Returns this process's place in the version 1 hierarchy of a controller.
    pub(super) fn legacy_location(&self, controller: &str) -> Option<&CgroupLocation> {
        let mut bound = self
            .legacy
            .iter()
            .filter(|legacy| legacy.controllers.iter().any(|name| name == controller));
        bound.next().map(|legacy| &legacy.place)
    }
}

/// Lists the mount points of every hierarchy, whether or not this process has a group in it.
pub(super) fn mount_points(mounts: &str) -> Vec<PathBuf> {
    mounts.lines().filter_map(CgroupMount::parse).map(|mount| mount.point).collect()
}

/// A line of `/proc/self/cgroup`: `number:controllers:path`.
struct CgroupMembership<'text> {
    controllers: Vec<&'text str>,
    path: &'text Path,
}

impl<'text> CgroupMembership<'text> {
    fn parse(line: &'text str) -> Option<Self> {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let controllers = controllers.split(',').filter(|name| !name.is_empty()).collect();
        Some(Self { controllers, path: Path::new(path) })
    }
}

/// A line of `/proc/self/mountinfo` whose file system is `cgroup` or `cgroup2`.
struct CgroupMount {
    root: PathBuf,
    point: PathBuf,
    /// Options of the file system, which name the controllers of version 1; `None` for version 2.
    options: Option<Vec<String>>,
}

impl CgroupMount {
    fn parse(line: &str) -> Option<Self> {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (unescape(mount.next()?), unescape(mount.next()?));
        let mut filesystem = filesystem.split(' ');
        let options = match filesystem.next()? {
            "cgroup2" => None,
            "cgroup" => Some(filesystem.nth(1)?.split(',').map(str::to_owned).collect()),
            _ => return None,
        };
        Some(Self { root: root.into(), point: point.into(), options })
    }

    fn carries(&self, membership: &CgroupMembership<'_>) -> bool {
        match &self.options {
            None => membership.controllers.is_empty(),
            Some(options) => membership
                .controllers
                .iter()
                .any(|name| options.iter().any(|option| option == name)),
        }
    }

    fn below<'path>(&self, path: &'path Path) -> Option<&'path Path> {
        path.strip_prefix(&self.root).ok().filter(|path| !path.starts_with(".."))
    }

    /// Returns the place of the group `path` in this mount.
    ///
    /// If the mount does not show the group (for example a container's mount, seen from outside its
    /// namespace), the place is the topmost group that the mount shows.
    fn locate(&self, path: &Path) -> CgroupLocation {
        let own = match self.below(path) {
            Some(below) if below != Path::new("") => self.point.join(below),
            _ => self.point.clone(),
        };
        CgroupLocation { mount: self.point.clone(), own }
    }
}

/// Decodes the kernel's octal escapes of space, tab, newline and backslash.
fn unescape(field: &str) -> String {
    let mut pieces = field.split('\\');
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let code = piece.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                plain.push(char::from(code));
                plain.push_str(&piece[3..]);
            }
            None => {
                plain.push('\\');
                plain.push_str(piece);
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(mount: &str, own: &str) -> CgroupLocation {
        CgroupLocation { mount: mount.into(), own: own.into() }
    }

    #[test]
    fn a_pure_version_2_host_has_one_hierarchy() {
        let found = CgroupHierarchies::parse(
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/term.scope\n",
            "24 30 0:22 / /sys/kernel/security rw,nosuid - securityfs securityfs rw\n\
             35 24 0:30 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 \
             cgroup2 rw,nsdelegate\n",
        );
        let own =
            "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/term.scope";
        assert_eq!(found.unified, Some(place("/sys/fs/cgroup", own)));
        assert!(found.legacy.is_empty());
    }

    #[test]
    fn a_version_1_host_has_a_hierarchy_per_controller_or_pair() {
        let found = CgroupHierarchies::parse(
            "4:memory:/user.slice\n3:cpu,cpuacct:/\n2:pids:/user.slice/user-0.slice\n\
             1:name=systemd:/user.slice\n",
            "30 25 0:26 / /sys/fs/cgroup/memory rw shared:10 - cgroup cgroup rw,memory\n\
             31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:11 - cgroup cgroup rw,cpu,cpuacct\n\
             32 25 0:28 / /sys/fs/cgroup/pids rw shared:12 - cgroup cgroup rw,pids\n\
             33 25 0:29 / /sys/fs/cgroup/systemd rw shared:13 - cgroup cgroup \
             rw,xattr,name=systemd\n",
        );
        assert_eq!(found.unified, None);
        assert_eq!(
            found.legacy_location("memory"),
            Some(&place("/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/user.slice"))
        );
        assert_eq!(
            found.legacy_location("cpu"),
            Some(&place("/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct"))
        );
        assert_eq!(
            found.legacy_location("pids").unwrap().own,
            Path::new("/sys/fs/cgroup/pids/user.slice/user-0.slice")
        );
        assert_eq!(found.legacy_location("io"), None);
        assert_eq!(found.legacy.len(), 4);
    }

    #[test]
    fn a_hybrid_host_has_hierarchies_of_both_versions() {
        let found = CgroupHierarchies::parse(
            "4:memory:/jobs/a\n1:cpu:/\n0::/\n",
            "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
             35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n",
        );
        assert_eq!(found.unified, Some(place("/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified")));
        assert_eq!(
            found.legacy_location("memory"),
            Some(&place("/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/jobs/a"))
        );
    }

    #[test]
    fn a_container_sees_its_own_group_at_the_mount_point() {
        // With a cgroup namespace, both files say `/`. Without one, both name the group on the
        // host.
        for root in ["/", "/docker/5f0c"] {
            let found = CgroupHierarchies::parse(
                &format!("0::{root}\n"),
                &format!(
                    "700 650 0:30 {root} /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 \
                     cgroup rw\n"
                ),
            );
            assert_eq!(found.unified, Some(place("/sys/fs/cgroup", "/sys/fs/cgroup")));
        }
    }

    #[test]
    fn a_group_outside_of_the_mount_is_replaced_by_the_topmost_visible_one() {
        let found = CgroupHierarchies::parse(
            "0::/../other\n",
            "700 650 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n",
        );
        assert_eq!(found.unified, Some(place("/sys/fs/cgroup", "/sys/fs/cgroup")));
    }

    #[test]
    fn the_mount_that_shows_the_group_is_preferred() {
        let found = CgroupHierarchies::parse(
            "0::/b/c\n",
            "50 1 0:30 /a /mnt/a rw - cgroup2 cgroup rw\n\
             51 1 0:30 /b /mnt/with\\040space rw - cgroup2 cgroup rw\n",
        );
        assert_eq!(found.unified, Some(place("/mnt/with space", "/mnt/with space/c")));
    }

    #[test]
    fn a_host_without_control_groups_has_no_hierarchy() {
        assert_eq!(
            CgroupHierarchies::parse("", "24 30 0:22 / /proc rw - proc proc rw\n"),
            CgroupHierarchies::default()
        );
        assert_eq!(
            CgroupHierarchies::parse("0::/\n", "not a mount\n"),
            CgroupHierarchies::default()
        );
    }
}
