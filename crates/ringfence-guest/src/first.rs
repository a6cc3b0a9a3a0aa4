//! Life as process 1 of a sandbox: it starts the server, reaps whom nobody else waits for, passes on the order to stop,
//! and ends when the server ends, or whoever wanted the sandbox does, and with it everything inside
//! (pid_namespaces(7)).

use std::io;
use std::path::Path;
use std::process::{Command, ExitCode};

use ringfence_linux::sys::process::wait_any;
use ringfence_linux::sys::signal::{Mask, pending};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, setrlimit};

use crate::log;

/// What ends a sandbox: its engine's order, and a terminal's.
const ORDERS: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];

/// What it exits with when nobody wants the sandbox any more.
pub(crate) const UNWANTED: i32 = 1;

/// Starts the server and waits for its end.
pub(crate) fn live(leash: Option<&Path>) -> ExitCode {
    match reap(leash) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            log::line(format_args!("error: cannot be process 1: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn reap(leash: Option<&Path>) -> io::Result<u8> {
    let mut numbers: Vec<i32> = ORDERS.iter().map(|signal| signal.as_raw()).collect();
    numbers.push(Signal::CHILD.as_raw());
    let mask = Mask::of(&numbers);
    mask.block()?;
    let signals = mask.descriptor()?;
    // The host's handler of core dumps would run outside, as its root; only a limit of 1 keeps it from that
    // (fs/coredump.c). It fails where the engine's own limit is 0, which cannot be raised.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(1), maximum: Some(1) });
    if let Some(leash) = leash {
        let leash = fs_err::File::open(leash)?;
        std::thread::Builder::new().spawn(move || end_with(&leash))?;
    }
    // It starts with these blocked, and unblocks them itself.
    let server = Command::new("/proc/self/exe").args(std::env::args_os().skip(1)).spawn()?;
    let server = i32::try_from(server.id()).ok().and_then(Pid::from_raw).expect("a child's id is positive");
    loop {
        while let Ok(Some(waited)) = wait_any() {
            if waited.pid == server.as_raw_nonzero().get()
                && let Some(code) = code_of(waited.status)
            {
                return Ok(code);
            }
        }
        poll(&mut [PollFd::new(&signals, PollFlags::IN)], None)?;
        for number in pending(&signals) {
            if let Some(order) = ORDERS.into_iter().find(|signal| signal.as_raw() == number) {
                let _ = kill_process(server, order); // it may have ended meanwhile
            }
        }
    }
}

/// Ends the sandbox when the lock on its leash is gone, and with it the process that held it. Nobody inside can stand
/// in the way: the file can only be read here, so what others can have is a lock like this one, which is shared.
fn end_with(leash: &fs_err::File) {
    while fcntl_lock(leash, FlockOperation::LockShared) == Err(rustix::io::Errno::INTR) {}
    log::line(format_args!("the process that kept the sandbox has ended"));
    std::process::exit(UNWANTED);
}

/// What a process that ended exited with, as shells tell it; none of one that was merely stopped, wait(2).
fn code_of(status: i32) -> Option<u8> {
    let (signal, code) = (status & 0x7f, (status >> 8) & 0xff);
    match signal {
        0 => u8::try_from(code).ok(),
        0x7f => None,
        signal => u8::try_from(128 + signal).ok(),
    }
}
