//! Process 1 of a sandbox. The guest starts itself again as the server, reaps orphans, and forwards
//! the signals that ask the sandbox to stop. Process 1 exits when the server exits, or when the
//! process that keeps the sandbox ends. The kernel then kills every other process of the sandbox
//! (pid_namespaces(7)).

use std::io;
use std::path::Path;
use std::process::{Command, ExitCode};

use ringfence_linux::sys::process::wait_any;
use ringfence_linux::sys::signal::{SignalMask, read_pending};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, setrlimit};

use crate::log;

/// Signals that ask the sandbox to stop: those that a container engine sends, and those of a
/// terminal.
const STOP_SIGNALS: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];

/// Exit code of the guest after the process that kept the sandbox has ended.
pub(crate) const KEEPER_GONE_EXIT_CODE: i32 = 1;

/// Starts the server and waits for its end. Returns the exit code of the server.
pub(crate) fn run_first_process(leash: Option<&Path>) -> ExitCode {
    match reap_children(leash) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            log::write_line(format_args!("error: cannot be process 1: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn reap_children(leash: Option<&Path>) -> io::Result<u8> {
    let mut numbers: Vec<i32> = STOP_SIGNALS.iter().map(|signal| signal.as_raw()).collect();
    numbers.push(Signal::CHILD.as_raw());
    let mask = SignalMask::with_signals(&numbers);
    mask.block()?;
    let signals = mask.descriptor()?;
    // The host's core dump handler would run outside the sandbox, as root of the host. For such a
    // handler the kernel ignores the limit, except for the value 1, which prevents the dump
    // (fs/coredump.c). The call fails if the engine's own hard limit is 0, because a hard limit
    // cannot be raised.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(1), maximum: Some(1) });
    if let Some(leash) = leash {
        let leash = fs_err::File::open(leash)?;
        std::thread::Builder::new().spawn(move || end_with_leash(&leash))?;
    }
    // The server inherits the blocked signals, and unblocks them itself.
    let server = Command::new("/proc/self/exe").args(std::env::args_os().skip(1)).spawn()?;
    let server =
        i32::try_from(server.id()).ok().and_then(Pid::from_raw).expect("a child's id is positive");
    loop {
        while let Ok(Some(waited)) = wait_any() {
            if waited.pid == server.as_raw_nonzero().get()
                && let Some(code) = exit_code_of(waited.status)
            {
                return Ok(code);
            }
        }
        poll(&mut [PollFd::new(&signals, PollFlags::IN)], None)?;
        for number in read_pending(&signals) {
            if let Some(order) = STOP_SIGNALS.into_iter().find(|signal| signal.as_raw() == number) {
                let _ = kill_process(server, order); // the server may have ended meanwhile
            }
        }
    }
}

/// Ends the sandbox when the process that holds the lock on the leash ends, and with it the lock.
/// No process in the sandbox can delay the end: the file is read-only here, so other processes can
/// only get a shared lock, as this function does, and shared locks do not block each other.
fn end_with_leash(leash: &fs_err::File) {
    while fcntl_lock(leash, FlockOperation::LockShared) == Err(rustix::io::Errno::INTR) {}
    log::write_line(format_args!("the process that kept the sandbox has ended"));
    std::process::exit(KEEPER_GONE_EXIT_CODE);
}

/// Returns the exit code of a process that ended, as shells report it: 128 plus the number of the
/// signal if a signal ended the process. Returns `None` for a process that was merely stopped,
/// wait(2).
fn exit_code_of(status: i32) -> Option<u8> {
    let (signal, code) = (status & 0x7f, (status >> 8) & 0xff);
    match signal {
        0 => u8::try_from(code).ok(),
        0x7f => None,
        signal => u8::try_from(128 + signal).ok(),
    }
}
