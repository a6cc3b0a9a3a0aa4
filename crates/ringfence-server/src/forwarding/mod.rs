//! Requests to sandboxes: their route, the proxy, and what the server reads while it forwards.
//!
//! Reading order: `place` finds the target of a request, `carry` forwards the request, and
//! [`interpreter`] answers E2B's code interpreter API. [`executions`] follows the commands in
//! forwarded messages, which `skim` finds in a stream.

pub(crate) mod carry;
pub(crate) mod executions;
pub(crate) mod interpreter;
pub(crate) mod place;
pub(crate) mod skim;
