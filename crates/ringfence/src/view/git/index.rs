//! The submodules in a git index (gitformat-index(5)). The file is read as a stream, as it may be large and only its
//! submodule entries matter.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The mode of an entry that stands for another repository.
const GITLINK_MODE: u32 = 0o160_000;
/// The low bits of the flags that hold the length of a path, or all ones where it is longer.
const NAME_LENGTH_MASK: usize = 0xfff;
/// The flag of an entry that has more flags.
const EXTENDED_FLAG: u16 = 0x4000;
/// More than a path can be long.
const MAX_NAME: usize = 1 << 16;
/// Long enough to read an index of 10,000 files in a few system calls.
const BUFFER_SIZE: usize = 1 << 16;

/// The part of an index that decides where git looks for repositories.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct IndexLinks {
    /// The paths of submodules, relative to the work tree.
    pub(super) gitlinks: Vec<PathBuf>,
    /// The name of the file that holds further entries.
    pub(super) shared_index: Option<String>,
}

/// Reads an index whose object names are `hash_length` bytes long.
pub(super) fn read_index(file: impl Read, hash_length: usize) -> io::Result<IndexLinks> {
    let mut reader = BufReader::with_capacity(BUFFER_SIZE, file);
    let mut header = [0; 12];
    reader.read_exact(&mut header)?;
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("it is four bytes long"));
    let version = number(&header[4..8]);
    if &header[..4] != b"DIRC" || !(2..=4).contains(&version) {
        return Err(io::Error::other("it is no index of a known version"));
    }
    let mut links = IndexLinks::default();
    let mut name: Vec<u8> = Vec::new();
    let fixed_length = 40 + hash_length + 2;
    let mut fixed = vec![0; fixed_length];
    for _ in 0..number(&header[8..12]) {
        // Most entries lie in the buffer as a whole and are files: those are passed over where they are.
        if version < 4
            && let Some(length) = buffered_file(reader.buffer(), fixed_length, version)
        {
            reader.consume(length);
            continue;
        }
        reader.read_exact(&mut fixed)?;
        let mode = number(&fixed[24..28]);
        let flags = u16::from_be_bytes(fixed[fixed_length - 2..].try_into().expect("it is two bytes long"));
        let mut entry_length = fixed_length;
        if version >= 3 && flags & EXTENDED_FLAG != 0 {
            skip(&mut reader, 2)?;
            entry_length += 2;
        }
        let stated_length = usize::from(flags) & NAME_LENGTH_MASK;
        let is_gitlink = mode & 0o170_000 == GITLINK_MODE;
        if version == 4 {
            let stripped = read_offset(&mut reader)?;
            let kept = name.len().checked_sub(stripped).ok_or_else(|| io::Error::other("a path is cut too short"))?;
            name.truncate(kept);
            read_name(&mut reader, &mut name)?;
        } else if stated_length == NAME_LENGTH_MASK {
            name.clear();
            read_name(&mut reader, &mut name)?;
            // The NUL at its end was read with it.
            skip(&mut reader, padding(entry_length + name.len()) - 1)?;
        } else if is_gitlink {
            name.resize(stated_length, 0);
            reader.read_exact(&mut name)?;
            skip(&mut reader, padding(entry_length + stated_length))?;
        } else {
            skip(&mut reader, stated_length + padding(entry_length + stated_length))?;
        }
        if is_gitlink {
            links.gitlinks.push(OsStr::from_bytes(&name).into());
        }
    }
    links.shared_index = read_shared_index(&mut reader, hash_length)?;
    Ok(links)
}

/// The length of the entry at the start of a buffer, if the entry is whole, of a file, and has a short name.
fn buffered_file(buffer: &[u8], fixed_length: usize, version: u32) -> Option<usize> {
    let mode = u32::from_be_bytes(buffer.get(24..28)?.try_into().expect("it is four bytes long"));
    let flags = buffer.get(fixed_length - 2..fixed_length)?.try_into().expect("it is two bytes long");
    let flags = u16::from_be_bytes(flags);
    let name_length = usize::from(flags) & NAME_LENGTH_MASK;
    if mode & 0o170_000 == GITLINK_MODE || name_length == NAME_LENGTH_MASK {
        return None;
    }
    let extended = if version >= 3 && flags & EXTENDED_FLAG != 0 { 2 } else { 0 };
    let length = fixed_length + extended + name_length;
    let whole = length + padding(length);
    (whole <= buffer.len()).then_some(whole)
}

/// Entries of versions 2 and 3 end with one to eight NULs, so that they are a multiple of eight bytes long.
fn padding(length: usize) -> usize {
    8 - length % 8
}

/// Looks for the extension that names a shared index. What follows the last extension is a hash.
fn read_shared_index(reader: &mut impl BufRead, hash_length: usize) -> io::Result<Option<String>> {
    loop {
        let mut head = [0; 8];
        match reader.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let length = u32::from_be_bytes(head[4..].try_into().expect("it is four bytes long")) as usize;
        if &head[..4] == b"link" {
            let mut hash = vec![0; hash_length];
            reader.read_exact(&mut hash)?;
            let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            return Ok(Some(format!("sharedindex.{hex}")));
        }
        match skip(reader, length) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            skipped => skipped?,
        }
    }
}

fn skip(reader: &mut impl BufRead, mut length: usize) -> io::Result<()> {
    while length > 0 {
        let available = reader.fill_buf()?.len();
        if available == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let step = available.min(length);
        reader.consume(step);
        length -= step;
    }
    Ok(())
}

/// Appends a path up to the NUL at its end.
fn read_name(reader: &mut impl BufRead, name: &mut Vec<u8>) -> io::Result<()> {
    let limit = MAX_NAME.saturating_sub(name.len()) as u64;
    reader.take(limit).read_until(0, name)?;
    match name.pop() {
        Some(0) => Ok(()),
        _ => Err(io::Error::other("a path has no end")),
    }
}

/// Reads a number of the form that offsets in packs have (gitformat-pack(5)).
fn read_offset(reader: &mut impl BufRead) -> io::Result<usize> {
    let too_large = || io::Error::other("a number is too large");
    let mut value: usize = 0;
    loop {
        let mut byte = [0];
        reader.read_exact(&mut byte)?;
        value = value.checked_add(usize::from(byte[0] & 0x7f)).ok_or_else(too_large)?;
        if byte[0] & 0x80 == 0 {
            return Ok(value);
        }
        value = value.checked_add(1).and_then(|value| value.checked_mul(128)).ok_or_else(too_large)?;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

    fn git(directory: &Path, arguments: &[&str]) {
        let output = Command::new("git").arg("-C").arg(directory).args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }

    /// An index with files and submodules whose paths have all lengths, as git itself writes it.
    #[test]
    fn submodules_are_found_in_every_version_of_an_index() {
        if Command::new("git").arg("--version").output().is_err() {
            return; // every other test of git runs it through the binary and declares the need
        }
        let long = format!("{}/deep", "x/".repeat(40).trim_end_matches('/'));
        let very_long = "y".repeat(250) + "/" + &"z".repeat(250);
        let longest = [very_long.as_str(); 9].join("/");
        let mut expected: Vec<PathBuf> = ["a", "bb", "ccc", "sub/module", &long, &longest].map(PathBuf::from).into();
        expected.sort();
        for arguments in [&["--index-version", "2"][..], &["--index-version", "4"], &["--split-index"]] {
            let place = tempfile::tempdir().unwrap();
            git(place.path(), &["init", "-q"]);
            for number in 0..300 {
                fs_err::write(place.path().join(format!("file-{}", "n".repeat(number % 17 + 1))), "").unwrap();
            }
            git(place.path(), &["add", "."]);
            for path in &expected {
                let entry = format!("160000,{},{}", "1".repeat(40), path.display());
                git(place.path(), &["update-index", "--add", "--cacheinfo", &entry]);
            }
            git(place.path(), &[&["update-index"], arguments].concat());
            let read =
                |name: &str| read_index(fs_err::File::open(place.path().join(".git").join(name)).unwrap(), 20).unwrap();
            let mut found = read("index");
            if let Some(shared) = &found.shared_index {
                found.gitlinks.extend(read(shared).gitlinks);
            }
            found.gitlinks.sort();
            assert_eq!(found.gitlinks, expected, "{arguments:?}");
        }
    }

    #[test]
    fn a_damaged_index_is_an_error_and_takes_no_memory() {
        for bytes in
            [&b""[..], b"DIRC", b"DIRC\0\0\0\x09\0\0\0\0", b"DIRC\0\0\0\x02\xff\xff\xff\xff", b"NOPE\0\0\0\x02\0\0\0\0"]
        {
            assert!(read_index(bytes, 20).is_err(), "{bytes:?}");
        }
        assert_eq!(read_index(&b"DIRC\0\0\0\x02\0\0\0\0"[..], 20).unwrap(), IndexLinks::default());
    }
}
