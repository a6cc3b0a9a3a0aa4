//! Carrier that is an executed process: joins the standard streams to the socket for links.
//!
//! The bytes are passed on as they are, each direction ends on its own, and the process writes
//! nothing of its own, because another program reads its output.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// Size in bytes of the buffer for each direction.
const BUFFER_BYTES: usize = 64 << 10;

/// Joins the standard streams to the Unix socket at `path` until both directions have ended.
pub(crate) fn carry_streams(path: &Path) -> ExitCode {
    match carry(path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn carry(path: &Path) -> io::Result<()> {
    let socket = UnixStream::connect(path)?;
    let inward = socket.try_clone()?;
    // The thread ends with the process.
    std::thread::Builder::new().spawn(move || {
        let _ = copy(rustix::stdio::stdin(), inward.as_fd()); // both ends may break at any time
        let _ = inward.shutdown(Shutdown::Write); // the socket may be closed already
    })?;
    copy(socket.as_fd(), rustix::stdio::stdout())?;
    // The guest sends no more. It may still receive, until it closes its end or the standard input
    // has ended: then the kernel reports a hang-up, poll(2).
    loop {
        match poll(&mut [PollFd::new(&socket, PollFlags::empty())], None) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Copies bytes until `from` ends.
fn copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let count = match rustix::io::read(from, &mut *buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) => {
                wait_after(error, from, PollFlags::IN)?;
                continue;
            }
        };
        let mut rest = &buffer[..count];
        while !rest.is_empty() {
            match rustix::io::write(to, rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) => wait_after(error, to, PollFlags::OUT)?,
            }
        }
    }
}

/// Waits until a call can be tried again. The other end of a standard stream may have made the
/// stream non-blocking.
fn wait_after(error: Errno, stream: BorrowedFd<'_>, event: PollFlags) -> io::Result<()> {
    match error {
        Errno::INTR => Ok(()),
        Errno::AGAIN => match poll(&mut [PollFd::new(&stream, event)], None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        },
        error => Err(error.into()),
    }
}
