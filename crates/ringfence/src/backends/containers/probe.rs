//! Probe of an engine: finds which clauses it can enforce on this host by creating a container.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bollard::models::SystemInfoCgroupVersionEnum;
use ringfence_core::policy::Size;
use ringfence_core::{Capabilities, Clause, Plan, Policy, Support, UnstatedClauses};
use ringfence_linux::cgroup::{CgroupVersion, UncountedMemory, has_swap};
use ringfence_linux::gate::GateKind;
use rustix::process::Pid;

use super::client::{self, EngineClient, EngineKind};
use super::container::{ContainerNetwork, kept_capabilities};
use super::error::ContainerFailure;
use super::evidence::EnforcedLimits;
use super::identity::{ContainerIdentity, FileOwner, IdentityInputs};
use super::instance::{ContainerRequest, start};
use super::{SandboxPaths, image};
use crate::backends::instance::SandboxInstance;
use crate::backends::limits::{missing_from_memory, supervisor_limits};
use crate::backends::probe_cache::{ProbeCache, ProbeSubject};
use crate::backends::{Freshness, ProbeRequest, Unavailable};
use crate::sandbox::directory::{Name, SandboxDirs};
use crate::view::Guarded;
use crate::{ContainerError, ContainerSpec, Host, Preset, Pull, ResolvedWorkspace, egress};

/// Returns the capabilities of one engine.
pub(super) async fn capabilities(
    kind: EngineKind,
    request: &ProbeRequest<'_>,
) -> Result<Capabilities, Unavailable> {
    let client = client::connect_with_freshness(request.host, kind, request.freshness).await;
    let client = client.map_err(|error| Unavailable::from(&error))?;
    let workspace = workspace_owner(request);
    let inputs = IdentityInputs::from_client(&client, request.host, workspace);
    let identity =
        ContainerIdentity::choose(&inputs, request.container.preset).map_err(unavailable)?;
    let cache = ProbeCache::for_subject(
        request.host,
        ProbeSubject::Engine { socket: &client.socket, version: client.version_text() },
    );
    let remembered = cache.note().filter(|_| request.freshness == Freshness::Remembered);
    let evidence = match remembered.and_then(|note| serde_json::from_str(&note).ok()) {
        Some(evidence) => evidence,
        None => {
            let evidence = trial(&client, request, workspace).await?;
            cache.store_note(&serde_json::to_string(&evidence).expect("it has only string keys"));
            evidence
        }
    };
    let privileges = if client.is_rootless() { "rootless, " } else { "" };
    let runtime = client.version.components.iter().flatten().find_map(|component| {
        ["runc", "crun", "youki", "runsc"].into_iter().find(|name| component.name.contains(name))
    });
    let summary = format!(
        "{kind} {} at {}, {privileges}{}",
        client.version_text(),
        client.socket.display(),
        runtime.unwrap_or("an unnamed runtime"),
    );
    let support = support(&client, request, &identity, evidence);
    Ok(Capabilities {
        backend: kind.backend(),
        summary,
        defaults: UnstatedClauses::Required,
        support,
    })
}

/// Results of a trial container that worked.
#[derive(Debug, Clone, Copy, serde::Serialize, serde::Deserialize)]
struct TrialResult {
    limits: EnforcedLimits,
    /// `true` if the memory limit can be exceeded by swapping.
    swaps: bool,
    /// `true` if the engine uses cgroup v1, which does not count socket buffers as memory.
    is_version_1: bool,
}

fn support(
    client: &EngineClient,
    request: &ProbeRequest<'_>,
    identity: &ContainerIdentity,
    TrialResult { limits, swaps, is_version_1 }: TrialResult,
) -> BTreeMap<Clause, Support> {
    let limit = |is_limited: bool| match is_limited {
        true => Support::enforced("the container's cgroup"),
        false => Support::absent(
            format!("{} ignores limits here: it may not write cgroups", client.kind),
            "use an engine that runs as root, or a host with cgroup v2 that delegates to users",
        ),
    };
    // No engine limits socket buffers where they are counted separately.
    let version = if is_version_1 { CgroupVersion::V1 } else { CgroupVersion::V2 };
    let missing =
        missing_from_memory(version, UncountedMemory { sockets: is_version_1, swap: swaps });
    let memory = match limits.memory && !missing.is_empty() {
        true => Support::weaker(missing.join("; ")),
        false => limit(limits.memory),
    };
    let tmp = match limits.scratch {
        true => Support::enforced("tmpfs size and inodes"),
        false => Support::weaker(
            "the number of files is not bounded: the engine sets the size of a tmpfs alone",
        ),
    };
    let ipc = match ContainerNetwork::for_policy(request.policy.network.as_ref(), request.container)
    {
        Ok(ContainerNetwork::Host) => Support::weaker(
            "with the host's network, abstract Unix sockets of the host can be reached",
        ),
        // Unsupported combinations are refused when the container is created.
        Ok(
            ContainerNetwork::Open
            | ContainerNetwork::Closed
            | ContainerNetwork::Gated
            | ContainerNetwork::Proxied,
        )
        | Err(_) => Support::enforced("ipc+network namespace+seccomp"),
    };
    let user = if identity.namespace.is_some() { "user namespace+" } else { "" };
    let left = kept_capabilities(request.container, client).unwrap_or_default();
    let privilege = match (left.is_empty(), client.is_rootless()) {
        (true, _) => format!("{user}no_new_privs+no capabilities, not root"),
        // A user other than root cannot gain the remaining capabilities, because no_new_privs keeps
        // every program that it executes from adding any.
        (false, false) => {
            "no_new_privs+no capabilities that a user could gain, not root".to_owned()
        }
        (false, true) => {
            format!("{user}no_new_privs+capabilities over the container alone, not root")
        }
    };
    let mut support = BTreeMap::from([
        (Clause::Filesystem, Support::enforced("mount namespace")),
        (Clause::Hide, Support::enforced("mount namespace")),
        (Clause::Protect, Support::enforced("mount namespace")),
        (Clause::Network, Support::enforced("network namespace")),
        (Clause::Egress, egress(request.policy)),
        (Clause::Processes, Support::enforced("pid namespace")),
        (Clause::Ipc, ipc),
        (Clause::Privilege, Support::enforced(privilege)),
        (Clause::Kernel, Support::enforced("seccomp")),
        (Clause::Terminal, Support::enforced("seccomp")),
        (
            Clause::Environment,
            Support::enforced("the image's variables and none of the host's, closed descriptors"),
        ),
        (Clause::Cleanup, Support::enforced("pid namespace, removed with its container")),
        (Clause::Tmp, tmp),
        (Clause::Memory, memory),
        (Clause::Cpus, limit(limits.cpus)),
        (Clause::ProcessCount, limit(limits.processes)),
    ]);
    support.extend(supervisor_limits());
    support
}

/// Returns the support for restricting a container to the allowed hosts.
fn egress(policy: &Policy) -> Support {
    match egress::gate(policy) {
        Some(GateKind::Transparent) => Support::absent(
            "only the launcher's own sandboxes can have a tunnel: a container's user may not make \
             one",
            "leave `transparent` out, or use `--backend native`",
        ),
        Some(GateKind::Proxy) | None => Support::enforced("network namespace+egress proxy"),
    }
}

fn unavailable(failure: ContainerFailure) -> Unavailable {
    let error = ContainerError::from(failure);
    Unavailable { why: crate::chain(&error), fix: error.hints.join("; ") }
}

/// Returns the owner of the workspace in question, because the identity of code inside may depend
/// on the owner.
fn workspace_owner(request: &ProbeRequest<'_>) -> FileOwner {
    let Host { user_id, group_id, .. } = *request.host;
    let workspace = request.policy.filesystem.workspace.as_ref();
    let path = workspace.map_or_else(
        || request.host.directory.clone(),
        |named| request.host.absolute(&named.source),
    );
    FileOwner::from_path(&path).unwrap_or(FileOwner { user: user_id, group: group_id })
}

/// Creates a container as a sandbox would have it, inspects it, and removes it.
async fn trial(
    client: &EngineClient,
    request: &ProbeRequest<'_>,
    owner: FileOwner,
) -> Result<TrialResult, Unavailable> {
    let info = client.api.info().await;
    let info = info.map_err(|source| {
        unavailable(ContainerFailure::Engine {
            what: "query the settings of the container engine",
            source,
        })
    })?;
    if info.security_options.iter().flatten().any(|option| option.starts_with("name=userns")) {
        return Err(unavailable(ContainerFailure::Remapped));
    }
    let image = image_to_try(client, request.container).await?;
    let failed = |error: &dyn std::error::Error| Unavailable {
        why: format!("cannot try the engine: {}", crate::chain(error)),
        fix: "check the permissions of ~/.local/state/ringfence".to_owned(),
    };
    let sandbox_dirs = SandboxDirs::for_host(request.host).map_err(|error| failed(&error))?;
    let sandbox_dir = sandbox_dirs.claim(Name::unique()).map_err(|error| failed(&error))?;
    let paths = SandboxPaths::from_directory(&sandbox_dir);
    let tried = match make_workspace(&paths, request.host, owner) {
        Ok(workspace) => try_container(client, request.host, &paths, &workspace, image)
            .await
            .map_err(unavailable),
        Err(error) => Err(failed(&error)),
    };
    sandbox_dir.remove();
    let swaps = info.swap_limit == Some(false) && has_swap();
    let is_version_1 = info.cgroup_version == Some(SystemInfoCgroupVersionEnum::_1);
    tried.map(|limits| TrialResult { limits, swaps, is_version_1 })
}

fn make_workspace(paths: &SandboxPaths, host: &Host, owner: FileOwner) -> std::io::Result<PathBuf> {
    let workspace = paths.directory.join("workspace");
    fs_err::create_dir(&workspace)?;
    if host.user_id == 0 {
        std::os::unix::fs::chown(&workspace, Some(owner.user), Some(owner.group))?;
    }
    fs_err::canonicalize(workspace)
}

/// Returns the requested image if the engine has it, and otherwise any image of the engine, because
/// the requested one may be fetched later.
async fn image_to_try(client: &EngineClient, spec: &ContainerSpec) -> Result<String, Unavailable> {
    let reference = image::reference(spec);
    if image::find(client, reference).await.map_err(unavailable)?.is_some() {
        return Ok(reference.to_owned());
    }
    let images = client.api.list_images(None::<bollard::query_parameters::ListImagesOptions>).await;
    let images = images.map_err(|source| {
        unavailable(ContainerFailure::Engine { what: "list the engine's images", source })
    })?;
    let tagged =
        images.into_iter().flat_map(|image| image.repo_tags).find(|tag| !tag.contains("<none>"));
    tagged.ok_or_else(|| Unavailable {
        why: format!("{} has no image to try it with", client.kind),
        fix: "build one: ringfence image build".to_owned(),
    })
}

async fn try_container(
    client: &EngineClient,
    host: &Host,
    paths: &SandboxPaths,
    workspace: &std::path::Path,
    image: String,
) -> Result<EnforcedLimits, ContainerFailure> {
    let clauses = [Clause::Memory, Clause::Cpus, Clause::ProcessCount];
    let mut policy =
        Policy::default().memory(Size::mebibytes(256)).cpus(0.5).processes(100).with_defaults();
    policy.allow_weaker = clauses.into();
    let plan = Plan {
        backend: client.kind.backend(),
        summary: String::new(),
        policy,
        policy_sha256: String::new(),
        held: clauses.map(|clause| (clause, Support::enforced("tried"))).into(),
    };
    let spec = ContainerSpec {
        preset: Preset::Agent,
        image: Some(image),
        pull: Some(Pull::Never),
        ..ContainerSpec::default()
    };
    let workspace = ResolvedWorkspace {
        given: workspace.into(),
        source: workspace.into(),
        destination: super::WORKSPACE_OF_AGENTS.into(),
        granted: Vec::new(),
    };
    let guarded = Guarded::default();
    let request = ContainerRequest {
        plan: &plan,
        host,
        spec: &spec,
        workspace: &workspace,
        guarded: &guarded,
        paths,
        credentials: None,
    };
    let instance = start(client.clone(), &request, None).await?;
    let looked_at = instance.guest().and_then(check_guest_status);
    let evidence = instance.evidence();
    let stopped = Box::new(instance).stop().await;
    looked_at?;
    stopped.map_err(|error| ContainerFailure::Trial { what: error.why })?;
    Ok(evidence)
}

/// Checks in the guest's process status that the kernel enforces the confinement that was
/// requested.
fn check_guest_status(guest: Pid) -> Result<(), ContainerFailure> {
    let status = fs_err::read_to_string(format!("/proc/{guest}/status"))
        .map_err(|_| ContainerFailure::Unseen)?;
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":")).map(str::trim)
    };
    let is_zero = |name| field(name).is_some_and(|value| value.chars().all(|digit| digit == '0'));
    let checks = [
        (is_zero("CapEff") && is_zero("CapPrm") && is_zero("CapBnd"), "capabilities are left"),
        (field("NoNewPrivs").is_some_and(|value| value == "1"), "privileges can be gained"),
        (field("Seccomp").is_some_and(|value| value == "2"), "there is no system-call filter"),
        (
            field("Uid").is_some_and(|value| !value.split_whitespace().any(|id| id == "0")),
            "the user is root",
        ),
    ];
    match checks.iter().find(|(holds, _)| !holds) {
        Some((_, what)) => {
            Err(ContainerFailure::Trial { what: format!("in the trial container, {what}") })
        }
        None => Ok(()),
    }
}
