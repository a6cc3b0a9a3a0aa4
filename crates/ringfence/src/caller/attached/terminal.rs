//! The caller's terminal: its size, and its raw mode.

use std::io;
use std::os::fd::BorrowedFd;

use ringfence_linux::sys::signal::SignalMask;
use ringfence_proto::process::PtySize;
use rustix::process::Signal;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Size that is assumed for a terminal that does not know its own.
const DEFAULT_SIZE: PtySize = PtySize { cols: 80, rows: 24 };

/// Returns the size of a terminal, or `None` if `stream` is not a terminal.
pub(super) fn size(stream: BorrowedFd<'_>) -> Option<PtySize> {
    let size = tcgetwinsize(stream).ok()?;
    let size = PtySize { cols: size.ws_col.into(), rows: size.ws_row.into() };
    Some(if size.cols == 0 || size.rows == 0 { DEFAULT_SIZE } else { size })
}

/// A terminal that is in raw mode until this value is dropped.
pub(super) struct RawMode<'a> {
    terminal: BorrowedFd<'a>,
    before: Termios,
    raw: Termios,
}

impl<'a> RawMode<'a> {
    pub(super) fn enter(terminal: BorrowedFd<'a>) -> io::Result<RawMode<'a>> {
        let before = tcgetattr(terminal)?;
        let mut raw = before.clone();
        raw.make_raw();
        // If this process is in the background, the kernel stops it here until it is in the
        // foreground, which is the intended behaviour.
        tcsetattr(terminal, OptionalActions::Now, &raw)?;
        Ok(RawMode { terminal, before, raw })
    }

    /// Sets raw mode again.
    pub(super) fn enter_again(&self) {
        self.set(&self.raw);
    }

    fn set(&self, mode: &Termios) {
        // Without blocking SIGTTOU, changing the terminal from the background would stop this
        // process, termios(3).
        if let Ok(before) = SignalMask::with_signals(&[Signal::TTOU.as_raw()]).block() {
            let _ = tcsetattr(self.terminal, OptionalActions::Now, mode); // terminal may be gone
            let _ = before.set(); // this was the thread's mask a moment ago
        }
    }
}

impl Drop for RawMode<'_> {
    fn drop(&mut self) {
        self.set(&self.before);
    }
}
