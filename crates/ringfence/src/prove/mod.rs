//! Proves that the promises hold, by making every attempt of hostile code in real sandboxes.
//!
//! Each attempt is made twice. Inside a sandbox of the policy it must be denied. Without a sandbox
//! (on the `local` backend) it must get through: if the attempt is denied there, too, the denial
//! inside proves nothing, and the attempt counts as not tested. `scene` prepares the things that an
//! attempt may find on the host, `trial` makes one attempt in both ways, and `certificate` holds
//! the results of all attempts.

mod certificate;
mod fingerprint;
mod marked;
mod scene;
mod shared;
mod tree;
mod trial;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use ringfence_attempts as inside;
use ringfence_core::{Clause, Policy, Support};

pub use certificate::{Certificate, PromiseProof, Proof, Verdict};
pub use fingerprint::HostFingerprint;
pub use inside::{AttemptOutcome, Observation};

use crate::{Engine, RunError};
use scene::HostScene;
use trial::AttemptRunner;

/// One thing that hostile code would try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// Name of the attempt in commands, certificates and documents.
    pub name: &'static str,
    /// The promise that the attempt would break.
    pub clause: Clause,
    /// Description of the attempt, as a sentence.
    pub what: &'static str,
}

/// Returns all attempts that a proof makes.
pub fn corpus() -> &'static [Attempt] {
    static CORPUS: OnceLock<Vec<Attempt>> = OnceLock::new();
    let public = |attempt: &inside::Attempt| Attempt {
        name: attempt.name,
        clause: attempt.clause,
        what: attempt.what,
    };
    CORPUS.get_or_init(|| inside::all().map(public).collect())
}

/// Reason why an attempt could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttemptError {
    /// No attempt has the given name.
    #[error("there is no attempt `{name}`")]
    Unknown {
        /// The name that was given.
        name: String,
    },
    /// The context of the attempt, which describes the host, is not valid.
    #[error("cannot read the context of the attempt")]
    Context {
        /// Error of the JSON parser.
        source: serde_json::Error,
    },
}

/// Makes one attempt in this process. A proof has the `ringfence` binary do this inside a sandbox.
pub fn attempt(name: &str, context: &str) -> Result<Observation, AttemptError> {
    let attempt =
        inside::find(name).ok_or_else(|| AttemptError::Unknown { name: name.to_owned() })?;
    let context =
        serde_json::from_str(context).map_err(|source| AttemptError::Context { source })?;
    Ok(attempt.run(&context))
}

/// Makes every attempt in real sandboxes of `policy`, each with a prepared workspace, and certifies
/// which promises held.
pub fn prove(engine: &Engine, policy: &Policy) -> Result<Certificate, RunError> {
    let scene = HostScene::prepare(engine, policy).map_err(|source| RunError::Setup {
        step: "prepare the host for the attempts".to_owned(),
        source,
    })?;
    let runner = AttemptRunner::new(engine, policy, &scene)?;
    let mut promises: BTreeMap<Clause, PromiseProof> = BTreeMap::new();
    for attempt in corpus() {
        let (claimed, proof) = runner.make_attempt(attempt)?;
        tracing::debug!(attempt = attempt.name, verdict = ?proof.verdict, "tried");
        promises.entry(attempt.clause).or_insert_with(|| PromiseProof::new(claimed)).add(proof);
    }
    for (clause, support) in &runner.plan().held {
        promises.entry(*clause).or_insert_with(|| PromiseProof::new(support.clone()));
    }
    Ok(Certificate {
        time: jiff::Timestamp::now().to_string(),
        host: HostFingerprint::take(engine),
        backend: runner.plan().backend,
        summary: runner.plan().summary.clone(),
        policy_sha256: policy.sha256(),
        promises,
    })
}

/// Returns the support that is claimed for a clause that the policy does not ask for.
fn unclaimed() -> Support {
    Support::absent("the policy does not ask for it", "ask for it in the policy")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_is_large_and_covers_every_promise_that_this_version_can_make() {
        assert!(corpus().len() >= 150, "{}", corpus().len());
        // Attempts to get around an allowlist need servers and host names, which the conformance
        // tests have.
        let beyond = [Clause::Egress, Clause::Disk];
        for clause in Clause::ALL.into_iter().filter(|clause| !beyond.contains(clause)) {
            assert!(
                corpus().iter().any(|attempt| attempt.clause == clause),
                "nothing is tried against {clause}"
            );
        }
    }

    #[test]
    fn an_attempt_that_nobody_knows_is_refused_by_name() {
        assert_eq!(attempt("fly", "{}").unwrap_err().to_string(), "there is no attempt `fly`");
        assert!(matches!(attempt("read-outside", "nonsense"), Err(AttemptError::Context { .. })));
    }
}
