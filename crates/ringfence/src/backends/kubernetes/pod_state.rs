//! State of a pod, as the API server tells it, and the task that follows the state.

use std::fmt;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use kube::api::{WatchEvent, WatchParams};
use kube::{Api, ResourceExt};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::cluster::Cluster;
use super::error::ClusterFailure;
use super::pod::COMMAND_CONTAINER;
use crate::host_paths::untrusted::printable;

/// Time after which the API server ends a watch, and the watch is opened again.
const WATCH_SECONDS: u32 = 240;
/// Pause after a failed request, before the state is asked for again.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Reasons for which a container waits that only a change of the pod can end.
const LASTING_REASONS: [&str; 6] = [
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
];

/// State of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PodState {
    /// The pod has not started yet, for this reason.
    Waiting { why: String },
    /// The pod cannot start, for this reason.
    Stuck { why: String },
    /// The container of the commands runs.
    Running,
    /// The pod has ended.
    Ended(PodEnd),
}

/// Reason and description of the end of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodEnd {
    pub(super) reason: PodEndReason,
    /// Message of the cluster about the end, if there is one.
    pub(super) message: String,
}

/// Reason of the end of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PodEndReason {
    /// The guest ended by itself, with this exit code.
    Exited(i32),
    /// The kernel killed the container, because it used more memory than its limit.
    OutOfMemory,
    /// The kubelet evicted the pod, for example because of its disk usage.
    Evicted,
    /// The pod made room for a pod of higher priority.
    Preempted,
    /// The pod or its Job was at its deadline.
    Deadline,
    /// The node of the pod no longer answers, or is gone.
    NodeLost,
    /// Somebody deleted the pod.
    Deleted,
}

impl fmt::Display for PodEnd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            PodEndReason::Exited(code) => {
                write!(formatter, "its guest exited with code {code}")?;
            }
            PodEndReason::OutOfMemory => {
                formatter.write_str("the kernel killed it because it was out of memory")?;
            }
            PodEndReason::Evicted => formatter.write_str("the kubelet evicted it")?,
            PodEndReason::Preempted => {
                formatter.write_str("a pod of higher priority preempted it")?;
            }
            PodEndReason::Deadline => formatter.write_str("its deadline has passed")?,
            PodEndReason::NodeLost => formatter.write_str("its node was lost")?,
            PodEndReason::Deleted => formatter.write_str("it was deleted")?,
        }
        if !self.message.is_empty() {
            write!(formatter, ": {}", self.message)?;
        }
        Ok(())
    }
}

impl PodState {
    /// Reads the state from what the API server tells about the pod.
    pub(super) fn from_pod(pod: &Pod) -> PodState {
        let empty = PodStatus::default();
        let status = pod.status.as_ref().unwrap_or(&empty);
        let container = container_status(status);
        let terminated = container.and_then(|container| {
            let state = container.state.as_ref()?;
            state.terminated.as_ref()
        });
        if let Some(end) = disruption(status) {
            return PodState::Ended(end);
        }
        if let Some(terminated) = terminated {
            let reason = match terminated.reason.as_deref() {
                Some("OOMKilled") => PodEndReason::OutOfMemory,
                _ => PodEndReason::Exited(terminated.exit_code),
            };
            let message = printable(terminated.message.as_deref().unwrap_or_default().trim());
            return PodState::Ended(PodEnd { reason, message });
        }
        if matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) {
            let message = printable(status.message.as_deref().unwrap_or_default());
            return PodState::Ended(PodEnd { reason: PodEndReason::Exited(-1), message });
        }
        let is_running = container
            .and_then(|container| container.state.as_ref())
            .is_some_and(|state| state.running.is_some());
        if is_running { PodState::Running } else { waiting_state(pod, status) }
    }
}

fn container_status(status: &PodStatus) -> Option<&ContainerStatus> {
    let statuses = status.container_statuses.as_deref().unwrap_or_default();
    statuses.iter().find(|container| container.name == COMMAND_CONTAINER)
}

/// Returns the end of a pod that the cluster ended from outside.
fn disruption(status: &PodStatus) -> Option<PodEnd> {
    let message = |text: Option<&str>| printable(text.unwrap_or_default());
    let disrupted = status.conditions.iter().flatten();
    let disrupted =
        disrupted.into_iter().find(|one| one.type_ == "DisruptionTarget" && one.status == "True");
    let reason = disrupted.and_then(|condition| condition.reason.as_deref());
    let end = match (status.reason.as_deref(), reason) {
        (Some("Evicted"), _) => PodEndReason::Evicted,
        (Some("DeadlineExceeded"), _) => PodEndReason::Deadline,
        (Some("Preempted" | "Preempting"), _) | (_, Some("PreemptionByScheduler")) => {
            PodEndReason::Preempted
        }
        (Some("NodeLost" | "NodeShutdown" | "Terminated"), _)
        | (_, Some("DeletionByTaintManager" | "DeletionByPodGC")) => PodEndReason::NodeLost,
        (_, Some("EvictionByEvictionAPI" | "TerminationByKubelet")) => PodEndReason::Evicted,
        _ => return None,
    };
    let text = status.message.as_deref().or(disrupted.and_then(|one| one.message.as_deref()));
    Some(PodEnd { reason: end, message: message(text) })
}

/// Returns the state of a pod that has not started.
fn waiting_state(pod: &Pod, status: &PodStatus) -> PodState {
    let containers = status.init_container_statuses.iter().chain(&status.container_statuses);
    for container in containers.flatten() {
        let Some(state) = &container.state else { continue };
        if let Some(ended) = &state.terminated
            && ended.exit_code != 0
        {
            let message = printable(ended.message.as_deref().unwrap_or_default());
            let why = format!(
                "its container `{}` exited with code {} {message}",
                container.name, ended.exit_code
            );
            return PodState::Stuck { why: why.trim_end().to_owned() };
        }
        let Some(waiting) = &state.waiting else { continue };
        let reason = waiting.reason.as_deref().unwrap_or_default();
        let message = printable(waiting.message.as_deref().unwrap_or_default());
        let why = format!("{reason} {message}").trim().to_owned();
        if LASTING_REASONS.contains(&reason) {
            return PodState::Stuck { why };
        }
        if !["", "PodInitializing", "ContainerCreating"].contains(&reason) {
            return PodState::Waiting { why };
        }
    }
    let unscheduled = status.conditions.iter().flatten();
    let unscheduled =
        unscheduled.into_iter().find(|one| one.type_ == "PodScheduled" && one.status == "False");
    let why = match unscheduled.and_then(|condition| condition.message.as_deref()) {
        Some(message) => format!("no node takes it: {}", printable(message)),
        None => match pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) {
            Some(node) => format!("the node `{node}` has not made its containers"),
            None => "no node has taken it".to_owned(),
        },
    };
    PodState::Waiting { why }
}

/// Follows the state of one pod. Dropping the value ends the task.
#[derive(Debug)]
pub(super) struct PodWatcher {
    state: watch::Receiver<PodState>,
    task: AbortHandle,
}

impl Drop for PodWatcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl PodWatcher {
    /// Starts to follow a pod that was created.
    pub(super) fn start(cluster: &Cluster, pod: &Pod) -> PodWatcher {
        let (sender, state) = watch::channel(PodState::from_pod(pod));
        let name = pod.name_any();
        let version = pod.resource_version().unwrap_or_default();
        let uid = pod.uid().unwrap_or_default();
        let following = follow(cluster.pods(), name, uid, version, sender);
        PodWatcher { state, task: tokio::spawn(following).abort_handle() }
    }

    /// Returns a receiver of the states.
    pub(super) fn states(&self) -> watch::Receiver<PodState> {
        self.state.clone()
    }

    /// Waits until the container of the commands runs.
    pub(super) async fn wait_until_running(
        &self,
        pod: &str,
        limit: Duration,
    ) -> Result<(), ClusterFailure> {
        let mut states = self.states();
        let reached = states.wait_for(|state| !matches!(state, PodState::Waiting { .. }));
        let reached = tokio::time::timeout(limit, reached).await;
        let pod = pod.to_owned();
        let state = match reached {
            Ok(Ok(state)) => state.clone(),
            Ok(Err(_)) | Err(_) => self.state.borrow().clone(),
        };
        match state {
            PodState::Running => Ok(()),
            PodState::Waiting { why } => Err(ClusterFailure::NotStarted { pod, why, limit }),
            PodState::Stuck { why } => Err(ClusterFailure::CannotStart { pod, why }),
            PodState::Ended(end) => Err(ClusterFailure::Ended { pod, end }),
        }
    }
}

/// Waits until a pod has ended, and returns its end.
pub(super) async fn wait_for_end(mut states: watch::Receiver<PodState>) -> PodEnd {
    let ended = states.wait_for(|state| matches!(state, PodState::Ended(_))).await;
    match ended.map(|state| state.clone()) {
        Ok(PodState::Ended(end)) => end,
        // The watcher ends only after the pod.
        _ => PodEnd { reason: PodEndReason::Deleted, message: String::new() },
    }
}

/// Follows the pod until it is deleted. A failed watch is opened again.
async fn follow(
    pods: Api<Pod>,
    name: String,
    uid: String,
    mut version: String,
    states: watch::Sender<PodState>,
) {
    let deleted =
        || PodState::Ended(PodEnd { reason: PodEndReason::Deleted, message: String::new() });
    let tell = |state: PodState| {
        states.send_if_modified(|current| {
            // The first end tells most: a pod that was evicted is deleted later.
            let is_news = *current != state && !matches!(current, PodState::Ended(_));
            if is_news {
                *current = state;
            }
            is_news
        });
    };
    let selected = format!("metadata.name={name}");
    loop {
        let parameters = WatchParams::default().fields(&selected).timeout(WATCH_SECONDS);
        if let Ok(events) = pods.watch(&parameters, &version).await {
            let mut events = events.boxed();
            while let Ok(Some(event)) = events.try_next().await {
                match event {
                    WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                        version = pod.resource_version().unwrap_or_default();
                        tell(PodState::from_pod(&pod));
                    }
                    WatchEvent::Deleted(pod) => {
                        // An end that nobody saw is in the last version of the pod.
                        if let state @ PodState::Ended(_) = PodState::from_pod(&pod) {
                            tell(state);
                        }
                        return tell(deleted());
                    }
                    WatchEvent::Bookmark(_) => {}
                    WatchEvent::Error(_) => break, // the version is too old
                }
            }
        }
        match pods.get_opt(&name).await {
            Ok(Some(pod)) if pod.uid().as_deref() == Some(uid.as_str()) => {
                version = pod.resource_version().unwrap_or_default();
                tell(PodState::from_pod(&pod));
            }
            Ok(_) => return tell(deleted()),
            Err(_) => sleep(RETRY_INTERVAL).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(status: serde_json::Value, expected: PodState) {
        let pod = json!({ "metadata": { "name": "p" }, "status": status });
        assert_eq!(PodState::from_pod(&serde_json::from_value(pod).unwrap()), expected);
    }

    fn ended(reason: PodEndReason, message: &str) -> PodState {
        PodState::Ended(PodEnd { reason, message: message.to_owned() })
    }

    #[test]
    fn each_end_of_a_pod_has_its_reason() {
        let terminated = |reason: &str, code: i32| {
            let state = json!({ "terminated": { "reason": reason, "exitCode": code } });
            json!([{ "name": COMMAND_CONTAINER, "state": state, "ready": false,
                     "image": "", "imageID": "", "restartCount": 0 }])
        };
        check(
            json!({ "phase": "Failed", "containerStatuses": terminated("OOMKilled", 137) }),
            ended(PodEndReason::OutOfMemory, ""),
        );
        check(
            json!({ "phase": "Failed", "containerStatuses": terminated("Error", 3) }),
            ended(PodEndReason::Exited(3), ""),
        );
        check(
            json!({ "phase": "Failed", "reason": "Evicted", "message": "disk\nfull",
                    "containerStatuses": terminated("Error", 137) }),
            ended(PodEndReason::Evicted, "disk full"),
        );
        check(
            json!({ "phase": "Failed", "reason": "DeadlineExceeded", "message": "late" }),
            ended(PodEndReason::Deadline, "late"),
        );
        for (reason, end) in [
            ("PreemptionByScheduler", PodEndReason::Preempted),
            ("DeletionByTaintManager", PodEndReason::NodeLost),
            ("EvictionByEvictionAPI", PodEndReason::Evicted),
        ] {
            let condition = json!({ "type": "DisruptionTarget", "status": "True",
                                    "reason": reason, "message": "why" });
            check(json!({ "phase": "Running", "conditions": [condition] }), ended(end, "why"));
        }
    }

    #[test]
    fn a_pod_that_nothing_can_start_differs_from_one_that_waits() {
        let waiting = |reason: &str| {
            json!({ "phase": "Pending", "containerStatuses": [{
                "name": COMMAND_CONTAINER, "ready": false, "image": "", "imageID": "",
                "restartCount": 0, "state": { "waiting": { "reason": reason, "message": "m" } },
            }] })
        };
        check(
            waiting("ErrImageNeverPull"),
            PodState::Stuck { why: "ErrImageNeverPull m".to_owned() },
        );
        check(waiting("ErrImagePull"), PodState::Waiting { why: "ErrImagePull m".to_owned() });
        check(
            json!({ "phase": "Pending", "conditions": [{ "type": "PodScheduled",
                "status": "False", "message": "0/1 nodes are available" }] }),
            PodState::Waiting { why: "no node takes it: 0/1 nodes are available".to_owned() },
        );
    }
}
