//! Events by which the proxy reports its decisions to its owner.

use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};

use crate::{HostName, Reason, Target};

/// Report of one decision, or of denials without a report of their own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// A request, connection or packet was denied.
    Denied(Denial),
    /// A connection was made.
    Allowed(Passage),
    /// More denials happened than the proxy reports one by one.
    Omitted {
        /// Number of denials without an event of their own.
        denials: u64,
    },
}

/// Request, connection or packet that was denied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// Destination as `host:port`, or as `host` if there is no port. If the destination cannot be
    /// parsed, the escaped text that the client wrote.
    pub target: String,
    /// Reason for the denial.
    pub reason: Reason,
    /// Kind of request that was denied.
    pub via: Via,
    /// Smallest line of a policy that would allow the target, if such a line exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

/// Connection that was allowed and made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passage {
    /// Destination of the connection, as `host:port`.
    pub target: String,
    /// Kind of request that asked for the connection.
    pub via: Via,
    /// Address of the destination. `None` with an upstream proxy, which does not tell the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// `true` if a rule allows the target. `false` if only `Mode::Observe` let the connection
    /// through.
    pub listed: bool,
}

/// Kind of request by which a client asked for a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Via {
    /// HTTP request with the method `CONNECT`.
    Connect,
    /// Plain HTTP request.
    Http,
    /// Request by SOCKS5.
    Socks5,
    /// First message of a TLS client.
    Tls,
    /// First bytes of a tunnel that are neither TLS nor HTTP.
    Tunnel,
    /// DNS query for a name.
    Dns,
    /// Connection or packet of a program that does not use the proxy's protocols.
    Transparent,
}

impl Denial {
    /// Creates the denial of a target that could be parsed.
    pub(crate) fn of(target: &Target, via: Via, reason: Reason) -> Denial {
        let rule = match &reason {
            Reason::Unlisted => Some(target.rule()),
            // The suggested rule is for the address, because the name is allowed already or plays
            // no part.
            Reason::Internal { address, .. } => {
                Target::from_address(*address, target.port).ok().map(|target| target.rule())
            }
            _ => None,
        };
        let policy = rule.map(|rule| format!("allow = [\"{rule}\"]"));
        Denial { target: target.to_string(), reason, via, policy }
    }

    /// Creates the denial of a name that was asked for without a port.
    pub(crate) fn of_name(name: &HostName, via: Via, reason: Reason) -> Denial {
        let policy = (reason == Reason::Unlisted).then(|| format!("allow = [\"{name}\"]"));
        Denial { target: name.to_string(), reason, via, policy }
    }

    /// Creates the denial of a packet that is not TCP.
    pub(crate) fn of_protocol(protocol: &str, to: Ipv4Addr, port: Option<u16>) -> Denial {
        let target = port.map_or_else(|| to.to_string(), |port| format!("{to}:{port}"));
        let reason = Reason::Protocol { protocol: protocol.to_owned() };
        Denial { target, reason, via: Via::Transparent, policy: None }
    }

    /// Creates the denial of input that cannot be parsed, or that can be parsed in more than one
    /// way.
    pub(crate) fn malformed(said: &str, via: Via, fault: impl ToString) -> Denial {
        let reason = Reason::Malformed { fault: fault.to_string() };
        Denial { target: said.escape_debug().to_string(), reason, via, policy: None }
    }

    /// Returns the sentence that tells the client about the denial.
    pub(crate) fn message(&self) -> String {
        format!("`{}` was not let through: {}", self.target, self.reason)
    }
}
