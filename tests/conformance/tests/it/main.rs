//! Every promise on every backend.

mod attempts;
mod control;
mod devcontainer;
mod e2b;
mod engines;
mod escapes;
mod keeper;
mod killed;
mod leftovers;
mod planted;
mod promises;
mod remains;
mod soak;
mod ssh;
mod terminal;
mod view;
