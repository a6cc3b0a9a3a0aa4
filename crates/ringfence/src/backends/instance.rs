//! Running sandboxes, as the process that started them holds them.

use std::fmt;
use std::path::PathBuf;

use futures_util::future::BoxFuture;
use ringfence_linux::pause::ProcessTree;

use crate::Manifest;

/// A running sandbox, held by the process that started it. Dropping the value also ends the
/// sandbox, without waiting for the end.
pub(crate) trait SandboxInstance: Send + Sync + fmt::Debug {
    /// Waits until the sandbox has ended, by itself or not.
    fn ended(&self) -> BoxFuture<'static, ()>;

    /// Ends every process of the sandbox, and removes the resources that were made for it.
    fn stop(self: Box<Self>) -> BoxFuture<'static, Result<(), StopError>>;

    /// Returns the parts of the sandbox that the host can observe. `None` if the sandbox runs on
    /// another machine.
    fn host_view(&self) -> Option<HostView> {
        None
    }

    /// Adds to the manifest what only the backend knows.
    fn complete_manifest(&self, _manifest: &mut Manifest) {}
}

/// Parts of a sandbox that the host can observe, besides its guest.
#[derive(Debug, Default)]
pub(crate) struct HostView {
    /// Files in which the kernel counts the processes of the sandbox that it killed for lack of
    /// memory.
    pub(crate) oom_counters: Vec<PathBuf>,
    /// The process tree of the sandbox, if its processes are visible from here.
    pub(crate) tree: Option<ProcessTree>,
}

/// Reason why a sandbox could not be ended.
#[derive(Debug, thiserror::Error)]
#[error("cannot end the sandbox `{name}`: {why}")]
pub struct StopError {
    /// Name of the sandbox.
    pub name: String,
    /// The step that failed, and its result.
    pub why: String,
    /// The next step for the user.
    pub hint: String,
}
