//! A command's streams: pipes, or a terminal of its own. Our ends never wait.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use ringfence_proto::bytes::Bytes;
use ringfence_proto::process::{DataEvent, PtySize};
use rustix::fs::{Mode, OFlags};
use rustix::io::ioctl_fionbio;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::Mutex;

/// How much is read at once. What waits for a slow client is a few of these.
const CHUNK: usize = 128 * 1024;
/// How much a command can write before it is read: with less it and we take turns (pipe(7)).
const PIPE: usize = 256 * 1024;
/// A terminal whose size nobody said.
const USUAL: Winsize = Winsize { ws_col: 80, ws_row: 24, ws_xpixel: 0, ws_ypixel: 0 };

/// Our ends of a command's streams.
#[derive(Debug)]
pub(super) struct Streams {
    pub(super) input: Input,
    pub(super) outputs: Vec<Output>,
}

/// Where a command's input is written.
#[derive(Debug)]
pub(super) enum Input {
    /// It has none.
    Nothing,
    /// A pipe, until it is closed.
    Pipe(Mutex<Option<Sender>>),
    /// Its terminal: what writes to it, one caller at a time, and what changes its size.
    Terminal { writer: Mutex<Sender>, size: OwnedFd },
}

/// Something that a command writes to.
#[derive(Debug)]
pub(super) struct Output {
    file: Option<Receiver>,
    event: fn(Bytes) -> DataEvent,
}

/// The command's ends: standard input, output and error.
pub(super) type Stdio = [Option<OwnedFd>; 3];

/// Pipes; `/dev/null` for an input that is not wanted.
pub(super) fn pipes(has_input: bool) -> io::Result<(Streams, Stdio)> {
    let (stdin, input) = if has_input {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        (reader, Input::Pipe(Mutex::new(Some(Sender::from_owned_fd_unchecked(never_waiting(writer)?)?))))
    } else {
        (rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?, Input::Nothing)
    };
    let (stdout_reader, stdout) = wide_pipe()?;
    let (stderr_reader, stderr) = wide_pipe()?;
    let outputs = vec![Output::of(stdout_reader, DataEvent::Stdout)?, Output::of(stderr_reader, DataEvent::Stderr)?];
    Ok((Streams { input, outputs }, [Some(stdin), Some(stdout), Some(stderr)]))
}

/// A terminal.
pub(super) fn terminal(size: Option<PtySize>) -> io::Result<(Streams, Stdio)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = rustix::pty::openpt(flags)?;
    rustix::pty::unlockpt(&ours)?;
    // By descriptor: the path that ptsname(3) tells is the sandbox's to plant something at.
    let theirs = rustix::pty::ioctl_tiocgptpeer(&ours, flags)?;
    rustix::termios::tcsetwinsize(&ours, size.map_or(USUAL, |size| window(size, USUAL)))?;
    let stdio = [Some(theirs.try_clone()?), Some(theirs.try_clone()?), Some(theirs)];
    let outputs = vec![Output::of(ours.try_clone()?, DataEvent::Pty)?];
    let writer = Mutex::new(Sender::from_owned_fd_unchecked(never_waiting(ours.try_clone()?)?)?);
    Ok((Streams { input: Input::Terminal { writer, size: ours }, outputs }, stdio))
}

fn wide_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    let _ = fcntl_setpipe_size(&writer, PIPE); // a user has only so much; then it is slower
    Ok((reader, writer))
}

fn never_waiting(file: OwnedFd) -> io::Result<OwnedFd> {
    ioctl_fionbio(&file, true)?;
    Ok(file)
}

/// The size that was asked for; a part that is 0 stays as it is.
fn window(size: PtySize, now: Winsize) -> Winsize {
    let part = |asked: u32, now| if asked == 0 { now } else { u16::try_from(asked).unwrap_or(u16::MAX) };
    Winsize { ws_col: part(size.cols, now.ws_col), ws_row: part(size.rows, now.ws_row), ..now }
}

/// Changes the size of a terminal.
pub(super) fn resize(terminal: &OwnedFd, size: PtySize) -> io::Result<()> {
    let now = rustix::termios::tcgetwinsize(terminal)?;
    Ok(rustix::termios::tcsetwinsize(terminal, window(size, now))?)
}

impl Output {
    fn of(file: OwnedFd, event: fn(Bytes) -> DataEvent) -> io::Result<Output> {
        Ok(Output { file: Some(Receiver::from_owned_fd_unchecked(never_waiting(file)?)?), event })
    }

    /// What was written to it next; `None` when nobody can write to it any more.
    pub(super) async fn next(&mut self) -> Option<DataEvent> {
        let file = self.file.as_ref()?;
        while file.readable().await.is_ok() {
            let mut bytes = Vec::with_capacity(CHUNK);
            match file.try_read_buf(&mut bytes) {
                Ok(1..) => return Some((self.event)(Bytes(bytes))),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                // A terminal that nobody has open any more says EIO, and not that it is at its end (tty_ioctl(4)).
                Ok(0) | Err(_) => break,
            }
        }
        self.file = None;
        None
    }

    /// What is there now, without waiting.
    pub(super) fn now(&self) -> Option<DataEvent> {
        let mut bytes = Vec::with_capacity(CHUNK);
        // Not by way of the runtime, which may not have seen yet that there is something.
        let read = rustix::io::read(self.file.as_ref()?.as_fd(), rustix::buffer::spare_capacity(&mut bytes));
        read.is_ok_and(|length| length > 0).then(|| (self.event)(Bytes(bytes)))
    }

    /// Whether nobody can write to it any more.
    pub(super) fn is_over(&self) -> bool {
        self.file.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_size_that_is_zero_changes_nothing() {
        let size = |cols, rows| {
            let window = window(PtySize { cols, rows }, USUAL);
            (window.ws_col, window.ws_row)
        };
        assert_eq!(size(0, 0), (80, 24));
        assert_eq!(size(132, 0), (132, 24));
        assert_eq!(size(1_000_000, 50), (u16::MAX, 50));
    }
}
