//! The caller's standard streams, if they are files outside the sandbox.
//!
//! A descriptor of such a file would let a command change the file's mode, and on some kernels more
//! (`ringfence_linux::streams`). So no sandbox gets such a descriptor. A file that is only read is
//! shown inside, read-only, and opened again there. A terminal is opened again on a mount of its
//! own. Any other file stays outside, and its bytes go through a pipe ([`relay`]).

mod relay;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use ringfence_linux::streams::{DeviceKind, StreamFile, device_kind, terminal_path};
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fcntl_getfl, fstat, open};

use crate::view::Guarded;
pub(crate) use relay::{StreamFailure, StreamRelays};

/// Directory inside the sandbox in which the files of streams are shown.
const STREAMS_DIRECTORY: &str = "/.streams";
/// Magic number of the file system of unnamed pipes (statfs(2)).
const PIPEFS_MAGIC: u64 = 0x5049_5045;

/// The way in which a command gets a stream of its caller.
#[derive(Debug, PartialEq, Eq)]
enum StreamHandover {
    /// Unchanged: the stream leads to no file of the host, or to a file that the sandbox may
    /// change.
    AsItIs,
    /// By opening this terminal of the host again inside.
    Terminal(PathBuf),
    /// By opening this file of the host again inside.
    Reopened(PathBuf),
    /// Through a pipe, from the file to the command.
    FromFile,
    /// Through a pipe, from the command to the file.
    ToFile,
}

/// A terminal that belongs to the caller and has no path here. Such a terminal cannot be opened
/// again inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnnamedTerminal {
    pub(crate) number: i32,
}

/// The streams of a caller that are not handed over unchanged.
#[derive(Debug, Default)]
pub(crate) struct CallerStreams {
    reopened: Vec<(StreamFile, PathBuf)>,
    terminals: Vec<PathBuf>,
    relayed: Vec<(usize, StreamHandover)>,
}

impl CallerStreams {
    /// Examines the standard streams of this process. `may_write` returns whether the sandbox may
    /// write to a path of the host, under any name inside.
    pub(crate) fn for_this_process(
        may_write: &dyn Fn(&Path) -> bool,
        guarded: &Guarded,
    ) -> Result<CallerStreams, UnnamedTerminal> {
        let mut streams = CallerStreams::default();
        for (number, stream) in standard_streams().into_iter().enumerate() {
            match handover(number, stream, may_write, guarded)? {
                StreamHandover::AsItIs => {}
                StreamHandover::Terminal(path) => {
                    if !streams.terminals.contains(&path) {
                        streams.terminals.push(path);
                    }
                }
                StreamHandover::Reopened(source) => {
                    let path = Path::new(STREAMS_DIRECTORY).join(number.to_string());
                    streams.reopened.push((StreamFile { number: number as i32, path }, source));
                }
                relayed => streams.relayed.push((number, relayed)),
            }
        }
        Ok(streams)
    }

    /// Returns the files that have to be shown inside, each with its path there.
    pub(crate) fn shown(&self) -> impl Iterator<Item = (&Path, &Path)> {
        self.reopened.iter().map(|(file, source)| (source.as_path(), file.path.as_path()))
    }

    /// Returns the streams that are opened again inside.
    pub(crate) fn files(&self) -> Vec<StreamFile> {
        self.reopened.iter().map(|(file, _)| file.clone()).collect()
    }

    /// Returns the paths of the terminals among the streams, each once.
    pub(crate) fn terminals(&self) -> &[PathBuf] {
        &self.terminals
    }

    /// Makes the pipes of the relayed streams. Returns the command's ends by number, and the
    /// relays.
    pub(crate) fn relay(&self) -> io::Result<([Option<OwnedFd>; 3], StreamRelays)> {
        let streams = standard_streams();
        let relayed = self.relayed.iter().map(|(number, handover)| {
            (*number, streams[*number], *handover == StreamHandover::ToFile)
        });
        StreamRelays::open(relayed)
    }
}

fn standard_streams() -> [BorrowedFd<'static>; 3] {
    [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()]
}

fn handover(
    number: usize,
    stream: BorrowedFd<'_>,
    may_write: &dyn Fn(&Path) -> bool,
    guarded: &Guarded,
) -> Result<StreamHandover, UnnamedTerminal> {
    let (Ok(stat), Ok(flags)) = (fstat(stream), fcntl_getfl(stream)) else {
        return Ok(StreamHandover::AsItIs);
    };
    let relayed = match flags & OFlags::ACCMODE {
        OFlags::WRONLY => StreamHandover::ToFile,
        OFlags::RDWR if number > 0 => StreamHandover::ToFile,
        _ => StreamHandover::FromFile,
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile | FileType::BlockDevice => {}
        FileType::Fifo if !is_nameless_pipe(stream) => {}
        FileType::CharacterDevice => return device_handover(number, stream, &stat, relayed),
        _ => return Ok(StreamHandover::AsItIs),
    }
    let path = fs_err::read_link(format!("/proc/self/fd/{number}"))
        .ok()
        .filter(|path| leads_to(path, &stat));
    if path.as_ref().is_some_and(|path| may_write(path) && !guarded.guards(path)) {
        return Ok(StreamHandover::AsItIs);
    }
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let is_read_only = flags & OFlags::ACCMODE == OFlags::RDONLY;
    Ok(match path {
        // A hidden file has no name inside, so its bytes go through a pipe. A caller who redirects
        // the file gives away only its bytes.
        Some(path)
            if is_regular
                && is_read_only
                && !guarded.hides(&path)
                && can_be_opened(&path, &stat) =>
        {
            StreamHandover::Reopened(path)
        }
        _ => relayed,
    })
}

/// Decides how to hand over a character device. A device is opened again only if each open leads to
/// the same device.
fn device_handover(
    number: usize,
    stream: BorrowedFd<'_>,
    stat: &Stat,
    relayed: StreamHandover,
) -> Result<StreamHandover, UnnamedTerminal> {
    match device_kind(stream, stat) {
        DeviceKind::InEverySandbox => Ok(StreamHandover::AsItIs),
        DeviceKind::Terminal => match terminal_path(stream) {
            Some(path) => Ok(StreamHandover::Terminal(path)),
            // Only the owner of a terminal can change its mode (chmod(2)), and only if the terminal
            // has a name somewhere.
            None if stat.st_nlink == 0 || stat.st_uid != rustix::process::geteuid().as_raw() => {
                Ok(StreamHandover::AsItIs)
            }
            None => Err(UnnamedTerminal { number: number as i32 }),
        },
        DeviceKind::Other => Ok(relayed),
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
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = open(path, flags, Mode::empty()).and_then(fstat);
    opened.is_ok_and(|found| (found.st_dev, found.st_ino) == (stat.st_dev, stat.st_ino))
}
