//! Records that are known to have been written, kept among the user's own files, which no sandbox gets.
//!
//! Hashes show that a record was changed or removed as long as a later one is there. This count
//! also shows that all records of a directory were removed, or replaced by others.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Host, untrusted};

/// Longer than a path and a hash can be.
const MAX_KNOWN_FILE: u64 = 1 << 16;

/// So many directories are remembered, also after they are gone.
const MAX_GONE_DIRECTORIES: usize = 1000;

/// The count of the records of one directory.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct KnownRecords {
    directory: PathBuf,
    count: usize,
    /// The hash of the newest record.
    newest: String,
    /// Whether the newest record was another one when a record was added.
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

/// The directories in which records were written.
pub(crate) fn known_directories(host: &Host) -> Vec<PathBuf> {
    let files = state_directory(host).and_then(|state| fs_err::read_dir(state).ok());
    let files = files.into_iter().flatten().flatten().map(|entry| KnownFile { path: entry.path() });
    files.filter_map(|file| file.load()).map(|known| known.directory).collect()
}

/// Keeps the number of counts bounded, because every run reads them.
fn forget_gone_directories(state: &Path) -> io::Result<()> {
    let files: Vec<PathBuf> = fs_err::read_dir(state)?.flatten().map(|entry| entry.path()).collect();
    if files.len() <= MAX_GONE_DIRECTORIES {
        return Ok(());
    }
    let is_gone = |path: &PathBuf| {
        let known = KnownFile { path: path.clone() }.load();
        known.is_none_or(|known| !known.directory.exists())
    };
    files.iter().filter(|path| is_gone(path)).try_for_each(fs_err::remove_file)
}

impl KnownFile {
    pub(super) fn for_directory(host: &Host, directory: &Path) -> Option<KnownFile> {
        let hash = Sha256::digest(directory.as_os_str().as_encoded_bytes());
        let name: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        Some(KnownFile { path: state_directory(host)?.join(name) })
    }

    fn load(&self) -> Option<KnownRecords> {
        serde_json::from_str(&untrusted::read(&self.path, MAX_KNOWN_FILE).ok()?).ok()
    }

    /// Counts a record that was added to `directory`. Before it, `previous` was the newest of `earlier` records.
    pub(super) fn count_record(&self, directory: &Path, earlier: usize, previous: Option<&str>, newest: &str) {
        let known = match self.load() {
            Some(known) => KnownRecords {
                count: known.count + 1,
                was_replaced: known.was_replaced || previous != Some(&known.newest),
                newest: newest.to_owned(),
                ..known
            },
            // Records that were written before there was a count are believed.
            None => KnownRecords {
                directory: directory.to_path_buf(),
                count: earlier + 1,
                newest: newest.to_owned(),
                was_replaced: false,
            },
        };
        if let Err(error) = self.store(&known) {
            tracing::warn!(path = %self.path.display(), %error, "cannot count the records of this directory");
        }
    }

    fn store(&self, known: &KnownRecords) -> io::Result<()> {
        let unfinished = self.path.with_extension("unfinished");
        let state = self.path.parent().ok_or(io::ErrorKind::NotFound)?;
        fs_err::create_dir_all(state)?;
        let is_new = !self.path.exists();
        fs_err::write(&unfinished, serde_json::to_vec(known)?)?;
        fs_err::rename(&unfinished, &self.path)?;
        if is_new { forget_gone_directories(state) } else { Ok(()) }
    }

    /// Compares the count with the number of records that are there, and with their hashes.
    pub(super) fn compare(&self, count: usize, has_record: impl Fn(&str) -> bool) -> Option<String> {
        let known = self.load()?;
        let is_whole = count >= known.count && !known.was_replaced && has_record(&known.newest);
        let KnownRecords { count: known, .. } = known;
        let verb = if count == 1 { "is" } else { "are" };
        let finding = if count < known { "" } else { ", and others than those were put in their place" };
        (!is_whole).then(|| {
            format!(
                "{known} records are known to have been written here; {count} {verb} there{finding} (if you \
                 removed or moved them yourself, delete `{}`)",
                self.path.display()
            )
        })
    }
}
