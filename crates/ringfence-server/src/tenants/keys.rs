//! API keys of the clients of a server. `ringfence keys` writes the key file, and the server reads
//! it again when it changes.
//!
//! The keys have a file of their own, outside the server's database, because only one process can
//! open the database at a time.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fs_err::os::unix::fs::OpenOptionsExt;
use jiff::Timestamp;
use ringfence_proto::signature::is_same_secret;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::secret::hexadecimal;
use crate::tenants::quota::Quota;

const FILE: &str = "keys.json";
const TEMPORARY: &str = ".keys.json";
const LOCK: &str = "keys.lock";
/// Prefix of every key, because E2B's clients refuse keys without it.
const PREFIX: &str = "e2b_";

/// Stored data of a key, without the key itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// Identifier of the key, for places where the key itself must not appear.
    pub id: String,
    /// Name that the creator of the key gave it, such as the name of its user.
    pub name: String,
    /// Time at which the key was created.
    pub created: Timestamp,
    /// Quota of the sandboxes of this key.
    #[serde(default)]
    pub quota: Quota,
    /// Hash of the key. A fast hash is enough, because keys are random and long.
    sha256: String,
}

/// File that holds the keys.
#[derive(Debug, Clone)]
pub struct KeyFile {
    directory: PathBuf,
}

impl KeyFile {
    /// Returns the key file in `directory`, which only its user can enter.
    pub fn in_directory(directory: &Path) -> KeyFile {
        KeyFile { directory: directory.to_path_buf() }
    }

    /// Reads all keys, oldest first. A missing file means no keys.
    pub fn read(&self) -> io::Result<Vec<Key>> {
        match fs_err::read(self.directory.join(FILE)) {
            Ok(text) => Ok(serde_json::from_slice(&text)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Creates a key and returns its stored data and the key itself. Nobody can recover the key
    /// later.
    pub fn create(&self, name: &str, quota: Quota) -> io::Result<(Key, String)> {
        let text = format!("{PREFIX}{}", hexadecimal::<20>());
        let sha256 = digest(&text);
        let (id, name) = (sha256[..12].to_owned(), name.to_owned());
        let key = Key { id, name, created: Timestamp::now(), quota, sha256 };
        self.change(|keys| keys.push(key.clone()))?;
        Ok((key, text))
    }

    /// Removes the keys with that id or name and returns them.
    pub fn revoke(&self, which: &str) -> io::Result<Vec<Key>> {
        let mut revoked = Vec::new();
        self.change(|keys| {
            revoked = keys.extract_if(.., |key| key.id == which || key.name == which).collect();
        })?;
        Ok(revoked)
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Key>)) -> io::Result<()> {
        let mut options = fs_err::OpenOptions::new();
        let lock = options
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(self.directory.join(LOCK))?;
        flock(lock.file(), FlockOperation::LockExclusive)?;
        let before = self.read()?;
        let mut keys = before.clone();
        change(&mut keys);
        if keys == before {
            return Ok(());
        }
        let mut options = fs_err::OpenOptions::new();
        let mut file = options
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(self.directory.join(TEMPORARY))?;
        io::Write::write_all(&mut file, &serde_json::to_vec_pretty(&keys)?)?;
        file.sync_all()?;
        fs_err::rename(self.directory.join(TEMPORARY), self.directory.join(FILE))
    }
}

/// Version of the key file: its inode number and change time. Each change writes a new file.
type KeyFileVersion = (u64, i64, i64);

/// Keys of a server, read again when the file changes.
#[derive(Debug)]
pub(crate) struct Keys {
    file: KeyFile,
    known: Mutex<LoadedKeys>,
}

#[derive(Debug)]
struct LoadedKeys {
    /// Version of the file that was read, or `None` if there was no file.
    version: Option<KeyFileVersion>,
    keys: Arc<[Key]>,
    /// Set if a key file ever existed.
    were_made: bool,
}

impl Keys {
    /// Opens the key file and reads it once, to find errors early.
    pub(crate) fn open(file: KeyFile) -> io::Result<Keys> {
        let version = file.version()?;
        let known = Mutex::new(LoadedKeys {
            version,
            keys: file.read()?.into(),
            were_made: version.is_some(),
        });
        Ok(Keys { file, known })
    }

    /// Returns all keys. If the file has become unreadable, returns the keys from the last
    /// successful read.
    pub(crate) fn all(&self) -> Arc<[Key]> {
        Arc::clone(&self.known().keys)
    }

    /// Returns whether a key was ever created. The server stays closed to requests without a key
    /// after all keys are revoked, and also if their file is missing or unreadable.
    pub(crate) fn were_made(&self) -> bool {
        self.known().were_made
    }

    fn known(&self) -> MutexGuard<'_, LoadedKeys> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let read_again = || match self.file.version()? {
            version if known.version == version => Ok(None),
            version => Ok(Some((version, self.file.read()?))),
        };
        let read: io::Result<Option<(Option<KeyFileVersion>, Vec<Key>)>> = read_again();
        match read {
            Ok(None) => {}
            Ok(Some((version, keys))) => {
                let were_made = known.were_made || version.is_some();
                *known = LoadedKeys { version, keys: keys.into(), were_made };
            }
            Err(error) => {
                tracing::error!(%error, "cannot read the keys again");
                known.were_made = true; // an error means that something is at the path of the file
            }
        }
        known
    }
}

impl KeyFile {
    fn version(&self) -> io::Result<Option<KeyFileVersion>> {
        match fs_err::metadata(self.directory.join(FILE)) {
            Ok(metadata) => Ok(Some((metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Returns the key that equals `text`, if any. Compares every key in constant time, so that the
/// duration reveals nothing.
pub(crate) fn shown<'a>(keys: &'a [Key], text: &str) -> Option<&'a Key> {
    let given = digest(text);
    keys.iter().fold(
        None,
        |found, key| if is_same_secret(&given, &key.sha256) { Some(key) } else { found },
    )
}

fn digest(text: &str) -> String {
    ringfence_core::to_hex(&Sha256::digest(text.as_bytes()))
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
