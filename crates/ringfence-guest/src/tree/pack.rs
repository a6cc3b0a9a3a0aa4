//! Packing of a directory tree into a tar stream. Symbolic links are packed, not followed. Sockets,
//! FIFOs and devices are left out.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use ringfence_proto::code::Failure;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use tar::{Builder, EntryType, Header};

use crate::filesystem::DirectoryWalk;
use crate::filesystem::path::{NameInDirectory, path_failure};
use crate::log;
use crate::slices::{ByteSource, SLICE_BYTES};

/// Length of a tar block in bytes.
const BLOCK_BYTES: u64 = 512;
/// Maximum number of entries in one directory, because the names of a directory are held in memory.
pub(super) const MAX_DIRECTORY_ENTRIES: usize = 1_000_000;

/// Tree that is being packed.
pub(super) struct TreePacker {
    builder: Builder<Vec<u8>>,
    /// Open file whose contents follow, the number of its bytes that are left, and the length of
    /// the padding.
    file: Option<(File, u64, u64)>,
    walk: Option<TreeWalk>,
}

struct TreeWalk {
    descent: DirectoryWalk,
    here: PathBuf,
    /// Names that are still to be packed, for each level of the walk.
    levels: Vec<std::vec::IntoIter<OsString>>,
}

impl TreePacker {
    /// Starts to pack the file or directory at a resolved path.
    pub(super) fn new(path: &Path) -> Result<TreePacker, Failure> {
        let failed = |error: io::Error| path_failure("send", path, &error);
        let place = NameInDirectory::from_path(path).map_err(failed)?;
        let stat = statat(&place.directory, &place.name, AtFlags::SYMLINK_NOFOLLOW);
        let stat = stat.map_err(|error| failed(error.into()))?;
        let mut packing = TreePacker { builder: Builder::new(Vec::new()), file: None, walk: None };
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            let descent =
                DirectoryWalk::open(place.directory.as_fd(), &place.name).map_err(failed)?;
            packing.append(place.directory.as_fd(), &place.name, Path::new(".")).map_err(failed)?;
            let names = descent.names(MAX_DIRECTORY_ENTRIES).map_err(failed)?.into_iter();
            packing.walk = Some(TreeWalk { descent, here: PathBuf::new(), levels: vec![names] });
        } else {
            packing
                .append(place.directory.as_fd(), &place.name, Path::new(&place.name))
                .map_err(failed)?;
        }
        Ok(packing)
    }

    /// Appends the header of an entry, and returns the type of the file. For a regular file, sets
    /// `self.file`, from which the contents follow.
    fn append(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &OsStr,
        path: &Path,
    ) -> io::Result<FileType> {
        let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        match kind {
            FileType::Directory => {
                let mut header = make_header(&stat, EntryType::Directory, 0);
                self.builder.append_data(&mut header, path, io::empty())?;
            }
            FileType::Symlink => {
                let target = readlinkat(directory, name, Vec::new())?;
                let mut header = make_header(&stat, EntryType::Symlink, 0);
                self.builder.append_link(
                    &mut header,
                    path,
                    OsStr::from_bytes(target.as_bytes()),
                )?;
            }
            FileType::RegularFile => {
                // Another file may have taken this name since statat(2). A link must not be
                // followed, and opening a FIFO must not block.
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = openat(directory, name, flags, Mode::empty())?;
                let stat = fstat(&file)?;
                if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                    return Ok(FileType::Unknown);
                }
                let size = u64::try_from(stat.st_size).unwrap_or_default();
                let mut header = make_header(&stat, EntryType::Regular, size);
                self.builder.append_data(&mut header, path, io::empty())?;
                self.file = Some((file.into(), size, size.next_multiple_of(BLOCK_BYTES) - size));
            }
            _ => {}
        }
        Ok(kind)
    }

    /// Appends the next entry of the walk. Appends nothing at the end of the walk.
    fn advance(&mut self) -> io::Result<()> {
        let Some(mut walk) = self.walk.take() else { return Ok(()) };
        let Some(name) = walk.levels.last_mut().and_then(Iterator::next) else {
            walk.levels.pop();
            walk.here.pop();
            if walk.descent.leave()? {
                self.walk = Some(walk);
            }
            return Ok(());
        };
        let path = walk.here.join(&name);
        match self.append(walk.descent.as_fd(), &name, &path) {
            Ok(FileType::Directory) => {
                walk.descent.enter(&name)?;
                walk.levels.push(walk.descent.names(MAX_DIRECTORY_ENTRIES)?.into_iter());
                walk.here = path;
            }
            Ok(_) => {}
            // The file was removed since its directory was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(io::Error::new(error.kind(), format!("`{}`: {error}", path.display())));
            }
        }
        self.walk = Some(walk);
        Ok(())
    }

    fn pack(&mut self) -> io::Result<()> {
        while self.builder.get_ref().len() < SLICE_BYTES {
            if let Some((mut file, left, padding)) = self.file.take() {
                let slice = self.builder.get_mut();
                let free = (SLICE_BYTES - slice.len()) as u64;
                let read = (&mut file).take(left.min(free)).read_to_end(slice)? as u64;
                if read < left.min(free) {
                    return Err(io::Error::other("a file became shorter while it was sent"));
                }
                if read < left {
                    self.file = Some((file, left - read, padding));
                } else {
                    slice.resize(
                        slice.len() + usize::try_from(padding).expect("is less than a block"),
                        0,
                    );
                }
            } else if self.walk.is_some() {
                self.advance()?;
            } else {
                // `finish` writes the end of the archive once. Further calls append nothing.
                return self.builder.finish();
            }
        }
        Ok(())
    }
}

impl ByteSource for TreePacker {
    fn fill(&mut self, slice: &mut Vec<u8>) -> io::Result<()> {
        // Log the error, because the client only sees that the stream breaks off.
        self.pack().inspect_err(|error| {
            log::write_line(format_args!("a tree was sent in part: {error}"))
        })?;
        slice.append(self.builder.get_mut());
        Ok(())
    }
}

fn make_header(stat: &Stat, kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(stat.st_mode & 0o777);
    header.set_uid(stat.st_uid.into());
    header.set_gid(stat.st_gid.into());
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or_default());
    header.set_size(size);
    header
}
