//! Pipes between a command and files of its caller that stay outside the sandbox.
//!
//! The relays never wait, because the loop that serves them also serves the deadline, the signals
//! and the end of the run. A relay holds bytes that were read and could not be written yet, so that
//! no byte is lost. The relay polls the side that is not ready.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::fs::{FileType, Mode, OFlags, SeekFrom, fcntl_getfl, fstat, open, seek};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

/// Maximum number of bytes that are copied at once, and so the most that a relay holds.
const MAX_COPY_BYTES: usize = 64 * 1024;
/// Number of bytes for which a pipe has room if poll(2) says that the pipe can be written.
const PIPE_WRITE_BYTES: usize = 4096;

/// Failure to copy the bytes of a standard stream.
#[derive(Debug)]
pub(crate) struct StreamFailure {
    pub(crate) stream: &'static str,
    pub(crate) source: io::Error,
}

/// Pipes between a command and files of its caller.
#[derive(Debug, Default)]
pub(crate) struct StreamRelays {
    relays: Vec<StreamRelay>,
    failure: Option<StreamFailure>,
}

impl StreamRelays {
    /// Makes a pipe for each stream, and returns the command's ends by number. A stream is given as
    /// its number, its descriptor, and `true` if the stream is output.
    pub(super) fn open(
        streams: impl Iterator<Item = (usize, BorrowedFd<'static>, bool)>,
    ) -> io::Result<([Option<OwnedFd>; 3], StreamRelays)> {
        let mut ends: [Option<OwnedFd>; 3] = [None, None, None];
        let mut relays: Vec<StreamRelay> = Vec::new();
        for (number, outside, is_output) in streams {
            let is_twin =
                |relay: &StreamRelay| is_output && is_same_description(relay.outside, outside);
            if let Some(output) = relays.iter().find(|relay| relay.is_output && is_twin(relay)) {
                // Share one pipe, because two pipes would not keep the order of the bytes that are
                // written to both.
                ends[number] = ends[output.number].as_ref().map(OwnedFd::try_clone).transpose()?;
                continue;
            }
            let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
            let (own_end, command_end) =
                if is_output { (reader, writer) } else { (writer, reader) };
            rustix::io::ioctl_fionbio(&own_end, true)?;
            let gives_back = !is_output && seek(outside, SeekFrom::Current(0)).is_ok();
            let unread =
                gives_back.then(|| open_again(command_end.as_fd(), OFlags::RDONLY)).transpose()?;
            let outside_io = OutsideIo::for_file(outside, is_output);
            let buffer = Vec::with_capacity(MAX_COPY_BYTES);
            relays.push(StreamRelay {
                number,
                outside,
                outside_io,
                pipe: Some(own_end),
                is_output,
                input_of_description: relays.iter().position(is_twin),
                unread,
                given: 0,
                buffer,
                written: 0,
                left_to_drain: None,
            });
            ends[number] = Some(command_end);
        }
        Ok((ends, StreamRelays { relays, failure: None }))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.relays.is_empty()
    }

    /// Returns the descriptor and the event that each relay waits for, or `None` for a relay that
    /// has ended.
    pub(crate) fn interests(&self) -> impl Iterator<Item = Option<(BorrowedFd<'_>, PollFlags)>> {
        self.relays.iter().map(StreamRelay::interest)
    }

    /// Tells whether the run has to wait for output that has not reached its file yet.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.relays.iter().any(|relay| relay.is_output && relay.pipe.is_some())
    }

    /// Copies the available bytes of each relay that is ready.
    pub(crate) fn copy(&mut self, ready: &[bool]) {
        for index in (0..self.relays.len()).filter(|index| ready.get(*index) == Some(&true)) {
            self.copy_one(index);
        }
    }

    /// Copies the bytes that the command wrote before it ended, and then ends the output.
    ///
    /// A process outside may hold the command's end of a pipe. The relay does not wait for that
    /// process.
    pub(crate) fn drain(&mut self) {
        for index in 0..self.relays.len() {
            let relay = &mut self.relays[index];
            if let (true, Some(pipe), None) = (relay.is_output, &relay.pipe, relay.left_to_drain) {
                relay.left_to_drain =
                    Some(rustix::io::ioctl_fionread(pipe).map_or(0, |length| length as usize));
                self.copy_one(index);
            }
        }
    }

    /// Ends all relays, and returns the bytes that the command left unread to the caller's files.
    pub(crate) fn finish(&mut self) {
        for relay in &mut self.relays {
            relay.take_back();
            relay.unread = None;
            relay.pipe = None;
        }
    }

    /// Takes the first failure, if there was one.
    pub(crate) fn take_failure(&mut self) -> Option<StreamFailure> {
        self.failure.take()
    }

    fn copy_one(&mut self, index: usize) {
        if let Some(input) = self.relays[index].input_of_description {
            // Output must begin at the offset where the command stopped reading, not where the
            // relay did.
            self.relays[input].take_back();
        }
        let relay = &mut self.relays[index];
        let copied = if relay.is_output { relay.copy_out() } else { relay.copy_in() };
        if let Err(error) = copied {
            // After a failure, the command gets SIGPIPE for its output, or end of file for its
            // input.
            relay.pipe = None;
            // It is not our failure if a reader outside is gone: SIGPIPE tells the command.
            if error != Errno::PIPE {
                let stream = ["standard input", "standard output", "standard error"][relay.number];
                self.failure.get_or_insert(StreamFailure { stream, source: error.into() });
            }
        }
    }
}

/// Way to read or write a file outside without waiting for the file.
#[derive(Debug)]
enum OutsideIo {
    /// Uses the caller's descriptor, because its file never blocks or the descriptor has
    /// O_NONBLOCK.
    Direct,
    /// Uses an open file description of our own with O_NONBLOCK, because the flags of the caller's
    /// description belong to the caller.
    Unblocked(OwnedFd),
    /// Uses the caller's descriptor, which may block, and writes no more bytes than poll(2)
    /// promises.
    AfterPoll,
}

impl OutsideIo {
    fn for_file(outside: BorrowedFd<'_>, is_output: bool) -> OutsideIo {
        let kind =
            fstat(outside).map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode));
        let is_unblocked = fcntl_getfl(outside).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK));
        if matches!(kind, FileType::RegularFile | FileType::BlockDevice) || is_unblocked {
            return OutsideIo::Direct;
        }
        let access = if is_output { OFlags::WRONLY } else { OFlags::RDONLY };
        match kind {
            FileType::Fifo => {
                open_again(outside, access).map_or(OutsideIo::AfterPoll, OutsideIo::Unblocked)
            }
            // Do not open a device again, because that may lead to another device.
            _ => OutsideIo::AfterPoll,
        }
    }
}

/// Pipe between a command and a file outside.
#[derive(Debug)]
struct StreamRelay {
    number: usize,
    outside: BorrowedFd<'static>,
    outside_io: OutsideIo,
    /// Our end of the pipe, which does not block; `None` after the relay has ended.
    pipe: Option<OwnedFd>,
    is_output: bool,
    /// Index of the relay for the input from the same open file description, as in `<> file 1>&0`.
    input_of_description: Option<usize>,
    /// Second reading end of the pipe, for taking back the bytes of a file that the command has not
    /// read.
    unread: Option<OwnedFd>,
    /// Number of bytes of the file that were written to the pipe and not taken back.
    given: usize,
    /// Bytes that were read. The first `written` of them are written already.
    buffer: Vec<u8>,
    written: usize,
    /// Number of bytes in the pipe that the command wrote before it ended; `None` until the command
    /// has ended.
    left_to_drain: Option<usize>,
}

impl StreamRelay {
    fn interest(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let pipe = self.pipe.as_ref()?.as_fd();
        // Poll the caller's own description, because only that one knows whether a named pipe has
        // had a writer before.
        Some(match (self.is_output, self.pending().is_empty()) {
            (true, true) => (pipe, PollFlags::IN),
            (true, false) => (self.outside, PollFlags::OUT),
            (false, true) => (self.outside, PollFlags::IN),
            (false, false) => (pipe, PollFlags::OUT),
        })
    }

    fn pending(&self) -> &[u8] {
        &self.buffer[self.written..]
    }

    fn outside(&self) -> BorrowedFd<'_> {
        if let OutsideIo::Unblocked(fd) = &self.outside_io { fd.as_fd() } else { self.outside }
    }

    /// Copies bytes from the command to the file.
    fn copy_out(&mut self) -> Result<(), Errno> {
        loop {
            if self.pending().is_empty() {
                let Some(pipe) = &self.pipe else { return Ok(()) };
                let most = self.left_to_drain.unwrap_or(MAX_COPY_BYTES).min(MAX_COPY_BYTES);
                self.written = 0;
                match read_into(&mut self.buffer, pipe.as_fd(), most)? {
                    Some(0) => {
                        self.pipe = None;
                        return Ok(());
                    }
                    Some(length) => {
                        self.left_to_drain = self.left_to_drain.map(|left| left - length)
                    }
                    None => return Ok(()),
                }
            }
            let promised = if let OutsideIo::AfterPoll = self.outside_io {
                PIPE_WRITE_BYTES
            } else {
                usize::MAX
            };
            let length = self.pending().len().min(promised);
            match rustix::io::write(self.outside(), &self.pending()[..length]) {
                Ok(0) => return Err(Errno::IO),
                Ok(written) => self.written += written,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error),
            }
            // Return so that other streams get their turn. A file that may block must be polled
            // again before the next write.
            let is_written = self.pending().is_empty();
            match self.outside_io {
                OutsideIo::AfterPoll if !is_written => return Ok(()),
                _ if is_written && self.left_to_drain.is_none() => return Ok(()),
                _ => {}
            }
        }
    }

    /// Copies bytes from the file to the command.
    fn copy_in(&mut self) -> Result<(), Errno> {
        if self.pending().is_empty() {
            let source = if let OutsideIo::Unblocked(fd) = &self.outside_io {
                fd.as_fd()
            } else {
                self.outside
            };
            self.written = 0;
            match read_into(&mut self.buffer, source, MAX_COPY_BYTES)? {
                Some(0) => {
                    self.pipe = None; // the command gets end of file
                    return Ok(());
                }
                Some(_) => {}
                None => return Ok(()),
            }
        }
        let Some(pipe) = &self.pipe else { return Ok(()) };
        match rustix::io::write(pipe, self.pending()) {
            Ok(written) => {
                self.written += written;
                self.given += written;
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Takes back the bytes that the command has not read, and moves the caller's file offset back
    /// by their number.
    fn take_back(&mut self) {
        let Some(unread) = &self.unread else { return };
        let mut length = self.pending().len();
        self.written = 0;
        // A command can open the other end of its pipe, and write bytes into it that are not the
        // file's. So no more bytes are taken back than were given.
        let in_pipe = rustix::io::ioctl_fionread(unread).map_or(0, |length| length as usize);
        let mut left = in_pipe.min(self.given);
        while let Ok(Some(taken @ 1..)) =
            read_into(&mut self.buffer, unread.as_fd(), left.min(MAX_COPY_BYTES))
        {
            left -= taken;
            length += taken;
            self.given -= taken;
        }
        self.buffer.clear();
        if length == 0 {
            return;
        }
        // The seek cannot leave the file, because the offset was there a moment ago.
        let _ = seek(self.outside, SeekFrom::Current(-(length as i64)));
        if self.pipe.is_none() {
            // The offset is no longer at the end of the file, so the relay continues.
            self.pipe = open_again(unread.as_fd(), OFlags::WRONLY).ok();
        }
    }
}

/// Replaces the content of `buffer` by at most `most` bytes of `source`. Returns their number, 0 at
/// the end of the source, or `None` if there is nothing to read yet.
fn read_into(
    buffer: &mut Vec<u8>,
    source: BorrowedFd<'_>,
    most: usize,
) -> Result<Option<usize>, Errno> {
    buffer.clear();
    if most == 0 {
        return Ok(Some(0));
    }
    buffer.resize(most, 0);
    let read = rustix::io::read(source, &mut buffer[..]);
    buffer.truncate(*read.as_ref().unwrap_or(&0));
    match read {
        Ok(length) => Ok(Some(length)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens a pipe again, as an open file description of our own that does not block.
fn open_again(fd: BorrowedFd<'_>, access: OFlags) -> Result<OwnedFd, Errno> {
    let flags = access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    open(format!("/proc/self/fd/{}", fd.as_raw_fd()), flags, Mode::empty())
}

/// Tells whether two descriptors have the same file, flags and offset, as those of `> file 2>&1`
/// do.
fn is_same_description(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> bool {
    let facts = |fd| {
        let stat = fstat(fd).ok()?;
        Some((stat.st_dev, stat.st_ino, fcntl_getfl(fd).ok()?, seek(fd, SeekFrom::Current(0)).ok()))
    };
    facts(one) == facts(other)
}
