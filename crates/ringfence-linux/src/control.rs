//! How the launching side and a sandbox's first process talk: small messages on a `SOCK_SEQPACKET` pair.
//!
//! The first process treats the end of the stream as an order to end everything, so a launcher that dies,
//! however it dies, takes its sandboxes along.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::sys::process::Usage;

/// What the first process says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// A step of the set-up failed; nothing was run.
    SetupFailed {
        /// What was tried, and on what.
        step: String,
        /// The error of the system call, 0 when there is none.
        errno: i32,
    },
    /// The sandbox stands, and the command could not be executed.
    ExecFailed {
        /// The error of execve(2).
        errno: i32,
    },
    /// The first process has made the command's own, which has executed its program or said why not.
    Started {
        /// Its process id, as the first process sees it.
        pid: i32,
    },
    /// The command was stopped by a signal.
    Stopped {
        /// Which.
        signal: i32,
    },
    /// The command ended.
    Ended(Ending),
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// What it exited with; absent when a signal ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// What all processes of the run used.
    pub usage: Usage,
    /// Whether every process of the run is known to be gone.
    pub swept: bool,
}

impl Ending {
    /// Reads a wait status, wait(2).
    pub fn from_status(status: i32, usage: Usage, swept: bool) -> Self {
        let signalled = libc::WIFSIGNALED(status);
        Ending {
            exit_code: (!signalled).then(|| libc::WEXITSTATUS(status)),
            signal: signalled.then(|| libc::WTERMSIG(status)),
            usage,
            swept,
        }
    }
}

/// What the launching side says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Send this signal to the command's process group.
    Signal(i32),
    /// Continue the stopped command.
    Continue {
        /// Whether it becomes the foreground group of the terminal again.
        foreground: bool,
    },
    /// End every process of the run.
    End,
}

/// The longest message; one that is longer is an error of the sender.
const LONGEST: usize = 8 * 1024;

/// A connected pair.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends one message. A peer that is gone is not an error: there is nobody left to care.
pub fn send<T: Serialize>(socket: impl AsFd, message: &T) -> io::Result<()> {
    send_as(socket, message, SendFlags::NOSIGNAL)
}

/// Sends one message, unless the peer has too many that it did not read: nobody waits for one that reads none.
pub fn mention<T: Serialize>(socket: impl AsFd, message: &T) -> io::Result<()> {
    send_as(socket, message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

fn send_as<T: Serialize>(socket: impl AsFd, message: &T, flags: SendFlags) -> io::Result<()> {
    let bytes = postcard::to_stdvec(message).map_err(io::Error::other)?;
    match rustix::net::send(socket, &bytes, flags) {
        Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Receives one message; `None` when the peer is gone. `WouldBlock` when `flags` say not to wait.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd, flags: RecvFlags) -> io::Result<Option<T>> {
    let mut buffer = [0u8; LONGEST];
    let mut was_reset = false;
    loop {
        return match rustix::net::recv(&socket, &mut buffer[..], flags) {
            // A peer that ended with orders unread: the error comes first, and then what it had said (unix(7)).
            Err(Errno::CONNRESET) if !was_reset => {
                was_reset = true;
                continue;
            }
            Ok((_, 0)) | Err(Errno::CONNRESET) => Ok(None),
            Ok((_, length)) => postcard::from_bytes(&buffer[..length]).map(Some).map_err(io::Error::other),
            Err(Errno::INTR) => continue,
            Err(error) => Err(error.into()),
        };
    }
}
