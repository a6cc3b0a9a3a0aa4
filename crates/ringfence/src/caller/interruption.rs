//! Signals that end a run whose output is captured. A process that is told to end also ends the
//! processes that it started.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringfence_linux::sys::signal::{SignalMask, read_pending};
use rustix::process::Signal;
use tokio::io::Interest;

use crate::run::readiness::watch;

/// Signals that end a process that does not handle them, and that a terminal sends to a process
/// group.
const END_SIGNALS: [i32; 4] =
    [Signal::INT.as_raw(), Signal::TERM.as_raw(), Signal::HUP.as_raw(), Signal::QUIT.as_raw()];

/// The signals `SIGINT`, `SIGTERM`, `SIGHUP` and `SIGQUIT`, taken over: as long as this value
/// exists, they do not end the process. Use it only in a process with one thread, because other
/// threads do not block these signals, and so the signals would still end the process.
#[derive(Debug)]
pub struct Interruption {
    signals: OwnedFd,
    /// Signal mask of the thread before the signals were blocked.
    before: SignalMask,
}

impl Interruption {
    /// Blocks the signals on this thread.
    pub fn take() -> io::Result<Interruption> {
        let mask = SignalMask::with_signals(&END_SIGNALS);
        let signals = mask.descriptor()?;
        Ok(Interruption { signals, before: mask.block()? })
    }

    /// Waits until one of the signals arrives.
    pub(crate) async fn awaited(&self) {
        match watch(self.as_fd(), Interest::READABLE) {
            Ok(watched) => drop(watched.readable().await),
            Err(_) => std::future::pending().await,
        }
    }

    /// Returns the signal that has arrived, if any.
    pub fn signal(&self) -> Option<u8> {
        read_pending(&self.signals).first().and_then(|signal| (*signal).try_into().ok())
    }
}

impl AsFd for Interruption {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }
}

impl Drop for Interruption {
    fn drop(&mut self) {
        let _ = self.before.set(); // this was the thread's mask before
    }
}
