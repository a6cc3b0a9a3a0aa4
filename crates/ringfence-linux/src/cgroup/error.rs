//! Why a group could not be had, and what to do about it.

use std::io;
use std::path::PathBuf;

use super::Limit;

/// Why a group could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CgroupError {
    /// The files that tell where control groups are cannot be read.
    #[error("cannot find out where control groups are mounted")]
    Discover {
        /// What the kernel said.
        source: io::Error,
    },
    /// No group can be made that could hold the limit.
    #[error("no control group can limit {limit}")]
    Unavailable {
        /// The limit that was wanted.
        limit: Limit,
        /// What stood in the way.
        source: Obstacle,
    },
    /// The kernel refused a value.
    #[error("cannot write `{value}` to `{}`", path.display())]
    Set {
        /// The file of the group.
        path: PathBuf,
        /// The value.
        value: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel took a value and kept another.
    #[error("`{}` holds `{kept}` after `{value}` was written to it", path.display())]
    NotKept {
        /// The file of the group.
        path: PathBuf,
        /// What was written.
        value: String,
        /// What was read afterwards.
        kept: String,
    },
}

impl CgroupError {
    /// Returns what somebody can do about it.
    pub fn hint(&self) -> &'static str {
        let Self::Unavailable { source: obstacle, .. } = self else {
            return "the groups above set a tighter bound, or the value is out of the kernel's range";
        };
        match obstacle {
            Obstacle::Directory { source, .. } if source.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                "the cgroup filesystem is read-only: make it writable, or start the container with a writable one"
            }
            Obstacle::Bounded { .. } => {
                "give the limit to a delegated scope: systemd-run --user --scope -p Delegate=yes -p MemoryMax=… \
                 -- ringfence run …"
            }
            Obstacle::NotOffered { .. } if is_in_users_manager() => {
                "as root, delegate the controller to users, then log in again: systemctl edit user@.service, with \
                 `[Service]` and `Delegate=cpu cpuset io memory pids`"
            }
            _ if !rustix::process::geteuid().is_root() => {
                "run it in a delegated scope: systemd-run --user --scope -p Delegate=yes -- ringfence run …"
            }
            Obstacle::NoHierarchy | Obstacle::NotBound { .. } | Obstacle::NotOffered { .. } => {
                "mount the cgroup filesystem with this controller, and enable it in the groups above"
            }
            Obstacle::Occupied { .. } | Obstacle::Directory { .. } | Obstacle::NoScope { .. } => {
                "run it in a scope of its own: systemd-run --scope -p Delegate=yes -- ringfence run …"
            }
        }
    }
}

/// Tells whether this process is part of an ordinary user's systemd, whose controllers root chooses.
fn is_in_users_manager() -> bool {
    let memberships = fs_err::read_to_string("/proc/self/cgroup").unwrap_or_default();
    !rustix::process::geteuid().is_root() && memberships.contains("/user@")
}

/// What stands in the way of a group.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Obstacle {
    /// There are no control groups.
    #[error("no cgroup filesystem is mounted")]
    NoHierarchy,
    /// The kernel lacks the controller, or nobody mounted it.
    #[error("no mounted cgroup filesystem has the `{controller}` controller")]
    NotBound {
        /// The controller.
        controller: &'static str,
    },
    /// The groups above do not pass the controller on.
    #[error("`{}` is not given the `{controller}` controller", path.display())]
    NotOffered {
        /// The group.
        path: PathBuf,
        /// The controller.
        controller: &'static str,
    },
    /// Other processes are in the group, which therefore cannot pass controllers on.
    #[error("`{}` holds other processes, so it cannot pass controllers on", path.display())]
    Occupied {
        /// The group.
        path: PathBuf,
    },
    /// Our group belongs to systemd, which did not give us one of our own.
    #[error("`{}` belongs to systemd, which gives no scope: {reason}", path.display())]
    NoScope {
        /// Our group.
        path: PathBuf,
        /// The answer of systemd, or the reason for which it could not be asked.
        reason: String,
    },
    /// A scope of systemd's would be free of a limit that binds us.
    #[error("a scope of systemd's would escape the limit `{}` of this process", path.display())]
    Bounded {
        /// The file that sets the limit.
        path: PathBuf,
    },
    /// The directory is not ours to use.
    #[error("cannot make a group in `{}`", path.display())]
    Directory {
        /// The group.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}
