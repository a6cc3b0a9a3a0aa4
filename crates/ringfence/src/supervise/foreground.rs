//! The caller's own terminal and signals, while a command runs.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;

use ringfence_linux::Terminal;
use ringfence_linux::sys::process::own_group;
use ringfence_linux::sys::signal::Mask;
use rustix::process::{Pid, Signal};

/// Signals that are the command's business, not ours, when they are sent to us.
const FORWARDED: [i32; 9] = [
    Signal::INT.as_raw(),
    Signal::TERM.as_raw(),
    Signal::HUP.as_raw(),
    Signal::QUIT.as_raw(),
    Signal::USR1.as_raw(),
    Signal::USR2.as_raw(),
    Signal::TSTP.as_raw(),
    Signal::WINCH.as_raw(),
    Signal::CONT.as_raw(),
];
/// The caller's side of a terminal and of signals.
#[derive(Debug)]
pub(crate) struct Foreground {
    pub(super) signals: OwnedFd,
    /// What was blocked before.
    before: Mask,
    terminal: Option<OwnedFd>,
    /// Our own group; absent when it is outside our pid namespace, where there is no job control to take part in.
    group: Option<Pid>,
    /// Whether the command has the terminal from us; else it is not ours to take back.
    is_lent: Cell<bool>,
}

impl Foreground {
    /// Takes over signals, and lends the terminal to the command when our group is in its foreground.
    pub(crate) fn take() -> io::Result<Foreground> {
        let mask = Mask::of(&FORWARDED);
        let before = mask.block()?;
        let signals = mask.descriptor()?;
        let group = own_group();
        let terminal = rustix::fs::open(
            "/dev/tty",
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )
        .ok();
        let foreground = Foreground { signals, before, terminal, group, is_lent: Cell::new(false) };
        foreground.lend();
        Ok(foreground)
    }

    /// The controlling terminal, and how the command starts on it.
    pub(crate) fn terminal(&self) -> (Option<&OwnedFd>, Terminal) {
        let position = if self.is_lent.get() { Terminal::Foreground } else { Terminal::Background };
        (self.terminal.as_ref(), position)
    }

    /// Makes our own group the terminal's foreground again, if it was we who gave it away.
    fn take_back(&self) {
        let (Some(terminal), Some(group), true) = (&self.terminal, self.group, self.is_lent.take()) else { return };
        // In the background, setting the foreground group stops the setter unless it blocks the signal.
        if let Ok(before) = Mask::of(&[Signal::TTOU.as_raw()]).block() {
            let _ = rustix::termios::tcsetpgrp(terminal, group); // the terminal may be gone
            let _ = before.set(); // it was this thread's mask a moment ago
        }
    }

    /// Stops our own job as the command was stopped. It returns when the job is continued, which is a signal
    /// to be heard like others.
    pub(super) fn stop(&self) {
        let (Some(_), Some(group)) = (&self.terminal, self.group) else { return };
        self.take_back();
        let _ = rustix::process::kill_process_group(group, Signal::STOP); // our own group: it exists
    }

    /// Stops our own job until it is in the foreground, if it is not; false when there is no terminal to wait for.
    pub(super) fn come_to_front(&self) -> bool {
        // The kernel itself stops a group that drains a terminal from behind, and asks again when it is continued:
        // between a look of ours and a stop of ours, the shell could bring us to the front in vain (termios(3)).
        self.terminal.as_ref().is_some_and(|terminal| rustix::termios::tcdrain(terminal).is_ok())
    }

    /// Lends the terminal to the command, if our own group has it.
    pub(super) fn lend(&self) -> bool {
        let front = self.terminal.as_ref().map(rustix::termios::tcgetpgrp);
        let is_ours = front.is_some_and(|front| front.is_ok_and(|front| Some(front) == self.group));
        self.is_lent.set(self.is_lent.get() || is_ours);
        is_ours
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        self.take_back();
        let _ = self.before.set(); // it was this thread's mask before
    }
}
