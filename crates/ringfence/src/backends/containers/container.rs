//! Description of a container for its engine. All hardening of a container is in this description.

use std::collections::HashMap;
use std::path::Path;

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig,
    Mount, MountType,
};
use ringfence_core::policy::Network;
use ringfence_core::{Clause, Plan};
use ringfence_linux::Access;
use ringfence_linux::seccomp::{AllowedSockets, FilterProfile, oci_profile};
use ringfence_linux::view::inode_limit;
use sha2::{Digest, Sha256};

use super::client::EngineClient;
use super::error::ContainerFailure;
use super::identity::ContainerIdentity;
use super::image::EngineImage;
use super::mounts::{ContainerBind, OwnFiles};
use super::proxy_network::ProxyNetwork;
use super::{
    DEV_CAPABILITIES, EngineKind, GUEST_INSIDE, HANDOVER_INSIDE, LABEL_PREFIX, LEASH_INSIDE,
    SandboxPaths,
};
use crate::{ContainerSpec, Host, NetworkReach, Preset, Root};

/// Variables of the caller that a container gets without being named in the policy.
const PASSED_VARIABLES: [&str; 3] = ["LANG", "TERM", "COLORTERM"];
/// Size limit of shared memory, in bytes.
const SHARED_MEMORY_BYTES: u64 = 64 << 20;
/// Maximum size of the guest's log that an engine keeps.
const MAX_LOG_SIZE: &str = "8m";

/// Network that a container gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContainerNetwork {
    /// Loopback interface of the container only.
    Closed,
    /// Loopback, and the connections that the holder of the container's gate lets through.
    Gated,
    /// Network of the sandbox's own, with a proxy that lets some connections through.
    Proxied,
    /// Default network of the engine.
    Open,
    /// Network of the host.
    Host,
}

impl ContainerNetwork {
    /// Chooses the network that a policy asks for. Only the `dev` preset may share the host's
    /// network.
    pub(super) fn for_policy(
        network: Option<&Network>,
        spec: &ContainerSpec,
    ) -> Result<ContainerNetwork, ContainerFailure> {
        Ok(match (network, spec.preset) {
            (Some(Network::Allow(_)), _) if spec.proxy.is_some() => ContainerNetwork::Proxied,
            _ if spec.proxy.is_some() => {
                return Err(ContainerFailure::ProxyWithout {
                    mode: network.map_or("closed", Network::mode),
                });
            }
            (Some(Network::Open), Preset::Dev) => ContainerNetwork::Host,
            (Some(Network::Open), Preset::Agent) => ContainerNetwork::Open,
            (Some(Network::Allow(_)), _) => ContainerNetwork::Gated,
            (Some(Network::Closed) | None, _) => ContainerNetwork::Closed,
        })
    }

    /// Returns the network mode for the engine's API, for the sandbox named `sandbox`.
    fn mode(self, sandbox: &str) -> String {
        match self {
            ContainerNetwork::Closed | ContainerNetwork::Gated => "none".to_owned(),
            ContainerNetwork::Proxied => ProxyNetwork::for_sandbox(sandbox).network,
            // Not "bridge": a rootless engine has no bridge by default and gives the word another
            // meaning.
            ContainerNetwork::Open => "default".to_owned(),
            ContainerNetwork::Host => "host".to_owned(),
        }
    }

    /// Returns the description for the manifest. `network` is the network that other containers
    /// can join.
    pub(super) fn describe(self, network: Option<String>) -> NetworkReach {
        match self {
            ContainerNetwork::Closed => NetworkReach::Closed,
            ContainerNetwork::Gated | ContainerNetwork::Proxied => {
                NetworkReach::Allowed { network }
            }
            ContainerNetwork::Open => NetworkReach::Open,
            ContainerNetwork::Host => NetworkReach::Host,
        }
    }

    /// Returns the seccomp filter that belongs to this network, as an OCI profile.
    pub(super) fn filter(self) -> String {
        let sockets = if self == ContainerNetwork::Host {
            AllowedSockets::Open
        } else {
            AllowedSockets::Private
        };
        oci_profile(FilterProfile { sockets })
    }
}

/// Tmpfs mount in a container.
#[derive(Debug)]
pub(super) struct TmpfsMount {
    pub(super) path: String,
    size: u64,
    options: String,
}

impl TmpfsMount {
    /// Returns the maximum number of files in this tmpfs.
    pub(super) fn inodes(&self) -> u64 {
        inode_limit(self.size)
    }

    /// Returns the path and the mount options for the engine's API. Podman has no option for the
    /// number of files.
    fn described(&self, kind: EngineKind) -> (String, String) {
        let TmpfsMount { path, size, options } = self;
        let inodes = match kind {
            EngineKind::Docker => format!(",nr_inodes={}", self.inodes()),
            EngineKind::Podman => String::new(),
        };
        (path.clone(), format!("{options},size={size}{inodes}"))
    }
}

/// Everything that determines a container's description.
pub(super) struct ContainerInputs<'a> {
    pub(super) client: &'a EngineClient,
    pub(super) host: &'a Host,
    pub(super) plan: &'a Plan,
    pub(super) spec: &'a ContainerSpec,
    pub(super) paths: &'a SandboxPaths,
    pub(super) identity: &'a ContainerIdentity,
    pub(super) image: &'a EngineImage,
    pub(super) files: &'a OwnFiles,
    pub(super) filter: &'a str,
    pub(super) binds: &'a [ContainerBind],
    /// Path of the workspace in the container.
    pub(super) workspace: &'a Path,
}

impl ContainerInputs<'_> {
    /// Builds the description of the container.
    pub(super) fn body(
        &self,
        network: ContainerNetwork,
    ) -> Result<ContainerCreateBody, ContainerFailure> {
        let directory = text(self.workspace)?;
        if let Some(volume) =
            self.image.volumes.iter().find(|volume| Path::new(volume).starts_with(self.workspace))
        {
            return Err(ContainerFailure::Volume {
                image: self.image.reference.clone(),
                volume: volume.clone(),
            });
        }
        let mut command =
            vec!["--handover", HANDOVER_INSIDE, "--directory", directory, "--leash", LEASH_INSIDE];
        if network == ContainerNetwork::Gated {
            command.push("--gate");
        }
        let mut body = ContainerCreateBody {
            hostname: Some(self.paths.name.clone()),
            user: Some(self.identity.user()),
            env: Some(self.variables()),
            entrypoint: Some(vec![GUEST_INSIDE.to_owned()]),
            cmd: Some(command.into_iter().map(str::to_owned).collect()),
            stop_signal: Some("SIGTERM".to_owned()),
            host_config: Some(self.host_config(network)?),
            ..self.base()
        };
        let hash = spec_hash(&body);
        body.labels.get_or_insert_default().insert(format!("{LABEL_PREFIX}spec"), hash);
        Ok(body)
    }

    fn host_config(&self, network: ContainerNetwork) -> Result<HostConfig, ContainerFailure> {
        let limits = &self.plan.policy.limits;
        let is_set =
            |clause| self.plan.held.get(&clause).is_some_and(|support| !support.is_absent());
        // Clamp to at least 1, because engines take 0 and negative numbers for no limit.
        let bytes = |size: ringfence_core::policy::Size| {
            i64::try_from(size.bytes()).unwrap_or(i64::MAX).max(1)
        };
        let memory = limits.memory.filter(|_| is_set(Clause::Memory)).map(bytes);
        let cpus = limits.cpus.filter(|_| is_set(Clause::Cpus)).map(|cpus| (cpus * 1e9) as i64);
        let processes = limits.processes.filter(|_| is_set(Clause::ProcessCount));
        Ok(HostConfig {
            tmpfs: Some(
                self.scratch().iter().map(|scratch| scratch.described(self.client.kind)).collect(),
            ),
            readonly_rootfs: Some(self.root() == Root::ReadOnly),
            cap_add: Some(kept_capabilities(self.spec, self.client)?),
            network_mode: Some(network.mode(&self.paths.name)),
            userns_mode: self.identity.namespace.clone(),
            memory,
            // Equal values disable swap: `memory_swap` limits the sum of memory and swap.
            memory_swap: memory,
            nano_cpus: cpus,
            pids_limit: processes.map(|count| i64::from(count) + super::OWN_PROCESSES),
            ..self.hardening(self.binds)?
        })
    }

    /// Returns the settings that all containers of a sandbox share, whatever runs in them.
    pub(super) fn base(&self) -> ContainerCreateBody {
        ContainerCreateBody {
            image: Some(self.image.id.clone()),
            working_dir: Some("/".to_owned()),
            attach_stdin: Some(false),
            open_stdin: Some(false),
            tty: Some(false),
            // Disable the image's health check: the engine would run its commands in the container.
            healthcheck: Some(HealthConfig {
                test: Some(vec!["NONE".to_owned()]),
                ..HealthConfig::default()
            }),
            labels: Some(self.labels()),
            ..ContainerCreateBody::default()
        }
    }

    /// Returns the restrictions that apply to all containers of a sandbox, whatever runs in them.
    pub(super) fn hardening(
        &self,
        binds: &[ContainerBind],
    ) -> Result<HostConfig, ContainerFailure> {
        Ok(HostConfig {
            mounts: Some(binds.iter().map(mount).collect::<Result<_, _>>()?),
            cap_drop: Some(vec!["ALL".to_owned()]),
            security_opt: Some(vec!["no-new-privileges".to_owned(), self.filter_option()?]),
            privileged: Some(false),
            ipc_mode: Some("private".to_owned()),
            cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
            log_config: Some(self.log_config()),
            init: Some(false),
            auto_remove: Some(false),
            ..HostConfig::default()
        })
    }

    /// Returns the security option for the filter. Docker takes the filter's text, Podman the path
    /// of a file that contains it.
    fn filter_option(&self) -> Result<String, ContainerFailure> {
        Ok(match self.client.kind {
            EngineKind::Docker => format!("seccomp={}", self.filter),
            EngineKind::Podman => format!("seccomp={}", text(&self.files.filter)?),
        })
    }

    fn log_config(&self) -> HostConfigLogConfig {
        let (kind, options): (_, &[(&str, &str)]) = match self.client.kind {
            EngineKind::Docker => ("json-file", &[("max-size", MAX_LOG_SIZE), ("max-file", "1")]),
            EngineKind::Podman => ("k8s-file", &[("max-size", MAX_LOG_SIZE)]),
        };
        let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        HostConfigLogConfig { typ: Some(kind.to_owned()), config: Some(options.collect()) }
    }

    fn root(&self) -> Root {
        self.spec.root.unwrap_or(match self.spec.preset {
            Preset::Agent => Root::ReadOnly,
            Preset::Dev => Root::Writable,
        })
    }

    /// Returns the tmpfs mounts, all with limits. Podman would add unlimited ones to a read-only
    /// root.
    pub(super) fn scratch(&self) -> Vec<TmpfsMount> {
        let size = self
            .plan
            .policy
            .limits
            .tmp
            .map_or(0, |size| size.bytes())
            .max(rustix::param::page_size() as u64);
        let scratch = |path: &str, options: &str| TmpfsMount {
            path: path.to_owned(),
            size,
            options: format!("rw,exec,nosuid,nodev,{options}"),
        };
        // A tmpfs also bounds the volumes of the image. With a writable root this would be of no
        // use, because the root itself is not bounded.
        let volumes = self.image.volumes.iter().filter(|_| self.root() == Root::ReadOnly);
        let mut all: Vec<TmpfsMount> = volumes.map(|path| scratch(path, "mode=1777")).collect();
        all.extend([
            scratch("/tmp", "mode=1777"),
            scratch("/var/tmp", "mode=1777"),
            scratch("/run", "mode=0755"),
        ]);
        // Engines limit only the size of the `/dev/shm` that they mount themselves.
        all.push(TmpfsMount {
            path: "/dev/shm".to_owned(),
            size: SHARED_MEMORY_BYTES,
            options: "rw,noexec,nosuid,nodev,mode=1777".to_owned(),
        });
        if !self.has_images_home() {
            let owner = self.identity.inside;
            let owned = match self.client.kind {
                EngineKind::Docker => format!("mode=0700,uid={},gid={}", owner.user, owner.group),
                EngineKind::Podman => "mode=0700,U".to_owned(),
            };
            all.push(scratch(self.identity.home, &owned));
        }
        all
    }

    /// Tells whether the home directory in the image belongs to the user in the container.
    fn has_images_home(&self) -> bool {
        self.root() == Root::Writable
            && self.spec.preset == Preset::Dev
            && self.identity.inside.user == 1000
            && self
                .image
                .user
                .as_deref()
                .is_some_and(|user| ["dev", "1000", "1000:1000", "dev:dev"].contains(&user))
    }

    /// Returns the variables of the guest process. Variables from the policy go over the channel
    /// instead, because an engine shows the variables of a container to all its users.
    fn variables(&self) -> Vec<String> {
        let identity = self.identity;
        let mut variables: Vec<(String, String)> =
            [("HOME", identity.home), ("USER", identity.name), ("LOGNAME", identity.name)]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into();
        variables.extend(
            PASSED_VARIABLES
                .into_iter()
                .filter_map(|name| Some((name.to_owned(), self.host.text(name)?.to_owned()))),
        );
        variables.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    pub(super) fn labels(&self) -> HashMap<String, String> {
        let label = |name: &str, value: String| (format!("{LABEL_PREFIX}{name}"), value);
        HashMap::from([
            label("name", self.paths.name.clone()),
            label("owner", self.host.user_id.to_string()),
            label("state", self.paths.base_directory.display().to_string()),
            label("image", self.image.digest.clone().unwrap_or_else(|| self.image.id.clone())),
            label("version", env!("CARGO_PKG_VERSION").to_owned()),
        ])
    }
}

/// Returns the capabilities that a container keeps. Refuses every capability that is not in
/// `DEV_CAPABILITIES`; the error names the capability.
pub(super) fn kept_capabilities(
    spec: &ContainerSpec,
    client: &EngineClient,
) -> Result<Vec<String>, ContainerFailure> {
    let mut kept: Vec<String> = Vec::new();
    for given in &spec.capabilities {
        let name = given.to_ascii_uppercase();
        let name = name.strip_prefix("CAP_").unwrap_or(&name);
        if !DEV_CAPABILITIES.contains(&name) {
            return Err(ContainerFailure::Capability {
                name: given.clone(),
                allowed: &DEV_CAPABILITIES,
            });
        }
        // With Docker, only programs that root owns can gain these capabilities. Podman gives the
        // capabilities to the user inside at once. If the engine runs as root, that user could
        // create files in the workspace that belong to root.
        if client.kind == EngineKind::Podman && !client.is_rootless() {
            return Err(ContainerFailure::CapabilityOfRoot { name: given.clone() });
        }
        kept.push(name.to_owned());
    }
    if spec.preset == Preset::Dev && (client.kind == EngineKind::Docker || client.is_rootless()) {
        kept.extend(DEV_CAPABILITIES.map(str::to_owned));
    }
    kept.sort();
    kept.dedup();
    Ok(kept)
}

/// Returns the hash of a description, which does not depend on the order of its parts.
pub(super) fn spec_hash(body: &ContainerCreateBody) -> String {
    // The maps of a `Value` are sorted; the maps of `body` are not.
    let value = serde_json::to_value(body).expect("it has only string keys");
    let digest = Sha256::digest(value.to_string().as_bytes());
    ringfence_core::to_hex(&digest[..16])
}

fn mount(bind: &ContainerBind) -> Result<Mount, ContainerFailure> {
    Ok(Mount {
        typ: Some(MountType::BIND),
        source: Some(text(&bind.source)?.to_owned()),
        target: Some(text(&bind.target)?.to_owned()),
        read_only: Some(bind.access == Access::Read),
        ..Mount::default()
    })
}

fn text(path: &Path) -> Result<&str, ContainerFailure> {
    path.to_str().ok_or_else(|| ContainerFailure::NotText { path: path.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_persons_own_environment_shares_the_hosts_network_and_only_when_it_is_open() {
        let mode = |network: Option<Network>, preset| {
            ContainerNetwork::for_policy(
                network.as_ref(),
                &ContainerSpec { preset, ..ContainerSpec::default() },
            )
            .unwrap()
            .mode("demo")
        };
        assert_eq!(mode(Some(Network::Open), Preset::Dev), "host");
        assert_eq!(mode(Some(Network::Open), Preset::Agent), "default");
        for preset in [Preset::Dev, Preset::Agent] {
            assert_eq!(mode(Some(Network::Closed), preset), "none");
            assert_eq!(mode(Some(Network::only([])), preset), "none");
            assert_eq!(mode(None, preset), "none");
        }
    }

    #[test]
    fn a_proxy_beside_a_container_is_for_policies_that_allow_some_hosts() {
        let spec = ContainerSpec {
            proxy: Some("/usr/bin/ringfence".to_owned()),
            ..ContainerSpec::default()
        };
        let chosen = |network: Network| ContainerNetwork::for_policy(Some(&network), &spec);
        assert_eq!(chosen(Network::only([])).unwrap().mode("demo"), "sandbox-net-demo");
        for (network, expected) in [(Network::Open, "open"), (Network::Closed, "closed")] {
            match chosen(network) {
                Err(ContainerFailure::ProxyWithout { mode }) => assert_eq!(mode, expected),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_description_has_one_hash_whatever_the_order_of_its_parts() {
        let body = |names: &[&str]| ContainerCreateBody {
            labels: Some(names.iter().map(|name| ((*name).to_owned(), String::new())).collect()),
            ..ContainerCreateBody::default()
        };
        assert_eq!(spec_hash(&body(&["a", "b", "c"])), spec_hash(&body(&["c", "a", "b"])));
        assert_ne!(spec_hash(&body(&["a"])), spec_hash(&body(&["b"])));
    }
}
