//! Running sandboxes on a cluster: creation, supervision and removal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PropagationPolicy};
use kube::{Api, Resource, ResourceExt};
use serde_json::json;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use super::cluster::{Cluster, creation};
use super::error::ClusterFailure;
use super::evidence;
use super::network::{self, is_conflict};
use super::pod::{DENIAL_SECONDS, GRACE_SECONDS, MANAGED_BY, PodInputs, own_key};
use super::pod_state::{PodWatcher, wait_for_end};
use super::registration::{ClusterRegistration, ObjectKind};
use super::sweep::sweep_leases;
use crate::backends::block_on;
use crate::backends::instance::{SandboxInstance, StopError};
use crate::host_paths::untrusted::printable;
use crate::session::{LinkConnector, LinkRelay, LinkState};

/// Time that a pod may take from its creation to its first process. A cluster may have to add a
/// node, or to fetch an image.
const START_TIMEOUT: Duration = Duration::from_secs(300);
/// Time that the Job controller may take to create the pod of a Job.
const JOB_POD_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two looks for the pod of a Job.
const JOB_POD_INTERVAL: Duration = Duration::from_millis(50);
/// Time that a guest that runs may take to accept the stream from its host, the wait for a closed
/// network included.
const GUEST_TIMEOUT: Duration = Duration::from_secs(DENIAL_SECONDS as u64 + 40);
/// Time that the processes of a pod may take to end after their pod was deleted.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two looks for an object that is being removed.
const STOP_INTERVAL: Duration = Duration::from_millis(50);
/// Time for which a lease keeps a pod without a renewal.
pub(super) const LEASE_TIME: SignedDuration = SignedDuration::from_mins(10);
/// Pause between two renewals of a lease.
const LEASE_INTERVAL: Duration = Duration::from_secs(120);

/// Pod of a sandbox, and the object that it belongs to.
#[derive(Debug)]
pub(super) struct CreatedPod {
    guard: RemovalGuard,
    pub(super) pod: Pod,
    pub(super) watcher: PodWatcher,
}

/// A sandbox on a cluster, held by the process that started it.
#[derive(Debug)]
pub(super) struct PodInstance {
    sandbox: String,
    guard: RemovalGuard,
    /// Name of the pod.
    pod: String,
    watcher: PodWatcher,
    /// Stream to the guest, for as long as the sandbox is held.
    link: LinkConnector,
    _relay: LinkRelay,
    lease: AbortHandle,
    /// True from the order to end the sandbox, so that its end is no surprise.
    is_stopping: Arc<AtomicBool>,
}

/// Creates the objects of a sandbox, and waits until its guest runs. On failure, everything that
/// was created is removed.
pub(super) async fn create(
    cluster: &Cluster,
    inputs: &PodInputs<'_>,
    kind: ObjectKind,
    sandbox_dir: &std::path::Path,
) -> Result<CreatedPod, ClusterFailure> {
    network::provide(cluster, inputs.network, &inputs.labels()).await?;
    if let Err(failure) = sweep_leases(cluster, Some(inputs.owner)).await {
        tracing::debug!(error = crate::chain(&failure), "the namespace was not swept");
    }
    let registration = ClusterRegistration::new(cluster, kind, inputs.name());
    registration.write(sandbox_dir)?;
    remove_leftover(cluster, &registration, inputs.owner).await?;
    let mut guard = RemovalGuard { cluster: cluster.clone(), registration, is_armed: true };
    match create_and_check(cluster, inputs, &guard.registration).await {
        Ok((pod, watcher)) => Ok(CreatedPod { guard, pod, watcher }),
        Err(failure) => {
            // The first error says more. A later start sweeps what stays.
            let _ = guard.remove().await;
            Err(failure)
        }
    }
}

/// Object at a cluster, which is removed at the latest when the guard is dropped.
#[derive(Debug)]
pub(super) struct RemovalGuard {
    cluster: Cluster,
    registration: ClusterRegistration,
    is_armed: bool,
}

impl RemovalGuard {
    /// Removes the object, and waits until its processes have ended.
    async fn remove(&mut self) -> Result<(), ClusterFailure> {
        self.is_armed = false;
        // The caller may have another runtime than the one in which the object was made.
        remove(&self.cluster.reconnect()?, &self.registration).await
    }
}

impl Drop for RemovalGuard {
    fn drop(&mut self) {
        if self.is_armed {
            // The order to delete is enough here: the cluster ends the pod by itself.
            order_removal_blocking(&self.cluster, &self.registration);
        }
    }
}

/// Orders the removal of an object on a runtime of its own, where nothing can be awaited.
fn order_removal_blocking(cluster: &Cluster, registration: &ClusterRegistration) {
    block_on(async {
        if let Ok(cluster) = cluster.reconnect() {
            // A later start sweeps what stays.
            let _ = order_removal(&cluster, registration).await;
        }
    });
}

async fn create_and_check(
    cluster: &Cluster,
    inputs: &PodInputs<'_>,
    registration: &ClusterRegistration,
) -> Result<(Pod, PodWatcher), ClusterFailure> {
    let (pods, jobs) = (cluster.pods(), cluster.jobs());
    let (meant, found) = match registration.kind {
        ObjectKind::Pod => {
            let pod = inputs.pod();
            let parameters = creation();
            let created = pods.create(&parameters, &pod);
            let found = cluster.ask("create pods", created).await?;
            (pod.spec, found)
        }
        ObjectKind::Job => {
            let job = inputs.job();
            let parameters = creation();
            let created = jobs.create(&parameters, &job);
            let created = cluster.ask("create jobs", created).await?;
            let found = pod_of_job(cluster, &created).await?;
            (job.spec.and_then(|spec| spec.template.spec), found)
        }
    };
    let meant = meant.expect("every pod is described with a specification");
    if let Some(difference) = evidence::difference(&meant, &found) {
        let (kind, name) = ("pod", found.name_any());
        return Err(ClusterFailure::Changed { kind, name, difference });
    }
    let watcher = PodWatcher::start(cluster, &found);
    watcher.wait_until_running(&found.name_any(), START_TIMEOUT).await?;
    Ok((found, watcher))
}

/// Waits until the Job controller has created the pod of a Job.
async fn pod_of_job(cluster: &Cluster, job: &Job) -> Result<Pod, ClusterFailure> {
    let name = job.name_any();
    let selected = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={name}"));
    let deadline = Instant::now() + JOB_POD_TIMEOUT;
    loop {
        let pods = cluster.pods();
        let listed = cluster.ask("list pods", pods.list(&selected)).await?;
        if let Some(pod) = listed.items.into_iter().next() {
            return Ok(pod);
        }
        if Instant::now() > deadline {
            let found = cluster.ask("get jobs", cluster.jobs().get(&name)).await?;
            return Err(job_failure(&name, &cluster.namespace, &found));
        }
        sleep(JOB_POD_INTERVAL).await;
    }
}

/// Explains why a Job has no pod: its controller writes the reason into the Job's conditions.
fn job_failure(name: &str, namespace: &str, job: &Job) -> ClusterFailure {
    let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let messages: Vec<_> =
        conditions.filter_map(|condition| condition.message.as_deref()).map(printable).collect();
    let is_suspended = job.spec.as_ref().and_then(|spec| spec.suspend) == Some(true);
    let why = match (messages.is_empty(), is_suspended) {
        (false, _) => messages.join("; "),
        (true, true) => "its Job is suspended by a queue".to_owned(),
        (true, false) => format!(
            "the Job controller of the namespace `{namespace}` made no pod, for example because \
             of a quota"
        ),
    };
    ClusterFailure::NotStarted { pod: name.to_owned(), why, limit: JOB_POD_TIMEOUT }
}

impl PodInstance {
    /// Holds a pod that was created, with the stream to its guest.
    pub(super) fn new(
        sandbox: String,
        created: CreatedPod,
        link: LinkConnector,
        relay: LinkRelay,
    ) -> PodInstance {
        let CreatedPod { guard, pod, watcher } = created;
        let pod = pod.name_any();
        let lease = tokio::spawn(renew_lease(guard.cluster.pods(), pod.clone())).abort_handle();
        let is_stopping = Arc::default();
        PodInstance { sandbox, guard, pod, watcher, link, _relay: relay, lease, is_stopping }
    }

    /// Waits until the guest has accepted the stream from this process. The guest of a closed
    /// network does so only after its own connections were denied.
    pub(super) async fn wait_for_guest(&self) -> Result<(), ClusterFailure> {
        let mut link = self.link.state();
        let accepted = async {
            let settled = link.wait_for(|state| !matches!(state, LinkState::Reconnecting { .. }));
            timeout(GUEST_TIMEOUT, settled).await.ok()?.ok().map(|state| state.clone())
        };
        let pod = self.pod.clone();
        let ended = wait_for_end(self.watcher.states());
        tokio::select! {
            accepted = accepted => match accepted {
                Some(LinkState::Connected) => Ok(()),
                Some(LinkState::Ended(failure)) => {
                    Err(ClusterFailure::CannotStart { pod, why: crate::chain(&failure) })
                }
                Some(LinkState::Reconnecting { .. }) | None => {
                    let why = "its guest does not answer".to_owned();
                    Err(ClusterFailure::NotStarted { pod, why, limit: GUEST_TIMEOUT })
                }
            },
            end = ended => Err(ClusterFailure::Ended { pod, end }),
        }
    }
}

impl Drop for PodInstance {
    fn drop(&mut self) {
        self.lease.abort();
    }
}

impl SandboxInstance for PodInstance {
    fn ended(&self) -> BoxFuture<'static, ()> {
        let (states, is_stopping) = (self.watcher.states(), Arc::clone(&self.is_stopping));
        let (sandbox, pod) = (self.sandbox.clone(), self.pod.clone());
        Box::pin(async move {
            let end = wait_for_end(states).await;
            if !is_stopping.load(Ordering::Relaxed) {
                tracing::warn!(sandbox, pod, "the pod of a sandbox ended by itself: {end}");
            }
        })
    }

    fn stop(mut self: Box<Self>) -> BoxFuture<'static, Result<(), StopError>> {
        self.is_stopping.store(true, Ordering::Relaxed);
        Box::pin(async move {
            let removed = self.guard.remove().await;
            let ClusterRegistration { namespace, kind, name, .. } = &self.guard.registration;
            removed.map_err(|failure| StopError {
                name: self.sandbox.clone(),
                why: crate::chain(&failure),
                hint: format!(
                    "remove it by hand: kubectl --namespace {namespace} delete {} {name}",
                    kind.name()
                ),
            })
        })
    }
}

/// Renews the lease of a pod until the task is ended.
async fn renew_lease(pods: Api<Pod>, name: String) {
    loop {
        sleep(LEASE_INTERVAL).await;
        let annotations = json!({ own_key("lease-until"): lease_until() });
        let patch = json!({ "metadata": { "annotations": annotations } });
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
        if let Err(error) = pods.patch_metadata(&name, &parameters, &patch).await {
            tracing::warn!(pod = name, error = crate::chain(&error), "a lease was not renewed");
        }
    }
}

/// Returns the time until which a lease that is renewed now keeps a pod.
pub(super) fn lease_until() -> String {
    let until = Timestamp::now().checked_add(LEASE_TIME);
    until.expect("minutes from now are a time").to_string()
}

/// Returns an error if the name of the object is taken by another owner, and removes what a killed
/// process of this owner left under that name.
async fn remove_leftover(
    cluster: &Cluster,
    registration: &ClusterRegistration,
    owner: &str,
) -> Result<(), ClusterFailure> {
    let name = &registration.name;
    let labels = match registration.kind {
        ObjectKind::Pod => {
            let pods = cluster.pods();
            cluster.ask("get pods", pods.get_opt(name)).await?.map(|pod| pod.labels().clone())
        }
        ObjectKind::Job => {
            let jobs = cluster.jobs();
            cluster.ask("get jobs", jobs.get_opt(name)).await?.map(|job| job.labels().clone())
        }
    };
    let Some(labels) = labels else { return Ok(()) };
    let is_ours = labels.get(MANAGED_BY.0).map(String::as_str) == Some(MANAGED_BY.1)
        && labels.get(&own_key("owner")).map(String::as_str) == Some(owner);
    if !is_ours {
        let kind = registration.kind.name();
        return Err(ClusterFailure::NameTaken { kind, name: name.clone() });
    }
    tracing::info!(name, "removing a pod that a crash left");
    remove(cluster, registration).await
}

/// Removes the object of a sandbox, and waits until its processes have ended.
pub(super) async fn remove(
    cluster: &Cluster,
    registration: &ClusterRegistration,
) -> Result<(), ClusterFailure> {
    order_removal(cluster, registration).await?;
    let name = &registration.name;
    let pods = cluster.pods();
    let removed = async {
        match registration.kind {
            ObjectKind::Pod => wait_until_absent(cluster, &pods, name).await,
            ObjectKind::Job => wait_until_no_pod(cluster, name).await,
        }
    };
    match timeout(STOP_TIMEOUT, removed).await {
        Ok(removed) => removed,
        Err(_) => Err(ClusterFailure::NoAnswer {
            what: format!("end the pod of `{name}`"),
            server: cluster.server.clone(),
        }),
    }
}

/// Orders the cluster to delete the object of a sandbox and its pods.
pub(super) async fn order_removal(
    cluster: &Cluster,
    registration: &ClusterRegistration,
) -> Result<(), ClusterFailure> {
    let graceful =
        DeleteParams::default().grace_period(u32::try_from(GRACE_SECONDS).expect("a small number"));
    match registration.kind {
        ObjectKind::Pod => delete(cluster, &cluster.pods(), &registration.name, &graceful).await,
        ObjectKind::Job => {
            let background = DeleteParams {
                propagation_policy: Some(PropagationPolicy::Background),
                ..DeleteParams::default()
            };
            delete(cluster, &cluster.jobs(), &registration.name, &background).await?;
            for pod in pods_of_job(cluster, &registration.name).await? {
                delete(cluster, &cluster.pods(), &pod.name_any(), &graceful).await?;
            }
            Ok(())
        }
    }
}

async fn pods_of_job(cluster: &Cluster, job: &str) -> Result<Vec<Pod>, ClusterFailure> {
    let selected = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={job}"));
    let pods = cluster.pods();
    Ok(cluster.ask("list pods", pods.list(&selected)).await?.items)
}

/// Deletes an object. Succeeds if there is none.
async fn delete<K>(
    cluster: &Cluster,
    api: &Api<K>,
    name: &str,
    parameters: &DeleteParams,
) -> Result<(), ClusterFailure>
where
    K: Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    match api.delete(name, parameters).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 || is_conflict(&status) => Ok(()),
        Err(source) => {
            Err(ClusterFailure::from_request("delete pods or jobs", &cluster.namespace, source))
        }
    }
}

async fn wait_until_absent(
    cluster: &Cluster,
    pods: &Api<Pod>,
    name: &str,
) -> Result<(), ClusterFailure> {
    while cluster.ask("get pods", pods.get_metadata_opt(name)).await?.is_some() {
        sleep(STOP_INTERVAL).await;
    }
    Ok(())
}

async fn wait_until_no_pod(cluster: &Cluster, job: &str) -> Result<(), ClusterFailure> {
    while !pods_of_job(cluster, job).await?.is_empty() {
        sleep(STOP_INTERVAL).await;
    }
    Ok(())
}
