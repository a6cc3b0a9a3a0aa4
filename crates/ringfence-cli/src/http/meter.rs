//! What sandboxes use, looked at every few seconds: clients are shown its history, and keys are charged for it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use jiff::Timestamp;
use ringfence::{Footprint, Sandbox};

use super::life::{State, after, left};
use super::messages::Metric;
use super::quota::DayUse;
use super::registry::{Live, Registry};
use super::server::Server;
use super::template::Template;

/// How often all sandboxes are looked at.
const PACE: Duration = Duration::from_secs(5);
/// After how many looks what keys have used is written down.
const LOOKS_PER_NOTE: u32 = 6;
/// How old a look is that is as good as a new one: who asks all the time makes no history shorter.
const AGE: Duration = Duration::from_secs(1);
/// How many looks are remembered: an hour's.
const KEPT: usize = 720;

/// What a sandbox used at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    pub(super) at: Timestamp,
    /// Processors' worth of time, since the look before.
    processors: f64,
    /// In bytes.
    memory: u64,
    disk_used: u64,
    disk_total: u64,
}

/// What one sandbox used, as far as it is remembered.
#[derive(Debug)]
pub(super) struct History {
    samples: VecDeque<Sample>,
    /// When it was last looked at, and the time on processors that it had used by then.
    last: (Instant, Option<Duration>),
}

impl History {
    /// Of a sandbox that has just been started: all that it uses counts.
    pub(super) fn of_new() -> History {
        History { samples: VecDeque::new(), last: (Instant::now(), Some(Duration::ZERO)) }
    }

    /// Of one that was found: what it used before the first look is not known.
    pub(super) fn of_found() -> History {
        History { samples: VecDeque::new(), last: (Instant::now(), None) }
    }

    /// Remembers a look, and returns the time on processors that was used since the one before.
    fn add(&mut self, now: Instant, footprint: Footprint, (disk_used, disk_total): (u64, u64)) -> Duration {
        let (then, before) = self.last;
        let used = before.map_or(Duration::ZERO, |before| footprint.processor_time.saturating_sub(before));
        self.last = (now, Some(footprint.processor_time));
        let passed = now.duration_since(then).as_secs_f64();
        let processors = if passed > 0.0 { used.as_secs_f64() / passed } else { 0.0 };
        if self.samples.len() == KEPT {
            self.samples.pop_front();
        }
        let sample = Sample { at: Timestamp::now(), processors, memory: footprint.memory, disk_used, disk_total };
        self.samples.push_back(sample);
        used
    }
}

impl Sample {
    /// As a client is told of it.
    pub(super) fn metric(&self, template: Option<&Template>) -> Metric {
        let (processors, memory) = template.map_or((1, 0), |template| (template.processors, template.memory));
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

impl Live {
    /// Whether it was looked at so lately that another look would tell nothing new.
    pub(super) fn is_known(&self) -> bool {
        let history = lock(&self.history);
        history.samples.back().is_some_and(|last| left(after(last.at, AGE), Timestamp::now()) > Duration::ZERO)
    }

    /// The looks at it between two times, oldest first.
    pub(super) fn samples(&self, from: Timestamp, to: Timestamp) -> Vec<Sample> {
        let history = lock(&self.history);
        history.samples.iter().filter(|sample| (from..=to).contains(&sample.at)).copied().collect()
    }
}

impl Registry {
    /// Looks at some sandboxes, and charges their keys. Those at rest use nothing.
    pub(super) async fn look_at(&self, mut sandboxes: Vec<Arc<Live>>) {
        sandboxes.retain(|live| live.life().state() == State::Running);
        if sandboxes.is_empty() {
            return;
        }
        let tallies = Arc::clone(self.tallies());
        // It reads files for each of their processes.
        let looked = tokio::task::spawn_blocking(move || {
            let found = Sandbox::footprints(sandboxes.iter().map(|live| &live.sandbox));
            let now = Instant::now();
            for (live, footprint) in sandboxes.iter().zip(found) {
                let Some(footprint) = footprint else { continue }; // it has ended meanwhile
                let disk = disk(live);
                let used = lock(&live.history).add(now, footprint, disk);
                tallies.charge(&live.record.owner, used);
            }
        });
        looked.await.expect("a look does not panic");
    }
}

impl Server {
    /// Looks at all sandboxes again and again, brings those of keys to rest that have used what they may, and writes
    /// down what keys have used.
    pub(super) async fn keep_looking(self: &Arc<Server>) {
        let (mut looks, mut before) = (0, 0);
        loop {
            tokio::time::sleep(PACE).await;
            let all = self.registry.all();
            let is_fewer = all.len() < std::mem::replace(&mut before, all.len());
            self.registry.look_at(all).await;
            if is_fewer {
                // What they were remembered by lies among what is still used, and an allocator keeps that unless asked.
                tokio::task::spawn_blocking(ringfence::give_memory_back);
            }
            self.hold_back().await;
            looks += 1;
            if looks % LOOKS_PER_NOTE == 0 {
                self.note_use().await;
            }
        }
    }

    /// Brings the sandboxes of keys to rest that have used what they may in a day.
    async fn hold_back(self: &Arc<Server>) {
        for key in self.keys.all().iter() {
            let owner = Some(key.id.clone());
            if self.tallies().spent(&owner, &key.quota).is_none() {
                continue;
            }
            // All at once: one that does not come to rest holds up nobody.
            join_all(self.registry.of(&owner).into_iter().map(async |live| {
                if live.changing.try_lock().is_err() {
                    return; // it is copied, and at rest for that: others do not wait, and the next look finds it
                }
                if let Err(failure) = self.registry.pause(&live).await {
                    let error = failure.message();
                    tracing::error!(id = live.record.id, error, "a sandbox whose key is spent is not paused");
                }
            }))
            .await;
        }
    }

    /// Writes down what keys have used today, for the next server.
    pub(super) async fn note_use(&self) {
        let changed: Vec<(String, DayUse)> = self.tallies().changed();
        if let Err(error) = self.registry.store().put_use(changed).await {
            tracing::error!(%error, "what keys have used is not written down");
        }
    }
}

fn lock(history: &Mutex<History>) -> std::sync::MutexGuard<'_, History> {
    history.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Used and total bytes of the file system that a sandbox's own directory is on.
fn disk(live: &Live) -> (u64, u64) {
    let Ok(disk) = rustix::fs::statvfs(&live.sandbox.manifest().workspace) else { return (0, 0) };
    (disk.f_blocks.saturating_sub(disk.f_bfree) * disk.f_frsize, disk.f_blocks * disk.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_tells_what_was_used_between_two_looks_and_has_an_end() {
        let mut history = History::of_new();
        let begun = history.last.0;
        let footprint = |seconds| Footprint { processor_time: Duration::from_secs(seconds), memory: 7 };
        let after = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(history.add(after(10), footprint(5), (1, 2)), Duration::from_secs(5));
        assert_eq!(history.add(after(20), footprint(25), (1, 2)), Duration::from_secs(20));
        let worth: Vec<f64> = history.samples.iter().map(|sample| sample.processors).collect();
        assert_eq!(worth, [0.5, 2.0]);
        for _ in 0..KEPT {
            history.add(after(30), footprint(25), (1, 2));
        }
        assert_eq!(history.samples.len(), KEPT);
        let mut found = History::of_found();
        assert_eq!(found.add(after(40), footprint(100), (0, 0)), Duration::ZERO);
        assert_eq!(found.add(after(50), footprint(101), (0, 0)), Duration::from_secs(1));
    }
}
