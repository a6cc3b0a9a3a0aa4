//! Copies a tree that sandboxed code has written and that no longer changes. Each entry is opened
//! relative to the directory in which it was found, and no link is followed. Whatever the sandboxed
//! code wrote, the copy uses a bounded amount of memory, and writes no more than its limits allow.

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use ringfence_core::Fault;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, SeekFrom, Stat, Timespec, Timestamps,
    XattrFlags, copy_file_range, fchmod, fgetxattr, flistxattr, fsetxattr, fstat, ftruncate,
    futimens, ioctl_ficlone, linkat, mkdir, mkdirat, openat, openat2, readlinkat, seek, statat,
    symlinkat, utimensat,
};
use rustix::io::{Errno, pread, pwrite};

use super::printable;
use crate::remove_untrusted;

/// Greatest depth of a tree. Each level needs two descriptors.
const MAX_DEPTH: usize = 128;
/// Number of bytes that are copied at once, before the copy can be stopped.
const PIECE_BYTES: u64 = 8 << 20;
/// Longest list of a file's extended attributes, and longest attribute, in bytes (xattr(7)).
const MAX_ATTRIBUTE_BYTES: usize = 64 << 10;
/// Number of characters of a path that an error shows.
const MAX_PATH_CHARS: usize = 200;
/// Flags for opening files. They do not block on a pipe that replaced a file.
const READ_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);
/// Flags for opening directories.
const DIRECTORY_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Limits of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyLimits {
    /// Bytes in files, without holes.
    pub bytes: u64,
    /// Files, directories, and all other entries.
    pub entries: u64,
}

/// Statistics of a copy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopySummary {
    /// Bytes in files, without holes.
    pub bytes: u64,
    /// Files, directories, and all other entries.
    pub entries: u64,
    /// Pipes, sockets and devices, which are not copied.
    pub left_out: u64,
}

/// Reason why a tree could not be copied. Nothing is left of the copy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The files of the tree have too many bytes.
    #[error("cannot copy the tree: it has more than {limit} bytes in its files")]
    TooLarge {
        /// The limit that was exceeded, in bytes.
        limit: u64,
    },
    /// The tree has too many entries.
    #[error("cannot copy the tree: it has more than {limit} files and directories")]
    TooMany {
        /// The limit that was exceeded, in entries.
        limit: u64,
    },
    /// The tree has too many levels.
    #[error("cannot copy the tree: it is more than {MAX_DEPTH} directories deep, at `{path}`")]
    TooDeep {
        /// Path of the directory that is too deep, relative to the top of the tree.
        path: String,
    },
    /// The caller stopped the copy.
    #[error("cannot copy the tree: it was stopped")]
    Stopped,
    /// A part of the tree could not be read.
    #[error("cannot read `{path}` of the tree")]
    Read {
        /// Path of that part, relative to the top of the tree.
        path: String,
        /// Error of the system call.
        source: io::Error,
    },
    /// A part of the copy could not be written.
    #[error("cannot write the copy of `{path}`")]
    Write {
        /// Path of that part, relative to the top of the tree.
        path: String,
        /// Error of the system call.
        source: io::Error,
    },
}

impl CopyError {
    /// Returns the party that has to act on the error.
    pub fn fault(&self) -> Fault {
        match self {
            CopyError::TooLarge { .. } | CopyError::TooMany { .. } | CopyError::TooDeep { .. } => {
                Fault::User
            }
            // Sandboxed code took the permission from its own user, so this is not a fault of the
            // host.
            CopyError::Read { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Fault::User
            }
            CopyError::Read { .. } | CopyError::Write { .. } | CopyError::Stopped => Fault::Host,
        }
    }
}

/// Copies the directory `from` to `to`.
///
/// Code in a sandbox has written to `from` and must not write to it during the copy. If `to`
/// exists, it must be empty; otherwise it is created. Links are copied as links, whatever they lead
/// to. Hard links in the tree are hard links in the copy, and holes stay holes. The caller owns all
/// of the copy. Modes without the special bits, modification times, and the extended attributes
/// that users may set are kept. Pipes, sockets and devices are left out. The copy fails when `stop`
/// becomes true.
pub fn copy_untrusted(
    from: &Path,
    to: &Path,
    limits: CopyLimits,
    stop: &AtomicBool,
) -> Result<CopySummary, CopyError> {
    let mut name = std::ffi::OsString::from(".");
    name.push(to.file_name().unwrap_or_default());
    name.push(".links");
    let links = to.with_file_name(name);
    let copied = copy(from, to, &links, limits, stop);
    let _ = remove_untrusted(&links); // the directory may not have been created
    if copied.is_err() {
        let _ = remove_untrusted(to); // the first error is more informative
    }
    copied
}

fn copy(
    from: &Path,
    to: &Path,
    links: &Path,
    limits: CopyLimits,
    stop: &AtomicBool,
) -> Result<CopySummary, CopyError> {
    let here = || String::from(".");
    let made = |path: &Path| match mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => openat(CWD, path, DIRECTORY_FLAGS, Mode::empty()),
        Err(error) => Err(error),
    };
    let written = |error: Errno| CopyError::Write { path: here(), source: error.into() };
    let read = |error: Errno| CopyError::Read { path: here(), source: error.into() };
    let (target, links) = (made(to).map_err(written)?, made(links).map_err(written)?);
    let source =
        openat(CWD, from, DIRECTORY_FLAGS, Mode::empty()).and_then(Dir::new).map_err(read)?;
    let (names, value) = (vec![0; MAX_ATTRIBUTE_BYTES], vec![0; MAX_ATTRIBUTE_BYTES]);
    let mut copier = TreeCopier {
        limits,
        stop,
        links,
        path: PathBuf::new(),
        done: CopySummary::default(),
        names,
        value,
    };
    copier.copy_directory(source, &target, MAX_DEPTH)?;
    Ok(copier.done)
}

struct TreeCopier<'a> {
    limits: CopyLimits,
    stop: &'a AtomicBool,
    /// Directory with one name for each copied file that has several names in the tree, derived
    /// from its device and inode number.
    links: OwnedFd,
    /// Path of the entry that is being copied, relative to the top of the tree.
    path: PathBuf,
    done: CopySummary,
    /// Buffers for the names of extended attributes, and for one value.
    names: Vec<u8>,
    value: Vec<u8>,
}

impl TreeCopier<'_> {
    /// Copies the entries of a directory.
    fn copy_directory(
        &mut self,
        mut from: Dir,
        to: &OwnedFd,
        levels: usize,
    ) -> Result<(), CopyError> {
        while let Some(entry) = from.read() {
            let entry = entry.map_err(|error| self.read_error(error))?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.path.push(OsStr::from_bytes(name.to_bytes()));
            let directory = from.fd().map_err(|error| self.read_error(error))?;
            self.copy_entry(directory, name, to, levels)?;
            self.path.pop();
        }
        Ok(())
    }

    fn copy_entry(
        &mut self,
        from: BorrowedFd<'_>,
        name: &CStr,
        to: &OwnedFd,
        levels: usize,
    ) -> Result<(), CopyError> {
        self.done.entries += 1;
        if self.done.entries > self.limits.entries {
            return Err(CopyError::TooMany { limit: self.limits.entries });
        }
        if self.stop.load(Ordering::Relaxed) {
            return Err(CopyError::Stopped);
        }
        let stat = statat(from, name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|error| self.read_error(error))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let levels = levels
                    .checked_sub(1)
                    .ok_or_else(|| CopyError::TooDeep { path: self.shown_path() })?;
                let (source, stat) = self.open(from, name, DIRECTORY_FLAGS, FileType::Directory)?;
                // The copy needs a mode that lets us fill it; `finish` sets the final mode.
                let made = mkdirat(to, name, Mode::RWXU)
                    .and_then(|()| openat(to, name, DIRECTORY_FLAGS, Mode::empty()));
                let target = made.map_err(|error| self.write_error(error))?;
                self.copy_attributes(source.as_fd(), &target)?;
                let source = Dir::new(source).map_err(|error| self.read_error(error))?;
                self.copy_directory(source, &target, levels)?;
                self.finish(&target, &stat)
            }
            FileType::RegularFile => self.copy_file(from, name, to),
            FileType::Symlink => {
                let leads_to =
                    readlinkat(from, name, Vec::new()).map_err(|error| self.read_error(error))?;
                let made = symlinkat(leads_to.as_c_str(), to, name)
                    .and_then(|()| utimensat(to, name, &times(&stat), AtFlags::SYMLINK_NOFOLLOW));
                made.map_err(|error| self.write_error(error))
            }
            _ => {
                self.done.left_out += 1;
                Ok(())
            }
        }
    }

    fn copy_file(
        &mut self,
        from: BorrowedFd<'_>,
        name: &CStr,
        to: &OwnedFd,
    ) -> Result<(), CopyError> {
        let (source, stat) = self.open(from, name, READ_FLAGS, FileType::RegularFile)?;
        let known = (stat.st_nlink > 1).then(|| format!("{:x}-{:x}", stat.st_dev, stat.st_ino));
        let mut is_first = true;
        if let Some(known) = &known {
            match linkat(&self.links, known, to, name, AtFlags::empty()) {
                Ok(()) => return Ok(()),
                Err(Errno::NOENT) => {}
                Err(Errno::MLINK) => is_first = false, // the file system allows no further link
                Err(error) => return Err(self.write_error(error)),
            }
        }
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let target = openat(to, name, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|error| self.write_error(error))?;
        self.copy_content(&source, &target, &stat)?;
        self.copy_attributes(source.as_fd(), &target)?;
        self.finish(&target, &stat)?;
        match known {
            Some(known) if is_first => linkat(to, name, &self.links, known, AtFlags::empty())
                .map_err(|error| self.write_error(error)),
            _ => Ok(()),
        }
    }

    /// Copies the content of a file, and leaves out its holes, because a file can have any length
    /// without content.
    fn copy_content(
        &mut self,
        source: &OwnedFd,
        target: &OwnedFd,
        stat: &Stat,
    ) -> Result<(), CopyError> {
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if ioctl_ficlone(target, source).is_ok() {
            // The copy shares its blocks with the original until one of the two is changed. They
            // count as if they were copied.
            return self.count(u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512));
        }
        ftruncate(target, size).map_err(|error| self.write_error(error))?;
        let mut at = 0;
        while at < size {
            at = match seek(source, SeekFrom::Data(at)) {
                Ok(at) => at,
                Err(Errno::NXIO) => break, // only a hole is left
                Err(error) => return Err(self.read_error(error)),
            };
            let end =
                seek(source, SeekFrom::Hole(at)).map_err(|error| self.read_error(error))?.min(size);
            while at < end {
                let length = PIECE_BYTES.min(end - at);
                self.count(length)?;
                self.copy_piece(source, target, at, length)?;
                at += length;
            }
        }
        Ok(())
    }

    /// Copies `length` bytes of a file, in the kernel where that is possible. If the file has fewer
    /// bytes, the rest stays a hole.
    fn copy_piece(
        &mut self,
        source: &OwnedFd,
        target: &OwnedFd,
        at: u64,
        length: u64,
    ) -> Result<(), CopyError> {
        let (mut from, mut to, end) = (at, at, at + length);
        while from < end {
            if self.stop.load(Ordering::Relaxed) {
                return Err(CopyError::Stopped);
            }
            let left = usize::try_from(end - from).unwrap_or(usize::MAX);
            match copy_file_range(source, Some(&mut from), target, Some(&mut to), left) {
                Ok(0)
                | Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) =>
                {
                    let length_read = self.value.len().min(left);
                    let read = pread(source, &mut self.value[..length_read], from)
                        .map_err(|error| self.read_error(error))?;
                    if read == 0 {
                        return Ok(());
                    }
                    let written = pwrite(target, &self.value[..read], from)
                        .map_err(|error| self.write_error(error))?;
                    from += written as u64;
                    to = from;
                }
                Ok(_) => {}
                Err(error) => return Err(self.write_error(error)),
            }
        }
        Ok(())
    }

    /// Copies the extended attributes that users may set, and none that grant rights.
    fn copy_attributes(
        &mut self,
        source: BorrowedFd<'_>,
        target: &OwnedFd,
    ) -> Result<(), CopyError> {
        let length = match flistxattr(source, &mut self.names[..]) {
            Ok(length) => length,
            Err(Errno::OPNOTSUPP) => return Ok(()),
            Err(error) => return Err(self.read_error(error)),
        };
        let names: Vec<Vec<u8>> = self.names[..length]
            .split(|byte| *byte == 0)
            .filter(|name| name.starts_with(b"user."))
            .map(<[u8]>::to_vec)
            .collect();
        for name in names {
            let length = fgetxattr(source, name.as_slice(), &mut self.value[..])
                .map_err(|error| self.read_error(error))?;
            self.count(length as u64)?;
            let set =
                fsetxattr(target, name.as_slice(), &self.value[..length], XattrFlags::empty());
            set.map_err(|error| self.write_error(error))?;
        }
        Ok(())
    }

    /// Gives a copy the mode and the times of its original. Called last, because writing changes
    /// the times.
    fn finish(&self, target: &OwnedFd, stat: &Stat) -> Result<(), CopyError> {
        let done = fchmod(target, Mode::from_raw_mode(stat.st_mode & 0o777))
            .and_then(|()| futimens(target, &times(stat)));
        done.map_err(|error| self.write_error(error))
    }

    /// Opens an entry of a directory, and fails if it is no longer of the expected type.
    fn open(
        &self,
        from: BorrowedFd<'_>,
        name: &CStr,
        flags: OFlags,
        kind: FileType,
    ) -> Result<(OwnedFd, Stat), CopyError> {
        let within = ResolveFlags::BENEATH
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_MAGICLINKS
            | ResolveFlags::NO_XDEV;
        let opened = openat2(from, name, flags, Mode::empty(), within).and_then(|file| {
            let stat = fstat(&file)?;
            Ok((file, stat))
        });
        let (file, stat) = opened.map_err(|error| self.read_error(error))?;
        if FileType::from_raw_mode(stat.st_mode) != kind {
            let source = io::Error::other("it was replaced meanwhile");
            return Err(CopyError::Read { path: self.shown_path(), source });
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

    fn shown_path(&self) -> String {
        printable(&self.path.to_string_lossy()).chars().take(MAX_PATH_CHARS).collect()
    }

    fn read_error(&self, error: Errno) -> CopyError {
        CopyError::Read { path: self.shown_path(), source: error.into() }
    }

    fn write_error(&self, error: Errno) -> CopyError {
        CopyError::Write { path: self.shown_path(), source: error.into() }
    }
}

/// Returns the modification time of a file, to be set on its copy. The access time is not copied.
fn times(stat: &Stat) -> Timestamps {
    #[expect(
        clippy::useless_conversion,
        reason = "the width of these fields differs between architectures"
    )]
    let (seconds, nanoseconds) =
        (i64::from(stat.st_mtime), i64::try_from(stat.st_mtime_nsec).unwrap_or(0));
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds },
    }
}

#[cfg(test)]
mod tests;
