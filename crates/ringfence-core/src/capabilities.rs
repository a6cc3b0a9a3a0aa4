//! Capabilities: the clauses that a backend can enforce on this host, as probed.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Backend, Clause};

/// Degree to which a backend holds one clause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Support {
    /// The clause holds in full.
    Enforced {
        /// Mechanism that enforces the clause, such as `namespace+landlock`.
        by: String,
    },
    /// The clause holds in part.
    Weaker {
        /// Description of the missing part, as a sentence from which a user can judge the risk.
        how: String,
    },
    /// The clause does not hold.
    Absent {
        /// Reason why the backend cannot hold the clause.
        why: String,
        /// Remedy that would make the clause hold: a command to type, or a setting to change.
        fix: String,
    },
}

impl Support {
    /// Returns the support of a clause that the mechanism `by` enforces.
    pub fn enforced(by: impl Into<String>) -> Self {
        Support::Enforced { by: by.into() }
    }

    /// Returns the support of a clause that holds in part; `how` describes the missing part.
    pub fn weaker(how: impl Into<String>) -> Self {
        Support::Weaker { how: how.into() }
    }

    /// Returns the support of a clause that does not hold, with the reason and the remedy.
    pub fn absent(why: impl Into<String>, fix: impl Into<String>) -> Self {
        Support::Absent { why: why.into(), fix: fix.into() }
    }

    /// Returns `true` if the backend does nothing for the clause.
    ///
    /// A clause that holds in part is not absent, because the backend enforces that part.
    pub fn is_absent(&self) -> bool {
        matches!(self, Support::Absent { .. })
    }

    /// Returns `true` if the clause holds in full.
    pub fn is_enforced(&self) -> bool {
        matches!(self, Support::Enforced { .. })
    }
}

impl fmt::Display for Support {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Support::Enforced { by } => f.write_str(by),
            Support::Weaker { how } => write!(f, "weaker: {how}"),
            Support::Absent { why, .. } => write!(f, "absent: {why}"),
        }
    }
}

impl Support {
    /// Reads the text that [`Display`](fmt::Display) writes. The text has no remedy.
    pub fn from_text(text: &str) -> Support {
        match text.split_once(": ") {
            Some(("weaker", how)) => Support::weaker(how),
            Some(("absent", why)) => Support::absent(why, ""),
            _ => Support::enforced(text),
        }
    }
}

/// Treatment of the clauses that a policy does not state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnstatedClauses {
    /// Unstated clauses must hold, because the backend isolates.
    Required,
    /// Unstated clauses need not hold: the user gave them up by choosing a backend that has no
    /// isolation of its own.
    Waived,
}

/// Capabilities of one backend on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Backend that was probed.
    pub backend: Backend,
    /// Short description of how the backend works on this host, such as
    /// `namespaces, Landlock ABI 7, seccomp`.
    pub summary: String,
    /// Treatment of the clauses that the policy does not state.
    pub defaults: UnstatedClauses,
    /// Support for each clause; a clause that is not in the map is absent.
    pub support: BTreeMap<Clause, Support>,
}

impl Capabilities {
    /// Returns the support for `clause`.
    pub fn support(&self, clause: Clause) -> Support {
        self.support.get(&clause).cloned().unwrap_or_else(|| {
            Support::absent(
                format!("backend `{}` has no means to", self.backend),
                "choose another backend",
            )
        })
    }
}
