//! The caller's standard streams, if they are files outside the sandbox.
//!
//! With a descriptor of such a file, a command could change the file's mode, and on some kernels
//! more (`ringfence_linux::streams`). So no sandbox gets such a descriptor. A file that is read is
//! shown inside, read-only, and opened again there. Any other file stays outside, and its bytes go
//! through a pipe.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use ringfence_linux::streams::StreamFile;
use rustix::event::PollFlags;
use rustix::fs::{CWD, FileType, Mode, OFlags, SeekFrom, Stat, fcntl_getfl, fstat, open, seek};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::view::Guarded;
use crate::workspace::ResolvedWorkspace;

/// Directory inside the sandbox in which the files of streams are shown.
const DIRECTORY: &str = "/.streams";
/// Magic number of the file system of unnamed pipes (statfs(2)).
const PIPEFS_MAGIC: u64 = 0x5049_5045;
/// Number of bytes that are copied at once.
const CHUNK: usize = 64 * 1024;

/// The way in which a command gets a stream of its caller.
#[derive(Debug, PartialEq, Eq)]
enum Handover {
    /// Unchanged: the stream leads to no file of the host, or to a file that the sandbox may
    /// change.
    AsItIs,
    /// By opening this file of the host again inside.
    Reopened(PathBuf),
    /// Through a pipe, from the file to the command.
    FromFile,
    /// Through a pipe, from the command to the file.
    ToFile,
}

/// The streams of a caller that are not handed over unchanged.
#[derive(Debug, Default)]
pub(crate) struct CallerStreams {
    reopened: Vec<(StreamFile, PathBuf)>,
    relayed: Vec<(usize, Handover)>,
}

impl CallerStreams {
    /// Examines the standard streams of this process.
    pub(crate) fn of_this_process(workspace: &ResolvedWorkspace, guarded: &Guarded) -> CallerStreams {
        let mut streams = CallerStreams::default();
        for (number, stream) in standard_streams().into_iter().enumerate() {
            match handover(number, stream, workspace, guarded) {
                Handover::AsItIs => {}
                Handover::Reopened(source) => {
                    let path = Path::new(DIRECTORY).join(number.to_string());
                    streams.reopened.push((StreamFile { number: number as i32, path }, source));
                }
                relayed => streams.relayed.push((number, relayed)),
            }
        }
        streams
    }

    /// Returns the files that have to be shown inside, each with its path there.
    pub(crate) fn shown(&self) -> impl Iterator<Item = (&Path, &Path)> {
        self.reopened.iter().map(|(file, source)| (source.as_path(), file.path.as_path()))
    }

    /// Returns the streams that are opened again inside.
    pub(crate) fn files(&self) -> Vec<StreamFile> {
        self.reopened.iter().map(|(file, _)| file.clone()).collect()
    }

    /// Makes the pipes of the other streams. Returns the command's ends, by number, and the relays.
    pub(crate) fn relay(&self) -> io::Result<([Option<OwnedFd>; 3], Vec<StreamRelay>)> {
        let mut ends = [None, None, None];
        let mut relays: Vec<StreamRelay> = Vec::new();
        let streams = standard_streams();
        for (number, handover) in &self.relayed {
            let outside = streams[*number];
            let twin = relays.iter().find(|relay| relay.is_output && is_same_description(relay.outside, outside));
            if let (Handover::ToFile, Some(twin)) = (handover, twin) {
                // Share one pipe, because two pipes would not keep the order of what is written to
                // both streams.
                ends[*number] = twin.inside.as_ref().map(OwnedFd::try_clone).transpose()?;
                continue;
            }
            let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
            let is_output = *handover == Handover::ToFile;
            let (ours, theirs) = if is_output { (reader, writer) } else { (writer, reader) };
            rustix::io::ioctl_fionbio(&ours, true)?;
            let inside = is_output.then(|| theirs.try_clone()).transpose()?;
            ends[*number] = Some(theirs);
            relays.push(StreamRelay { outside, pipe: Some(ours), is_output, inside });
        }
        relays.iter_mut().for_each(|relay| relay.inside = None);
        Ok((ends, relays))
    }
}

fn standard_streams() -> [BorrowedFd<'static>; 3] {
    [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()]
}

fn handover(number: usize, stream: BorrowedFd<'_>, workspace: &ResolvedWorkspace, guarded: &Guarded) -> Handover {
    let (Ok(stat), Ok(flags)) = (fstat(stream), fcntl_getfl(stream)) else { return Handover::AsItIs };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile | FileType::BlockDevice => {}
        FileType::Fifo if !is_nameless_pipe(stream) => {}
        _ => return Handover::AsItIs,
    }
    let path = fs_err::read_link(format!("/proc/self/fd/{number}")).ok().filter(|path| leads_to(path, &stat));
    if path.as_ref().is_some_and(|path| workspace.may_write(path) && !guarded.guards(path)) {
        return Handover::AsItIs;
    }
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    match (flags & OFlags::ACCMODE, path) {
        (OFlags::RDONLY, Some(path)) if is_regular && can_be_opened(&path, &stat) => Handover::Reopened(path),
        (OFlags::WRONLY, _) => Handover::ToFile,
        (OFlags::RDWR, _) if number > 0 => Handover::ToFile,
        _ => Handover::FromFile,
    }
}

fn is_nameless_pipe(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|found| found.f_type as u64 == PIPEFS_MAGIC)
}

/// Tells whether a path is that of an open file. The file may have been removed or renamed since it
/// was opened.
fn leads_to(path: &Path, stat: &Stat) -> bool {
    let found = rustix::fs::statat(CWD, path, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|found| (found.st_dev, found.st_ino) == (stat.st_dev, stat.st_ino))
}

/// Tells whether this process could open a file itself, because it may have inherited the
/// descriptor from a process with more rights.
fn can_be_opened(path: &Path, stat: &Stat) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = open(path, flags, Mode::empty()).and_then(fstat);
    opened.is_ok_and(|found| (found.st_dev, found.st_ino) == (stat.st_dev, stat.st_ino))
}

/// Tells whether two descriptors of one file write at the same position, as those of `> file 2>&1`
/// do.
fn is_same_description(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> bool {
    let facts = |fd| {
        let stat = fstat(fd).ok()?;
        Some((stat.st_dev, stat.st_ino, fcntl_getfl(fd).ok()?, seek(fd, SeekFrom::Current(0)).ok()))
    };
    facts(one) == facts(other)
}

/// A pipe between a command and a file outside.
#[derive(Debug)]
pub(crate) struct StreamRelay {
    outside: BorrowedFd<'static>,
    /// Our end of the pipe, which is non-blocking; `None` after everything was copied.
    pipe: Option<OwnedFd>,
    is_output: bool,
    /// The command's end of the pipe, until the command has it.
    inside: Option<OwnedFd>,
}

impl StreamRelay {
    /// Returns the descriptor to wait for, and the event.
    pub(crate) fn interest(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let event = if self.is_output { PollFlags::IN } else { PollFlags::OUT };
        self.pipe.as_ref().map(|pipe| (pipe.as_fd(), event))
    }

    /// Tells whether the run has to wait for more of the command's output.
    pub(crate) fn is_unfinished_output(&self) -> bool {
        self.is_output && self.pipe.is_some()
    }

    /// Copies the bytes that are available. `scratch` holds nothing between two calls.
    pub(crate) fn copy(&mut self, scratch: &mut Vec<u8>) -> io::Result<()> {
        scratch.resize(CHUNK, 0);
        let Some(pipe) = &self.pipe else { return Ok(()) };
        if self.is_output {
            match rustix::io::read(pipe, &mut scratch[..]) {
                Ok(0) => self.pipe = None,
                Ok(length) => {
                    // Close the pipe, so that the command notices a full disk as it notices a
                    // closed pipe.
                    let written = write_all(self.outside, &scratch[..length]);
                    if written.is_err() {
                        self.pipe = None;
                    }
                    return written;
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            return Ok(());
        }
        let length = rustix::io::read(self.outside, &mut scratch[..])?;
        let mut rest = &scratch[..length];
        while !rest.is_empty() {
            match rustix::io::write(pipe, rest) {
                Ok(written) => rest = &rest[written..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    // A FIFO cannot go back, and so this may fail.
                    let _ = seek(self.outside, SeekFrom::Current(-(rest.len() as i64)));
                    return Ok(());
                }
                Err(Errno::PIPE) => break, // the command has closed its end
                Err(error) => return Err(error.into()),
            }
        }
        if length == 0 || !rest.is_empty() {
            self.finish();
        }
        Ok(())
    }

    /// Ends the relay. Bytes that the command left unread are left to the caller's next reader.
    pub(crate) fn finish(&mut self) {
        let Some(pipe) = self.pipe.take() else { return };
        if !self.is_output
            && let Ok(unread) = rustix::io::ioctl_fionread(&pipe)
        {
            let _ = seek(self.outside, SeekFrom::Current(-(unread as i64))); // fails for a FIFO
        }
    }
}

fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
