//! The sandboxes of a server, each kept by a process of its own: they outlive the server, and it finds them again.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::StatusCode;
use jiff::Timestamp;
use ringfence::{AttachError, Host, RoomError, Sandbox};
use tokio::sync::watch;
use tokio::time::timeout;

use super::activity::Activity;
use super::carry::Ways;
use super::control::Owner;
use super::launch::{Launched, end_of};
use super::life::{AtEnd, Life, State};
use super::meter::History;
use super::quota::Tallies;
use super::removal::{Removals, remove_aside};
use super::reply::Refusal;
use super::rest::{as_found, over};
use super::store::{Found, Record, Store};
use crate::keeper::Keeper;
use crate::report::Failure;
use crate::telemetry::{Caller, SandboxSpan, Telemetry};

/// How long a change of a sandbox's time may take before its end does not wait for it.
const CHANGE_PATIENCE: Duration = Duration::from_secs(1);
/// After how long a sandbox that did not end, or not rest, when its time was over is told to again.
const ANOTHER_TRY: Duration = Duration::from_secs(10);
/// With fewer bytes left than these, the disk is full.
const FULL: u64 = 64 << 10;

/// A sandbox that is there.
#[derive(Debug)]
pub(super) struct Live {
    /// What is kept of it, but for how long it stays.
    pub(super) record: Record,
    pub(super) sandbox: Sandbox,
    /// What leads to its guest.
    pub(super) ways: Ways,
    /// What is run in it through this server.
    pub(super) activity: Arc<Activity>,
    /// What is told of it.
    pub(super) span: SandboxSpan,
    pub(super) life: watch::Sender<Life>,
    /// Held by whoever changes that.
    pub(super) changing: tokio::sync::Mutex<()>,
    /// Held by whoever takes a snapshot of it.
    pub(super) saving: Arc<tokio::sync::Mutex<()>>,
    /// What it used.
    pub(super) history: Mutex<History>,
}

impl Live {
    /// How long it stays.
    pub(super) fn life(&self) -> Life {
        *self.life.borrow()
    }

    /// Takes over the contexts that a server before this one left, unless the sandbox is at rest.
    pub(super) fn take_up_contexts(&self) {
        if self.life().state() == State::Paused {
            return;
        }
        let (id, sandbox) = (self.record.id.clone(), self.sandbox.clone());
        tokio::spawn(async move {
            // Whoever uses one tries again.
            if let Err(error) = sandbox.contexts().keep().await {
                tracing::warn!(id, error = ringfence::chain(&error), "contexts are not found again yet");
            }
        });
    }
}

/// All sandboxes that are there.
#[derive(Debug)]
pub(super) struct Registry {
    host: Host,
    store: Store,
    /// Where the sandboxes' own directories are.
    workspaces: PathBuf,
    /// Those of sandboxes that are gone, and of snapshots.
    removals: Removals,
    live: Mutex<HashMap<String, Arc<Live>>>,
    /// Who is told of them.
    pub(super) telemetry: Telemetry,
    /// What keys have used.
    tallies: Arc<Tallies>,
}

impl Registry {
    /// The sandboxes of the server whose directory is `place`. Those that a server before it left are found again, and
    /// what is left of those that have ended meanwhile is removed.
    pub(super) async fn open(host: Host, place: &Path, telemetry: Telemetry) -> Result<Arc<Registry>, Failure> {
        let workspaces = place.join("workspaces");
        make_private(&workspaces).map_err(|error| {
            Failure::failed(format!("cannot make the directory of workspaces: {error}"), "look at its permissions")
        })?;
        let database = place.join("state.redb");
        let store = Store::open(&database).map_err(|error| not_opened(error, &database))?;
        let tallies = Arc::new(Tallies::of(store.all_use().map_err(of_store)?));
        let (removals, live) = (Removals::default(), Mutex::default());
        let registry = Arc::new(Registry { host, store, workspaces, removals, live, telemetry, tallies });
        let Found { read, unread } = registry.store.all().map_err(of_store)?;
        let mut known: HashSet<String> = unread.into_iter().collect();
        for record in read {
            // The server before may have ended while it was being started.
            match Sandbox::attach_when_made(&registry.host, &record.id).await {
                Ok(sandbox) => {
                    known.insert(record.id.clone());
                    let told = record.life;
                    let live = registry.admit(record, sandbox, None);
                    if live.life() != told
                        && let Err(failure) = registry.change(&live, live.life()).await
                    {
                        let (id, error) = (&live.record.id, failure.message());
                        tracing::error!(id, error, "how long a sandbox stays cannot be written down");
                    }
                    live.take_up_contexts();
                }
                Err(AttachError::Room(RoomError::Absent { .. })) => {
                    tracing::info!(id = record.id, "a sandbox is gone");
                    registry.store.remove(&record.id).await.map_err(of_store)?;
                }
                // It may be there: the next server looks again, and its lease ends it in any case.
                Err(error) => {
                    tracing::error!(id = record.id, error = ringfence::chain(&error), "a sandbox cannot be looked at");
                    known.insert(record.id);
                }
            }
        }
        registry.sweep(&known);
        Ok(registry)
    }

    /// Ends the sandboxes that nobody knows any more, and removes the workspaces of those that are gone. Some may only be
    /// coming up: nobody waits for that.
    fn sweep(&self, known: &HashSet<String>) {
        for entry in fs_err::read_dir(&self.workspaces).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            if known.contains(&name) {
                continue;
            }
            let (host, workspaces) = (self.host.clone(), self.workspaces.clone());
            self.removals.see_to(async move {
                if end_unknown(&host, &name, &workspaces).await {
                    remove_aside(entry.path()).await;
                }
            });
        }
    }

    /// What a client is told that could not be done: the log tells why, but for a full disk, which many ask about.
    pub(super) fn failed(&self, what: &str) -> Refusal {
        let is_full = |disk: rustix::fs::StatVfs| disk.f_bavail.saturating_mul(disk.f_frsize) < FULL;
        match rustix::fs::statvfs(&self.workspaces).is_ok_and(is_full) {
            true => Refusal::new(StatusCode::INSUFFICIENT_STORAGE, format!("{what}: the server's disk is full")),
            false => Refusal::failed(format!("{what}; the server's log tells why")),
        }
    }

    /// Whose sandboxes they are.
    pub(super) fn host(&self) -> &Host {
        &self.host
    }

    /// Where the sandboxes' own directories are.
    pub(super) fn workspaces(&self) -> &Path {
        &self.workspaces
    }

    /// The directory of a sandbox's own, as it is on the host.
    pub(super) fn workspace(&self, id: &str) -> PathBuf {
        self.workspaces.join(id)
    }

    /// Starts a sandbox with a command line of `ringfence up`, and keeps its record.
    pub(super) async fn start(
        self: &Arc<Registry>,
        record: Record,
        words: Vec<OsString>,
    ) -> Result<Arc<Live>, Failure> {
        // The two at once: what is stored too much is found out by the next server, and so is what is stored too late.
        let launched = self.launch(&record.id, words, std::future::pending());
        let (stored, launched) = tokio::join!(self.store.put(&record), launched);
        match launched {
            Ok(launched) => self.settle(record, launched, stored).await,
            Err(failure) => {
                remove_record(&self.store, &record.id).await;
                Err(failure)
            }
        }
    }

    /// Gives a sandbox that was launched before to whom `record` says.
    pub(super) async fn hand_over(
        self: &Arc<Registry>,
        record: Record,
        launched: Launched,
    ) -> Result<Arc<Live>, Failure> {
        let stored = self.store.put(&record).await;
        self.settle(record, launched, stored).await
    }

    /// Takes a sandbox in whose record was stored, or ends it.
    async fn settle(
        self: &Arc<Registry>,
        record: Record,
        launched: Launched,
        stored: Result<(), redb::Error>,
    ) -> Result<Arc<Live>, Failure> {
        match stored {
            Ok(()) => Ok(self.admit(record, launched.sandbox, Some(launched.keeper))),
            Err(error) => {
                self.discard(&record.id, launched).await;
                Err(of_store(error))
            }
        }
    }

    /// Takes a sandbox in that is there, and sees to its end.
    fn admit(self: &Arc<Registry>, record: Record, sandbox: Sandbox, keeper: Option<Keeper>) -> Arc<Live> {
        let (id, life) = (record.id.clone(), watch::Sender::new(as_found(record.life, &sandbox)));
        let history = Mutex::new(if keeper.is_some() { History::of_new() } else { History::of_found() });
        let (ways, activity) = (Ways::default(), Arc::default());
        let (changing, saving) = (Default::default(), Arc::default());
        let span = self.tell_of(&record, &sandbox);
        let live = Arc::new(Live { record, sandbox, ways, activity, span, life, changing, saving, history });
        self.locked().insert(id, Arc::clone(&live));
        tokio::spawn(Arc::clone(self).see_through(Arc::clone(&live), keeper));
        live
    }

    fn tell_of(&self, record: &Record, sandbox: &Sandbox) -> SandboxSpan {
        let caller = Caller::named(record.trace_parent.as_deref());
        let span = self.telemetry.sandbox(sandbox.manifest(), &caller, record.started.into());
        span.says("sandbox.template", record.template.clone());
        if let Some(key) = &record.owner {
            span.says("sandbox.key", key.clone());
        }
        span
    }

    /// Waits until a sandbox ends or its time is over, and removes what is left of it.
    async fn see_through(self: Arc<Registry>, live: Arc<Live>, keeper: Option<Keeper>) {
        let mut life = live.life.subscribe();
        let mut ended = pin!(live.sandbox.ended());
        let id = &live.record.id;
        let _turn = loop {
            tokio::select! {
                () = &mut ended => {
                    tracing::info!(id, "a sandbox has ended");
                    // Whoever has it end forgets it, and answers when that is done.
                    break timeout(CHANGE_PATIENCE, live.changing.lock()).await.ok();
                }
                () = over(&mut life) => {}
            }
            // Nobody gives it more time from here on; somebody may just have.
            let turn = live.changing.lock().await;
            if live.life().ends > Timestamp::now() {
                continue;
            }
            tracing::info!(id, "a sandbox's time is over");
            let failure = if live.record.at_end == AtEnd::Pause && live.life().state() == State::Running {
                match self.bring_to_rest(&live).await {
                    Ok(()) => continue,
                    Err(failure) => failure,
                }
            } else {
                self.look_at(vec![Arc::clone(&live)]).await; // for the last time
                match live.sandbox.clone().stop().await {
                    Ok(_) => break Some(turn),
                    Err(error) => error.into(),
                }
            };
            // What it has is not lost for that: it is tried again, until its lease is over.
            tracing::error!(
                id,
                error = failure.message(),
                "a sandbox does not end, or not rest, when its time is over"
            );
            drop(turn);
            if timeout(ANOTHER_TRY, &mut ended).await.is_ok() {
                break None;
            }
        };
        self.forget(&live);
        if let Some(keeper) = keeper {
            end_of(keeper).await;
        }
    }

    /// The sandbox of that name, if there is one.
    pub(super) fn find(&self, id: &str) -> Option<Arc<Live>> {
        self.locked().get(id).cloned()
    }

    /// Whether a sandbox is still on the list.
    pub(super) fn has(&self, live: &Arc<Live>) -> bool {
        self.find(&live.record.id).is_some_and(|found| Arc::ptr_eq(&found, live))
    }

    /// Where what outlives a server is kept.
    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// What is being removed.
    pub(super) fn removals(&self) -> &Removals {
        &self.removals
    }

    /// What keys have used.
    pub(super) fn tallies(&self) -> &Arc<Tallies> {
        &self.tallies
    }

    /// All sandboxes.
    pub(super) fn all(&self) -> Vec<Arc<Live>> {
        self.locked().values().cloned().collect()
    }

    /// All sandboxes of an owner that are up at this moment.
    pub(super) fn of(&self, owner: &Owner) -> Vec<Arc<Live>> {
        let all: Vec<_> = self.locked().values().filter(|live| live.record.owner == *owner).cloned().collect();
        all.into_iter().filter(|live| live.sandbox.is_up()).collect()
    }

    /// The first sandbox that is as asked for.
    pub(super) fn first(&self, is_it: impl Fn(&Live) -> bool) -> Option<Arc<Live>> {
        self.all().into_iter().find(|live| is_it(live)) // it may take its time
    }

    /// Ends a sandbox, whether or not its client waits for that. One that does not end is still there.
    pub(super) async fn end(self: &Arc<Registry>, live: &Arc<Live>) -> Result<(), Failure> {
        let (registry, live) = (Arc::clone(self), Arc::clone(live));
        let ended = self.removals.see_to(async move { registry.end_in_turn(&live).await });
        ended.await.expect("an end does not panic")
    }

    async fn end_in_turn(&self, live: &Arc<Live>) -> Result<(), Failure> {
        self.look_at(vec![Arc::clone(live)]).await; // for the last time
        // Who changes its time writes to what is about to go. A snapshot, which takes longer, fails.
        let _turn = timeout(CHANGE_PATIENCE, live.changing.lock()).await;
        live.sandbox.clone().stop().await?;
        self.forget(live);
        Ok(())
    }

    /// How many sandboxes there are.
    pub(super) fn count(&self) -> usize {
        self.locked().len()
    }

    /// Waits for what is being removed, and tells the last that is told of the sandboxes: they go on without the server.
    pub(super) async fn close(&self) {
        self.removals.ended().await;
        for live in self.locked().values() {
            live.span.says("sandbox.outlives_server", true);
            live.span.end();
        }
        self.telemetry.clone().close().await;
    }

    fn forget(&self, live: &Arc<Live>) {
        let id = &live.record.id;
        live.span.end();
        if self.locked().remove(id).is_some() {
            self.clear_away(id);
        }
    }

    /// Removes what is kept of a sandbox that is gone, its record first.
    fn clear_away(&self, id: &str) {
        let (store, record) = (self.store.clone(), id.to_owned());
        self.remove_workspace(id, async move { remove_record(&store, &record).await });
    }

    /// Removes the directory of a sandbox, after something else.
    pub(super) fn remove_workspace(&self, id: &str, first: impl Future<Output = ()> + Send + 'static) {
        self.removals.begin(self.workspace(id), first);
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Live>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn remove_record(store: &Store, id: &str) {
    if let Err(error) = store.remove(id).await {
        tracing::error!(id, %error, "a record is not removed");
    }
}

pub(super) fn of_store(error: redb::Error) -> Failure {
    match error {
        redb::Error::DatabaseAlreadyOpen => Failure::usage(
            "another server has this user's sandboxes",
            "stop it, or give this one a state of its own: XDG_STATE_HOME=/a/directory/of/yours ringfence serve",
        ),
        error => Failure::failed(format!("cannot use the server's database: {error}"), "look at the disk: df -h"),
    }
}

/// Tells of a database that cannot be opened.
fn not_opened(error: redb::Error, path: &Path) -> Failure {
    let why = match error {
        redb::Error::Corrupted(why) => why,
        redb::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => error.to_string(),
        error => return of_store(error),
    };
    let path = path.display();
    Failure::failed(
        format!("the server's database is damaged: {why}"),
        format!(
            "put a copy of it back, or begin anew, which removes all snapshots, and all sandboxes with their files: \
             mv {path} {path}.damaged"
        ),
    )
}

/// Ends a sandbox of one of `workspaces` that nobody knows any more. False when it may still be there: the next server
/// looks again, and its lease ends it in any case.
async fn end_unknown(host: &Host, name: &str, workspaces: &Path) -> bool {
    match Sandbox::attach_when_made(host, name).await {
        Ok(sandbox) if sandbox.manifest().workspace.starts_with(workspaces) => sandbox.stop().await.is_ok(),
        Ok(_) | Err(AttachError::Room(RoomError::Absent { .. } | RoomError::Name(_))) => true,
        Err(_) => false,
    }
}

pub(super) fn make_private(directory: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}
