//! Links between the host and a guest: many streams over one carrier connection that may be lost
//! and dialled again.
//!
//! The guest and the library share this crate. It moves bytes between streams, the state machines
//! of `ringfence_proto::link`, and a carrier. It opens no connection, starts no task and trusts
//! nothing that the peer sends: the state machines bound all sizes.
//!
//! Reading order: [`Link`] is the state of one end, [`LinkStream`] is one of its streams,
//! [`greeting`] begins the use of a carrier, and [`run_carrier`] uses it until it is lost.

mod carrier;
mod failure;
pub mod greeting;
mod state;
mod stream;
#[cfg(test)]
mod tests;

pub use carrier::{CarrierEnd, CarrierTimeouts, run_carrier};
pub use failure::LinkFailure;
pub use state::{CarrierTurn, Link};
pub use stream::LinkStream;
