//! Tools that clients call, and the form of their results.
//!
//! Reading order: [`commands`], [`code`], [`processes`], [`files`], [`search`] and [`sandbox`] are
//! the tools. [`outcome`] is the result of a command, [`progress`] reports while a tool runs, and
//! [`spares`] makes code start quickly.

pub(crate) mod code;
pub(crate) mod commands;
pub(crate) mod files;
pub(crate) mod outcome;
pub(crate) mod processes;
pub(crate) mod progress;
pub(crate) mod sandbox;
pub(crate) mod search;
pub(crate) mod spares;
