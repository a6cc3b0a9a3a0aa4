//! Every promise on every backend: what hostile code would try, tried through the `ringfence` binary.
//!
//! [`Stage`] is where it is tried: a backend, and a caller. `ringfence doctor --prove` makes the attempts of
//! `ringfence::prove`; [`certificate`] is what it says, once per stage. [`document`] turns all of them into
//! `docs/promises.md`. [`World`] is the network that attempts to get out are made in. The tests are in `tests/it`.

pub mod document;
mod proofs;
mod relay;
mod stage;
mod world;

pub use proofs::certificate;
pub use stage::{Caller, Place, Ring, Stage};
pub use world::{Arrival, World};
