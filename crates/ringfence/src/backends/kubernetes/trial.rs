//! Trial of a namespace: two pods whose guests try the network from inside, one without a network
//! policy and one under the closed policy.
//!
//! A network plug-in may ignore network policies without a word. So the closed network counts as
//! enforced only if the pod under the policy cannot reach what the other pod reaches.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde::{Deserialize, Serialize};

use super::access::check_access;
use super::cluster::{Cluster, creation};
use super::error::ClusterFailure;
use super::instance::remove;
use super::network::{self, NetworkRule};
use super::pod::PodInputs;
use super::pod_state::{PodEndReason, PodState, PodWatcher, wait_for_end};
use super::registration::{ClusterRegistration, ObjectKind};
use crate::Host;
use crate::backends::probe_cache::{ProbeCache, ProbeSubject};

/// Time that the pods of a trial may take to start and to end.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(120);
/// Time for which the result of a trial is used again.
const VALIDITY: SignedDuration = SignedDuration::from_hours(1);

/// Result of a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NetworkTrialResult {
    tried: Timestamp,
    /// Addresses that a pod reaches without a network policy.
    pub(super) reached_without_policy: Vec<String>,
    /// Addresses that a pod reaches under the closed policy, after the policy had time to be
    /// enforced.
    pub(super) reached_under_policy: Vec<String>,
    /// Number of processes that the node allows in a pod; `None` for no limit.
    pub(super) process_limit: Option<u64>,
}

/// Report of a guest about its pod, which the guest writes as the message of its end.
#[derive(Debug, Deserialize)]
struct PodReport {
    reached: Vec<String>,
    process_limit: Option<u64>,
}

/// Freshness of the result of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TrialFreshness {
    Remembered,
    Now,
}

/// Returns the result of a trial in the namespace, which may be one of the last hour.
pub(super) async fn run_trial(
    host: &Host,
    cluster: &Cluster,
    inputs: PodInputs<'_>,
    freshness: TrialFreshness,
) -> Result<NetworkTrialResult, ClusterFailure> {
    let subject = ProbeSubject::Cluster {
        server: &cluster.server,
        namespace: &cluster.namespace,
        runtime_class: inputs.settings.runtime_class.as_deref().unwrap_or_default(),
    };
    let cache = ProbeCache::for_subject(host, subject);
    let remembered =
        cache.note().and_then(|note| serde_json::from_str::<NetworkTrialResult>(&note).ok());
    if let Some(result) = remembered
        && freshness == TrialFreshness::Remembered
        && Timestamp::now().duration_since(result.tried) < VALIDITY
    {
        return Ok(result);
    }
    cache.forget();
    check_access(cluster).await?;
    let closed = PodInputs { network: NetworkRule::Closed, ..inputs };
    network::provide(cluster, NetworkRule::Closed, &closed.labels()).await?;
    let without = PodInputs { network: NetworkRule::Untouched, ..inputs };
    let without = trial_pod(cluster, &without);
    let under = PodInputs { network: NetworkRule::Closed, ..inputs };
    let under = trial_pod(cluster, &under);
    let (without, under) = tokio::join!(without, under);
    let (without, under) = (without?, under?);
    let result = NetworkTrialResult {
        tried: Timestamp::now(),
        reached_without_policy: without.reached,
        reached_under_policy: under.reached,
        process_limit: under.process_limit,
    };
    if let Ok(note) = serde_json::to_string(&result) {
        cache.store_note(&note);
    }
    Ok(result)
}

/// Runs a pod that tries its network, and returns its report.
async fn trial_pod(cluster: &Cluster, inputs: &PodInputs<'_>) -> Result<PodReport, ClusterFailure> {
    let pod = PodInputs { sandbox: &crate::run::identity(), ..*inputs }.trial_pod();
    let name = pod.name_any();
    let registration = ClusterRegistration::new(cluster, ObjectKind::Pod, name.clone());
    let created = cluster.ask("create pods", cluster.pods().create(&creation(), &pod)).await?;
    let report = read_report(cluster, &created).await;
    // The lease ends the pod if the removal fails.
    let _ = remove(cluster, &registration).await;
    report
}

async fn read_report(cluster: &Cluster, created: &Pod) -> Result<PodReport, ClusterFailure> {
    let name = created.name_any();
    let watcher = PodWatcher::start(cluster, created);
    let mut states = watcher.states();
    let settled =
        states.wait_for(|state| matches!(state, PodState::Stuck { .. } | PodState::Ended(_)));
    let settled = tokio::time::timeout(TRIAL_TIMEOUT, settled).await;
    let state = settled.ok().and_then(Result::ok).map(|state| state.clone());
    match state {
        Some(PodState::Ended(_)) => {}
        Some(PodState::Stuck { why }) => {
            return Err(ClusterFailure::CannotStart { pod: name, why });
        }
        _ => {
            let why = match &*watcher.states().borrow() {
                PodState::Waiting { why } => why.clone(),
                _ => "it did not end".to_owned(),
            };
            return Err(ClusterFailure::NotStarted { pod: name, why, limit: TRIAL_TIMEOUT });
        }
    }
    let end = wait_for_end(watcher.states()).await;
    let report = serde_json::from_str(&end.message).ok();
    match (end.reason, report) {
        (PodEndReason::Exited(0), Some(report)) => Ok(report),
        _ => Err(ClusterFailure::Ended { pod: name, end }),
    }
}

impl NetworkTrialResult {
    /// Returns the addresses that stay reachable although the policy closes the network.
    pub(super) fn leaks(&self) -> &[String] {
        &self.reached_under_policy
    }
}
