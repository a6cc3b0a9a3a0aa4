//! Runs an agent's commands under one policy, with the isolation that the host offers, and reports
//! which clauses of the policy held.
//!
//! ```no_run
//! use ringfence::{Command, Engine, Settings};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::new(Settings::from_environment()?)?;
//! let result =
//!     engine.run(&engine.settings().policy, &Command::new("make").argument("test")).await?;
//! println!("{} {}", result.ok, result.stdout);
//! # Ok(())
//! # }
//! ```
//!
//! The library never prints, installs no `tracing` subscriber, and reads the environment only when
//! the caller asks for that ([`Settings::from_environment`]). It never forks its caller: a program
//! that uses the library calls [`launcher::serve_if_asked`] as the first statement of `main`, or
//! has the `ringfence` binary installed.
//!
//! # Features
//!
//! By default the library has the backends `native`, `bwrap`, `local` and `outer`. A policy that
//! needs a feature that is missing is refused; it is never weakened.
//!
//! - `containers`: the backends `docker` and `podman`. It includes `egress`.
//! - `egress`: policies that name the hosts a sandbox may reach, and credentials that stay outside.
//!   Without it, results for a sandbox that another program keeps do not list denied connections.
//! - `code`: code by language, the lint of its imports, and interpreters that keep their state.
//! - `kubernetes`: the backend `kubernetes`. It includes `egress`.
//! - `ssh`: sandboxes that an SSH client reaches.
//!
//! Start with [`Engine`]. The crate `ringfence-core` defines policies, and `ringfence-linux` makes
//! the system calls.

// A part that only one feature uses is dead code in a build without it.
#![cfg_attr(
    not(all(
        feature = "code",
        feature = "containers",
        feature = "egress",
        feature = "kubernetes",
        feature = "ssh"
    )),
    expect(dead_code, reason = "features use the rest; a build with all of them has no dead code")
)]

mod backends;
mod caller;
#[cfg(feature = "code")]
mod code;
mod command;
mod engine;
mod error;
mod host;
mod host_paths;
mod records;
mod run;
mod sandbox;
mod session;
mod settings;
mod view;

#[cfg(feature = "code")]
pub mod contexts;
pub mod doctor;
pub mod egress;
pub mod images;
pub mod prove;
#[cfg(feature = "ssh")]
pub mod ssh;

/// The launcher: the process that forks on behalf of a program that uses the library.
pub mod launcher {
    use ringfence_core::terminal::clean_message;

    /// Runs a launcher process, or the last steps inside a sandbox, if this process was started for
    /// either purpose. Does not return in these two cases.
    ///
    /// A program that uses the library calls this function first in `main`, before it starts a
    /// thread.
    pub fn serve_if_asked() {
        ringfence_linux::launcher::serve_if_asked();
        ringfence_linux::inside::run_if_asked(clean_message);
    }
}

#[cfg(feature = "kubernetes")]
pub use backends::{ClusterManifest, sweep_cluster};
pub use backends::{ContainerError, PrepareError, StopError, Unavailable, remove_untrusted};
pub use caller::attached::{AttachedStreams, exec_attached};
pub use caller::interruption::Interruption;
pub use caller::wrapper::{Wrapper, WrapperError, remove as unwrap};
#[cfg(feature = "code")]
pub use code::{CodeError, Interpreters, SpareInterpreter};
pub use command::Command;
pub use engine::{Engine, EngineError, Planned};
pub use error::{RunError, chain};
pub use host::Host;
pub use host_paths::granted::GrantError;
pub use host_paths::private::{make_private_directory, write_private_file};
pub use host_paths::untrusted::{CopyError, CopyLimits, CopySummary, copy_untrusted};
pub use host_paths::workspace::{ResolvedWorkspace, WorkspaceError};
pub use records::{RecordError, RecordFile, Records};
pub use ringfence_core::settings::{BlockImports, CodeSettings, Language};
pub use ringfence_core::{
    Backend, BackendChoice, Clause, ExecutionResult, ExitStatus, Fault, Plan, Policy, Refusal,
    Support, audit, plan, policy, result, sync_report,
};
pub use ringfence_proto::code::Code;
pub use ringfence_proto::filesystem::{EntryInfo, EventType, FileType, FilesystemEvent};
pub use ringfence_proto::process::{ListedProcess, ProcessConfig, PtySize};
pub use run::Attached;
pub use run::running::{Chunk, Running};
pub use run::supervise::Stream;
pub use sandbox::directory::{
    ContainerManifest, Manifest, Name, NameError, NetworkReach, Owner, SandboxDirError,
};
pub use sandbox::host_observer::Observation;
pub use sandbox::monitor;
pub use sandbox::pause::PauseError;
pub use sandbox::start_request::{ContainerSpec, Existing, Preset, Pull, Root, StartRequest};
pub use sandbox::workspace_copy::{SyncError, SyncListener, SyncMode, SyncProgress};
pub use sandbox::{AttachError, DEFAULT_TIME, Sandbox, StartError, Stopped};
pub use session::{
    CapturedCommand, CommandEnd, CommandInput, DirectoryWatch, Exec, Execution, ExecutionInput,
    IdleConnectionState, IdleConnections, Leftovers, OmittedEntry, PortStream, SandboxFiles,
    SandboxPorts, Session, SessionError, TransferSummary, WatchDepth,
};
pub use settings::{LoadError, PolicyFile, PolicyFileError, Settings};
pub use view::ViewError;

/// Highest number of a descriptor that a caller can pass to a command.
pub const HIGHEST_CALLER_DESCRIPTOR: i32 = ringfence_linux::LaunchFiles::HIGHEST_CALLER_DESCRIPTOR;

pub use ringfence_linux::pause::TreeUsage;
pub use ringfence_linux::sys::process::{close_range, duplicate, release_memory};
