//! Description of the pod of a sandbox. All hardening is here.

use std::collections::BTreeMap;
use std::path::Path;

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{
    Capabilities, Container, EmptyDirVolumeSource, EnvVar, EnvVarSource, LocalObjectReference,
    ObjectFieldSelector, Pod, PodSecurityContext, PodSpec, PodTemplateSpec, ResourceRequirements,
    SeccompProfile, SecurityContext, Toleration, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use ringfence_core::policy::{Limits, Network, Size};
use ringfence_core::settings::KubernetesConfig;
use sha2::{Digest, Sha256};

use super::network::NetworkRule;
use crate::{ContainerSpec, Preset, Root};

/// Name of the container in which the guest and the commands run.
pub(super) const COMMAND_CONTAINER: &str = "sandbox";
/// Name of the init container that copies the guest.
const GUEST_CONTAINER: &str = "guest";
/// Path of the guest's program in its own image.
pub(super) const GUEST_IN_IMAGE: &str = "/ringfence-guest";
/// Directory of the guest's program in the pod, which is read-only for the commands.
const GUEST_DIRECTORY: &str = "/run/ringfence/bin";
/// Path of the guest's program in the pod.
pub(super) const GUEST_INSIDE: &str = "/run/ringfence/bin/guest";
/// Directory of the guest's socket in the pod.
const CHANNEL_DIRECTORY: &str = "/run/ringfence/channel";
/// Path of the guest's socket in the pod.
pub(super) const LINK_SOCKET: &str = "/run/ringfence/channel/link.sock";
const HOME_INSIDE: &str = "/home/sandbox";
/// User and group that everything in a pod runs as.
const USER: i64 = 1000;
/// Default memory limit of a pod.
pub(super) const DEFAULT_MEMORY: Size = Size::mebibytes(1024);
/// Default limit of a pod's processor time, in processors.
pub(super) const DEFAULT_CPUS: f64 = 1.0;
/// Limit of a pod's local disk if the policy states none.
const DEFAULT_DISK: Size = Size::mebibytes(4096);
/// Limit of the small directories that only ringfence writes.
const OWN_FILES: Size = Size::mebibytes(64);
/// Seconds between the request to end a pod and the end of its processes. With 0, the object of a
/// pod is removed seconds before its processes end.
pub(super) const GRACE_SECONDS: i64 = 1;
/// Seconds that a finished Job stays before the cluster removes it.
const FINISHED_JOB_SECONDS: i32 = 300;
/// Seconds of a Job beyond the time limit of its command: for the start of the pod, the copies of
/// the workspace, and the end.
const JOB_MARGIN_SECONDS: i64 = 600;
/// Longest time in which a pod's guest must see that the network is closed.
pub(super) const DENIAL_SECONDS: u32 = 20;

/// Prefix of the labels and annotations of ringfence.
const PREFIX: &str = "ringfence.dev";
/// Label that all objects of ringfence have, with this value.
pub(super) const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "ringfence");

/// Returns the label or annotation of ringfence named `name`.
pub(super) fn own_key(name: &str) -> String {
    format!("{PREFIX}/{name}")
}

/// Everything that determines the pod of a sandbox.
#[derive(Debug, Clone, Copy)]
pub(super) struct PodInputs<'a> {
    /// Name of the sandbox.
    pub(super) sandbox: &'a str,
    /// Identity of the state directory that the sandbox belongs to.
    pub(super) owner: &'a str,
    pub(super) settings: &'a KubernetesConfig,
    pub(super) container: &'a ContainerSpec,
    pub(super) image: &'a str,
    pub(super) guest_image: &'a str,
    pub(super) limits: &'a Limits,
    pub(super) network: NetworkRule,
    /// Path of the workspace in the pod.
    pub(super) workspace: &'a Path,
    /// Hash of the token that the guest requires.
    pub(super) token_hash: &'a str,
    /// Time until which the pod is kept without a renewal (RFC 3339).
    pub(super) lease_until: &'a str,
}

impl PodInputs<'_> {
    /// Returns the name of the pod or Job.
    pub(super) fn name(&self) -> String {
        object_name(self.sandbox)
    }

    /// Builds the pod of a sandbox that stays.
    pub(super) fn pod(&self) -> Pod {
        Pod {
            metadata: ObjectMeta { name: Some(self.name()), ..self.metadata() },
            spec: Some(self.pod_spec()),
            status: None,
        }
    }

    /// Builds the Job for one command.
    pub(super) fn job(&self) -> Job {
        let mut pod_spec = self.pod_spec();
        let deadline = self.limits.time.map(|time| {
            i64::try_from(time.duration().as_secs()).unwrap_or(i64::MAX - JOB_MARGIN_SECONDS)
                + JOB_MARGIN_SECONDS
        });
        pod_spec.active_deadline_seconds = deadline;
        Job {
            metadata: ObjectMeta { name: Some(self.name()), ..self.metadata() },
            spec: Some(JobSpec {
                backoff_limit: Some(0),
                active_deadline_seconds: deadline,
                ttl_seconds_after_finished: Some(FINISHED_JOB_SECONDS),
                template: PodTemplateSpec { metadata: Some(self.metadata()), spec: Some(pod_spec) },
                ..JobSpec::default()
            }),
            status: None,
        }
    }

    /// Builds a pod whose guest tries the network, reports in the message of its end, and exits.
    pub(super) fn trial_pod(&self) -> Pod {
        let seconds = match self.network {
            NetworkRule::Closed => DENIAL_SECONDS,
            NetworkRule::Open | NetworkRule::Untouched => 0,
        };
        let mut pod_spec = self.pod_spec();
        pod_spec.init_containers = None;
        pod_spec.volumes = None;
        pod_spec.active_deadline_seconds = Some(i64::from(DENIAL_SECONDS) * 10);
        pod_spec.containers = vec![Container {
            image: Some(self.guest_image.to_owned()),
            command: Some(vec![GUEST_IN_IMAGE.to_owned()]),
            args: Some(vec!["--try-network".to_owned(), seconds.to_string()]),
            volume_mounts: None,
            ..self.command_container()
        }];
        Pod {
            metadata: ObjectMeta { name: Some(self.name()), ..self.metadata() },
            spec: Some(pod_spec),
            status: None,
        }
    }

    /// Returns the labels of the pod.
    pub(super) fn labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.settings.labels.clone();
        labels.extend([
            (MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned()),
            (own_key("sandbox"), label_value(self.sandbox)),
            (own_key("owner"), self.owner.to_owned()),
            (own_key("network"), self.network.label().to_owned()),
        ]);
        labels
    }

    fn metadata(&self) -> ObjectMeta {
        let labels = self.labels();
        let annotations = BTreeMap::from([(own_key("lease-until"), self.lease_until.to_owned())]);
        ObjectMeta { labels: Some(labels), annotations: Some(annotations), ..ObjectMeta::default() }
    }

    fn pod_spec(&self) -> PodSpec {
        let KubernetesConfig {
            image_pull_secrets,
            runtime_class,
            service_account,
            node_selector,
            tolerations,
            ..
        } = self.settings;
        let secrets =
            image_pull_secrets.iter().map(|name| LocalObjectReference { name: name.clone() });
        PodSpec {
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            restart_policy: Some("Never".to_owned()),
            termination_grace_period_seconds: Some(GRACE_SECONDS),
            security_context: Some(PodSecurityContext {
                run_as_non_root: Some(true),
                run_as_user: Some(USER),
                run_as_group: Some(USER),
                fs_group: Some(USER),
                seccomp_profile: Some(runtime_default()),
                ..PodSecurityContext::default()
            }),
            service_account_name: service_account.clone(),
            runtime_class_name: runtime_class.clone(),
            image_pull_secrets: some_unless_empty(secrets.collect()),
            node_selector: Some(node_selector.clone()).filter(|labels| !labels.is_empty()),
            tolerations: some_unless_empty(tolerations.iter().map(toleration).collect()),
            init_containers: Some(vec![self.guest_container()]),
            containers: vec![self.command_container()],
            volumes: Some(self.volumes()),
            ..PodSpec::default()
        }
    }

    /// Returns the init container, which copies the guest from its image.
    fn guest_container(&self) -> Container {
        Container {
            name: GUEST_CONTAINER.to_owned(),
            image: Some(self.guest_image.to_owned()),
            command: Some(vec![GUEST_IN_IMAGE.to_owned()]),
            args: Some(vec!["--install".to_owned(), GUEST_INSIDE.to_owned()]),
            resources: Some(self.resources()),
            security_context: Some(hardening(Root::ReadOnly)),
            volume_mounts: Some(vec![mount("guest", GUEST_DIRECTORY, false)]),
            ..Container::default()
        }
    }

    /// Returns the container in which the guest and the commands run.
    fn command_container(&self) -> Container {
        let workspace = self.workspace.to_string_lossy().into_owned();
        let mut arguments: Vec<String> = [
            "--link-socket",
            LINK_SOCKET,
            "--directory",
            &workspace,
            "--token-hash",
            self.token_hash,
            // A pod that nobody keeps any more ends by itself.
            "--end-without-link",
        ]
        .map(str::to_owned)
        .into();
        if self.network == NetworkRule::Closed {
            arguments.extend(["--hold-until-denied".to_owned(), DENIAL_SECONDS.to_string()]);
        }
        Container {
            name: COMMAND_CONTAINER.to_owned(),
            image: Some(self.image.to_owned()),
            command: Some(vec![GUEST_INSIDE.to_owned()]),
            args: Some(arguments),
            env: Some(vec![variable("HOME", HOME_INSIDE), node_address_variable()]),
            working_dir: Some("/".to_owned()),
            resources: Some(self.resources()),
            security_context: Some(hardening(self.container.root.unwrap_or(
                match self.container.preset {
                    Preset::Agent => Root::ReadOnly,
                    Preset::Dev => Root::Writable,
                },
            ))),
            volume_mounts: Some(vec![
                mount("guest", GUEST_DIRECTORY, true),
                mount("channel", CHANNEL_DIRECTORY, false),
                mount("workspace", &workspace, false),
                mount("home", HOME_INSIDE, false),
                mount("tmp", "/tmp", false),
            ]),
            ..Container::default()
        }
    }

    fn volumes(&self) -> Vec<Volume> {
        let disk = self.disk();
        let tmp = self.limits.tmp.unwrap_or(DEFAULT_MEMORY);
        vec![
            volume("guest", OWN_FILES, Medium::Disk),
            volume("channel", OWN_FILES, Medium::Memory),
            volume("workspace", disk, Medium::Disk),
            volume("home", disk, Medium::Disk),
            volume("tmp", tmp, Medium::Memory),
        ]
    }

    /// Returns the limits, which are also the requests, because a quota needs both.
    fn resources(&self) -> ResourceRequirements {
        let memory = self.limits.memory.unwrap_or(DEFAULT_MEMORY);
        let cpus = self.limits.cpus.unwrap_or(DEFAULT_CPUS);
        let quantities = BTreeMap::from([
            ("cpu".to_owned(), Quantity(format!("{}m", (cpus * 1000.0).ceil().max(1.0) as u64))),
            ("memory".to_owned(), bytes(memory)),
            ("ephemeral-storage".to_owned(), bytes(self.disk())),
        ]);
        ResourceRequirements {
            limits: Some(quantities.clone()),
            requests: Some(quantities),
            ..ResourceRequirements::default()
        }
    }

    fn disk(&self) -> Size {
        self.limits.disk.unwrap_or(DEFAULT_DISK)
    }
}

/// Returns the name at the cluster of the object of a sandbox. A name that had to be changed is
/// followed by its hash, so that `a.b` and `a-b` have two objects.
pub(super) fn object_name(sandbox: &str) -> String {
    let value = label_value(sandbox);
    if value == sandbox {
        return format!("ringfence-{value}");
    }
    let hash = ringfence_core::to_hex(&Sha256::digest(sandbox));
    format!("ringfence-{value}-{}", &hash[..8])
}

/// Returns the name of a sandbox in the form that labels and names of objects may have.
fn label_value(sandbox: &str) -> String {
    sandbox.replace(['_', '.'], "-").trim_end_matches('-').to_owned()
}

/// Returns the rule for the network of a policy. `None` if a cluster cannot enforce the policy.
pub(super) fn network_rule(network: Option<&Network>) -> Option<NetworkRule> {
    match network {
        None | Some(Network::Closed) => Some(NetworkRule::Closed),
        Some(Network::Open) => Some(NetworkRule::Open),
        Some(Network::Allow(_)) => None,
    }
}

/// Medium of a volume that lives as long as its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Medium {
    /// The disk of the node. The kubelet evicts a pod that exceeds the limit.
    Disk,
    /// A tmpfs of the limit's size, which counts as memory of the pod.
    Memory,
}

fn volume(name: &str, limit: Size, medium: Medium) -> Volume {
    Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: (medium == Medium::Memory).then(|| "Memory".to_owned()),
            size_limit: Some(bytes(limit)),
        }),
        ..Volume::default()
    }
}

fn mount(name: &str, path: &str, is_read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: is_read_only.then_some(true),
        ..VolumeMount::default()
    }
}

fn variable(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value.to_owned()), value_from: None }
}

/// Returns the variable that tells the guest the address of its node, which a closed network must
/// not reach either.
fn node_address_variable() -> EnvVar {
    let field = ObjectFieldSelector {
        api_version: Some("v1".to_owned()),
        field_path: "status.hostIP".to_owned(),
    };
    EnvVar {
        name: "RINGFENCE_NODE_ADDRESS".to_owned(),
        value: None,
        value_from: Some(EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() }),
    }
}

/// Returns the restrictions of a container, which the Pod Security level `restricted` admits.
pub(super) fn hardening(root: Root) -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { add: None, drop: Some(vec!["ALL".to_owned()]) }),
        privileged: Some(false),
        read_only_root_filesystem: Some(root == Root::ReadOnly),
        run_as_non_root: Some(true),
        seccomp_profile: Some(runtime_default()),
        ..SecurityContext::default()
    }
}

fn runtime_default() -> SeccompProfile {
    SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }
}

fn toleration(toleration: &ringfence_core::settings::Toleration) -> Toleration {
    let operator = if toleration.value.is_some() { "Equal" } else { "Exists" };
    Toleration {
        key: Some(toleration.key.clone()),
        operator: Some(operator.to_owned()),
        value: toleration.value.clone(),
        effect: toleration.effect.clone(),
        toleration_seconds: None,
    }
}

fn bytes(size: Size) -> Quantity {
    Quantity(size.bytes().max(1).to_string())
}

fn some_unless_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    Some(list).filter(|list| !list.is_empty())
}
