//! Moving of bytes from one TCP connection to another without a copy in this process.
//!
//! Copying costs as much as sending and receiving together. Bytes that splice(2) moves stay in the
//! kernel's own pages, so that a busy stream costs less.
//!
//! splice(2) raises SIGPIPE when the receiving connection was closed. Rust's runtime and Python's
//! runtime ignore that signal.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Most pipes that may exist at once. Further streams are copied, because each pipe has two
/// descriptors and holds kernel memory.
const MAX_PIPES: usize = 64;
/// Number of bytes that a pipe holds. By default, all pipes of an unprivileged user may hold 64 MiB
/// together: see `pipe-user-pages-soft` in pipe(7).
const PIPE_CAPACITY_BYTES: usize = 512 * 1024;

static OPEN_PIPES: AtomicUsize = AtomicUsize::new(0);

/// Kernel pipe through which bytes move from one connection to another.
#[derive(Debug)]
pub(crate) struct SplicePipe {
    reader: OwnedFd,
    writer: OwnedFd,
    held: usize,
}

impl SplicePipe {
    /// Creates a pipe. Returns `None` if [`MAX_PIPES`] exist already or the kernel provides no
    /// pipe.
    pub(crate) fn new() -> Option<SplicePipe> {
        let another = |pipes| (pipes < MAX_PIPES).then_some(pipes + 1);
        OPEN_PIPES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, another).ok()?;
        let Ok((reader, writer)) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK) else {
            OPEN_PIPES.fetch_sub(1, Ordering::Relaxed);
            return None;
        };
        let _ = fcntl_setpipe_size(&writer, PIPE_CAPACITY_BYTES); // a failure only costs speed
        Some(SplicePipe { reader, writer, held: 0 })
    }

    /// Returns whether the pipe holds no bytes.
    pub(crate) fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Moves the available bytes once. Returns zero at the end of `from`. While `poll` waits for
    /// `from`, the pipe is empty.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &TcpStream,
        to: &TcpStream,
    ) -> Poll<io::Result<usize>> {
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let mut moved = 0;
        // The pipe is empty here and has room, so a `WouldBlock` comes from `from`. In the loop
        // below, the pipe holds bytes, so a `WouldBlock` comes from `to`.
        while self.held == 0 {
            ready!(from.poll_read_ready(cx))?;
            let fill = || Ok(splice(from, None, &self.writer, None, PIPE_CAPACITY_BYTES, flags)?);
            match from.try_io(Interest::READABLE, fill) {
                Ok(0) => return Poll::Ready(Ok(0)),
                Ok(filled) => self.held = filled,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        while self.held > 0 {
            ready!(to.poll_write_ready(cx))?;
            let drain = || Ok(splice(&self.reader, None, to, None, self.held, flags)?);
            match to.try_io(Interest::WRITABLE, drain) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(drained) => {
                    self.held -= drained;
                    moved += drained;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(moved))
    }
}

impl Drop for SplicePipe {
    fn drop(&mut self) {
        OPEN_PIPES.fetch_sub(1, Ordering::Relaxed);
    }
}
