//! State that outlives the server: the database and snapshots.
//!
//! Reading order: [`store`] is the database, [`snapshots`] keeps the files of sandboxes, and
//! [`snapshot_calls`] has the calls that take, list and delete snapshots.

pub(crate) mod snapshot_calls;
pub(crate) mod snapshots;
pub(crate) mod store;
