//! Tests of the proxy on real sockets: which connections pass, and how clients are refused.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod credentials;
mod fixture;
mod hostile;
mod http;
mod limits;
mod names;
mod observe;
mod openings;
mod rule_changes;
mod smuggling;
mod socks;
mod tls;
mod tunnel;
mod upstream;
