//! Planning: combines a policy with the capabilities of a backend.
//!
//! The outcome is a plan, or a refusal that names every clause that the backend cannot hold.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::policy::Network;
use crate::{Backend, Capabilities, Clause, Policy, Support, UnstatedClauses};

/// Facts about the workspace that [`plan()`] needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkspaceFacts {
    /// `true` if at least one path that `protect` names exists.
    ///
    /// No backend can guard a path that does not exist. ringfence reports such a path when a run
    /// creates it.
    pub protected_paths_exist: bool,
}

/// A policy that one backend has agreed to hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Backend that holds the policy.
    pub backend: Backend,
    /// Short description of how the backend works on this host; see [`Capabilities::summary`].
    pub summary: String,
    /// The policy with its defaults filled in; see [`Policy::with_defaults`].
    pub policy: Policy,
    /// Hash of the policy as it was written, without the defaults; see [`Policy::sha256`].
    pub policy_sha256: String,
    /// Support of the backend for each clause that the policy demands.
    pub held: BTreeMap<Clause, Support>,
}

impl Plan {
    /// Returns the clauses that the policy demands and the backend does not fully enforce.
    pub fn not_held(&self) -> impl Iterator<Item = (Clause, &Support)> {
        self.held
            .iter()
            .filter(|(_, support)| !support.is_enforced())
            .map(|(clause, support)| (*clause, support))
    }
}

/// One clause that a backend cannot hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnmetClause {
    /// Clause that the backend cannot hold.
    pub clause: Clause,
    /// Support of the backend for the clause, with the reason.
    pub support: Support,
    /// Origin of the demand for the clause.
    pub demand: Demand,
}

/// Refusal of a policy by a backend: the reasons why the backend does not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Backend that refuses the policy.
    pub backend: Backend,
    /// Short description of how the backend works on this host; see [`Capabilities::summary`].
    pub summary: String,
    /// Every clause that the backend cannot hold; never empty.
    pub unmet: Vec<UnmetClause>,
}

impl std::error::Error for Refusal {}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "backend `{}` refuses the policy ({})", self.backend, self.summary)?;
        for unmet in &self.unmet {
            let UnmetClause { clause, support, demand } = unmet;
            match support {
                Support::Enforced { by } => write!(f, "\n  {clause}: held by {by}")?,
                Support::Weaker { how } => write!(f, "\n  {clause}: would be weaker: {how}")?,
                Support::Absent { why, .. } => {
                    write!(f, "\n  {clause}: cannot be enforced: {why}")?
                }
            }
            if *demand == Demand::Required {
                write!(f, " (named by `require`)")?;
            }
        }
        Ok(())
    }
}

impl Refusal {
    /// Returns what the user can do next, one line per option.
    pub fn hints(&self) -> Vec<String> {
        let mut hints: Vec<String> = Vec::new();
        for unmet in &self.unmet {
            if let Support::Absent { fix, .. } = &unmet.support
                && !hints.contains(fix)
            {
                hints.push(fix.clone());
            }
        }
        let weaker: Vec<_> =
            self.unmet.iter().filter(|unmet| unmet.demand != Demand::Required).collect();
        if !weaker.is_empty() {
            let flags: Vec<_> =
                weaker.iter().map(|unmet| format!("--allow-weaker {}", unmet.clause)).collect();
            let lead = if hints.is_empty() { "accept it by name" } else { "or accept it by name" };
            hints.push(format!("{lead}: {}", flags.join(" ")));
        }
        hints
    }
}

/// Origin of the demand for a clause.
///
/// The variants are ordered from the weakest to the strongest demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Demand {
    /// The clause is a default that the policy does not mention.
    Default,
    /// The policy states the clause.
    Stated,
    /// The policy names the clause in `require`, so that full enforcement is the only option.
    Required,
}

/// Returns the clauses that a policy demands, with the origin of each demand.
pub fn demands(policy: &Policy, facts: WorkspaceFacts) -> BTreeMap<Clause, Demand> {
    let mut demands: BTreeMap<Clause, Demand> = [
        Clause::Filesystem,
        Clause::Processes,
        Clause::Ipc,
        Clause::Privilege,
        Clause::Kernel,
        Clause::Terminal,
        Clause::Environment,
        Clause::Cleanup,
        Clause::Output,
    ]
    .map(|clause| (clause, Demand::Default))
    .into();

    match &policy.network {
        None => drop(demands.insert(Clause::Network, Demand::Default)),
        Some(Network::Closed) => drop(demands.insert(Clause::Network, Demand::Stated)),
        Some(Network::Allow(_)) => drop(demands.insert(Clause::Egress, Demand::Stated)),
        Some(Network::Open) => {}
    }

    let full = policy.with_defaults();
    let protects = full.filesystem.protect.is_some_and(|globs| !globs.is_empty());
    // No backend can guard a path that does not exist, so only existing paths make a demand.
    if protects && facts.protected_paths_exist {
        let stated = policy.filesystem.protect.is_some();
        demands.insert(Clause::Protect, if stated { Demand::Stated } else { Demand::Default });
    }

    let files = &policy.filesystem;
    let limits = &policy.limits;
    let stated = [
        (Clause::Hide, files.hide.as_ref().is_some_and(|globs| !globs.is_empty())),
        (Clause::Time, limits.time.is_some()),
        (Clause::Output, limits.output.is_some()),
        (Clause::Memory, limits.memory.is_some()),
        (Clause::Cpus, limits.cpus.is_some()),
        (Clause::ProcessCount, limits.processes.is_some()),
        (Clause::Tmp, limits.tmp.is_some()),
        (Clause::Disk, limits.disk.is_some()),
    ];
    for (clause, _) in stated.into_iter().filter(|(_, is_stated)| *is_stated) {
        demands.insert(clause, Demand::Stated);
    }
    for clause in &policy.require {
        demands.insert(*clause, Demand::Required);
    }
    demands
}

/// Makes a plan for a policy from the capabilities of a backend.
///
/// The function is pure and monotone: a plan never permits anything that the policy does not
/// permit.
///
/// # Errors
///
/// Returns a [`Refusal`] that names every clause that the backend cannot hold.
pub fn plan(
    policy: &Policy,
    facts: WorkspaceFacts,
    capabilities: &Capabilities,
) -> Result<Plan, Refusal> {
    let mut held = BTreeMap::new();
    let mut unmet = Vec::new();
    for (clause, demand) in demands(policy, facts) {
        let support = capabilities.support(clause);
        let accepted = match (&support, demand) {
            (Support::Enforced { .. }, _) => true,
            // Before `allow_weaker`, because `require` beats an allowance for the same clause.
            (_, Demand::Required) => false,
            (_, Demand::Default) if capabilities.defaults == UnstatedClauses::Waived => true,
            _ => policy.allow_weaker.contains(&clause),
        };
        if !accepted {
            unmet.push(UnmetClause { clause, support: support.clone(), demand });
        }
        held.insert(clause, support);
    }
    if !unmet.is_empty() {
        return Err(Refusal {
            backend: capabilities.backend,
            summary: capabilities.summary.clone(),
            unmet,
        });
    }
    Ok(Plan {
        backend: capabilities.backend,
        summary: capabilities.summary.clone(),
        policy: policy.with_defaults(),
        policy_sha256: policy.sha256(),
        held,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a backend that enforces every clause except those in `except`.
    fn capabilities(defaults: UnstatedClauses, except: &[(Clause, Support)]) -> Capabilities {
        let mut support: BTreeMap<_, _> =
            Clause::ALL.map(|clause| (clause, Support::enforced("test"))).into();
        support.extend(except.iter().cloned());
        Capabilities { backend: Backend::Native, summary: "test".to_owned(), defaults, support }
    }

    fn absent() -> Support {
        Support::absent("no cgroup", "systemd-run --user --scope")
    }

    const FACTS: WorkspaceFacts = WorkspaceFacts { protected_paths_exist: true };

    #[track_caller]
    fn refuse(policy: &Policy, capabilities: &Capabilities, message: &str, hints: &[&str]) {
        let refusal = plan(policy, FACTS, capabilities).expect_err("must be refused");
        assert_eq!(
            (refusal.to_string().as_str(), refusal.hints()),
            (message, hints.iter().map(|h| (*h).into()).collect())
        );
    }

    #[test]
    fn a_refusal_names_every_clause_the_reason_and_the_ways_forward() {
        let policy = Policy::default()
            .memory(crate::policy::Size::mebibytes(1))
            .cpus(1.0)
            .require(Clause::Disk);
        let weaker = Support::weaker("only half of it");
        let able = capabilities(
            UnstatedClauses::Required,
            &[(Clause::Memory, absent()), (Clause::Cpus, weaker), (Clause::Disk, absent())],
        );
        refuse(
            &policy,
            &able,
            "backend `native` refuses the policy (test)\
             \n  memory: cannot be enforced: no cgroup\
             \n  cpus: would be weaker: only half of it\
             \n  disk: cannot be enforced: no cgroup (named by `require`)",
            &[
                "systemd-run --user --scope",
                "or accept it by name: --allow-weaker memory --allow-weaker cpus",
            ],
        );
    }

    #[test]
    fn a_clause_given_up_by_name_is_planned_and_shown() {
        let able = capabilities(UnstatedClauses::Required, &[(Clause::Memory, absent())]);
        let policy = Policy::default()
            .memory(crate::policy::Size::mebibytes(1))
            .allow_weaker(Clause::Memory);
        let plan = plan(&policy, FACTS, &able).unwrap();
        assert_eq!(plan.not_held().collect::<Vec<_>>(), [(Clause::Memory, &absent())]);
    }

    #[test]
    fn a_requirement_beats_an_allowance() {
        let able = capabilities(UnstatedClauses::Waived, &[(Clause::Memory, absent())]);
        let policy = Policy::default().allow_weaker(Clause::Memory).require(Clause::Memory);
        refuse(
            &policy,
            &able,
            "backend `native` refuses the policy (test)\n  memory: cannot be enforced: no cgroup \
             (named by `require`)",
            &["systemd-run --user --scope"],
        );
    }

    #[test]
    fn waived_defaults_do_not_waive_stated_clauses() {
        let able = capabilities(UnstatedClauses::Waived, &[(Clause::Network, absent())]);
        assert!(plan(&Policy::default(), FACTS, &able).is_ok());
        assert!(plan(&Policy::default().network(Network::Closed), FACTS, &able).is_err());
        let able = capabilities(UnstatedClauses::Required, &[(Clause::Network, absent())]);
        assert!(plan(&Policy::default(), FACTS, &able).is_err());
        assert!(plan(&Policy::default().network(Network::Open), FACTS, &able).is_ok());
    }

    #[test]
    fn an_allowlist_asks_for_egress_control_even_when_it_is_empty() {
        let demands = demands(&Policy::default().network(Network::only([])), FACTS);
        assert_eq!(demands.get(&Clause::Egress), Some(&Demand::Stated));
        assert_eq!(demands.get(&Clause::Network), None);
    }

    #[test]
    fn protection_is_demanded_only_if_protected_paths_exist() {
        let of = |policy: &Policy, protected_paths_exist| {
            demands(policy, WorkspaceFacts { protected_paths_exist }).get(&Clause::Protect).copied()
        };
        let stated = Policy::default().protect("Makefile".parse().unwrap());
        assert_eq!(of(&Policy::default(), true), Some(Demand::Default));
        assert_eq!(of(&Policy::default(), false), None);
        assert_eq!(of(&stated, true), Some(Demand::Stated));
        let mut none = Policy::default();
        none.filesystem.protect = Some(Vec::new());
        assert_eq!(of(&none, true), None);
    }
}
