//! Policies, settings, plans and results: the rules of ringfence, without any I/O.
//!
//! This crate parses policies, merges layers of settings, plans runs, and describes their results.
//! The crate never does I/O: it reads no file, no environment variable and no clock. A function
//! that needs to know something about the host takes it as an argument.
//!
//! Start reading with [`policy::Policy`], then [`plan::plan`].

pub mod audit;
pub mod backend;
pub mod capabilities;
pub mod clause;
pub mod fault;
pub mod hex;
pub mod plan;
pub mod policy;
pub mod result;
pub mod settings;
pub mod sync_report;
pub mod terminal;
pub mod workspace;

pub use backend::{Backend, BackendChoice};
pub use capabilities::{Capabilities, Support, UnstatedClauses};
pub use clause::Clause;
pub use fault::{ExitStatus, Fault};
pub use hex::to_hex;
pub use plan::{Plan, Refusal, WorkspaceFacts, plan};
pub use policy::Policy;
pub use result::ExecutionResult;
