//! Which targets the lists of a policy let through.

use std::net::IpAddr;

use ringfence_core::policy::{HostName, HostRule};
use serde::{Deserialize, Serialize};

use crate::address::{AddressClass, carried, classify};
use crate::target::{Target, TargetHost};

mod index;

use index::Index;

/// The two lists of a policy, ready to judge: as fast with many rules as with few.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    allow: Index,
    deny: Index,
}

/// What the rules say of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// It may be reached.
    Allowed,
    /// It may not.
    Denied(Reason),
}

/// Why a target may not be reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "code", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// No rule allows it. Of all reasons, the only one that does not hold while a policy is observed.
    #[error("no rule of the policy allows it")]
    Unlisted,
    /// A rule denies it.
    #[error("the policy denies `{rule}`")]
    Listed {
        /// Which.
        rule: HostRule,
    },
    /// It is no address of the outside world, and no rule names it by address.
    #[error("{address} is not public ({class}), and no rule allows it by address")]
    Internal {
        /// Where the connection would go.
        address: IpAddr,
        /// What that is.
        class: AddressClass,
    },
    /// What is said inside the connection is for somebody else.
    #[error("what is said inside it is for `{name}`")]
    OtherName {
        /// For whom.
        name: String,
    },
    /// TLS that does not say whom it is for.
    #[error("the TLS client does not say which name it wants (SNI)")]
    Unnamed,
    /// It is none of TCP's.
    #[error("only TCP is let through, not {protocol}")]
    Protocol {
        /// What it is instead.
        protocol: String,
    },
    /// A secret is for the host, and the client would speak to it in the clear.
    #[error("a credential is for it, which is never sent in the clear: use https")]
    Unencrypted,
    /// It cannot be read, or not in one way only.
    #[error("{fault}")]
    Malformed {
        /// What is wrong with it.
        fault: String,
    },
}

impl Reason {
    /// The stable name, for programs.
    pub const fn code(&self) -> &'static str {
        match self {
            Reason::Unlisted => "unlisted",
            Reason::Listed { .. } => "listed",
            Reason::Internal { .. } => "internal",
            Reason::OtherName { .. } => "other_name",
            Reason::Unnamed => "unnamed",
            Reason::Protocol { .. } => "protocol",
            Reason::Unencrypted => "unencrypted",
            Reason::Malformed { .. } => "malformed",
        }
    }
}

impl Rules {
    /// The rules of a policy: what `allow` names and `deny` does not.
    pub fn new(allow: &[HostRule], deny: &[HostRule]) -> Rules {
        Rules { allow: Index::new(allow), deny: Index::new(deny) }
    }

    /// Judges a target by what it is called: a name before it is resolved, or an address that was given as one.
    pub fn judge(&self, target: &Target) -> Verdict {
        match &target.host {
            TargetHost::Name(name) => self.judge_name(name, target.port),
            TargetHost::Address(address) => match self.judge_address(target, *address) {
                Verdict::Allowed if !self.allow.has_network(address.to_canonical(), target.port) => {
                    Verdict::Denied(Reason::Unlisted)
                }
                verdict => verdict,
            },
        }
    }

    /// Judges the address that a connection to the target would go to, and says nothing of the target's name.
    pub fn judge_address(&self, target: &Target, address: IpAddr) -> Verdict {
        let (address, port) = (address.to_canonical(), target.port);
        if let Some(rule) = self.denied(address, port) {
            return Verdict::Denied(Reason::Listed { rule });
        }
        match classify(address) {
            AddressClass::Public => Verdict::Allowed,
            _ if self.allow.has_network(address, port) => Verdict::Allowed,
            class => Verdict::Denied(Reason::Internal { address, class }),
        }
    }

    /// Tells whether a rule denies a name on `port`.
    pub(crate) fn denies_names(&self, port: u16) -> bool {
        self.deny.has_names(port)
    }

    /// Judges a name that is asked for without saying on which port: allowed if it is on any.
    pub fn judge_lookup(&self, name: &HostName) -> Verdict {
        let mut verdict = Verdict::Denied(Reason::Unlisted);
        for port in self.allow.ports(name) {
            verdict = self.judge_name(name, port);
            if verdict == Verdict::Allowed {
                break;
            }
        }
        verdict
    }

    fn judge_name(&self, name: &HostName, port: u16) -> Verdict {
        match self.deny.name(name, port) {
            Some(rule) => Verdict::Denied(Reason::Listed { rule }),
            None if self.allow.has_name(name, port) => Verdict::Allowed,
            None => Verdict::Denied(Reason::Unlisted),
        }
    }

    /// The rule that denies an address, or one that packets to it may end up at.
    fn denied(&self, address: IpAddr, port: u16) -> Option<HostRule> {
        let own = self.deny.network(address, port);
        let IpAddr::V6(address) = address else { return own };
        own.or_else(|| carried(address).find_map(|carried| self.deny.network(carried.into(), port)))
    }
}

#[cfg(test)]
mod tests;
