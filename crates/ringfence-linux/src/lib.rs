//! The launcher: every Linux system call that ringfence makes to build a sandbox.
//!
//! This crate turns a [`Launch`], which is a description and decides nothing, into a running
//! process tree. When a step fails, the error names that step. The crate must never weaken what the
//! description asks for: a step that fails ends the launch. Unsafe code lives in [`sys`] alone.
//!
//! Reading order: [`view`] describes the files that a sandbox sees, [`launch`] starts the sandbox,
//! `init` is the life of its first process, `mounts` builds its root, [`confine`] drops its
//! privileges, [`control`] holds the messages between the launching side and the first process,
//! [`inside`] does the last steps in a sandbox that another program built, [`gate`] is the way out
//! of a sandbox's network, [`pause`] stops and continues a running sandbox, [`processes`] reads
//! `/proc`.

pub mod cgroup;
pub mod confine;
pub mod control;
mod exec;
pub mod fd_passing;
pub mod gate;
mod init;
pub mod inside;
mod kill_tree;
pub mod landlock;
pub mod launch;
pub mod launcher;
pub mod listening;
mod mounts;
pub mod pause;
pub mod processes;
pub mod seccomp;
mod shares;
pub mod streams;
pub mod sys;
pub mod view;

pub use control::{CommandEnding, ControlOrder, ControlReport};
pub use gate::Gate;
pub use launch::{
    Confinement, Exec, Launch, LaunchError, LaunchFiles, LaunchedProcess, SandboxNetwork,
    Survivors, TerminalMode,
};
pub use launcher::{Launcher, StartedSandbox};
pub use mounts::limit_inodes;
pub use view::{Access, Entry, SHARED_MEMORY_SIZE, View};
