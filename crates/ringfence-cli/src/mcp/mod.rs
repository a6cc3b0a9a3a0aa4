//! `ringfence mcp`: sandboxes for clients of the Model Context Protocol.
//!
//! A thin translator: a tool's parameters in, the library's answer out, as structure for programs and in words for
//! models. Whoever calls the tools is as little trusted as the code that they run: what a tool does happens inside the
//! sandbox, sizes and counts are bounded, and no parameter widens the policy.
//!
//! Reading order: [`client`] is one client and its sandbox, [`told`] what it is told; [`commands`], [`code`],
//! [`processes`], [`files`], [`search`] and [`sandbox`] are the tools, [`spares`] makes code quick; [`streams`] and [`http`] are the ways that clients come, [`pulse`] keeps one that waits;
//! [`snippet`] is what other programs' settings need.

mod client;
mod code;
mod commands;
mod files;
mod http;
mod outcome;
mod processes;
mod progress;
mod pulse;
mod sandbox;
mod search;
mod snippet;
mod spares;
mod streams;
mod supply;
mod token;
mod told;

pub(crate) use http::{Door, PATH, serve as serve_http};
pub(crate) use snippet::Program;
pub(crate) use streams::serve as serve_streams;
pub(crate) use supply::Supply;
pub(crate) use token::Token;
