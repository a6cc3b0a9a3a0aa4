//! Tenants of a server: their keys, quotas and limits.
//!
//! Reading order: [`keys`] identifies an owner, [`quota`] limits the sandboxes of a key.
//! [`connection_limits`] limits connections, and [`fair_semaphore`] shares slow operations fairly
//! among owners.

pub(crate) mod connection_limits;
pub(crate) mod fair_semaphore;
pub(crate) mod keys;
pub(crate) mod quota;
