//! Waiting for descriptors.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Has the runtime watch a descriptor, which its owner keeps open meanwhile.
#[expect(deprecated, reason = "its successor is unsafe, for types that lie about their descriptor: `AsFd` does not")]
pub(crate) fn watch<T: AsFd + AsRawFd>(descriptor: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(descriptor, interest)
}

/// The end of a process, for whoever waits for it.
#[derive(Debug)]
pub(crate) struct ProcessEnd {
    process: Arc<AsyncFd<OwnedFd>>,
}

impl ProcessEnd {
    /// The end of the process that this descriptor, of pidfd_open(2), is for.
    pub(crate) fn of(process: OwnedFd) -> io::Result<ProcessEnd> {
        Ok(ProcessEnd { process: Arc::new(watch(process, Interest::READABLE)?) })
    }

    /// Waits for it.
    pub(crate) fn awaited(&self) -> BoxFuture<'static, ()> {
        let process = Arc::clone(&self.process);
        Box::pin(async move {
            let _ = process.readable().await; // a descriptor that cannot be watched has no process behind it
        })
    }
}
