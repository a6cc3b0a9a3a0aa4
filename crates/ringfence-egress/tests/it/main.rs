//! Tests of the proxy on real sockets: which connections pass, and how clients are refused.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod changes;
mod credentials;
mod hostile;
mod http;
mod limits;
mod names;
mod observe;
mod openings;
mod smuggling;
mod socks;
mod stage;
mod tls;
mod tunnel;
mod upstream;
