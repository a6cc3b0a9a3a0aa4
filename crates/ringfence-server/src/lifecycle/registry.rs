//! Sandboxes of a server. Each sandbox is kept by a process of its own, so it outlives the server,
//! and the next server finds it again.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::StatusCode;
use jiff::Timestamp;
use ringfence::monitor::{MonitorHandle, MonitorRequest};
use ringfence::{AttachError, Host, Sandbox, SandboxDirError, make_private_directory};
use ringfence_service::telemetry::{Caller, SandboxSpan, Telemetry};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::api::control::Owner;
use crate::api::reply::Refusal;
use crate::error::ServerError;
use crate::forwarding::forward::GuestConnections;
use crate::lifecycle::expiry::{Expiry, ExpiryAction, SandboxState};
use crate::lifecycle::launch::{LaunchedSandbox, end_of};
use crate::lifecycle::meter::UsageHistory;
use crate::lifecycle::pausing::{as_found, wait_for_expiry};
use crate::lifecycle::removal::{Removals, remove_aside};
use crate::page::activity::Activity;
use crate::storage::store::{SandboxRecord, Store, StoredRows};
use crate::tenants::quota::KeyUsages;

/// Maximum time that the end of a sandbox waits for a running change of its lifetime.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(1);
/// Wait before the server tries again to end or pause a sandbox whose time is over.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Number of free bytes below which the disk counts as full.
const FULL_DISK_BYTES: u64 = 64 << 10;

/// Existing sandbox, running or paused.
#[derive(Debug)]
pub(crate) struct ManagedSandbox {
    /// Stored record of the sandbox. `expiry` has the current lifetime, the record may have an
    /// older one.
    pub(crate) record: SandboxRecord,
    pub(crate) sandbox: Sandbox,
    /// Connection pool to the guest of the sandbox.
    pub(crate) connections: GuestConnections,
    /// Executions in the sandbox that go through this server.
    pub(crate) activity: Arc<Activity>,
    /// Telemetry span of the sandbox.
    pub(crate) span: SandboxSpan,
    pub(crate) expiry: watch::Sender<Expiry>,
    /// Lock that is held during a change of `expiry`.
    pub(crate) changing: tokio::sync::Mutex<()>,
    /// Lock that is held while a snapshot of the sandbox is taken.
    pub(crate) saving: Arc<tokio::sync::Mutex<()>>,
    /// History of the resource use.
    pub(crate) history: Mutex<UsageHistory>,
}

impl ManagedSandbox {
    /// Returns the current lifetime of the sandbox.
    pub(crate) fn expiry(&self) -> Expiry {
        *self.expiry.borrow()
    }

    /// Takes over the interpreter contexts that an earlier server left, unless the sandbox is
    /// paused.
    pub(crate) fn restore_contexts(&self) {
        if self.expiry().state() == SandboxState::Paused {
            return;
        }
        let (id, sandbox) = (self.record.id.clone(), self.sandbox.clone());
        tokio::spawn(async move {
            // A failure is not final, because each use of a context tries again.
            if let Err(error) = sandbox.contexts().keep().await {
                tracing::warn!(
                    id,
                    error = ringfence::chain(&error),
                    "cannot find the contexts of a sandbox yet"
                );
            }
        });
    }
}

/// All sandboxes of a server.
#[derive(Debug)]
pub(crate) struct Registry {
    host: Host,
    store: Store,
    /// Directory that contains the sandboxes' own directories.
    workspaces: PathBuf,
    /// Running removals of directories of ended sandboxes and of snapshots.
    removals: Removals,
    sandboxes: Mutex<HashMap<String, Arc<ManagedSandbox>>>,
    /// Telemetry that records the sandboxes.
    pub(crate) telemetry: Telemetry,
    /// Use of all keys.
    key_usages: Arc<KeyUsages>,
}

impl Registry {
    /// Opens the sandboxes of the server that keeps its data in `directory`. Finds the sandboxes
    /// that an earlier server left, and removes the remains of those that have ended since.
    pub(crate) async fn open(
        host: Host,
        directory: &Path,
        telemetry: Telemetry,
    ) -> Result<Arc<Registry>, ServerError> {
        let workspaces = directory.join("workspaces");
        make_private_directory(&workspaces).map_err(|error| {
            ServerError::failed(
                format!("cannot create the directory of workspaces: {error}"),
                "check the owner and the permissions of that directory",
            )
        })?;
        let database = directory.join("state.redb");
        let store = Store::open(&database).map_err(|error| not_opened(error, &database))?;
        let key_usages = Arc::new(KeyUsages::from_stored(store.all_use().map_err(store_error)?));
        let (removals, sandboxes) = (Removals::default(), Mutex::default());
        let registry = Arc::new(Registry {
            host,
            store,
            workspaces,
            removals,
            sandboxes,
            telemetry,
            key_usages,
        });
        let StoredRows { read, unread } = registry.store.all().map_err(store_error)?;
        let mut known: HashSet<String> = unread.into_iter().collect();
        for record in read {
            // The earlier server may have ended during the start of the sandbox.
            match Sandbox::attach_when_made(&registry.host, &record.id).await {
                Ok(sandbox) => {
                    known.insert(record.id.clone());
                    let recorded = record.expiry;
                    let managed = registry.admit(record, sandbox, None);
                    if managed.expiry() != recorded
                        && let Err(failure) = registry.change(&managed, managed.expiry()).await
                    {
                        let (id, error) = (&managed.record.id, failure.message());
                        tracing::error!(id, error, "cannot store the lifetime of a sandbox");
                    }
                    managed.restore_contexts();
                }
                Err(AttachError::Directory(SandboxDirError::Absent { .. })) => {
                    tracing::info!(id = record.id, "a sandbox no longer exists");
                    registry.store.remove(&record.id).await.map_err(store_error)?;
                }
                // The sandbox may exist. The next server looks again, and the lease ends the
                // sandbox in any case.
                Err(error) => {
                    tracing::error!(
                        id = record.id,
                        error = ringfence::chain(&error),
                        "cannot attach to a sandbox"
                    );
                    known.insert(record.id);
                }
            }
        }
        registry.sweep(&known);
        Ok(registry)
    }

    /// Ends sandboxes without a record, and removes the workspaces of ended sandboxes. Does not
    /// wait, because some sandboxes may still be starting.
    fn sweep(&self, known: &HashSet<String>) {
        for entry in fs_err::read_dir(&self.workspaces).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            if known.contains(&name) {
                continue;
            }
            let (host, workspaces) = (self.host.clone(), self.workspaces.clone());
            self.removals.spawn(async move {
                if end_unknown(&host, &name, &workspaces).await {
                    remove_aside(entry.path()).await;
                }
            });
        }
    }

    /// Creates the refusal for an operation that failed on the server. The reason is only in the
    /// log, except for a full disk, because many clients ask about that.
    pub(crate) fn failed(&self, what: &str) -> Refusal {
        let is_full = |disk: rustix::fs::StatVfs| {
            disk.f_bavail.saturating_mul(disk.f_frsize) < FULL_DISK_BYTES
        };
        match rustix::fs::statvfs(&self.workspaces).is_ok_and(is_full) {
            true => Refusal::new(
                StatusCode::INSUFFICIENT_STORAGE,
                format!("{what}: the server's disk is full"),
            ),
            false => Refusal::failed(format!("{what}; the log of the server says why")),
        }
    }

    /// Returns the host on which the sandboxes run.
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// Returns the path of the sandbox's own directory on the host.
    pub(crate) fn workspace(&self, id: &str) -> PathBuf {
        self.workspaces.join(id)
    }

    /// Starts a sandbox, and stores its record.
    pub(crate) async fn start(
        self: &Arc<Registry>,
        record: SandboxRecord,
        request: MonitorRequest,
    ) -> Result<Arc<ManagedSandbox>, ServerError> {
        // Store and launch in parallel. The next server detects a record without a sandbox, and a
        // sandbox without a record.
        let launched = self.launch(&record.id, request, std::future::pending());
        let (stored, launched) = tokio::join!(self.store.put(&record), launched);
        match launched {
            Ok(launched) => self.settle(record, launched, stored).await,
            Err(failure) => {
                remove_record(&self.store, &record.id).await;
                Err(failure)
            }
        }
    }

    /// Gives a sandbox that was launched before to the owner in `record`.
    pub(crate) async fn hand_over(
        self: &Arc<Registry>,
        record: SandboxRecord,
        launched: LaunchedSandbox,
    ) -> Result<Arc<ManagedSandbox>, ServerError> {
        let stored = self.store.put(&record).await;
        self.settle(record, launched, stored).await
    }

    /// Adds a sandbox to the list if its record was stored, and ends the sandbox otherwise.
    async fn settle(
        self: &Arc<Registry>,
        record: SandboxRecord,
        launched: LaunchedSandbox,
        stored: Result<(), redb::Error>,
    ) -> Result<Arc<ManagedSandbox>, ServerError> {
        match stored {
            Ok(()) => Ok(self.admit(record, launched.sandbox, Some(launched.monitor))),
            Err(error) => {
                self.discard(&record.id, launched).await;
                Err(store_error(error))
            }
        }
    }

    /// Adds an existing sandbox to the list, and starts the task that watches for its end.
    fn admit(
        self: &Arc<Registry>,
        record: SandboxRecord,
        sandbox: Sandbox,
        monitor: Option<MonitorHandle>,
    ) -> Arc<ManagedSandbox> {
        let (id, expiry) =
            (record.id.clone(), watch::Sender::new(as_found(record.expiry, &sandbox)));
        let history = Mutex::new(if monitor.is_some() {
            UsageHistory::for_new_sandbox()
        } else {
            UsageHistory::for_found_sandbox()
        });
        let (connections, activity) = (GuestConnections::default(), Arc::default());
        let (changing, saving) = (Default::default(), Arc::default());
        let span = self.start_span(&record, &sandbox);
        let managed = Arc::new(ManagedSandbox {
            record,
            sandbox,
            connections,
            activity,
            span,
            expiry,
            changing,
            saving,
            history,
        });
        self.locked().insert(id, Arc::clone(&managed));
        tokio::spawn(Arc::clone(self).watch_until_end(Arc::clone(&managed), monitor));
        managed
    }

    fn start_span(&self, record: &SandboxRecord, sandbox: &Sandbox) -> SandboxSpan {
        let caller = Caller::named(record.trace_parent.as_deref());
        let span = self.telemetry.sandbox(sandbox.manifest(), &caller, record.started.into());
        span.set_attribute("sandbox.template", record.template.clone());
        if let Some(key) = &record.owner {
            span.set_attribute("sandbox.key", key.clone());
        }
        span
    }

    /// Waits until a sandbox ends or its time is over, ends or pauses it in that case, and removes
    /// what is left of it.
    async fn watch_until_end(
        self: Arc<Registry>,
        managed: Arc<ManagedSandbox>,
        monitor: Option<MonitorHandle>,
    ) {
        let mut expiry = managed.expiry.subscribe();
        let mut ended = pin!(managed.sandbox.ended());
        let id = &managed.record.id;
        let _turn = loop {
            tokio::select! {
                () = &mut ended => {
                    tracing::info!(id, "a sandbox has ended");
                    // The code that ends the sandbox holds the lock, forgets the sandbox itself and
                    // answers after that.
                    break timeout(CHANGE_TIMEOUT, managed.changing.lock()).await.ok();
                }
                () = wait_for_expiry(&mut expiry) => {}
            }
            // From here on nobody can extend the time, but it may just have been extended.
            let changing = managed.changing.lock().await;
            if managed.expiry().ends > Timestamp::now() {
                continue;
            }
            tracing::info!(id, "the lifetime of a sandbox is over");
            let failure = if managed.record.at_end == ExpiryAction::Pause
                && managed.expiry().state() == SandboxState::Running
            {
                match self.pause_running(&managed).await {
                    Ok(()) => continue,
                    Err(failure) => failure,
                }
            } else {
                self.measure_usage(vec![Arc::clone(&managed)]).await; // charge the last use
                match managed.sandbox.clone().stop().await {
                    Ok(_) => break Some(changing),
                    Err(error) => error.into(),
                }
            };
            // The files and memory of the sandbox are not given up: the loop tries again until the
            // lease is over.
            tracing::error!(
                id,
                error = failure.message(),
                "cannot end or pause a sandbox at the end of its lifetime"
            );
            drop(changing);
            if timeout(RETRY_INTERVAL, &mut ended).await.is_ok() {
                break None;
            }
        };
        self.forget(&managed);
        if let Some(monitor) = monitor {
            end_of(monitor).await;
        }
    }

    /// Returns the sandbox `id`, if it is on the list.
    pub(crate) fn find(&self, id: &str) -> Option<Arc<ManagedSandbox>> {
        self.locked().get(id).cloned()
    }

    /// Returns whether a sandbox is still on the list.
    pub(crate) fn has(&self, managed: &Arc<ManagedSandbox>) -> bool {
        self.find(&managed.record.id).is_some_and(|found| Arc::ptr_eq(&found, managed))
    }

    /// Returns the database.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the running removals.
    pub(crate) fn removals(&self) -> &Removals {
        &self.removals
    }

    /// Returns the use of all keys.
    pub(crate) fn key_usages(&self) -> &Arc<KeyUsages> {
        &self.key_usages
    }

    /// Returns all sandboxes on the list.
    pub(crate) fn all(&self) -> Vec<Arc<ManagedSandbox>> {
        self.locked().values().cloned().collect()
    }

    /// Returns all sandboxes of an owner that are up now.
    pub(crate) fn list_for_owner(&self, owner: &Owner) -> Vec<Arc<ManagedSandbox>> {
        let all: Vec<_> = self
            .locked()
            .values()
            .filter(|managed| managed.record.owner == *owner)
            .cloned()
            .collect();
        all.into_iter().filter(|managed| managed.sandbox.is_up()).collect()
    }

    /// Returns the first sandbox for which `is_it` holds.
    pub(crate) fn first(
        &self,
        is_it: impl Fn(&ManagedSandbox) -> bool,
    ) -> Option<Arc<ManagedSandbox>> {
        // `is_it` may be slow, so the lock is not held.
        self.all().into_iter().find(|managed| is_it(managed))
    }

    /// Ends a sandbox, even if the client disconnects. If the end fails, the sandbox stays on the
    /// list.
    pub(crate) async fn end(
        self: &Arc<Registry>,
        managed: &Arc<ManagedSandbox>,
    ) -> Result<(), ServerError> {
        let (registry, managed) = (Arc::clone(self), Arc::clone(managed));
        let ended = self.removals.spawn(async move { registry.end_in_turn(&managed).await });
        ended.await.expect("an end does not panic")
    }

    async fn end_in_turn(&self, managed: &Arc<ManagedSandbox>) -> Result<(), ServerError> {
        self.measure_usage(vec![Arc::clone(managed)]).await; // charge the last use
        // A running change of the lifetime writes to files that are about to be removed, so wait
        // for it. A snapshot takes longer than the wait, and fails.
        let _turn = timeout(CHANGE_TIMEOUT, managed.changing.lock()).await;
        managed.sandbox.clone().stop().await?;
        self.forget(managed);
        Ok(())
    }

    /// Returns the number of sandboxes.
    pub(crate) fn count(&self) -> usize {
        self.locked().len()
    }

    /// Waits for running removals, and ends the telemetry of the sandboxes, which outlive the
    /// server.
    pub(crate) async fn close(&self) {
        self.removals.ended().await;
        for managed in self.locked().values() {
            managed.span.set_attribute("sandbox.outlives_server", true);
            managed.span.end();
        }
        self.telemetry.clone().close().await;
    }

    fn forget(&self, managed: &Arc<ManagedSandbox>) {
        let id = &managed.record.id;
        managed.span.end();
        if self.locked().remove(id).is_some() {
            self.clear_away(id);
        }
    }

    /// Removes the record of an ended sandbox, and then its directory.
    fn clear_away(&self, id: &str) {
        let (store, record) = (self.store.clone(), id.to_owned());
        self.remove_workspace(id, async move { remove_record(&store, &record).await });
    }

    /// Removes the directory of a sandbox after `first` has completed.
    pub(crate) fn remove_workspace(
        &self,
        id: &str,
        first: impl Future<Output = ()> + Send + 'static,
    ) {
        self.removals.begin(self.workspace(id), first);
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<ManagedSandbox>>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn remove_record(store: &Store, id: &str) {
    if let Err(error) = store.remove(id).await {
        tracing::error!(id, %error, "cannot remove the record of a sandbox");
    }
}

pub(crate) fn store_error(error: redb::Error) -> ServerError {
    match error {
        redb::Error::DatabaseAlreadyOpen => ServerError::usage(
            "another server of this user is running",
            "stop the other server, or use another state directory: \
             XDG_STATE_HOME=/a/directory/of/yours ringfence serve",
        ),
        error => ServerError::failed(
            format!("cannot use the server's database: {error}"),
            "check the disk: df -h",
        ),
    }
}

/// Creates the failure for a database that cannot be opened.
fn not_opened(error: redb::Error, path: &Path) -> ServerError {
    let why = match error {
        redb::Error::Corrupted(why) => why,
        redb::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => error.to_string(),
        error => return store_error(error),
    };
    let path = path.display();
    ServerError::failed(
        format!("the server's database is damaged: {why}"),
        format!(
            "restore a backup of the database, or start with an empty database, which removes all \
             snapshots and all sandboxes with their files: mv {path} {path}.damaged"
        ),
    )
}

/// Ends a sandbox without a record whose workspace is in `workspaces`. Returns `false` if the
/// sandbox may still exist: the next server looks again, and the lease ends the sandbox in any
/// case.
async fn end_unknown(host: &Host, name: &str, workspaces: &Path) -> bool {
    match Sandbox::attach_when_made(host, name).await {
        Ok(sandbox) if sandbox.manifest().workspace.starts_with(workspaces) => {
            sandbox.stop().await.is_ok()
        }
        Ok(_) => true,
        Err(AttachError::Directory(error)) => {
            matches!(error, SandboxDirError::Absent { .. } | SandboxDirError::Name(_))
        }
        Err(_) => false,
    }
}
