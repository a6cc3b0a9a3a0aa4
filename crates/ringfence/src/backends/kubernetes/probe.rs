//! Probe of a cluster: what it can enforce, tried from inside pods where the promise depends on the
//! nodes.

use std::collections::BTreeMap;

use ringfence_core::policy::{Limits, Network};
use ringfence_core::{Backend, Capabilities, Clause, Policy, Support, UnstatedClauses};

use super::cluster::Cluster;
use super::error::ClusterFailure;
use super::network::NetworkRule;
use super::pod::PodInputs;
use super::trial::{NetworkTrialResult, TrialFreshness, run_trial};
use super::{guest_image, image, instance, owner_label};
use crate::backends::limits::supervisor_limits;
use crate::backends::{Freshness, ProbeRequest};

/// Returns what the cluster can enforce.
pub(super) async fn capabilities(
    request: &ProbeRequest<'_>,
) -> Result<Capabilities, ClusterFailure> {
    let settings = request.kubernetes;
    let cluster = Cluster::connect(request.host, settings).await?;
    let version = cluster.ask("ask for the version", cluster.client().apiserver_version()).await?;
    let owner = owner_label(request.host);
    let inputs = PodInputs {
        sandbox: "trial",
        owner: &owner,
        settings,
        container: request.container,
        image: image(settings, request.container),
        guest_image: guest_image(settings),
        limits: &Limits::default(),
        network: NetworkRule::Closed,
        workspace: "/workspace".as_ref(),
        token_hash: "",
        lease_until: &instance::lease_until(),
    };
    let freshness = match request.freshness {
        Freshness::Remembered => TrialFreshness::Remembered,
        Freshness::Now => TrialFreshness::Now,
    };
    let trial = run_trial(request.host, &cluster, inputs, freshness).await?;
    let runtime = settings.runtime_class.as_deref();
    Ok(Capabilities {
        backend: Backend::Kubernetes,
        summary: format!(
            "Kubernetes {}, namespace {}{}",
            version.git_version,
            cluster.namespace,
            runtime.map(|class| format!(", RuntimeClass {class}")).unwrap_or_default()
        ),
        defaults: UnstatedClauses::Required,
        support: support(request.policy, &trial, runtime),
    })
}

fn support(
    policy: &Policy,
    trial: &NetworkTrialResult,
    runtime_class: Option<&str>,
) -> BTreeMap<Clause, Support> {
    let runtime = runtime_class.map(|class| format!(" of RuntimeClass {class}"));
    let runtime = runtime.unwrap_or_default();
    let pod = |what: &str| Support::enforced(format!("{what}{runtime}"));
    let mut support = BTreeMap::from(supervisor_limits());
    support.extend([
        (Clause::Filesystem, filesystem(policy)),
        (Clause::Hide, Support::enforced("hidden files are not copied into the pod")),
        (
            Clause::Protect,
            Support::enforced("changes of protected files in the copy never come back"),
        ),
        (Clause::Network, network(policy, trial)),
        (
            Clause::Egress,
            Support::absent(
                "a cluster has no proxy for allowed hosts in this version",
                "use `--net closed` or `--net open`, or another backend",
            ),
        ),
        (Clause::Processes, pod("the pod's pid namespace")),
        (Clause::Ipc, pod("the pod's ipc namespace")),
        (
            Clause::Privilege,
            Support::enforced("no_new_privs+no capabilities, not root, Pod Security `restricted`"),
        ),
        (Clause::Kernel, pod("the seccomp profile RuntimeDefault")),
        (Clause::Terminal, pod("a pod without a terminal of the host")),
        (Clause::Environment, Support::enforced("the pod has none of the host's variables")),
        (Clause::Cleanup, Support::enforced("the deletion of the pod, waited for")),
        (Clause::Tmp, Support::enforced("tmpfs of the pod with a size limit")),
        (Clause::Memory, Support::enforced("the memory limit of the pod")),
        (Clause::Cpus, Support::enforced("the cpu limit of the pod")),
        (Clause::ProcessCount, process_count(policy, trial)),
        (
            Clause::Disk,
            Support::weaker(
                "the kubelet evicts a pod that passes its ephemeral-storage limit, up to a minute \
                 later",
            ),
        ),
    ]);
    support
}

/// Returns the support for the view of files: a cluster sees no other file of the host.
fn filesystem(policy: &Policy) -> Support {
    let files = &policy.filesystem;
    let is_named = |paths: &Option<Vec<_>>| paths.as_ref().is_some_and(|paths| !paths.is_empty());
    if is_named(&files.read) || is_named(&files.write) {
        return Support::absent(
            "a pod sees no path of this host besides the copied workspace",
            "leave `read` and `write` out, and put the files into the workspace or the image",
        );
    }
    Support::enforced("the pod's mount namespace, with a copy of the workspace")
}

fn network(policy: &Policy, trial: &NetworkTrialResult) -> Support {
    if policy.network == Some(Network::Open) {
        return Support::enforced("NetworkPolicy for what comes in");
    }
    if trial.reached_without_policy.is_empty() {
        return Support::absent(
            "the trial of the network shows nothing: a pod without a policy reached no address",
            "repair the network of the cluster: a pod must reach the API server",
        );
    }
    let leaks = trial.leaks();
    if leaks == trial.reached_without_policy {
        return Support::absent(
            format!(
                "the cluster ignores NetworkPolicy: a pod under a closed policy reached {}",
                leaks.join(", ")
            ),
            "install a network plug-in that enforces NetworkPolicy, or use `--net open`",
        );
    }
    if !leaks.is_empty() {
        return Support::weaker(format!("a pod still reaches {}", leaks.join(", ")));
    }
    Support::enforced(format!(
        "NetworkPolicy, tried from inside: {} denied",
        trial.reached_without_policy.join(", ")
    ))
}

fn process_count(policy: &Policy, trial: &NetworkTrialResult) -> Support {
    let fix = "set podPidsLimit in the kubelet's configuration, or `--allow-weaker process-count`";
    let asked = policy.limits.processes.map(u64::from);
    match (trial.process_limit, asked) {
        (Some(limit), Some(asked)) if limit > asked => {
            Support::absent(format!("the node allows {limit} processes in a pod"), fix)
        }
        (Some(limit), _) => Support::enforced(format!("podPidsLimit {limit} of the node")),
        (None, _) => Support::absent("the node does not limit the processes of a pod", fix),
    }
}
