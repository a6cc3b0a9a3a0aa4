//! Streams of a command: pipes, or a pseudoterminal. The guest's ends are non-blocking.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use ringfence_proto::bytes::Base64Bytes;
use ringfence_proto::process::{DataEvent, PtySize};
use rustix::fs::{Mode, OFlags};
use rustix::io::ioctl_fionbio;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::Mutex;

/// Maximum number of bytes in one read. Up to a few chunks wait in memory for a slow client.
const MAX_READ_BYTES: usize = 128 * 1024;
/// Capacity of an output pipe in bytes. With less, the command and the guest would run in turns
/// instead of at the same time (pipe(7)).
const PIPE_CAPACITY_BYTES: usize = 256 * 1024;
/// Size of a terminal if the request does not specify one.
const DEFAULT_WINDOW_SIZE: Winsize = Winsize { ws_col: 80, ws_row: 24, ws_xpixel: 0, ws_ypixel: 0 };

/// The guest's ends of a command's streams.
#[derive(Debug)]
pub(super) struct CommandStreams {
    pub(super) input: CommandInput,
    pub(super) outputs: Vec<CommandOutput>,
}

/// The guest's end of a command's input.
#[derive(Debug)]
pub(super) enum CommandInput {
    /// The command has no input.
    Nothing,
    /// Pipe to the command's standard input; `None` after the pipe was closed.
    Pipe(Mutex<Option<Sender>>),
    /// Pseudoterminal: `writer` accepts input of one caller at a time, and `size` is the descriptor
    /// for changes of the window size.
    Terminal { writer: Mutex<Sender>, size: OwnedFd },
}

/// The guest's end of a stream that a command writes to.
#[derive(Debug)]
pub(super) struct CommandOutput {
    file: Option<Receiver>,
    event: fn(Base64Bytes) -> DataEvent,
}

/// The command's ends of its standard input, output and error.
pub(super) type CommandStdio = [Option<OwnedFd>; 3];

/// Creates the pipes of a command. Without an input, the standard input is `/dev/null`.
pub(super) fn open_pipes(has_input: bool) -> io::Result<(CommandStreams, CommandStdio)> {
    let (stdin, input) = if has_input {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        (
            reader,
            CommandInput::Pipe(Mutex::new(Some(Sender::from_owned_fd_unchecked(
                set_nonblocking(writer)?,
            )?))),
        )
    } else {
        (
            rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?,
            CommandInput::Nothing,
        )
    };
    let (stdout_reader, stdout) = open_wide_pipe()?;
    let (stderr_reader, stderr) = open_wide_pipe()?;
    let outputs = vec![
        CommandOutput::new(stdout_reader, DataEvent::Stdout)?,
        CommandOutput::new(stderr_reader, DataEvent::Stderr)?,
    ];
    Ok((CommandStreams { input, outputs }, [Some(stdin), Some(stdout), Some(stderr)]))
}

/// Creates the pseudoterminal of a command.
pub(super) fn open_terminal(size: Option<PtySize>) -> io::Result<(CommandStreams, CommandStdio)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = rustix::pty::openpt(flags)?;
    rustix::pty::unlockpt(&ours)?;
    // Open the peer by descriptor, because a process in the sandbox could put another file at the
    // path that ptsname(3) returns.
    let theirs = rustix::pty::ioctl_tiocgptpeer(&ours, flags)?;
    rustix::termios::tcsetwinsize(
        &ours,
        size.map_or(DEFAULT_WINDOW_SIZE, |size| window_size(size, DEFAULT_WINDOW_SIZE)),
    )?;
    let stdio = [Some(theirs.try_clone()?), Some(theirs.try_clone()?), Some(theirs)];
    let outputs = vec![CommandOutput::new(ours.try_clone()?, DataEvent::Pty)?];
    let writer = Mutex::new(Sender::from_owned_fd_unchecked(set_nonblocking(ours.try_clone()?)?)?);
    Ok((CommandStreams { input: CommandInput::Terminal { writer, size: ours }, outputs }, stdio))
}

fn open_wide_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    // The kernel limits the total size of a user's pipes. A smaller pipe is slower, but works.
    let _ = fcntl_setpipe_size(&writer, PIPE_CAPACITY_BYTES);
    Ok((reader, writer))
}

fn set_nonblocking(file: OwnedFd) -> io::Result<OwnedFd> {
    ioctl_fionbio(&file, true)?;
    Ok(file)
}

/// Returns the requested window size. A dimension that is 0 stays as it is.
fn window_size(size: PtySize, now: Winsize) -> Winsize {
    let part =
        |asked: u32, now| if asked == 0 { now } else { u16::try_from(asked).unwrap_or(u16::MAX) };
    Winsize { ws_col: part(size.cols, now.ws_col), ws_row: part(size.rows, now.ws_row), ..now }
}

/// Changes the window size of a terminal.
pub(super) fn resize_terminal(terminal: &OwnedFd, size: PtySize) -> io::Result<()> {
    let now = rustix::termios::tcgetwinsize(terminal)?;
    Ok(rustix::termios::tcsetwinsize(terminal, window_size(size, now))?)
}

impl CommandOutput {
    fn new(file: OwnedFd, event: fn(Base64Bytes) -> DataEvent) -> io::Result<CommandOutput> {
        Ok(CommandOutput {
            file: Some(Receiver::from_owned_fd_unchecked(set_nonblocking(file)?)?),
            event,
        })
    }

    /// Returns the next output, or `None` when no process has the stream open for writing any more.
    pub(super) async fn next(&mut self) -> Option<DataEvent> {
        let file = self.file.as_ref()?;
        while file.readable().await.is_ok() {
            let mut bytes = Vec::with_capacity(MAX_READ_BYTES);
            match file.try_read_buf(&mut bytes) {
                Ok(1..) => return Some((self.event)(Base64Bytes(bytes))),
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) => {}
                // Reading a terminal that no process has open any more fails with EIO, instead of
                // returning 0 (tty_ioctl(4)).
                Ok(0) | Err(_) => break,
            }
        }
        self.file = None;
        None
    }

    /// Returns output that is available now, without waiting.
    pub(super) fn now(&self) -> Option<DataEvent> {
        let mut bytes = Vec::with_capacity(MAX_READ_BYTES);
        // Read directly, because the runtime may not have noticed yet that the descriptor is
        // readable.
        let read = rustix::io::read(
            self.file.as_ref()?.as_fd(),
            rustix::buffer::spare_capacity(&mut bytes),
        );
        read.is_ok_and(|length| length > 0).then(|| (self.event)(Base64Bytes(bytes)))
    }

    /// Returns true if no process has the stream open for writing any more.
    pub(super) fn is_closed(&self) -> bool {
        self.file.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dimension_of_zero_leaves_the_window_size_unchanged() {
        let size = |cols, rows| {
            let window = window_size(PtySize { cols, rows }, DEFAULT_WINDOW_SIZE);
            (window.ws_col, window.ws_row)
        };
        assert_eq!(size(0, 0), (80, 24));
        assert_eq!(size(132, 0), (132, 24));
        assert_eq!(size(1_000_000, 50), (u16::MAX, 50));
    }
}
