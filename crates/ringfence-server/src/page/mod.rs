//! Web page of the server, the calls that it needs beyond E2B's API, and the metrics.
//!
//! Reading order: [`web`] answers with the files of the page. [`extensions`] and [`events`] are the
//! calls of the page, [`activity`] records what the events tell, and [`counters`] are the metrics.

pub(crate) mod activity;
pub(crate) mod counters;
pub(crate) mod events;
pub(crate) mod extensions;
pub(crate) mod web;
