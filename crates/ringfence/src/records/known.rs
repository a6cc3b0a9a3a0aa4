//! Counts of the records that were written, stored in the user's state directory, which no sandbox
//! can see.
//!
//! The hashes show that a record was changed or removed as long as a later record exists. The count
//! also shows that all records of a directory were removed, or replaced by others.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::Host;
use crate::host_paths::granted::without_links;
use crate::host_paths::untrusted;

/// Longest file that is read, in bytes: more than a path and a hash need.
const MAX_KNOWN_FILE: u64 = 1 << 16;

/// Number of counts above which those of removed directories are deleted.
const MAX_GONE_DIRECTORIES: usize = 1000;

/// Longest name of a file, in bytes, with room for the extension of an unfinished one.
const MAX_NAME_BYTES: usize = 240;

/// Start of the name of a file that is still being written.
const UNFINISHED_PREFIX: &str = "unfinished-";

/// Start of the name of a file whose directory has a longer path. No escaped absolute path starts
/// with these bytes.
const LONG_NAME_PREFIX: &[u8] = b"long-";

/// The count of the records of one directory.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct KnownRecords {
    directory: PathBuf,
    count: usize,
    /// Hash of the newest record.
    newest: String,
    /// True if a record was added when the newest record was not the one that the count names.
    was_replaced: bool,
}

/// The file that holds the count of one directory.
#[derive(Debug)]
pub(super) struct KnownFile {
    path: PathBuf,
}

fn state_directory(host: &Host) -> Option<PathBuf> {
    Some(host.state_directory()?.join("known-records"))
}

/// Returns the directories in which records were written, if they lie in one of `trees` or contain
/// one. Every run calls this function, so the names of the files encode the directories and nearly
/// none of the files has to be read.
pub(crate) fn known_directories(host: &Host, trees: &[&Path]) -> Vec<PathBuf> {
    let files = state_directory(host).and_then(|state| fs_err::read_dir(state).ok());
    let directories =
        files.into_iter().flatten().flatten().filter_map(|entry| directory_of(&entry.path()));
    let is_near = |directory: &PathBuf| {
        trees.iter().any(|tree| directory.starts_with(tree) || tree.starts_with(directory))
    };
    directories.filter(is_near).collect()
}

/// Returns the directory whose count a file holds.
fn directory_of(file: &Path) -> Option<PathBuf> {
    let name = file.file_name()?.as_bytes();
    if name.starts_with(LONG_NAME_PREFIX) {
        return KnownFile { path: file.to_path_buf() }.load().map(|known| known.directory);
    }
    Some(unescape(name)).filter(|path| path.is_absolute())
}

/// Encodes a path as the name of a file, without slashes and still readable.
fn escape(path: &Path) -> Vec<u8> {
    let escape = |byte: &u8| match byte {
        b'/' => b"%s".to_vec(),
        b'%' => b"%%".to_vec(),
        byte => vec![*byte],
    };
    path.as_os_str().as_bytes().iter().flat_map(escape).collect()
}

fn unescape(name: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.iter();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' if rest.next() == Some(&b's') => b'/',
            byte => *byte,
        });
    }
    OsString::from_vec(bytes).into()
}

/// Deletes the counts of removed directories if there are too many counts.
fn forget_gone_directories(state: &Path) -> io::Result<()> {
    let files: Vec<PathBuf> =
        fs_err::read_dir(state)?.flatten().map(|entry| entry.path()).collect();
    if files.len() <= MAX_GONE_DIRECTORIES {
        return Ok(());
    }
    let is_gone = |file: &&PathBuf| directory_of(file).is_none_or(|directory| !directory.exists());
    files.iter().filter(is_gone).try_for_each(fs_err::remove_file)
}

impl KnownFile {
    pub(super) fn for_directory(host: &Host, directory: &Path) -> Option<KnownFile> {
        let directory = without_links(directory);
        let mut name = escape(&directory);
        if name.len() > MAX_NAME_BYTES {
            let hash = Sha256::digest(directory.as_os_str().as_bytes());
            name = [LONG_NAME_PREFIX, ringfence_core::to_hex(&hash[..16]).as_bytes()].concat();
        }
        Some(KnownFile { path: state_directory(host)?.join(OsStr::from_bytes(&name)) })
    }

    fn load(&self) -> Option<KnownRecords> {
        serde_json::from_str(&untrusted::read(&self.path, MAX_KNOWN_FILE).ok()?).ok()
    }

    /// Counts a record that was added to `directory`. Before that, `previous` was the newest of
    /// `earlier` records.
    pub(super) fn count_record(
        &self,
        directory: &Path,
        earlier: usize,
        previous: Option<&str>,
        newest: &str,
    ) {
        let known = match self.load() {
            Some(known) => KnownRecords {
                count: known.count + 1,
                was_replaced: known.was_replaced || previous != Some(&known.newest),
                newest: newest.to_owned(),
                ..known
            },
            // Trust the records that were written before there was a count.
            None => KnownRecords {
                directory: without_links(directory),
                count: earlier + 1,
                newest: newest.to_owned(),
                was_replaced: false,
            },
        };
        if let Err(error) = self.store(&known) {
            tracing::warn!(path = %self.path.display(), %error, "cannot count the records of this \
                directory");
        }
    }

    fn store(&self, known: &KnownRecords) -> io::Result<()> {
        let unfinished =
            self.path.with_file_name(format!("{UNFINISHED_PREFIX}{}", std::process::id()));
        let state = self.path.parent().ok_or(io::ErrorKind::NotFound)?;
        fs_err::create_dir_all(state)?;
        let is_new = !self.path.exists();
        fs_err::write(&unfinished, serde_json::to_vec(known)?)?;
        fs_err::rename(&unfinished, &self.path)?;
        if is_new { forget_gone_directories(state) } else { Ok(()) }
    }

    /// Compares the count with the number of existing records, and with their hashes. Returns the
    /// fault, if there is one.
    pub(super) fn compare(
        &self,
        count: usize,
        has_record: impl Fn(&str) -> bool,
    ) -> Option<String> {
        let known = self.load()?;
        let is_whole = count >= known.count && !known.was_replaced && has_record(&known.newest);
        let KnownRecords { count: known, .. } = known;
        let verb = if count == 1 { "is" } else { "are" };
        let finding =
            if count < known { "" } else { ", and other records were put in their place" };
        (!is_whole).then(|| {
            format!(
                "{known} records are known to have been written here; {count} {verb} \
                 there{finding} (if you removed or moved them yourself, delete `{}`)",
                self.path.display()
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_name_of_a_count_tells_its_directory() {
        let state = tempfile::tempdir().unwrap();
        let state = fs_err::canonicalize(state.path()).unwrap();
        let host = Host::new(
            BTreeMap::from([("XDG_STATE_HOME".into(), state.clone().into())]),
            "/".into(),
        );
        let long = format!("/{}", "x/".repeat(300));
        let directories = ["/a/100%/b%s", "/a/b", long.trim_end_matches('/')].map(PathBuf::from);
        for directory in &directories {
            KnownFile::for_directory(&host, directory)
                .unwrap()
                .count_record(directory, 0, None, "hash");
        }
        let near = |tree: &str| known_directories(&host, &[Path::new(tree)]);
        assert_eq!(near("/").len(), 3);
        assert_eq!(near("/a/b/workspace"), [Path::new("/a/b")]);
        assert_eq!(near("/a/100%"), [Path::new("/a/100%/b%s")]);
        assert_eq!(near("/x/x"), [directories[2].as_path()]);
        assert_eq!(near("/elsewhere"), [] as [&Path; 0]);
    }
}
