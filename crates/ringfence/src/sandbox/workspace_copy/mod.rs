//! Workspace of a sandbox that shares no file system with the host: the workspace is sent into the
//! sandbox at its start, and a sync carries the changes of both sides to the other.
//!
//! A sync compares three states of each path: the host's, the sandbox's, and the record of what
//! both had after the last sync. Only what one side changed is carried to the other. If both sides
//! changed a path, neither wins, and the path is a conflict.
//!
//! Reading order: [`entry`] has the states of a path, [`decision`] and [`plan`] decide what a sync
//! does, [`rules`] are those of the policy, [`record`] is what the last sync left. [`listing`]
//! checks what the guest says, [`host`] reads and changes the host's files, and [`receive`] and
//! [`send`] carry entries.

mod decision;
mod entry;
mod error;
mod host;
mod listing;
mod plan;
mod progress;
mod receive;
mod record;
mod rules;
mod send;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringfence_core::sync_report::SyncReport;
use ringfence_proto::code::Code;
use tokio::task::spawn_blocking;

use self::decision::SyncAction;
use self::entry::{FileStamp, RecordedEntry, SideState, shown};
use self::host::HostTree;
use self::listing::InsideListing;
use self::plan::{PlannedStep, plan};
use self::progress::ProgressCounters;
use self::record::{RecordLock, SyncRecord};
use crate::session::{Session, SessionError};
use crate::view::WatchedPaths;
pub use error::SyncError;
pub use progress::{SyncListener, SyncProgress};
pub(crate) use rules::CopyRules;

/// Highest number of files, directories and links in a copied workspace.
const MAX_COPIED_ENTRIES: u64 = 1_000_000;
/// Highest number of bytes in the files of a copied workspace.
const MAX_COPIED_BYTES: u64 = 64 << 30;
/// Number of syncs before the end of a sandbox in which files still change.
const FINAL_ATTEMPTS: usize = 3;
/// Longest time that the syncs before the end of a sandbox may take. A hostile guest could
/// otherwise keep its sandbox up.
const FINAL_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// Extent of a sync.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SyncMode {
    /// Carries the changes of both sides.
    #[default]
    Both,
    /// Only reports what a sync would do.
    DryRun,
}

/// Directions in which a sync carries changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SyncDirection {
    In,
    Back,
    Both,
}

/// Callback for the progress of a sync.
pub(crate) type OnSync<'a> = &'a mut (dyn FnMut(SyncProgress) + Send);

/// Workspace that was copied into a sandbox.
#[derive(Debug, Clone)]
pub(crate) struct CopiedWorkspace {
    session: Session,
    /// Directory of the sandbox's own files on the host, which holds the record.
    directory: PathBuf,
}

/// State of a running sync.
#[derive(Debug)]
struct SyncState {
    tree: HostTree,
    record: SyncRecord,
    report: SyncReport,
    /// Stamps of the host's files, as they were scanned.
    stamps: BTreeMap<PathBuf, FileStamp>,
    progress: Arc<ProgressCounters>,
    /// Number of paths that changed while they were carried.
    unsettled: u64,
    /// Number of temporary names that were used.
    numbers: u64,
}

impl SyncState {
    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
}

/// State of a running sync, which blocking jobs share with their task.
#[derive(Debug)]
struct SyncCell(Mutex<SyncState>);

impl SyncCell {
    fn lock(&self) -> MutexGuard<'_, SyncState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type SharedSync = Arc<SyncCell>;

impl CopiedWorkspace {
    /// Returns the copied workspace of a sandbox whose own directory on the host is `directory`.
    pub(crate) fn new(session: Session, directory: PathBuf) -> CopiedWorkspace {
        CopiedWorkspace { session, directory }
    }

    /// Sends the workspace into a sandbox that was just started. `watched` are the paths that
    /// decide what programs on the host execute.
    pub(crate) async fn send(
        &self,
        workspace: &Path,
        inside: &Path,
        rules: CopyRules,
        watched: WatchedPaths,
        on_sync: OnSync<'_>,
    ) -> Result<SyncReport, SyncError> {
        let _lock = self.lock().await?;
        let record = SyncRecord::new(workspace, &inside.to_string_lossy(), rules, watched);
        self.carry(record, SyncDirection::In, SyncMode::Both, on_sync)
            .await
            .map(|(report, _)| report)
    }

    /// Carries the changes of both sides to the other, or reports what that would do.
    pub(crate) async fn sync(
        &self,
        mode: SyncMode,
        on_sync: OnSync<'_>,
    ) -> Result<SyncReport, SyncError> {
        let _lock = self.lock().await?;
        let record = self.read_record().await?;
        self.carry(record, SyncDirection::Both, mode, on_sync).await.map(|(report, _)| report)
    }

    /// Brings the changes of the sandbox back before its end. Repeats that as long as files change
    /// meanwhile, for a few times.
    pub(crate) async fn bring_back(&self, on_sync: OnSync<'_>) -> Result<SyncReport, SyncError> {
        let attempts = async {
            let _lock = self.lock().await?;
            let mut total = SyncReport::default();
            for _ in 0..FINAL_ATTEMPTS {
                let record = self.read_record().await?;
                let (report, unsettled) =
                    self.carry(record, SyncDirection::Back, SyncMode::Both, on_sync).await?;
                total = report.after(total);
                if unsettled == 0 {
                    break;
                }
            }
            Ok(total)
        };
        tokio::time::timeout(FINAL_TIMEOUT, attempts)
            .await
            .unwrap_or(Err(SyncError::TimedOut { timeout: FINAL_TIMEOUT }))
    }

    async fn lock(&self) -> Result<RecordLock, SyncError> {
        let directory = self.directory.clone();
        blocking(move || RecordLock::take(&directory))
            .await
            .map_err(|source| SyncError::Record { what: "lock", source })
    }

    async fn read_record(&self) -> Result<SyncRecord, SyncError> {
        let directory = self.directory.clone();
        blocking(move || SyncRecord::read(&directory))
            .await
            .map_err(|source| SyncError::Record { what: "read", source })
    }

    /// Runs one sync. Also returns the number of paths that changed while they were carried.
    async fn carry(
        &self,
        record: SyncRecord,
        direction: SyncDirection,
        mode: SyncMode,
        on_sync: OnSync<'_>,
    ) -> Result<(SyncReport, u64), SyncError> {
        let inside = record.inside.clone();
        let listing = self.list(&inside, direction).await?;
        let workspace = record.workspace.clone();
        let planned = blocking(move || prepare(record, &listing)).await;
        let (mut state, steps) =
            planned.map_err(|source| SyncError::Workspace { path: workspace, source })?;
        if mode == SyncMode::DryRun {
            foretell(&mut state, &steps);
            return Ok((state.report, 0));
        }
        settle(&mut state, &steps);
        let sends = direction != SyncDirection::Back;
        let receives = direction != SyncDirection::In;
        state.progress.expect(&steps, sends, receives);
        let shared: SharedSync = Arc::new(SyncCell(Mutex::new(state)));
        let carried = self.carry_steps(&shared, &inside, steps, direction, on_sync).await;
        let (directory, finished) = (self.directory.clone(), Arc::clone(&shared));
        let written = blocking(move || finish(&mut finished.lock(), &directory)).await;
        carried?;
        written.map_err(|source| SyncError::Record { what: "write", source })?;
        let state = shared.lock();
        Ok((state.report.clone(), state.unsettled))
    }

    /// Lists the workspace in the sandbox. Before the first sync the directory need not exist.
    async fn list(
        &self,
        inside: &str,
        direction: SyncDirection,
    ) -> Result<InsideListing, SyncError> {
        let files = self.session.files();
        match files.list_tree(inside, InsideListing::default(), InsideListing::add).await {
            Err(error) if error.code() == Some(Code::NotFound) => match direction {
                SyncDirection::In => Ok(InsideListing::default()),
                // Without this case, all files on the host would be removed.
                SyncDirection::Back | SyncDirection::Both => {
                    Err(SyncError::Removed { path: inside.to_owned() })
                }
            },
            listed => Ok(listed?),
        }
    }

    async fn carry_steps(
        &self,
        shared: &SharedSync,
        inside: &str,
        steps: Vec<PlannedStep>,
        direction: SyncDirection,
        on_sync: OnSync<'_>,
    ) -> Result<(), SessionError> {
        let progress = Arc::clone(&shared.lock().progress);
        let mut tick = || on_sync(progress.now());
        tick();
        if direction != SyncDirection::In {
            let requests = receive::requests(&steps);
            let (applied, state) = (steps.clone(), Arc::clone(shared));
            blocking(move || receive::apply_without_contents(&mut state.lock(), &applied)).await?;
            for request in requests {
                receive::receive_files(&self.session, inside, shared, request, &mut tick).await?;
            }
        }
        if direction != SyncDirection::Back {
            let sent = send::remove_inside(&self.session, inside, shared, &steps).await?;
            // The first archive also makes the directory of the workspace.
            if !sent.is_empty() || direction == SyncDirection::In {
                send::send_entries(&self.session, inside, shared, sent, &mut tick).await?;
            }
        }
        tick();
        Ok(())
    }
}

/// Tells whether a sync of the sandbox whose own directory is `directory` runs.
pub(crate) fn is_syncing(directory: &Path) -> bool {
    RecordLock::is_held(directory)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    spawn_blocking(work).await.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => panic!("the runtime does not cancel blocking work that runs"),
    })
}

/// Scans the workspace on the host, and plans a sync.
fn prepare(
    record: SyncRecord,
    listing: &InsideListing,
) -> io::Result<(SyncState, Vec<PlannedStep>)> {
    let tree = HostTree::open(&record.workspace)?;
    let scan = tree.scan(&record.rules, &record)?;
    let steps = plan(&record, &scan, listing);
    let state = SyncState {
        tree,
        record,
        report: SyncReport::default(),
        stamps: scan.stamps,
        progress: Arc::default(),
        unsettled: 0,
        numbers: 0,
    };
    Ok((state, steps))
}

/// Reports what a sync would do.
fn foretell(state: &mut SyncState, steps: &[PlannedStep]) {
    state.report.dry_run = true;
    report_uncarried(&mut state.report, steps);
    for step in steps {
        let name = shown(&step.path);
        let here = step.host_entry().map_or(0, |entry| entry.content.bytes());
        let inside = step.inside_entry().map_or(0, |entry| entry.content.bytes());
        match step.action {
            SyncAction::SendIn => state.report.sent.add(name, here),
            SyncAction::BringBack => state.report.received.add(name, inside),
            SyncAction::RemoveHere => state.report.deleted.add(name, here),
            SyncAction::RemoveInside => state.report.deleted_inside.add(name, inside),
            _ => {}
        }
    }
}

/// Reports the paths that are not carried, and records those that both sides have in common.
fn settle(state: &mut SyncState, steps: &[PlannedStep]) {
    report_uncarried(&mut state.report, steps);
    for step in steps {
        let stamp = state.stamps.get(&step.path).copied();
        match (step.action, &step.host, &step.inside) {
            (SyncAction::Forget, ..) => state.record.remove(&step.path),
            (
                SyncAction::Keep | SyncAction::Adopt,
                SideState::Present(host),
                SideState::Present(inside),
            ) => {
                let entry = RecordedEntry {
                    content: host.content.clone(),
                    host_mode: host.mode,
                    inside_mode: inside.mode,
                    stamp,
                };
                state.record.insert(step.path.clone(), entry);
            }
            _ => {}
        }
    }
}

fn report_uncarried(report: &mut SyncReport, steps: &[PlannedStep]) {
    for step in steps {
        let (list, why) = match step.action {
            SyncAction::Conflict(why) => (&mut report.conflicts, why),
            SyncAction::Refuse(why) => (&mut report.refused, why),
            SyncAction::LeaveOut(why) => (&mut report.left_out, why),
            _ => continue,
        };
        list.add(shown(&step.path), why);
    }
}

/// Writes the record, and looks for paths that came back and decide what programs execute.
fn finish(state: &mut SyncState, directory: &Path) -> io::Result<()> {
    if state.report.received.count + state.report.deleted.count > 0 {
        state.report.planted = state.record.watched.planted();
    }
    state.record.write(directory)
}
