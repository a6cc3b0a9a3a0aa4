//! E2B's API: connections, requests and answers of the control plane.
//!
//! Reading order: [`listen`] accepts connections, with or without [`tls`]. [`control`] routes the
//! calls of an owner, whose bodies are in [`requests`]. [`messages`] and [`reply`] are the answers,
//! and [`pagination`] splits long lists. [`network`] reads the network that a client asks for, and
//! [`idempotency`] recognises repeated requests.

pub(crate) mod control;
pub(crate) mod idempotency;
pub(crate) mod listen;
pub(crate) mod messages;
pub(crate) mod network;
pub(crate) mod pagination;
pub(crate) mod reply;
pub(crate) mod requests;
pub(crate) mod tls;
