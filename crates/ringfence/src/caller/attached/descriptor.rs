//! Reads and writes descriptors that other processes may share, without blocking.
//!
//! `O_NONBLOCK` belongs to the open file description, so setting it on a terminal or a pipe would
//! change the behaviour of the caller's shell. Instead, this module waits until a descriptor is
//! ready, and then reads or writes no more than is possible without blocking.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ReadWriteFlags};
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

/// Number of bytes that a pipe accepts at once when it is ready for writing, pipe(7).
const PIPE_WRITE_BYTES: usize = rustix::pipe::PIPE_BUF;

/// A stream of the caller.
pub(super) enum CallerDescriptor<'a> {
    /// A descriptor whose readiness the runtime watches.
    Watched(AsyncFd<BorrowedFd<'a>>),
    /// A regular file, which epoll_ctl(2) cannot watch because it is always ready.
    Ready(BorrowedFd<'a>),
}

impl<'a> CallerDescriptor<'a> {
    pub(super) fn to_read(fd: BorrowedFd<'a>) -> CallerDescriptor<'a> {
        CallerDescriptor::watch(fd, Interest::READABLE)
    }

    pub(super) fn to_write(fd: BorrowedFd<'a>) -> CallerDescriptor<'a> {
        CallerDescriptor::watch(fd, Interest::WRITABLE)
    }

    fn watch(fd: BorrowedFd<'a>, interest: Interest) -> CallerDescriptor<'a> {
        crate::run::readiness::watch(fd, interest)
            .map_or(CallerDescriptor::Ready(fd), CallerDescriptor::Watched)
    }

    /// Reads the bytes that are available; returns 0 at the end.
    pub(super) async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let done = match self {
                CallerDescriptor::Ready(fd) => rustix::io::read(fd, &mut *buffer),
                CallerDescriptor::Watched(watched) => {
                    let mut ready = watched.readable().await?;
                    act_if_ready(&mut ready, PollFlags::IN, |fd| rustix::io::read(fd, &mut *buffer))
                }
            };
            match done {
                Err(Errno::AGAIN | Errno::INTR) => {}
                done => return Ok(done?),
            }
        }
    }

    /// Writes all of `bytes`, and waits while the descriptor is not ready.
    pub(super) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let done = match self {
                CallerDescriptor::Ready(fd) => rustix::io::write(fd, bytes),
                CallerDescriptor::Watched(watched) => {
                    let mut ready = watched.writable().await?;
                    act_if_ready(&mut ready, PollFlags::OUT, |fd| write_now(fd, bytes))
                }
            };
            match done {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(length) => bytes = &bytes[length..],
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Writes as many bytes as a ready descriptor accepts at once.
fn write_now(fd: BorrowedFd<'_>, bytes: &[u8]) -> rustix::io::Result<usize> {
    const CURRENT_POSITION: u64 = u64::MAX; // the file's own position, readv(2)
    match rustix::io::pwritev2(fd, &[IoSlice::new(bytes)], CURRENT_POSITION, ReadWriteFlags::NOWAIT)
    {
        // Terminals, and pipes before Linux 6.4, do not support `RWF_NOWAIT`. Write no more than a
        // ready pipe accepts without blocking.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
            rustix::io::write(fd, &bytes[..bytes.len().min(PIPE_WRITE_BYTES)])
        }
        done => done,
    }
}

/// Calls `act` if the descriptor is still ready, and returns `EAGAIN` otherwise.
fn act_if_ready<'a>(
    ready: &mut AsyncFdReadyGuard<'_, BorrowedFd<'a>>,
    what: PollFlags,
    act: impl FnOnce(BorrowedFd<'a>) -> rustix::io::Result<usize>,
) -> rustix::io::Result<usize> {
    let fd = *ready.get_inner();
    let mut polled = [PollFd::from_borrowed_fd(fd, what)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let done = if poll(&mut polled, Some(&now))? > 0 { act(fd) } else { Err(Errno::AGAIN) };
    if done == Err(Errno::AGAIN) {
        ready.clear_ready();
    }
    done
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Duration;

    use rustix::fs::{OFlags, fcntl_getfl};
    use tokio::time::timeout;

    use super::*;

    const TEST_TIMEOUT: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn a_full_pipe_is_waited_for_and_its_flags_stay() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let bytes: Vec<u8> = (0..1_000_000).map(|index| index as u8).collect();
        let write = async {
            CallerDescriptor::to_write(writer.as_fd()).write_all(&bytes).await.unwrap();
        };
        let read = async {
            let reader = CallerDescriptor::to_read(reader.as_fd());
            let (mut all, mut buffer) = (Vec::new(), vec![0; 8192]);
            while all.len() < bytes.len() {
                let length = reader.read(&mut buffer).await.unwrap();
                all.extend_from_slice(&buffer[..length]);
            }
            all
        };
        // Both sides run on one thread, so a call that blocks would stop the other side, too.
        let ((), all) = timeout(TEST_TIMEOUT, async { tokio::join!(write, read) }).await.unwrap();
        assert!(all == bytes);
        assert!(!fcntl_getfl(&writer).unwrap().contains(OFlags::NONBLOCK));
        drop(writer);
        let length =
            timeout(TEST_TIMEOUT, CallerDescriptor::to_read(reader.as_fd()).read(&mut [0]))
                .await
                .unwrap();
        assert_eq!(length.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_pipe_that_nobody_reads_is_broken() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        drop(reader);
        let written =
            timeout(TEST_TIMEOUT, CallerDescriptor::to_write(writer.as_fd()).write_all(b"x"))
                .await
                .unwrap();
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn a_file_is_always_ready() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let file = fs_err::File::create(&path).unwrap();
        let descriptor = CallerDescriptor::to_write(file.as_fd());
        assert!(matches!(descriptor, CallerDescriptor::Ready(_)));
        timeout(TEST_TIMEOUT, descriptor.write_all(&[7; 100_000])).await.unwrap().unwrap();
        assert_eq!(fs_err::read(&path).unwrap(), [7; 100_000]);
    }
}
