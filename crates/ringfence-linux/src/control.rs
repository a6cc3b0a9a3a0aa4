//! Messages between the launching side and a sandbox's first process, on a `SOCK_SEQPACKET` pair.
//!
//! The first process treats the end of the stream as an order to end everything. The sandboxes of a
//! launcher therefore end with it, however the launcher dies.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::sys::process::ResourceUsage;

/// A message from the first process to the launching side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlReport {
    /// A set-up step failed, so the command was not run.
    SetupFailed {
        /// Description of the step: the action and its object.
        step: String,
        /// Error number of the system call, or 0 if there is none.
        errno: i32,
    },
    /// The sandbox was built, but the command could not be executed.
    ExecFailed {
        /// Error number of execve(2).
        errno: i32,
    },
    /// The first process has created the command's process, which has executed its program or
    /// reported why not.
    Started {
        /// Process id of the command, as the first process sees it.
        pid: i32,
    },
    /// A signal stopped the command.
    Stopped {
        /// Number of the signal.
        signal: i32,
    },
    /// The command ended.
    Ended(CommandEnding),
}

/// The result of a command that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandEnding {
    /// Exit code of the command; absent if a signal ended it.
    pub exit_code: Option<i32>,
    /// Signal that ended the command; absent if it exited.
    pub signal: Option<i32>,
    /// Resources that all processes of the run used.
    pub usage: ResourceUsage,
    /// True if every process of the run is known to be gone.
    pub swept: bool,
}

impl CommandEnding {
    /// Decodes a wait status, wait(2).
    pub fn from_status(status: i32, usage: ResourceUsage, swept: bool) -> Self {
        let signalled = libc::WIFSIGNALED(status);
        CommandEnding {
            exit_code: (!signalled).then(|| libc::WEXITSTATUS(status)),
            signal: signalled.then(|| libc::WTERMSIG(status)),
            usage,
            swept,
        }
    }
}

/// A message from the launching side to the first process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlOrder {
    /// Order to send the signal with this number to the command's process group.
    Signal(i32),
    /// Order to continue the stopped command.
    Continue {
        /// True if the command's process group becomes the foreground group of the terminal again.
        foreground: bool,
    },
    /// Order to end every process of the run.
    End,
}

/// Size limit of a message, in bytes. Only a faulty sender produces a longer one.
const MAX_MESSAGE_BYTES: usize = 8 * 1024;

/// Creates a connected pair of sockets.
pub fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Sends one message. A peer that is gone is not an error, because nobody needs the message then.
pub fn send<T: Serialize>(socket: impl AsFd, message: &T) -> io::Result<()> {
    send_with_flags(socket, message, SendFlags::NOSIGNAL)
}

/// Sends one message without waiting. Fails with `WouldBlock` if the peer has too many unread
/// messages, so that a peer that never reads cannot block the sender.
pub fn try_send<T: Serialize>(socket: impl AsFd, message: &T) -> io::Result<()> {
    send_with_flags(socket, message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

fn send_with_flags<T: Serialize>(
    socket: impl AsFd,
    message: &T,
    flags: SendFlags,
) -> io::Result<()> {
    let bytes = postcard::to_stdvec(message).map_err(io::Error::other)?;
    match rustix::net::send(socket, &bytes, flags) {
        Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Receives one message, or `None` if the peer is gone.
///
/// If `flags` say not to wait and there is no message, the error is `WouldBlock`.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd, flags: RecvFlags) -> io::Result<Option<T>> {
    let mut buffer = [0u8; MAX_MESSAGE_BYTES];
    let mut was_reset = false;
    loop {
        return match rustix::net::recv(&socket, &mut buffer[..], flags) {
            // If the peer ended with orders unread, the first call returns ECONNRESET. The next
            // call returns the messages that the peer had sent (unix(7)).
            Err(Errno::CONNRESET) if !was_reset => {
                was_reset = true;
                continue;
            }
            Ok((_, 0)) | Err(Errno::CONNRESET) => Ok(None),
            Ok((_, length)) => {
                postcard::from_bytes(&buffer[..length]).map(Some).map_err(io::Error::other)
            }
            Err(Errno::INTR) => continue,
            Err(error) => Err(error.into()),
        };
    }
}
