//! Events by which the proxy reports its decisions to its owner.

use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};

use crate::{DenialReason, HostName, Target};

/// Report of one decision, or of denials without a report of their own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EgressEvent {
    /// A request, connection or packet was denied.
    Denied(Denial),
    /// A connection was made.
    Allowed(AllowedConnection),
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
    pub reason: DenialReason,
    /// Kind of request that was denied.
    pub via: RequestKind,
    /// Smallest line of a policy that would allow the target, if such a line exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

/// Connection that was allowed and made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllowedConnection {
    /// Destination of the connection, as `host:port`.
    pub target: String,
    /// Kind of request that asked for the connection.
    pub via: RequestKind,
    /// Address of the destination. `None` with an upstream proxy, which does not tell the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// `true` if a rule allows the target. `false` if only `ProxyMode::Observe` let the connection
    /// through.
    pub listed: bool,
}

/// Kind of request by which a client asked for a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RequestKind {
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
    pub(crate) fn for_target(target: &Target, via: RequestKind, reason: DenialReason) -> Denial {
        let rule = match &reason {
            DenialReason::Unlisted => Some(target.rule()),
            // The suggested rule is for the address, because the name is allowed already or plays
            // no part.
            DenialReason::Internal { address, .. } => {
                Target::from_address(*address, target.port).ok().map(|target| target.rule())
            }
            _ => None,
        };
        let policy = rule.map(|rule| format!("allow = [\"{rule}\"]"));
        Denial { target: target.to_string(), reason, via, policy }
    }

    /// Creates the denial of a name that was asked for without a port.
    pub(crate) fn for_name(name: &HostName, via: RequestKind, reason: DenialReason) -> Denial {
        let policy = (reason == DenialReason::Unlisted).then(|| format!("allow = [\"{name}\"]"));
        Denial { target: name.to_string(), reason, via, policy }
    }

    /// Creates the denial of a packet that is not TCP.
    pub(crate) fn for_packet(protocol: &str, to: Ipv4Addr, port: Option<u16>) -> Denial {
        let target = port.map_or_else(|| to.to_string(), |port| format!("{to}:{port}"));
        let reason = DenialReason::Protocol { protocol: protocol.to_owned() };
        Denial { target, reason, via: RequestKind::Transparent, policy: None }
    }

    /// Creates the denial of input that cannot be parsed, or that can be parsed in more than one
    /// way.
    pub(crate) fn for_malformed(said: &str, via: RequestKind, fault: impl ToString) -> Denial {
        let reason = DenialReason::Malformed { fault: fault.to_string() };
        Denial { target: said.escape_debug().to_string(), reason, via, policy: None }
    }

    /// Returns the sentence that tells the client about the denial.
    pub(crate) fn message(&self) -> String {
        format!("the connection to `{}` was denied: {}", self.target, self.reason)
    }
}
