//! Rules that name hosts, for lists of allowed and denied hosts.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::name::suffix_section;
use crate::policy::{HostName, HostNameError};

/// One entry of a list of hosts: `example.org`, `*.example.org:443`, `192.0.2.1`,
/// `[2001:db8::1]:443` or `10.0.0.0/8`.
///
/// A wildcard under a suffix where anybody can register a name, such as `*.com` or `*.co.uk`, is
/// not a rule, because no single owner is responsible for the names under that suffix.
///
/// A wildcard under a suffix in the private section of the public suffix list, such as
/// `*.github.io` or `*.s3.amazonaws.com`, is a rule. Such a suffix has many tenants, but it belongs
/// to one company, and the author of the rule has named that company. Downloads come from names
/// under the suffix that nobody can list. The rule lets data out to every tenant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostRule {
    /// Host or hosts that the rule names.
    pub host: Host,
    /// Port that the rule names; the web ports 80 and 443 when absent.
    pub port: Option<u16>,
}

/// Host or set of hosts that a rule names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// The host with this name.
    Name(HostName),
    /// Every host with a name beneath this name; the name itself is not included.
    Beneath(HostName),
    /// Every address that shares its first `prefix` bits with `address`.
    Network {
        /// First address of the network; the bits after the prefix are zero.
        address: IpAddr,
        /// Length of the prefix in bits: 1 to 32 for IPv4, 1 to 128 for IPv6.
        prefix: u8,
    },
}

impl Host {
    /// Returns the host with this single address. An IPv4-mapped IPv6 address becomes IPv4.
    pub fn address(address: IpAddr) -> Host {
        let address = address.to_canonical();
        Host::Network { address, prefix: address_bits(address) }
    }
}

impl HostRule {
    /// Ports of a rule that names no port.
    pub const WEB_PORTS: [u16; 2] = [80, 443];

    /// Returns the ports that the rule names.
    pub fn ports(&self) -> &[u16] {
        self.port.as_ref().map_or(&Self::WEB_PORTS, std::slice::from_ref)
    }

    /// Returns `true` if the rule names the host `name` on `port`.
    pub fn names(&self, name: &HostName, port: u16) -> bool {
        self.ports().contains(&port)
            && match &self.host {
                Host::Name(own) => own == name,
                Host::Beneath(parent) => name.is_beneath(parent),
                Host::Network { .. } => false,
            }
    }

    /// Returns `true` if the rule names `address` on `port`. Only rules with addresses can match.
    pub fn names_address(&self, address: IpAddr, port: u16) -> bool {
        let is_named = match self.host {
            Host::Network { address: own, prefix } => contains(own, prefix, address),
            _ => false,
        };
        is_named && self.ports().contains(&port)
    }

    /// Returns `true` if this rule names every host and port that `other` names.
    pub fn covers(&self, other: &HostRule) -> bool {
        other.ports().iter().all(|port| self.ports().contains(port))
            && match (&self.host, &other.host) {
                (Host::Beneath(parent), Host::Name(name)) => name.is_beneath(parent),
                (Host::Beneath(parent), Host::Beneath(name)) => {
                    name == parent || name.is_beneath(parent)
                }
                (
                    Host::Network { address, prefix },
                    Host::Network { address: inner, prefix: longer },
                ) => longer >= prefix && contains(*address, *prefix, *inner),
                (own, other) => own == other,
            }
    }

    /// Returns `true` if both rules name the same host on the same port.
    pub fn overlaps(&self, other: &HostRule) -> bool {
        self.ports().iter().filter(|port| other.ports().contains(port)).any(|port| {
            // Two sets of hosts are either disjoint, or one contains the other: names form a tree,
            // and so do prefixes of addresses.
            let [own, other] =
                [self, other].map(|rule| HostRule { host: rule.host.clone(), port: Some(*port) });
            own.covers(&other) || other.covers(&own)
        })
    }

    /// Returns `true` if, for each port of this rule, one of `rules` covers the host on that port.
    ///
    /// The function does not combine sets of hosts: two halves of a network do not cover the
    /// network.
    pub fn is_covered_by(&self, rules: &[HostRule]) -> bool {
        self.ports().iter().all(|port| {
            let on_port = HostRule { host: self.host.clone(), port: Some(*port) };
            rules.iter().any(|rule| rule.covers(&on_port))
        })
    }
}

fn contains(network: IpAddr, prefix: u8, address: IpAddr) -> bool {
    match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            (network.to_bits() ^ address.to_bits()).checked_shr(32 - u32::from(prefix)).unwrap_or(0)
                == 0
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            (network.to_bits() ^ address.to_bits())
                .checked_shr(128 - u32::from(prefix))
                .unwrap_or(0)
                == 0
        }
        _ => false,
    }
}

const fn address_bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl fmt::Display for HostRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = match &self.host {
            Host::Name(name) => name.to_string(),
            Host::Beneath(parent) => format!("*.{parent}"),
            Host::Network { address, prefix } if *prefix == address_bits(*address) => {
                address.to_string()
            }
            Host::Network { address, prefix } => format!("{address}/{prefix}"),
        };
        let is_v6 = matches!(self.host, Host::Network { address: IpAddr::V6(_), .. });
        match self.port {
            Some(port) if is_v6 => write!(f, "[{host}]:{port}"),
            Some(port) => write!(f, "{host}:{port}"),
            None => f.write_str(&host),
        }
    }
}

/// Reason why a text is not a host rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostRuleError {
    /// The text is empty.
    #[error("a host cannot be empty: write for example `example.org` or `*.example.org:443`")]
    Empty,
    /// The text is a URL.
    #[error("`{text}` is a URL: write only the host, `{instead}`")]
    Url {
        /// The whole text that was parsed.
        text: String,
        /// Rule for the host of the URL, with the port of a known scheme.
        instead: String,
    },
    /// The text names a user, as in `git@example.org`.
    #[error("`{text}` names a user: write only the host, `{instead}`")]
    User {
        /// The whole text that was parsed.
        text: String,
        /// The rule without the user.
        instead: String,
    },
    /// The text names a path, as in `example.org/api`.
    #[error("`{text}` names a path: hosts are allowed as a whole, write `{instead}`")]
    Path {
        /// The whole text that was parsed.
        text: String,
        /// The rule without the path.
        instead: String,
    },
    /// The text, such as `*` or `0.0.0.0/0`, would name every host.
    #[error("`{0}` would allow every host: say that with the network's mode, `open`")]
    Everything(String),
    /// The text is a wildcard under a suffix where anybody can register a name.
    #[error(
        "`{rule}` names all that is registered under `{suffix}`, by anybody: write more labels, \
         such as `*.example.{suffix}`"
    )]
    PublicSuffix {
        /// The whole text that was parsed.
        rule: String,
        /// Public suffix that the wildcard stands under.
        suffix: String,
    },
    /// A `*` is not the whole first label.
    #[error("`{0}` has a `*` that is not its first label: write `*.example.org`")]
    Star(String),
    /// The name is not a valid host name.
    #[error(transparent)]
    Name(HostNameError),
    /// The port is not a number from 1 to 65535.
    #[error("`{text}` has port `{port}`: a port is a number from 1 to 65535")]
    Port {
        /// The whole text that was parsed.
        text: String,
        /// Text after the colon, which should be a port.
        port: String,
    },
    /// The text looks like an IP address and is not a valid one.
    #[error("`{0}` is no IP address: write all of its parts, such as `192.0.2.1` or `2001:db8::1`")]
    Address(String),
    /// The text after the slash is not a valid prefix length.
    #[error("`{text}` has prefix `{prefix}`: it is a number from 1 to {most}")]
    Prefix {
        /// The whole text that was parsed.
        text: String,
        /// Text after the slash, which should be a prefix length.
        prefix: String,
        /// Number of bits of the address: 32 or 128.
        most: u8,
    },
    /// The address has bits set after the prefix.
    #[error("`{text}` is not the first address of its network: write `{instead}`")]
    HostBits {
        /// The whole text that was parsed.
        text: String,
        /// Network that contains the address.
        instead: String,
    },
}

impl FromStr for HostRule {
    type Err = HostRuleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err(HostRuleError::Empty);
        }
        refuse_url(text)?;
        if let Some(inner) = text.strip_prefix('[') {
            let (address, rest) =
                inner.split_once(']').ok_or_else(|| HostRuleError::Address(text.to_owned()))?;
            let port = match rest {
                "" => None,
                rest => Some(parse_port(text, rest.strip_prefix(':').unwrap_or(rest))?),
            };
            let host = parse_network(text, address)?
                .ok_or_else(|| HostRuleError::Address(text.to_owned()))?;
            return Ok(HostRule { host, port });
        }
        if let Some(host) = parse_network(text, text)? {
            return Ok(HostRule { host, port: None });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, digits)) => (host, Some(parse_port(text, digits)?)),
            None => (text, None),
        };
        let host = match parse_network(text, host)? {
            Some(host) => host,
            None => parse_name(text, host)?,
        };
        Ok(HostRule { host, port })
    }
}

/// Refuses URLs, users and paths, with the rule that was probably meant.
fn refuse_url(text: &str) -> Result<(), HostRuleError> {
    let authority = |rest: &str| {
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        authority.rsplit('@').next().unwrap_or_default().to_owned()
    };
    if let Some((scheme, rest)) = text.split_once("://") {
        let mut instead = authority(rest);
        let has_port =
            instead.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let known = match scheme.to_ascii_lowercase().as_str() {
            "https" | "wss" => Some(443),
            "http" | "ws" => Some(80),
            "ssh" => Some(22),
            _ => None,
        };
        if let (false, Some(known)) = (has_port, known) {
            instead = format!("{instead}:{known}");
        }
        return Err(HostRuleError::Url { text: text.to_owned(), instead });
    }
    if text.contains('@') {
        return Err(HostRuleError::User { text: text.to_owned(), instead: authority(text) });
    }
    let is_path = text
        .split_once('/')
        .is_some_and(|(host, _)| host.trim_start_matches('[').parse::<IpAddr>().is_err());
    if is_path {
        return Err(HostRuleError::Path { text: text.to_owned(), instead: authority(text) });
    }
    Ok(())
}

fn parse_port(text: &str, digits: &str) -> Result<u16, HostRuleError> {
    let wrong = || HostRuleError::Port { text: text.to_owned(), port: digits.to_owned() };
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|port| is_number && *port != 0).ok_or_else(wrong)
}

/// Parses `part` as an address with or without a prefix. Returns `None` if `part` has no address.
///
/// `text` is the whole rule, for errors.
fn parse_network(text: &str, part: &str) -> Result<Option<Host>, HostRuleError> {
    let (address, prefix) = match part.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (part, None),
    };
    let Ok(address) = address.parse::<IpAddr>() else { return Ok(None) };
    let most = address_bits(address);
    let Some(prefix) = prefix else { return Ok(Some(Host::address(address))) };
    if prefix.contains(':') {
        return Ok(None);
    }
    let wrong = || HostRuleError::Prefix { text: text.to_owned(), prefix: prefix.to_owned(), most };
    let is_number = prefix.bytes().all(|byte| byte.is_ascii_digit());
    let prefix: u8 =
        prefix.parse().ok().filter(|prefix| is_number && *prefix <= most).ok_or_else(wrong)?;
    let everything = || HostRuleError::Everything(text.to_owned());
    let first: IpAddr = match address {
        _ if prefix == 0 => return Err(everything()),
        IpAddr::V4(address) => {
            Ipv4Addr::from_bits(address.to_bits() & (u32::MAX << (32 - prefix))).into()
        }
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << (128 - prefix))).into()
        }
    };
    if first != address {
        return Err(HostRuleError::HostBits {
            text: text.to_owned(),
            instead: format!("{first}/{prefix}"),
        });
    }
    // A connection to an IPv4-mapped address is an IPv4 connection, so that `::ffff:0:0/96` is all
    // of IPv4. The prefix of a mapped address is at least 96 here: its bits 80 to 95 are set, and
    // a set bit after the prefix was refused above.
    let canonical = address.to_canonical();
    match prefix - (most - address_bits(canonical)) {
        0 => Err(everything()),
        prefix => Ok(Some(Host::Network { address: canonical, prefix })),
    }
}

/// Parses `part` as a name or a wildcard. `text` is the whole rule, for errors.
fn parse_name(text: &str, part: &str) -> Result<Host, HostRuleError> {
    if matches!(part, "*" | "*.") {
        return Err(HostRuleError::Everything(text.to_owned()));
    }
    let parent = part.strip_prefix("*.");
    let name = parent.unwrap_or(part);
    if name.contains('*') {
        return Err(HostRuleError::Star(text.to_owned()));
    }
    let name: HostName = name.parse().map_err(|error| match error {
        HostNameError::Number(_) => HostRuleError::Address(text.to_owned()),
        error => HostRuleError::Name(error),
    })?;
    if parent.is_none() {
        return Ok(Host::Name(name));
    }
    if is_open_to_all(&name) {
        return Err(HostRuleError::PublicSuffix {
            rule: text.to_owned(),
            suffix: name.to_string(),
        });
    }
    Ok(Host::Beneath(name))
}

/// Returns `true` if anybody can register a name beneath `name`.
///
/// The name must be a public suffix, or every name beneath it must be one. Suffixes of the list's
/// private section do not count, because each of them belongs to one company.
fn is_open_to_all(name: &HostName) -> bool {
    let is_open = |name: &str| {
        // By the rules of the public suffix list, an unknown top-level domain is a suffix too.
        suffix_section(name).is_some_and(|section| section != Some(psl::Type::Private))
    };
    // The list has entries such as `*.kawasaki.jp` without `kawasaki.jp`. An invented name beneath
    // `name` shows whether every name there is a suffix.
    is_open(name.as_str()) || is_open(&format!("any-name-at-all.{name}"))
}

crate::policy::text::serde_as_text!(
    HostRule,
    "a host such as `example.org`, `*.example.org:443`, `192.0.2.1`, `[2001:db8::1]:443` or \
     `10.0.0.0/8`"
);

#[cfg(test)]
mod tests;
