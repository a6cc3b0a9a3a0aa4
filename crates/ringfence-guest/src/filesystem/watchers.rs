//! Watchers for clients that poll for events: `CreateWatcher`, `GetWatcherEvents`, `RemoveWatcher`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringfence_proto::code::{Code, Failure};
use ringfence_proto::filesystem::{EventsResponse, FilesystemEvent, WatchRequest, Watcher};
use ringfence_proto::process::Empty;
use tokio::io::unix::AsyncFd;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use super::blocking;
use crate::user::User;
use crate::watch::Watch;

/// Maximum number of watchers. Each watcher takes one of the inotify instances of the user, of
/// which there are 128 by default.
const MOST: usize = 64;
/// Maximum number of events that are kept for a client. Beyond this, the events are dropped and the
/// client is told of the loss.
const MOST_EVENTS: usize = 16_384;
/// Time after the last `GetWatcherEvents` call after which a watcher is removed, because its client
/// has gone without `RemoveWatcher`.
const IDLE: Duration = Duration::from_secs(60 * 60);

/// Watchers by identifier.
#[derive(Debug, Clone, Default)]
pub(crate) struct Watchers(Rc<RefCell<HashMap<String, Polled>>>);

#[derive(Debug)]
struct Polled {
    gathered: Arc<Mutex<Gathered>>,
    asked: Instant,
    task: AbortHandle,
}

impl Drop for Polled {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Events since the last `GetWatcherEvents` call, and the watch that they come from.
#[derive(Debug)]
struct Gathered {
    watch: Watch,
    events: Vec<FilesystemEvent>,
    failure: Option<Failure>,
}

impl Watchers {
    /// Creates a watcher, and returns its identifier.
    pub(super) async fn create(
        &self,
        request: WatchRequest,
        user: User,
    ) -> Result<Watcher, Failure> {
        if self.0.borrow().len() >= MOST {
            let message = format!("{MOST} watchers are there; remove one with RemoveWatcher");
            return Err(Failure::new(Code::ResourceExhausted, message));
        }
        let watch = blocking(move || Watch::start(&request, &user)).await?;
        let readiness = watch.readiness()?;
        let gathered = Arc::new(Mutex::new(Gathered { watch, events: Vec::new(), failure: None }));
        let watcher_id = name()?;
        let task = self.clone().keep(watcher_id.clone(), readiness, Arc::clone(&gathered));
        let task = tokio::task::spawn_local(task).abort_handle();
        self.0
            .borrow_mut()
            .insert(watcher_id.clone(), Polled { gathered, asked: Instant::now(), task });
        Ok(Watcher { watcher_id })
    }

    /// Returns the events since the previous call, up to this moment.
    pub(super) async fn events(&self, watcher: Watcher) -> Result<EventsResponse, Failure> {
        let gathered = match self.0.borrow_mut().get_mut(&watcher.watcher_id) {
            Some(polled) => {
                polled.asked = Instant::now();
                Arc::clone(&polled.gathered)
            }
            None => return Err(unknown(&watcher)),
        };
        blocking(move || Ok(EventsResponse { events: locked(&gathered).take()? })).await
    }

    /// Removes a watcher and drops its events.
    pub(super) fn remove(&self, watcher: &Watcher) -> Result<Empty, Failure> {
        match self.0.borrow_mut().remove(&watcher.watcher_id) {
            Some(_) => Ok(Empty {}),
            None => Err(unknown(watcher)),
        }
    }

    /// Collects the events of a watcher in the background, so that the kernel's queue stays short
    /// and new directories are watched at once. Removes the watcher after [`IDLE`]. A watcher whose
    /// watch has failed stays until `RemoveWatcher`.
    async fn keep(
        self,
        id: String,
        readiness: AsyncFd<Arc<OwnedFd>>,
        gathered: Arc<Mutex<Gathered>>,
    ) {
        loop {
            let Some(asked) = self.0.borrow().get(&id).map(|polled| polled.asked) else { return };
            match timeout_at(asked + IDLE, readiness.readable()).await {
                Ok(Ok(mut ready)) => {
                    let gathered = Arc::clone(&gathered);
                    let going_on = blocking(move || Ok(locked(&gathered).gather())).await;
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

impl Gathered {
    /// Collects all pending events. Returns false if the watch has failed, so no further events can
    /// arrive.
    fn gather(&mut self) -> bool {
        while self.failure.is_none() {
            match self.watch.drain() {
                Ok((drained, happened)) => {
                    self.events.extend(happened);
                    if self.events.len() > MOST_EVENTS {
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

fn locked(gathered: &Mutex<Gathered>) -> std::sync::MutexGuard<'_, Gathered> {
    // A panic while events are collected loses events at most.
    gathered.lock().unwrap_or_else(PoisonError::into_inner)
}

fn name() -> Result<String, Failure> {
    let mut bytes = [0_u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Failure::new(Code::Internal, format!("cannot name a watcher: {error}")))?;
    Ok(format!("w{:016x}", u64::from_ne_bytes(bytes)))
}

fn unknown(watcher: &Watcher) -> Failure {
    Failure::new(Code::NotFound, format!("watcher with id {} not found", watcher.watcher_id))
}
