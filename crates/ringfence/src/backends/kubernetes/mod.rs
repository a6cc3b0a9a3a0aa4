//! Kubernetes: a pod for each sandbox, a Job for each single command.
//!
//! The host reaches the guest through one long stream, which the API server carries. Reading order:
//! `cluster` connects to the API server. `pod` describes a pod, and `evidence` compares the
//! description with what the cluster made of it. `network` provides the network policies, and
//! `trial` tries them. `instance` creates, keeps and removes a pod, `pod_state` follows it, and
//! `carrier` carries the stream. `access` asks for the rights of the account, `probe` tells what
//! the cluster can enforce, `manifest` is for administrators, and `sweep` removes what a crash
//! left.

mod access;
mod carrier;
mod cluster;
mod error;
mod evidence;
mod instance;
mod manifest;
mod network;
mod pod;
mod pod_state;
mod probe;
mod registration;
mod sweep;
mod trial;

use std::io;
use std::path::Path;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use kube::ResourceExt;
use ringfence_core::policy::Size;
use ringfence_core::settings::KubernetesConfig;
use ringfence_core::{Capabilities, Policy};
use sha2::{Digest, Sha256};

use super::facets::{KeptSandbox, PortRoute, SandboxFacets, WorkspaceSource};
use super::instance::SandboxInstance;
use super::{
    Backend, BackendStart, ContainerError, ProbeRequest, StartedSandbox, Unavailable, block_on,
    named_variables,
};
use crate::run::plan::SandboxLifetime;
use crate::sandbox::directory::{SandboxDirs, channel_in};
use crate::session::{LinkConnector, LinkTimeouts, UnixConnector};
use crate::{ContainerSpec, Host, StartError};

use carrier::ExecCarrier;
use cluster::Cluster;
use error::ClusterFailure;
use instance::PodInstance;
use pod::PodInputs;
use registration::ObjectKind;

pub use manifest::ClusterManifest;
pub use sweep::sweep_cluster;

/// Image that contains the guest, if the settings name no other.
const GUEST_IMAGE: &str = concat!("ringfence-guest:", env!("CARGO_PKG_VERSION"));

/// Backend that creates pods on a cluster.
#[derive(Debug)]
pub(super) struct KubernetesBackend;

impl Backend for KubernetesBackend {
    fn probe(&self, request: &ProbeRequest<'_>) -> Result<Capabilities, Unavailable> {
        block_on(probe::capabilities(request)).map_err(|failure| {
            let error = ContainerError::from(failure);
            Unavailable { why: crate::chain(&error), fix: error.hints.join("; ") }
        })
    }

    fn complete(&self, policy: &Policy, _container: &ContainerSpec) -> Policy {
        let mut full = policy.clone();
        full.limits.memory.get_or_insert(pod::DEFAULT_MEMORY);
        full.limits.cpus.get_or_insert(pod::DEFAULT_CPUS);
        // `/tmp` is memory of the pod, so a full `/tmp` must leave memory for the commands.
        let memory = full.limits.memory.unwrap_or(pod::DEFAULT_MEMORY);
        full.limits.tmp.get_or_insert(Size::from_bytes(memory.bytes() / 4));
        full
    }

    fn may_be_probed_unasked(&self) -> bool {
        false // the probe makes pods, and the current context may be any cluster
    }

    fn start<'a>(
        &'a self,
        request: BackendStart<'a>,
    ) -> BoxFuture<'a, Result<StartedSandbox, StartError>> {
        Box::pin(async { Ok(start(request).await.map_err(ContainerError::from)?) })
    }

    fn attach(&self, sandbox: KeptSandbox<'_>) -> io::Result<SandboxFacets> {
        // The process that keeps the sandbox relays streams to the guest.
        let connector = UnixConnector::for_guest_in(&channel_in(sandbox.directory))?
            .with_outage_limit(LinkTimeouts::default().outage);
        Ok(SandboxFacets {
            connector: Arc::new(connector),
            workspace: WorkspaceSource::Copy,
            pause: None,
            observer: None,
            ports: PortRoute::Guest,
        })
    }

    fn sweep<'a>(&'a self, host: &'a Host, directories: &'a Path) -> BoxFuture<'a, ()> {
        Box::pin(sweep::sweep_directories(host, directories))
    }

    fn remove_remains(&self, directory: &Path) {
        if directory.join(registration::REGISTRATION_FILE).exists()
            && let Ok(host) = Host::for_this_process()
        {
            block_on(sweep::sweep_directory(&host, directory));
        }
    }
}

async fn start(request: BackendStart<'_>) -> Result<StartedSandbox, ClusterFailure> {
    let BackendStart { core, context, container, sandbox_dir } = request;
    let (host, settings) = (&core.settings.host, &core.settings.kubernetes);
    let cluster = Cluster::connect(host, settings).await?;
    // The token is random and only this process knows it. The pod has its hash.
    let token = crate::run::identity() + &crate::run::identity();
    let token_hash = ringfence_proto::signature::token_hash(&token);
    let owner = owner_label(host);
    let rule = pod::network_rule(context.plan.policy.network.as_ref());
    let inputs = PodInputs {
        sandbox: sandbox_dir.name.as_str(),
        owner: &owner,
        settings,
        container,
        image: image(settings, container),
        guest_image: guest_image(settings),
        limits: &context.plan.policy.limits,
        network: rule.expect("a plan with another network was refused"),
        workspace: &context.workspace.destination,
        token_hash: &token_hash,
        lease_until: &instance::lease_until(),
    };
    let kind = match context.lifetime {
        SandboxLifetime::OneCommand => ObjectKind::Job,
        SandboxLifetime::Stays => ObjectKind::Pod,
    };
    let created = instance::create(&cluster, &inputs, kind, &sandbox_dir.path).await?;
    let carrier = ExecCarrier {
        cluster: cluster.clone(),
        pod: created.pod.name_any(),
        states: created.watcher.states(),
    };
    let link = LinkConnector::start(Arc::new(carrier), &token, LinkTimeouts::default());
    let link = link.map_err(|source| ClusterFailure::Files { what: "make the link", source })?;
    let relay = link
        .relay_on(&sandbox_dir.channel())
        .map_err(|source| ClusterFailure::Files { what: "listen in the directory", source })?;
    let variables = named_variables(core, &context, None);
    let name = sandbox_dir.name.to_string();
    let instance = PodInstance::new(name, created, link, relay);
    if let Err(failure) = instance.wait_for_guest().await {
        let _ = Box::new(instance).stop().await; // the first error says more
        return Err(failure);
    }
    Ok(StartedSandbox { instance: Box::new(instance), egress: None, variables })
}

/// Returns the image of the container in which commands run.
fn image<'a>(settings: &'a KubernetesConfig, container: &'a ContainerSpec) -> &'a str {
    let named = settings.image.as_deref().or(container.image.as_deref());
    named.unwrap_or_else(|| guest_image(settings))
}

fn guest_image(settings: &KubernetesConfig) -> &str {
    settings.guest_image.as_deref().unwrap_or(GUEST_IMAGE)
}

/// Returns the value of the label that tells which state directory a pod belongs to.
fn owner_label(host: &Host) -> String {
    let directory = SandboxDirs::for_host(host).map(|directories| directories.base_directory());
    let directory = directory.unwrap_or_default();
    let machine = fs_err::read_to_string("/etc/machine-id").unwrap_or_default();
    let node = rustix::system::uname();
    let identity = (machine, node.nodename().to_bytes(), directory, host.user_id);
    let text = format!("{identity:?}");
    ringfence_core::to_hex(&Sha256::digest(text))[..16].to_owned()
}
