//! The keys of a server's clients: in a file that `ringfence keys` writes and the server reads again when it changes.
//!
//! A file of its own, and not a table of the server's database: that one can be open in one process alone.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fs_err::os::unix::fs::OpenOptionsExt;
use jiff::Timestamp;
use ringfence_proto::signature::agree;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::quota::Quota;
use super::secret::{hex, hexadecimal};

const FILE: &str = "keys.json";
const TEMPORARY: &str = ".keys.json";
const LOCK: &str = "keys.lock";
/// What every key begins with: clients refuse others.
const PREFIX: &str = "e2b_";

/// What is kept of a key: not the key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Key {
    /// What it is called where it must not be told.
    pub(crate) id: String,
    /// Whose it is, in words of whoever made it.
    pub(crate) name: String,
    /// When it was made.
    pub(crate) created: Timestamp,
    /// What it may use.
    #[serde(default)]
    pub(crate) quota: Quota,
    /// The key's hash. Keys are random and long: nothing slower is needed.
    sha256: String,
}

/// The file that keys are kept in.
#[derive(Debug, Clone)]
pub(crate) struct KeyFile {
    directory: PathBuf,
}

impl KeyFile {
    /// The file in a directory that only its user can enter.
    pub(crate) fn in_directory(directory: &Path) -> KeyFile {
        KeyFile { directory: directory.to_path_buf() }
    }

    /// All keys, oldest first.
    pub(crate) fn read(&self) -> io::Result<Vec<Key>> {
        match fs_err::read(self.directory.join(FILE)) {
            Ok(text) => Ok(serde_json::from_slice(&text)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Makes a key, and returns what is kept of it and the key itself, which nobody can tell again.
    pub(crate) fn create(&self, name: &str, quota: Quota) -> io::Result<(Key, String)> {
        let text = format!("{PREFIX}{}", hexadecimal::<20>());
        let sha256 = digest(&text);
        let (id, name) = (sha256[..12].to_owned(), name.to_owned());
        let key = Key { id, name, created: Timestamp::now(), quota, sha256 };
        self.change(|keys| keys.push(key.clone()))?;
        Ok((key, text))
    }

    /// Forgets the keys with that id or name, and returns them.
    pub(crate) fn revoke(&self, which: &str) -> io::Result<Vec<Key>> {
        let mut revoked = Vec::new();
        self.change(|keys| {
            revoked = keys.extract_if(.., |key| key.id == which || key.name == which).collect();
        })?;
        Ok(revoked)
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Key>)) -> io::Result<()> {
        let mut options = fs_err::OpenOptions::new();
        let lock = options.create(true).truncate(false).write(true).mode(0o600).open(self.directory.join(LOCK))?;
        flock(lock.file(), FlockOperation::LockExclusive)?;
        let before = self.read()?;
        let mut keys = before.clone();
        change(&mut keys);
        if keys == before {
            return Ok(());
        }
        let mut options = fs_err::OpenOptions::new();
        let mut file =
            options.create(true).truncate(true).write(true).mode(0o600).open(self.directory.join(TEMPORARY))?;
        io::Write::write_all(&mut file, &serde_json::to_vec_pretty(&keys)?)?;
        file.sync_all()?;
        fs_err::rename(self.directory.join(TEMPORARY), self.directory.join(FILE))
    }
}

/// Which version of the file was read: each is a new one.
type Version = (u64, i64, i64);

/// The keys, as a server knows them.
#[derive(Debug)]
pub(super) struct Keys {
    file: KeyFile,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    /// None where there is no file.
    version: Option<Version>,
    keys: Arc<[Key]>,
    /// Whether there ever was one.
    were_made: bool,
}

impl Keys {
    /// The keys in a file, read once to see that it can be.
    pub(super) fn open(file: KeyFile) -> io::Result<Keys> {
        let version = file.version()?;
        let known = Mutex::new(Known { version, keys: file.read()?.into(), were_made: version.is_some() });
        Ok(Keys { file, known })
    }

    /// All keys. When the file has become unreadable, those that it had.
    pub(super) fn all(&self) -> Arc<[Key]> {
        Arc::clone(&self.known().keys)
    }

    /// Whether one was ever made. That all are revoked opens nothing, nor that their file is gone or cannot be read.
    pub(super) fn were_made(&self) -> bool {
        self.known().were_made
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let read_again = || match self.file.version()? {
            version if known.version == version => Ok(None),
            version => Ok(Some((version, self.file.read()?))),
        };
        let read: io::Result<Option<(Option<Version>, Vec<Key>)>> = read_again();
        match read {
            Ok(None) => {}
            Ok(Some((version, keys))) => {
                let were_made = known.were_made || version.is_some();
                *known = Known { version, keys: keys.into(), were_made };
            }
            Err(error) => {
                tracing::error!(%error, "the keys cannot be read again");
                known.were_made = true; // there is something
            }
        }
        known
    }
}

impl KeyFile {
    fn version(&self) -> io::Result<Option<Version>> {
        match fs_err::metadata(self.directory.join(FILE)) {
            Ok(metadata) => Ok(Some((metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The key that was shown, if it is one. Every key is compared, and each in a time that tells nothing.
pub(super) fn shown<'a>(keys: &'a [Key], text: &str) -> Option<&'a Key> {
    let given = digest(text);
    keys.iter().fold(None, |found, key| if agree(&given, &key.sha256) { Some(key) } else { found })
}

fn digest(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_known_until_it_is_revoked_and_is_nowhere_on_disk() {
        let place = tempfile::tempdir().unwrap();
        let file = KeyFile::in_directory(place.path());
        let keys = Keys::open(file.clone()).unwrap();
        file.revoke("nobody").unwrap();
        assert!(keys.all().is_empty() && !keys.were_made());
        let (key, text) = file.create("ada", Quota::default()).unwrap();
        let (other, _) = file.create("bob", Quota::default()).unwrap();
        assert!(text.starts_with("e2b_") && text.len() == 44, "{text}");
        assert_eq!(shown(&keys.all(), &text), Some(&key));
        assert_eq!(shown(&keys.all(), &text.to_uppercase()), None);
        assert_eq!(shown(&keys.all(), ""), None);
        let kept = fs_err::read_to_string(place.path().join(FILE)).unwrap();
        assert!(!kept.contains(&text[4..]), "{kept}");
        assert_eq!(file.revoke("ada").unwrap(), [key]);
        assert_eq!(shown(&keys.all(), &text), None);
        assert_eq!(*keys.all(), [other]);
        file.revoke("bob").unwrap();
        assert!(keys.all().is_empty() && keys.were_made());
    }

    #[test]
    fn keys_that_cannot_be_read_open_nothing() {
        let place = tempfile::tempdir().unwrap();
        let file = KeyFile::in_directory(place.path());
        let path = place.path().join(FILE);
        let keys = Keys::open(file.clone()).unwrap();
        assert!(!keys.were_made());
        std::os::unix::fs::symlink(&path, &path).unwrap();
        assert!(keys.were_made());
        fs_err::remove_file(&path).unwrap();
        let keys = Keys::open(file.clone()).unwrap();
        let (key, text) = file.create("ada", Quota::default()).unwrap();
        assert_eq!(shown(&keys.all(), &text), Some(&key));
        fs_err::remove_file(&path).unwrap();
        assert!(keys.all().is_empty() && keys.were_made());
    }
}
