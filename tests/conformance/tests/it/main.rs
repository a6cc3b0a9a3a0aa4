//! Every promise on every backend.

mod attempts;
mod control;
mod devcontainer;
mod e2b;
mod egress;
mod engines;
mod escapes;
mod images;
mod keeper;
mod killed;
mod leftovers;
mod load;
mod mcp;
mod planted;
mod ports;
mod promises;
mod proxied;
mod remains;
mod scene;
mod sdks;
mod served;
mod soak;
mod ssh;
mod terminal;
mod transparent;
mod view;
