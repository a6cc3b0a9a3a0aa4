//! Packs files of the host. Each file is opened below the directory in which it was found, and no
//! link is followed.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use tar::{Builder, EntryType, Header};

use super::super::SessionError;
use super::{Here, Outlet, Transferred};

/// Deepest level of a tree that is packed, because each level takes a descriptor.
const DEEPEST: usize = 128;
/// Length of the blocks of a tar file, in bytes.
const BLOCK: usize = 512;
/// Flags with which files are opened. The open does not wait for a pipe that takes the place of a
/// file.
const TO_READ: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// File or directory to be packed.
#[derive(Debug)]
pub(super) enum Source {
    Directory(OwnedFd),
    File(OwnedFd),
}

/// Opens the file or directory to be packed. The path must not be a link.
pub(super) fn open(here: &Here, path: &Path) -> Result<Source, SessionError> {
    let opened = || {
        let file = here.open(path, TO_READ)?;
        match FileType::from_raw_mode(fstat(&file)?.st_mode) {
            FileType::Directory => Ok(Source::Directory(file)),
            FileType::RegularFile => Ok(Source::File(file)),
            _ => Err(io::Error::other("it is neither a file nor a directory")),
        }
    };
    opened().map_err(|source| cannot_read(path, source))
}

fn open_at(directory: impl AsFd, name: &(impl AsRef<Path> + ?Sized)) -> io::Result<OwnedFd> {
    Ok(openat(directory, name.as_ref(), TO_READ, Mode::empty())?)
}

fn cannot_read(path: &Path, source: io::Error) -> SessionError {
    SessionError::Here { doing: "read", path: path.to_owned(), source }
}

/// Packs the source that was found at `path`. A single file gets the name `name`.
pub(super) fn pack(
    source: Source,
    path: &Path,
    name: &str,
    outlet: Outlet,
    count: &AtomicU64,
) -> Result<Transferred, SessionError> {
    let mut packer = Packer { tar: Builder::new(outlet), done: Transferred::default(), count };
    match source {
        Source::Directory(directory) => {
            packer.directory(&directory, path, Path::new(""), DEEPEST)?
        }
        Source::File(file) => packer.file(file, path, Path::new(name))?,
    }
    let packed = packer.tar.into_inner().and_then(|mut outlet| outlet.flush());
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
    /// Packs the contents of a directory. The directory lies at `path` on the host, and is called
    /// `name` in the tree.
    fn directory(
        &mut self,
        directory: &OwnedFd,
        path: &Path,
        name: &Path,
        levels: usize,
    ) -> Result<(), SessionError> {
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
        let stat = statat(directory, entry, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| failed(errno.into()))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let levels = levels
                    .checked_sub(1)
                    .ok_or_else(|| failed(io::Error::other("it lies too deep")))?;
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
                let target = readlinkat(directory, entry, Vec::new())
                    .map_err(|errno| failed(errno.into()))?;
                let mut header = header(EntryType::Symlink, &stat, 0);
                let target = PathBuf::from(OsStr::from_bytes(target.as_bytes()));
                self.tar.append_link(&mut header, name, target).map_err(failed)
            }
            _ => {
                self.done
                    .leave_out(name.as_os_str().as_bytes(), "it is a pipe, a socket or a device");
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
        self.tar.append_data(&mut header, name, io::empty()).map_err(failed)?;
        self.content(File::from(file), size).map_err(failed)?;
        self.done.files += 1;
        Ok(())
    }

    /// Packs as many bytes of a file as its header promised. A file that has grown is cut, one that
    /// has shrunk is an error.
    fn content(&mut self, mut file: File, size: u64) -> io::Result<()> {
        let outlet = self.tar.get_mut();
        let mut left = size;
        while left > 0 {
            let read = outlet.read_from(&mut file, left)?;
            if read == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "it became shorter meanwhile",
                ));
            }
            left -= read;
            self.count.fetch_add(read, Ordering::Relaxed);
        }
        let padding = size.next_multiple_of(BLOCK as u64) - size;
        outlet.write_all(&[0; BLOCK][..usize::try_from(padding).expect("it is less than a block")])
    }
}

/// Returns the names in a directory, sorted.
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
