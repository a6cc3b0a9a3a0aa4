//! Running containers: start, supervision and removal.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use bollard::models::ContainerInspectResponse;
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, InspectContainerOptions, LogsOptionsBuilder,
    StartContainerOptions,
};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use ringfence_core::{Clause, Plan, Support};
use ringfence_linux::cgroup::find_oom_counter;
use ringfence_linux::pause::ProcessTree;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::time::{sleep, timeout};

use super::client::EngineClient;
use super::container::{ContainerInputs, ContainerNetwork};
use super::error::{ContainerFailure, printable};
use super::evidence::{EnforcedLimits, ExpectedMount, limit_files};
use super::handover::GuestHandover;
use super::identity::{ContainerIdentity, FileOwner, IdentityInputs};
use super::image::{self, is_missing};
use super::mapped::MappedMounts;
use super::mounts::{self, OwnFiles};
use super::proxy_network::{ProxyNetwork, confine};
use super::removal::{Registration, remove_all, remove_leftover};
use super::{EngineKind, SandboxPaths, block_on};
use crate::backends::instance::{HostView, SandboxInstance, StopError};
use crate::backends::process_tree::MAX_LOG_BYTES;
use crate::egress::{ContainerEgress, LoadedCredentials};
use crate::run::readiness::ProcessEnd;
use crate::sandbox::directory::{ContainerManifest, Manifest};
use crate::view::Guarded;
use crate::{ContainerSpec, Host, Preset, ResolvedWorkspace};

/// Time within which a process of ringfence's in a container must connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval between checks that the container still runs.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Shells for interactive use, in order of preference.
const SHELLS: [&str; 2] = ["/bin/zsh", "/bin/bash"];

/// Description of a container to be created.
pub(super) struct ContainerRequest<'a> {
    pub(super) plan: &'a Plan,
    pub(super) host: &'a Host,
    pub(super) spec: &'a ContainerSpec,
    pub(super) workspace: &'a ResolvedWorkspace,
    pub(super) guarded: &'a Guarded,
    pub(super) paths: &'a SandboxPaths,
    pub(super) credentials: Option<&'a LoadedCredentials>,
}

/// Running container. The container is removed when the instance is dropped.
#[derive(Debug)]
pub(super) struct ContainerInstance {
    client: Option<EngineClient>,
    container: String,
    /// Network and proxy that were made for this container alone.
    proxy_network: Option<ProxyNetwork>,
    manifest: ContainerManifest,
    evidence: EnforcedLimits,
    guest: Option<ContainerGuest>,
    /// Egress connection of the container's network, until it is taken.
    way_out: Option<ContainerEgress>,
    /// File in which the kernel counts processes of the container that it killed for lack of
    /// memory, if the file can be seen from here.
    oom_counter: Option<PathBuf>,
    log: Option<tokio::task::JoinHandle<()>>,
    /// Lock by which the container lives: its guest ends when this file is closed.
    _leash: fs_err::File,
}

/// First process of a container.
#[derive(Debug)]
struct ContainerGuest {
    /// Process ID in this pid namespace. The number that the engine reports may be from another pid
    /// namespace.
    pid: Pid,
    /// End of the process, with which the container ends, too.
    end: ProcessEnd,
}

impl ContainerGuest {
    fn from_pid(pid: Option<Pid>) -> Result<ContainerGuest, ContainerFailure> {
        let pid = pid.ok_or(ContainerFailure::Unseen)?;
        let end = pidfd_open(pid, PidfdFlags::NONBLOCK)
            .map_err(Into::into)
            .and_then(ProcessEnd::for_process);
        Ok(ContainerGuest {
            pid,
            end: end
                .map_err(|source| ContainerFailure::Files { what: "watch the guest", source })?,
        })
    }
}

/// Creates and starts a container. On failure, or if the future is dropped, everything that was
/// created is removed.
pub(super) async fn start(
    client: EngineClient,
    request: &ContainerRequest<'_>,
    log: Option<fs_err::File>,
) -> Result<ContainerInstance, ContainerFailure> {
    let ContainerRequest { plan, host, spec, paths, .. } = *request;
    let policy = super::with_defaults(&plan.policy, spec);
    let plan = &Plan { held: held(plan), policy, ..plan.clone() };
    let workspace =
        &ResolvedWorkspace { destination: destination(plan), ..request.workspace.clone() };

    let image = image::provide(&client, spec, &mut |_| {}).await?;
    let identity = ContainerIdentity::choose(
        &IdentityInputs::from_client(&client, host, FileOwner::from_path(&workspace.source)?),
        spec.preset,
    )?;
    let network = ContainerNetwork::for_policy(plan.policy.network.as_ref(), spec)?;
    let proxy_network =
        (network == ContainerNetwork::Proxied).then(|| ProxyNetwork::for_sandbox(&paths.name));
    if proxy_network.is_some() && request.credentials.is_some() {
        return Err(ContainerFailure::ProxyWithCredentials);
    }
    let filter = network.filter();
    let files = OwnFiles::write(paths, &identity, "/bin/sh", &filter)?;
    let view = mounts::view(workspace, request.guarded)?;
    let mut binds = mounts::binds(&view, paths, &files);
    if let Some(credentials) = request.credentials {
        binds.extend(mounts::write_certificates(paths, credentials)?);
    }
    let expected = ExpectedMount::record(&binds)?;
    let handover = GuestHandover::listen(&files.handover, &paths.channel)?;
    let mapped = match identity.mapped {
        Some(owner) => MappedMounts::mount(&mut binds, owner, identity.inside)?,
        None => MappedMounts::default(),
    };
    let destination = &workspace.destination;
    let inputs = ContainerInputs {
        client: &client,
        host,
        plan,
        spec,
        paths,
        identity: &identity,
        image: &image,
        files: &files,
        filter: &filter,
        binds: &binds,
        workspace: destination,
    };
    let mut body = inputs.body(network)?;
    let scratch = inputs.scratch();

    let container = paths.container();
    remove_leftover(&client, &paths.base_directory, &container).await?;
    if let Some(proxy_network) = &proxy_network {
        proxy_network.remove_leftover(&client, &paths.base_directory).await?;
    }
    Registration {
        socket: client.socket.clone(),
        container: container.clone(),
        proxy_network: proxy_network.clone(),
    }
    .write(paths)?;
    let failed = |what, kind| {
        let source = workspace.source.clone();
        move |error| ContainerFailure::from_engine_error(what, kind, &source, error)
    };
    let kind = client.kind;
    let mut instance = ContainerInstance {
        manifest: ContainerManifest {
            name: container.clone(),
            image: image
                .digest
                .clone()
                .unwrap_or_else(|| format!("{} ({})", image.reference, image.id)),
            spec: spec.clone(),
            user: identity.name.to_owned(),
            workspace: destination.clone(),
            network: network.describe(
                proxy_network.as_ref().map(|proxy_network| proxy_network.network.clone()),
            ),
        },
        client: Some(client.clone()),
        container,
        proxy_network,
        evidence: EnforcedLimits::default(),
        guest: None,
        way_out: None,
        oom_counter: None,
        log: None,
        _leash: files.hold_leash()?,
    };
    if let (Some(proxy_network), Some(program)) = (&instance.proxy_network, &spec.proxy) {
        let proxy = proxy_network.start(&inputs, program).await?;
        confine(body.host_config.get_or_insert_default(), kind, &proxy);
        instance.way_out = Some(ContainerEgress::Proxy(proxy));
    }
    let options = CreateContainerOptionsBuilder::default().name(&instance.container).build();
    let created = instance.client().api.create_container(Some(options), body).await;
    let created = created.map_err(failed("create the container", kind))?;
    for warning in created.warnings {
        tracing::warn!(engine = %kind, warning = printable(&warning), "the container engine \
                                                                       reported a warning");
    }
    if spec.preset == Preset::Dev {
        let shell = instance.shell().await;
        fs_err::write(&files.passwd, identity.passwd(shell)).map_err(|source| {
            ContainerFailure::Files { what: "write the files that the container is shown", source }
        })?;
    }
    let started = instance
        .client()
        .api
        .start_container(&instance.container, None::<StartContainerOptions>)
        .await;
    started.map_err(failed("start the container", kind))?;
    drop(mapped);
    instance.log = log.map(|log| {
        tokio::spawn(copy_log(instance.client().clone(), instance.container.clone(), log))
    });
    let handed = wait_for_connection(
        "guest",
        instance.client(),
        &instance.container,
        handover.hand_over(network),
    );
    let (guest, gate) = handed.await?;
    instance.guest = Some(ContainerGuest::from_pid(guest)?);
    instance.way_out = instance.way_out.take().or(gate.map(ContainerEgress::Gate));
    // No code of the caller's runs yet, so the process that connected is our guest, which waits for
    // orders.
    let guest = instance.guest()?;
    ExpectedMount::check(&expected, guest)?;
    if kind == EngineKind::Podman {
        limit_files(&scratch, guest);
    }
    let inspected = instance.inspect().await?;
    instance.evidence = EnforcedLimits::inspect(&inspected, guest, &scratch);
    let id = inspected.id.as_deref().unwrap_or(&instance.container);
    instance.oom_counter = find_oom_counter(guest.as_raw_nonzero().get(), id);
    instance.refuse_ignored(plan)?;
    Ok(instance)
}

/// Returns the support of a plan's clauses, with the limits that a container always has.
fn held(plan: &Plan) -> std::collections::BTreeMap<Clause, Support> {
    let mut held = plan.held.clone();
    let limits = &plan.policy.limits;
    let unsaid = [
        (Clause::Memory, limits.memory.is_none()),
        (Clause::Cpus, limits.cpus.is_none()),
        (Clause::ProcessCount, limits.processes.is_none()),
    ];
    for (clause, _) in unsaid.into_iter().filter(|(_, is_unsaid)| *is_unsaid) {
        held.entry(clause).or_insert_with(|| Support::enforced("cgroup"));
    }
    held
}

fn destination(plan: &Plan) -> std::path::PathBuf {
    let workspace = plan.policy.filesystem.workspace.as_ref();
    workspace.and_then(|workspace| workspace.destination.clone()).expect("the defaults name one")
}

/// Appends the guest's output to the sandbox's log until the guest ends.
async fn copy_log(client: EngineClient, container: String, mut log: fs_err::File) {
    let options = LogsOptionsBuilder::default().follow(true).stdout(true).stderr(true).build();
    let mut lines = Box::pin(client.api.logs(&container, Some(options)));
    let mut left = MAX_LOG_BYTES;
    while let Some(Ok(line)) = lines.next().await {
        let bytes = line.into_bytes();
        left = left.saturating_sub(bytes.len());
        if left == 0 || log.write_all(&bytes).is_err() {
            return; // the engine keeps a log, too
        }
    }
}

impl ContainerInstance {
    fn client(&self) -> &EngineClient {
        self.client.as_ref().expect("it is taken only when the container is removed")
    }

    /// Takes the way out of the container's network, which the caller has to hold. It can be taken
    /// only once.
    pub(super) fn take_way_out(&mut self) -> Option<ContainerEgress> {
        self.way_out.take()
    }

    #[cfg(test)]
    pub(super) fn manifest(&self) -> &ContainerManifest {
        &self.manifest
    }

    /// Returns the limits that were found in force.
    pub(super) fn evidence(&self) -> EnforcedLimits {
        self.evidence
    }

    /// Returns the process ID of the guest.
    pub(super) fn guest(&self) -> Result<Pid, ContainerFailure> {
        self.guest.as_ref().map(|guest| guest.pid).ok_or(ContainerFailure::Unseen)
    }

    async fn inspect(&self) -> Result<ContainerInspectResponse, ContainerFailure> {
        let inspected = self
            .client()
            .api
            .inspect_container(&self.container, None::<InspectContainerOptions>)
            .await;
        inspected
            .map_err(|source| ContainerFailure::Engine { what: "inspect the container", source })
    }

    /// Returns the preferred shell that the image has.
    async fn shell(&self) -> &'static str {
        for shell in SHELLS {
            let options = bollard::query_parameters::ContainerArchiveInfoOptionsBuilder::default()
                .path(shell)
                .build();
            if self
                .client()
                .api
                .get_container_archive_info(&self.container, Some(options))
                .await
                .is_ok()
            {
                return shell;
            }
        }
        "/bin/sh"
    }

    /// Fails if the engine dropped a limit with only a warning, unless the policy accepts that
    /// clause as weaker.
    fn refuse_ignored(&self, plan: &Plan) -> Result<(), ContainerFailure> {
        let EnforcedLimits { memory, cpus, processes, scratch } = self.evidence;
        let is_claimed = plan.held.get(&Clause::Tmp).is_some_and(Support::is_enforced);
        if is_claimed && !scratch && !plan.policy.allow_weaker.contains(&Clause::Tmp) {
            return Err(ContainerFailure::Ignored { clause: Clause::Tmp });
        }
        for (clause, is_limited) in
            [(Clause::Memory, memory), (Clause::Cpus, cpus), (Clause::ProcessCount, processes)]
        {
            let was_set = plan.held.get(&clause).is_some_and(|support| !support.is_absent());
            if was_set && !is_limited && !plan.policy.allow_weaker.contains(&clause) {
                return Err(ContainerFailure::Ignored { clause });
            }
        }
        Ok(())
    }
}

/// Waits for the process `who` in a container to connect. If the process ends or takes too long,
/// the error contains its last output.
pub(super) async fn wait_for_connection<T>(
    who: &'static str,
    client: &EngineClient,
    container: &str,
    connection: impl Future<Output = Result<T, ContainerFailure>>,
) -> Result<T, ContainerFailure> {
    let ended = tokio::select! {
        connected = timeout(CONNECT_TIMEOUT, connection) => match connected {
            Ok(connected) => return connected,
            Err(_) => false,
        },
        () = wait_for_end(client, container) => true,
    };
    Err(ContainerFailure::NotUp {
        who,
        container: container.to_owned(),
        ended,
        log: log_tail(client, container).await,
    })
}

/// Returns the last lines of a container's output.
async fn log_tail(client: &EngineClient, container: &str) -> String {
    let options = LogsOptionsBuilder::default().stdout(true).stderr(true).tail("5").build();
    let lines = client.api.logs(container, Some(options)).take(5);
    let lines: Vec<String> = lines
        .filter_map(|line| async move {
            Some(printable(&String::from_utf8_lossy(&line.ok()?.into_bytes())))
        })
        .collect()
        .await;
    lines.join("; ")
}

/// Waits until a container does not run. Polls the engine, because the wait request makes Podman
/// itself poll without a pause (4.3).
async fn wait_for_end(client: &EngineClient, container: &str) {
    loop {
        sleep(POLL_INTERVAL).await;
        let inspected =
            client.api.inspect_container(container, None::<InspectContainerOptions>).await;
        match inspected {
            Ok(inspected)
                if inspected.state.as_ref().and_then(|state| state.running) != Some(true) =>
            {
                return;
            }
            Err(error) if is_missing(&error) => return,
            _ => {}
        }
    }
}

impl SandboxInstance for ContainerInstance {
    fn host_view(&self) -> Option<HostView> {
        let pid = self.guest.as_ref().map(|guest| guest.pid.as_raw_nonzero().get());
        Some(HostView {
            oom_counters: self.oom_counter.iter().cloned().collect(),
            tree: pid.and_then(ProcessTree::from_pid),
        })
    }

    fn ended(&self) -> BoxFuture<'static, ()> {
        match &self.guest {
            Some(guest) => guest.end.awaited(),
            None => Box::pin(async {}),
        }
    }

    fn stop(mut self: Box<Self>) -> BoxFuture<'static, Result<(), StopError>> {
        Box::pin(async move {
            let Some(client) = self.client.take() else { return Ok(()) };
            let removed = remove_all(&client, &self.container, self.proxy_network.as_ref()).await;
            if let Some(mut log) = self.log.take()
                && timeout(Duration::from_secs(1), &mut log).await.is_err()
            {
                log.abort();
            }
            removed.map_err(|error| StopError {
                name: self.container.clone(),
                why: printable(&crate::chain(&error)),
                hint: format!(
                    "{} rm -f {}",
                    client.kind.to_string().to_lowercase(),
                    self.container
                ),
            })
        })
    }

    fn complete_manifest(&self, manifest: &mut Manifest) {
        manifest.workspace_inside.clone_from(&self.manifest.workspace);
        manifest.network.clone_from(&self.manifest.network);
        manifest.container = Some(self.manifest.clone());
    }
}

impl Drop for ContainerInstance {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            let (container, proxy_network) =
                (std::mem::take(&mut self.container), self.proxy_network.take());
            // Use a thread, because the caller must not wait, and its runtime may end before the
            // removal does.
            std::thread::spawn(move || {
                // Ignore errors: the next start sweeps what is left.
                let _ = block_on(remove_all(&client, &container, proxy_network.as_ref()));
            });
        }
    }
}
