//! Signals that end a run whose output is captured: whoever is told to go takes along what it started.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringfence_linux::sys::signal::{Mask, pending};
use rustix::process::Signal;
use tokio::io::Interest;

use crate::readiness::watch;

/// What ends a process that does nothing about it, and what a process group is sent by a terminal.
const ENDING: [i32; 4] = [Signal::INT.as_raw(), Signal::TERM.as_raw(), Signal::HUP.as_raw(), Signal::QUIT.as_raw()];

/// `SIGINT`, `SIGTERM`, `SIGHUP` and `SIGQUIT`, which do not end this process as long as this is there. For a process
/// with one thread: others would be ended by them.
#[derive(Debug)]
pub struct Interruption {
    signals: OwnedFd,
    /// What was blocked before.
    before: Mask,
}

impl Interruption {
    /// Takes them over.
    pub fn take() -> io::Result<Interruption> {
        let mask = Mask::of(&ENDING);
        let signals = mask.descriptor()?;
        Ok(Interruption { signals, before: mask.block()? })
    }

    /// Waits until one of them comes.
    pub(crate) async fn awaited(&self) {
        match watch(self.as_fd(), Interest::READABLE) {
            Ok(watched) => drop(watched.readable().await),
            Err(_) => std::future::pending().await,
        }
    }

    /// Which of them has come, if any.
    pub fn signal(&self) -> Option<u8> {
        pending(&self.signals).first().and_then(|signal| (*signal).try_into().ok())
    }
}

impl AsFd for Interruption {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }
}

impl Drop for Interruption {
    fn drop(&mut self) {
        let _ = self.before.set(); // it was this thread's mask before
    }
}
