//! Pipes between a command and files of its caller that stay outside.
//!
//! The relays never wait: one loop also serves the deadline, the signals and the end of the run. A relay holds bytes that
//! were read and could not be written yet, so that none is lost, and polls the side that is not ready.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::fs::{FileType, Mode, OFlags, SeekFrom, fcntl_getfl, fstat, open, seek};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

/// The number of bytes that are copied at once, and so the most that a relay holds.
const CHUNK: usize = 64 * 1024;
/// The number of bytes for which there is room in a pipe that poll(2) says can be written.
const PIPE_BUF: usize = 4096;

/// A standard stream whose bytes could not be copied.
#[derive(Debug)]
pub(crate) struct StreamFailure {
    pub(crate) stream: &'static str,
    pub(crate) source: io::Error,
}

/// The pipes between a command and files of its caller.
#[derive(Debug, Default)]
pub(crate) struct StreamRelays {
    relays: Vec<StreamRelay>,
    failure: Option<StreamFailure>,
}

impl StreamRelays {
    /// Makes a pipe for each stream, which is given as its number, its descriptor and whether it is output. Returns the
    /// command's ends by number.
    pub(super) fn open(
        streams: impl Iterator<Item = (usize, BorrowedFd<'static>, bool)>,
    ) -> io::Result<([Option<OwnedFd>; 3], StreamRelays)> {
        let mut ends: [Option<OwnedFd>; 3] = [None, None, None];
        let mut relays: Vec<StreamRelay> = Vec::new();
        for (number, outside, is_output) in streams {
            let is_twin = |relay: &StreamRelay| is_output && is_same_description(relay.outside, outside);
            if let Some(output) = relays.iter().find(|relay| relay.is_output && is_twin(relay)) {
                // Two pipes would not keep the order of what is written to both.
                ends[number] = ends[output.number].as_ref().map(OwnedFd::try_clone).transpose()?;
                continue;
            }
            let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
            let (ours, theirs) = if is_output { (reader, writer) } else { (writer, reader) };
            rustix::io::ioctl_fionbio(&ours, true)?;
            let gives_back = !is_output && seek(outside, SeekFrom::Current(0)).is_ok();
            let unread = gives_back.then(|| open_again(theirs.as_fd(), OFlags::RDONLY)).transpose()?;
            let outside_io = OutsideIo::of(outside, is_output);
            let buffer = Vec::with_capacity(CHUNK);
            relays.push(StreamRelay {
                number,
                outside,
                outside_io,
                pipe: Some(ours),
                is_output,
                input_of_description: relays.iter().position(is_twin),
                unread,
                given: 0,
                buffer,
                written: 0,
                left_to_drain: None,
            });
            ends[number] = Some(theirs);
        }
        Ok((ends, StreamRelays { relays, failure: None }))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.relays.is_empty()
    }

    /// The descriptor and the event that each relay waits for; none for a relay that has ended.
    pub(crate) fn interests(&self) -> impl Iterator<Item = Option<(BorrowedFd<'_>, PollFlags)>> {
        self.relays.iter().map(StreamRelay::interest)
    }

    /// Tells whether the run has to wait for output that is not yet outside.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.relays.iter().any(|relay| relay.is_output && relay.pipe.is_some())
    }

    /// Copies what can be copied by the relays that are ready.
    pub(crate) fn copy(&mut self, ready: &[bool]) {
        for index in (0..self.relays.len()).filter(|index| ready.get(*index) == Some(&true)) {
            self.copy_one(index);
        }
    }

    /// Copies what the command wrote before it ended, and then ends the output.
    ///
    /// A process outside may have been given the command's end of a pipe. It is not waited for.
    pub(crate) fn drain(&mut self) {
        for index in 0..self.relays.len() {
            let relay = &mut self.relays[index];
            if let (true, Some(pipe), None) = (relay.is_output, &relay.pipe, relay.left_to_drain) {
                relay.left_to_drain = Some(rustix::io::ioctl_fionread(pipe).map_or(0, |length| length as usize));
                self.copy_one(index);
            }
        }
    }

    /// Ends all relays. Gives back to the caller what the command did not read.
    pub(crate) fn finish(&mut self) {
        for relay in &mut self.relays {
            relay.take_back();
            relay.unread = None;
            relay.pipe = None;
        }
    }

    /// The first failure, once.
    pub(crate) fn take_failure(&mut self) -> Option<StreamFailure> {
        self.failure.take()
    }

    fn copy_one(&mut self, index: usize) {
        if let Some(input) = self.relays[index].input_of_description {
            // Output begins where the command stopped reading, and not where the relay did.
            self.relays[input].take_back();
        }
        let relay = &mut self.relays[index];
        let copied = if relay.is_output { relay.copy_out() } else { relay.copy_in() };
        if let Err(error) = copied {
            // A command whose output fails gets SIGPIPE, and one whose input fails comes to its end.
            relay.pipe = None;
            // A reader outside that has gone is no failure of ours: SIGPIPE says so.
            if error != Errno::PIPE {
                let stream = ["standard input", "standard output", "standard error"][relay.number];
                self.failure.get_or_insert(StreamFailure { stream, source: error.into() });
            }
        }
    }
}

/// The way in which a file outside is read or written without waiting for it.
#[derive(Debug)]
enum OutsideIo {
    /// The caller's descriptor: it leads to a file that never has others wait, or it does not block.
    Direct,
    /// A description of our own that does not block. The flag of the caller's is the caller's business.
    Unblocked(OwnedFd),
    /// The caller's descriptor, which may block, with as many bytes as poll(2) promises.
    AfterPoll,
}

impl OutsideIo {
    fn of(outside: BorrowedFd<'_>, is_output: bool) -> OutsideIo {
        let kind = fstat(outside).map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode));
        let is_unblocked = fcntl_getfl(outside).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK));
        if matches!(kind, FileType::RegularFile | FileType::BlockDevice) || is_unblocked {
            return OutsideIo::Direct;
        }
        let access = if is_output { OFlags::WRONLY } else { OFlags::RDONLY };
        match kind {
            FileType::Fifo => open_again(outside, access).map_or(OutsideIo::AfterPoll, OutsideIo::Unblocked),
            // A device that is opened again may be another one.
            _ => OutsideIo::AfterPoll,
        }
    }
}

/// A pipe between a command and a file outside.
#[derive(Debug)]
struct StreamRelay {
    number: usize,
    outside: BorrowedFd<'static>,
    outside_io: OutsideIo,
    /// Our end of the pipe, which does not block; none once everything is copied.
    pipe: Option<OwnedFd>,
    is_output: bool,
    /// The relay of the input that comes from the same open file description, as in `<> file 1>&0`.
    input_of_description: Option<usize>,
    /// A second reading end of the pipe, with which bytes that the command has not read are given back to a file.
    unread: Option<OwnedFd>,
    /// The number of bytes of the file that were written to the pipe and not taken back.
    given: usize,
    /// Bytes that were read, of which the first `written` are written.
    buffer: Vec<u8>,
    written: usize,
    /// The number of bytes in the pipe that the command wrote before it ended, once it has ended.
    left_to_drain: Option<usize>,
}

impl StreamRelay {
    fn interest(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let pipe = self.pipe.as_ref()?.as_fd();
        // Poll asks the caller's own description: only that one knows whether a named pipe has had a writer before.
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

    /// Copies from the command to the file.
    fn copy_out(&mut self) -> Result<(), Errno> {
        loop {
            if self.pending().is_empty() {
                let Some(pipe) = &self.pipe else { return Ok(()) };
                let most = self.left_to_drain.unwrap_or(CHUNK).min(CHUNK);
                self.written = 0;
                match read_into(&mut self.buffer, pipe.as_fd(), most)? {
                    Some(0) => {
                        self.pipe = None;
                        return Ok(());
                    }
                    Some(length) => self.left_to_drain = self.left_to_drain.map(|left| left - length),
                    None => return Ok(()),
                }
            }
            let promised = if let OutsideIo::AfterPoll = self.outside_io { PIPE_BUF } else { usize::MAX };
            let length = self.pending().len().min(promised);
            match rustix::io::write(self.outside(), &self.pending()[..length]) {
                Ok(0) => return Err(Errno::IO),
                Ok(written) => self.written += written,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error),
            }
            // Others get their turn; and who may block is asked again by poll.
            let is_written = self.pending().is_empty();
            match self.outside_io {
                OutsideIo::AfterPoll if !is_written => return Ok(()),
                _ if is_written && self.left_to_drain.is_none() => return Ok(()),
                _ => {}
            }
        }
    }

    /// Copies from the file to the command.
    fn copy_in(&mut self) -> Result<(), Errno> {
        if self.pending().is_empty() {
            let source = if let OutsideIo::Unblocked(fd) = &self.outside_io { fd.as_fd() } else { self.outside };
            self.written = 0;
            match read_into(&mut self.buffer, source, CHUNK)? {
                Some(0) => {
                    self.pipe = None; // the command comes to the end of its input
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

    /// Takes back what the command has not read, and moves the caller's position back by as much.
    fn take_back(&mut self) {
        let Some(unread) = &self.unread else { return };
        let mut length = self.pending().len();
        self.written = 0;
        // A command can open the other end of its pipe, and write bytes into it that are not the file's.
        let in_pipe = rustix::io::ioctl_fionread(unread).map_or(0, |length| length as usize);
        let mut left = in_pipe.min(self.given);
        while let Ok(Some(taken @ 1..)) = read_into(&mut self.buffer, unread.as_fd(), left.min(CHUNK)) {
            left -= taken;
            length += taken;
            self.given -= taken;
        }
        self.buffer.clear();
        if length == 0 {
            return;
        }
        let _ = seek(self.outside, SeekFrom::Current(-(length as i64))); // it was there a moment ago
        if self.pipe.is_none() {
            // The file does not end here after all.
            self.pipe = open_again(unread.as_fd(), OFlags::WRONLY).ok();
        }
    }
}

/// Reads at most `most` bytes into an empty buffer: their number, 0 at the end, or none if there is nothing to read yet.
fn read_into(buffer: &mut Vec<u8>, source: BorrowedFd<'_>, most: usize) -> Result<Option<usize>, Errno> {
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

/// Opens a pipe again, as a description of our own that does not block.
fn open_again(fd: BorrowedFd<'_>, access: OFlags) -> Result<OwnedFd, Errno> {
    let flags = access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    open(format!("/proc/self/fd/{}", fd.as_raw_fd()), flags, Mode::empty())
}

/// Tells whether two descriptors of one file write at the same position, as those of `> file 2>&1` do.
fn is_same_description(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> bool {
    let facts = |fd| {
        let stat = fstat(fd).ok()?;
        Some((stat.st_dev, stat.st_ino, fcntl_getfl(fd).ok()?, seek(fd, SeekFrom::Current(0)).ok()))
    };
    facts(one) == facts(other)
}
