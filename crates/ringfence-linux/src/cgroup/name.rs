//! Names of control groups, which identify their owners, and the sweep of groups whose owner is
//! gone.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use fs_err as fs;

use super::directory::CgroupDirectory;

/// Name of the leaf into which ringfence moves the processes of its own group, so that its own
/// group may delegate controllers.
pub(super) const OWN_LEAF_NAME: &str = "ringfence-self";

/// The name of a run's group, `ringfence-<pid>-<start time in ticks>-<n>`. The start time is needed
/// because the kernel reuses pids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CgroupName {
    owner: OwnerProcess,
    count: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OwnerProcess {
    pid: u32,
    started: u64,
}

impl CgroupName {
    /// Creates a name that this process has not used yet.
    pub(super) fn next() -> std::io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let stat = fs::read_to_string("/proc/self/stat")?;
        let owner = OwnerProcess::parse(&stat).ok_or(std::io::ErrorKind::InvalidData)?;
        Ok(Self { owner, count: COUNT.fetch_add(1, Ordering::Relaxed) })
    }

    fn owner_is_gone(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.owner.pid)).unwrap_or_default();
        OwnerProcess::parse(&stat) != Some(self.owner)
    }
}

impl OwnerProcess {
    /// Parses proc_pid_stat(5). The command's name, in parentheses, may hold any character,
    /// parentheses included.
    fn parse(stat: &str) -> Option<Self> {
        let pid = stat.split_once(' ')?.0.parse().ok()?;
        let started = stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()?;
        Some(Self { pid, started })
    }
}

impl fmt::Display for CgroupName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ringfence-{}-{}-{}", self.owner.pid, self.owner.started, self.count)
    }
}

impl FromStr for CgroupName {
    type Err = ForeignCgroupName;

    fn from_str(name: &str) -> Result<Self, ForeignCgroupName> {
        let mut numbers = name
            .strip_prefix("ringfence-")
            .ok_or(ForeignCgroupName)?
            .split('-')
            .map(str::parse::<u64>);
        let mut number = || numbers.next().and_then(Result::ok).ok_or(ForeignCgroupName);
        let (pid, started, count) = (number()?, number()?, number()?);
        if numbers.next().is_some() {
            return Err(ForeignCgroupName);
        }
        Ok(Self {
            owner: OwnerProcess {
                pid: u32::try_from(pid).map_err(|_| ForeignCgroupName)?,
                started,
            },
            count,
        })
    }
}

/// The error for a name that is not the name of a run's group.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ForeignCgroupName;

/// Ends and removes the groups in a directory whose owner is gone. The next sweep retries a removal
/// that fails.
///
/// An owner in another pid namespace looks as if it were gone. Therefore a group counts as
/// abandoned only if no process holds its lock either.
pub(super) fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_str().and_then(|name| name.parse::<CgroupName>().ok());
        if name.is_some_and(|name| name.owner_is_gone())
            && let Ok(abandoned) = CgroupDirectory::adopt(entry.path())
        {
            let _ = abandoned.kill(); // the removal below fails if a process is left
            let _ = abandoned.remove(); // the next sweep tries again
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_back_as_it_was_written() {
        let name = CgroupName::next().unwrap();
        assert_eq!(name.to_string().parse(), Ok(name));
        assert_ne!(CgroupName::next().unwrap(), name);
        assert!(!name.owner_is_gone());
    }

    #[test]
    fn names_of_other_groups_are_not_parsed() {
        for name in [
            "ringfence-self",
            "ringfence-1-2",
            "ringfence-1-2-3-4",
            "ringfence-1-2-x",
            "user.slice",
            "ringfence-4294967296-1-1",
        ] {
            assert_eq!(name.parse::<CgroupName>(), Err(ForeignCgroupName), "{name}");
        }
    }

    #[test]
    fn an_owner_is_gone_if_its_pid_was_reused() {
        let mut name = CgroupName::next().unwrap();
        name.owner.started += 1;
        assert!(name.owner_is_gone());
    }

    #[test]
    fn a_command_name_with_parentheses_does_not_confuse_the_start_time() {
        let stat = "17 (a) R (b) S 1 17 17 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 2 3";
        assert_eq!(OwnerProcess::parse(stat), Some(OwnerProcess { pid: 17, started: 4711 }));
    }
}
