//! Watchers for clients that poll for events: `CreateWatcher`, `GetWatcherEvents`, `RemoveWatcher`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringfence_proto::code::{Code, Failure};
use ringfence_proto::filesystem::{EventsResponse, FilesystemEvent, WatchRequest, Watcher};
use ringfence_proto::process::EmptyMessage;
use tokio::io::unix::AsyncFd;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use super::run_blocking;
use crate::user::SandboxUser;
use crate::watch::DirectoryWatch;

/// Maximum number of watchers. Each watcher takes one of the inotify instances of the user, of
/// which there are 128 by default.
const MAX_WATCHERS: usize = 64;
/// Maximum number of events that are kept for a client. Beyond this, the events are dropped and the
/// client is told of the loss.
const MAX_KEPT_EVENTS: usize = 16_384;
/// Time after the last `GetWatcherEvents` call after which a watcher is removed, because its client
/// has gone without `RemoveWatcher`.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// Watchers by identifier.
#[derive(Debug, Clone, Default)]
pub(crate) struct WatcherTable(Rc<RefCell<HashMap<String, PolledWatcher>>>);

#[derive(Debug)]
struct PolledWatcher {
    gathered: Arc<Mutex<GatheredEvents>>,
    asked: Instant,
    task: AbortHandle,
}

impl Drop for PolledWatcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Events since the last `GetWatcherEvents` call, and the watch that they come from.
#[derive(Debug)]
struct GatheredEvents {
    watch: DirectoryWatch,
    events: Vec<FilesystemEvent>,
    failure: Option<Failure>,
}

impl WatcherTable {
    /// Creates a watcher, and returns its identifier.
    pub(super) async fn create(
        &self,
        request: WatchRequest,
        user: SandboxUser,
    ) -> Result<Watcher, Failure> {
        if self.0.borrow().len() >= MAX_WATCHERS {
            let message =
                format!("{MAX_WATCHERS} watchers are there; remove one with RemoveWatcher");
            return Err(Failure::new(Code::ResourceExhausted, message));
        }
        let watch = run_blocking(move || DirectoryWatch::start(&request, &user)).await?;
        let readiness = watch.readiness()?;
        let gathered =
            Arc::new(Mutex::new(GatheredEvents { watch, events: Vec::new(), failure: None }));
        let watcher_id = new_identifier()?;
        let task =
            self.clone().collect_events(watcher_id.clone(), readiness, Arc::clone(&gathered));
        let task = tokio::task::spawn_local(task).abort_handle();
        self.0
            .borrow_mut()
            .insert(watcher_id.clone(), PolledWatcher { gathered, asked: Instant::now(), task });
        Ok(Watcher { watcher_id })
    }

    /// Returns the events since the previous call, up to this moment.
    pub(super) async fn events(&self, watcher: Watcher) -> Result<EventsResponse, Failure> {
        let gathered = match self.0.borrow_mut().get_mut(&watcher.watcher_id) {
            Some(polled) => {
                polled.asked = Instant::now();
                Arc::clone(&polled.gathered)
            }
            None => return Err(unknown_watcher(&watcher)),
        };
        run_blocking(move || Ok(EventsResponse { events: lock_events(&gathered).take()? })).await
    }

    /// Removes a watcher and drops its events.
    pub(super) fn remove(&self, watcher: &Watcher) -> Result<EmptyMessage, Failure> {
        match self.0.borrow_mut().remove(&watcher.watcher_id) {
            Some(_) => Ok(EmptyMessage {}),
            None => Err(unknown_watcher(watcher)),
        }
    }

    /// Collects the events of a watcher in the background, so that the kernel's queue stays short
    /// and new directories are watched at once. Removes the watcher after [`IDLE_TIMEOUT`]. A
    /// watcher whose watch has failed stays until `RemoveWatcher`.
    async fn collect_events(
        self,
        id: String,
        readiness: AsyncFd<Arc<OwnedFd>>,
        gathered: Arc<Mutex<GatheredEvents>>,
    ) {
        loop {
            let Some(asked) = self.0.borrow().get(&id).map(|polled| polled.asked) else { return };
            match timeout_at(asked + IDLE_TIMEOUT, readiness.readable()).await {
                Ok(Ok(mut ready)) => {
                    let gathered = Arc::clone(&gathered);
                    let going_on = run_blocking(move || Ok(lock_events(&gathered).gather())).await;
                    ready.clear_ready();
                    if going_on != Ok(true) {
                        return;
                    }
                }
                Ok(Err(_)) => return,
                Err(_) => {
                    let mut watchers = self.0.borrow_mut();
                    // A call may have extended the time limit meanwhile.
                    if watchers.get(&id).is_some_and(|polled| polled.asked == asked) {
                        watchers.remove(&id);
                        return;
                    }
                }
            }
        }
    }
}

impl GatheredEvents {
    /// Collects all pending events. Returns false if the watch has failed, so no further events can
    /// arrive.
    fn gather(&mut self) -> bool {
        while self.failure.is_none() {
            match self.watch.read_events() {
                Ok((drained, happened)) => {
                    self.events.extend(happened);
                    if self.events.len() > MAX_KEPT_EVENTS {
                        let message =
                            "more happened than is kept: events were lost; ask for them more often";
                        self.failure = Some(Failure::new(Code::DataLoss, message));
                        self.events = Vec::new();
                    } else if drained {
                        return true;
                    }
                }
                Err(failure) => self.failure = Some(failure),
            }
        }
        false
    }

    fn take(&mut self) -> Result<Vec<FilesystemEvent>, Failure> {
        self.gather();
        match &self.failure {
            // Return the events that were collected before the failure first. The next call returns
            // the failure.
            Some(failure) if self.events.is_empty() => Err(failure.clone()),
            _ => Ok(std::mem::take(&mut self.events)),
        }
    }
}

fn lock_events(gathered: &Mutex<GatheredEvents>) -> std::sync::MutexGuard<'_, GatheredEvents> {
    // A panic while events are collected loses events at most.
    gathered.lock().unwrap_or_else(PoisonError::into_inner)
}

fn new_identifier() -> Result<String, Failure> {
    let mut bytes = [0_u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Failure::new(Code::Internal, format!("cannot name a watcher: {error}")))?;
    Ok(format!("w{:016x}", u64::from_ne_bytes(bytes)))
}

fn unknown_watcher(watcher: &Watcher) -> Failure {
    Failure::new(Code::NotFound, format!("watcher with id {} not found", watcher.watcher_id))
}
