//! Waiting for descriptors.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Has the runtime watch a descriptor, which its owner keeps open meanwhile.
#[expect(deprecated, reason = "its successor is unsafe, for types that lie about their descriptor: `AsFd` does not")]
pub(crate) fn watch<T: AsFd + AsRawFd>(descriptor: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(descriptor, interest)
}
