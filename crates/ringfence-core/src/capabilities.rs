//! What a backend can do on this host, as probed.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Backend, Clause};

/// How well one clause is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Support {
    /// It holds.
    Enforced {
        /// The mechanism: `namespace+landlock`.
        by: String,
    },
    /// It holds in part.
    Weaker {
        /// What is missing, as a sentence a user can weigh.
        how: String,
    },
    /// It does not hold.
    Absent {
        /// Why not.
        why: String,
        /// What would make it hold: a command to type, or a setting to change.
        fix: String,
    },
}

impl Support {
    /// Held, by the named mechanism.
    pub fn enforced(by: impl Into<String>) -> Self {
        Support::Enforced { by: by.into() }
    }

    /// Held in part.
    pub fn weaker(how: impl Into<String>) -> Self {
        Support::Weaker { how: how.into() }
    }

    /// Not held.
    pub fn absent(why: impl Into<String>, fix: impl Into<String>) -> Self {
        Support::Absent { why: why.into(), fix: fix.into() }
    }

    /// Whether nothing is done for the clause. What holds in part is done as far as it goes.
    pub fn is_absent(&self) -> bool {
        matches!(self, Support::Absent { .. })
    }

    /// Whether the clause holds in full.
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

/// What becomes of the clauses that nobody stated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Defaults {
    /// They must hold: this backend isolates.
    Required,
    /// They are given up by choosing a backend that isolates nothing itself.
    Waived,
}

/// What one backend can do on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Whose they are.
    pub backend: Backend,
    /// How it works here, in a few words: `namespaces, Landlock ABI 7, seccomp`.
    pub summary: String,
    /// Whether unstated clauses must hold.
    pub defaults: Defaults,
    /// How well each clause is held; a clause that is missing here is absent.
    pub support: BTreeMap<Clause, Support>,
}

impl Capabilities {
    /// How well `clause` is held.
    pub fn support(&self, clause: Clause) -> Support {
        self.support.get(&clause).cloned().unwrap_or_else(|| {
            Support::absent(format!("backend `{}` has no means to", self.backend), "choose another backend")
        })
    }
}
