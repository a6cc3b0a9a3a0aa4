//! The launcher: every Linux system call that ringfence makes to build a sandbox.
//!
//! It turns a [`Launch`], which is a description and decides nothing, into a running process tree, and says
//! exactly which step failed when one does. It must never weaken what it was asked for: a step that fails
//! ends the launch. Unsafe code lives in [`sys`] alone.
//!
//! Reading order: [`view`] says what a sandbox sees, [`launch`] starts it, `init` is the life of its first
//! process, `mounts` builds its root, [`confine`] takes away its powers, [`control`] is how the two sides talk,
//! [`inside`] is what is left to do where another program built the sandbox, [`gate`] is a way out of a sandbox's
//! network, [`pause`] brings a running sandbox to rest, [`processes`] looks at what runs.

pub mod attempt;
pub mod cgroup;
pub mod confine;
pub mod control;
mod exec;
pub mod gate;
mod init;
pub mod inside;
pub mod landlock;
pub mod launch;
pub mod launcher;
pub mod listening;
mod mounts;
pub mod passing;
pub mod pause;
pub mod processes;
pub mod seccomp;
mod shares;
pub mod streams;
pub mod sys;
mod tree;
pub mod view;

pub use control::{Ending, Order, Report};
pub use gate::Gate;
pub use launch::{Confinement, Exec, Files, Launch, LaunchError, Launched, Network, Survivors, Terminal};
pub use launcher::{Launcher, Started};
pub use mounts::limit_inodes;
pub use view::{Access, Entry, SHARED_MEMORY_SIZE, View};
