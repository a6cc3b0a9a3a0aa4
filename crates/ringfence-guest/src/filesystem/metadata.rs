//! Metadata that an uploader attaches to a file: `X-Metadata-*` headers, stored as extended
//! attributes `user.e2b.*`.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::Path;

use hyper::HeaderMap;
use ringfence_proto::code::{Code, Failure};
use ringfence_proto::header;
use rustix::buffer::spare_capacity;
use rustix::fs::{XattrFlags, flistxattr, fremovexattr, fsetxattr, lgetxattr, llistxattr};
use rustix::io::Errno;

const ATTRIBUTE_PREFIX: &str = "user.e2b.";
/// Maximum total length of a file's metadata in bytes. Most file systems store all attributes of a
/// file in one block.
const MAX_METADATA_BYTES: usize = 4096;
/// Maximum length of an attribute's name in bytes, xattr(7).
const MAX_NAME_BYTES: usize = 255;

/// Metadata values by name.
pub(crate) type FileMetadata = BTreeMap<String, String>;

/// Reads the metadata from the headers of a request.
pub(crate) fn parse_headers(headers: &HeaderMap) -> Result<FileMetadata, Failure> {
    let mut notes = FileMetadata::new();
    for (name, value) in headers {
        let Some(key) = name.as_str().strip_prefix(header::METADATA) else { continue };
        let refused =
            |why: &str| Failure::new(Code::InvalidArgument, format!("the metadata `{key}` {why}"));
        if key.is_empty() || ATTRIBUTE_PREFIX.len() + key.len() > MAX_NAME_BYTES {
            return Err(refused("has a name that is empty or too long"));
        }
        let value = std::str::from_utf8(value.as_bytes()).map_err(|_| refused("is not text"))?;
        notes.insert(key.to_owned(), value.to_owned());
    }
    if notes.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() > MAX_METADATA_BYTES
    {
        return Err(Failure::new(
            Code::InvalidArgument,
            format!("the metadata is longer than {MAX_METADATA_BYTES} bytes"),
        ));
    }
    Ok(notes)
}

/// Reads the metadata of a file. Returns no metadata if the file system has no attributes or access
/// is denied.
pub(crate) fn read_metadata(path: &Path) -> FileMetadata {
    let mut list = Vec::with_capacity(64 << 10);
    if llistxattr(path, spare_capacity(&mut list)).is_err() {
        return FileMetadata::new();
    }
    let mut notes = FileMetadata::new();
    for name in attribute_names(&list) {
        let mut value = Vec::with_capacity(MAX_METADATA_BYTES);
        if lgetxattr(path, format!("{ATTRIBUTE_PREFIX}{name}"), spare_capacity(&mut value)).is_ok()
        {
            notes.insert(name.to_owned(), String::from_utf8_lossy(&value).into_owned());
        }
    }
    notes
}

/// Replaces all metadata of a file.
pub(crate) fn replace_metadata(file: impl AsFd, notes: &FileMetadata) -> Result<(), Errno> {
    let mut list = Vec::with_capacity(64 << 10);
    match flistxattr(&file, spare_capacity(&mut list)) {
        Ok(_) => {}
        Err(Errno::NOTSUP) if notes.is_empty() => return Ok(()),
        Err(error) => return Err(error),
    }
    for name in attribute_names(&list).filter(|&name| !notes.contains_key(name)) {
        fremovexattr(&file, format!("{ATTRIBUTE_PREFIX}{name}"))?;
    }
    for (name, value) in notes {
        fsetxattr(
            &file,
            format!("{ATTRIBUTE_PREFIX}{name}"),
            value.as_bytes(),
            XattrFlags::empty(),
        )?;
    }
    Ok(())
}

fn attribute_names(list: &[u8]) -> impl Iterator<Item = &str> {
    list.split(|&byte| byte == 0)
        .filter_map(|name| std::str::from_utf8(name).ok()?.strip_prefix(ATTRIBUTE_PREFIX))
}
