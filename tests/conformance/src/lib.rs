//! Conformance tests: every promise on every backend, with the attempts of hostile code made
//! through the `ringfence` binary.
//!
//! A [`BackendSetup`] is a backend and a caller with which attempts are made. `ringfence doctor
//! --prove` makes the attempts of `ringfence::prove`, and [`certificate`] returns its output,
//! computed once per setup. [`document`] turns all certificates into `docs/promises.md`.
//! [`SimulatedNetwork`] is the network in which attempts to get out of a sandbox are made. The
//! tests are in `tests/it`.

mod backend_setup;
pub mod document;
mod proofs;
mod relay;
mod simulated_network;

pub use backend_setup::{BackendSetup, BackendVariant, Caller, CallerDirectory};
pub use proofs::certificate;
pub use simulated_network::{Arrival, SimulatedNetwork};
