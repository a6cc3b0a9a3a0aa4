//! Unpacks trees that a guest sends. The guest chooses every byte, so nothing in a tree is trusted:
//! each name is checked part by part, and opened below the destination by the kernel's own rules
//! (openat2(2)).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    AtFlags, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2, renameat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use tar::{Archive, Entry, EntryType};

use super::super::SessionError;
use super::super::error::clean;
use super::{HostFiles, PieceReader, TransferSummary};

/// Highest number of entries of a tree. A file system has room for so many names.
const MAX_ENTRIES: u64 = 4_000_000;
/// Longest name or link, and longest list of attributes of an entry, in bytes.
const MAX_NAME_BYTES: u64 = 16 << 10;
/// Limit of the padding after the end of a tree, in bytes. There is padding because tar fills its
/// last record.
const MAX_PADDING_BYTES: u64 = 1 << 20;
/// Number of bytes that are written at once.
const WRITE_BYTES: usize = 128 << 10;

/// Writes one file. The content goes to a temporary file in the same directory, which is renamed
/// when it is complete.
pub(super) fn unpack_file(
    host_files: &HostFiles,
    reader: PieceReader,
    to: &Path,
    mode: u32,
    count: &AtomicU64,
) -> Result<TransferSummary, SessionError> {
    let failed = |source: io::Error| SessionError::HostFile {
        operation: "write",
        path: to.to_owned(),
        source,
    };
    let name = to.file_name().ok_or_else(|| failed(io::Error::other("it names no file")))?;
    let parent = open_parent(host_files, to).map_err(failed)?;
    let mut beside = OsString::from(".");
    beside.push(name);
    beside.push(format!(".ringfence-{}", std::process::id()));
    let written = create(parent.as_fd(), &beside, mode)
        .and_then(|file| copy(reader, file, count))
        .and_then(|length| Ok(renameat(&parent, &beside, &parent, name).map(|()| length)?));
    match written {
        Ok(bytes) => Ok(TransferSummary { files: 1, bytes, ..TransferSummary::default() }),
        Err(error) => {
            let _ = unlinkat(&parent, &beside, AtFlags::empty()); // the file may not exist yet
            Err(failed(error))
        }
    }
}

/// Fills the directory at `to`. The directory is made if it does not exist, and must not be a link.
pub(super) fn unpack_tree(
    host_files: &HostFiles,
    reader: PieceReader,
    to: &Path,
    count: &AtomicU64,
) -> Result<TransferSummary, SessionError> {
    let failed = |source: io::Error| SessionError::HostFile {
        operation: "write",
        path: to.to_owned(),
        source,
    };
    let root = open_destination(host_files, to).map_err(failed)?;
    let mut unpacker = TreeUnpacker { root, count, done: TransferSummary::default() };
    let mut archive = Archive::new(reader);
    unpacker.unpack_all(&mut archive)?;
    let mut rest = archive.into_inner().take(MAX_PADDING_BYTES);
    let failed = |source: io::Error| invalid_tree(b"", source.to_string());
    let padding = io::copy(&mut rest, &mut io::sink()).map_err(failed)?;
    if padding == MAX_PADDING_BYTES {
        return Err(invalid_tree(b"", "something follows its end"));
    }
    unpacker.done.bytes = count.load(Ordering::Relaxed);
    Ok(unpacker.done)
}

/// Opens the directory of the path `of`.
fn open_parent(host_files: &HostFiles, of: &Path) -> io::Result<OwnedFd> {
    let parent = of.parent().filter(|parent| !parent.as_os_str().is_empty());
    host_files.open(parent.unwrap_or(Path::new(".")), OFlags::PATH | OFlags::DIRECTORY)
}

/// Opens the directory that is to be filled, and makes it if it does not exist.
fn open_destination(host_files: &HostFiles, to: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Some(name) = to.file_name() else { return host_files.open(to, flags) };
    let parent = open_parent(host_files, to)?;
    match mkdirat(&parent, name, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(Errno::EXIST) => Ok(openat(&parent, name, flags, Mode::empty())?),
        Err(errno) => Err(errno.into()),
    }
}

struct TreeUnpacker<'a> {
    root: OwnedFd,
    count: &'a AtomicU64,
    done: TransferSummary,
}

/// Attributes of the next entry, from the entries before it.
#[derive(Default)]
struct NextEntryAttributes {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

impl TreeUnpacker<'_> {
    fn unpack_all(&mut self, archive: &mut Archive<PieceReader>) -> Result<(), SessionError> {
        // Read raw entries, because the library itself would read a name of any length into memory.
        let entries =
            archive.entries().map_err(|source| invalid_tree(b"", source.to_string()))?.raw(true);
        let mut ahead = NextEntryAttributes::default();
        for (entry, number) in entries.zip(1..) {
            let mut entry = entry.map_err(|source| invalid_tree(b"", source.to_string()))?;
            if number > MAX_ENTRIES {
                return Err(invalid_tree(b"", format!("it has more than {MAX_ENTRIES} entries")));
            }
            match entry.header().entry_type() {
                EntryType::GNULongName => ahead.name = Some(text(&mut entry)?),
                EntryType::GNULongLink => ahead.link = Some(text(&mut entry)?),
                EntryType::XHeader => attributes(&mut entry, &mut ahead)?,
                EntryType::XGlobalHeader => {}
                kind => self.entry(kind, entry, std::mem::take(&mut ahead))?,
            }
        }
        Ok(())
    }

    fn entry(
        &mut self,
        kind: EntryType,
        entry: Entry<'_, PieceReader>,
        ahead: NextEntryAttributes,
    ) -> Result<(), SessionError> {
        let name = ahead.name.unwrap_or_else(|| entry.path_bytes().into_owned());
        let parts = parts(&name).map_err(|why| invalid_tree(&name, why))?;
        let Some((last, before)) = parts.split_last() else { return Ok(()) };
        let failed = |source: io::Error| invalid_tree(&name, source.to_string());
        let mode = entry.header().mode().map_err(failed)?;
        let parent = self.parent(before).map_err(failed)?;
        let parent = parent.as_ref().unwrap_or(&self.root);
        match kind {
            EntryType::Directory => directory(parent, last, mode).map_err(failed),
            EntryType::Regular | EntryType::Continuous => {
                let size = entry.size();
                let file = create(parent.as_fd(), last, mode).map_err(failed)?;
                let content = BufReader::with_capacity(WRITE_BYTES, entry);
                if copy(content, file, self.count).map_err(failed)? != size {
                    return Err(invalid_tree(&name, "it ends too early"));
                }
                self.done.files += 1;
                Ok(())
            }
            EntryType::Symlink => {
                let target = ahead
                    .link
                    .or_else(|| entry.link_name_bytes().map(|target| target.into_owned()));
                match target {
                    Some(target) if stays_below(&target, before.len()) => {
                        link(parent, last, OsStr::from_bytes(&target)).map_err(failed)
                    }
                    _ => {
                        self.done.leave_out(&name, "it is a link that leads out of the tree");
                        Ok(())
                    }
                }
            }
            _ => {
                self.done.leave_out(&name, "it is neither a file, a directory nor a symbolic link");
                Ok(())
            }
        }
    }

    /// Opens the directory of an entry, and makes it if it does not exist. Returns `None` for the
    /// root.
    fn parent(&self, parts: &[&OsStr]) -> io::Result<Option<OwnedFd>> {
        if parts.is_empty() {
            return Ok(None);
        }
        match below(&self.root, &parts.iter().collect::<PathBuf>()) {
            Err(Errno::NOENT) => {}
            opened => return Ok(Some(opened?)),
        }
        let mut at: Option<OwnedFd> = None;
        for part in parts {
            let parent = at.as_ref().unwrap_or(&self.root);
            directory(parent, part, 0o777)?;
            at = Some(below(parent, Path::new(part))?);
        }
        Ok(at)
    }
}

/// Opens a directory below another one. Every part of the path must be a directory and not a link.
fn below(directory: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(directory, path, flags, Mode::empty(), within)
}

/// Makes a directory that the caller can write. An existing directory stays as it is.
fn directory(parent: &OwnedFd, name: &OsStr, mode: u32) -> io::Result<()> {
    match mkdirat(parent, name, Mode::from_raw_mode(mode & 0o777 | 0o700)) {
        Err(Errno::EXIST) => Ok(below(parent, Path::new(name)).map(drop)?),
        made => Ok(made?),
    }
}

/// Makes a new file, with permissions that the umask allows. Replaces an existing entry that is not
/// a directory.
fn create(parent: impl AsFd, name: &OsStr, mode: u32) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || openat(&parent, name, flags, Mode::from_raw_mode(mode & 0o777));
    let made = match open() {
        Err(Errno::EXIST) => {
            unlinkat(&parent, name, AtFlags::empty())?;
            open()
        }
        made => made,
    };
    Ok(File::from(made?))
}

/// Makes a symbolic link. Replaces an existing entry that is not a directory.
fn link(parent: &OwnedFd, name: &OsStr, target: &OsStr) -> io::Result<()> {
    match symlinkat(target, parent, name) {
        Err(Errno::EXIST) => {
            unlinkat(parent, name, AtFlags::empty())?;
            Ok(symlinkat(target, parent, name)?)
        }
        made => Ok(made?),
    }
}

fn copy(mut from: impl BufRead, mut to: File, count: &AtomicU64) -> io::Result<u64> {
    let mut length = 0;
    loop {
        let piece = from.fill_buf()?;
        let read = piece.len();
        if read == 0 {
            return Ok(length);
        }
        to.write_all(piece)?;
        from.consume(read);
        length += read as u64;
        count.fetch_add(read as u64, Ordering::Relaxed);
    }
}

/// Splits a name into its parts. Fails if the name leads out of the tree.
fn parts(name: &[u8]) -> Result<Vec<&OsStr>, &'static str> {
    if name.starts_with(b"/") {
        return Err("its name is absolute");
    }
    let mut parts = Vec::new();
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err("its name leads out of the tree"),
            part if part.contains(&0) => return Err("its name has a NUL byte in it"),
            part => parts.push(OsStr::from_bytes(part)),
        }
    }
    Ok(parts)
}

/// Returns true if a link that lies `depth` directories below the root leads to a path below the
/// root, if the same is true of every other link. Therefore `..` may only come first: after a name,
/// `..` is the parent of the directory that the name leads to.
pub(crate) fn stays_below(target: &[u8], depth: usize) -> bool {
    let mut parts =
        target.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b".")).peekable();
    let mut up = 0;
    while parts.next_if(|part| *part == b"..").is_some() {
        up += 1;
    }
    !target.is_empty()
        && !target.starts_with(b"/")
        && !target.contains(&0)
        && up <= depth
        && parts.all(|part| part != b"..")
}

/// Returns the name that an entry holds for the next entry.
fn text(entry: &mut Entry<'_, PieceReader>) -> Result<Vec<u8>, SessionError> {
    let mut text = content(entry)?;
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    text.truncate(end);
    Ok(text)
}

/// Reads the attributes that an entry holds for the next entry (pax(1)).
fn attributes(
    entry: &mut Entry<'_, PieceReader>,
    ahead: &mut NextEntryAttributes,
) -> Result<(), SessionError> {
    for attribute in tar::PaxExtensions::new(&content(entry)?) {
        let attribute = attribute.map_err(|source| invalid_tree(b"", source.to_string()))?;
        match attribute.key_bytes() {
            b"path" => ahead.name = Some(attribute.value_bytes().to_owned()),
            b"linkpath" => ahead.link = Some(attribute.value_bytes().to_owned()),
            b"size" => return Err(invalid_tree(b"", "it has a size where none is understood")),
            key if key.starts_with(b"GNU.sparse.") => {
                return Err(invalid_tree(b"", "it has a file with holes"));
            }
            _ => {}
        }
    }
    Ok(())
}

fn content(entry: &mut Entry<'_, PieceReader>) -> Result<Vec<u8>, SessionError> {
    if entry.size() > MAX_NAME_BYTES {
        return Err(invalid_tree(b"", "it has a name that is too long"));
    }
    let mut content = Vec::new();
    entry.read_to_end(&mut content).map_err(|source| invalid_tree(b"", source.to_string()))?;
    Ok(content)
}

fn invalid_tree(name: &[u8], why: impl Into<String>) -> SessionError {
    let name = if name.is_empty() { b"a tree".as_slice() } else { name };
    SessionError::Tree { name: clean(&String::from_utf8_lossy(name)), why: clean(&why.into()) }
}
