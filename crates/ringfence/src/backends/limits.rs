//! Limits that the kernel's control groups hold, for every backend that is a process tree of ours.

use std::collections::BTreeMap;

use ringfence_core::{Clause, Plan, Support};
use ringfence_linux::cgroup::{CgroupError, CgroupSupport, Wanted, probe};

use super::{Preparation, Question};

/// The clauses that a control group holds.
const HELD: [Clause; 3] = [Clause::Memory, Clause::Cpus, Clause::ProcessCount];

/// How well the limits in question are held here.
pub(super) fn support(question: &Question<'_>) -> BTreeMap<Clause, Support> {
    let mut support: BTreeMap<Clause, Support> = [
        (Clause::Time, Support::enforced("a deadline kept by the supervisor")),
        (Clause::Output, Support::enforced("a bounded buffer")),
        (
            Clause::Disk,
            Support::absent(
                "the growth of a directory on the host's file system cannot be bounded without quotas",
                "put the workspace on a file system of its own of that size, and leave `limits.disk` out",
            ),
        ),
    ]
    .into();
    if HELD.iter().any(|clause| question.clauses.contains(clause)) {
        let CgroupSupport { memory, cpus, processes, .. } = probe();
        for (clause, found) in HELD.into_iter().zip([memory, cpus, processes]) {
            support.insert(clause, from_cgroup(found.map(|version| version.name())));
        }
    }
    support
}

/// Whether a whole tree can be ended at once without a pid namespace.
pub(super) fn cleanup_of_a_tree() -> Support {
    match probe().tree_kill {
        Ok(version) => Support::enforced(version.name()),
        Err(_) => {
            Support::weaker("no cgroup can be had: a subreaper ends the tree, and a process that kills it gets away")
        }
    }
}

fn from_cgroup(found: Result<&str, CgroupError>) -> Support {
    match found {
        Ok(version) => Support::enforced(version),
        Err(error) => Support::absent(crate::chain(&error), error.hint()),
    }
}

/// The control group that a plan needs; none when nothing asks for one.
pub(crate) fn wanted(plan: &Plan, preparation: &Preparation) -> Option<Wanted> {
    let limits = &plan.policy.limits;
    let is_held = |clause| plan.held.get(&clause).is_some_and(Support::is_enforced);
    let wanted = Wanted {
        memory: limits.memory.filter(|_| is_held(Clause::Memory)).map(|size| size.bytes()),
        cpus: limits.cpus.filter(|_| is_held(Clause::Cpus)),
        processes: limits
            .processes
            .filter(|_| is_held(Clause::ProcessCount))
            .map(|count| count.saturating_add(preparation.own_processes)),
        tree_kill: preparation.needs_group,
    };
    (wanted != Wanted::default()).then_some(wanted)
}
