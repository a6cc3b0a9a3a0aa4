//! Plan of a sync: the decision for each path that either side or the record has.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::decision::{SyncAction, decide};
use super::entry::{EntryContent, PresentEntry, SideState};
use super::host::HostScan;
use super::listing::InsideListing;
use super::record::SyncRecord;

const ABOVE_NAMED: &str =
    "it must stay a directory, because the policy hides or protects a path in it";
const OBSTRUCTED_INSIDE: &str =
    "a link or a file in the sandbox is in the place of a directory above it";

/// Decision for one path, with the states that it was made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlannedStep {
    pub(super) path: PathBuf,
    pub(super) action: SyncAction,
    pub(super) host: SideState,
    pub(super) inside: SideState,
}

impl PlannedStep {
    /// Returns the entry on the host.
    pub(super) fn host_entry(&self) -> Option<&PresentEntry> {
        present(&self.host)
    }

    /// Returns the entry in the sandbox.
    pub(super) fn inside_entry(&self) -> Option<&PresentEntry> {
        present(&self.inside)
    }

    /// Tells whether one side has a directory and the other side has another entry.
    pub(super) fn replaces_kind(&self) -> bool {
        match (self.host_entry(), self.inside_entry()) {
            (Some(host), Some(inside)) => {
                (host.content == EntryContent::Directory)
                    != (inside.content == EntryContent::Directory)
            }
            _ => false,
        }
    }
}

/// Plans a sync. The steps are ordered by path, so a directory comes before its entries.
pub(super) fn plan(
    record: &SyncRecord,
    host: &HostScan,
    inside: &InsideListing,
) -> Vec<PlannedStep> {
    let paths: BTreeSet<&PathBuf> =
        record.paths().chain(host.states.keys()).chain(inside.states.keys()).collect();
    let steps = paths.into_iter().map(|path| {
        let host = state(&host.states, path);
        let inside = state(&inside.states, path);
        let rule = record.rules.rule(path);
        let mut action = decide(path, rule, record.entry(path), &host, &inside);
        let is_directory =
            present(&inside).is_some_and(|entry| entry.content == EntryContent::Directory);
        if action == SyncAction::BringBack && !is_directory && record.rules.is_above_named(path) {
            action = SyncAction::Refuse(ABOVE_NAMED);
        }
        PlannedStep { path: path.clone(), action, host, inside }
    });
    let mut steps: Vec<PlannedStep> = steps.collect();
    refuse_obstructed(&mut steps);
    keep_below_uncarried(&mut steps);
    steps
}

/// Keeps entries on the host whose directory is not carried. Such a directory was replaced in the
/// sandbox, for example by a link that does not come back, so its entries only seem to be removed.
fn keep_below_uncarried(steps: &mut [PlannedStep]) {
    let is_uncarried = |action| {
        matches!(action, SyncAction::Conflict(_) | SyncAction::Refuse(_) | SyncAction::LeaveOut(_))
    };
    let uncarried = steps.iter().filter(|step| is_uncarried(step.action));
    let uncarried: BTreeMap<PathBuf, SyncAction> =
        uncarried.map(|step| (step.path.clone(), step.action)).collect();
    for step in steps.iter_mut().filter(|step| step.action == SyncAction::RemoveHere) {
        let mut above = step.path.ancestors().skip(1);
        if let Some(action) = above.find_map(|above| uncarried.get(above)) {
            step.action = *action;
        }
    }
}

/// Turns steps that would send an entry below a path that is no directory in the sandbox into
/// conflicts. The guest would refuse the whole archive because of such an entry.
fn refuse_obstructed(steps: &mut [PlannedStep]) {
    let obstacles: BTreeSet<PathBuf> = steps
        .iter()
        .filter(|step| match &step.inside {
            SideState::Absent => false,
            SideState::Uncarriable(_) => true,
            SideState::Present(entry) => {
                entry.content != EntryContent::Directory && step.action != SyncAction::SendIn
            }
        })
        .map(|step| step.path.clone())
        .collect();
    for step in steps {
        let mut above = step.path.ancestors().skip(1);
        if step.action == SyncAction::SendIn && above.any(|above| obstacles.contains(above)) {
            step.action = SyncAction::Conflict(OBSTRUCTED_INSIDE);
        }
    }
}

/// Returns the state of a path on one side. Nothing is known of the entries of a directory that
/// cannot be read.
fn state(states: &BTreeMap<PathBuf, SideState>, path: &Path) -> SideState {
    let found = path.ancestors().find_map(|above| Some((above, states.get(above)?)));
    match found {
        Some((above, state)) if above == path => state.clone(),
        Some((_, SideState::Uncarriable(why))) => SideState::Uncarriable(why),
        _ => SideState::Absent,
    }
}

fn present(state: &SideState) -> Option<&PresentEntry> {
    match state {
        SideState::Present(entry) => Some(entry),
        SideState::Absent | SideState::Uncarriable(_) => None,
    }
}
