//! Decision about targets by the allow list and the deny list of a policy.

use std::net::IpAddr;

use ringfence_core::policy::{HostName, HostRule};
use serde::{Deserialize, Serialize};

use crate::address::{AddressClass, carried_ipv4_addresses, classify};
use crate::target::{Target, TargetHost};

mod index;

use index::RuleIndex;

/// Allow list and deny list of a policy, indexed so that many rules are checked as fast as few.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    allow: RuleIndex,
    deny: RuleIndex,
}

/// Decision of the rules about a target.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// The rules allow the target.
    Allowed,
    /// The rules deny the target.
    Denied(DenialReason),
}

/// Reason for which a target is denied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "code", rename_all = "snake_case")]
#[non_exhaustive]
pub enum DenialReason {
    /// No rule allows the target. Only this reason has no effect while a policy is observed.
    #[error("no rule of the policy allows this target")]
    Unlisted,
    /// A rule denies the target.
    #[error("the policy denies `{rule}`")]
    Listed {
        /// Rule that denies the target.
        rule: HostRule,
    },
    /// The address is not public, and no rule allows it by address.
    #[error("{address} is not public ({class}), and no rule allows this address itself")]
    Internal {
        /// Address that the connection would go to.
        address: IpAddr,
        /// Class of the address.
        class: AddressClass,
    },
    /// The data inside the connection is addressed to another host.
    #[error("the data in the connection is addressed to another host, `{name}`")]
    OtherName {
        /// Name of the other host.
        name: String,
    },
    /// The hello of a TLS client names no server (SNI).
    #[error("the hello of the TLS client names no server (SNI)")]
    Unnamed,
    /// The protocol is not TCP.
    #[error("the sandbox can use only TCP, not {protocol}")]
    Protocol {
        /// Name of the protocol.
        protocol: String,
    },
    /// A credential belongs to the host, and the client would connect to the host without
    /// encryption.
    #[error(
        "the proxy adds a credential for this target, and never sends it without encryption: use \
         https"
    )]
    Unencrypted,
    /// The input cannot be read, or can be read in more than one way.
    #[error("{fault}")]
    Malformed {
        /// Description of the fault.
        fault: String,
    },
}

impl DenialReason {
    /// Returns the stable name of the reason, for programs.
    pub const fn code(&self) -> &'static str {
        match self {
            DenialReason::Unlisted => "unlisted",
            DenialReason::Listed { .. } => "listed",
            DenialReason::Internal { .. } => "internal",
            DenialReason::OtherName { .. } => "other_name",
            DenialReason::Unnamed => "unnamed",
            DenialReason::Protocol { .. } => "protocol",
            DenialReason::Unencrypted => "unencrypted",
            DenialReason::Malformed { .. } => "malformed",
        }
    }
}

impl Rules {
    /// Returns the rules of a policy, which allow the targets that `allow` names and `deny` does
    /// not.
    pub fn new(allow: &[HostRule], deny: &[HostRule]) -> Rules {
        Rules { allow: RuleIndex::new(allow), deny: RuleIndex::new(deny) }
    }

    /// Judges a target in the form in which the client named it: a host name before its lookup, or
    /// an address that the client gave.
    pub fn judge(&self, target: &Target) -> Verdict {
        match &target.host {
            TargetHost::Name(name) => self.judge_name(name, target.port),
            TargetHost::Address(address) => match self.judge_address(target, *address) {
                Verdict::Allowed
                    if !self.allow.covers_address(address.to_canonical(), target.port) =>
                {
                    Verdict::Denied(DenialReason::Unlisted)
                }
                verdict => verdict,
            },
        }
    }

    /// Judges the address that a connection to the target would go to. The target's name is not
    /// judged.
    pub fn judge_address(&self, target: &Target, address: IpAddr) -> Verdict {
        let (address, port) = (address.to_canonical(), target.port);
        if let Some(rule) = self.denied(address, port) {
            return Verdict::Denied(DenialReason::Listed { rule });
        }
        match classify(address) {
            AddressClass::Public => Verdict::Allowed,
            _ if self.allow.covers_address(address, port) => Verdict::Allowed,
            class => Verdict::Denied(DenialReason::Internal { address, class }),
        }
    }

    /// Returns whether a rule denies a name on `port`.
    pub(crate) fn denies_names(&self, port: u16) -> bool {
        self.deny.covers_any_name(port)
    }

    /// Judges the lookup of a name, which states no port. The lookup is allowed if the name is
    /// allowed on any port.
    pub fn judge_lookup(&self, name: &HostName) -> Verdict {
        let mut verdict = Verdict::Denied(DenialReason::Unlisted);
        for port in self.allow.name_ports(name) {
            verdict = self.judge_name(name, port);
            if verdict == Verdict::Allowed {
                break;
            }
        }
        verdict
    }

    fn judge_name(&self, name: &HostName, port: u16) -> Verdict {
        match self.deny.find_name_rule(name, port) {
            Some(rule) => Verdict::Denied(DenialReason::Listed { rule }),
            None if self.allow.covers_name(name, port) => Verdict::Allowed,
            None => Verdict::Denied(DenialReason::Unlisted),
        }
    }

    /// Returns the rule that denies an address, or that denies an IPv4 address to which packets for
    /// an IPv6 address may be delivered.
    fn denied(&self, address: IpAddr, port: u16) -> Option<HostRule> {
        let own = self.deny.find_address_rule(address, port);
        let IpAddr::V6(address) = address else { return own };
        own.or_else(|| {
            carried_ipv4_addresses(address)
                .find_map(|carried| self.deny.find_address_rule(carried.into(), port))
        })
    }
}

#[cfg(test)]
mod tests;
