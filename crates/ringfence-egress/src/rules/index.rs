//! Index of a list of rules, so that a lookup never searches the whole list.

use std::collections::HashMap;
use std::net::IpAddr;

use ringfence_core::policy::{Host, HostName, HostRule};

/// Rules of one list, indexed by the host that they name.
#[derive(Debug, Clone, Default)]
pub(super) struct RuleIndex {
    names: HashMap<HostName, RulePorts>,
    parents: HashMap<HostName, RulePorts>,
    /// Ports of all rules in `names` and `parents`.
    name_ports: RulePorts,
    /// Number of labels in the longest name of `parents`.
    deepest: usize,
    ipv4: NetworkList,
    ipv6: NetworkList,
}

/// Ports of all rules for one host.
#[derive(Debug, Clone, Default)]
struct RulePorts {
    /// True if a rule names no port. Such a rule covers the ports of the web.
    web: bool,
    /// Ports that the other rules name, in ascending order.
    single: Vec<u16>,
}

impl RulePorts {
    fn add(&mut self, port: Option<u16>) {
        match port {
            None => self.web = true,
            Some(port) => {
                if let Err(place) = self.single.binary_search(&port) {
                    self.single.insert(place, port);
                }
            }
        }
    }

    /// Returns all ports, including those of the web.
    fn iter(&self) -> impl Iterator<Item = u16> {
        let web = if self.web { &HostRule::WEB_PORTS[..] } else { &[] };
        web.iter().chain(&self.single).copied()
    }

    /// Returns the port field of the rule that covers `port`, if a rule does. `Some(None)` stands
    /// for the rule without a port.
    fn rule(&self, port: u16) -> Option<Option<u16>> {
        if self.web && HostRule::WEB_PORTS.contains(&port) {
            return Some(None);
        }
        self.single.binary_search(&port).is_ok().then_some(Some(port))
    }
}

impl RuleIndex {
    pub(super) fn new(rules: &[HostRule]) -> RuleIndex {
        let mut index = RuleIndex::default();
        let (mut ipv4, mut ipv6) = (HashMap::new(), HashMap::new());
        for rule in rules {
            if !matches!(rule.host, Host::Network { .. }) {
                index.name_ports.add(rule.port);
            }
            let ports: &mut RulePorts = match &rule.host {
                Host::Name(name) => index.names.entry(name.clone()).or_default(),
                Host::Beneath(parent) => {
                    index.deepest = index.deepest.max(parent.as_str().split('.').count());
                    index.parents.entry(parent.clone()).or_default()
                }
                Host::Network { address: IpAddr::V4(address), prefix } => {
                    ipv4.entry((address.to_bits().into(), *prefix)).or_default()
                }
                Host::Network { address: IpAddr::V6(address), prefix } => {
                    ipv6.entry((address.to_bits(), *prefix)).or_default()
                }
            };
            ports.add(rule.port);
        }
        index.ipv4 = NetworkList::new(ipv4, 32);
        index.ipv6 = NetworkList::new(ipv6, 128);
        index
    }

    /// Returns the rule that covers `name` on `port`.
    pub(super) fn find_name_rule(&self, name: &HostName, port: u16) -> Option<HostRule> {
        if let Some(port) = self.find_exact(name, port) {
            return Some(HostRule { host: Host::Name(name.clone()), port });
        }
        let (parent, port) = self.find_wildcard(name, port)?;
        Some(HostRule { host: Host::Beneath(parent.clone()), port })
    }

    /// Returns whether a rule covers `name` on `port`.
    pub(super) fn covers_name(&self, name: &HostName, port: u16) -> bool {
        self.find_exact(name, port).is_some() || self.find_wildcard(name, port).is_some()
    }

    /// Returns whether a rule covers any name on `port`.
    pub(super) fn covers_any_name(&self, port: u16) -> bool {
        self.name_ports.rule(port).is_some()
    }

    fn find_exact(&self, name: &HostName, port: u16) -> Option<Option<u16>> {
        self.names.get(name)?.rule(port)
    }

    fn find_wildcard(&self, name: &HostName, port: u16) -> Option<(&HostName, Option<u16>)> {
        name.parents().take(self.deepest).find_map(|parent| {
            let (parent, ports) = self.parents.get_key_value(parent)?;
            Some((parent, ports.rule(port)?))
        })
    }

    /// Returns the ports of every rule that covers `name`.
    pub(super) fn name_ports(&self, name: &HostName) -> impl Iterator<Item = u16> {
        let above = name.parents().take(self.deepest).filter_map(|parent| self.parents.get(parent));
        self.names.get(name).into_iter().chain(above).flat_map(RulePorts::iter)
    }

    /// Returns the rule that covers `address` on `port`.
    pub(super) fn find_address_rule(&self, address: IpAddr, port: u16) -> Option<HostRule> {
        let (network, port) = self.find_network(address, port)?;
        let address = match address {
            IpAddr::V4(_) => IpAddr::V4(
                u32::try_from(network.first).expect("networks of IPv4 have 32 bits").into(),
            ),
            IpAddr::V6(_) => IpAddr::V6(network.first.into()),
        };
        Some(HostRule { host: Host::Network { address, prefix: network.prefix }, port })
    }

    /// Returns whether a rule covers `address` on `port`.
    pub(super) fn covers_address(&self, address: IpAddr, port: u16) -> bool {
        self.find_network(address, port).is_some()
    }

    fn find_network(&self, address: IpAddr, port: u16) -> Option<(&NetworkRules, Option<u16>)> {
        match address {
            IpAddr::V4(address) => self.ipv4.find(address.to_bits().into(), port),
            IpAddr::V6(address) => self.ipv6.find(address.to_bits(), port),
        }
    }
}

/// Networks in the order of their first addresses. A wider network stands before the networks
/// within it.
///
/// Two networks are either disjoint, or one lies in the other. For this reason, every network that
/// contains an address is the last network that starts at or before the address, or encloses that
/// network. A lookup needs one binary search, and then follows `around` outwards.
#[derive(Debug, Clone, Default)]
struct NetworkList(Vec<NetworkRules>);

#[derive(Debug, Clone)]
struct NetworkRules {
    first: u128,
    last: u128,
    prefix: u8,
    /// Index of the narrowest network that encloses this network.
    around: Option<usize>,
    ports: RulePorts,
}

impl NetworkList {
    fn new(networks: HashMap<(u128, u8), RulePorts>, width: u8) -> NetworkList {
        let of = |((first, prefix), ports)| {
            let rest = u128::MAX.checked_shr(128 - u32::from(width - prefix)).unwrap_or(0);
            NetworkRules { first, last: first | rest, prefix, around: None, ports }
        };
        let mut networks: Vec<NetworkRules> = networks.into_iter().map(of).collect();
        networks.sort_unstable_by_key(|network| (network.first, network.prefix));
        for place in 1..networks.len() {
            let mut around = Some(place - 1);
            while let Some(outer) =
                around.filter(|outer| networks[*outer].last < networks[place].last)
            {
                around = networks[outer].around;
            }
            networks[place].around = around;
        }
        NetworkList(networks)
    }

    /// Returns the narrowest network that contains `address` and has a rule for `port`, with the
    /// port field of that rule.
    fn find(&self, address: u128, port: u16) -> Option<(&NetworkRules, Option<u16>)> {
        let mut place = self.0.partition_point(|network| network.first <= address).checked_sub(1);
        while let Some(network) = place.map(|place| &self.0[place]) {
            if let Some(port) = network.ports.rule(port).filter(|_| network.last >= address) {
                return Some((network, port));
            }
            place = network.around;
        }
        None
    }
}
