//! Internal network of a sandbox with a proxy, which is also connected to the engine's default
//! network. Other containers can join the network and use the proxy.
//!
//! Networks that engines call internal still have ways out. Docker's gateway is an address of the
//! host, and its resolver forwards to the host's resolver if that listens on loopback. Podman's
//! resolver forwards for every container, and its bridge and containers can reach each other over
//! IPv6. This module closes all of these ways.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use bollard::models::{
    ContainerCreateBody, EndpointSettings, HostConfig, NetworkConnectRequest, NetworkCreateRequest,
    NetworkDisconnectRequest, NetworkInspect,
};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, InspectContainerOptions, InspectNetworkOptions,
    StartContainerOptions,
};
use ringfence_core::Clause;
use ringfence_linux::gate::PROXY_ADDRESS;

use super::OWN_INSIDE;
use super::client::{EngineClient, EngineKind};
use super::container::ContainerInputs;
use super::error::ContainerFailure;
use super::handover::listen_for_container;
use super::image::is_missing;
use super::instance::wait_for_connection;
use super::mounts::ContainerBind;
use super::raw;
use super::removal::{is_ours, remove, remove_leftover, retry_until_answered};
use crate::egress::RemoteProxy;

/// Name of the proxy for containers in the network, if the engine resolves names there.
const PROXY_HOST_NAME: &str = "proxy";
/// Path of the proxy's program in its container.
const PROGRAM_INSIDE: &str = "/run/ringfence/proxy";
/// Path in the proxy's container of the socket of the process that owns the sandbox.
const OWNER_INSIDE: &str = "/run/ringfence/owner";
/// User and group IDs that own no files.
const NOBODY_IDS: &str = "65534:65534";
/// Memory limit of a proxy in bytes, enough for some thousand connections.
const PROXY_MEMORY_BYTES: i64 = 256 << 20;
/// Limit of the number of processes and threads of a proxy.
const MAX_PROXY_PROCESSES: i64 = 32;

/// Names at the engine of the network and the proxy of a sandbox. These names never equal the name
/// of a sandbox's container.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(super) struct ProxyNetwork {
    pub(super) network: String,
    pub(super) proxy: String,
}

impl ProxyNetwork {
    /// Returns the names for a sandbox.
    pub(super) fn for_sandbox(sandbox: &str) -> ProxyNetwork {
        ProxyNetwork {
            network: format!("sandbox-net-{sandbox}"),
            proxy: format!("sandbox-proxy-{sandbox}"),
        }
    }

    /// Creates the network and the proxy, and waits until the proxy connects for its orders.
    /// `program` is the path of the proxy's program.
    pub(super) async fn start(
        &self,
        inputs: &ContainerInputs<'_>,
        program: &str,
    ) -> Result<RemoteProxy, ContainerFailure> {
        let engine = |what| move |source| ContainerFailure::Engine { what, source };
        let client = inputs.client;
        self.make_network(inputs).await?;
        let owner = inputs.paths.directory.join("container").join("owner");
        let failed = |source| ContainerFailure::Files { what: "listen for the proxy", source };
        let listener = listen_for_container(&owner).map_err(failed)?;
        let options = CreateContainerOptionsBuilder::default().name(&self.proxy).build();
        let created =
            client.api.create_container(Some(options), proxy_body(inputs, program, owner)?).await;
        created.map_err(engine("create the proxy's container"))?;
        let aliases = Some(vec![PROXY_HOST_NAME.to_owned()]);
        let endpoint_config = Some(EndpointSettings { aliases, ..EndpointSettings::default() });
        let connected = NetworkConnectRequest { container: self.proxy.clone(), endpoint_config };
        let connected = client.api.connect_network(&self.network, connected).await;
        connected.map_err(engine("put the proxy's container in the sandbox's network"))?;
        let started = client.api.start_container(&self.proxy, None::<StartContainerOptions>).await;
        started.map_err(engine("start the proxy's container"))?;
        let connection = async { listener.accept().await.map_err(failed) };
        let (connection, _) = wait_for_connection("proxy", client, &self.proxy, connection).await?;
        Ok(RemoteProxy {
            connection,
            address: self.address(client).await?,
            subnet: self.subnet(client).await,
        })
    }

    async fn make_network(&self, inputs: &ContainerInputs<'_>) -> Result<(), ContainerFailure> {
        let what = "make the sandbox's network";
        let labels = inputs.labels();
        if inputs.client.kind == EngineKind::Podman {
            // The common API of both engines has no option for a network without a resolver.
            let made = raw::create_network(inputs.client, &self.network, &labels).await;
            return made.map_err(|source| ContainerFailure::Files { what, source });
        }
        let request = NetworkCreateRequest {
            name: self.network.clone(),
            driver: Some("bridge".to_owned()),
            internal: Some(true),
            enable_ipv6: Some(false),
            options: Some(HashMap::from([(
                "com.docker.network.bridge.inhibit_ipv4".to_owned(),
                "true".to_owned(),
            )])),
            labels: Some(labels),
            ..NetworkCreateRequest::default()
        };
        let made = inputs.client.api.create_network(request).await;
        made.map(drop).map_err(|source| ContainerFailure::Engine { what, source })
    }

    /// Returns the address at which the proxy is to listen, which is its address in the sandbox's
    /// network.
    async fn address(&self, client: &EngineClient) -> Result<SocketAddr, ContainerFailure> {
        let inspected =
            client.api.inspect_container(&self.proxy, None::<InspectContainerOptions>).await;
        let inspected = inspected.map_err(|source| ContainerFailure::Engine {
            what: "inspect the proxy's container",
            source,
        })?;
        let networks =
            inspected.network_settings.and_then(|settings| settings.networks).unwrap_or_default();
        let address = networks
            .get(&self.network)
            .and_then(|endpoint| endpoint.ip_address.as_deref()?.parse().ok());
        let address: IpAddr =
            address.ok_or_else(|| ContainerFailure::NoAddress { container: self.proxy.clone() })?;
        Ok(SocketAddr::new(address, PROXY_ADDRESS.port()))
    }

    /// Returns the subnet of the network. A missing subnet is no error: then connections to other
    /// containers of the network go through the proxy.
    async fn subnet(&self, client: &EngineClient) -> Option<String> {
        self.inspect(client).await.ok()??.ipam?.config?.into_iter().find_map(|range| range.subnet)
    }

    /// Removes a proxy and a network of these names that a crash left. Fails if the names are taken
    /// by objects that are not ringfence's.
    pub(super) async fn remove_leftover(
        &self,
        client: &EngineClient,
        base_directory: &Path,
    ) -> Result<(), ContainerFailure> {
        remove_leftover(client, base_directory, &self.proxy).await?;
        let inspected = self.inspect(client).await;
        let inspected = inspected.map_err(|source| ContainerFailure::Engine {
            what: "look for a network of that name",
            source,
        })?;
        let Some(inspected) = inspected else { return Ok(()) };
        if !is_ours(&inspected.labels.unwrap_or_default(), base_directory) {
            return Err(ContainerFailure::NetworkTaken {
                network: self.network.clone(),
                kind: client.kind,
            });
        }
        let removed = self.remove_network(client).await;
        removed.map_err(|source| ContainerFailure::Engine {
            what: "remove the network that a crash left",
            source,
        })
    }

    /// Returns the network, if it exists. Retries, because Podman before 4.5 cannot answer while it
    /// removes any container.
    async fn inspect(
        &self,
        client: &EngineClient,
    ) -> Result<Option<NetworkInspect>, bollard::errors::Error> {
        retry_until_answered(|| {
            client.api.inspect_network(&self.network, None::<InspectNetworkOptions>)
        })
        .await
    }

    /// Removes the proxy and the network. Succeeds if the objects are gone already.
    pub(super) async fn remove(&self, client: &EngineClient) -> Result<(), bollard::errors::Error> {
        remove(client, &self.proxy).await?;
        self.remove_network(client).await
    }

    /// Removes the network. The caller's containers in the network are disconnected and keep
    /// running.
    async fn remove_network(&self, client: &EngineClient) -> Result<(), bollard::errors::Error> {
        let Some(inspected) = self.inspect(client).await? else { return Ok(()) };
        for container in inspected.containers.unwrap_or_default().into_keys() {
            let leaves = NetworkDisconnectRequest { container, force: Some(true) };
            // Ignore errors: the container may have ended meanwhile.
            let _ = client.api.disconnect_network(&self.network, leaves).await;
        }
        match client.api.remove_network(&self.network).await {
            Err(error) if !is_missing(&error) => Err(error),
            _ => Ok(()),
        }
    }
}

/// Builds the description of the proxy's container.
fn proxy_body(
    inputs: &ContainerInputs<'_>,
    program: &str,
    owner: PathBuf,
) -> Result<ContainerCreateBody, ContainerFailure> {
    let ContainerProgram { mut binds, mut words } =
        ContainerProgram::from_host_file(Path::new(program)).map_err(|source| {
            ContainerFailure::Files { what: "find the proxy's program", source }
        })?;
    binds.push(ContainerBind::own_file(owner, OWNER_INSIDE));
    words.extend(["egress", "serve", OWNER_INSIDE].map(str::to_owned));
    let is_set = |clause| inputs.plan.held.get(&clause).is_some_and(|support| !support.is_absent());
    let memory = is_set(Clause::Memory).then_some(PROXY_MEMORY_BYTES);
    Ok(ContainerCreateBody {
        hostname: Some(PROXY_HOST_NAME.to_owned()),
        user: Some(NOBODY_IDS.to_owned()),
        env: Some(Vec::new()),
        entrypoint: Some(words),
        cmd: Some(Vec::new()),
        stop_signal: Some("SIGKILL".to_owned()),
        host_config: Some(HostConfig {
            readonly_rootfs: Some(true),
            // Not "default": a rootless engine has another default, which cannot be combined with a
            // network.
            network_mode: Some("bridge".to_owned()),
            // New namespaces inherit forwarding from a host that has it enabled.
            sysctls: Some(HashMap::from([("net.ipv4.ip_forward".to_owned(), "0".to_owned())])),
            memory,
            memory_swap: memory,
            pids_limit: is_set(Clause::ProcessCount).then_some(MAX_PROXY_PROCESSES),
            ..inputs.hardening(&binds)?
        }),
        ..inputs.base()
    })
}

/// Program of the host, to be run in a container whose image is of another system.
struct ContainerProgram {
    binds: Vec<ContainerBind>,
    /// Command line that runs the program in the container.
    words: Vec<String>,
}

impl ContainerProgram {
    /// Finds the files that the program needs. For the running program, these are the files that
    /// the kernel mapped: only the program itself if it is linked statically, and otherwise also
    /// its loader and libraries.
    fn from_host_file(path: &Path) -> std::io::Result<ContainerProgram> {
        let path = fs_err::canonicalize(path)?;
        let libraries = match path == fs_err::canonicalize("/proc/self/exe")? {
            true => libraries(&fs_err::read_to_string("/proc/self/maps")?),
            false => Vec::new(),
        };
        let mut program = ContainerProgram {
            binds: vec![ContainerBind::own_file(path, PROGRAM_INSIDE)],
            words: Vec::new(),
        };
        for library in &libraries {
            let name = library.file_name().unwrap_or_default().to_string_lossy();
            let inside = format!("{OWN_INSIDE}/libraries/{name}");
            if name.starts_with("ld-") {
                let directory = format!("{OWN_INSIDE}/libraries");
                program.words = vec![inside.clone(), "--library-path".to_owned(), directory];
            }
            program.binds.push(ContainerBind::own_file(library, inside));
        }
        program.words.push(PROGRAM_INSIDE.to_owned());
        Ok(program)
    }
}

/// Returns the shared objects among a process's mappings (proc(5)).
fn libraries(maps: &str) -> Vec<PathBuf> {
    let executable = maps
        .lines()
        .filter(|line| line.split(' ').nth(1).is_some_and(|rights| rights.contains('x')));
    let paths =
        executable.filter_map(|line| line.find('/').map(|start| PathBuf::from(&line[start..])));
    let is_library = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().contains(".so"))
    };
    let mut libraries: Vec<PathBuf> = paths.filter(is_library).collect();
    libraries.sort();
    libraries.dedup();
    libraries
}

/// Restricts the network of the sandbox's own container to the proxy.
pub(super) fn confine(host_config: &mut HostConfig, kind: EngineKind, proxy: &RemoteProxy) {
    let address = proxy.address.ip().to_string();
    host_config.extra_hosts = Some(vec![format!("{PROXY_HOST_NAME}:{address}")]);
    if kind == EngineKind::Docker {
        // Docker's resolver knows the containers of the network and forwards all other names to
        // this address, where nobody answers.
        host_config.dns = Some(vec![address]);
    }
    let disabled = ["all", "default"]
        .map(|which| (format!("net.ipv6.conf.{which}.disable_ipv6"), "1".to_owned()));
    host_config.sysctls = Some(disabled.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_programs_libraries_are_the_shared_objects_that_the_kernel_mapped_for_it() {
        let maps = "\
55e0-55e1 r--p 00000000 fe:00 1 /usr/bin/ringfence
55e1-55e2 r-xp 00000000 fe:00 1 /usr/bin/ringfence
7f00-7f01 r--p 00000000 fe:00 2 /usr/lib/x86_64-linux-gnu/libc.so.6
7f01-7f02 r-xp 00028000 fe:00 2 /usr/lib/x86_64-linux-gnu/libc.so.6
7f02-7f03 r-xp 00000000 fe:00 3                  /usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2
7f04-7f05 r-xp 00000000 00:00 0 [vdso]
";
        let expected = ["ld-linux-x86-64.so.2", "libc.so.6"]
            .map(|name| Path::new("/usr/lib/x86_64-linux-gnu").join(name));
        assert_eq!(libraries(maps), expected);
        assert_eq!(
            libraries("55e1-55e2 r-xp 00000000 fe:00 1 /usr/bin/ringfence\n"),
            [] as [PathBuf; 0]
        );
    }
}
