//! Standard streams of the host, opened again inside the sandbox.
//!
//! A descriptor keeps the mount on which it was opened. With a descriptor of a file outside, a
//! command could change the file's mode. Through `/proc/self/fd` the command could also truncate
//! the file or open it for writing, whatever the view of the sandbox allows: Landlock does not
//! restrict modes, and its old versions do not restrict truncation. A descriptor that is opened on
//! a read-only mount of the sandbox permits none of these, on any kernel.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    FileType, Mode, OFlags, SeekFrom, Stat, fcntl_getfl, fcntl_setfl, fstat, major, minor, seek,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::init::{SetupError, StepContext};

/// Devices that every sandbox has in `/dev`.
const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];
/// Major number of the devices in `DEVICES`, and the minor number of each (Linux's `devices.txt`).
const MEMORY_DEVICES: (u32, [u32; 5]) = (1, [3, 5, 7, 8, 9]);
/// Major and minor number of `/dev/tty`, which is the controlling terminal of the process that
/// opens it.
const CONTROLLING_TERMINAL: (u32, u32) = (5, 0);
/// Major and minor number of `/dev/ptmx`. Each open of `/dev/ptmx` creates another terminal.
const TERMINAL_MULTIPLEXER: (u32, u32) = (5, 2);
/// Names in the sandbox's `/dev` for the terminals among the standard streams. Bubblewrap itself
/// makes the first one, `console`.
pub const TERMINAL_NAMES: [&str; 4] = ["console", "console1", "console2", "console3"];

/// Kind of a character device that is a standard stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// A device that every sandbox has in its own `/dev`.
    InEverySandbox,
    /// A terminal that stays the same when it is opened again.
    Terminal,
    /// Any other device. A second descriptor of the device may lead to something else than the
    /// first.
    Other,
}

/// Returns the kind of the character device `device`, whose status is `stat`.
pub fn device_kind(device: BorrowedFd<'_>, stat: &Stat) -> DeviceKind {
    let number = (major(stat.st_rdev), minor(stat.st_rdev));
    let (memory, minors) = MEMORY_DEVICES;
    if number == CONTROLLING_TERMINAL || (number.0 == memory && minors.contains(&number.1)) {
        DeviceKind::InEverySandbox
    } else if number != TERMINAL_MULTIPLEXER && rustix::termios::isatty(device) {
        DeviceKind::Terminal
    } else {
        DeviceKind::Other
    }
}

/// Returns the path of the terminal behind a descriptor. Returns `None` if the descriptor is not a
/// terminal, or if the terminal has no path in this mount namespace.
pub fn terminal_path(stream: BorrowedFd<'_>) -> Option<PathBuf> {
    let stat = fstat(stream).ok()?;
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    if !is_device || device_kind(stream, &stat) != DeviceKind::Terminal {
        return None;
    }
    let name = rustix::termios::ttyname(stream, Vec::new()).ok();
    let name = name.map(|name| PathBuf::from(OsString::from_vec(name.into_bytes())));
    // In a container, the devpts of the terminal may be absent, and the terminal may be mounted at
    // this path.
    name.into_iter().chain([PathBuf::from("/dev/console")]).find(|path| is_same_file(path, &stat))
}

fn is_same_file(path: &Path, stat: &Stat) -> bool {
    rustix::fs::stat(path)
        .is_ok_and(|found| (found.st_dev, found.st_ino) == (stat.st_dev, stat.st_ino))
}

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
pub(crate) fn reopen_streams(files: &[StreamFile]) -> Result<Vec<ReopenedStream>, SetupError> {
    let mut reopened = Vec::new();
    for (number, stream) in
        [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()]
            .iter()
            .enumerate()
    {
        let Ok(stat) = fstat(stream) else { continue }; // the stream is closed
        match files.iter().find(|file| usize::try_from(file.number) == Ok(number)) {
            Some(file) => {
                let file = reopen_file(number, *stream, &stat, &file.path);
                reopened.push(file.step("open the standard streams inside")?);
            }
            None if FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice => {
                let step = || {
                    let name =
                        fs_err::read_link(format!("/proc/self/fd/{number}")).unwrap_or_default();
                    format!("open the device `{}` of descriptor {number} inside", name.display())
                };
                reopen_device(number, *stream, &stat)
                    .map_err(|source| SetupError { step: step(), source })?;
            }
            None => {}
        }
    }
    Ok(reopened)
}

fn reopen_file(
    number: usize,
    stream: BorrowedFd<'_>,
    stat: &Stat,
    path: &Path,
) -> io::Result<ReopenedStream> {
    let old = rustix::io::fcntl_dupfd_cloexec(stream, 3)?;
    let new =
        rustix::fs::open(path, OFlags::RDONLY | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    let found = fstat(&new)?;
    if (found.st_dev, found.st_ino) != (stat.st_dev, stat.st_ino) {
        return Err(io::Error::other("another file has taken the place of a standard stream's"));
    }
    seek(&new, SeekFrom::Start(seek(stream, SeekFrom::Current(0))?))?;
    replace_stream(number, &new)?;
    Ok(ReopenedStream { old, new })
}

fn reopen_device(number: usize, stream: BorrowedFd<'_>, stat: &Stat) -> io::Result<()> {
    let flags = fcntl_getfl(stream)? & (OFlags::ACCMODE | OFlags::APPEND | OFlags::NONBLOCK);
    let path_of = |name: &str| Path::new("/dev").join(name);
    let is_same_device =
        |path: &PathBuf| rustix::fs::stat(path).is_ok_and(|found| found.st_rdev == stat.st_rdev);
    if let Some(path) = DEVICES.map(path_of).into_iter().find(is_same_device) {
        return replace_stream(
            number,
            rustix::fs::open(path, flags | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?,
        );
    }
    // Compare the files and not their device numbers, because two instances of devpts use the same
    // numbers for different terminals.
    let terminals = TERMINAL_NAMES.map(path_of).into_iter().filter(|path| is_same_file(path, stat));
    let controlling = Some(path_of("tty")).filter(is_same_device);
    let opened = match terminals.chain(controlling).next() {
        // Without O_NONBLOCK, the open of a serial line waits for the other side of the line.
        Some(path) => rustix::fs::open(
            path,
            flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC,
            Mode::empty(),
        ),
        None => Err(Errno::NODEV),
    };
    match opened {
        Ok(terminal) => {
            fcntl_setfl(&terminal, flags)?;
            replace_stream(number, &terminal)
        }
        // The old descriptor is harmless here: only the owner of a file can change its mode
        // (chmod(2)), and the mode of a file without a name does not matter.
        Err(_) if stat.st_nlink == 0 || stat.st_uid != rustix::process::geteuid().as_raw() => {
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

fn replace_stream(number: usize, fd: impl AsFd) -> io::Result<()> {
    match number {
        0 => rustix::stdio::dup2_stdin(fd)?,
        1 => rustix::stdio::dup2_stdout(fd)?,
        _ => rustix::stdio::dup2_stderr(fd)?,
    }
    Ok(())
}
