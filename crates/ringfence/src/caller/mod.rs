//! Commands that run in the place of their caller: with the caller's own streams, terminal, signals
//! and name.

pub(crate) mod attached;
pub(crate) mod interruption;
pub(crate) mod streams;
pub(crate) mod wrapper;
