//! Signal masks, signalfd(2), and signal dispositions.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// A set of signals.
#[derive(Clone, Copy)]
pub struct SignalMask(libc::sigset_t);

impl std::fmt::Debug for SignalMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mask")
    }
}

impl SignalMask {
    /// Returns a mask without signals.
    pub fn empty() -> Self {
        // SAFETY: sigset_t is plain integers; all zeroes is valid, and sigemptyset initialises it
        // fully.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a live sigset_t.
        unsafe { libc::sigemptyset(&raw mut set) };
        SignalMask(set)
    }

    /// Returns a mask with every signal.
    pub fn full() -> Self {
        let mut mask = SignalMask::empty();
        // SAFETY: the pointer is to a live sigset_t.
        unsafe { libc::sigfillset(&raw mut mask.0) };
        mask
    }

    /// Returns a mask with the given signals.
    pub fn with_signals(signals: &[i32]) -> Self {
        let mut mask = SignalMask::empty();
        for signal in signals {
            // SAFETY: the pointer is to a live sigset_t; an invalid number is refused with EINVAL.
            unsafe { libc::sigaddset(&raw mut mask.0, *signal) };
        }
        mask
    }

    /// Replaces the mask of the calling thread by this mask. Returns the previous mask.
    pub fn set(&self) -> io::Result<SignalMask> {
        self.change(libc::SIG_SETMASK)
    }

    /// Adds these signals to the mask of the calling thread. Returns the previous mask.
    pub fn block(&self) -> io::Result<SignalMask> {
        self.change(libc::SIG_BLOCK)
    }

    fn change(&self, how: i32) -> io::Result<SignalMask> {
        let mut before = SignalMask::empty();
        // SAFETY: both pointers are to live sigset_t values; pthread_sigmask keeps neither.
        match unsafe { libc::pthread_sigmask(how, &raw const self.0, &raw mut before.0) } {
            0 => Ok(before),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Opens a descriptor from which these signals can be read, signalfd(2). The signals must be
    /// blocked.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        // SAFETY: the pointer is to a live sigset_t; -1 asks for a new descriptor.
        let fd = unsafe {
            libc::signalfd(-1, &raw const self.0, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: signalfd returned a new descriptor that nobody else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// Reads all signals that are pending on a signalfd, and returns their numbers.
pub fn read_pending(signals: &OwnedFd) -> Vec<i32> {
    let mut numbers = Vec::new();
    let mut buffer = [0u8; size_of::<libc::signalfd_siginfo>()];
    // ssi_signo is the first field and has four bytes (signalfd(2)).
    while rustix::io::read(signals, &mut buffer).is_ok_and(|length| length == buffer.len()) {
        numbers.push(i32::from_ne_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]));
    }
    numbers
}

/// Restores the default disposition of a signal. For example, Rust's runtime ignores `SIGPIPE`.
pub fn restore_default(signal: i32) {
    // SAFETY: SIG_DFL installs no handler; an invalid number is refused with EINVAL.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Lets the kernel reap the children of this process, sigaction(2), because this process does not
/// wait for them.
pub fn ignore_children() {
    // SAFETY: SIG_IGN installs no handler.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}
