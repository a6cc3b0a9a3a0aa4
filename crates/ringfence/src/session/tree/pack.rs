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
use super::{HostFiles, PieceWriter, TransferSummary};

/// Deepest level of a tree that is packed, because each level takes a descriptor.
const MAX_DEPTH: usize = 128;
/// Length of the blocks of a tar file, in bytes.
const BLOCK_BYTES: usize = 512;
/// Flags with which files are opened. The open does not wait for a pipe that takes the place of a
/// file.
const READ_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// File or directory to be packed.
#[derive(Debug)]
pub(super) enum PackSource {
    Directory(OwnedFd),
    File(OwnedFd),
}

/// Opens the file or directory to be packed. The path must not be a link.
pub(super) fn open(host_files: &HostFiles, path: &Path) -> Result<PackSource, SessionError> {
    let opened = || {
        let file = host_files.open(path, READ_FLAGS)?;
        match FileType::from_raw_mode(fstat(&file)?.st_mode) {
            FileType::Directory => Ok(PackSource::Directory(file)),
            FileType::RegularFile => Ok(PackSource::File(file)),
            _ => Err(io::Error::other("it is neither a file nor a directory")),
        }
    };
    opened().map_err(|source| cannot_read(path, source))
}

fn open_at(directory: impl AsFd, name: &(impl AsRef<Path> + ?Sized)) -> io::Result<OwnedFd> {
    Ok(openat(directory, name.as_ref(), READ_FLAGS, Mode::empty())?)
}

fn cannot_read(path: &Path, source: io::Error) -> SessionError {
    SessionError::HostFile { operation: "read", path: path.to_owned(), source }
}

/// Packs the source that was found at `path`. A single file gets the name `name`.
pub(super) fn pack(
    source: PackSource,
    path: &Path,
    name: &str,
    writer: PieceWriter,
    count: &AtomicU64,
) -> Result<TransferSummary, SessionError> {
    let mut packer =
        TreePacker { tar: Builder::new(writer), done: TransferSummary::default(), count };
    match source {
        PackSource::Directory(directory) => {
            packer.directory(&directory, path, Path::new(""), MAX_DEPTH)?
        }
        PackSource::File(file) => packer.file(file, path, Path::new(name))?,
    }
    let packed = packer.tar.into_inner().and_then(|mut writer| writer.flush());
    packed.map_err(|source| cannot_read(path, source))?;
    packer.done.bytes = count.load(Ordering::Relaxed);
    Ok(packer.done)
}

struct TreePacker<'a> {
    tar: Builder<PieceWriter>,
    done: TransferSummary,
    count: &'a AtomicU64,
}

impl TreePacker<'_> {
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
        let writer = self.tar.get_mut();
        let mut left = size;
        while left > 0 {
            let read = writer.read_from(&mut file, left)?;
            if read == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "it became shorter meanwhile",
                ));
            }
            left -= read;
            self.count.fetch_add(read, Ordering::Relaxed);
        }
        let padding = size.next_multiple_of(BLOCK_BYTES as u64) - size;
        writer.write_all(
            &[0; BLOCK_BYTES][..usize::try_from(padding).expect("it is less than a block")],
        )
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
