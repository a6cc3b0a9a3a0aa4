//! Probe of an engine: finds which clauses it can enforce on this host by creating a container.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bollard::models::SystemInfoCgroupVersionEnum;
use ringfence_core::policy::Size;
use ringfence_core::{Capabilities, Clause, Plan, Policy, Support, UnstatedClauses};
use ringfence_linux::cgroup::{CgroupVersion, UncountedMemory, has_swap};
use ringfence_linux::gate::GateKind;
use rustix::process::Pid;

use super::client::{self, Client, Flavour};
use super::container::{ContainerNetwork, capabilities as left_to};
use super::error::Failure;
use super::evidence::Evidence;
use super::identity::{Circumstances, FileOwner, Identity};
use super::instance::{Request, start};
use super::{Place, image};
use crate::backends::instance::Instance;
use crate::backends::limits::{missing_from_memory, supervisor_limits};
use crate::backends::probe_cache::{ProbeCache, ProbeSubject};
use crate::backends::{Freshness, ProbeRequest, Unavailable};
use crate::sandbox::directory::{Name, SandboxDirs};
use crate::view::Guarded;
use crate::{ContainerError, ContainerSpec, Host, Preset, Pull, ResolvedWorkspace, egress};

/// Returns the capabilities of one engine.
pub(super) async fn capabilities(
    flavour: Flavour,
    question: &ProbeRequest<'_>,
) -> Result<Capabilities, Unavailable> {
    let client = client::connect_as(question.host, flavour, question.freshness).await;
    let client = client.map_err(|error| Unavailable::from(&error))?;
    let workspace = workspace_owner(question);
    let circumstances = Circumstances::of(&client, question.host, workspace);
    let identity =
        Identity::decide(&circumstances, question.container.preset).map_err(unavailable)?;
    let memory = ProbeCache::of(
        question.host,
        ProbeSubject::Engine { socket: &client.socket, version: client.version_text() },
    );
    let remembered = memory.note().filter(|_| question.freshness == Freshness::Remembered);
    let evidence = match remembered.and_then(|note| serde_json::from_str(&note).ok()) {
        Some(evidence) => evidence,
        None => {
            let evidence = trial(&client, question, workspace).await?;
            memory.keep_note(&serde_json::to_string(&evidence).expect("it has only string keys"));
            evidence
        }
    };
    let kind = if client.is_rootless() { "rootless, " } else { "" };
    let runtime = client.version.components.iter().flatten().find_map(|component| {
        ["runc", "crun", "youki", "runsc"].into_iter().find(|name| component.name.contains(name))
    });
    let summary = format!(
        "{flavour} {} at {}, {kind}{}",
        client.version_text(),
        client.socket.display(),
        runtime.unwrap_or("a runtime that it does not name"),
    );
    let support = support(&client, question, &identity, evidence);
    Ok(Capabilities {
        backend: flavour.backend(),
        summary,
        defaults: UnstatedClauses::Required,
        support,
    })
}

/// Results of a trial container that worked.
#[derive(Debug, Clone, Copy, serde::Serialize, serde::Deserialize)]
struct Found {
    limits: Evidence,
    /// `true` if the memory limit can be exceeded by swapping.
    swaps: bool,
    /// `true` if the engine uses cgroup v1, which does not count socket buffers as memory.
    is_version_1: bool,
}

fn support(
    client: &Client,
    question: &ProbeRequest<'_>,
    identity: &Identity,
    Found { limits, swaps, is_version_1 }: Found,
) -> BTreeMap<Clause, Support> {
    let limit = |is_limited: bool| match is_limited {
        true => Support::enforced("the container's cgroup"),
        false => Support::absent(
            format!("{} ignores limits here: it may not write cgroups", client.flavour),
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
    let ipc = match ContainerNetwork::of(question.policy.network.as_ref(), question.container) {
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
    let left = left_to(question.container, client).unwrap_or_default();
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
        (Clause::Egress, egress(question.policy)),
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

fn unavailable(failure: Failure) -> Unavailable {
    let error = ContainerError::from(failure);
    Unavailable { why: crate::chain(&error), fix: error.hints.join("; ") }
}

/// Returns the owner of the workspace in question, because the identity of code inside may depend
/// on the owner.
fn workspace_owner(question: &ProbeRequest<'_>) -> FileOwner {
    let Host { user_id, group_id, .. } = *question.host;
    let workspace = question.policy.filesystem.workspace.as_ref();
    let path = workspace.map_or_else(
        || question.host.directory.clone(),
        |named| question.host.absolute(&named.source),
    );
    FileOwner::of(&path).unwrap_or(FileOwner { user: user_id, group: group_id })
}

/// Creates a container as a sandbox would have it, inspects it, and removes it.
async fn trial(
    client: &Client,
    question: &ProbeRequest<'_>,
    owner: FileOwner,
) -> Result<Found, Unavailable> {
    let info = client.api.info().await;
    let info = info.map_err(|source| {
        unavailable(Failure::Engine { what: "ask the engine how it works", source })
    })?;
    if info.security_options.iter().flatten().any(|option| option.starts_with("name=userns")) {
        return Err(unavailable(Failure::Remapped));
    }
    let image = image_to_try(client, question.container).await?;
    let failed = |error: &dyn std::error::Error| Unavailable {
        why: format!("cannot try the engine: {}", crate::chain(error)),
        fix: "look at the permissions of ~/.local/state/ringfence".to_owned(),
    };
    let rooms = SandboxDirs::of(question.host).map_err(|error| failed(&error))?;
    let room = rooms.claim(Name::unique()).map_err(|error| failed(&error))?;
    let place = Place::of(&room);
    let tried = match make_workspace(&place, question.host, owner) {
        Ok(workspace) => {
            try_in(client, question.host, &place, &workspace, image).await.map_err(unavailable)
        }
        Err(error) => Err(failed(&error)),
    };
    room.leave();
    let swaps = info.swap_limit == Some(false) && has_swap();
    let is_version_1 = info.cgroup_version == Some(SystemInfoCgroupVersionEnum::_1);
    tried.map(|limits| Found { limits, swaps, is_version_1 })
}

fn make_workspace(place: &Place, host: &Host, owner: FileOwner) -> std::io::Result<PathBuf> {
    let workspace = place.directory.join("workspace");
    fs_err::create_dir(&workspace)?;
    if host.user_id == 0 {
        std::os::unix::fs::chown(&workspace, Some(owner.user), Some(owner.group))?;
    }
    fs_err::canonicalize(workspace)
}

/// Returns the requested image if the engine has it, and otherwise any image of the engine, because
/// the requested one may be fetched later.
async fn image_to_try(client: &Client, spec: &ContainerSpec) -> Result<String, Unavailable> {
    let asked = image::reference(spec);
    if image::find(client, asked).await.map_err(unavailable)?.is_some() {
        return Ok(asked.to_owned());
    }
    let images = client.api.list_images(None::<bollard::query_parameters::ListImagesOptions>).await;
    let images = images.map_err(|source| {
        unavailable(Failure::Engine { what: "list the engine's images", source })
    })?;
    let tagged =
        images.into_iter().flat_map(|image| image.repo_tags).find(|tag| !tag.contains("<none>"));
    tagged.ok_or_else(|| Unavailable {
        why: format!("{} has no image to try it with", client.flavour),
        fix: "make one: ringfence image build".to_owned(),
    })
}

async fn try_in(
    client: &Client,
    host: &Host,
    place: &Place,
    workspace: &std::path::Path,
    image: String,
) -> Result<Evidence, Failure> {
    let clauses = [Clause::Memory, Clause::Cpus, Clause::ProcessCount];
    let mut policy =
        Policy::default().memory(Size::mebibytes(256)).cpus(0.5).processes(100).with_defaults();
    policy.allow_weaker = clauses.into();
    let plan = Plan {
        backend: client.flavour.backend(),
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
    let request = Request {
        plan: &plan,
        host,
        spec: &spec,
        workspace: &workspace,
        guarded: &guarded,
        place,
        sealed: None,
    };
    let instance = start(client.clone(), &request, None).await?;
    let looked_at = instance.guest().and_then(look);
    let evidence = instance.evidence();
    let stopped = Box::new(instance).stop().await;
    looked_at?;
    stopped.map_err(|error| Failure::Trial { what: error.why })?;
    Ok(evidence)
}

/// Checks in the guest's process status that the kernel enforces the confinement that was
/// requested.
fn look(guest: Pid) -> Result<(), Failure> {
    let status =
        fs_err::read_to_string(format!("/proc/{guest}/status")).map_err(|_| Failure::Unseen)?;
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
            "its user is root",
        ),
    ];
    match checks.iter().find(|(holds, _)| !holds) {
        Some((_, what)) => {
            Err(Failure::Trial { what: format!("in a container of its making, {what}") })
        }
        None => Ok(()),
    }
}
