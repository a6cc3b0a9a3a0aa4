//! Limits that cgroups enforce, for every backend whose sandboxes are process trees of ringfence's.

use std::collections::BTreeMap;
use std::path::Path;

use ringfence_core::{Clause, Plan, Support};
use ringfence_linux::cgroup::{
    self, Cgroup, CgroupError, CgroupLimit, CgroupSupport, CgroupVersion, LimitHolder,
    UncountedMemory, WantedLimits, probe,
};

use super::{GroupNeed, Preparation, ProbeRequest};

/// Clauses that a cgroup enforces.
const CGROUP_CLAUSES: [Clause; 3] = [Clause::Memory, Clause::Cpus, Clause::ProcessCount];
/// Weakness of a limit if the command can write cgroup files.
const CAN_BE_LEFT: &str =
    "the command can write cgroup files, and so leave the group that holds it";
/// Weakness of a memory limit under cgroup v1: memory that v1 does not count. The other socket
/// buffers are limited separately from memory.
const UNCOUNTED_BY_V1: &str = "cgroup v1 limits the buffers of sockets apart, to an eighth of the \
                               limit more, and counts neither their error queues, nor netlink, nor \
                               what UDP is yet to send";

/// Rights that a command has on cgroup files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CgroupAccess {
    /// The caller's rights, because nothing confines the command.
    Callers,
    /// No rights, unless the policy lets the command write where cgroup files are.
    AsPolicySays,
}

impl CgroupAccess {
    fn can_write_cgroups(self, request: &ProbeRequest<'_>) -> bool {
        self == CgroupAccess::Callers || shows_cgroups(request)
    }
}

/// Tells whether the policy lets a command write in a cgroup file system.
fn shows_cgroups(request: &ProbeRequest<'_>) -> bool {
    let files = &request.policy.filesystem;
    let workspace = files.workspace.as_ref().map_or(Path::new("."), |workspace| &workspace.source);
    let writable = files.write.iter().flatten().map(|path| path.as_path()).chain([workspace]);
    let mounts = cgroup::mount_points();
    writable.map(|path| request.host.absolute(path)).any(|given| {
        let resolved = fs_err::canonicalize(&given).unwrap_or(given);
        // A directory is shown together with the mounts below it.
        mounts.iter().any(|mount| mount.starts_with(&resolved) || resolved.starts_with(mount))
    })
}

/// Returns the support for the limits that do not depend on the backend: the supervisor keeps two,
/// and no backend bounds the disk.
pub(super) fn supervisor_limits() -> [(Clause, Support); 3] {
    [
        (Clause::Time, Support::enforced("a deadline kept by the supervisor")),
        (Clause::Output, Support::enforced("a bounded buffer")),
        (
            Clause::Disk,
            Support::absent(
                "the growth of a directory on the host's file system cannot be bounded without \
                 quotas",
                "put the workspace on a file system of its own of that size, and leave \
                 `limits.disk` out",
            ),
        ),
    ]
}

/// Returns the support on this host for the limits in question.
pub(super) fn support(
    request: &ProbeRequest<'_>,
    access: CgroupAccess,
) -> BTreeMap<Clause, Support> {
    let mut support = BTreeMap::from(supervisor_limits());
    if CGROUP_CLAUSES.iter().any(|clause| request.clauses.contains(clause)) {
        let can_write_cgroups = access.can_write_cgroups(request);
        let CgroupSupport { memory, cpus, processes, .. } = probe();
        for (clause, found) in CGROUP_CLAUSES.into_iter().zip([memory, cpus, processes]) {
            support.insert(clause, from_cgroup(clause, found, can_write_cgroups));
        }
    }
    support
}

/// Returns the support for ending a whole process tree at once without a pid namespace.
pub(super) fn tree_cleanup_support(request: &ProbeRequest<'_>, access: CgroupAccess) -> Support {
    match probe().tree_kill {
        Ok(holder) => from_cgroup(Clause::Cleanup, Ok(holder), access.can_write_cgroups(request)),
        Err(_) => Support::weaker(
            "no cgroup can be had: a subreaper ends the tree, and a process that kills it gets \
             away",
        ),
    }
}

/// Returns the support of a clause that a cgroup enforces. `can_write_cgroups` tells whether
/// the command may write cgroup files.
fn from_cgroup(
    clause: Clause,
    found: Result<LimitHolder, CgroupError>,
    can_write_cgroups: bool,
) -> Support {
    let LimitHolder { version, can_be_left, uncounted } = match found {
        Ok(holder) => holder,
        Err(error) => return Support::absent(crate::chain(&error), error.hint()),
    };
    let mut missing = Vec::new();
    if clause == Clause::Memory {
        missing.extend(missing_from_memory(version, uncounted));
    }
    if can_write_cgroups && can_be_left {
        missing.push(CAN_BE_LEFT);
    }
    if missing.is_empty() {
        Support::enforced(version.name())
    } else {
        Support::weaker(missing.join("; "))
    }
}

/// Returns one sentence for each kind of memory that a memory limit does not count. `version` is
/// the version of the memory controller.
pub(crate) fn missing_from_memory(
    version: CgroupVersion,
    uncounted: UncountedMemory,
) -> Vec<&'static str> {
    let sockets = match version {
        CgroupVersion::V1 if uncounted.sockets => {
            Some("cgroup v1 counts no buffers of sockets, and nothing else limits them")
        }
        CgroupVersion::V1 => Some(UNCOUNTED_BY_V1),
        CgroupVersion::V2 => None,
    };
    let swap = uncounted.swap.then_some("what is swapped out is not counted");
    sockets.into_iter().chain(swap).collect()
}

/// Creates the cgroup that a plan needs, or `None` if nothing needs a cgroup.
pub(crate) fn create_group(
    plan: &Plan,
    preparation: &Preparation,
) -> Result<Option<Cgroup>, CgroupError> {
    let wanted = wanted_limits(plan, preparation);
    let create = |wanted: WantedLimits| {
        (wanted != WantedLimits::default()).then(|| Cgroup::create(&wanted)).transpose()
    };
    match (create(wanted), preparation.group) {
        (
            Err(CgroupError::Unavailable { limit: CgroupLimit::TreeKill, .. }),
            GroupNeed::IfPossible,
        ) => create(WantedLimits { tree_kill: false, ..wanted }),
        (created, _) => created,
    }
}

/// Returns the limits that a cgroup must enforce, including limits that hold only in part.
fn wanted_limits(plan: &Plan, preparation: &Preparation) -> WantedLimits {
    let limits = &plan.policy.limits;
    let is_set = |clause| plan.held.get(&clause).is_some_and(|support| !support.is_absent());
    WantedLimits {
        memory: limits.memory.filter(|_| is_set(Clause::Memory)).map(|size| size.bytes()),
        cpus: limits.cpus.filter(|_| is_set(Clause::Cpus)),
        processes: limits
            .processes
            .filter(|_| is_set(Clause::ProcessCount))
            .map(|count| count.saturating_add(preparation.own_processes)),
        tree_kill: preparation.group != GroupNeed::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(version: CgroupVersion) -> LimitHolder {
        LimitHolder { version, can_be_left: true, uncounted: UncountedMemory::default() }
    }

    #[test]
    fn a_group_that_the_command_can_leave_holds_nothing_in_full() {
        for clause in [Clause::Cpus, Clause::ProcessCount, Clause::Cleanup] {
            assert_eq!(
                from_cgroup(clause, Ok(holder(CgroupVersion::V2)), true),
                Support::weaker(CAN_BE_LEFT)
            );
            assert!(from_cgroup(clause, Ok(holder(CgroupVersion::V2)), false).is_enforced());
            let kept = LimitHolder { can_be_left: false, ..holder(CgroupVersion::V2) };
            assert!(from_cgroup(clause, Ok(kept), true).is_enforced());
        }
    }

    #[test]
    fn memory_is_held_in_full_by_version_2_alone() {
        assert!(from_cgroup(Clause::Memory, Ok(holder(CgroupVersion::V2)), false).is_enforced());
        assert_eq!(
            from_cgroup(Clause::Memory, Ok(holder(CgroupVersion::V1)), false),
            Support::weaker(UNCOUNTED_BY_V1)
        );
        let swapping = LimitHolder {
            uncounted: UncountedMemory { sockets: false, swap: true },
            ..holder(CgroupVersion::V2)
        };
        assert!(!from_cgroup(Clause::Memory, Ok(swapping), false).is_enforced());
        assert!(from_cgroup(Clause::Cpus, Ok(swapping), false).is_enforced());
    }
}
