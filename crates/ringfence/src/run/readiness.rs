//! Waits for descriptors to become ready.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a descriptor with the runtime. The owner must keep the descriptor open as long as the
/// returned value exists.
#[expect(
    deprecated,
    reason = "its successor is unsafe, for types that lie about their descriptor: `AsFd` does not"
)]
pub(crate) fn watch<T: AsFd + AsRawFd>(
    descriptor: T,
    interest: Interest,
) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(descriptor, interest)
}

/// The end of a process, which callers can wait for.
#[derive(Debug)]
pub(crate) struct ProcessEnd {
    process: Arc<AsyncFd<OwnedFd>>,
}

impl ProcessEnd {
    /// Returns the end of the process to which `process`, a descriptor of pidfd_open(2), refers.
    pub(crate) fn for_process(process: OwnedFd) -> io::Result<ProcessEnd> {
        Ok(ProcessEnd { process: Arc::new(watch(process, Interest::READABLE)?) })
    }

    /// Waits for the end of the process.
    pub(crate) fn awaited(&self) -> BoxFuture<'static, ()> {
        let process = Arc::clone(&self.process);
        Box::pin(async move {
            let _ = process.readable().await; // on failure there is no process to wait for
        })
    }
}
