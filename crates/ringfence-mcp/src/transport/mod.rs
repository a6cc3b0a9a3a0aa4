//! Transports of the protocol: standard streams for one client, HTTP for many.
//!
//! Reading order: [`streams`] and [`http`] are the transports, [`token`] authenticates HTTP
//! clients, and `keepalive` keeps the session of a client that waits.

pub(crate) mod http;
pub(crate) mod keepalive;
pub(crate) mod streams;
pub(crate) mod token;
