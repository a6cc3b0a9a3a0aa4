//! Log of the sandbox: short lines on standard error. The log never contains an argument, a
//! variable or a byte of a file.

use std::fmt::Arguments;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Writes a line to the log. Drops the line if the write would block, so that a slow reader of the
/// log cannot delay the guest.
pub(crate) fn write_line(text: Arguments<'_>) {
    let stderr = rustix::stdio::stderr();
    let mut fds = [PollFd::from_borrowed_fd(stderr, PollFlags::OUT)];
    // A pipe that poll(2) reports as writable accepts `PIPE_BUF` bytes at once (pipe(7)). A line is
    // shorter.
    if poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
        // Ignore the error, because there is no other place to report it.
        let _ = rustix::io::write(stderr, format!("ringfence-guest: {text}\n").as_bytes());
    }
}

/// Writes an error and the chain of its causes to the log.
pub(crate) fn write_failure(error: &dyn std::error::Error) {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    write_line(format_args!("error: {text}"));
}
