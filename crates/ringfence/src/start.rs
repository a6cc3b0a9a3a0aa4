//! Starts a sandbox that stays: makes a plan for its policy, starts its guest, and writes its
//! manifest.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use ringfence_core::policy::Network;
use ringfence_core::{Clause, Policy, Support};
use sha2::{Digest, Sha256};

use crate::backends::Means;
use crate::egress::{self, Awaited, GateHolder, Sealed, WayOut};
use crate::engine::Core;
use crate::instance::Instance;
use crate::ready::Context;
use crate::room::{Manifest, Owner, Room, Rooms};
use crate::witness::Witness;
use crate::{ContainerSpec, RunError, Spec, StartError};

/// Returns the hash of everything that was asked for. Two sandboxes with the same hash are
/// interchangeable.
pub(crate) fn hash(core: &Core, spec: &Spec) -> String {
    // The time at which an image is fetched does not affect the sandbox.
    let container = ContainerSpec { pull: None, ..spec.container.clone() };
    let host = &core.settings.host;
    // Hash the values of passed variables, not only their names. The path of a directory need not
    // be UTF-8.
    let passed: Vec<_> =
        spec.policy.env.pass.iter().flatten().map(|name| (name, host.text(name))).collect();
    let directory = host.directory.as_os_str().as_encoded_bytes();
    let asked = (
        spec.policy.sha256(),
        container,
        spec.lease,
        passed,
        directory,
        &core.settings.credentials,
    );
    let bytes = serde_json::to_vec(&asked).expect("names and settings are text");
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A sandbox whose guest has been started.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) instance: Box<dyn Instance>,
    pub(crate) manifest: Manifest,
    /// Holder of the gate of a container's network, or listener to its proxy. The gate of a process
    /// tree is held together with the tree.
    pub(crate) egress: Option<GateHolder>,
    /// Variables that the guest has yet to receive for its commands.
    pub(crate) variables: BTreeMap<String, String>,
}

/// Starts a sandbox in a room, and writes its manifest.
pub(crate) async fn start(
    core: &Arc<Core>,
    spec: &Spec,
    room: &Room,
    asked: String,
) -> Result<Started, StartError> {
    let mut context = settle(core, spec).await?;
    context.sandbox = Some(room.name.to_string());
    context.workspace.require_text().map_err(RunError::from)?;
    let watched = context.guarded.watched().clone();
    let log = egress::gate(&context.plan.policy).map(|_| egress::log_in(&room.directory));
    let mut manifest = describe(core, spec, &context, room, asked);
    let (mut variables, mut egress) = (BTreeMap::new(), None);
    let instance = match Core::means(&context.plan)? {
        Means::Processes(backend) => core.start_guest(backend, context, room).await?,
        Means::Containers(backend) => {
            backend.sweep(&core.settings.host, &Rooms::of(&core.settings.host)?.directory()).await;
            let mut instance =
                backend.start(&core.site(&context, &spec.container, &[]), room).await?;
            let way_out = instance.take_way_out();
            variables = named_variables(core, &context, way_out.as_ref());
            egress = match way_out {
                Some(WayOut::Gate(gate)) => {
                    Some(core.hold_gate(&context, Awaited::Received(gate))?)
                }
                Some(WayOut::Proxy(proxy)) => Some(core.order_proxy(&context, proxy).await?),
                None => None,
            };
            instance
        }
    };
    manifest.container = instance.container();
    if let Some(container) = &manifest.container {
        manifest.workspace_inside = container.workspace.clone();
        manifest.network.clone_from(&container.network);
    }
    let written = room.write(&manifest, &Witness::new(instance.as_ref(), watched, log));
    if let Err(source) = written {
        let _ = instance.stop().await; // the first error is more informative
        return Err(crate::RoomError::File {
            what: "write the manifest",
            name: room.name.clone(),
            source,
        }
        .into());
    }
    Ok(Started { instance, manifest, egress, variables })
}

/// Returns the variables that a policy names, with their values, and those for the proxy and for
/// secrets.
fn named_variables(
    core: &Core,
    context: &Context,
    way_out: Option<&WayOut>,
) -> BTreeMap<String, String> {
    let environment = &context.plan.policy.env;
    let passed = environment.pass.iter().flatten();
    let passed =
        passed.filter_map(|name| Some((name.clone(), core.settings.host.text(name)?.to_owned())));
    let of_proxy = match way_out {
        Some(WayOut::Gate(_)) => egress::variables(),
        Some(WayOut::Proxy(proxy)) => egress::remote_variables(proxy),
        None => Vec::new(),
    };
    let of_proxy = of_proxy.into_iter().map(|(name, value)| (name.to_owned(), value));
    // A variable that stands for a secret replaces the caller's variable of the same name, even if
    // that one is passed.
    let of_secrets = context.sealed.iter().flat_map(Sealed::variables);
    of_proxy.chain(passed).chain(of_secrets).chain(environment.set.clone()).collect()
}

/// Makes a plan, which may take a while. If the caller has a launcher process, this runs on another
/// thread, because the caller may have other tasks, too.
async fn settle(core: &Arc<Core>, spec: &Spec) -> Result<Context, StartError> {
    if matches!(core.launcher, ringfence_linux::Launcher::Here) {
        return Ok(settle_with_secrets(core, &spec.policy, &spec.container)?);
    }
    let (core, policy, container) = (Arc::clone(core), spec.policy.clone(), spec.container.clone());
    let settled =
        tokio::task::spawn_blocking(move || settle_with_secrets(&core, &policy, &container)).await;
    Ok(settled.expect("agreeing on a plan does not panic")?)
}

fn settle_with_secrets(
    core: &Core,
    policy: &Policy,
    container: &ContainerSpec,
) -> Result<Context, RunError> {
    let mut context = core.settle(policy, container)?;
    context.sealed = core.seal(&context.plan)?;
    Ok(context)
}

fn describe(core: &Core, spec: &Spec, context: &Context, room: &Room, asked: String) -> Manifest {
    let now = Timestamp::now();
    let plan = &context.plan;
    Manifest {
        name: room.name.clone(),
        backend: plan.backend,
        chosen_because: context.because.clone(),
        started: now.to_string(),
        ends: spec.lease.and_then(|lease| now.checked_add(lease).ok()).map(|end| end.to_string()),
        workspace: context.workspace.source.clone(),
        workspace_inside: context.workspace.destination.clone(),
        held: plan.held.iter().map(|(clause, support)| (*clause, support.to_string())).collect(),
        network: match &plan.policy.network {
            _ if matches!(plan.held.get(&Clause::Network), Some(Support::Absent { .. })) => {
                "host".to_owned()
            }
            Some(Network::Open) => "open".to_owned(),
            Some(Network::Allow(_)) => "allow".to_owned(),
            Some(Network::Closed) | None => "closed".to_owned(),
        },
        spec: asked,
        limits: plan.policy.limits.clone(),
        policy: plan.policy.clone().without_values(),
        policy_sha256: plan.policy_sha256.clone(),
        is_changed: false,
        container: None,
        owner: Owner::own(&core.settings),
    }
}
