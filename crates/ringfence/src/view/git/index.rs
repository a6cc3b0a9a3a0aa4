//! Reader for the submodules in a git index (gitformat-index(5)). The index is read as a stream,
//! because the file may be large and only submodule entries matter.
//!
//! Git accepts more than it writes: wrong lengths, repeated extensions, and tables that lead
//! multithreaded readers elsewhere. Code in a sandbox can write an index in which two readers see
//! different entries. Everything that git never writes is therefore an error here, and is reported.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use sha2::{Digest, Sha256};

/// Bits of a mode that tell the kind of an entry.
const KIND_MASK: u32 = 0o170_000;
/// Kind of an entry for another repository (a submodule).
const GITLINK_KIND: u32 = 0o160_000;
/// Kind of an entry for all files of a directory, in a sparse index.
const DIRECTORY_KIND: u32 = 0o040_000;
/// Kinds of entries for files and symbolic links.
const FILE_KINDS: [u32; 2] = [0o100_000, 0o120_000];
/// Low bits of the flags, which hold the length of a path, or all ones if the path is longer.
const NAME_LENGTH_MASK: usize = 0xfff;
/// Flag of an entry that has extended flags. Git writes such entries only in version 3 or later,
/// but reads them in every version.
const EXTENDED_FLAG: u16 = 0x4000;
/// Maximum length of a path in bytes, longer than any real path.
const MAX_NAME: usize = 1 << 16;
/// Maximum length of an index in bytes, longer than an index with ten million files. Code in a
/// sandbox can make a longer file that takes no space on disk and would keep the search busy.
const MAX_LENGTH: u64 = 1 << 30;
/// Size of the read buffer in bytes, with which an index of 10,000 files takes a few system calls.
const BUFFER_SIZE: usize = 1 << 16;
/// Placeholder for the position of an entry that cannot be read without the entry before it.
const DEPENDENT_ENTRY: u32 = u32::MAX;

/// Submodule in an index.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Gitlink {
    /// Path of the submodule, relative to the work tree.
    pub(super) path: PathBuf,
    /// Name of the commit that git checks out there.
    pub(super) commit: Vec<u8>,
}

/// Part of an index that decides where git looks for repositories.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct IndexLinks {
    pub(super) gitlinks: Vec<Gitlink>,
    /// Name of the file that holds further entries.
    pub(super) shared_index: Option<String>,
    /// `true` if entries stand for submodules that are not in this file. A directory of a sparse
    /// index holds the name of a tree, and a submodule without a path has its path in the shared
    /// index.
    pub(super) is_partial: bool,
}

/// Reads an index whose object names are `hash_length` bytes long.
pub(super) fn read_index(file: impl Read + Seek, hash_length: usize) -> io::Result<IndexLinks> {
    read_index_as(file, hash_length, None)
}

/// Returns a digest of what git would commit from an index, and the name of the file that holds
/// further entries. Time stamps and other file attributes do not count, because `git status`
/// updates them.
pub(super) fn digest_index(
    file: impl Read + Seek,
    hash_length: usize,
) -> io::Result<(Vec<u8>, Option<String>)> {
    let mut digest = Sha256::new();
    let links = read_index_as(file, hash_length, Some(&mut digest))?;
    Ok((digest.finalize().to_vec(), links.shared_index))
}

fn read_index_as(
    mut file: impl Read + Seek,
    hash_length: usize,
    digest: Option<&mut Sha256>,
) -> io::Result<IndexLinks> {
    let end_marker_length = 8 + 4 + hash_length;
    let file_length = file.seek(SeekFrom::End(0))?;
    if file_length > MAX_LENGTH {
        return Err(unusual("it is too long"));
    }
    let end = file_length.saturating_sub(hash_length as u64);
    let has_end_marker = match end.checked_sub(end_marker_length as u64) {
        Some(marker) => {
            let mut signature = [0; 4];
            file.seek(SeekFrom::Start(marker))?;
            file.read_exact(&mut signature)?;
            &signature == b"EOIE"
        }
        None => false,
    };
    file.seek(SeekFrom::Start(0))?;
    let mut reader =
        IndexReader { reader: BufReader::with_capacity(BUFFER_SIZE, file), position: 0 };
    let mut header = [0; 12];
    reader.read_exact(&mut header)?;
    let version = number(&header[4..8]);
    if &header[..4] != b"DIRC" || !(2..=4).contains(&version) {
        return Err(unusual("it is no index of a known version"));
    }
    let mut links = IndexLinks::default();
    let header = IndexHeader { version, count: number(&header[8..12]), hash_length };
    let entries = read_entries(&mut reader, &header, &mut links, digest)?;
    let extensions = Extensions { entries, start: reader.position, end, hash_length };
    let found = extensions.read(&mut reader, &mut links)?;
    // A multithreaded git looks for this extension at the end of the file, even if those bytes
    // belong to another extension.
    if has_end_marker != found.contains(b"EOIE") {
        return Err(unusual("its end is marked within an extension"));
    }
    Ok(links)
}

/// Form of the entries in an index.
struct IndexHeader {
    version: u32,
    count: u32,
    hash_length: usize,
}

/// Reads all entries, and returns their positions.
fn read_entries<R: Read>(
    reader: &mut IndexReader<R>,
    header: &IndexHeader,
    links: &mut IndexLinks,
    mut digest: Option<&mut Sha256>,
) -> io::Result<Vec<u32>> {
    let IndexHeader { version, count, hash_length } = *header;
    let mut positions = Vec::new();
    let mut name: Vec<u8> = Vec::new();
    let fixed_length = 40 + hash_length + 2;
    let mut fixed = vec![0; fixed_length];
    for _ in 0..count {
        let position = u32::try_from(reader.position).map_err(|_| unusual("it is too long"))?;
        // Fast path: most entries are files and lie completely in the buffer, so they are skipped
        // without a copy.
        if version < 4
            && let Some(length) = buffered_file(reader.reader.buffer(), fixed_length, version)
        {
            if let Some(digest) = &mut digest {
                let entry = &reader.reader.buffer()[..length];
                digest.update(&entry[24..28]);
                digest.update(&entry[40..]);
            }
            reader.consume(length);
            positions.push(position);
            continue;
        }
        reader.read_exact(&mut fixed)?;
        let kind = number(&fixed[24..28]) & KIND_MASK;
        let flags = short_number(&fixed[fixed_length - 2..]);
        let mut entry_length = fixed_length;
        if flags & EXTENDED_FLAG != 0 {
            if version < 3 {
                return Err(unusual("an entry has flags that its version does not have"));
            }
            reader.skip(2)?;
            entry_length += 2;
        }
        let kept = if version == 4 {
            let stripped = reader.read_offset()?;
            name.len().checked_sub(stripped).ok_or_else(|| unusual("a path is cut too short"))?
        } else {
            0
        };
        name.truncate(kept);
        reader.read_name(&mut name)?;
        if usize::from(flags) & NAME_LENGTH_MASK != name.len().min(NAME_LENGTH_MASK) {
            return Err(unusual("a path has another length than its entry says"));
        }
        if version < 4 {
            // The terminating NUL of the path was already read.
            reader.skip(padding(entry_length + name.len()) - 1)?;
        }
        positions.push(if kept == 0 { position } else { DEPENDENT_ENTRY });
        if let Some(digest) = &mut digest {
            digest.update(&fixed[24..28]);
            digest.update(&fixed[40..]);
            digest.update(&name);
        }
        match kind {
            GITLINK_KIND if name.is_empty() => links.is_partial = true,
            GITLINK_KIND => links.gitlinks.push(Gitlink {
                path: OsStr::from_bytes(&name).into(),
                commit: fixed[40..40 + hash_length].to_vec(),
            }),
            DIRECTORY_KIND => links.is_partial = true,
            _ if FILE_KINDS.contains(&kind) => {}
            _ => return Err(unusual("an entry is of an unknown kind")),
        }
    }
    Ok(positions)
}

/// Returns the length of the entry at the start of a buffer, if the entry is complete, belongs to a
/// file, and has a short name.
fn buffered_file(buffer: &[u8], fixed_length: usize, version: u32) -> Option<usize> {
    let kind = number(buffer.get(24..28)?) & KIND_MASK;
    let flags = short_number(buffer.get(fixed_length - 2..fixed_length)?);
    let name_length = usize::from(flags) & NAME_LENGTH_MASK;
    let is_extended = flags & EXTENDED_FLAG != 0;
    if !FILE_KINDS.contains(&kind) || name_length == NAME_LENGTH_MASK || is_extended && version < 3
    {
        return None;
    }
    let length = fixed_length + if is_extended { 2 } else { 0 } + name_length;
    let whole = length + padding(length);
    let name = buffer.get(length - name_length..=length)?;
    let ends_as_stated = name[name_length] == 0 && !name[..name_length].contains(&0);
    (ends_as_stated && whole <= buffer.len()).then_some(whole)
}

/// Returns the number of NULs after an entry of version 2 or 3: one to eight, so that the length is
/// a multiple of eight.
fn padding(length: usize) -> usize {
    8 - length % 8
}

/// Part of an index after its entries.
struct Extensions {
    /// Positions of all entries.
    entries: Vec<u32>,
    start: u64,
    /// Position of the hash at the end of the file.
    end: u64,
    hash_length: usize,
}

impl Extensions {
    /// Reads the extensions that decide where git finds entries, and returns the names of all
    /// extensions.
    fn read<R: Read + Seek>(
        &self,
        reader: &mut IndexReader<R>,
        links: &mut IndexLinks,
    ) -> io::Result<BTreeSet<[u8; 4]>> {
        let mut found = BTreeSet::new();
        while reader.position < self.end {
            let mut head = [0; 8];
            reader.read_exact(&mut head)?;
            let signature: [u8; 4] = head[..4].try_into().expect("it is four bytes long");
            let length = number(&head[4..]) as usize;
            // Of two extensions with the same name, git uses the last one, or both.
            if !found.insert(signature) {
                return Err(unusual("an extension occurs twice"));
            }
            let end = reader.position + length as u64;
            if end > self.end {
                return Err(unusual("an extension has no end"));
            }
            match &signature {
                b"link" => links.shared_index = Some(self.read_shared_index(reader, length)?),
                b"EOIE" if end == self.end && length == 4 + self.hash_length => {
                    let mut offset = [0; 4];
                    reader.read_exact(&mut offset)?;
                    if u64::from(number(&offset)) != self.start {
                        return Err(unusual("its entries do not end where it says"));
                    }
                }
                b"EOIE" => return Err(unusual("its end is not marked at its end")),
                b"IEOT" => self.check_blocks(reader, length)?,
                _ => {}
            }
            let rest = end
                .checked_sub(reader.position)
                .ok_or_else(|| unusual("an extension is too short"))?;
            reader.seek_past(rest)?;
        }
        // A hash follows the last extension.
        if reader.position == self.end {
            Ok(found)
        } else {
            Err(unusual("it has no hash at its end"))
        }
    }

    fn read_shared_index<R: Read>(
        &self,
        reader: &mut IndexReader<R>,
        length: usize,
    ) -> io::Result<String> {
        let mut hash = vec![0; self.hash_length.min(length)];
        reader.read_exact(&mut hash)?;
        Ok(format!("sharedindex.{}", ringfence_core::to_hex(&hash)))
    }

    /// Checks the table by which a multithreaded git finds the entries.
    fn check_blocks<R: Read>(&self, reader: &mut IndexReader<R>, length: usize) -> io::Result<()> {
        reader.skip(4)?; // version of the table
        let mut next = 0;
        for _ in 0..length.saturating_sub(4) / 8 {
            let mut block = [0; 8];
            reader.read_exact(&mut block)?;
            if self.entries.get(next) != Some(&number(&block[..4])) {
                return Err(unusual("a block of entries begins where no entry does"));
            }
            next += number(&block[4..]) as usize;
        }
        if next == self.entries.len() {
            Ok(())
        } else {
            Err(unusual("its blocks hold other entries"))
        }
    }
}

/// Stream of an index, with the number of bytes that were read.
struct IndexReader<R> {
    reader: BufReader<R>,
    position: u64,
}

impl<R: Read> IndexReader<R> {
    fn read_exact(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.reader.read_exact(bytes)?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    fn consume(&mut self, length: usize) {
        self.reader.consume(length);
        self.position += length as u64;
    }

    fn skip(&mut self, mut length: usize) -> io::Result<()> {
        while length > 0 {
            let available = self.reader.fill_buf()?.len();
            if available == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let step = available.min(length);
            self.consume(step);
            length -= step;
        }
        Ok(())
    }

    /// Skips bytes that exist, without reading them.
    fn seek_past(&mut self, length: u64) -> io::Result<()>
    where
        R: Seek,
    {
        self.reader.seek_relative(i64::try_from(length).map_err(io::Error::other)?)?;
        self.position += length;
        Ok(())
    }

    /// Appends a path to `name`, up to the NUL at the end of the path.
    fn read_name(&mut self, name: &mut Vec<u8>) -> io::Result<()> {
        let limit = MAX_NAME.saturating_sub(name.len()) as u64;
        let length = (&mut self.reader).take(limit).read_until(0, name)?;
        self.position += length as u64;
        match name.pop() {
            Some(0) if length > 0 => Ok(()),
            _ => Err(unusual("a path has no end")),
        }
    }

    /// Reads a number in the format of offsets in packs (gitformat-pack(5)).
    fn read_offset(&mut self) -> io::Result<usize> {
        let too_large = || unusual("a number is too large");
        let mut value: usize = 0;
        loop {
            let mut byte = [0];
            self.read_exact(&mut byte)?;
            value = value.checked_add(usize::from(byte[0] & 0x7f)).ok_or_else(too_large)?;
            if byte[0] & 0x80 == 0 {
                return Ok(value);
            }
            value = value
                .checked_add(1)
                .and_then(|value| value.checked_mul(128))
                .ok_or_else(too_large)?;
        }
    }
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().expect("it is four bytes long"))
}

fn short_number(bytes: &[u8]) -> u16 {
    u16::from_be_bytes(bytes.try_into().expect("it is two bytes long"))
}

/// Returns the error for an index that git never writes.
fn unusual(reason: &'static str) -> io::Error {
    io::Error::other(reason)
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

    #[test]
    fn a_digest_tells_other_entries_and_not_other_time_stamps() {
        if Command::new("git").arg("--version").output().is_err() {
            return; // see the next test
        }
        let place = tempfile::tempdir().unwrap();
        let digest = || {
            let file = fs_err::File::open(place.path().join(".git/index")).unwrap();
            digest_index(file, 20).unwrap().0
        };
        git(place.path(), &["init", "-q"]);
        for version in ["2", "4"] {
            fs_err::write(place.path().join("file"), "one").unwrap();
            git(place.path(), &["add", "file"]);
            git(place.path(), &["update-index", "--index-version", version]);
            let before = digest();
            let content = fs_err::read(place.path().join(".git/index")).unwrap();
            let file =
                fs_err::OpenOptions::new().write(true).open(place.path().join("file")).unwrap();
            file.file().set_modified(std::time::UNIX_EPOCH).unwrap();
            git(place.path(), &["update-index", "--really-refresh"]);
            assert_ne!(fs_err::read(place.path().join(".git/index")).unwrap(), content);
            assert_eq!(digest(), before, "the file was renewed");
            fs_err::write(place.path().join("file"), "two").unwrap();
            git(place.path(), &["add", "file"]);
            assert_ne!(digest(), before, "the file has another content");
        }
    }

    /// Reads indexes that git itself writes, with files and submodules whose paths have various
    /// lengths.
    #[test]
    fn submodules_are_found_in_every_version_of_an_index() {
        if Command::new("git").arg("--version").output().is_err() {
            return; // the other tests of git run it through the binary and declare the need
        }
        let long = format!("{}/deep", "x/".repeat(40).trim_end_matches('/'));
        let very_long = "y".repeat(250) + "/" + &"z".repeat(250);
        let longest = [very_long.as_str(); 9].join("/");
        let mut expected: Vec<PathBuf> =
            ["a", "bb", "ccc", "sub/module", &long, &longest].map(PathBuf::from).into();
        expected.sort();
        let threads = ["index.threads", "3"];
        for (arguments, setting) in [
            (&["--index-version", "2"][..], ["a.b", "c"]),
            (&["--index-version", "4"], ["a.b", "c"]),
            (&["--split-index"], ["a.b", "c"]),
            (&["--index-version", "2", "--force-write-index"], threads),
            (&["--index-version", "4", "--force-write-index"], threads),
        ] {
            let place = tempfile::tempdir().unwrap();
            git(place.path(), &["init", "-q"]);
            git(place.path(), &[&["config"][..], &setting].concat());
            for number in 0..300 {
                fs_err::write(
                    place.path().join(format!("file-{}", "n".repeat(number % 17 + 1))),
                    "",
                )
                .unwrap();
            }
            git(place.path(), &["add", "."]);
            for path in &expected {
                let entry = format!("160000,{},{}", "1".repeat(40), path.display());
                git(place.path(), &["update-index", "--add", "--cacheinfo", &entry]);
            }
            git(place.path(), &[&["update-index"], arguments].concat());
            let read = |name: &str| {
                read_index(fs_err::File::open(place.path().join(".git").join(name)).unwrap(), 20)
                    .unwrap()
            };
            let mut found = read("index");
            if let Some(shared) = &found.shared_index {
                found.gitlinks.extend(read(shared).gitlinks);
            }
            found.gitlinks.sort();
            let commit = vec![0x11; 20];
            let expected =
                expected.iter().map(|path| Gitlink { path: path.clone(), commit: commit.clone() });
            assert_eq!(found.gitlinks, expected.collect::<Vec<_>>(), "{arguments:?}");
        }
    }

    /// Builds an entry with a path, further flags, and `stated_length` as the length of the path.
    fn entry(mode: u32, name: &[u8], flags: u16, stated_length: usize) -> Vec<u8> {
        let mut bytes = vec![0; 62];
        bytes[24..28].copy_from_slice(&mode.to_be_bytes());
        bytes[60..].copy_from_slice(&(flags | u16::try_from(stated_length).unwrap()).to_be_bytes());
        if flags & EXTENDED_FLAG != 0 {
            bytes.extend([0, 0]);
        }
        bytes.extend(name);
        bytes.extend(vec![0; padding(bytes.len())]);
        bytes
    }

    fn extension(signature: &[u8], body: &[u8]) -> Vec<u8> {
        [signature, &u32::try_from(body.len()).unwrap().to_be_bytes(), body].concat()
    }

    fn read_parts(
        version: u8,
        entries: &[Vec<u8>],
        extensions: &[Vec<u8>],
    ) -> io::Result<IndexLinks> {
        let count = u8::try_from(entries.len()).unwrap();
        let header = [b"DIRC", &[0, 0, 0, version][..], &[0, 0, 0, count]].concat();
        let bytes = [header, entries.concat(), extensions.concat(), vec![1; 20]].concat();
        read_index(io::Cursor::new(bytes), 20)
    }

    #[test]
    fn an_index_that_git_never_writes_is_an_error() {
        let file = entry(0o100_644, b"file", 0, 4);
        let link = entry(GITLINK_KIND, b"new", 0, 3);
        let both = [file.clone(), link.clone()];
        assert_eq!(read_parts(2, &both, &[]).unwrap().gitlinks[0].path, Path::new("new"));
        let extended = entry(0o100_644, b"file", EXTENDED_FLAG, 4);
        assert!(read_parts(3, &[extended.clone(), link.clone()], &[]).is_ok());
        assert!(read_parts(2, &[extended, link.clone()], &[]).is_err());
        assert!(read_parts(2, &[entry(0o100_644, b"file", 0, 3), link.clone()], &[]).is_err());
        assert!(read_parts(2, &[entry(0o100_644, b"fi\0e", 0, 4), link.clone()], &[]).is_err());
        assert!(read_parts(2, &[entry(0o100_644, b"file", 0, NAME_LENGTH_MASK)], &[]).is_err());
        assert!(read_parts(2, &[entry(0o140_000, b"file", 0, 4)], &[]).is_err());
        let short_of_version_4 =
            |stated| [&entry(GITLINK_KIND, b"", 0, stated)[..62], b"\0new\0"].concat();
        assert!(read_parts(4, &[short_of_version_4(3)], &[]).is_ok());
        assert!(read_parts(4, &[short_of_version_4(2)], &[]).is_err());

        let shared = |byte| extension(b"link", &[byte; 20]);
        let expected = Some(format!("sharedindex.{}", "02".repeat(20)));
        assert_eq!(read_parts(2, &[], &[shared(2)]).unwrap().shared_index, expected);
        assert!(read_parts(2, &[], &[shared(2), shared(3)]).is_err());
        assert!(read_parts(2, &both, &[vec![0; 7]]).is_err());
        assert!(read_parts(2, &both, &[b"ZZZZ\0\0\xff\xff".to_vec()]).is_err());
    }

    #[test]
    fn tables_for_threads_must_match_the_entries_of_an_index() {
        let entries = [entry(0o100_644, b"file", 0, 4), entry(GITLINK_KIND, b"new", 0, 3)];
        let [first, second] = entries.each_ref().map(|entry| u8::try_from(entry.len()).unwrap());
        let end_marker =
            |offset: u8| extension(b"EOIE", &[&[0, 0, 0, offset][..], &[9; 20]].concat());
        let end = 12 + first + second;
        assert!(read_parts(2, &entries, &[end_marker(end)]).is_ok());
        assert!(read_parts(2, &entries, &[end_marker(end - 8)]).is_err());
        assert!(read_parts(2, &entries, &[end_marker(end), extension(b"TREE", b"x")]).is_err());
        assert!(read_parts(2, &entries, &[extension(b"TREE", &end_marker(end))]).is_err());
        let table = |blocks: &[[u8; 2]]| {
            let block = |[offset, count]: &[u8; 2]| [0, 0, 0, *offset, 0, 0, 0, *count];
            let blocks: Vec<u8> = blocks.iter().flat_map(block).collect();
            extension(b"IEOT", &[&[0, 0, 0, 1][..], &blocks].concat())
        };
        assert!(read_parts(2, &entries, &[table(&[[12, 1], [12 + first, 1]])]).is_ok());
        assert!(read_parts(2, &entries, &[table(&[[12, 2]])]).is_ok());
        assert!(read_parts(2, &entries, &[table(&[[12, 1]])]).is_err());
        assert!(read_parts(2, &entries, &[table(&[[12, 1], [12 + first - 8, 1]])]).is_err());
    }

    #[test]
    fn entries_that_stand_for_others_make_an_index_partial() {
        let directory = entry(DIRECTORY_KIND, b"some/", EXTENDED_FLAG, 5);
        assert!(read_parts(3, &[directory], &[extension(b"sdir", b"")]).unwrap().is_partial);
        assert!(read_parts(2, &[entry(GITLINK_KIND, b"", 0, 0)], &[]).unwrap().is_partial);
        assert!(!read_parts(2, &[entry(GITLINK_KIND, b"x", 0, 1)], &[]).unwrap().is_partial);
    }

    #[test]
    fn a_damaged_index_is_an_error_and_takes_no_memory() {
        for bytes in [
            &b""[..],
            b"DIRC",
            b"DIRC\0\0\0\x09\0\0\0\0",
            b"DIRC\0\0\0\x02\xff\xff\xff\xff",
            b"NOPE\0\0\0\x02\0\0\0\0",
        ] {
            assert!(read_index(io::Cursor::new(bytes), 20).is_err(), "{bytes:?}");
        }
        assert_eq!(read_parts(2, &[], &[]).unwrap(), IndexLinks::default());
    }
}
