//! Database of the server, in one file, with the state that outlives the server.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use fs_err::os::unix::fs::OpenOptionsExt;
use jiff::Timestamp;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::api::control::Owner;
use crate::lifecycle::expiry::{Expiry, ExpiryAction};
use crate::storage::snapshots::Snapshot;
use crate::tenants::quota::DayUse;

/// Table of JSON text by id.
type RowTable = TableDefinition<'static, &'static str, &'static [u8]>;

const SANDBOXES: RowTable = TableDefinition::new("sandboxes");
const SNAPSHOTS: RowTable = TableDefinition::new("snapshots");
/// Use of keys, by the ids of the keys.
const USE: RowTable = TableDefinition::new("use");

/// Stored data of a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SandboxRecord {
    /// Id of the sandbox, for clients and as the name of a sandbox on this host.
    pub(crate) id: String,
    /// Name of the template that the sandbox was created from.
    pub(crate) template: String,
    /// Id of the key that owns the sandbox; `None` if no key was needed.
    pub(crate) owner: Owner,
    /// Time at which the sandbox was started.
    pub(crate) started: Timestamp,
    /// Lifetime of the sandbox, as last changed.
    #[serde(flatten)]
    pub(crate) expiry: Expiry,
    /// Action at the end of the sandbox's time.
    #[serde(default)]
    pub(crate) at_end: ExpiryAction,
    /// Set if a request to the paused sandbox resumes it.
    #[serde(default)]
    pub(crate) is_woken: bool,
    /// Token that a caller must show to talk to the guest.
    pub(crate) token: String,
    /// Token that a caller must show to use the ports; `None` if the ports are open to everybody
    /// who knows the id. Clients get [`SandboxRecord::traffic_access_token`].
    pub(crate) traffic_token: Option<String>,
    /// Metadata by which the client can find the sandbox.
    pub(crate) metadata: BTreeMap<String, String>,
    /// Trace context of the request that created the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) trace_parent: Option<String>,
}

impl SandboxRecord {
    /// Returns the traffic access token that clients get. E2B's packages show this token where they
    /// show no other, for example for contexts. The contexts of a sandbox with public ports must
    /// not be public, so the token of such a sandbox is derived from the token of the guest, by a
    /// hash that cannot be reversed.
    pub(crate) fn traffic_access_token(&self) -> Cow<'_, str> {
        match &self.traffic_token {
            Some(token) => Cow::Borrowed(token),
            None => Cow::Owned(ringfence_core::to_hex(&Sha256::digest(format!(
                "traffic access token of {}",
                self.token
            )))),
        }
    }
}

/// Rows of a table.
#[derive(Debug)]
pub(crate) struct StoredRows<T> {
    pub(crate) read: Vec<T>,
    /// Ids of rows that cannot be read, for example because a later version wrote them. The rows
    /// stay, and so must the things that they describe.
    pub(crate) unread: Vec<String>,
}

/// Handle of the database.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    file: Arc<DatabaseFile>,
}

#[derive(Debug)]
struct DatabaseFile {
    path: PathBuf,
    /// `None` after an I/O error, because the database object cannot be used any more. The next
    /// access opens the file again, which contains all committed data.
    database: Mutex<Option<Database>>,
}

impl Store {
    /// Opens the database at `path`, and creates it if it is missing. Only one process can have the
    /// database open.
    pub(crate) fn open(path: &Path) -> Result<Store, redb::Error> {
        let database = Mutex::new(Some(open(path)?));
        Ok(Store { file: Arc::new(DatabaseFile { path: path.to_owned(), database }) })
    }

    /// Returns the records of all sandboxes.
    pub(crate) fn all(&self) -> Result<StoredRows<SandboxRecord>, redb::Error> {
        self.rows(SANDBOXES, |_, record| record)
    }

    /// Stores a record. The record survives a crash once this function has returned.
    pub(crate) async fn put(&self, record: &SandboxRecord) -> Result<(), redb::Error> {
        self.put_row(SANDBOXES, &record.id, record).await
    }

    /// Removes a record.
    pub(crate) async fn remove(&self, id: &str) -> Result<(), redb::Error> {
        self.remove_row(SANDBOXES, id).await
    }

    /// Returns all snapshots.
    pub(crate) fn all_snapshots(&self) -> Result<StoredRows<Snapshot>, redb::Error> {
        self.rows(SNAPSHOTS, |_, snapshot| snapshot)
    }

    /// Stores a snapshot. The data survives a crash once this function has returned.
    pub(crate) async fn put_snapshot(&self, snapshot: &Snapshot) -> Result<(), redb::Error> {
        self.put_row(SNAPSHOTS, &snapshot.id, snapshot).await
    }

    /// Removes a snapshot.
    pub(crate) async fn remove_snapshot(&self, id: &str) -> Result<(), redb::Error> {
        self.remove_row(SNAPSHOTS, id).await
    }

    /// Returns the daily use of keys, by the ids of the keys.
    pub(crate) fn all_use(&self) -> Result<Vec<(String, DayUse)>, redb::Error> {
        Ok(self.rows(USE, |id, used| (id.to_owned(), used))?.read)
    }

    /// Stores the daily use of some keys.
    pub(crate) async fn put_use(&self, used: Vec<(String, DayUse)>) -> Result<(), redb::Error> {
        if used.is_empty() {
            return Ok(());
        }
        self.change(USE, move |table| {
            used.iter().try_for_each(|(id, used)| {
                table.insert(id.as_str(), text(used).as_slice()).map(drop)
            })
        })
        .await
    }

    /// Stores arbitrary text as a snapshot, for tests of unreadable rows.
    #[cfg(test)]
    pub(crate) async fn put_raw_snapshot(&self, id: &str, text: &str) -> Result<(), redb::Error> {
        self.put_row(SNAPSHOTS, id, &text).await
    }

    fn rows<Row: DeserializeOwned, T>(
        &self,
        table: RowTable,
        take: impl Fn(&str, Row) -> T,
    ) -> Result<StoredRows<T>, redb::Error> {
        self.file.with(|database| {
            let table = database.begin_read()?.open_table(table)?;
            let mut found = StoredRows { read: Vec::new(), unread: Vec::new() };
            for row in table.iter()? {
                let (id, text) = row?;
                match serde_json::from_slice(text.value()) {
                    Ok(row) => found.read.push(take(id.value(), row)),
                    Err(error) => {
                        tracing::warn!(id = id.value(), %error, "cannot read a stored record");
                        found.unread.push(id.value().to_owned());
                    }
                }
            }
            Ok(found)
        })
    }

    async fn put_row(
        &self,
        table: RowTable,
        id: &str,
        value: &impl Serialize,
    ) -> Result<(), redb::Error> {
        let row = (id.to_owned(), text(value));
        self.change(table, move |table| table.insert(row.0.as_str(), row.1.as_slice()).map(drop))
            .await
    }

    async fn remove_row(&self, table: RowTable, id: &str) -> Result<(), redb::Error> {
        let id = id.to_owned();
        self.change(table, move |table| table.remove(id.as_str()).map(drop)).await
    }

    /// Changes a table on a blocking thread, because the commit waits for the disk.
    async fn change(
        &self,
        table: RowTable,
        change: impl FnOnce(
            &mut redb::Table<'_, &'static str, &'static [u8]>,
        ) -> Result<(), redb::StorageError>
        + Send
        + 'static,
    ) -> Result<(), redb::Error> {
        let file = Arc::clone(&self.file);
        let changed = tokio::task::spawn_blocking(move || {
            file.with(|database| {
                let transaction = database.begin_write()?;
                change(&mut transaction.open_table(table)?)?;
                transaction.commit()?;
                Ok(())
            })
        });
        changed.await.expect("a change does not panic")
    }
}

impl DatabaseFile {
    /// Runs `act` on the database, and opens the database first if necessary.
    fn with<T>(
        &self,
        act: impl FnOnce(&Database) -> Result<T, redb::Error>,
    ) -> Result<T, redb::Error> {
        let mut place = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        let database = match place.take() {
            Some(database) => database,
            None => open(&self.path)?,
        };
        let done = act(&database);
        if !matches!(done, Err(redb::Error::Io(_) | redb::Error::PreviousIo)) {
            *place = Some(database);
        }
        done
    }
}

fn open(path: &Path) -> Result<Database, redb::Error> {
    // The database contains tokens of sandboxes, so only its user may read it.
    let file = fs_err::OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(path)?;
    let mut database = redb::Builder::new().create_file(file.into_file())?;
    // Without this check, redb would skip damaged pages, and the sandboxes whose records were in
    // them would count as unknown.
    if !database.check_integrity()? {
        tracing::warn!(path = %path.display(), "the server's database was repaired");
    }
    let transaction = database.begin_write()?;
    transaction.open_table(SANDBOXES)?;
    transaction.open_table(SNAPSHOTS)?;
    transaction.open_table(USE)?;
    transaction.commit()?;
    Ok(database)
}

fn text(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("what is kept has text for keys and no failing parts")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_there_after_the_server_until_it_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("state.redb");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let record = SandboxRecord {
            id: "one".to_owned(),
            template: "base".to_owned(),
            owner: None,
            started: Timestamp::UNIX_EPOCH,
            expiry: Expiry::until(Timestamp::MAX),
            at_end: ExpiryAction::Pause,
            is_woken: false,
            token: "secret".to_owned(),
            traffic_token: None,
            metadata: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
            trace_parent: None,
        };
        let store = Store::open(&path).unwrap();
        runtime.block_on(store.put(&record)).unwrap();
        assert!(matches!(Store::open(&path), Err(redb::Error::DatabaseAlreadyOpen)));
        drop(store);
        let store = Store::open(&path).unwrap();
        assert_eq!(store.all().unwrap().read, [record]);
        runtime.block_on(store.remove("one")).unwrap();
        runtime.block_on(store.remove("one")).unwrap();
        assert_eq!(store.all().unwrap().read, []);
    }

    #[test]
    fn a_database_that_is_damaged_is_never_read_in_part() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("state.redb");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let store = Store::open(&path).unwrap();
        let used: Vec<_> =
            (0..200).map(|number| (format!("key-{number}"), DayUse::default())).collect();
        runtime.block_on(store.put_use(used.clone())).unwrap();
        drop(store);
        let whole = fs_err::read(&path).unwrap();
        let mut errors = 0;
        for start in (0..whole.len() - 512).step_by(1024) {
            let mut damaged = whole.clone();
            damaged[start..start + 512].fill(0xff);
            fs_err::write(&path, damaged).unwrap();
            // For some kinds of damage, redb panics.
            match std::panic::catch_unwind(|| Store::open(&path)?.all_use()) {
                Ok(Ok(found)) => assert_eq!(found.len(), used.len(), "damaged from {start} on"),
                Ok(Err(_)) | Err(_) => errors += 1,
            }
        }
        assert!(errors > 0, "none of it was read");
    }
}
