//! Starts a sandbox that stays: makes a plan for its policy, starts its guest, and writes its
//! manifest.

use std::sync::Arc;

use jiff::Timestamp;
use ringfence_core::policy::Network;
use ringfence_core::{Clause, Policy, Support};
use sha2::{Digest, Sha256};

use crate::backends::{BackendStart, StartedSandbox};
use crate::egress;
use crate::engine::Core;
use crate::run::plan::PlannedRun;
use crate::sandbox::directory::{Manifest, NetworkReach, Owner, SandboxDir, SandboxDirs};
use crate::sandbox::host_observer::HostObserver;
use crate::sandbox::workspace_copy::CopyRules;
use crate::view::WatchedPaths;
use crate::{ContainerSpec, RunError, StartError, StartRequest};

/// Returns the hash of everything that was asked for. Two sandboxes with the same hash are
/// interchangeable.
pub(crate) fn hash(core: &Core, request: &StartRequest) -> String {
    // The time at which an image is fetched does not affect the sandbox.
    let container = ContainerSpec { pull: None, ..request.container.clone() };
    let host = &core.settings.host;
    // Hash the values of passed variables, not only their names. The path of a directory need not
    // be UTF-8.
    let passed: Vec<_> =
        request.policy.env.pass.iter().flatten().map(|name| (name, host.text(name))).collect();
    let directory = host.directory.as_os_str().as_encoded_bytes();
    let hashed = (
        request.policy.sha256(),
        container,
        request.lease,
        passed,
        directory,
        &core.settings.credentials,
    );
    let bytes = serde_json::to_vec(&hashed).expect("names and settings are text");
    ringfence_core::to_hex(&Sha256::digest(bytes))
}

/// Rules and watched paths for a workspace that is copied into the sandbox.
#[derive(Debug)]
pub(crate) struct WorkspaceGuard {
    pub(crate) rules: CopyRules,
    pub(crate) watched: WatchedPaths,
}

/// Starts a planned sandbox in a sandbox directory, and writes its manifest.
pub(crate) async fn start(
    core: &Core,
    request: &StartRequest,
    sandbox_dir: &SandboxDir,
    request_hash: String,
    mut context: PlannedRun,
) -> Result<(StartedSandbox, Manifest, WorkspaceGuard), StartError> {
    context.sandbox = Some(sandbox_dir.name.to_string());
    context.workspace.require_text().map_err(RunError::from)?;
    let watched = context.guarded.watched().clone();
    let root = context.workspace.source.as_path();
    let rules = CopyRules::new(&context.plan.policy, &context.guarded, root);
    let guard = WorkspaceGuard { rules, watched: watched.clone() };
    let log = egress::gate(&context.plan.policy).map(|_| egress::log_in(&sandbox_dir.path));
    let mut manifest = describe(core, request, &context, sandbox_dir, request_hash);
    let backend = Core::backend(&context.plan)?;
    backend
        .sweep(&core.settings.host, &SandboxDirs::for_host(&core.settings.host)?.base_directory())
        .await;
    let backend_start = BackendStart { core, context, container: &request.container, sandbox_dir };
    let started = backend.start(backend_start).await?;
    started.instance.complete_manifest(&mut manifest);
    let observer = started.instance.host_view().map(|view| HostObserver::new(view, watched, log));
    if let Err(source) = sandbox_dir.write(&manifest, observer.as_ref()) {
        let _ = started.instance.stop().await; // the first error is more informative
        let name = sandbox_dir.name.clone();
        return Err(
            crate::SandboxDirError::File { what: "write the manifest", name, source }.into()
        );
    }
    Ok((started, manifest, guard))
}

/// Makes a plan, which may take a while. If the caller has a launcher process, this runs on another
/// thread, because the caller may have other tasks, too.
pub(crate) async fn plan(core: &Arc<Core>, request: &StartRequest) -> Result<PlannedRun, RunError> {
    if matches!(core.launcher, ringfence_linux::Launcher::Here) {
        return plan_with_secrets(core, &request.policy, &request.container);
    }
    let (core, policy, container) =
        (Arc::clone(core), request.policy.clone(), request.container.clone());
    let settled =
        tokio::task::spawn_blocking(move || plan_with_secrets(&core, &policy, &container)).await;
    settled.expect("agreeing on a plan does not panic")
}

fn plan_with_secrets(
    core: &Core,
    policy: &Policy,
    container: &ContainerSpec,
) -> Result<PlannedRun, RunError> {
    let mut context = core.plan_run(policy, container)?;
    context.credentials = core.load_credentials(&context.plan)?;
    Ok(context)
}

fn describe(
    core: &Core,
    request: &StartRequest,
    context: &PlannedRun,
    sandbox_dir: &SandboxDir,
    request_hash: String,
) -> Manifest {
    let now = Timestamp::now();
    let plan = &context.plan;
    Manifest {
        name: sandbox_dir.name.clone(),
        backend: plan.backend,
        chosen_because: context.because.clone(),
        started: now.to_string(),
        ends: request
            .lease
            .and_then(|lease| now.checked_add(lease).ok())
            .map(|end| end.to_string()),
        workspace: context.workspace.source.clone(),
        workspace_inside: context.workspace.destination.clone(),
        held: plan.held.clone(),
        network: match &plan.policy.network {
            _ if matches!(plan.held.get(&Clause::Network), Some(Support::Absent { .. })) => {
                NetworkReach::Host
            }
            Some(Network::Open) => NetworkReach::Open,
            Some(Network::Allow(_)) => NetworkReach::Allowed { network: None },
            Some(Network::Closed) | None => NetworkReach::Closed,
        },
        request_hash,
        limits: plan.policy.limits.clone(),
        policy: plan.policy.clone().without_values(),
        policy_sha256: plan.policy_sha256.clone(),
        is_changed: false,
        container: None,
        owner: Owner::own(&core.settings),
    }
}
