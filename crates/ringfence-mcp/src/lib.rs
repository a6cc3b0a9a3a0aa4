//! `ringfence mcp`: sandboxes for clients of the Model Context Protocol.
//!
//! The module translates the parameters of a tool into calls of the library. It returns the answers
//! of the library as structured data for programs and as text for models. It trusts the caller of a
//! tool as little as the code that the caller runs: tools act inside the sandbox, sizes and counts
//! are bounded, and no parameter widens the policy.
//!
//! Reading order: [`client`] is one client and its sandbox, [`told`] holds the form of its answers.
//! [`commands`], [`code`], [`processes`], [`files`], [`search`] and [`sandbox`] are the tools, and
//! [`spares`] makes code start quickly. [`streams`] and [`http`] are the transports, and
//! [`pulse`] keeps a client that waits.

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
mod spares;
mod streams;
mod supply;
mod token;
mod told;

pub use http::{Door, PATH, serve as serve_http};
pub use streams::serve as serve_streams;
pub use supply::Supply;
pub use token::Token;
