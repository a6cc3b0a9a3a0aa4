//! Resource use of sandboxes, measured every few seconds. Clients can read its history, and it is
//! charged to keys.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use jiff::Timestamp;
use ringfence::{Sandbox, TreeUsage};

use crate::api::messages::Metric;
use crate::lifecycle::expiry::{SandboxState, after, left};
use crate::lifecycle::registry::{ManagedSandbox, Registry};
use crate::lifecycle::template::Template;
use crate::server::Server;
use crate::tenants::quota::DayUse;

/// Interval between two measurements of all sandboxes.
const MEASURE_INTERVAL: Duration = Duration::from_secs(5);
/// Number of measurements between two writes of the use of keys to the database.
const LOOKS_PER_NOTE: u32 = 6;
/// Age up to which a measurement counts as current, so that frequent requests do not shorten the
/// history.
const MAX_AGE: Duration = Duration::from_secs(1);
/// Maximum number of kept measurements: one hour.
const MOST_SAMPLES: usize = 720;

/// Resource use of a sandbox at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UsageSample {
    pub(crate) at: Timestamp,
    /// Number of processors in use, on average since the measurement before.
    processors: f64,
    /// Memory in use, in bytes.
    memory: u64,
    disk_used: u64,
    disk_total: u64,
}

/// Kept measurements of one sandbox.
#[derive(Debug)]
pub(crate) struct UsageHistory {
    samples: VecDeque<UsageSample>,
    /// Time of the last measurement, and the processor time that the sandbox had used by then.
    last: (Instant, Option<Duration>),
}

impl UsageHistory {
    /// Creates the history of a new sandbox, whose whole use counts.
    pub(crate) fn for_new_sandbox() -> UsageHistory {
        UsageHistory { samples: VecDeque::new(), last: (Instant::now(), Some(Duration::ZERO)) }
    }

    /// Creates the history of a sandbox that existed before the server, whose use before the first
    /// measurement is unknown.
    pub(crate) fn for_found_sandbox() -> UsageHistory {
        UsageHistory { samples: VecDeque::new(), last: (Instant::now(), None) }
    }

    /// Adds a measurement and returns the processor time used since the measurement before.
    fn add(
        &mut self,
        now: Instant,
        footprint: TreeUsage,
        (disk_used, disk_total): (u64, u64),
    ) -> Duration {
        let (then, before) = self.last;
        let used =
            before.map_or(Duration::ZERO, |before| footprint.processor_time.saturating_sub(before));
        self.last = (now, Some(footprint.processor_time));
        let passed = now.duration_since(then).as_secs_f64();
        let processors = if passed > 0.0 { used.as_secs_f64() / passed } else { 0.0 };
        if self.samples.len() == MOST_SAMPLES {
            self.samples.pop_front();
        }
        let sample = UsageSample {
            at: Timestamp::now(),
            processors,
            memory: footprint.memory,
            disk_used,
            disk_total,
        };
        self.samples.push_back(sample);
        used
    }
}

impl UsageSample {
    /// Converts the sample to the form of the API.
    pub(crate) fn metric(&self, template: Option<&Template>) -> Metric {
        let (processors, memory) =
            template.map_or((1, 0), |template| (template.processors, template.memory));
        let percent = self.processors / processors.max(1) as f64 * 100.0;
        Metric {
            timestamp: self.at,
            timestamp_unix: self.at.as_second(),
            cpu_count: processors,
            cpu_used_pct: (percent * 100.0).round() / 100.0,
            mem_used: self.memory,
            mem_total: memory,
            mem_cache: 0,
            disk_used: self.disk_used,
            disk_total: self.disk_total,
        }
    }
}

impl ManagedSandbox {
    /// Returns whether the last measurement is so recent that another one would add nothing.
    pub(crate) fn is_known(&self) -> bool {
        let history = lock(&self.history);
        history
            .samples
            .back()
            .is_some_and(|last| left(after(last.at, MAX_AGE), Timestamp::now()) > Duration::ZERO)
    }

    /// Returns the samples between two times, oldest first.
    pub(crate) fn samples(&self, from: Timestamp, to: Timestamp) -> Vec<UsageSample> {
        let history = lock(&self.history);
        history.samples.iter().filter(|sample| (from..=to).contains(&sample.at)).copied().collect()
    }
}

impl Registry {
    /// Measures some sandboxes and charges their keys. Paused sandboxes use nothing and are
    /// skipped.
    pub(crate) async fn measure_usage(&self, mut sandboxes: Vec<Arc<ManagedSandbox>>) {
        sandboxes.retain(|managed| managed.expiry().state() == SandboxState::Running);
        if sandboxes.is_empty() {
            return;
        }
        let key_usages = Arc::clone(self.key_usages());
        // Use a blocking thread, because the measurement reads files for each process of the
        // sandboxes.
        let looked = tokio::task::spawn_blocking(move || {
            let found = Sandbox::footprints(sandboxes.iter().map(|managed| &managed.sandbox));
            let now = Instant::now();
            for (managed, footprint) in sandboxes.iter().zip(found) {
                // The sandbox has ended meanwhile.
                let Some(footprint) = footprint else { continue };
                let disk = disk(managed);
                let used = lock(&managed.history).add(now, footprint, disk);
                key_usages.charge(&managed.record.owner, used);
            }
        });
        looked.await.expect("a look does not panic");
    }
}

impl Server {
    /// Measures all sandboxes at intervals, pauses the sandboxes of keys that have used up their
    /// quota, and stores the use of keys.
    pub(crate) async fn keep_looking(self: &Arc<Server>) {
        let (mut looks, mut before) = (0, 0);
        loop {
            tokio::time::sleep(MEASURE_INTERVAL).await;
            let all = self.registry.all();
            let is_fewer = all.len() < std::mem::replace(&mut before, all.len());
            self.registry.measure_usage(all).await;
            if is_fewer {
                // The memory of ended sandboxes lies between memory in use, and the allocator
                // returns it only on request.
                tokio::task::spawn_blocking(ringfence::release_memory);
            }
            self.hold_back().await;
            looks += 1;
            if looks % LOOKS_PER_NOTE == 0 {
                self.store_usage().await;
            }
        }
    }

    /// Pauses the sandboxes of keys that have used up their quota for the day.
    async fn hold_back(self: &Arc<Server>) {
        for key in self.keys.all().iter() {
            let owner = Some(key.id.clone());
            if self.key_usages().spent(&owner, &key.quota).is_none() {
                continue;
            }
            // Pause all at once, so that a sandbox that does not pause delays no other.
            join_all(self.registry.list_for_owner(&owner).into_iter().map(async |managed| {
                if managed.changing.try_lock().is_err() {
                    // The sandbox is paused while it is copied; the next measurement finds it
                    // again.
                    return;
                }
                if let Err(failure) = self.registry.pause(&managed).await {
                    let error = failure.message();
                    tracing::error!(
                        id = managed.record.id,
                        error,
                        "cannot pause a sandbox whose key has used its processor time"
                    );
                }
            }))
            .await;
        }
    }

    /// Stores the use of keys today, so that the next server knows it.
    pub(crate) async fn store_usage(&self) {
        let changed: Vec<(String, DayUse)> = self.key_usages().changed();
        if let Err(error) = self.registry.store().put_use(changed).await {
            tracing::error!(%error, "cannot store the usage of keys");
        }
    }
}

fn lock(history: &Mutex<UsageHistory>) -> std::sync::MutexGuard<'_, UsageHistory> {
    history.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the used and total bytes of the file system that holds the sandbox's own directory.
fn disk(managed: &ManagedSandbox) -> (u64, u64) {
    let Ok(disk) = rustix::fs::statvfs(&managed.sandbox.manifest().workspace) else {
        return (0, 0);
    };
    (disk.f_blocks.saturating_sub(disk.f_bfree) * disk.f_frsize, disk.f_blocks * disk.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_tells_what_was_used_between_two_looks_and_has_an_end() {
        let mut history = UsageHistory::for_new_sandbox();
        let begun = history.last.0;
        let footprint =
            |seconds| TreeUsage { processor_time: Duration::from_secs(seconds), memory: 7 };
        let after = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(history.add(after(10), footprint(5), (1, 2)), Duration::from_secs(5));
        assert_eq!(history.add(after(20), footprint(25), (1, 2)), Duration::from_secs(20));
        let worth: Vec<f64> = history.samples.iter().map(|sample| sample.processors).collect();
        assert_eq!(worth, [0.5, 2.0]);
        for _ in 0..MOST_SAMPLES {
            history.add(after(30), footprint(25), (1, 2));
        }
        assert_eq!(history.samples.len(), MOST_SAMPLES);
        let mut found = UsageHistory::for_found_sandbox();
        assert_eq!(found.add(after(40), footprint(100), (0, 0)), Duration::ZERO);
        assert_eq!(found.add(after(50), footprint(101), (0, 0)), Duration::from_secs(1));
    }
}
