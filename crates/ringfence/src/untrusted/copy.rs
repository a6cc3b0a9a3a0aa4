//! Copies a tree that sandboxed code has written and that is at rest. Each thing is opened below the directory that it was
//! found in, no link is followed, and neither memory nor what is written grows with what that code made up.

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use ringfence_core::Fault;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, SeekFrom, Stat, Timespec, Timestamps, XattrFlags,
    copy_file_range, fchmod, fgetxattr, flistxattr, fsetxattr, fstat, ftruncate, futimens, ioctl_ficlone, linkat,
    mkdir, mkdirat, openat, openat2, readlinkat, seek, statat, symlinkat, utimensat,
};
use rustix::io::{Errno, pread, pwrite};

use super::printable;
use crate::remove_untrusted;

/// Each level of a tree takes two descriptors.
const DEEPEST: usize = 128;
/// How much is copied at once, before somebody may stop it.
const PIECE: u64 = 8 << 20;
/// The longest list of a file's attributes, and the longest attribute (xattr(7)).
const LONGEST_ATTRIBUTE: usize = 64 << 10;
/// How much of a path an error shows.
const LONGEST_PATH: usize = 200;
/// How files are opened. A pipe that takes a file's place is not waited for.
const TO_READ: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);
/// How directories are opened.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// How much of a tree is copied at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyLimits {
    /// Bytes in files, without the holes that they have.
    pub bytes: u64,
    /// Files, directories, and all else that has a name.
    pub entries: u64,
}

/// What was copied of a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Copied {
    /// Bytes in files, without the holes that they have.
    pub bytes: u64,
    /// Files, directories, and all else that has a name.
    pub entries: u64,
    /// Pipes, sockets and devices, which are not copied.
    pub left_out: u64,
}

/// A tree could not be copied. Nothing is left of the copy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// It has too much in it.
    #[error("cannot copy the tree: it has more than {limit} bytes in its files")]
    TooLarge {
        /// What would have been allowed.
        limit: u64,
    },
    /// It has too many files.
    #[error("cannot copy the tree: it has more than {limit} files and directories")]
    TooMany {
        /// What would have been allowed.
        limit: u64,
    },
    /// It has too many levels.
    #[error("cannot copy the tree: it is more than {DEEPEST} directories deep, at `{path}`")]
    TooDeep {
        /// Where, from the top of the tree.
        path: String,
    },
    /// It was to be stopped.
    #[error("cannot copy the tree: it was stopped")]
    Stopped,
    /// A part of it could not be read.
    #[error("cannot read `{path}` of the tree")]
    Read {
        /// Which, from the top of the tree.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// A part of the copy could not be written.
    #[error("cannot write the copy of `{path}`")]
    Write {
        /// Which, from the top of the tree.
        path: String,
        /// Why.
        source: io::Error,
    },
}

impl CopyError {
    /// Whose move it is.
    pub fn fault(&self) -> Fault {
        match self {
            CopyError::TooLarge { .. } | CopyError::TooMany { .. } | CopyError::TooDeep { .. } => Fault::User,
            // Code that closes a file to its own owner has only itself to ask.
            CopyError::Read { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => Fault::User,
            CopyError::Read { .. } | CopyError::Write { .. } | CopyError::Stopped => Fault::Host,
        }
    }
}

/// Copies the directory `from`, which code in a sandbox has written to and does not at this moment, to `to`, which is made
/// if it is missing and is empty. Links are copied as links, whatever they lead to; files that are one file under several
/// names are so in the copy; holes stay holes. All of the copy belongs to the caller. Modes without special bits, times,
/// and the attributes that users may set are kept; pipes, sockets and devices are left out. Once `stop` is true it fails.
pub fn copy_untrusted(from: &Path, to: &Path, limits: CopyLimits, stop: &AtomicBool) -> Result<Copied, CopyError> {
    let mut name = std::ffi::OsString::from(".");
    name.push(to.file_name().unwrap_or_default());
    name.push(".links");
    let links = to.with_file_name(name);
    let copied = copy(from, to, &links, limits, stop);
    let _ = remove_untrusted(&links); // it may not have come to be
    if copied.is_err() {
        let _ = remove_untrusted(to); // the first error tells more
    }
    copied
}

fn copy(from: &Path, to: &Path, links: &Path, limits: CopyLimits, stop: &AtomicBool) -> Result<Copied, CopyError> {
    let here = || String::from(".");
    let made = |path: &Path| match mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => openat(CWD, path, DIRECTORY, Mode::empty()),
        Err(error) => Err(error),
    };
    let written = |error: Errno| CopyError::Write { path: here(), source: error.into() };
    let read = |error: Errno| CopyError::Read { path: here(), source: error.into() };
    let (target, links) = (made(to).map_err(written)?, made(links).map_err(written)?);
    let source = openat(CWD, from, DIRECTORY, Mode::empty()).and_then(Dir::new).map_err(read)?;
    let (names, value) = (vec![0; LONGEST_ATTRIBUTE], vec![0; LONGEST_ATTRIBUTE]);
    let mut copier = Copier { limits, stop, links, path: PathBuf::new(), done: Copied::default(), names, value };
    copier.directory(source, &target, DEEPEST)?;
    Ok(copier.done)
}

struct Copier<'a> {
    limits: CopyLimits,
    stop: &'a AtomicBool,
    /// Where each file that has several names is found again, by what it is on its disk.
    links: OwnedFd,
    /// What is copied at this moment, from the top of the tree.
    path: PathBuf,
    done: Copied,
    /// Room for the names of attributes, and for one of them.
    names: Vec<u8>,
    value: Vec<u8>,
}

impl Copier<'_> {
    /// Copies what is in a directory.
    fn directory(&mut self, mut from: Dir, to: &OwnedFd, levels: usize) -> Result<(), CopyError> {
        while let Some(entry) = from.read() {
            let entry = entry.map_err(|error| self.unread(error))?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.path.push(OsStr::from_bytes(name.to_bytes()));
            let directory = from.fd().map_err(|error| self.unread(error))?;
            self.entry(directory, name, to, levels)?;
            self.path.pop();
        }
        Ok(())
    }

    fn entry(&mut self, from: BorrowedFd<'_>, name: &CStr, to: &OwnedFd, levels: usize) -> Result<(), CopyError> {
        self.done.entries += 1;
        if self.done.entries > self.limits.entries {
            return Err(CopyError::TooMany { limit: self.limits.entries });
        }
        if self.stop.load(Ordering::Relaxed) {
            return Err(CopyError::Stopped);
        }
        let stat = statat(from, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|error| self.unread(error))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let levels = levels.checked_sub(1).ok_or_else(|| CopyError::TooDeep { path: self.shown() })?;
                let (source, stat) = self.open(from, name, DIRECTORY, FileType::Directory)?;
                // Ours to fill, whatever its mode is to be.
                let made = mkdirat(to, name, Mode::RWXU).and_then(|()| openat(to, name, DIRECTORY, Mode::empty()));
                let target = made.map_err(|error| self.unwritten(error))?;
                self.attributes(source.as_fd(), &target)?;
                let source = Dir::new(source).map_err(|error| self.unread(error))?;
                self.directory(source, &target, levels)?;
                self.finish(&target, &stat)
            }
            FileType::RegularFile => self.file(from, name, to),
            FileType::Symlink => {
                let leads_to = readlinkat(from, name, Vec::new()).map_err(|error| self.unread(error))?;
                let made = symlinkat(leads_to.as_c_str(), to, name)
                    .and_then(|()| utimensat(to, name, &times(&stat), AtFlags::SYMLINK_NOFOLLOW));
                made.map_err(|error| self.unwritten(error))
            }
            _ => {
                self.done.left_out += 1;
                Ok(())
            }
        }
    }

    fn file(&mut self, from: BorrowedFd<'_>, name: &CStr, to: &OwnedFd) -> Result<(), CopyError> {
        let (source, stat) = self.open(from, name, TO_READ, FileType::RegularFile)?;
        let known = (stat.st_nlink > 1).then(|| format!("{:x}-{:x}", stat.st_dev, stat.st_ino));
        let mut is_first = true;
        if let Some(known) = &known {
            match linkat(&self.links, known, to, name, AtFlags::empty()) {
                Ok(()) => return Ok(()),
                Err(Errno::NOENT) => {}
                Err(Errno::MLINK) => is_first = false, // its disk can give it no further name
                Err(error) => return Err(self.unwritten(error)),
            }
        }
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let target = openat(to, name, flags, Mode::RUSR | Mode::WUSR).map_err(|error| self.unwritten(error))?;
        self.content(&source, &target, &stat)?;
        self.attributes(source.as_fd(), &target)?;
        self.finish(&target, &stat)?;
        match known {
            Some(known) if is_first => {
                linkat(to, name, &self.links, known, AtFlags::empty()).map_err(|error| self.unwritten(error))
            }
            _ => Ok(()),
        }
    }

    /// Copies what is in a file, and leaves out what is not there: a file can be said to be as long as it likes.
    fn content(&mut self, source: &OwnedFd, target: &OwnedFd, stat: &Stat) -> Result<(), CopyError> {
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if ioctl_ficlone(target, source).is_ok() {
            // Shared with the sandbox's own until one of the two is changed: it counts as if it was.
            return self.count(u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512));
        }
        ftruncate(target, size).map_err(|error| self.unwritten(error))?;
        let mut at = 0;
        while at < size {
            at = match seek(source, SeekFrom::Data(at)) {
                Ok(at) => at,
                Err(Errno::NXIO) => break, // nothing but a hole is left
                Err(error) => return Err(self.unread(error)),
            };
            let end = seek(source, SeekFrom::Hole(at)).map_err(|error| self.unread(error))?.min(size);
            while at < end {
                let length = PIECE.min(end - at);
                self.count(length)?;
                self.piece(source, target, at, length)?;
                at += length;
            }
        }
        Ok(())
    }

    /// Copies so many bytes of a file: by the kernel alone where it can. What the file does not have stays a hole.
    fn piece(&mut self, source: &OwnedFd, target: &OwnedFd, at: u64, length: u64) -> Result<(), CopyError> {
        let (mut from, mut to, end) = (at, at, at + length);
        while from < end {
            if self.stop.load(Ordering::Relaxed) {
                return Err(CopyError::Stopped);
            }
            let left = usize::try_from(end - from).unwrap_or(usize::MAX);
            match copy_file_range(source, Some(&mut from), target, Some(&mut to), left) {
                Ok(0) | Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) => {
                    let room = self.value.len().min(left);
                    let read = pread(source, &mut self.value[..room], from).map_err(|error| self.unread(error))?;
                    if read == 0 {
                        return Ok(());
                    }
                    let written = pwrite(target, &self.value[..read], from).map_err(|error| self.unwritten(error))?;
                    from += written as u64;
                    to = from;
                }
                Ok(_) => {}
                Err(error) => return Err(self.unwritten(error)),
            }
        }
        Ok(())
    }

    /// Copies the attributes that users may set, and none that give rights.
    fn attributes(&mut self, source: BorrowedFd<'_>, target: &OwnedFd) -> Result<(), CopyError> {
        let length = match flistxattr(source, &mut self.names[..]) {
            Ok(length) => length,
            Err(Errno::OPNOTSUPP) => return Ok(()),
            Err(error) => return Err(self.unread(error)),
        };
        let names: Vec<Vec<u8>> = self.names[..length]
            .split(|byte| *byte == 0)
            .filter(|name| name.starts_with(b"user."))
            .map(<[u8]>::to_vec)
            .collect();
        for name in names {
            let length = fgetxattr(source, name.as_slice(), &mut self.value[..]).map_err(|error| self.unread(error))?;
            self.count(length as u64)?;
            let set = fsetxattr(target, name.as_slice(), &self.value[..length], XattrFlags::empty());
            set.map_err(|error| self.unwritten(error))?;
        }
        Ok(())
    }

    /// Gives a copy the mode and the times of its original, when all else is done.
    fn finish(&self, target: &OwnedFd, stat: &Stat) -> Result<(), CopyError> {
        let done =
            fchmod(target, Mode::from_raw_mode(stat.st_mode & 0o777)).and_then(|()| futimens(target, &times(stat)));
        done.map_err(|error| self.unwritten(error))
    }

    /// Opens what has a name in a directory, if it still is of that kind.
    fn open(
        &self,
        from: BorrowedFd<'_>,
        name: &CStr,
        flags: OFlags,
        kind: FileType,
    ) -> Result<(OwnedFd, Stat), CopyError> {
        let within =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        let opened = openat2(from, name, flags, Mode::empty(), within).and_then(|file| {
            let stat = fstat(&file)?;
            Ok((file, stat))
        });
        let (file, stat) = opened.map_err(|error| self.unread(error))?;
        if FileType::from_raw_mode(stat.st_mode) != kind {
            let source = io::Error::other("it was replaced meanwhile");
            return Err(CopyError::Read { path: self.shown(), source });
        }
        Ok((file, stat))
    }

    fn count(&mut self, bytes: u64) -> Result<(), CopyError> {
        self.done.bytes = self.done.bytes.saturating_add(bytes);
        match self.done.bytes > self.limits.bytes {
            true => Err(CopyError::TooLarge { limit: self.limits.bytes }),
            false => Ok(()),
        }
    }

    fn shown(&self) -> String {
        printable(&self.path.to_string_lossy()).chars().take(LONGEST_PATH).collect()
    }

    fn unread(&self, error: Errno) -> CopyError {
        CopyError::Read { path: self.shown(), source: error.into() }
    }

    fn unwritten(&self, error: Errno) -> CopyError {
        CopyError::Write { path: self.shown(), source: error.into() }
    }
}

/// When a file was written last. When it was read last is nobody's concern.
fn times(stat: &Stat) -> Timestamps {
    #[expect(clippy::useless_conversion, reason = "the width of these fields differs between architectures")]
    let (seconds, nanoseconds) = (i64::from(stat.st_mtime), i64::try_from(stat.st_mtime_nsec).unwrap_or(0));
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds },
    }
}

#[cfg(test)]
mod tests;
