//! Mounts of the caller's directories whose owner appears as the user in the container, for callers
//! that are root.
//!
//! The mounts exist on the host only while the engine starts a container, which then has its own
//! copies. The mount points are never in a directory that ringfence removes with its contents,
//! because the contents are the caller's.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use ringfence_linux::sys::ownership;
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount};
use rustix::process::{Pid, test_kill_process};

use super::error::ContainerFailure;
use super::identity::FileOwner;
use super::mounts::ContainerBind;
use crate::make_private_directory;

/// Directory of the mount points. The directory belongs to root, because only root uses these
/// mounts.
const MOUNT_BASE: &str = "/run/ringfence-mapped";

/// Mounts that are removed when this value is dropped.
#[derive(Debug, Default)]
pub(super) struct MappedMounts {
    points: Vec<PathBuf>,
}

impl MappedMounts {
    /// Mounts the sources of the caller's `binds` with translated owners, and replaces the sources
    /// with these mounts.
    pub(super) fn mount(
        binds: &mut [ContainerBind],
        from: FileOwner,
        to: FileOwner,
    ) -> Result<MappedMounts, ContainerFailure> {
        let failed = |source| ContainerFailure::Files {
            what: "map the owner of root's files to the user inside",
            source,
        };
        sweep();
        let mut mapped = MappedMounts::default();
        let namespace = ownership::create_id_map((from.user, from.group), (to.user, to.group))
            .map_err(failed)?;
        // A source that lies in another source is reached through the mount of the outer source.
        // Shallow binds come first, so the outer source is already mounted.
        let mut tops: Vec<(PathBuf, PathBuf)> = Vec::new();
        for bind in binds.iter_mut().filter(|bind| bind.is_callers) {
            let known = tops
                .iter()
                .find_map(|(source, point)| Some((point, bind.source.strip_prefix(source).ok()?)));
            let source = match known {
                Some((point, rest)) if rest.as_os_str().is_empty() => point.clone(),
                Some((point, rest)) => point.join(rest),
                None => {
                    let point =
                        mapped.mount_source(&bind.source, namespace.as_fd()).map_err(failed)?;
                    tops.push((bind.source.clone(), point.clone()));
                    point
                }
            };
            bind.source = source;
        }
        Ok(mapped)
    }

    fn mount_source(
        &mut self,
        source: &Path,
        namespace: std::os::fd::BorrowedFd<'_>,
    ) -> io::Result<PathBuf> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_RECURSIVE
            | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
        let tree = open_tree(CWD, source, flags)?;
        ownership::map_mount_ids(tree.as_fd(), namespace)?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let point = Path::new(MOUNT_BASE).join(format!("{}-{number}", std::process::id()));
        make_private_directory(Path::new(MOUNT_BASE))?;
        if source.is_dir() {
            make_private_directory(&point)?
        } else {
            fs_err::write(&point, "")?
        }
        self.points.push(point.clone());
        move_mount(&tree, "", CWD, &point, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        Ok(point)
    }
}

impl Drop for MappedMounts {
    fn drop(&mut self) {
        self.points.iter().for_each(|point| remove(point));
    }
}

/// Removes a mount and its mount point. A mount point that is not empty stays.
fn remove(point: &Path) {
    let _ = unmount(point, UnmountFlags::DETACH); // the point may not be mounted yet
    if rustix::fs::rmdir(point) == Err(Errno::NOTDIR) {
        let _ = rustix::fs::unlink(point); // our own empty file
    }
}

/// Removes mounts of ringfence processes that were killed.
pub(super) fn sweep() {
    for entry in fs_err::read_dir(MOUNT_BASE).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name
            .to_str()
            .and_then(|name| name.split('-').next()?.parse().ok())
            .and_then(Pid::from_raw);
        if owner.is_none_or(|pid| test_kill_process(pid) == Err(Errno::SRCH)) {
            remove(&entry.path());
        }
    }
}
