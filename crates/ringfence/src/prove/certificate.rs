//! What a proof says, for machines and for the record.

use std::collections::BTreeMap;

use ringfence_core::{Backend, Clause, Support};
use serde::{Deserialize, Serialize};

use super::{HostFingerprint, Observation, Outcome};

/// What became of a promise, or of one attempt to break it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It was denied inside, and gets through without a sandbox.
    Held,
    /// It got through.
    Broken,
    /// Nothing was learnt.
    NotTested {
        /// Why.
        why: String,
    },
}

impl Verdict {
    /// What a pair of observations comes to; an error says why one of them could not be made.
    pub(super) fn of(
        inside: &Result<Observation, String>,
        control: impl FnOnce() -> Result<Observation, String>,
    ) -> (Verdict, Option<String>) {
        match inside {
            Err(why) => (Verdict::NotTested { why: why.clone() }, None),
            Ok(Observation { outcome: Outcome::Succeeded | Outcome::Reached, .. }) => (Verdict::Broken, None),
            Ok(Observation { outcome: Outcome::Denied, .. }) => match control() {
                Err(why) => (Verdict::NotTested { why: format!("without a sandbox, {why}") }, None),
                Ok(Observation { outcome: Outcome::Denied, observed, .. }) => {
                    let why = "without a sandbox it is denied, too".to_owned();
                    (Verdict::NotTested { why }, Some(observed))
                }
                Ok(Observation { outcome: Outcome::Reached, observed, .. }) => {
                    (Verdict::Held, Some(format!("the kernel's own code was reached: {observed}")))
                }
                Ok(Observation { outcome: Outcome::Succeeded, observed, .. }) => (Verdict::Held, Some(observed)),
            },
        }
    }
}

/// What became of one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// Which.
    pub attempt: String,
    /// The promise that it would break.
    pub clause: Clause,
    /// What became of it.
    pub verdict: Verdict,
    /// What was seen inside the sandbox.
    pub observed: String,
    /// What was seen without one.
    pub control: Option<String>,
}

/// What became of one promise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromiseProof {
    /// What the backend claims.
    pub claimed: Support,
    /// What became of it: broken by one attempt, held against at least one, or not tested.
    pub verdict: Verdict,
    /// The attempts.
    pub proofs: Vec<Proof>,
}

impl PromiseProof {
    pub(super) fn of(claimed: Support) -> PromiseProof {
        let verdict = Verdict::NotTested { why: "nothing was tried".to_owned() };
        PromiseProof { claimed, verdict, proofs: Vec::new() }
    }

    pub(super) fn add(&mut self, proof: Proof) {
        match (&self.verdict, &proof.verdict) {
            (_, Verdict::Broken) | (Verdict::NotTested { .. }, _) => self.verdict = proof.verdict.clone(),
            _ => {}
        }
        self.proofs.push(proof);
    }
}

/// What was proved on one host, at one time, for one policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// When (RFC 3339).
    pub time: String,
    /// Where, and by what.
    pub host: HostFingerprint,
    /// Who held the policy.
    pub backend: Backend,
    /// How it works there.
    pub summary: String,
    /// The hash of the policy.
    pub policy_sha256: String,
    /// What became of each promise.
    pub promises: BTreeMap<Clause, PromiseProof>,
}

impl Certificate {
    /// Tells whether a promise that is claimed to be enforced was broken.
    pub fn is_broken(&self) -> bool {
        self.broken().next().is_some()
    }

    /// The attempts that broke a promise that is claimed to be enforced.
    pub fn broken(&self) -> impl Iterator<Item = &Proof> {
        let claimed = self.promises.values().filter(|promise| promise.claimed.is_enforced());
        claimed.flat_map(|promise| &promise.proofs).filter(|proof| proof.verdict == Verdict::Broken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(outcome: Outcome) -> Result<Observation, String> {
        Ok(Observation { outcome, errno: None, observed: "seen".to_owned() })
    }

    #[track_caller]
    fn judge(inside: Outcome, control: Outcome) -> Verdict {
        Verdict::of(&seen(inside), || seen(control)).0
    }

    #[test]
    fn a_denial_counts_only_where_the_same_gets_through_without_a_sandbox() {
        assert_eq!(judge(Outcome::Denied, Outcome::Succeeded), Verdict::Held);
        assert_eq!(judge(Outcome::Denied, Outcome::Reached), Verdict::Held);
        assert!(matches!(judge(Outcome::Denied, Outcome::Denied), Verdict::NotTested { .. }));
    }

    #[test]
    fn what_gets_through_is_broken_and_what_says_nothing_is_not_tested() {
        assert_eq!(judge(Outcome::Succeeded, Outcome::Denied), Verdict::Broken);
        assert_eq!(judge(Outcome::Reached, Outcome::Denied), Verdict::Broken);
        let silent = Verdict::of(&Err("it said nothing".to_owned()), || seen(Outcome::Succeeded)).0;
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
        let mut promise = PromiseProof::of(Support::enforced("namespaces"));
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
