//! Lookup of the addresses of host names, outside the sandbox.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig,
    ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::{Hosts, TokioResolver, system_conf};
use ringfence_core::policy::HostName;

/// Files that the system's own resolver reads, in the same order.
const SYSTEM_FILES: [&str; 2] = ["/etc/hosts", "/etc/resolv.conf"];

/// Most queries that may wait for one server. Hickory fails further queries, so the limit is higher
/// than the connections need.
const MAX_CONCURRENT_QUERIES: usize = 4096;

/// Resolver that finds the addresses of host names.
pub struct Resolver {
    source: ResolverSource,
}

enum ResolverSource {
    /// Configuration of the host. The resolver reads the files again when one of them has changed,
    /// because a sandbox may outlive a network.
    System(Mutex<Option<(FileTimes, ResolverConfiguration)>>),
    Fixed(ResolverConfiguration),
}

/// Time at which each file was last written.
type FileTimes = [Option<SystemTime>; SYSTEM_FILES.len()];

#[derive(Clone)]
struct ResolverConfiguration {
    hosts: std::sync::Arc<Hosts>,
    servers: TokioResolver,
}

/// Reason for which a host name has no address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// The host's resolver configuration cannot be used.
    #[error("cannot read the DNS configuration of this host")]
    Configuration(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The lookup at the servers failed.
    #[error("cannot resolve `{name}`")]
    Lookup {
        /// Host name that was looked up.
        name: HostName,
        /// Error that hickory returned.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The host name exists and has no address.
    #[error("the name `{0}` has no address")]
    NoAddress(HostName),
    /// No server answered in time.
    #[error("no DNS server answered for `{0}` in time")]
    Slow(HostName),
}

impl Resolver {
    /// Returns a resolver that works as this host does: `/etc/hosts` first, then the servers of
    /// `/etc/resolv.conf`.
    pub fn for_system() -> Resolver {
        Resolver { source: ResolverSource::System(Mutex::new(None)) }
    }

    /// Returns a resolver that asks only `server`.
    pub fn for_server(server: SocketAddr) -> Result<Resolver, ResolveError> {
        let connections =
            [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
                connection.port = server.port();
                connection
            });
        let server = NameServerConfig::new(server.ip(), true, connections.into());
        let config = ResolverConfig::from_name_servers(vec![server]);
        Ok(Resolver {
            source: ResolverSource::Fixed(ResolverConfiguration::new(
                Hosts::default(),
                config,
                ResolverOpts::default(),
            )?),
        })
    }

    /// Returns all addresses of a name, IPv4 first.
    pub(crate) async fn lookup_addresses(
        &self,
        name: &HostName,
    ) -> Result<Vec<IpAddr>, ResolveError> {
        let failed = |error: Box<dyn std::error::Error + Send + Sync>| ResolveError::Lookup {
            name: name.clone(),
            source: error,
        };
        let answers = self.load_configuration()?;
        // End the name with a dot, so that the name is looked up as it was judged: no search list
        // turns the name into another one.
        let absolute =
            Name::from_ascii(format!("{name}.")).map_err(|error| failed(error.into()))?;
        let known = answers.lookup_hosts_file(&absolute);
        if !known.is_empty() {
            return Ok(known);
        }
        let found =
            answers.servers.lookup_ip(absolute).await.map_err(|error| failed(error.into()))?;
        let mut addresses: Vec<IpAddr> = found.iter().collect();
        // A server may repeat an address, and each address is tried once.
        let mut seen = std::collections::HashSet::new();
        addresses.retain(|address| seen.insert(*address));
        if addresses.is_empty() {
            Err(ResolveError::NoAddress(name.clone()))
        } else {
            Ok(addresses)
        }
    }

    fn load_configuration(&self) -> Result<ResolverConfiguration, ResolveError> {
        let current = match &self.source {
            ResolverSource::Fixed(answers) => return Ok(answers.clone()),
            ResolverSource::System(current) => current,
        };
        let stamps =
            SYSTEM_FILES.map(|file| fs_err::metadata(file).and_then(|file| file.modified()).ok());
        let mut current = current.lock().unwrap_or_else(PoisonError::into_inner);
        match &*current {
            Some((known, answers)) if *known == stamps => Ok(answers.clone()),
            _ => {
                let (config, options) = system_conf::read_system_conf()
                    .map_err(|error| ResolveError::Configuration(error.into()))?;
                // A missing hosts file counts as an empty one.
                let hosts = Hosts::from_system().unwrap_or_default();
                let answers = ResolverConfiguration::new(hosts, config, options)?;
                *current = Some((stamps, answers.clone()));
                Ok(answers)
            }
        }
    }
}

impl ResolverConfiguration {
    fn new(
        hosts: Hosts,
        config: ResolverConfig,
        mut options: ResolverOpts,
    ) -> Result<ResolverConfiguration, ResolveError> {
        // Do not let hickory read the hosts file: hickory would ask servers for the address family
        // that the file lacks, and the system's resolver does not.
        options.use_hosts_file = ResolveHosts::Never;
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        options.max_active_requests = MAX_CONCURRENT_QUERIES;
        let servers = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
            .with_options(options)
            .build()
            .map_err(|error| ResolveError::Configuration(error.into()))?;
        Ok(ResolverConfiguration { hosts: hosts.into(), servers })
    }

    fn lookup_hosts_file(&self, name: &Name) -> Vec<IpAddr> {
        [RecordType::A, RecordType::AAAA]
            .into_iter()
            .filter_map(|kind| self.hosts.lookup_static_host(&Query::query(name.clone(), kind)))
            .flat_map(|found| {
                found
                    .answers()
                    .iter()
                    .filter_map(|record| record.data.ip_addr())
                    .collect::<Vec<_>>()
            })
            .collect()
    }
}
