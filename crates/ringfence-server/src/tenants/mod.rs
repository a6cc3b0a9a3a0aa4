//! Tenants of a server: their keys, quotas and limits.
//!
//! Reading order: [`keys`] identifies an owner, [`quota`] limits the sandboxes of a key. `seats`
//! limits connections, and `turns` shares slow operations fairly among owners.

pub(crate) mod keys;
pub(crate) mod quota;
pub(crate) mod seats;
pub(crate) mod turns;
