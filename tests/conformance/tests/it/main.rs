//! Every promise on every backend.

mod attempts;
mod control;
mod leftovers;
mod planted;
mod promises;
