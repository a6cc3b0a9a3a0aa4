//! The server of `ringfence mcp`: sandboxes for clients of the Model Context Protocol.
//!
//! The crate translates the parameters of a tool into calls of the library. It returns the answers
//! of the library as structured data for programs and as text for models. It must never trust the
//! caller of a tool more than the code that the caller runs: tools act inside the sandbox, sizes
//! and counts are bounded, and no parameter widens the policy.
//!
//! Start with `serve_streams` and `serve_http`. Reading order: `transport` serves clients,
//! `client` is one client and its sandbox, which comes from `sandbox_source`, `tool_result`
//! holds the form of its answers, and `tools` has the tools.

mod client;
mod sandbox_source;
mod tool_result;
mod tools;
mod transport;

pub use sandbox_source::SandboxSource;
pub use transport::http::{HttpOptions, PATH, serve as serve_http};
pub use transport::streams::serve as serve_streams;
pub use transport::token::Token;
