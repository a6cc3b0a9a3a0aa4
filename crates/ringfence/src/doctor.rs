//! Examines the abilities of each backend on this host, with the evidence.
//!
//! Everything is probed anew: results that an earlier run cached do not count.

use std::collections::BTreeMap;

use ringfence_core::settings::{BackendSelection, detect_container};
use ringfence_core::{Backend, Clause, Support};
use ringfence_linux::landlock;
use serde::Serialize;

use crate::Engine;
use crate::backends::{self, Freshness, ProbeRequest, Unavailable};
use crate::run::plan::probe_backend;

/// Properties of a host that matter for every backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HostSummary {
    /// Release of the kernel.
    pub kernel: String,
    /// Version of the Landlock ABI that the kernel offers; 0 for none.
    pub landlock_abi: u32,
    /// User id of the caller.
    pub user_id: u32,
    /// The container or cloud workspace in which ringfence runs, if one was detected.
    pub container: Option<ContainerEvidence>,
}

/// A container that was detected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ContainerEvidence {
    /// Kind of the container.
    pub name: String,
    /// The evidence by which the container was detected.
    pub evidence: String,
}

/// Abilities of one backend on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BackendExamination {
    /// The backend that was examined.
    pub backend: Backend,
    /// Result of trying the backend.
    #[serde(flatten)]
    pub finding: BackendFinding,
    /// Known problems of the programs that the backend relies on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Result of trying a backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum BackendFinding {
    /// The backend works on this host.
    Works {
        /// Short description of how the backend works.
        summary: String,
        /// Support of the backend for each clause.
        clauses: BTreeMap<Clause, Support>,
    },
    /// The backend does not work on this host.
    Unavailable {
        /// The step that failed, and its result.
        why: String,
        /// A change that would make the backend work.
        fix: String,
    },
}

/// Collects the properties of the host of an engine.
pub fn survey_host(engine: &Engine) -> HostSummary {
    let host = &engine.settings().host;
    let container = detect_container(host);
    HostSummary {
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        landlock_abi: landlock::abi(),
        user_id: host.user_id,
        container: container.map(|found| ContainerEvidence {
            name: found.name.to_owned(),
            evidence: found.evidence,
        }),
    }
}

/// Tries the backends, or only one of them, and reports how well each can hold the clauses of the
/// engine's policy on this host.
pub fn examine(engine: &Engine, only: Option<Backend>) -> Vec<BackendExamination> {
    let asked = engine.settings().selection;
    let all = backends::BACKENDS.iter().filter(|(name, backend)| {
        backend.may_be_probed_unasked() || asked == BackendSelection::Only(*name)
    });
    let all = all.map(|(name, _)| *name);
    let backends = only.map_or_else(|| all.collect(), |backend| vec![backend]);
    let look = |backend| BackendExamination {
        backend,
        finding: try_backend(engine, backend),
        warnings: warnings(engine, backend),
    };
    backends.into_iter().map(look).collect()
}

/// Returns known problems of the programs that a backend relies on: bubblewrap, or the runtime of a
/// container engine.
fn warnings(engine: &Engine, backend: Backend) -> Vec<String> {
    let settings = engine.settings();
    let found = backends::get(backend);
    found.map(|found| found.warnings(&settings.host, &settings.policy)).unwrap_or_default()
}

fn try_backend(engine: &Engine, backend: Backend) -> BackendFinding {
    let settings = engine.settings();
    let request = ProbeRequest {
        host: &settings.host,
        launcher: &engine.core.launcher,
        policy: &settings.policy,
        clauses: Clause::ALL.into(),
        container: &settings.container,
        kubernetes: &settings.kubernetes,
        freshness: Freshness::Now,
    };
    match probe_backend(backend, &request) {
        Ok(capabilities) => BackendFinding::Works {
            clauses: Clause::ALL.map(|clause| (clause, capabilities.support(clause))).into(),
            summary: capabilities.summary,
        },
        Err(Unavailable { why, fix }) => BackendFinding::Unavailable { why, fix },
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
        let [
            BackendExamination {
                backend: Backend::Local,
                finding: BackendFinding::Works { clauses, .. },
                ..
            },
        ] = examined.as_slice()
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
            "backend": "bwrap",
            "why": "there is no `bwrap` in PATH outside the workspace",
            "fix": "apt install bubblewrap",
        }]);
        assert_eq!(serde_json::to_value(examined).unwrap(), expected);
    }
}
