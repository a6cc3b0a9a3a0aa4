//! Hosts that may be reached.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// One entry of an allowlist: `example.org`, `*.example.org:443`, `192.0.2.1`, `[2001:db8::1]:443`, `10.0.0.0/8`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostRule {
    /// Who.
    pub host: Host,
    /// On which port; on every one when absent.
    pub port: Option<u16>,
}

/// Whom a rule names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// This name.
    Name(String),
    /// Every name beneath this one, not the name itself.
    Beneath(String),
    /// Every address that shares the first `prefix` bits.
    Network {
        /// The first address.
        address: IpAddr,
        /// How many bits count.
        prefix: u8,
    },
}

impl HostRule {
    /// Whether the rule names `name` on `port`; the name's case and one trailing dot do not matter.
    pub fn allows_name(&self, name: &str, port: u16) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        self.allows_port(Some(port))
            && match &self.host {
                Host::Name(own) => *own == name,
                Host::Beneath(parent) => is_beneath(&name, parent),
                Host::Network { .. } => false,
            }
    }

    /// Whether the rule names `address` on `port`, by address.
    pub fn allows_address(&self, address: IpAddr, port: u16) -> bool {
        self.allows_port(Some(port))
            && matches!(self.host, Host::Network { address: own, prefix } if contains(own, prefix, address))
    }

    /// Whether everything that `other` allows is allowed by this rule too.
    pub fn covers(&self, other: &HostRule) -> bool {
        self.allows_port(other.port)
            && match (&self.host, &other.host) {
                (Host::Beneath(parent), Host::Name(name)) => is_beneath(name, parent),
                (Host::Beneath(parent), Host::Beneath(name)) => name == parent || is_beneath(name, parent),
                (Host::Network { address, prefix }, Host::Network { address: inner, prefix: longer }) => {
                    longer >= prefix && contains(*address, *prefix, *inner)
                }
                (own, other) => own == other,
            }
    }

    fn allows_port(&self, port: Option<u16>) -> bool {
        self.port.is_none() || self.port == port
    }
}

fn is_beneath(name: &str, parent: &str) -> bool {
    name.strip_suffix(parent).is_some_and(|front| front.len() > 1 && front.ends_with('.'))
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
            Host::Name(name) => name.clone(),
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
    /// It would allow a whole top-level domain.
    #[error("`{0}` would allow a whole top-level domain: name at least two labels, such as `*.example.org`")]
    TopLevel(String),
    /// A star stands elsewhere than in front.
    #[error("`{0}` has a `*` that is not its first label: write `*.example.org`")]
    Star(String),
    /// Two dots in a row, or one in front.
    #[error("`{0}` has an empty label: write names with single dots between labels")]
    EmptyLabel(String),
    /// A label or the name is too long.
    #[error("`{0}` is too long: a label has at most 63 characters, a name at most 253")]
    TooLong(String),
    /// A character that no host name has.
    #[error("`{text}` has `{character}`, which no host name has; a name in another script is written as `xn--…`")]
    Character {
        /// The whole text.
        text: String,
        /// Which.
        character: char,
    },
    /// A hyphen at the edge of a label.
    #[error("`{0}` has a label that starts or ends with `-`")]
    Hyphen(String),
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
    let Some(prefix) = prefix else { return Ok(Some(Host::Network { address, prefix: most })) };
    if prefix.contains(':') {
        return Ok(None);
    }
    let wrong = || HostRuleError::Prefix { text: text.to_owned(), prefix: prefix.to_owned(), most };
    let is_number = prefix.bytes().all(|byte| byte.is_ascii_digit());
    let prefix: u8 = prefix.parse().ok().filter(|prefix| is_number && *prefix <= most).ok_or_else(wrong)?;
    if prefix == 0 {
        return Err(HostRuleError::Everything(text.to_owned()));
    }
    let first: IpAddr = match address {
        IpAddr::V4(address) => std::net::Ipv4Addr::from_bits(address.to_bits() & (u32::MAX << (32 - prefix))).into(),
        IpAddr::V6(address) => std::net::Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << (128 - prefix))).into(),
    };
    if first != address {
        return Err(HostRuleError::HostBits { text: text.to_owned(), instead: format!("{first}/{prefix}") });
    }
    Ok(Some(Host::Network { address, prefix }))
}

/// The name that `part` of `text` writes.
fn name(text: &str, part: &str) -> Result<Host, HostRuleError> {
    let name = part.strip_suffix('.').unwrap_or(part).to_ascii_lowercase();
    if name == "*" {
        return Err(HostRuleError::Everything(text.to_owned()));
    }
    let (name, is_wildcard) = match name.strip_prefix("*.") {
        Some(parent) => (parent.to_owned(), true),
        None => (name, false),
    };
    if name.contains('*') {
        return Err(HostRuleError::Star(text.to_owned()));
    }
    for label in name.split('.') {
        if label.is_empty() {
            return Err(HostRuleError::EmptyLabel(text.to_owned()));
        }
        if let Some(character) = label.chars().find(|character| !is_host_character(*character)) {
            return Err(HostRuleError::Character { text: text.to_owned(), character });
        }
        if label.starts_with('-') || label.ends_with('-') {
            return Err(HostRuleError::Hyphen(text.to_owned()));
        }
        if label.len() > 63 || name.len() > 253 {
            return Err(HostRuleError::TooLong(text.to_owned()));
        }
    }
    if is_wildcard && !name.contains('.') {
        return Err(HostRuleError::TopLevel(text.to_owned()));
    }
    // A resolver reads `10.1` and `0x7f.1` as addresses, so no name may end in a number.
    let last = name.rsplit('.').next().unwrap_or_default();
    if last.starts_with("0x") || last.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(HostRuleError::Address(text.to_owned()));
    }
    Ok(if is_wildcard { Host::Beneath(name) } else { Host::Name(name) })
}

/// Letters, digits and hyphens, and the underscore that real names have.
fn is_host_character(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '-' | '_')
}

crate::policy::text::serde_as_text!(
    HostRule,
    "a host such as `example.org`, `*.example.org:443`, `192.0.2.1`, `[2001:db8::1]:443` or `10.0.0.0/8`"
);

#[cfg(test)]
mod tests;
