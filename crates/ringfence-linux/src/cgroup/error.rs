//! Errors of creating a control group, and hints about what to do.

use std::io;
use std::path::PathBuf;

use super::CgroupLimit;

/// An error of creating a control group.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CgroupError {
    /// The files that name the cgroup mounts and the cgroups of this process cannot be read.
    #[error("cannot find out where control groups are mounted")]
    Discover {
        /// Error of reading these files.
        source: io::Error,
    },
    /// No group can be created that enforces the limit.
    #[error("no control group can limit {limit}")]
    Unavailable {
        /// Limit that was requested.
        limit: CgroupLimit,
        /// Obstacle that prevents the group.
        source: CgroupObstacle,
    },
    /// The kernel refused a value.
    #[error("cannot write `{value}` to `{}`", path.display())]
    Set {
        /// Path of the group's file.
        path: PathBuf,
        /// Value that was written.
        value: String,
        /// Error of the write.
        source: io::Error,
    },
    /// The kernel accepted a value but stored another.
    #[error("`{}` holds `{kept}` after `{value}` was written to it", path.display())]
    NotKept {
        /// Path of the group's file.
        path: PathBuf,
        /// Value that was written.
        value: String,
        /// Value that was read afterwards.
        kept: String,
    },
}

impl CgroupError {
    /// Returns advice on how to solve the problem.
    pub fn hint(&self) -> &'static str {
        let Self::Unavailable { source: obstacle, .. } = self else {
            return "the groups above set a tighter bound, or the value is out of the kernel's \
                range";
        };
        match obstacle {
            CgroupObstacle::Directory { source, .. }
                if source.kind() == io::ErrorKind::ReadOnlyFilesystem =>
            {
                "the cgroup filesystem is read-only: make it writable, or start the container with \
                 a writable one"
            }
            CgroupObstacle::Bounded { .. } => {
                "give the limit to a delegated scope: systemd-run --user --scope -p Delegate=yes \
                 -p MemoryMax=… -- ringfence run …"
            }
            CgroupObstacle::NotOffered { .. } if is_in_users_manager() => {
                "as root, delegate the controller to users, then log in again: systemctl edit \
                 user@.service, with `[Service]` and `Delegate=cpu cpuset io memory pids`"
            }
            _ if !rustix::process::geteuid().is_root() => {
                "run it in a delegated scope: systemd-run --user --scope -p Delegate=yes -- \
                 ringfence run …"
            }
            CgroupObstacle::NoHierarchy
            | CgroupObstacle::NotBound { .. }
            | CgroupObstacle::NotOffered { .. } => {
                "mount the cgroup filesystem with this controller, and enable it in the groups \
                 above"
            }
            CgroupObstacle::Occupied { .. }
            | CgroupObstacle::Directory { .. }
            | CgroupObstacle::NoScope { .. } => {
                "run it in a scope of its own: systemd-run --scope -p Delegate=yes -- ringfence \
                 run …"
            }
        }
    }
}

/// Returns true if this process is managed by an unprivileged user's systemd, whose controllers
/// root chooses.
fn is_in_users_manager() -> bool {
    let memberships = fs_err::read_to_string("/proc/self/cgroup").unwrap_or_default();
    !rustix::process::geteuid().is_root() && memberships.contains("/user@")
}

/// An obstacle to creating a control group.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CgroupObstacle {
    /// No cgroup file system is mounted.
    #[error("no cgroup filesystem is mounted")]
    NoHierarchy,
    /// The kernel lacks the controller, or no mounted hierarchy has it.
    #[error("no mounted cgroup filesystem has the `{controller}` controller")]
    NotBound {
        /// Name of the controller.
        controller: &'static str,
    },
    /// The groups above do not delegate the controller.
    #[error("`{}` is not given the `{controller}` controller", path.display())]
    NotOffered {
        /// Directory of the group that lacks the controller.
        path: PathBuf,
        /// Name of the controller.
        controller: &'static str,
    },
    /// The group holds other processes and therefore cannot delegate controllers to its children.
    #[error("`{}` holds other processes, so it cannot pass controllers on", path.display())]
    Occupied {
        /// Directory of the group.
        path: PathBuf,
    },
    /// Our group belongs to systemd, which did not give us a scope of our own.
    #[error("`{}` belongs to systemd, which gives no scope: {reason}", path.display())]
    NoScope {
        /// Directory of our group.
        path: PathBuf,
        /// Answer of systemd, or the reason for which it could not be asked.
        reason: String,
    },
    /// A scope of systemd would escape a limit that applies to this process.
    #[error("a scope of systemd's would escape the limit `{}` of this process", path.display())]
    Bounded {
        /// File that sets the limit.
        path: PathBuf,
    },
    /// This process may not create a group in the directory.
    #[error("cannot make a group in `{}`", path.display())]
    Directory {
        /// Directory of the group.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
}
