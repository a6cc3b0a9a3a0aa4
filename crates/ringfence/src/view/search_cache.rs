//! Cache of search results, kept from one run to the next.
//!
//! A search reads several files of each submodule, and usually finds the same as before the last
//! run. A cached result is used again while every file that the search looked at has the same
//! inode, mode, size and time of change, or is still missing. No process can set a time of change.
//! Results are stored in the user's cache directory, which no sandbox is given. A file that others
//! could have written is not read.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fs_err::os::unix::fs::OpenOptionsExt;
use rustix::fs::{CWD, Mode, OFlags, openat};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::deciders::{Deciders, PathState, SearchPhase, SearchScope};
use super::git::{LinkSurvey, WrittenDirectories};
use super::observed::ObservedIdentity;
use crate::Host;
use crate::backends::probe_cache::file_identity;

/// Prefix of the file names of cached results.
const CACHE_PREFIX: &str = "search-";
/// Number of files up to which a search takes no longer than reading its cached result.
const MIN_SEARCHED_FILES: usize = 16;
/// Maximum number of cached results.
const MAX_RESULTS: usize = 64;
/// Maximum size of a cached result in bytes; real ones are smaller.
const MAX_RESULT_BYTES: u64 = 1 << 22;
/// Permission bits with which others could write a file.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Location of the cached result of one search.
#[derive(Debug)]
pub(super) struct SearchCache {
    file: Option<PathBuf>,
    scope: [u8; 32],
}

/// Result of a search, with the identities of everything that the search looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct KeptSearch {
    /// Digest of the scope, the user and the program.
    scope: [u8; 32],
    identities: Vec<(PathBuf, ObservedIdentity)>,
    protected: Vec<PathBuf>,
    states: Vec<(PathBuf, PathState)>,
    written: WrittenDirectories,
}

/// Result that is worth caching and not saved yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnsavedSearch {
    file: PathBuf,
    search: KeptSearch,
}

impl SearchCache {
    pub(super) fn for_scope(host: &Host, scope: &SearchScope) -> SearchCache {
        let mut digest = Sha256::new();
        let program = file_identity(Path::new("/proc/self/exe"));
        let described = postcard::to_stdvec(&(scope, rustix::process::geteuid().as_raw(), program));
        digest.update(described.as_deref().unwrap_or_default());
        let scope: [u8; 32] = digest.finalize().into();
        let name = u64::from_be_bytes(scope[..8].try_into().expect("it is eight bytes long"));
        let directory =
            host.own_directory("XDG_CACHE_HOME", ".cache").filter(|_| described.is_ok());
        SearchCache {
            file: directory.map(|directory| directory.join(format!("{CACHE_PREFIX}{name:016x}"))),
            scope,
        }
    }

    /// Finds the deciders before a run. Uses the cached result if nothing changed since, and
    /// otherwise searches.
    pub(super) fn find(self, scope: &SearchScope) -> (Deciders, Option<UnsavedSearch>) {
        if let Some(search) = self.file.as_deref().and_then(|file| self.load(file)) {
            let KeptSearch { identities, protected, states, written, .. } = search;
            let protected = protected.into_iter().collect();
            let states = states.into_iter().collect();
            return (Deciders::from_kept(scope, identities, protected, states, written), None);
        }
        let deciders = Deciders::find(scope, SearchPhase::BeforeRun);
        let unsaved = self.file.and_then(|file| {
            let identities = deciders
                .files
                .settled_identities()
                .filter(|looks| looks.len() > MIN_SEARCHED_FILES)?;
            let search = KeptSearch {
                scope: self.scope,
                identities: LinkSurvey::default().without_covered(&identities),
                protected: deciders.protected.iter().cloned().collect(),
                states: deciders.states_if_judged()?,
                written: deciders.written.clone(),
            };
            Some(UnsavedSearch { file, search })
        });
        (deciders, unsaved)
    }

    fn load(&self, file: &Path) -> Option<KeptSearch> {
        let search: KeptSearch = postcard::from_bytes(&read_own(file)?).ok()?;
        let is_current = search.scope == self.scope
            && search.identities.iter().all(|(path, identity)| identity.still_holds(path));
        is_current.then_some(search)
    }
}

impl UnsavedSearch {
    /// Saves the result. If that fails, the next run searches again.
    pub(super) fn save(&self) {
        if let Err(error) = self.try_save() {
            tracing::debug!(file = %self.file.display(), %error, "the result of a search was not \
                                                                  cached");
        }
    }

    fn try_save(&self) -> io::Result<()> {
        let bytes = postcard::to_stdvec(&self.search).map_err(io::Error::other)?;
        let directory = self.file.parent().ok_or(io::ErrorKind::NotFound)?;
        fs_err::create_dir_all(directory)?;
        limit_results(directory)?;
        // Write to another file and rename it: two runs may save the same result at once, and a
        // third may read it.
        let unfinished = self.file.with_extension(std::process::id().to_string());
        let mut options = fs_err::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let written = options.open(&unfinished).and_then(|mut file| file.write_all(&bytes));
        written.and_then(|()| fs_err::rename(&unfinished, &self.file)).inspect_err(|_| {
            let _ = fs_err::remove_file(&unfinished); // the file may not exist
        })
    }
}

/// Removes all results if there are many, because most belong to workspaces that are no longer
/// used.
fn limit_results(directory: &Path) -> io::Result<()> {
    let mut results = Vec::new();
    for entry in fs_err::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(CACHE_PREFIX.as_bytes()) {
            results.push(entry.path());
        }
    }
    if results.len() >= MAX_RESULTS {
        for result in results {
            let _ = fs_err::remove_file(result); // another run may be removing the result, too
        }
    }
    Ok(())
}

/// Reads a file that only this user can have written.
fn read_own(path: &Path) -> Option<Vec<u8>> {
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mut file = File::from(openat(CWD, path, flags, Mode::empty()).ok()?);
    let metadata = file.metadata().ok()?;
    let is_own = metadata.is_file()
        && metadata.uid() == rustix::process::geteuid().as_raw()
        && metadata.mode() & WRITABLE_BY_OTHERS == 0
        && metadata.len() <= MAX_RESULT_BYTES;
    if !is_own {
        return None;
    }
    let mut bytes = Vec::with_capacity(metadata.len() as usize);
    file.read_to_end(&mut bytes).ok()?;
    Some(bytes)
}
