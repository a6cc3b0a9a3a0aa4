//! Removal of pods and Jobs that a killed ringfence left.

use std::path::Path;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::api::ListParams;

use super::cluster::Cluster;
use super::error::ClusterFailure;
use super::instance::{order_removal, remove};
use super::pod::{MANAGED_BY, own_key};
use super::registration::{ClusterRegistration, ObjectKind};
use crate::backends::block_on;
use crate::sandbox::directory::{Name, SandboxDirs};
use crate::{ContainerError, Host, Settings};

/// Time after the end of a lease before the pod is removed. The clocks of two machines differ, and
/// a machine that slept renews its leases only after it wakes.
const LEASE_MARGIN: SignedDuration = SignedDuration::from_mins(10);

/// Removes the objects that unused sandbox directories have registered.
pub(super) async fn sweep_directories(host: &Host, directories: &Path) {
    let Ok(sandbox_dirs) = SandboxDirs::for_host(host) else { return };
    for entry in fs_err::read_dir(directories).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = path.file_name().and_then(|name| Name::new(name.to_str()?).ok());
        if name.is_some_and(|name| !sandbox_dirs.is_kept(&name)) {
            sweep_directory(host, &path).await;
        }
    }
}

/// Removes the object that an unused sandbox directory has registered.
pub(super) async fn sweep_directory(host: &Host, sandbox_dir: &Path) {
    let Some(registration) = ClusterRegistration::read(sandbox_dir) else { return };
    let Ok(cluster) = Cluster::connect(host, &registration.settings()).await else { return };
    if cluster.server != registration.server {
        return; // the context names another cluster now
    }
    tracing::info!(name = registration.name, "removing a pod that a crash left");
    if let Err(failure) = remove(&cluster, &registration).await {
        let error = crate::chain(&failure);
        tracing::warn!(name = registration.name, error, "a pod was not removed");
    }
}

/// Orders the removal of the objects in a namespace whose lease has ended: those of `owner`, or
/// those of everybody. Returns the number of these objects.
pub(super) async fn sweep_leases(
    cluster: &Cluster,
    owner: Option<&str>,
) -> Result<usize, ClusterFailure> {
    let mut labels = format!("{}={}", MANAGED_BY.0, MANAGED_BY.1);
    if let Some(owner) = owner {
        labels += &format!(",{}={owner}", own_key("owner"));
    }
    let ours = ListParams::default().labels(&labels);
    let (pods, now) = (cluster.pods(), Timestamp::now());
    let listed = cluster.ask("list pods", pods.list_metadata(&ours)).await?;
    let mut removed = 0;
    for pod in listed.items {
        let until = pod.annotations().get(&own_key("lease-until"));
        let has_ended = until
            .and_then(|until| until.parse::<Timestamp>().ok())
            .is_some_and(|until| now.duration_since(until) > LEASE_MARGIN);
        if !has_ended {
            continue;
        }
        let job = pod.labels().get("batch.kubernetes.io/job-name").cloned();
        let (kind, name) = match job {
            Some(job) => (ObjectKind::Job, job),
            None => (ObjectKind::Pod, pod.name_any()),
        };
        tracing::info!(name, "removing a pod whose lease has ended");
        order_removal(cluster, &ClusterRegistration::new(cluster, kind, name)).await?;
        removed += 1;
    }
    Ok(removed)
}

/// Orders the removal of the sandboxes in a namespace whose lease has ended. Returns their number.
pub fn sweep_cluster(
    settings: &Settings,
    namespace: Option<String>,
) -> Result<usize, ContainerError> {
    let mut cluster = settings.kubernetes.clone();
    cluster.namespace = namespace.or(cluster.namespace);
    let swept =
        async { sweep_leases(&Cluster::connect(&settings.host, &cluster).await?, None).await };
    Ok(block_on(swept)?)
}
