//! The sandbox's log: short lines on standard error. Never an argument, a variable or a byte of a file.

use std::fmt::Arguments;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Writes a line, unless that would wait: nobody who reads the log slowly may hold the guest up.
pub(crate) fn line(text: Arguments<'_>) {
    let stderr = rustix::stdio::stderr();
    let mut fds = [PollFd::from_borrowed_fd(stderr, PollFlags::OUT)];
    // A pipe that can be written to takes as much as a line at once (pipe(7), `PIPE_BUF`).
    if poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
        let _ = rustix::io::write(stderr, format!("ringfence-guest: {text}\n").as_bytes()); // nobody else to tell
    }
}

/// Writes why something failed, with its causes.
pub(crate) fn failure(error: &dyn std::error::Error) {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    line(format_args!("error: {text}"));
}
