//! The host's end of a sandbox's gate.
//!
//! The gate is made inside the sandbox, and its descriptors are sent to the host
//! (`ringfence_linux::gate`). The rules, and the proxy that enforces them, are in
//! `ringfence-egress`. Without the cargo feature `egress`, no backend can enforce a policy that
//! names hosts, so such a policy is refused, and `absent` stands in for the parts that serve a
//! gate.

#[cfg(not(feature = "egress"))]
mod absent;
#[cfg(feature = "egress")]
mod change;
mod changed_rules;
#[cfg(feature = "egress")]
mod follow;
#[cfg(feature = "egress")]
mod gate_holder;
#[cfg(feature = "egress")]
mod loaded_credentials;
#[cfg(feature = "egress")]
mod log;
#[cfg(feature = "egress")]
mod remote;
#[cfg(feature = "egress")]
mod secret;
#[cfg(feature = "egress")]
mod suggest;
#[cfg(feature = "egress")]
mod variables;

use std::os::fd::OwnedFd;

use ringfence_core::Support;
use ringfence_core::policy::{Network, Policy};
use ringfence_linux::control;
use ringfence_linux::gate::GateKind;

use crate::backends::PrepareError;

#[cfg(not(feature = "egress"))]
pub(crate) use absent::{
    AbsentCredentials as LoadedCredentials, AbsentGateHolder as GateHolder,
    AbsentGateSource as GateSource, denials_since, hand_over, last_number, log_in, variables,
};
#[cfg(feature = "egress")]
pub use change::ChangeError;
pub(crate) use changed_rules::changed;
#[cfg(feature = "egress")]
pub use follow::EgressLogFollower;
#[cfg(any(feature = "containers", feature = "kubernetes"))]
pub(crate) use gate_holder::ContainerEgress;
#[cfg(feature = "egress")]
pub(crate) use gate_holder::{GateHolder, GateSource};
#[cfg(feature = "egress")]
pub(crate) use loaded_credentials::LoadedCredentials;
#[cfg(feature = "egress")]
pub(crate) use log::{EgressLog, denials_since, hand_over, last_number, log_in};
#[cfg(feature = "egress")]
pub use log::{LogEntry, RecordedEvents, recorded};
#[cfg(feature = "egress")]
pub(crate) use remote::RemoteProxy;
#[cfg(feature = "egress")]
pub use remote::serve;
#[cfg(feature = "egress")]
pub use ringfence_egress::{AllowedConnection, DenialReason, EgressEvent, RequestKind};
#[cfg(feature = "egress")]
pub use secret::{SecretError, SecretFault};
#[cfg(feature = "egress")]
pub use suggest::suggest;
#[cfg(any(feature = "containers", feature = "kubernetes"))]
pub(crate) use variables::remote_variables;
#[cfg(feature = "egress")]
pub(crate) use variables::variables;

/// Returns the kind of gate that a policy asks for.
pub(crate) fn gate(policy: &Policy) -> Option<GateKind> {
    let egress = policy.network.as_ref().and_then(Network::egress)?;
    Some(if egress.transparent { GateKind::Transparent } else { GateKind::Proxy })
}

/// Returns the two ends of a connection, if a policy asks for a gate: the end from which the gate
/// is received, and the end to which it is sent.
pub(crate) fn await_gate(policy: &Policy) -> Result<Option<(OwnedFd, OwnedFd)>, PrepareError> {
    let failed = |source| PrepareError::Host {
        what: "the channel for the sandbox's gate".to_owned(),
        source,
    };
    gate(policy).map(|_| control::socket_pair()).transpose().map_err(failed)
}

/// Returns the support of a clause that needs the proxy, if this build has no proxy.
pub(crate) fn absent_support() -> Option<Support> {
    (!cfg!(feature = "egress")).then(|| {
        Support::absent(
            "this program was built without the egress proxy",
            "build the library `ringfence` with its cargo feature `egress`",
        )
    })
}
