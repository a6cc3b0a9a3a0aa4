//! Requests to sandboxes: their route, the proxy, and what the server reads while it forwards.
//!
//! Reading order: [`route`] finds the target of a request, [`forward`] forwards the request, and
//! [`interpreter`] answers E2B's code interpreter API. [`executions`] follows the commands in
//! forwarded messages, which [`frame_scanner`] finds in a stream.

pub(crate) mod executions;
pub(crate) mod forward;
pub(crate) mod frame_scanner;
pub(crate) mod interpreter;
pub(crate) mod route;
