//! Results of a proof, in a form for machines and for the record.

use std::collections::BTreeMap;

use ringfence_core::{Backend, Clause, Support};
use serde::{Deserialize, Serialize};

use super::{AttemptOutcome, HostFingerprint, Observation};

/// Outcome of the attempts on a promise, or of one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The attempt was denied inside the sandbox, and gets through without a sandbox.
    Held,
    /// The attempt got through inside the sandbox.
    Broken,
    /// The attempt showed nothing about the promise.
    NotTested {
        /// Reason why the attempt could not be made, or shows nothing.
        why: String,
    },
}

impl Verdict {
    /// Derives a verdict from the observation inside a sandbox and, if the attempt was denied
    /// there, from the `control` observation without one. An `Err` says why an observation could
    /// not be made. Also returns the text of the control observation.
    pub(super) fn from_observations(
        inside: &Result<Observation, String>,
        control: impl FnOnce() -> Result<Observation, String>,
    ) -> (Verdict, Option<String>) {
        match inside {
            Err(why) => (Verdict::NotTested { why: why.clone() }, None),
            Ok(Observation {
                outcome: AttemptOutcome::Succeeded | AttemptOutcome::Reached,
                ..
            }) => (Verdict::Broken, None),
            Ok(Observation { outcome: AttemptOutcome::Denied, .. }) => match control() {
                Err(why) => (Verdict::NotTested { why: format!("without a sandbox, {why}") }, None),
                Ok(Observation { outcome: AttemptOutcome::Denied, observed, .. }) => {
                    let why = "without a sandbox it is denied, too".to_owned();
                    (Verdict::NotTested { why }, Some(observed))
                }
                Ok(Observation { outcome: AttemptOutcome::Reached, observed, .. }) => {
                    (Verdict::Held, Some(format!("the kernel's own code was reached: {observed}")))
                }
                Ok(Observation { outcome: AttemptOutcome::Succeeded, observed, .. }) => {
                    (Verdict::Held, Some(observed))
                }
            },
        }
    }
}

/// Outcome of one attempt, with its evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// Name of the attempt.
    pub attempt: String,
    /// The promise that the attempt would break.
    pub clause: Clause,
    /// Verdict on the attempt.
    pub verdict: Verdict,
    /// Observation inside the sandbox, or the reason why there is none.
    pub observed: String,
    /// Observation without a sandbox, if the attempt was made there.
    pub control: Option<String>,
}

/// Outcome of all attempts on one promise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromiseProof {
    /// The backend's claim of how well it holds the promise.
    pub claimed: Support,
    /// Verdict on the promise: broken by one attempt, held against at least one, or not tested.
    pub verdict: Verdict,
    /// The attempts on the promise, in the order in which they were made.
    pub proofs: Vec<Proof>,
}

impl PromiseProof {
    pub(super) fn new(claimed: Support) -> PromiseProof {
        let verdict = Verdict::NotTested { why: "nothing was tried".to_owned() };
        PromiseProof { claimed, verdict, proofs: Vec::new() }
    }

    pub(super) fn add(&mut self, proof: Proof) {
        match (&self.verdict, &proof.verdict) {
            (_, Verdict::Broken) | (Verdict::NotTested { .. }, _) => {
                self.verdict = proof.verdict.clone()
            }
            _ => {}
        }
        self.proofs.push(proof);
    }
}

/// Results of a proof on one host, at one time, for one policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// Time of the proof (RFC 3339).
    pub time: String,
    /// The host and the binary with which the proof was made.
    pub host: HostFingerprint,
    /// The backend that enforced the policy.
    pub backend: Backend,
    /// The backend's summary of how it works on this host.
    pub summary: String,
    /// SHA-256 hash of the policy.
    pub policy_sha256: String,
    /// Outcome of each promise.
    pub promises: BTreeMap<Clause, PromiseProof>,
}

impl Certificate {
    /// Tells whether a promise that is claimed to be enforced was broken.
    pub fn is_broken(&self) -> bool {
        self.broken().next().is_some()
    }

    /// Returns the attempts that broke a promise that is claimed to be enforced.
    pub fn broken(&self) -> impl Iterator<Item = &Proof> {
        let claimed = self.promises.values().filter(|promise| promise.claimed.is_enforced());
        claimed.flat_map(|promise| &promise.proofs).filter(|proof| proof.verdict == Verdict::Broken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(outcome: AttemptOutcome) -> Result<Observation, String> {
        Ok(Observation { outcome, errno: None, observed: "seen".to_owned() })
    }

    #[track_caller]
    fn judge(inside: AttemptOutcome, control: AttemptOutcome) -> Verdict {
        Verdict::from_observations(&seen(inside), || seen(control)).0
    }

    #[test]
    fn a_denial_counts_only_where_the_same_gets_through_without_a_sandbox() {
        assert_eq!(judge(AttemptOutcome::Denied, AttemptOutcome::Succeeded), Verdict::Held);
        assert_eq!(judge(AttemptOutcome::Denied, AttemptOutcome::Reached), Verdict::Held);
        assert!(matches!(
            judge(AttemptOutcome::Denied, AttemptOutcome::Denied),
            Verdict::NotTested { .. }
        ));
    }

    #[test]
    fn a_successful_attempt_breaks_a_promise_and_a_silent_one_is_not_tested() {
        assert_eq!(judge(AttemptOutcome::Succeeded, AttemptOutcome::Denied), Verdict::Broken);
        assert_eq!(judge(AttemptOutcome::Reached, AttemptOutcome::Denied), Verdict::Broken);
        let silent = Verdict::from_observations(&Err("it said nothing".to_owned()), || {
            seen(AttemptOutcome::Succeeded)
        })
        .0;
        assert_eq!(silent, Verdict::NotTested { why: "it said nothing".to_owned() });
    }

    #[test]
    fn a_promise_is_broken_by_one_attempt_and_only_claimed_ones_count() {
        let proof = |verdict| Proof {
            attempt: "read-outside".to_owned(),
            clause: Clause::Filesystem,
            verdict,
            observed: String::new(),
            control: None,
        };
        let mut promise = PromiseProof::new(Support::enforced("namespaces"));
        for (verdict, sum) in [(Verdict::Held, Verdict::Held), (Verdict::Broken, Verdict::Broken)] {
            promise.add(proof(verdict));
            assert_eq!(promise.verdict, sum);
        }
        promise.add(proof(Verdict::Held));
        assert_eq!(promise.verdict, Verdict::Broken);

        let certificate = |promise: &PromiseProof| Certificate {
            time: String::new(),
            host: HostFingerprint::default(),
            backend: Backend::Native,
            summary: String::new(),
            policy_sha256: String::new(),
            promises: [(Clause::Filesystem, promise.clone())].into(),
        };
        assert!(certificate(&promise).is_broken());
        promise.claimed = Support::weaker("only half of it");
        assert!(!certificate(&promise).is_broken());
        let text = serde_json::to_string(&certificate(&promise)).unwrap();
        assert_eq!(serde_json::from_str::<Certificate>(&text).unwrap(), certificate(&promise));
    }
}
