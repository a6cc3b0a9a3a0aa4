//! The caller's own terminal and signals, while a command runs.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;

use ringfence_linux::TerminalMode;
use ringfence_linux::sys::process::own_group;
use ringfence_linux::sys::signal::SignalMask;
use rustix::process::{Pid, Signal};

/// Signals that are forwarded to the command when this process receives them.
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
/// The caller's side of the terminal and of signals.
#[derive(Debug)]
pub(crate) struct Foreground {
    pub(super) signals: OwnedFd,
    /// Signal mask of the thread before the signals were blocked.
    before: SignalMask,
    terminal: Option<OwnedFd>,
    /// Our own process group. None if the group is outside our pid namespace, where there is no job
    /// control for us.
    group: Option<Pid>,
    /// True if we lent the terminal to the command. Otherwise we must not take it back.
    is_lent: Cell<bool>,
}

impl Foreground {
    /// Takes over the signals, and lends the terminal to the command if our group is in the
    /// foreground.
    pub(crate) fn take() -> io::Result<Foreground> {
        let mask = SignalMask::with_signals(&FORWARDED);
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

    /// Returns the controlling terminal, and the position in which the command starts on it.
    pub(crate) fn terminal(&self) -> (Option<&OwnedFd>, TerminalMode) {
        let position =
            if self.is_lent.get() { TerminalMode::Foreground } else { TerminalMode::Background };
        (self.terminal.as_ref(), position)
    }

    /// Makes our own group the foreground group of the terminal again, if we lent the terminal.
    fn take_back(&self) {
        let (Some(terminal), Some(group), true) = (&self.terminal, self.group, self.is_lent.take())
        else {
            return;
        };
        // A process in the background that sets the foreground group is stopped by SIGTTOU unless
        // it blocks that signal.
        if let Ok(before) = SignalMask::with_signals(&[Signal::TTOU.as_raw()]).block() {
            let _ = rustix::termios::tcsetpgrp(terminal, group); // the terminal may be gone
            let _ = before.set(); // this was the thread's mask a moment ago
        }
    }

    /// Stops our own job, as the command was stopped. Returns when the job is continued. The
    /// SIGCONT that continues the job is handled like other signals.
    pub(super) fn stop(&self) {
        let (Some(_), Some(group)) = (&self.terminal, self.group) else { return };
        self.take_back();
        let _ = rustix::process::kill_process_group(group, Signal::STOP); // our own group exists
    }

    /// Stops our own job until it is in the foreground, unless it is there already. Returns false
    /// if there is no terminal to wait for.
    pub(super) fn come_to_front(&self) -> bool {
        // When a background group drains a terminal, the kernel stops the group, and checks again
        // when the group is continued. If we checked first and then stopped ourselves, the shell
        // could bring us to the foreground in between, in vain (termios(3)).
        self.terminal.as_ref().is_some_and(|terminal| rustix::termios::tcdrain(terminal).is_ok())
    }

    /// Lends the terminal to the command, if our own group is in the foreground.
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
        let _ = self.before.set(); // this was the thread's mask before
    }
}
