//! Packs files of this side. Each is opened below the directory that it was found in, and no link is followed.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use tar::{Builder, EntryType, Header};

use super::super::SessionError;
use super::{Outlet, Transferred};

/// Each level of a tree takes a descriptor.
const DEEPEST: usize = 128;

/// What is to be packed.
#[derive(Debug)]
pub(super) enum Source {
    Directory(OwnedFd),
    File(OwnedFd),
}

/// Opens what is to be packed, itself no link.
pub(super) fn open(path: &Path) -> Result<Source, SessionError> {
    let opened = || {
        let file = open_at(CWD, path)?;
        match FileType::from_raw_mode(fstat(&file)?.st_mode) {
            FileType::Directory => Ok(Source::Directory(file)),
            FileType::RegularFile => Ok(Source::File(file)),
            _ => Err(io::Error::other("it is neither a file nor a directory")),
        }
    };
    opened().map_err(|source| cannot_read(path, source))
}

fn open_at(directory: impl AsFd, name: &(impl AsRef<Path> + ?Sized)) -> io::Result<OwnedFd> {
    // NONBLOCK: a pipe that takes a file's place is not waited for.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(openat(directory, name.as_ref(), flags, Mode::empty())?)
}

fn cannot_read(path: &Path, source: io::Error) -> SessionError {
    SessionError::Here { doing: "read", path: path.to_owned(), source }
}

/// Packs what was found at `path`; a single file as `name`.
pub(super) fn pack(
    source: Source,
    path: &Path,
    name: &str,
    outlet: Outlet,
    count: &AtomicU64,
) -> Result<Transferred, SessionError> {
    let mut packer = Packer { tar: Builder::new(outlet), done: Transferred::default(), count };
    match source {
        Source::Directory(directory) => packer.directory(&directory, path, Path::new(""), DEEPEST)?,
        Source::File(file) => packer.file(file, path, Path::new(name))?,
    }
    let packed = packer.tar.into_inner().and_then(|mut outlet| io::Write::flush(&mut outlet));
    packed.map_err(|source| cannot_read(path, source))?;
    packer.done.bytes = count.load(Ordering::Relaxed);
    Ok(packer.done)
}

struct Packer<'a> {
    tar: Builder<Outlet>,
    done: Transferred,
    count: &'a AtomicU64,
}

impl Packer<'_> {
    /// Packs what is in a directory that lies at `path` on this side, and is called `name` in the tree.
    fn directory(&mut self, directory: &OwnedFd, path: &Path, name: &Path, levels: usize) -> Result<(), SessionError> {
        let names = names(directory).map_err(|source| cannot_read(path, source))?;
        for entry in names {
            let entry = OsStr::from_bytes(entry.as_bytes());
            self.entry(directory, entry, &path.join(entry), &name.join(entry), levels)?;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        directory: &OwnedFd,
        entry: &OsStr,
        path: &Path,
        name: &Path,
        levels: usize,
    ) -> Result<(), SessionError> {
        let failed = |source: io::Error| cannot_read(path, source);
        let stat = statat(directory, entry, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| failed(errno.into()))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let levels = levels.checked_sub(1).ok_or_else(|| failed(io::Error::other("it lies too deep")))?;
                let below = open_at(directory, entry).map_err(failed)?;
                let stat = fstat(&below).map_err(|errno| failed(errno.into()))?;
                let mut header = header(EntryType::Directory, &stat, 0);
                self.tar.append_data(&mut header, name, io::empty()).map_err(failed)?;
                self.directory(&below, path, name, levels)
            }
            FileType::RegularFile => {
                let file = open_at(directory, entry).map_err(failed)?;
                self.file(file, path, name)
            }
            FileType::Symlink => {
                let target = readlinkat(directory, entry, Vec::new()).map_err(|errno| failed(errno.into()))?;
                let mut header = header(EntryType::Symlink, &stat, 0);
                let target = PathBuf::from(OsStr::from_bytes(target.as_bytes()));
                self.tar.append_link(&mut header, name, target).map_err(failed)
            }
            _ => {
                self.done.leave_out(name.as_os_str().as_bytes(), "it is a pipe, a socket or a device");
                Ok(())
            }
        }
    }

    fn file(&mut self, file: OwnedFd, path: &Path, name: &Path) -> Result<(), SessionError> {
        let failed = |source: io::Error| cannot_read(path, source);
        let stat = fstat(&file).map_err(|errno| failed(errno.into()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(failed(io::Error::other("it was replaced meanwhile")));
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let mut header = header(EntryType::Regular, &stat, size);
        let content = Exactly { file: File::from(file), left: size, count: self.count };
        self.tar.append_data(&mut header, name, content).map_err(failed)?;
        self.done.files += 1;
        Ok(())
    }
}

/// The names in a directory, in order.
fn names(directory: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.as_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn header(kind: EntryType, stat: &Stat, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(stat.st_mode & 0o777);
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(size);
    header
}

/// As many bytes of a file as were promised: what grows meanwhile is cut, what shrinks is an error.
struct Exactly<'a> {
    file: File,
    left: u64,
    count: &'a AtomicU64,
}

impl Read for Exactly<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let wanted = into.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let length = self.file.read(&mut into[..wanted])?;
        if length == 0 && wanted > 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it became shorter meanwhile"));
        }
        self.left -= length as u64;
        self.count.fetch_add(length as u64, Ordering::Relaxed);
        Ok(length)
    }
}
