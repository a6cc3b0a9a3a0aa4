//! Hosts that may be reached.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::policy::{HostName, HostNameError};

/// One entry of a list of hosts: `example.org`, `*.example.org:443`, `192.0.2.1`, `[2001:db8::1]:443`, `10.0.0.0/8`.
///
/// A wildcard under a suffix where anybody can register a name, such as `*.com` or `*.co.uk`, is no rule: nobody answers
/// for what lies there. The public suffix list's private section is another matter. Beneath `*.github.io` or
/// `*.s3.amazonaws.com` lie many tenants, but of one company that whoever writes the rule has named, and downloads come
/// from names there that nobody can list. Such a wildcard is a rule, and lets data out to every tenant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostRule {
    /// Who.
    pub host: Host,
    /// On which port; on those of the web, 80 and 443, when absent.
    pub port: Option<u16>,
}

/// Whom a rule names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// This name.
    Name(HostName),
    /// Every name beneath this one, not the name itself.
    Beneath(HostName),
    /// Every address that shares the first `prefix` bits.
    Network {
        /// The first address.
        address: IpAddr,
        /// How many bits count.
        prefix: u8,
    },
}

impl Host {
    /// The host at this address alone.
    pub fn address(address: IpAddr) -> Host {
        let address = address.to_canonical();
        Host::Network { address, prefix: width(address) }
    }
}

impl HostRule {
    /// The ports of a rule that names none.
    pub const WEB: [u16; 2] = [80, 443];

    /// The ports that the rule names.
    pub fn ports(&self) -> &[u16] {
        self.port.as_ref().map_or(&Self::WEB, std::slice::from_ref)
    }

    /// Whether the rule names `name` on `port`.
    pub fn names(&self, name: &HostName, port: u16) -> bool {
        self.ports().contains(&port)
            && match &self.host {
                Host::Name(own) => own == name,
                Host::Beneath(parent) => name.is_beneath(parent),
                Host::Network { .. } => false,
            }
    }

    /// Whether the rule names `address` on `port`, by address.
    pub fn names_address(&self, address: IpAddr, port: u16) -> bool {
        self.ports().contains(&port)
            && matches!(self.host, Host::Network { address: own, prefix } if contains(own, prefix, address))
    }

    /// Whether everything that `other` names is named by this rule too.
    pub fn covers(&self, other: &HostRule) -> bool {
        other.ports().iter().all(|port| self.ports().contains(port))
            && match (&self.host, &other.host) {
                (Host::Beneath(parent), Host::Name(name)) => name.is_beneath(parent),
                (Host::Beneath(parent), Host::Beneath(name)) => name == parent || name.is_beneath(parent),
                (Host::Network { address, prefix }, Host::Network { address: inner, prefix: longer }) => {
                    longer >= prefix && contains(*address, *prefix, *inner)
                }
                (own, other) => own == other,
            }
    }

    /// Whether some host, on some port, is named by both rules.
    pub fn overlaps(&self, other: &HostRule) -> bool {
        self.ports().iter().filter(|port| other.ports().contains(port)).any(|port| {
            let [own, other] = [self, other].map(|rule| HostRule { host: rule.host.clone(), port: Some(*port) });
            own.covers(&other) || other.covers(&own)
        })
    }

    /// Whether everything that this rule names is named by `rules` together.
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
            (network.to_bits() ^ address.to_bits()).checked_shr(32 - u32::from(prefix)).unwrap_or(0) == 0
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            (network.to_bits() ^ address.to_bits()).checked_shr(128 - u32::from(prefix)).unwrap_or(0) == 0
        }
        _ => false,
    }
}

const fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl fmt::Display for HostRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = match &self.host {
            Host::Name(name) => name.to_string(),
            Host::Beneath(parent) => format!("*.{parent}"),
            Host::Network { address, prefix } if *prefix == width(*address) => address.to_string(),
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

/// Why a text is no rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostRuleError {
    /// There is no text.
    #[error("a host cannot be empty: write for example `example.org` or `*.example.org:443`")]
    Empty,
    /// It is a URL.
    #[error("`{text}` is a URL: write only the host, `{instead}`")]
    Url {
        /// The whole text.
        text: String,
        /// The rule that allows what the URL needs.
        instead: String,
    },
    /// It names a user.
    #[error("`{text}` names a user: write only the host, `{instead}`")]
    User {
        /// The whole text.
        text: String,
        /// The rule without the user.
        instead: String,
    },
    /// It names a path.
    #[error("`{text}` names a path: hosts are allowed as a whole, write `{instead}`")]
    Path {
        /// The whole text.
        text: String,
        /// The rule without the path.
        instead: String,
    },
    /// It would allow every host there is.
    #[error("`{0}` would allow every host: say that with the network's mode, `open`")]
    Everything(String),
    /// It would name whatever anybody registers.
    #[error(
        "`{rule}` names all that is registered under `{suffix}`, by anybody: write more labels, such as `*.example.{suffix}`"
    )]
    PublicSuffix {
        /// The whole text.
        rule: String,
        /// The suffix.
        suffix: String,
    },
    /// A star stands elsewhere than in front.
    #[error("`{0}` has a `*` that is not its first label: write `*.example.org`")]
    Star(String),
    /// The name is none.
    #[error(transparent)]
    Name(HostNameError),
    /// The port is no port.
    #[error("`{text}` has port `{port}`: a port is a number from 1 to 65535")]
    Port {
        /// The whole text.
        text: String,
        /// What stands after the colon.
        port: String,
    },
    /// It looks like an address and is none.
    #[error("`{0}` is no IP address: write all of its parts, such as `192.0.2.1` or `2001:db8::1`")]
    Address(String),
    /// The number after the slash is no prefix length.
    #[error("`{text}` has prefix `{prefix}`: it is a number from 1 to {most}")]
    Prefix {
        /// The whole text.
        text: String,
        /// What stands after the slash.
        prefix: String,
        /// How many bits the address has.
        most: u8,
    },
    /// Bits after the prefix are set.
    #[error("`{text}` is not the first address of its network: write `{instead}`")]
    HostBits {
        /// The whole text.
        text: String,
        /// The network.
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
            let (address, rest) = inner.split_once(']').ok_or_else(|| HostRuleError::Address(text.to_owned()))?;
            let port = match rest {
                "" => None,
                rest => Some(port(text, rest.strip_prefix(':').unwrap_or(rest))?),
            };
            let host = network(text, address)?.ok_or_else(|| HostRuleError::Address(text.to_owned()))?;
            return Ok(HostRule { host, port });
        }
        if let Some(host) = network(text, text)? {
            return Ok(HostRule { host, port: None });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, digits)) => (host, Some(port(text, digits)?)),
            None => (text, None),
        };
        let host = match network(text, host)? {
            Some(host) => host,
            None => name(text, host)?,
        };
        Ok(HostRule { host, port })
    }
}

/// Refuses URLs, users and paths with the rule that was probably meant.
fn refuse_url(text: &str) -> Result<(), HostRuleError> {
    let authority = |rest: &str| {
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        authority.rsplit('@').next().unwrap_or_default().to_owned()
    };
    if let Some((scheme, rest)) = text.split_once("://") {
        let mut instead = authority(rest);
        let has_port = instead.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
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
    let is_path = text.split_once('/').is_some_and(|(host, _)| host.trim_start_matches('[').parse::<IpAddr>().is_err());
    if is_path {
        return Err(HostRuleError::Path { text: text.to_owned(), instead: authority(text) });
    }
    Ok(())
}

fn port(text: &str, digits: &str) -> Result<u16, HostRuleError> {
    let wrong = || HostRuleError::Port { text: text.to_owned(), port: digits.to_owned() };
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|port| is_number && *port != 0).ok_or_else(wrong)
}

/// The network that `part` of `text` writes, if it is an address with or without a prefix.
fn network(text: &str, part: &str) -> Result<Option<Host>, HostRuleError> {
    let (address, prefix) = match part.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (part, None),
    };
    let Ok(address) = address.parse::<IpAddr>() else { return Ok(None) };
    let most = width(address);
    let Some(prefix) = prefix else { return Ok(Some(Host::address(address))) };
    if prefix.contains(':') {
        return Ok(None);
    }
    let wrong = || HostRuleError::Prefix { text: text.to_owned(), prefix: prefix.to_owned(), most };
    let is_number = prefix.bytes().all(|byte| byte.is_ascii_digit());
    let prefix: u8 = prefix.parse().ok().filter(|prefix| is_number && *prefix <= most).ok_or_else(wrong)?;
    let everything = || HostRuleError::Everything(text.to_owned());
    let first: IpAddr = match address {
        _ if prefix == 0 => return Err(everything()),
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() & (u32::MAX << (32 - prefix))).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << (128 - prefix))).into(),
    };
    if first != address {
        return Err(HostRuleError::HostBits { text: text.to_owned(), instead: format!("{first}/{prefix}") });
    }
    // `::ffff:0:0/96` is all of IPv4, and what lies in it is IPv4 to whoever connects.
    let canonical = address.to_canonical();
    match prefix - (most - width(canonical)) {
        0 => Err(everything()),
        prefix => Ok(Some(Host::Network { address: canonical, prefix })),
    }
}

/// The name that `part` of `text` writes.
fn name(text: &str, part: &str) -> Result<Host, HostRuleError> {
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
        return Err(HostRuleError::PublicSuffix { rule: text.to_owned(), suffix: name.to_string() });
    }
    Ok(Host::Beneath(name))
}

/// Whether anybody can register a name beneath this one: it is a public suffix, or all beneath it are, and no company's.
fn is_open_to_all(name: &HostName) -> bool {
    let is_open = |name: &str| {
        // A top-level domain that the list does not know is a suffix all the same, by the list's own rules.
        psl::suffix(name.as_bytes()).is_some_and(|suffix| suffix == name && suffix.typ() != Some(psl::Type::Private))
    };
    // The list has `*.kawasaki.jp` and not `kawasaki.jp`: whether any name beneath is a suffix, this one shows.
    is_open(name.as_str()) || is_open(&format!("any-name-at-all.{name}"))
}

crate::policy::text::serde_as_text!(
    HostRule,
    "a host such as `example.org`, `*.example.org:443`, `192.0.2.1`, `[2001:db8::1]:443` or `10.0.0.0/8`"
);

#[cfg(test)]
mod tests;
