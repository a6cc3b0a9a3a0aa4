//! Snapshots: files of sandboxes, kept for other sandboxes to start with.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use ringfence::{CopyError, CopyLimits, CopySummary, copy_untrusted, make_private_directory};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedRwLockReadGuard, RwLock};

use crate::api::control::Owner;
use crate::api::reply::Refusal;
use crate::api::requests::NetworkRequest;
use crate::error::ServerError;
use crate::lifecycle::registry::store_error;
use crate::lifecycle::removal::{Removals, remove, remove_aside};
use crate::secret::name;
use crate::storage::store::{SandboxRecord, Store, StoredRows};
use crate::tenants::fair_semaphore::{FairPermit, FairSemaphore, PERMIT_TIMEOUT};
use crate::tenants::quota::Quota;

/// Maximum number of trees that are copied at once; further requests wait.
const MOST_COPYING: u32 = 4;
/// Number of seconds after which an owner at its limit may try again, after it has deleted a
/// snapshot.
const FULL_WAIT: u64 = 60;
/// Maximum number of files and directories in a snapshot.
const MOST_ENTRIES: u64 = 1_000_000;
/// Maximum length of a name that a client may give, in bytes.
const LONGEST_NAME: usize = 128;
/// Suffix of a name that has no meaning of its own and is ignored.
const USUAL_TAG: &str = ":default";

/// Stored data of a snapshot, without its files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// Identifier of the snapshot, in addition to its name.
    pub(crate) id: String,
    /// Name that the client gave, if any.
    pub(crate) name: Option<String>,
    /// Id of the key that owns the snapshot; `None` if no key was needed.
    pub(crate) owner: Owner,
    /// Id of the sandbox that the snapshot was taken of.
    pub(crate) sandbox: String,
    /// Name of the template of that sandbox.
    pub(crate) template: String,
    /// Request that gives a new sandbox the network of that sandbox, including the access to its
    /// ports. `None` if the network was that of the template.
    pub(crate) network: Option<NetworkRequest>,
    /// Time at which the snapshot was taken.
    pub(crate) taken: Timestamp,
    /// Name of the directory with the files, a new one each time that the snapshot is taken again.
    files: String,
}

/// Snapshot whose files exist.
#[derive(Debug)]
pub(crate) struct KeptSnapshot {
    pub(crate) snapshot: Snapshot,
    /// Lock that is held shared during a copy of the files, and exclusively during their removal.
    in_use: Arc<RwLock<()>>,
}

/// Snapshot whose files are kept at least until this guard is dropped.
#[derive(Debug)]
pub(crate) struct HeldSnapshot {
    pub(crate) snapshot: Snapshot,
    _held: OwnedRwLockReadGuard<()>,
}

/// All snapshots of a server.
#[derive(Debug)]
pub(crate) struct Snapshots {
    store: Store,
    /// Directory that contains the files of all snapshots.
    directory: PathBuf,
    /// Running removals of files of deleted snapshots.
    removals: Removals,
    limits: CopyLimits,
    /// Snapshots by their ids.
    kept: Mutex<HashMap<String, Arc<KeptSnapshot>>>,
    /// Lock that is held during a change of `kept`.
    changing: tokio::sync::Mutex<()>,
    /// Turns for copies of trees.
    copying: FairSemaphore,
    /// Set when running copies must stop.
    is_ending: Arc<AtomicBool>,
}

impl Snapshot {
    /// Creates the data of a snapshot that is about to be taken.
    pub(crate) fn new(
        called: Option<String>,
        record: &SandboxRecord,
        network: Option<NetworkRequest>,
    ) -> Snapshot {
        Snapshot {
            id: name(),
            name: called,
            owner: record.owner.clone(),
            sandbox: record.id.clone(),
            template: record.template.clone(),
            network,
            taken: Timestamp::now(),
            files: name(),
        }
    }

    /// Returns whether `which` is the id or the name of the snapshot.
    pub(crate) fn is_called(&self, which: &str) -> bool {
        self.id == without_tag(which) || self.name.as_deref() == Some(without_tag(which))
    }

    /// Returns whether this snapshot replaces `kept`, because both have the same name.
    fn replaces(&self, kept: &KeptSnapshot) -> bool {
        self.name.is_some() && self.name == kept.snapshot.name
    }
}

impl Snapshots {
    /// Opens the snapshots of the server that keeps its data in `server_directory`, each of at most
    /// `largest` bytes. Removes the snapshots of keys that no longer exist, and files that belong
    /// to no snapshot.
    pub(crate) async fn open(
        store: Store,
        removals: Removals,
        server_directory: &Path,
        largest: u64,
        is_there: impl Fn(&Owner) -> bool,
    ) -> Result<Snapshots, ServerError> {
        let directory = server_directory.join("snapshots");
        make_private_directory(&directory).map_err(|error| {
            ServerError::failed(
                format!("cannot create the directory of snapshots: {error}"),
                "check the owner and the permissions of that directory",
            )
        })?;
        let mut kept = HashMap::new();
        let StoredRows { read, unread } = store.all_snapshots().map_err(store_error)?;
        for snapshot in read {
            if is_there(&snapshot.owner) && directory.join(&snapshot.files).is_dir() {
                kept.insert(
                    snapshot.id.clone(),
                    Arc::new(KeptSnapshot { snapshot, in_use: Arc::default() }),
                );
            } else {
                tracing::info!(
                    id = snapshot.id,
                    "removed a snapshot, because its files or its key no longer exist"
                );
                store.remove_snapshot(&snapshot.id).await.map_err(store_error)?;
            }
        }
        let known: HashSet<&str> = kept.values().map(|kept| kept.snapshot.files.as_str()).collect();
        // If a record cannot be read, its files are unknown, so no files are removed.
        let entries = unread.is_empty().then(|| fs_err::read_dir(&directory).ok()).flatten();
        for entry in entries.into_iter().flatten().flatten() {
            if !entry.file_name().to_str().is_some_and(|name| known.contains(name)) {
                remove(entry.path());
            }
        }
        Ok(Snapshots {
            store,
            directory,
            removals,
            limits: CopyLimits { bytes: largest, entries: MOST_ENTRIES },
            kept: Mutex::new(kept),
            changing: Default::default(),
            copying: FairSemaphore::new(MOST_COPYING),
            is_ending: Arc::default(),
        })
    }

    /// Returns the snapshot of an owner with this id or name.
    pub(crate) fn find(&self, owner: &Owner, which: &str) -> Option<Arc<KeptSnapshot>> {
        let own = self.list_for_owner(owner);
        let by_id = own.iter().find(|kept| kept.snapshot.id == which);
        by_id.or_else(|| own.iter().find(|kept| kept.snapshot.is_called(which))).cloned()
    }

    /// Returns all snapshots of an owner.
    pub(crate) fn list_for_owner(&self, owner: &Owner) -> Vec<Arc<KeptSnapshot>> {
        self.locked().values().filter(|kept| kept.snapshot.owner == *owner).cloned().collect()
    }

    /// Finds a snapshot as [`Snapshots::find`] does, and keeps its files for a copy even if the
    /// snapshot is deleted or replaced meanwhile.
    pub(crate) fn hold(&self, owner: &Owner, which: &str) -> Option<HeldSnapshot> {
        let kept = self.find(owner, which)?;
        // The lock fails only while the snapshot is being removed.
        let held = Arc::clone(&kept.in_use).try_read_owned().ok()?;
        Some(HeldSnapshot { snapshot: kept.snapshot.clone(), _held: held })
    }

    /// Waits for a permit to copy a tree.
    pub(crate) async fn take_copy_permit(&self, owner: &Owner) -> Result<FairPermit, Refusal> {
        let permit = self.copying.take(owner).await;
        permit.ok_or_else(|| {
            Refusal::busy("too many snapshots are being copied", PERMIT_TIMEOUT.as_secs())
        })
    }

    /// Refuses one more snapshot of an owner at its limit. A snapshot that replaces another does
    /// not count as one more.
    pub(crate) fn check_limit(&self, snapshot: &Snapshot, quota: &Quota) -> Result<(), Refusal> {
        let others = self
            .list_for_owner(&snapshot.owner)
            .iter()
            .filter(|kept| !snapshot.replaces(kept))
            .count();
        let most = quota.most_snapshots();
        match others < most {
            true => Ok(()),
            false => {
                let message = format!(
                    "this key has {most} snapshots, which is the maximum: delete a snapshot first"
                );
                Err(Refusal::busy(message, FULL_WAIT))
            }
        }
    }

    /// Copies the directory of a sandbox to the files of a snapshot.
    pub(crate) async fn copy_in(
        &self,
        workspace: PathBuf,
        snapshot: &Snapshot,
    ) -> Result<CopySummary, CopyError> {
        self.copy(workspace, self.directory.join(&snapshot.files)).await
    }

    /// Copies the files of a snapshot to the directory of a new sandbox.
    pub(crate) async fn copy_out(
        &self,
        held: &HeldSnapshot,
        workspace: PathBuf,
    ) -> Result<CopySummary, CopyError> {
        self.copy(self.directory.join(&held.snapshot.files), workspace).await
    }

    /// Copies a tree on a blocking thread.
    async fn copy(&self, from: PathBuf, to: PathBuf) -> Result<CopySummary, CopyError> {
        let (limits, is_ending) = (self.limits, Arc::clone(&self.is_ending));
        let copied =
            tokio::task::spawn_blocking(move || copy_untrusted(&from, &to, limits, &is_ending))
                .await;
        copied.expect("copying does not panic")
    }

    /// Stores a snapshot whose files exist, in place of the snapshot with the same name.
    pub(crate) async fn keep(
        &self,
        mut snapshot: Snapshot,
        quota: &Quota,
    ) -> Result<Arc<KeptSnapshot>, Refusal> {
        let not_stored = |error: String| {
            tracing::error!(sandbox = snapshot.sandbox, error, "cannot store a snapshot");
            Refusal::failed("the snapshot could not be stored; the log of the server says why")
        };
        // Write the files to disk first, so that files of a stored snapshot exist even after a
        // crash of the machine.
        let directory = self.directory.clone();
        let written = tokio::task::spawn_blocking(move || write_out(&directory)).await;
        written.expect("writing does not panic").map_err(|error| not_stored(error.to_string()))?;
        let _turn = self.changing.lock().await;
        self.check_limit(&snapshot, quota)?; // other requests may have added snapshots meanwhile
        let replaced =
            self.list_for_owner(&snapshot.owner).into_iter().find(|kept| snapshot.replaces(kept));
        if let Some(replaced) = &replaced {
            snapshot.id.clone_from(&replaced.snapshot.id);
        }
        self.store.put_snapshot(&snapshot).await.map_err(|error| not_stored(error.to_string()))?;
        let kept = Arc::new(KeptSnapshot { snapshot, in_use: Arc::default() });
        self.locked().insert(kept.snapshot.id.clone(), Arc::clone(&kept));
        if let Some(replaced) = replaced {
            self.clear(&replaced);
        }
        Ok(kept)
    }

    /// Deletes a snapshot and its files. Returns `false` if the snapshot no longer exists. The
    /// caller must run this function to its end.
    pub(crate) async fn remove(&self, kept: &KeptSnapshot) -> Result<bool, Refusal> {
        let _turn = self.changing.lock().await;
        let id = &kept.snapshot.id;
        // A snapshot that was taken again meanwhile has the same id, so look up the current one.
        let Some(found) = self.locked().get(id).cloned() else { return Ok(false) };
        self.store.remove_snapshot(id).await.map_err(|error| {
            tracing::error!(id, %error, "cannot remove a snapshot");
            Refusal::failed("the snapshot could not be deleted; the log of the server says why")
        })?;
        self.locked().remove(id);
        self.clear(&found);
        Ok(true)
    }

    /// Removes the files of a deleted snapshot as soon as no copy uses them.
    fn clear(&self, kept: &KeptSnapshot) {
        let files = self.directory.join(&kept.snapshot.files);
        self.removals.begin(files, Arc::clone(&kept.in_use).write_owned());
    }

    /// Removes the files of a snapshot that could not be stored.
    pub(crate) async fn discard(&self, snapshot: &Snapshot) {
        remove_aside(self.directory.join(&snapshot.files)).await;
    }

    /// Tells all running copies to stop.
    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    /// Waits until no copy runs.
    pub(crate) async fn ended(&self) {
        self.copying.over().await; // after a timeout, the next server removes what is left
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<String, Arc<KeptSnapshot>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks a name that a client gives. The name may have parts, as in `project/name:tag`, which have
/// no meaning here.
pub(crate) fn checked_name(given: &str) -> Result<String, Refusal> {
    let name = without_tag(given);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:".contains(&byte);
    match !name.is_empty() && name.len() <= LONGEST_NAME && name.bytes().all(is_plain) {
        true => Ok(name.to_owned()),
        false => Err(Refusal::wrong(format!(
            "the `name` of a snapshot has 1 to {LONGEST_NAME} characters: letters, digits, and - _ \
             . / :"
        ))),
    }
}

/// Flushes the file system of a directory to disk.
fn write_out(directory: &Path) -> std::io::Result<()> {
    Ok(rustix::fs::syncfs(fs_err::File::open(directory)?.file())?)
}

fn without_tag(which: &str) -> &str {
    which.strip_suffix(USUAL_TAG).unwrap_or(which)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use hyper::StatusCode;

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
    }

    async fn opened(store: &Store, server_directory: &tempfile::TempDir) -> Snapshots {
        Snapshots::open(store.clone(), Removals::default(), server_directory.path(), 100, |_| true)
            .await
            .unwrap()
    }

    fn snapshot(called: Option<&str>, owner: &str) -> Snapshot {
        Snapshot {
            id: name(),
            name: called.map(str::to_owned),
            owner: Some(owner.to_owned()),
            sandbox: "sandbox".to_owned(),
            template: "base".to_owned(),
            network: Some(NetworkRequest {
                deny_out: Some(vec!["0.0.0.0/0".to_owned()]),
                ..Default::default()
            }),
            taken: Timestamp::UNIX_EPOCH,
            files: name(),
        }
    }

    #[test]
    fn a_name_is_plain_and_has_no_tag_that_says_nothing() {
        for (given, expected) in
            [("a", "a"), ("team/a-b_1.0:v2", "team/a-b_1.0:v2"), ("a:default", "a")]
        {
            assert_eq!(checked_name(given).unwrap(), expected);
        }
        for wrong in ["", ":default", "a b", "a\n", "ä", "..\\", &"x".repeat(129)] {
            assert!(checked_name(wrong).is_err(), "{wrong:?}");
        }
        let one = snapshot(Some("a"), "ada");
        assert!(
            one.is_called("a")
                && one.is_called("a:default")
                && one.is_called(&format!("{}:default", one.id))
        );
        assert!(!one.is_called("a:v2") && !one.is_called(""));
    }

    #[test]
    fn snapshots_outlive_the_server_except_those_of_removed_keys() {
        let server_directory = tempfile::tempdir().unwrap();
        let runtime = runtime();
        let quota: Quota = serde_json::from_str(r#"{"snapshots": 2}"#).unwrap();
        let store = Store::open(&server_directory.path().join("state.redb")).unwrap();
        let open = |is_there: fn(&Owner) -> bool| {
            runtime
                .block_on(Snapshots::open(
                    store.clone(),
                    Removals::default(),
                    server_directory.path(),
                    100,
                    is_there,
                ))
                .unwrap()
        };
        let files = || fs_err::read_dir(server_directory.path().join("snapshots")).unwrap().count();
        let tree = server_directory.path().join("tree");
        fs_err::create_dir(&tree).unwrap();
        fs_err::write(tree.join("file"), "text").unwrap();
        let snapshots = open(|_| true);
        let keep = |snapshot: Snapshot| {
            runtime.block_on(snapshots.copy_in(tree.clone(), &snapshot)).unwrap();
            let kept = runtime.block_on(snapshots.keep(snapshot.clone(), &quota));
            if kept.is_err() {
                runtime.block_on(snapshots.discard(&snapshot));
            }
            kept.map(|kept| kept.snapshot.clone())
        };
        let one = keep(snapshot(Some("a"), "ada")).unwrap();
        keep(snapshot(Some("b"), "ada")).unwrap();
        let other = keep(snapshot(Some("a"), "bob")).unwrap();
        assert_eq!(keep(snapshot(None, "ada")).unwrap_err().status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(files(), 3, "nothing of what was refused");
        let again = keep(snapshot(Some("a"), "ada")).unwrap();
        assert_eq!(again.id, one.id);
        assert_ne!(again.files, one.files);
        fs_err::create_dir(server_directory.path().join("snapshots/.half.links")).unwrap();
        drop(snapshots);

        let snapshots = open(|owner| owner.as_deref() == Some("ada"));
        assert_eq!(snapshots.find(&again.owner, "a").unwrap().snapshot, again);
        assert!(snapshots.find(&other.owner, &other.id).is_none());
        assert_eq!((files(), store.all_snapshots().unwrap().read.len()), (2, 2));
        let kept = snapshots.find(&again.owner, &again.id).unwrap();
        let copy = server_directory.path().join("copy");
        let held = snapshots.hold(&again.owner, &again.id).unwrap();
        runtime.block_on(snapshots.copy_out(&held, copy.clone())).unwrap();
        assert_eq!(fs_err::read_to_string(copy.join("file")).unwrap(), "text");
        assert!(runtime.block_on(snapshots.remove(&kept)).unwrap());
        assert!(!runtime.block_on(snapshots.remove(&kept)).unwrap());

        snapshots.end();
        let refused = runtime.block_on(snapshots.copy_in(tree, &snapshot(None, "ada")));
        assert!(matches!(refused, Err(CopyError::Stopped)), "{refused:?}");
        runtime.block_on(snapshots.ended());
    }

    #[test]
    fn a_key_that_says_nothing_keeps_twenty_and_each_has_so_many_files() {
        let server_directory = tempfile::tempdir().unwrap();
        let store = Store::open(&server_directory.path().join("state.redb")).unwrap();
        let snapshots = runtime().block_on(opened(&store, &server_directory));
        assert_eq!(snapshots.limits, CopyLimits { bytes: 100, entries: 1_000_000 });
        let check =
            |owner: &str, quota: &Quota| snapshots.check_limit(&snapshot(None, owner), quota);
        for _ in 0..20 {
            check("ada", &Quota::default()).unwrap();
            let kept = KeptSnapshot { snapshot: snapshot(None, "ada"), in_use: Arc::default() };
            snapshots.locked().insert(kept.snapshot.id.clone(), Arc::new(kept));
        }
        let refusal = check("ada", &Quota::default()).unwrap_err();
        assert_eq!(refusal.status, StatusCode::TOO_MANY_REQUESTS);
        assert!(
            refusal.message.contains("has 20 snapshots, which is the maximum"),
            "{}",
            refusal.message
        );
        check("bob", &Quota::default()).unwrap();
        check("ada", &serde_json::from_str(r#"{"snapshots": 21}"#).unwrap()).unwrap();
    }

    #[test]
    fn files_stay_while_a_snapshot_cannot_be_read() {
        let server_directory = tempfile::tempdir().unwrap();
        let runtime = runtime();
        let store = Store::open(&server_directory.path().join("state.redb")).unwrap();
        let open = || runtime.block_on(opened(&store, &server_directory));
        let files = open().directory.join("files");
        fs_err::create_dir(&files).unwrap();
        runtime.block_on(store.put_raw_snapshot("later", "{}")).unwrap();
        open();
        assert!(files.is_dir());
        runtime.block_on(store.remove_snapshot("later")).unwrap();
        open();
        assert!(!files.exists());
    }

    #[test]
    fn files_that_are_copied_are_removed_afterwards() {
        let server_directory = tempfile::tempdir().unwrap();
        let runtime = runtime();
        let store = Store::open(&server_directory.path().join("state.redb")).unwrap();
        runtime.block_on(async {
            let snapshots = opened(&store, &server_directory).await;
            let taken = snapshot(None, "ada");
            fs_err::create_dir(snapshots.directory.join(&taken.files)).unwrap();
            let kept = snapshots.keep(taken, &Quota::default()).await.unwrap();
            let files = snapshots.directory.join(&kept.snapshot.files);
            let held = snapshots.hold(&kept.snapshot.owner, &kept.snapshot.id).unwrap();
            assert!(snapshots.remove(&kept).await.unwrap());
            assert!(snapshots.hold(&kept.snapshot.owner, &kept.snapshot.id).is_none());
            assert!(snapshots.removals.ended().now_or_never().is_none(), "somebody may copy them");
            snapshots.copy_out(&held, server_directory.path().join("copy")).await.unwrap();
            assert!(files.exists());
            drop(held);
            snapshots.removals.ended().await;
            assert!(!files.exists());
        });
    }
}
