//! Standard streams of the host, opened again inside the sandbox.
//!
//! A descriptor keeps the mount on which it was opened. With a descriptor of a file outside, a
//! command could change the file's mode. Through `/proc/self/fd` the command could also truncate
//! the file or open it for writing, whatever the view of the sandbox allows: Landlock does not
//! restrict modes, and its old versions do not restrict truncation. A descriptor that is opened on
//! a read-only mount of the sandbox permits none of these, on any kernel.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, SeekFrom, Stat, fcntl_getfl, fstat, seek};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Devices that every sandbox has in `/dev`.
const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];
/// Names that a terminal may have in `/dev` inside.
const TERMINALS: [&str; 2] = ["console", "tty"];

/// A standard stream that reads a file, which the view shows read-only for this purpose alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamFile {
    /// Number of the descriptor: 0, 1 or 2.
    pub number: i32,
    /// Path of the file inside the sandbox.
    pub path: PathBuf,
}

/// A stream that was opened again. The old and the new descriptor have separate offsets in the same
/// file.
#[derive(Debug)]
pub(crate) struct ReopenedStream {
    old: OwnedFd,
    new: OwnedFd,
}

impl ReopenedStream {
    /// Moves the caller's file offset to the place where the command stopped reading, as if both
    /// had shared one descriptor.
    pub(crate) fn restore_position(&self) {
        if let Ok(position) = seek(&self.new, SeekFrom::Current(0)) {
            // On failure, the caller's next reader starts earlier.
            let _ = seek(&self.old, SeekFrom::Start(position));
        }
    }
}

/// Replaces the standard streams that lead to the host's devices, and those in `files`, by the same
/// devices and files opened in the root of this process.
pub(crate) fn reopen(files: &[StreamFile]) -> io::Result<Vec<ReopenedStream>> {
    let mut reopened = Vec::new();
    for (number, stream) in
        [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()].iter().enumerate()
    {
        let Ok(stat) = fstat(stream) else { continue }; // the stream is closed
        match files.iter().find(|file| usize::try_from(file.number) == Ok(number)) {
            Some(file) => reopened.push(reopen_file(number, *stream, &stat, &file.path)?),
            None if FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice => {
                reopen_device(number, *stream, &stat)?;
            }
            None => {}
        }
    }
    Ok(reopened)
}

fn reopen_file(number: usize, stream: BorrowedFd<'_>, stat: &Stat, path: &Path) -> io::Result<ReopenedStream> {
    let old = rustix::io::fcntl_dupfd_cloexec(stream, 3)?;
    let new = rustix::fs::open(path, OFlags::RDONLY | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    let found = fstat(&new)?;
    if (found.st_dev, found.st_ino) != (stat.st_dev, stat.st_ino) {
        return Err(io::Error::other("another file has taken the place of a standard stream's"));
    }
    seek(&new, SeekFrom::Start(seek(stream, SeekFrom::Current(0))?))?;
    replace(number, &new)?;
    Ok(ReopenedStream { old, new })
}

fn reopen_device(number: usize, stream: BorrowedFd<'_>, stat: &Stat) -> io::Result<()> {
    let kept = OFlags::ACCMODE | OFlags::APPEND | OFlags::NONBLOCK;
    let flags = (fcntl_getfl(stream)? & kept) | OFlags::NOCTTY | OFlags::CLOEXEC;
    let is_same = |path: &PathBuf| rustix::fs::stat(path).is_ok_and(|found| found.st_rdev == stat.st_rdev);
    let path_of = |name: &&str| Path::new("/dev").join(name);
    if let Some(path) = DEVICES.iter().map(path_of).find(is_same) {
        return replace(number, rustix::fs::open(path, flags, Mode::empty())?);
    }
    let terminal = TERMINALS.iter().map(path_of).find(is_same);
    match terminal.map(|path| rustix::fs::open(path, flags, Mode::empty())) {
        Some(Ok(terminal)) => replace(number, &terminal),
        // A user who may not open the terminal does not own it, so that user cannot change its mode
        // either.
        Some(Err(Errno::ACCESS | Errno::PERM | Errno::NXIO | Errno::IO)) | None => Ok(()),
        Some(Err(error)) => Err(error.into()),
    }
}

fn replace(number: usize, fd: impl AsFd) -> io::Result<()> {
    match number {
        0 => rustix::stdio::dup2_stdin(fd)?,
        1 => rustix::stdio::dup2_stdout(fd)?,
        _ => rustix::stdio::dup2_stderr(fd)?,
    }
    Ok(())
}
