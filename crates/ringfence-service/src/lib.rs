//! Parts that every long-running service of ringfence needs, `ringfence serve` as well as
//! `ringfence mcp`: limits for HTTP connections, and telemetry.
//!
//! The crate knows no API and no protocol above HTTP, and must never learn one: it is below the
//! crates of the services, which do not know each other.
//!
//! Reading order: [`exchange`] watches the requests and answers of one connection, [`connections`]
//! limits the number of connections, [`telemetry`] exports traces and metrics.

pub mod connections;
pub mod exchange;
pub mod telemetry;
