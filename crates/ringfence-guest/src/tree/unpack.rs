//! Unpacking of a tar stream into a directory. Whatever the archive contains, nothing is created
//! outside that directory: each path is walked from the directory, component by component, and no
//! symbolic link is followed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use ringfence_proto::code::{Code, Failure};
use rustix::fs::{
    AtFlags, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, fchmod, futimens, linkat, mkdirat,
    openat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use tar::{EntryType, Header, PaxExtensions};

use super::UnpackedCounts;
use crate::filesystem::path::{make_directories, path_failure};
use crate::slices::ByteSink;

/// Length of a tar block in bytes.
const BLOCK_BYTES: usize = 512;
/// Maximum length in bytes of the name, link target or attribute list of an entry. Paths have at
/// most 4096 bytes.
const MAX_EXTENSION_BYTES: u64 = 1 << 20;
/// Maximum number of directories whose final mode is set only after everything is unpacked, because
/// that mode denies access to their owner.
const MAX_DEFERRED_MODES: usize = 100_000;
/// Flags for opening a directory only to reach its entries.
pub(super) const TRAVERSE_FLAGS: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Tree that is being unpacked.
pub(super) struct TreeUnpacker {
    root: Arc<OwnedFd>,
    path: PathBuf,
    state: ArchiveState,
    named: EntryExtensions,
    /// Parent directory of the last entry. The next entry is often in the same directory.
    last: Option<(PathBuf, Arc<OwnedFd>)>,
    /// Directories whose final mode [`TreeUnpacker::finish`] sets, because that mode denies access
    /// to their owner.
    closed: Vec<(PathBuf, Mode)>,
    unpacked: UnpackedCounts,
}

/// Meaning of the next bytes of the archive.
enum ArchiveState {
    /// Bytes of a header, as far as they have arrived.
    Head(Vec<u8>),
    /// Bytes of an extension: a name, link target or attribute list for which the header of an
    /// entry is too small.
    Extension { kind: EntryType, text: Vec<u8>, left: u64, padding: u64 },
    /// Contents of a file.
    Contents { file: PartialFile, left: u64, padding: u64 },
    /// Bytes to skip, such as padding.
    Skipped { left: u64 },
    /// Bytes after the end of the archive, which are ignored.
    Ended,
}

/// Values from extensions, which replace those in the header of the next entry.
#[derive(Default)]
struct EntryExtensions {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
}

/// File that is being written. Dropping the value removes the file again, unless the file is
/// complete: `name` is then `None`.
struct PartialFile {
    file: File,
    directory: Arc<OwnedFd>,
    name: Option<OsString>,
    modified: i64,
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // Ignore the error: the incomplete file then stays.
            let _ = unlinkat(&*self.directory, name, AtFlags::empty());
        }
    }
}

impl TreeUnpacker {
    /// Starts to unpack below a resolved path. The directory is created if it is missing.
    pub(super) fn for_directory(path: &Path) -> Result<TreeUnpacker, Failure> {
        let root =
            make_directories(path).map_err(|error| path_failure("unpack into", path, &error))?;
        Ok(TreeUnpacker {
            root: Arc::new(root),
            path: path.to_owned(),
            state: ArchiveState::Head(Vec::new()),
            named: EntryExtensions::default(),
            last: None,
            closed: Vec::new(),
            unpacked: UnpackedCounts::default(),
        })
    }

    /// Completes the tree: checks that the archive is complete, and sets the modes that were
    /// deferred.
    pub(super) fn finish(mut self) -> Result<UnpackedCounts, Failure> {
        if !matches!(self.state, ArchiveState::Ended) {
            return Err(refusal_failure("ends early"));
        }
        // Set the modes in reverse order of the archive, which normally names a directory before
        // the directories in it. After its mode is set, a directory may deny access to the
        // directories in it.
        for (path, mode) in std::mem::take(&mut self.closed).into_iter().rev() {
            let directory = self
                .open_or_create(&path)
                .and_then(|directory| open_directory(&directory, OsStr::new(".")));
            directory
                .and_then(|directory| Ok(fchmod(directory, mode)?))
                .map_err(|error| path_failure("set the mode of", &path, &error))?;
        }
        Ok(self.unpacked)
    }

    /// Parses the header of an entry, and creates the file that the header describes. Returns the
    /// state for the bytes that follow.
    fn begin_entry(&mut self, block: &[u8]) -> Result<ArchiveState, Failure> {
        if block.iter().all(|&byte| byte == 0) {
            return Ok(ArchiveState::Ended);
        }
        let header = Header::from_byte_slice(block);
        let stated = header.cksum().map_err(|_| refusal_failure("has a header that is damaged"))?;
        if stated != checksum(block) {
            return Err(refusal_failure("has a header that is damaged"));
        }
        let size = header
            .entry_size()
            .map_err(|_| refusal_failure("has an entry of no understandable size"))?;
        let kind = header.entry_type();
        match kind {
            EntryType::GNULongName | EntryType::GNULongLink | EntryType::XHeader => {
                if size > MAX_EXTENSION_BYTES {
                    return Err(refusal_failure(
                        "has an entry with too long a name or too many attributes",
                    ));
                }
                return Ok(extension_state(kind, Vec::new(), size, padding(size)));
            }
            EntryType::XGlobalHeader => return Ok(skip_state(size.saturating_add(padding(size)))),
            _ => {}
        }
        let named = std::mem::take(&mut self.named);
        let size = named.size.unwrap_or(size);
        let name = named.path.unwrap_or_else(|| header.path_bytes().into_owned());
        let path = relative_path(&name)?;
        let failed = |error: io::Error| path_failure("unpack", &path, &error);
        let mode = Mode::from_raw_mode(header.mode().unwrap_or(0o644) & 0o777);
        self.unpacked.entries += 1;
        match kind {
            EntryType::Directory => self.make_directory(&path, mode).map_err(failed)?,
            // Tar wrote directories in this form before it had a type for directories.
            EntryType::Regular if name.ends_with(b"/") && size == 0 => {
                self.make_directory(&path, mode).map_err(failed)?;
            }
            EntryType::Regular | EntryType::Continuous => {
                let modified = header
                    .mtime()
                    .ok()
                    .and_then(|time| i64::try_from(time).ok())
                    .unwrap_or_default();
                let file = self.make_file(&path, mode, modified).map_err(failed)?;
                return contents_state(file, size, padding(size)).map_err(failed);
            }
            EntryType::Symlink => {
                let target = named
                    .link
                    .or_else(|| header.link_name_bytes().map(std::borrow::Cow::into_owned));
                let target =
                    target.ok_or_else(|| refusal_failure("has a link that leads nowhere"))?;
                self.create_entry(&path, |directory, name| {
                    symlinkat(target.as_slice(), directory, name)
                })
                .map_err(failed)?;
            }
            EntryType::Link => {
                let target = named
                    .link
                    .or_else(|| header.link_name_bytes().map(std::borrow::Cow::into_owned));
                let target = relative_path(
                    &target.ok_or_else(|| refusal_failure("has a link that leads nowhere"))?,
                )?;
                self.make_link(&path, &target).map_err(failed)?;
            }
            _ => {
                let message = format!(
                    "has `{}`, which is neither a file, a directory nor a link",
                    path.display()
                );
                return Err(refusal_failure(&message));
            }
        }
        Ok(skip_state(size.saturating_add(padding(size))))
    }

    /// Stores the values that an extension has for the next entry.
    fn read_extension(&mut self, kind: EntryType, text: Vec<u8>) -> Result<(), Failure> {
        let without_end = |mut text: Vec<u8>| {
            text.truncate(text.iter().position(|&byte| byte == 0).unwrap_or(text.len()));
            text
        };
        match kind {
            EntryType::GNULongName => self.named.path = Some(without_end(text)),
            EntryType::GNULongLink => self.named.link = Some(without_end(text)),
            _ => {
                for attribute in PaxExtensions::new(&text) {
                    let attribute = attribute
                        .map_err(|_| refusal_failure("has attributes that are damaged"))?;
                    match attribute.key_bytes() {
                        b"path" => self.named.path = Some(attribute.value_bytes().to_owned()),
                        b"linkpath" => self.named.link = Some(attribute.value_bytes().to_owned()),
                        b"size" => {
                            let size = attribute.value().ok().and_then(|text| text.parse().ok());
                            self.named.size = Some(size.ok_or_else(|| {
                                refusal_failure("has attributes that are damaged")
                            })?);
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }

    fn make_directory(&mut self, path: &Path, mode: Mode) -> io::Result<()> {
        // The path is `.`, the directory that the archive is unpacked in, which keeps its mode.
        let Some(name) = path.file_name() else { return Ok(()) };
        let parent = self.open_parent(path)?;
        match mkdirat(&*parent, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let directory = open_directory(&parent, name)?;
        if mode.contains(Mode::RWXU) {
            return Ok(fchmod(&directory, mode)?);
        }
        // The mode would deny the creation of entries that follow, so `finish` sets the mode.
        if self.closed.len() == MAX_DEFERRED_MODES {
            return Err(io::Error::other("too many directories that their owner may not write"));
        }
        fchmod(&directory, mode | Mode::RWXU)?;
        self.closed.push((path.to_owned(), mode));
        Ok(())
    }

    fn make_file(&mut self, path: &Path, mode: Mode, modified: i64) -> io::Result<PartialFile> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (directory, name, file) = self.create_entry(path, |directory, name| {
            openat(directory, name, flags, Mode::RUSR | Mode::WUSR)
        })?;
        let partial = PartialFile { file: file.into(), directory, name: Some(name), modified };
        fchmod(&partial.file, mode)?;
        Ok(partial)
    }

    fn make_link(&mut self, path: &Path, target: &Path) -> io::Result<()> {
        if path == target {
            return Ok(());
        }
        let name = target.file_name().ok_or(Errno::ISDIR)?;
        let parent = self.open_parent(target)?;
        self.create_entry(path, |directory, new| {
            linkat(&*parent, name, directory, new, AtFlags::empty())
        })?;
        Ok(())
    }

    /// Creates a file at a path. A file that exists there is unlinked first, so that its other hard
    /// links and the target of a symbolic link do not change. An existing directory is an error.
    fn create_entry<T>(
        &mut self,
        path: &Path,
        make: impl Fn(&OwnedFd, &OsStr) -> rustix::io::Result<T>,
    ) -> io::Result<(Arc<OwnedFd>, OsString, T)> {
        let name = path.file_name().ok_or(Errno::ISDIR)?.to_owned();
        let directory = self.open_parent(path)?;
        let made = match make(&directory, &name) {
            Err(Errno::EXIST) => {
                unlinkat(&*directory, &name, AtFlags::empty())?;
                make(&directory, &name)?
            }
            made => made?,
        };
        Ok((directory, name, made))
    }

    fn open_parent(&mut self, path: &Path) -> io::Result<Arc<OwnedFd>> {
        self.open_or_create(path.parent().unwrap_or(Path::new("")))
    }

    /// Opens a directory below the root. Creates the directory if it is missing.
    fn open_or_create(&mut self, path: &Path) -> io::Result<Arc<OwnedFd>> {
        if let Some((last, directory)) = &self.last
            && last == path
        {
            return Ok(Arc::clone(directory));
        }
        let mut directory = Arc::clone(&self.root);
        for name in path {
            let next = match openat(&*directory, name, TRAVERSE_FLAGS, Mode::empty()) {
                Err(Errno::NOENT) => {
                    match mkdirat(&*directory, name, Mode::from_raw_mode(0o755)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(error) => return Err(error.into()),
                    }
                    openat(&*directory, name, TRAVERSE_FLAGS, Mode::empty())?
                }
                // A symbolic link fails with ENOTDIR because of O_NOFOLLOW, so no link is followed.
                next => next?,
            };
            directory = Arc::new(next);
        }
        self.last = Some((path.to_owned(), Arc::clone(&directory)));
        Ok(directory)
    }
}

impl ByteSink for TreeUnpacker {
    fn take(&mut self, slice: &[u8]) -> Result<(), Failure> {
        let mut rest = slice;
        while !rest.is_empty() {
            self.state = match std::mem::replace(&mut self.state, ArchiveState::Ended) {
                ArchiveState::Head(mut block) => {
                    block.extend_from_slice(take_front(
                        &mut rest,
                        (BLOCK_BYTES - block.len()) as u64,
                    ));
                    if block.len() < BLOCK_BYTES {
                        ArchiveState::Head(block)
                    } else {
                        self.begin_entry(&block)?
                    }
                }
                ArchiveState::Extension { kind, mut text, left, padding } => {
                    let piece = take_front(&mut rest, left);
                    text.extend_from_slice(piece);
                    match left - piece.len() as u64 {
                        0 => {
                            self.read_extension(kind, text)?;
                            skip_state(padding)
                        }
                        left => ArchiveState::Extension { kind, text, left, padding },
                    }
                }
                ArchiveState::Contents { mut file, left, padding } => {
                    let piece = take_front(&mut rest, left);
                    let written = file.file.write_all(piece);
                    written.map_err(|error| path_failure("unpack into", &self.path, &error))?;
                    self.unpacked.bytes += piece.len() as u64;
                    contents_state(file, left - piece.len() as u64, padding)
                        .map_err(|error| path_failure("unpack into", &self.path, &error))?
                }
                ArchiveState::Skipped { left } => {
                    let piece = take_front(&mut rest, left);
                    skip_state(left - piece.len() as u64)
                }
                // Archives are padded to the length of a tape record.
                ArchiveState::Ended => return Ok(()),
            };
        }
        Ok(())
    }
}

/// Removes at most `length` bytes from the front of `rest`, and returns them.
fn take_front<'a>(rest: &mut &'a [u8], length: u64) -> &'a [u8] {
    let length = usize::try_from(length).unwrap_or(usize::MAX).min(rest.len());
    let (piece, behind) = rest.split_at(length);
    *rest = behind;
    piece
}

fn skip_state(left: u64) -> ArchiveState {
    if left == 0 {
        ArchiveState::Head(Vec::with_capacity(BLOCK_BYTES))
    } else {
        ArchiveState::Skipped { left }
    }
}

fn extension_state(kind: EntryType, text: Vec<u8>, left: u64, padding: u64) -> ArchiveState {
    // An extension of length 0 has no content.
    if left == 0 {
        skip_state(padding)
    } else {
        ArchiveState::Extension { kind, text, left, padding }
    }
}

/// Returns the next state for a file that still lacks `left` bytes. With 0, the file is complete:
/// the function sets its modification time, and keeps the file.
fn contents_state(mut file: PartialFile, left: u64, padding: u64) -> io::Result<ArchiveState> {
    if left > 0 {
        return Ok(ArchiveState::Contents { file, left, padding });
    }
    let omitted = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let modified = Timespec { tv_sec: file.modified, tv_nsec: 0 };
    futimens(&file.file, &Timestamps { last_access: omitted, last_modification: modified })?;
    file.name = None;
    Ok(skip_state(padding))
}

fn padding(size: u64) -> u64 {
    (BLOCK_BYTES as u64 - size % BLOCK_BYTES as u64) % BLOCK_BYTES as u64
}

/// Returns the checksum of a header: the sum of its bytes, with spaces in place of the checksum
/// field.
fn checksum(block: &[u8]) -> u32 {
    let field = 148..156;
    block
        .iter()
        .enumerate()
        .map(|(at, &byte)| u32::from(if field.contains(&at) { b' ' } else { byte }))
        .sum()
}

/// Converts a path in an archive into a relative path below the directory that the archive is
/// unpacked in. Refuses absolute paths and `..`.
pub(super) fn relative_path(path: &[u8]) -> Result<PathBuf, Failure> {
    let path = Path::new(OsStr::from_bytes(path));
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) if !name.as_bytes().contains(&0) => clean.push(name),
            Component::CurDir => {}
            _ => {
                return Err(refusal_failure(&format!(
                    "has `{}`, which leads out of its directory",
                    path.display()
                )));
            }
        }
    }
    Ok(clean)
}

fn open_directory(directory: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(directory, name, flags, Mode::empty())?)
}

fn refusal_failure(why: &str) -> Failure {
    Failure::new(Code::InvalidArgument, format!("the archive {why}"))
}
