//! Standard streams of the host, opened again inside.
//!
//! A descriptor keeps the mount that it was opened on. With one that leads to a file outside, a command could change the
//! file's mode, and through `/proc/self/fd` truncate it or open it for writing, whatever its own view allows: Landlock
//! knows nothing of modes, and old versions of it nothing of truncation. A descriptor that is opened on a read-only
//! mount of the sandbox itself permits none of that, on any kernel.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, SeekFrom, Stat, fcntl_getfl, fstat, seek};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// The devices that every sandbox has by name.
const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];
/// The names that a terminal may have inside.
const TERMINALS: [&str; 2] = ["console", "tty"];

/// A standard stream that reads a file which the view shows, read-only, for this purpose alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamFile {
    /// The number of the descriptor: 0, 1 or 2.
    pub number: i32,
    /// The path of the file inside.
    pub path: PathBuf,
}

/// A stream that was opened again. The old and the new descriptor read the same file at positions of their own.
#[derive(Debug)]
pub(crate) struct ReopenedStream {
    old: OwnedFd,
    new: OwnedFd,
}

impl ReopenedStream {
    /// Moves the caller's position to where the command stopped reading, as if both had read from one descriptor.
    pub(crate) fn restore_position(&self) {
        if let Ok(position) = seek(&self.new, SeekFrom::Current(0)) {
            let _ = seek(&self.old, SeekFrom::Start(position)); // the caller's next reader then starts earlier
        }
    }
}

/// Replaces the standard streams that lead to the host's devices, and those of `files`, by what has the same identity in
/// this process's root.
pub(crate) fn reopen(files: &[StreamFile]) -> io::Result<Vec<ReopenedStream>> {
    let mut reopened = Vec::new();
    for (number, stream) in
        [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()].iter().enumerate()
    {
        let Ok(stat) = fstat(stream) else { continue }; // closed
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
        // The user who may not open it owns it no more than that, and may not change it, either.
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
