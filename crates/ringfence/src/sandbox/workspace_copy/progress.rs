//! Progress of a sync, which a blocking job counts and a callback is told.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::decision::SyncAction;
use super::entry::EntryContent;
use super::plan::PlannedStep;

/// Progress of a sync: files and bytes that were carried, of all that are to be carried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SyncProgress {
    /// Number of files that were carried.
    pub files_done: u64,
    /// Number of files that are to be carried.
    pub files_total: u64,
    /// Number of bytes that were carried, before compression.
    pub bytes_done: u64,
    /// Number of bytes that are to be carried, before compression.
    pub bytes_total: u64,
}

/// Callback for the progress of syncs at the start and the end of sandboxes.
#[derive(Clone)]
pub struct SyncListener(Arc<dyn Fn(SyncProgress) + Send + Sync>);

impl SyncListener {
    /// Makes a listener that calls `listen` with the progress of each sync.
    pub fn new(listen: impl Fn(SyncProgress) + Send + Sync + 'static) -> SyncListener {
        SyncListener(Arc::new(listen))
    }

    pub(crate) fn tell(&self, progress: SyncProgress) {
        (self.0)(progress);
    }
}

impl fmt::Debug for SyncListener {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SyncListener").finish_non_exhaustive()
    }
}

/// Counters of a sync.
#[derive(Debug, Default)]
pub(super) struct ProgressCounters {
    files_done: AtomicU64,
    files_total: AtomicU64,
    bytes_done: AtomicU64,
    bytes_total: AtomicU64,
}

impl ProgressCounters {
    /// Sets the totals to those of a plan.
    pub(super) fn expect(&self, steps: &[PlannedStep], sends: bool, receives: bool) {
        let carried = steps.iter().filter_map(|step| match step.action {
            SyncAction::SendIn if sends => step.host_entry(),
            SyncAction::BringBack if receives => step.inside_entry(),
            _ => None,
        });
        for entry in carried {
            if let EntryContent::File { size, .. } = entry.content {
                self.files_total.fetch_add(1, Ordering::Relaxed);
                self.bytes_total.fetch_add(size, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn add_file(&self) {
        self.files_done.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_bytes(&self, bytes: u64) {
        self.bytes_done.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn now(&self) -> SyncProgress {
        SyncProgress {
            files_done: self.files_done.load(Ordering::Relaxed),
            files_total: self.files_total.load(Ordering::Relaxed),
            bytes_done: self.bytes_done.load(Ordering::Relaxed),
            bytes_total: self.bytes_total.load(Ordering::Relaxed),
        }
    }
}
