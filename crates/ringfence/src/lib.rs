//! Runs an agent's commands behind one policy, on whatever isolation the host has, and says what really held.
//!
//! ```no_run
//! use ringfence::{Command, Engine, Settings};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::new(Settings::from_environment()?)?;
//! let result = engine.run(&engine.settings().policy, &Command::new("make").argument("test")).await?;
//! println!("{} {}", result.ok, result.stdout);
//! # Ok(())
//! # }
//! ```
//!
//! The library never prints, installs no subscriber, and reads the environment only when it is asked to
//! ([`Settings::from_environment`]). It never forks its caller: a program that uses it calls
//! [`launcher::serve_if_asked`] first thing in `main`, or has the `ringfence` binary at hand.
//!
//! Start with [`Engine`]; the meaning of policies is in `ringfence-core`, and the system calls in
//! `ringfence-linux`.

mod backends;
mod command;
mod engine;
mod error;
mod host;
mod memory;
mod output;
mod ready;
mod records;
mod run;
mod sandbox;
mod settings;
mod supervise;
mod untrusted;
mod view;
mod workspace;
mod wrapper;

pub mod doctor;
pub mod prove;

/// The process that forks on behalf of a library's caller.
pub mod launcher {
    pub use ringfence_linux::launcher::serve_if_asked;
}

pub use backends::{PrepareError, Unavailable};
pub use command::Command;
pub use engine::{Engine, EngineError, Planned};
pub use error::{RunError, chain};
pub use host::Host;
pub use records::{RecordError, RecordFile, Records};
pub use ringfence_core::{
    Backend, Choice, Clause, ExecutionResult, ExitStatus, Fault, Plan, Policy, Refusal, Support, audit, plan, policy,
    result,
};
pub use run::Attached;
pub use sandbox::{Chunk, Sandbox};
pub use settings::{LoadError, Settings};
pub use supervise::Stream;
pub use view::ViewError;
pub use workspace::{ResolvedWorkspace, WorkspaceError};
pub use wrapper::{Wrapper, WrapperError, remove as unwrap};

/// The highest number that a passed descriptor can have.
pub const HIGHEST_DESCRIPTOR: i32 = 99;

pub use ringfence_linux::sys::process::duplicate;
