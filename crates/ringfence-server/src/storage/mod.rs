//! State that outlives the server: the database and snapshots.
//!
//! Reading order: [`store`] is the database, [`snapshots`] keeps the files of sandboxes, and `save`
//! has the calls that take, list and delete snapshots.

pub(crate) mod save;
pub(crate) mod snapshots;
pub(crate) mod store;
