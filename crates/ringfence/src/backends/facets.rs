//! Facets: what a sandbox offers besides its guest, as far as its backend can provide it.
//!
//! A sandbox may run where its host directory, its processes and its cgroup are not at hand. A
//! facet that a backend lacks is `None` here, so that no code outside the backends has to ask which
//! backend made the sandbox.

use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::ContainerError;
use crate::images::PullProgress;
use crate::sandbox::directory::Manifest;
use crate::sandbox::host_observer::HostObserver;
use crate::sandbox::pause::PauseError;
use crate::session::GuestConnector;
use crate::{ContainerSpec, Host};

/// A sandbox that some process keeps, to which a backend connects.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeptSandbox<'a> {
    pub(crate) manifest: &'a Manifest,
    /// Directory of the sandbox's own files on the host.
    pub(crate) directory: &'a Path,
}

/// Everything that this process can do with a sandbox.
#[derive(Debug, Clone)]
pub(crate) struct SandboxFacets {
    /// Way to open streams to the guest.
    pub(crate) connector: Arc<dyn GuestConnector>,
    pub(crate) workspace: WorkspaceSource,
    /// Means to stop all processes and to let them continue.
    pub(crate) pause: Option<Arc<dyn PauseControl>>,
    /// The host's own observations of the sandbox.
    pub(crate) observer: Option<Arc<HostObserver>>,
    pub(crate) ports: PortRoute,
}

/// Origin of the files in the workspace of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WorkspaceSource {
    /// The workspace is this directory of the host itself, which the sandbox can write.
    HostDir(PathBuf),
    /// The files are copied to a place that does not see the host. The host's directory changes
    /// only when a sync brings changes back.
    #[cfg_attr(
        not(any(test, feature = "kubernetes")),
        expect(dead_code, reason = "few backends copy")
    )]
    Copy,
}

/// Route to the ports on which processes of a sandbox listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PortRoute {
    /// The sandbox has a network of its own, so every port that the guest reaches is a port of the
    /// sandbox.
    Guest,
    /// The sandbox shares the network of the host, so a port is one of the sandbox only if a
    /// process of its tree listens on it.
    ProcessTree,
}

/// Means to stop all processes of a sandbox and to let them continue.
pub(crate) trait PauseControl: Send + Sync + Debug {
    /// Returns the processes that are stopped already, which resuming must leave stopped.
    fn stopped_processes(&self) -> BoxFuture<'_, Result<Vec<i32>, PauseError>>;

    /// Stops all processes, and waits until they are stopped.
    fn pause(&self) -> BoxFuture<'_, Result<(), PauseError>>;

    /// Lets the processes continue, except those in `stopped_before`.
    fn resume(&self, stopped_before: Vec<i32>) -> BoxFuture<'_, Result<(), PauseError>>;
}

/// Callback for the progress of fetching an image.
pub(crate) type OnPull<'a> = &'a mut (dyn FnMut(PullProgress) + Send);

/// Images from which a backend makes its sandboxes.
pub(crate) trait ImageStore: Sync {
    /// Fetches the image that `spec` names, when `spec.pull` asks for that.
    fn provide<'a>(
        &'a self,
        host: &'a Host,
        spec: &'a ContainerSpec,
        progress: OnPull<'a>,
    ) -> BoxFuture<'a, Result<(), ContainerError>>;

    /// Builds an image named `tag`, and calls `on_line` with each line of the output.
    fn build<'a>(
        &'a self,
        host: &'a Host,
        containerfile: &'a str,
        tag: &'a str,
        on_line: &'a mut (dyn FnMut(&str) + Send),
    ) -> BoxFuture<'a, Result<(), ContainerError>>;
}

impl KeptSandbox<'_> {
    /// Reads the observer that the process that keeps the sandbox stored. Returns `None` if the
    /// host cannot observe the sandbox.
    pub(crate) fn read_observer(&self) -> io::Result<Option<Arc<HostObserver>>> {
        Ok(HostObserver::read(self.directory)?.map(Arc::new))
    }
}
