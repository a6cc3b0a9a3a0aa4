//! What must hold, what a host can do about it, and what became of it.
//!
//! This crate is the meaning of ringfence and nothing else: it parses policies, layers settings, plans, and
//! describes results. It never does I/O: no file, no environment variable, no clock is read here; what a
//! function needs to know of the host is an argument. Start with [`policy::Policy`], then [`plan::plan`].

pub mod audit;
pub mod backend;
pub mod capabilities;
pub mod clause;
pub mod fault;
pub mod plan;
pub mod policy;
pub mod result;
pub mod settings;
pub mod terminal;
pub mod workspace;

pub use backend::{Backend, Choice};
pub use capabilities::{Capabilities, Defaults, Support};
pub use clause::Clause;
pub use fault::{ExitStatus, Fault};
pub use plan::{Ground, Plan, Refusal, plan};
pub use policy::Policy;
pub use result::ExecutionResult;
