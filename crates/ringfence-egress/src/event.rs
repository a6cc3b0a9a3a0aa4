//! What the proxy tells its owner.

use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};

use crate::{HostName, Reason, Target};

/// One decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// Something was not let through.
    Denied(Denial),
    /// A connection was made.
    Allowed(Passage),
    /// More was not let through than there are events for.
    Omitted {
        /// Number of denials without an event.
        denials: u64,
    },
}

/// What was not let through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// Where it wanted to go, `host:port`, or `host` where there is no port; what the client wrote where that cannot be
    /// read.
    pub target: String,
    /// Why.
    pub reason: Reason,
    /// What was asked.
    pub via: Via,
    /// The smallest line of a policy that would allow it, where one would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

/// What was let through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passage {
    /// Where it went, `host:port`.
    pub target: String,
    /// What was asked.
    pub via: Via,
    /// The address that was connected to; an upstream proxy does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Whether a rule allows it; without one, only the observing mode let it through.
    pub listed: bool,
}

/// How something was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Via {
    /// A `CONNECT`.
    Connect,
    /// A plain request.
    Http,
    /// SOCKS5.
    Socks5,
    /// The first message of a TLS client.
    Tls,
    /// First bytes of a tunnel that are neither TLS nor HTTP.
    Tunnel,
    /// A query for a name.
    Dns,
    /// A connection of a program that knows no proxy.
    Transparent,
}

impl Denial {
    /// The refusal of a target that could be read.
    pub(crate) fn of(target: &Target, via: Via, reason: Reason) -> Denial {
        let rule = match &reason {
            Reason::Unlisted => Some(target.rule()),
            // The name is allowed already, or never mattered: what is missing is the address.
            Reason::Internal { address, .. } => {
                Target::from_address(*address, target.port).ok().map(|target| target.rule())
            }
            _ => None,
        };
        let policy = rule.map(|rule| format!("allow = [\"{rule}\"]"));
        Denial { target: target.to_string(), reason, via, policy }
    }

    /// The refusal of a name that was asked for without a port.
    pub(crate) fn of_name(name: &HostName, via: Via, reason: Reason) -> Denial {
        let policy = (reason == Reason::Unlisted).then(|| format!("allow = [\"{name}\"]"));
        Denial { target: name.to_string(), reason, via, policy }
    }

    /// The refusal of a packet that is none of TCP's.
    pub(crate) fn of_protocol(protocol: &str, to: Ipv4Addr, port: Option<u16>) -> Denial {
        let target = port.map_or_else(|| to.to_string(), |port| format!("{to}:{port}"));
        let reason = Reason::Protocol { protocol: protocol.to_owned() };
        Denial { target, reason, via: Via::Transparent, policy: None }
    }

    /// The refusal of something that cannot be read, or not in one way only.
    pub(crate) fn malformed(said: &str, via: Via, fault: impl ToString) -> Denial {
        let reason = Reason::Malformed { fault: fault.to_string() };
        Denial { target: said.escape_debug().to_string(), reason, via, policy: None }
    }

    /// The sentence for whoever asked.
    pub(crate) fn message(&self) -> String {
        format!("`{}` was not let through: {}", self.target, self.reason)
    }
}
