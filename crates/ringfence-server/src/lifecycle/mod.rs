//! Sandboxes from their creation to their end.
//!
//! Reading order: [`template`] describes sandboxes, [`create`] plans one, and [`launch`] starts its
//! monitor or [`pool`] hands out a waiting sandbox. [`registry`] holds all sandboxes, [`expiry`]
//! and [`pausing`] decide how long each runs and when it is paused, [`meter`] measures its resource
//! use, and [`removal`] deletes its directory after its end.

pub(crate) mod create;
pub(crate) mod expiry;
pub(crate) mod launch;
pub(crate) mod meter;
pub(crate) mod pausing;
pub(crate) mod pool;
pub(crate) mod registry;
pub(crate) mod removal;
pub(crate) mod template;
