//! The sandboxes of a server, each kept by a process of its own: they outlive the server, and it finds them again.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use ringfence::{Host, RoomError, Sandbox};
use tokio::sync::watch;
use tokio::time::timeout;

use super::carry::Ways;
use super::control::Owner;
use super::store::{Record, Store};
use crate::keeper::{Answer, Keeper};
use crate::report::Failure;

/// How long a sandbox may take to come up: an image may have to be fetched first.
const START_PATIENCE: Duration = Duration::from_secs(300);

/// A sandbox that is there.
#[derive(Debug)]
pub(super) struct Live {
    /// What is kept of it, but for when it ends.
    pub(super) record: Record,
    pub(super) sandbox: Sandbox,
    /// What leads to its guest.
    pub(super) ways: Ways,
    ends: watch::Sender<Timestamp>,
}

impl Live {
    /// When its time is over.
    pub(super) fn ends(&self) -> Timestamp {
        *self.ends.borrow()
    }
}

/// All sandboxes that are there.
#[derive(Debug)]
pub(super) struct Registry {
    host: Host,
    store: Store,
    /// Where the sandboxes' own directories are.
    workspaces: PathBuf,
    live: Mutex<HashMap<String, Arc<Live>>>,
}

impl Registry {
    /// The sandboxes of the server whose directory is `place`. Those that a server before it left are found again, and
    /// what is left of those that have ended meanwhile is removed.
    pub(super) async fn open(host: Host, place: &Path) -> Result<Arc<Registry>, Failure> {
        let workspaces = place.join("workspaces");
        make_private(&workspaces).map_err(|error| {
            Failure::failed(format!("cannot make the directory of workspaces: {error}"), "look at its permissions")
        })?;
        let store = Store::open(&place.join("state.redb")).map_err(of_store)?;
        let registry = Arc::new(Registry { host, store, workspaces, live: Mutex::default() });
        for record in registry.store.all().map_err(of_store)? {
            match Sandbox::attach(&registry.host, &record.id).await {
                Ok(sandbox) => drop(registry.admit(record, sandbox, None)),
                Err(error) => {
                    tracing::info!(id = record.id, error = ringfence::chain(&error), "a sandbox is gone");
                    registry.store.remove(&record.id).await.map_err(of_store)?;
                }
            }
        }
        registry.sweep().await;
        Ok(registry)
    }

    /// Ends the sandboxes that nobody knows any more, and removes the workspaces of those that are gone.
    async fn sweep(&self) {
        let known: HashSet<String> = self.locked().keys().cloned().collect();
        for manifest in Sandbox::list(&self.host).unwrap_or_default() {
            let name = manifest.name.as_str();
            if manifest.workspace.starts_with(&self.workspaces)
                && !known.contains(name)
                && let Ok(sandbox) = Sandbox::attach(&self.host, name).await
            {
                let _ = sandbox.stop().await; // its lease ends it, too
            }
        }
        for entry in fs_err::read_dir(&self.workspaces).into_iter().flatten().flatten() {
            if !entry.file_name().to_str().is_some_and(|name| known.contains(name)) {
                remove(entry.path());
            }
        }
    }

    /// The directory of a sandbox's own, as it is on the host.
    pub(super) fn workspace(&self, id: &str) -> PathBuf {
        self.workspaces.join(id)
    }

    /// Where all of them are.
    pub(super) fn workspaces(&self) -> &Path {
        &self.workspaces
    }

    /// Starts a sandbox with a command line of `ringfence up`, and keeps its record.
    pub(super) async fn start(
        self: &Arc<Registry>,
        record: Record,
        words: Vec<OsString>,
    ) -> Result<Arc<Live>, Failure> {
        let workspace = self.workspace(&record.id);
        make_private(&workspace)
            .map_err(|error| Failure::failed(format!("cannot make a workspace: {error}"), "look at the disk: df -h"))?;
        // Starting a process waits for it to have begun, and telling it for it to listen.
        let keeper = tokio::task::spawn_blocking(move || Keeper::start(&words)).await;
        let mut keeper = keeper.expect("starting a process does not panic")?;
        // The two at once: what is stored too much is found out by the next server, and so is what is stored too late.
        let (stored, answer) = tokio::join!(self.store.put(&record), timeout(START_PATIENCE, keeper.answer()));
        let started = match answer {
            Ok(Ok(Answer::Ready { .. })) => match stored {
                Ok(()) => Sandbox::attach(&self.host, &record.id).await.map_err(Failure::from),
                Err(error) => Err(of_store(error)),
            },
            Ok(Ok(Answer::Failed(told))) => Err(told.into()),
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(Failure::failed("a sandbox did not come up in time", "ringfence doctor")),
        };
        match started {
            Ok(sandbox) => Ok(self.admit(record, sandbox, Some(keeper))),
            Err(failure) => {
                keeper.ask_to_end();
                tokio::task::spawn_blocking(|| keeper.wait());
                self.clear_away(&record.id).await;
                Err(failure)
            }
        }
    }

    /// Takes a sandbox in that is there, and sees to its end.
    fn admit(self: &Arc<Registry>, record: Record, sandbox: Sandbox, keeper: Option<Keeper>) -> Arc<Live> {
        let (id, ends) = (record.id.clone(), watch::Sender::new(record.ends));
        let live = Arc::new(Live { record, sandbox, ways: Ways::default(), ends });
        self.locked().insert(id, Arc::clone(&live));
        tokio::spawn(Arc::clone(self).see_through(Arc::clone(&live), keeper));
        live
    }

    /// Waits until a sandbox ends or its time is over, and removes what is left of it.
    async fn see_through(self: Arc<Registry>, live: Arc<Live>, keeper: Option<Keeper>) {
        let mut ends = live.ends.subscribe();
        let over = async {
            loop {
                let left = ends.borrow_and_update().duration_since(Timestamp::now());
                let left = Duration::try_from(left).unwrap_or_default(); // below zero: it is over
                tokio::select! {
                    () = tokio::time::sleep(left) => return,
                    _ = ends.changed() => {} // we hold the sender
                }
            }
        };
        tokio::select! {
            () = live.sandbox.ended() => tracing::info!(id = live.record.id, "a sandbox has ended"),
            () = over => {
                tracing::info!(id = live.record.id, "a sandbox's time is over");
                stop(&live).await;
            }
        }
        self.forget(&live).await;
        if let Some(keeper) = keeper {
            tokio::task::spawn_blocking(|| keeper.wait());
        }
    }

    /// The sandbox of that name, if there is one.
    pub(super) fn find(&self, id: &str) -> Option<Arc<Live>> {
        self.locked().get(id).cloned()
    }

    /// All sandboxes of an owner that are up at this moment.
    pub(super) fn of(&self, owner: &Owner) -> Vec<Arc<Live>> {
        let all: Vec<_> = self.locked().values().filter(|live| live.record.owner == *owner).cloned().collect();
        all.into_iter().filter(|live| live.sandbox.is_up()).collect()
    }

    /// The first sandbox that is as asked for.
    pub(super) fn first(&self, is_it: impl Fn(&Live) -> bool) -> Option<Arc<Live>> {
        self.locked().values().find(|live| is_it(live)).cloned()
    }

    /// Has the time of a sandbox be over at `ends`.
    pub(super) async fn renew(&self, live: &Live, ends: Timestamp) -> Result<(), Failure> {
        let lease = Duration::try_from(ends.duration_since(Timestamp::now())).unwrap_or_default(); // it is over
        live.sandbox.renew(lease)?;
        self.store.put(&Record { ends, ..live.record.clone() }).await.map_err(of_store)?;
        live.ends.send_replace(ends);
        Ok(())
    }

    /// Ends a sandbox.
    pub(super) async fn end(&self, live: &Arc<Live>) {
        stop(live).await;
        self.forget(live).await;
    }

    async fn forget(&self, live: &Arc<Live>) {
        let id = &live.record.id;
        if self.locked().remove(id).is_some() {
            self.clear_away(id).await;
        }
    }

    async fn clear_away(&self, id: &str) {
        if let Err(error) = self.store.remove(id).await {
            tracing::error!(id, %error, "a record is not removed");
        }
        let workspace = self.workspace(id);
        // Nobody waits for it: it may be large, and the next server removes what is left of it.
        tokio::task::spawn_blocking(move || remove(workspace));
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Live>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn stop(live: &Live) {
    match live.sandbox.clone().stop().await {
        Ok(()) | Err(ringfence::AttachError::Room(RoomError::Absent { .. })) => {}
        Err(error) => tracing::error!(id = live.record.id, error = ringfence::chain(&error), "a sandbox does not end"),
    }
}

fn of_store(error: redb::Error) -> Failure {
    match error {
        redb::Error::DatabaseAlreadyOpen => Failure::usage(
            "another server has this user's sandboxes",
            "stop it, or give this one a state of its own: XDG_STATE_HOME=/a/directory/of/yours ringfence serve",
        ),
        error => Failure::failed(format!("cannot use the server's database: {error}"), "look at the disk: df -h"),
    }
}

fn make_private(directory: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// Removes a workspace, without following anything that was planted in it.
fn remove(workspace: PathBuf) {
    if let Err(error) = fs_err::remove_dir_all(&workspace)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(%error, "a workspace is not removed");
    }
}
