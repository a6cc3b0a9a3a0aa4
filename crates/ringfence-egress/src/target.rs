//! Target of a client. One parser reads it, for the check and for the connection.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ringfence_core::policy::{Host, HostName, HostNameError, HostRule};
use serde::{Serialize, Serializer};

/// Host and port, in the form in which the proxy judges them and connects to them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    /// Host that the client wants to reach.
    pub host: TargetHost,
    /// Port on the host.
    pub port: u16,
}

/// Host that a client wants to reach.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TargetHost {
    /// Name that is not resolved yet.
    Name(HostName),
    /// IP address. An IPv4 address that was written as IPv6 is stored as IPv4.
    Address(IpAddr),
}

/// Reason for which a text is not a target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The text has no host.
    #[error("the host is missing")]
    Empty,
    /// The text names a user.
    #[error("`{}` contains a user name, which is not part of a host", .0.escape_debug())]
    User(String),
    /// The text has more than one colon outside brackets.
    #[error("`{}` has more than one colon: write an IPv6 address in brackets", .0.escape_debug())]
    Colons(String),
    /// The port is not a number from 1 to 65535.
    #[error(
        "`{}` has port `{}`: a port is a number from 1 to 65535",
        .text.escape_debug(),
        .port.escape_debug()
    )]
    Port {
        /// Whole text that was read.
        text: String,
        /// Text in the place of the port.
        port: String,
    },
    /// The text has no port, and the caller gave no default.
    #[error("`{}` has no port", .0.escape_debug())]
    NoPort(String),
    /// The address names an interface of one machine.
    #[error(
        "`{}` names a network interface, which has no meaning on another machine",
        .0.escape_debug()
    )]
    Zone(String),
    /// The text looks like an IP address, and no resolver reads it as one.
    #[error("`{}` is not an IP address", .0.escape_debug())]
    Address(String),
    /// The host name is not valid.
    #[error(transparent)]
    Name(HostNameError),
}

impl Target {
    /// Reads the authority of a URI, of a `CONNECT`, or of a `Host` header. The text must have a
    /// port unless `default_port` is given.
    pub fn from_authority(text: &str, default_port: Option<u16>) -> Result<Target, TargetError> {
        // Text before the last `@` is a user, even if that text looks like a host.
        if text.contains('@') {
            return Err(TargetError::User(text.to_owned()));
        }
        let (host, port) = match text.strip_prefix('[') {
            Some(inner) => {
                let (address, rest) =
                    inner.split_once(']').ok_or_else(|| TargetError::Address(text.to_owned()))?;
                let port = match rest {
                    "" => None,
                    rest => Some(
                        rest.strip_prefix(':')
                            .ok_or_else(|| TargetError::Address(text.to_owned()))?,
                    ),
                };
                (TargetHost::Address(parse_ipv6(address)?), port)
            }
            None => {
                let (host, port) = match text.split_once(':') {
                    Some((_, port)) if port.contains(':') => {
                        return Err(TargetError::Colons(text.to_owned()));
                    }
                    Some((host, port)) => (host, Some(port)),
                    None => (text, None),
                };
                (parse_name_or_ipv4(host)?, port)
            }
        };
        let port = match port {
            Some(digits) => parse_port(text, digits)?,
            None => default_port.ok_or_else(|| TargetError::NoPort(text.to_owned()))?,
        };
        Target::new(host, port)
    }

    /// Reads a host that was given separately from its port, as in SOCKS and in TLS. An IPv6
    /// address has no brackets there.
    pub fn from_parts(host: &str, port: u16) -> Result<Target, TargetError> {
        let host = if host.contains(':') {
            TargetHost::Address(parse_ipv6(host)?)
        } else {
            parse_name_or_ipv4(host)?
        };
        Target::new(host, port)
    }

    /// Returns the target at an IP address.
    pub fn from_address(address: IpAddr, port: u16) -> Result<Target, TargetError> {
        Target::new(TargetHost::Address(address.to_canonical()), port)
    }

    fn new(host: TargetHost, port: u16) -> Result<Target, TargetError> {
        if port == 0 {
            return Err(TargetError::Port { text: format!("{host}:0"), port: "0".to_owned() });
        }
        Ok(Target { host, port })
    }

    /// Returns the narrowest rule that covers this target.
    pub fn rule(&self) -> HostRule {
        let host = match &self.host {
            TargetHost::Name(name) => Host::Name(name.clone()),
            TargetHost::Address(address) => Host::address(*address),
        };
        HostRule { host, port: Some(self.port) }
    }
}

fn parse_port(text: &str, digits: &str) -> Result<u16, TargetError> {
    let wrong = || TargetError::Port { text: text.to_owned(), port: digits.to_owned() };
    let is_number = digits.len() <= 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|port| is_number && *port != 0).ok_or_else(wrong)
}

fn parse_ipv6(text: &str) -> Result<IpAddr, TargetError> {
    if text.contains('%') {
        return Err(TargetError::Zone(text.to_owned()));
    }
    let address: Ipv6Addr = text.parse().map_err(|_| TargetError::Address(text.to_owned()))?;
    Ok(IpAddr::V6(address).to_canonical())
}

fn parse_name_or_ipv4(text: &str) -> Result<TargetHost, TargetError> {
    if text.is_empty() {
        return Err(TargetError::Empty);
    }
    match text.parse() {
        Ok(name) => Ok(TargetHost::Name(name)),
        Err(HostNameError::Number(folded)) => match parse_ipv4(&folded) {
            Some(address) => Ok(TargetHost::Address(address.into())),
            None => Err(TargetError::Address(text.to_owned())),
        },
        Err(error) => Err(TargetError::Name(error)),
    }
}

/// Reads an IPv4 address as `inet_aton` does, which every resolver calls before it asks a server.
/// The address has one to four numbers, each decimal, octal (`0…`) or hexadecimal (`0x…`). The last
/// number fills the bytes that the others leave.
fn parse_ipv4(text: &str) -> Option<Ipv4Addr> {
    let numbers: Vec<u32> = text.split('.').map(parse_number).collect::<Option<_>>()?;
    let (last, front) = numbers.split_last()?;
    if front.len() > 3 || front.iter().any(|number| *number > 255) {
        return None;
    }
    let left = 32 - 8 * u32::try_from(front.len()).ok()?;
    if u64::from(*last) >> left != 0 {
        return None;
    }
    let high = front.iter().fold(0, |high: u32, number| (high << 8) | number);
    Some(Ipv4Addr::from_bits(high.checked_shl(left).unwrap_or(0) | last))
}

fn parse_number(text: &str) -> Option<u32> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None if text.len() > 1 && text.starts_with('0') => (&text[1..], 8),
        None => (text, 10),
    };
    // `from_str_radix` accepts a sign, and an address has none.
    let is_number = digits.chars().all(|digit| digit.is_digit(radix));
    u32::from_str_radix(digits, radix).ok().filter(|_| is_number)
}

impl fmt::Display for TargetHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TargetHost::Name(name) => name.fmt(f),
            TargetHost::Address(IpAddr::V4(address)) => address.fmt(f),
            TargetHost::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Serialize for Target {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests;
