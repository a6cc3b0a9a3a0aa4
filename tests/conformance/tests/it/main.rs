//! Every promise on every backend.

mod attempts;
mod control;
mod devcontainer;
mod escapes;
mod leftovers;
mod planted;
mod promises;
mod ssh;
mod terminal;
mod view;
