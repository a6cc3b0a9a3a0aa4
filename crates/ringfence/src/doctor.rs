//! What each backend can do here, with the evidence.
//!
//! Everything is tried afresh: what an earlier run remembered does not count.

use std::collections::BTreeMap;

use ringfence_core::settings::detect_container;
use ringfence_core::{Backend, Clause, Support};
use ringfence_linux::landlock;
use serde::Serialize;

use crate::Engine;
use crate::backends::{Freshness, Question, Unavailable, bwrap, engine};
use crate::ready::ask;

/// The backends that this version has.
const BACKENDS: [Backend; 6] =
    [Backend::Native, Backend::Bwrap, Backend::Podman, Backend::Docker, Backend::Outer, Backend::Local];

/// What matters of a host, whatever the backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Surroundings {
    /// The kernel's release.
    pub kernel: String,
    /// The Landlock ABI that it offers; 0 for none.
    pub landlock_abi: u32,
    /// Who asks.
    pub user_id: u32,
    /// The container or cloud workspace around us, if one was detected.
    pub container: Option<Detected>,
}

/// A container that was detected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Detected {
    /// Its kind.
    pub name: String,
    /// What gave it away.
    pub evidence: String,
}

/// What one backend can do here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Examination {
    /// Which.
    pub backend: Backend,
    /// What came of trying it.
    #[serde(flatten)]
    pub finding: Finding,
    /// What is known against the programs that it relies on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// What came of trying a backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Finding {
    /// It works.
    Works {
        /// How, in a few words.
        summary: String,
        /// How well it holds each clause.
        clauses: BTreeMap<Clause, Support>,
    },
    /// It does not work.
    Unavailable {
        /// What was tried, and what came of it.
        why: String,
        /// What would make it work.
        fix: String,
    },
}

/// Looks at the host of an engine.
pub fn look_around(engine: &Engine) -> Surroundings {
    let host = &engine.settings().host;
    let container = detect_container(host);
    Surroundings {
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        landlock_abi: landlock::abi(),
        user_id: host.user_id,
        container: container.map(|found| Detected { name: found.name.to_owned(), evidence: found.evidence }),
    }
}

/// Tries every backend, or one, and says how well it holds each clause of the engine's policy here.
pub fn examine(engine: &Engine, only: Option<Backend>) -> Vec<Examination> {
    let backends = only.map_or_else(|| BACKENDS.to_vec(), |backend| vec![backend]);
    let look =
        |backend| Examination { backend, finding: try_out(engine, backend), warnings: warnings(engine, backend) };
    backends.into_iter().map(look).collect()
}

/// Says what is known against what a backend relies on: bubblewrap, or the runtime of a container engine.
fn warnings(engine: &Engine, backend: Backend) -> Vec<String> {
    let host = &engine.settings().host;
    if backend == Backend::Bwrap {
        return bwrap::warnings(host, &engine.settings().policy);
    }
    engine::flavour(backend).map(|flavour| engine::runtime_warnings(host, flavour)).unwrap_or_default()
}

fn try_out(engine: &Engine, backend: Backend) -> Finding {
    let settings = engine.settings();
    let question = Question {
        host: &settings.host,
        launcher: &engine.core.launcher,
        policy: &settings.policy,
        clauses: Clause::ALL.into(),
        container: &settings.container,
        freshness: Freshness::Now,
    };
    match ask(backend, &question) {
        Ok(capabilities) => Finding::Works {
            clauses: Clause::ALL.map(|clause| (clause, capabilities.support(clause))).into(),
            summary: capabilities.summary,
        },
        Err(Unavailable { why, fix }) => Finding::Unavailable { why, fix },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Host, Settings};

    fn engine() -> Engine {
        let directory = std::env::temp_dir();
        Engine::in_this_process(Settings::new(Host::new(Default::default(), directory)))
    }

    #[test]
    fn a_backend_that_isolates_nothing_says_so_for_each_clause_and_holds_the_deadline() {
        let examined = examine(&engine(), Some(Backend::Local));
        let [Examination { backend: Backend::Local, finding: Finding::Works { clauses, .. }, .. }] =
            examined.as_slice()
        else {
            panic!("{examined:?}");
        };
        assert_eq!(clauses.len(), Clause::ALL.len());
        assert!(matches!(clauses[&Clause::Filesystem], Support::Absent { .. }));
        assert!(clauses[&Clause::Time].is_enforced());
    }

    #[test]
    fn a_backend_that_is_not_there_is_named_with_the_way_forward() {
        let examined = examine(&engine(), Some(Backend::Bwrap));
        let expected = serde_json::json!([{
            "backend": "bwrap", "why": "there is no `bwrap` in PATH outside the workspace", "fix": "apt install bubblewrap",
        }]);
        assert_eq!(serde_json::to_value(examined).unwrap(), expected);
    }
}
