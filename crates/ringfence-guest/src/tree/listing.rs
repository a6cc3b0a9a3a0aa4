//! Listing of a directory tree with the digests of its files. Symbolic links are listed, not
//! followed.
//!
//! Every file is read for every listing. A file whose size and times are those of the last listing
//! could be skipped, but a time stamp is only as fine as the kernel's clock tick, and code in the
//! sandbox can set modification times. A change would then be lost silently.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use ringfence_proto::bytes::Base64Bytes;
use ringfence_proto::code::{Code, Failure};
use ringfence_proto::tree::TreeEntry;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, openat, readlinkat, statat};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use super::pack::MAX_DIRECTORY_ENTRIES;
use crate::filesystem::DirectoryWalk;
use crate::filesystem::path::{NameInDirectory, path_failure};
use crate::log;
use crate::slices::{ByteSource, SLICE_BYTES};

/// Number of bytes that are digested before the client gets a sign of life.
const BUSY_BYTES: u64 = 64 << 20;
/// Number of bytes that are read from a file at once.
const READ_BYTES: usize = 128 << 10;

/// Tree that is being listed.
pub(super) struct TreeLister {
    walk: Option<DirectoryWalk>,
    here: PathBuf,
    /// Names that are still to be listed, for each level of the walk.
    levels: Vec<std::vec::IntoIter<OsString>>,
    file: Option<FileDigest>,
    has_ended: bool,
    buffer: Vec<u8>,
}

/// File that is being digested.
struct FileDigest {
    file: File,
    path: Base64Bytes,
    mode: u32,
    size: u64,
    left: u64,
    digest: Sha256,
}

impl TreeLister {
    /// Starts to list the directory at a resolved path.
    pub(super) fn new(path: &Path) -> Result<TreeLister, Failure> {
        let failed = |error: io::Error| path_failure("list", path, &error);
        let place = NameInDirectory::from_path(path).map_err(failed)?;
        let walk = DirectoryWalk::open(place.directory.as_fd(), &place.name);
        let walk = walk.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NOENT) => {
                Failure::new(Code::NotFound, format!("path '{}' does not exist", path.display()))
            }
            _ => failed(error),
        })?;
        let names = walk.names(MAX_DIRECTORY_ENTRIES).map_err(failed)?.into_iter();
        Ok(TreeLister {
            walk: Some(walk),
            here: PathBuf::new(),
            levels: vec![names],
            file: None,
            has_ended: false,
            buffer: vec![0; READ_BYTES],
        })
    }

    /// Appends the next lines of the listing. Appends nothing after the end.
    fn list(&mut self, slice: &mut Vec<u8>) -> io::Result<()> {
        let mut budget = BUSY_BYTES;
        while slice.len() < SLICE_BYTES {
            if let Some(mut file) = self.file.take() {
                if budget == 0 {
                    self.file = Some(file);
                    return write_entry(slice, &TreeEntry::Busy);
                }
                match file.read_some(&mut self.buffer, &mut budget)? {
                    true => write_entry(slice, &file.into_entry())?,
                    false => self.file = Some(file),
                }
            } else if let Some(walk) = self.walk.take() {
                self.advance(walk, slice)?;
            } else if !self.has_ended {
                self.has_ended = true;
                write_entry(slice, &TreeEntry::End)?;
            } else {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Lists the next entry of the walk.
    fn advance(&mut self, mut walk: DirectoryWalk, slice: &mut Vec<u8>) -> io::Result<()> {
        let Some(name) = self.levels.last_mut().and_then(Iterator::next) else {
            self.levels.pop();
            self.here.pop();
            if walk.leave()? {
                self.walk = Some(walk);
            }
            return Ok(());
        };
        let path = self.here.join(&name);
        match self.list_entry(&mut walk, &name, &path, slice) {
            // The file was removed since its directory was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            listed => listed?,
        }
        self.walk = Some(walk);
        Ok(())
    }

    fn list_entry(
        &mut self,
        walk: &mut DirectoryWalk,
        name: &OsStr,
        path: &Path,
        slice: &mut Vec<u8>,
    ) -> io::Result<()> {
        let shown = Base64Bytes(path.as_os_str().as_bytes().to_vec());
        let stat = statat(&*walk, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let mode = stat.st_mode & 0o7777;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let names = match walk.enter(name) {
                    Ok(()) => walk.names(MAX_DIRECTORY_ENTRIES)?,
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                        return write_entry(slice, &TreeEntry::Unreadable { path: shown });
                    }
                    Err(error) => return Err(error),
                };
                self.levels.push(names.into_iter());
                self.here = path.to_owned();
                write_entry(slice, &TreeEntry::Directory { path: shown, mode })
            }
            FileType::Symlink => {
                let target = readlinkat(&*walk, name, Vec::new())?;
                let target = Base64Bytes(target.into_bytes());
                write_entry(slice, &TreeEntry::Link { path: shown, target })
            }
            FileType::RegularFile => {
                // Another file may have taken this name since statat(2). A link must not be
                // followed, and opening a FIFO must not block.
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = match openat(&*walk, name, flags, Mode::empty()) {
                    Err(Errno::ACCESS | Errno::PERM) => {
                        return write_entry(slice, &TreeEntry::Unreadable { path: shown });
                    }
                    opened => opened?,
                };
                let stat = fstat(&file)?;
                if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                    return write_entry(slice, &TreeEntry::Special { path: shown });
                }
                self.file = Some(FileDigest {
                    file: file.into(),
                    path: shown,
                    mode: stat.st_mode & 0o7777,
                    size: 0,
                    left: u64::try_from(stat.st_size).unwrap_or_default(),
                    digest: Sha256::new(),
                });
                Ok(())
            }
            _ => write_entry(slice, &TreeEntry::Special { path: shown }),
        }
    }
}

impl ByteSource for TreeLister {
    fn fill(&mut self, slice: &mut Vec<u8>) -> io::Result<()> {
        // Log the error, because the client only sees that the stream breaks off.
        self.list(slice).inspect_err(|error| {
            log::write_line(format_args!("a tree was listed in part: {error}"))
        })
    }
}

impl FileDigest {
    /// Digests the next bytes, at most `budget`. Returns true if the file is complete. A file that
    /// grows meanwhile is digested up to its first size.
    fn read_some(&mut self, buffer: &mut [u8], budget: &mut u64) -> io::Result<bool> {
        let most = (buffer.len() as u64).min(self.left).min(*budget);
        let most = usize::try_from(most).expect("a buffer is not longer than memory");
        let read = self.file.read(&mut buffer[..most])?;
        self.digest.update(&buffer[..read]);
        self.size += read as u64;
        self.left -= read as u64;
        *budget -= read as u64;
        Ok(read == 0 || self.left == 0)
    }

    fn into_entry(self) -> TreeEntry {
        let digest = Base64Bytes(self.digest.finalize().to_vec());
        TreeEntry::File { path: self.path, mode: self.mode, size: self.size, digest }
    }
}

fn write_entry(slice: &mut Vec<u8>, entry: &TreeEntry) -> io::Result<()> {
    serde_json::to_writer(&mut *slice, entry)?;
    slice.push(b'\n');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(lister: &mut TreeLister) -> Vec<TreeEntry> {
        let mut text = Vec::new();
        loop {
            let before = text.len();
            lister.fill(&mut text).expect("lists");
            if text.len() == before {
                break;
            }
        }
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).expect("is an entry")).collect()
    }

    #[test]
    fn a_large_file_gives_signs_of_life_before_its_digest() {
        let root = tempfile::tempdir().expect("makes a directory");
        let large = fs_err::File::create(root.path().join("large")).expect("creates");
        large.set_len(BUSY_BYTES * 2 + 1).expect("grows");
        let entries = listed(&mut TreeLister::new(root.path()).expect("is a directory"));
        let [TreeEntry::Busy, TreeEntry::Busy, TreeEntry::File { size, .. }, TreeEntry::End] =
            entries.as_slice()
        else {
            panic!("{entries:?}")
        };
        assert_eq!(*size, BUSY_BYTES * 2 + 1);
    }
}
