//! Every promise on every backend.

mod attempts;
mod control;
mod escapes;
mod leftovers;
mod planted;
mod promises;
mod terminal;
mod view;
