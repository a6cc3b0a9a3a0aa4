//! Reading and removal of single entries of a tree. Each path is walked from the root of the tree,
//! component by component, and no symbolic link is followed.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use ringfence_proto::code::Failure;
use ringfence_proto::tree::{
    FILE_BROKEN, FILE_END, ReadFilesRequest, RemoveEntriesRequest, RemoveEntriesResponse,
    RequestedFile,
};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fstat, openat, unlinkat};
use rustix::io::Errno;

use super::unpack::{TRAVERSE_FLAGS, relative_path};
use crate::filesystem::path::path_failure;
use crate::slices::{ByteSource, SLICE_BYTES};

/// Number of bytes of a chunk.
const CHUNK_BYTES: usize = 64 << 10;

/// Files whose contents are being sent.
pub(super) struct RequestedFiles {
    root: OwnedFd,
    files: std::vec::IntoIter<RequestedFile>,
    /// Open file, and the number of bytes of it that are left.
    file: Option<(File, u64)>,
    buffer: Vec<u8>,
}

impl RequestedFiles {
    /// Starts to send files of the tree at a resolved path.
    pub(super) fn new(path: &Path, request: ReadFilesRequest) -> Result<RequestedFiles, Failure> {
        let root = open_root(path)?;
        let files = request.files.into_iter();
        Ok(RequestedFiles { root, files, file: None, buffer: vec![0; CHUNK_BYTES] })
    }

    /// Opens a requested file, or returns `None` if it cannot be read.
    fn open(&self, requested: &RequestedFile) -> Option<File> {
        let path = relative_path(&requested.path.0).ok()?;
        let name = path.file_name()?;
        let parent = open_parent(&self.root, &path).ok()?;
        // A link must not be followed, and opening a FIFO must not block.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&parent, name, flags, Mode::empty()).ok()?;
        let kind = FileType::from_raw_mode(fstat(&file).ok()?.st_mode);
        (kind == FileType::RegularFile).then(|| file.into())
    }
}

impl ByteSource for RequestedFiles {
    fn fill(&mut self, slice: &mut Vec<u8>) -> io::Result<()> {
        while slice.len() < SLICE_BYTES {
            if let Some((mut file, left)) = self.file.take() {
                let most = usize::try_from(left).unwrap_or(usize::MAX).min(self.buffer.len());
                match file.read(&mut self.buffer[..most]) {
                    Ok(0) => push_number(slice, FILE_END),
                    Ok(read) => {
                        let length = u32::try_from(read).expect("a chunk is short");
                        push_number(slice, length);
                        slice.extend_from_slice(&self.buffer[..read]);
                        self.file = Some((file, left - read as u64));
                    }
                    Err(_) => push_number(slice, FILE_BROKEN),
                }
            } else if let Some(requested) = self.files.next() {
                match self.open(&requested) {
                    Some(file) => self.file = Some((file, requested.size)),
                    None => push_number(slice, FILE_BROKEN),
                }
            } else {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Removes entries of the tree at a resolved path.
pub(super) fn remove_entries(
    path: &Path,
    request: &RemoveEntriesRequest,
) -> Result<RemoveEntriesResponse, Failure> {
    let root = open_root(path)?;
    let mut response = RemoveEntriesResponse::default();
    for (entry, position) in request.paths.iter().zip(0..) {
        let entry = relative_path(&entry.0)?;
        let Some(name) = entry.file_name() else { continue };
        let removed = open_parent(&root, &entry).and_then(|parent| remove_entry(&parent, name));
        match removed {
            // The entry, or a directory above it, is already gone.
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(_) => response.kept.push(position),
        }
    }
    Ok(response)
}

fn remove_entry(parent: &OwnedFd, name: &OsStr) -> rustix::io::Result<()> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => unlinkat(parent, name, AtFlags::REMOVEDIR),
        removed => removed,
    }
}

fn open_root(path: &Path) -> Result<OwnedFd, Failure> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty())
        .map_err(|error| path_failure("open", path, &error.into()))
}

/// Opens the directory of an entry. Fails if one of the directories is a symbolic link.
fn open_parent(root: &OwnedFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let mut directory = openat(root, ".", TRAVERSE_FLAGS, Mode::empty())?;
    for name in path.parent().unwrap_or(Path::new("")) {
        directory = openat(&directory, name, TRAVERSE_FLAGS, Mode::empty())?;
    }
    Ok(directory)
}

fn push_number(slice: &mut Vec<u8>, number: u32) {
    slice.extend_from_slice(&number.to_be_bytes());
}
