//! Attempts on the caller's terminal, environment variables and descriptors.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::parent_id;

use ringfence_core::Clause::{Environment, Terminal};
use ringfence_linux::sys::attempt::{self, ArgumentWidth};
use rustix::fs::{Mode, OFlags};
use rustix::pty::OpenptFlags;

use super::{Attempt, AttemptContext, denied, impossible, no_result, refused};

/// The error with which the filter refuses a call.
const EPERM: &[i32] = &[libc::EPERM];

/// Attempts to type into the caller's terminal.
pub(super) const TERMINAL: &[Attempt] = &[
    refused(
        "type-into-terminal",
        Terminal,
        "type into the controlling terminal by TIOCSTI",
        EPERM,
        |_| {
            attempt::type_into(open_terminal()?.as_fd(), ArgumentWidth::Plain)
                .map(|()| "a character was typed".to_owned())
        },
    ),
    refused(
        "type-into-terminal-wide",
        Terminal,
        "type by TIOCSTI with a bit that a filter may trip over",
        EPERM,
        |_| {
            attempt::type_into(open_terminal()?.as_fd(), ArgumentWidth::Widened)
                .map(|()| "a character was typed".to_owned())
        },
    ),
    refused("paste-into-terminal", Terminal, "paste into a terminal by TIOCLINUX", EPERM, |_| {
        attempt::query_console(open_terminal()?.as_fd())
            .map(|()| "the terminal answered".to_owned())
    }),
];

/// Attempts to find variables and descriptors that the caller does not pass.
pub(super) const ENVIRONMENT: &[Attempt] = &[
    denied(
        "read-variable",
        Environment,
        "read a variable of the caller that is not passed",
        |context| {
            if context.variables.is_empty() {
                return Err(impossible("the caller has no variable that is not passed"));
            }
            let found =
                context.variables.iter().filter(|name| std::env::var_os(name).is_some()).count();
            if found > 0 {
                Ok(format!("{found} were found"))
            } else {
                Err(no_result("none is there"))
            }
        },
    ),
    denied(
        "read-parent-environment",
        Environment,
        "read such a variable in the parent's /proc/PID/environ",
        |context| find_variable(&fs_err::read(format!("/proc/{}/environ", parent_id()))?, context),
    ),
    denied(
        "read-parent-memory",
        Environment,
        "read such a variable in the parent's memory",
        |context| find_variable(&read_parent_stack()?, context),
    ),
    denied(
        "use-descriptor",
        Environment,
        "use a descriptor that the caller has open and does not pass",
        |context| {
            let number =
                context.descriptor.ok_or_else(|| impossible("the caller has none open"))?;
            ringfence_linux::sys::process::duplicate(number).map(|_| "it was used".to_owned())
        },
    ),
];

/// Opens a pseudo-terminal that becomes the controlling terminal of this session.
fn open_terminal() -> io::Result<OwnedFd> {
    let _ = rustix::process::setsid(); // fails if this process already leads a process group
    let master =
        rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::pty::grantpt(&master)?;
    rustix::pty::unlockpt(&master)?;
    let name = rustix::pty::ptsname(&master, Vec::new())?;
    let slave = rustix::fs::open(name.as_c_str(), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    // Closing the master would hang up the session before the attempt has reported its result.
    std::mem::forget(master);
    Ok(slave)
}

/// Searches for a variable of the caller in memory that was read from a process.
fn find_variable(memory: &[u8], context: &AttemptContext) -> io::Result<String> {
    if context.variables.is_empty() {
        return Err(impossible("the caller has no variable that is not passed"));
    }
    let is_there = |name: &&String| {
        let assignment = format!("{name}=").into_bytes();
        memory.windows(assignment.len()).any(|part| part == assignment)
    };
    match context.variables.iter().filter(is_there).count() {
        0 => Err(no_result("none is there")),
        count => Ok(format!("{count} were found")),
    }
}

/// Reads the stack of the parent process, which holds its environment at the top.
fn read_parent_stack() -> io::Result<Vec<u8>> {
    let parent = parent_id();
    let maps = fs_err::read_to_string(format!("/proc/{parent}/maps"))?;
    let line = maps
        .lines()
        .find(|line| line.ends_with("[stack]"))
        .ok_or_else(|| no_result("it has no stack"))?;
    let range = line.split(' ').next().and_then(|range| range.split_once('-'));
    let address = |text: &str| u64::from_str_radix(text, 16).map_err(io::Error::other);
    let (start, end) = range.ok_or_else(|| impossible("its maps cannot be read"))?;
    let (start, end) = (address(start)?, address(end)?);
    let mut stack = vec![0; usize::try_from(end.saturating_sub(start)).map_err(io::Error::other)?];
    fs_err::File::open(format!("/proc/{parent}/mem"))?.file().read_exact_at(&mut stack, start)?;
    Ok(stack)
}
