//! Pool of warm sandboxes, which are started before a client asks and are each given to one client.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use ringfence::Sandbox;
use ringfence::contexts::DEFAULT_LANGUAGE;
use tokio::sync::{Notify, watch};

use crate::lifecycle::launch::LaunchedSandbox;
use crate::lifecycle::registry::Registry;
use crate::lifecycle::template::Template;
use crate::secret::name;

/// Lease of a waiting sandbox. The sandbox ends after this time even if the server is gone.
const WARM_LEASE: Duration = Duration::from_secs(60 * 60);
/// Maximum time that a sandbox waits before the pool replaces it. The time is well within the
/// lease.
const LONGEST_WAIT: Duration = Duration::from_secs(30 * 60);
/// Interval at which the pool checks its sandboxes and repeats failed starts.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Waiting sandboxes of all templates.
#[derive(Debug, Default)]
pub(crate) struct WarmPool {
    /// Waiting sandboxes by template, the oldest first.
    waiting: Mutex<HashMap<String, VecDeque<WarmSandbox>>>,
    /// Notified when a client has received a sandbox.
    changed: Notify,
    is_closed: watch::Sender<bool>,
}

/// Sandbox that waits for a client.
#[derive(Debug)]
pub(crate) struct WarmSandbox {
    pub(crate) id: String,
    pub(crate) launched: LaunchedSandbox,
    since: Instant,
}

impl WarmSandbox {
    fn is_good(&self) -> bool {
        self.since.elapsed() < LONGEST_WAIT && self.launched.sandbox.is_up()
    }
}

impl WarmPool {
    /// Takes a usable sandbox of a template, if one waits.
    pub(crate) fn take(&self, template: &str) -> Option<WarmSandbox> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let ready = waiting.get_mut(template)?;
        let position = ready.iter().position(WarmSandbox::is_good)?;
        let taken = ready.remove(position);
        drop(waiting);
        self.changed.notify_one();
        taken
    }

    /// Keeps as many sandboxes waiting as each template wants, and replaces used and stale ones,
    /// until the pool is closed. Then ends them all.
    pub(crate) async fn keep_full(
        &self,
        registry: &Registry,
        templates: &BTreeMap<String, Template>,
    ) {
        while self.is_open() {
            for stale in self.remove(|warm| !warm.is_good()) {
                registry.discard(&stale.id, stale.launched).await;
            }
            for (name, template) in templates {
                while self.is_open() && self.count(name) < template.warm {
                    if !self.add(registry, name, template).await {
                        break;
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
                () = self.changed.notified() => {}
                () = self.closed() => {}
            }
        }
        let all = self.remove(|_| true);
        let discarded =
            all.into_iter().map(async |warm| registry.discard(&warm.id, warm.launched).await);
        join_all(discarded).await;
    }

    /// Closes the pool, which then starts no more sandboxes.
    pub(crate) fn close(&self) {
        self.is_closed.send_replace(true);
    }

    fn is_open(&self) -> bool {
        !*self.is_closed.borrow()
    }

    async fn closed(&self) {
        // The wait cannot fail, because `self` holds the sender.
        let _ = self.is_closed.subscribe().wait_for(|is_closed| *is_closed).await;
    }

    /// Starts a sandbox and returns whether the start succeeded.
    async fn add(&self, registry: &Registry, template_name: &str, template: &Template) -> bool {
        let id = name();
        let launched = match registry.request(&id, WARM_LEASE, &template.settings, |_| ()) {
            Ok(request) => registry.launch(&id, request, self.closed()).await,
            Err(error) => Err(error),
        };
        match launched {
            Ok(launched) => {
                if let Some(preload) = &template.preload {
                    tokio::select! {
                        () = begin_interpreter(&launched.sandbox, preload) => {}
                        () = self.closed() => {}
                    }
                }
                let warm = WarmSandbox { id, launched, since: Instant::now() };
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                waiting.entry(template_name.to_owned()).or_default().push_back(warm);
                true
            }
            Err(_) if !self.is_open() => false,
            Err(failure) => {
                tracing::warn!(
                    template = template_name,
                    error = failure.message(),
                    "cannot start a waiting sandbox"
                );
                false
            }
        }
    }

    /// Returns the number of waiting sandboxes.
    pub(crate) fn count_all(&self) -> usize {
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .map(VecDeque::len)
            .sum()
    }

    fn count(&self, template: &str) -> usize {
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(template)
            .map_or(0, VecDeque::len)
    }

    /// Removes and returns the sandboxes for which `is_one` holds.
    fn remove(&self, is_one: impl Fn(&WarmSandbox) -> bool) -> Vec<WarmSandbox> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut removed = Vec::new();
        for ready in waiting.values_mut() {
            let (out, left) = std::mem::take(ready).into_iter().partition(&is_one);
            *ready = left;
            removed.extend(Vec::from(out));
        }
        removed
    }
}

/// Starts the Python interpreter in which the first cell of a sandbox will run.
async fn begin_interpreter(sandbox: &Sandbox, preload: &str) {
    let contexts = sandbox.contexts();
    let begun = async {
        contexts.keep().await?;
        contexts.prepare(DEFAULT_LANGUAGE, preload).await
    };
    if let Err(error) = begun.await {
        let error = ringfence::chain(&error);
        tracing::warn!(
            error,
            "a waiting sandbox has no Python interpreter; its first code starts one"
        );
    }
}
