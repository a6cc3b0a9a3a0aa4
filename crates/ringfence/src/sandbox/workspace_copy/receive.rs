//! Brings the changes of a sandbox back to the host: first what was removed, then directories and
//! links, and then the contents of files. Each change of the host's files is made only if the host
//! still has what the scan found.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use ringfence_proto::bytes::Base64Bytes;
use ringfence_proto::tree::{ReadFilesRequest, RequestedFile};
use sha2::{Digest, Sha256};
use std::os::unix::ffi::OsStrExt;

use super::decision::SyncAction;
use super::entry::{EntryContent, FileDigest, PresentEntry, RecordedEntry, deepest_first, shown};
use super::host::{HostChange, NO_DIRECTORY, StagedEntry, is_obstructed};
use super::plan::PlannedStep;
use super::{SharedSync, SyncState};
use crate::session::{FileStream, FileStreamEnd, Session, SessionError};

/// Highest number of files, and of bytes in them, that are requested at once.
const MAX_REQUESTED_FILES: usize = 2000;
const MAX_REQUESTED_BYTES: u64 = 256 << 20;

pub(super) const CHANGED_INSIDE: &str = "it was changed in the sandbox during the sync";

/// Applies the changes for which the host needs no content of a file.
pub(super) fn apply_without_contents(
    state: &mut SyncState,
    steps: &[PlannedStep],
) -> Result<(), SessionError> {
    let removed = steps.iter().filter(|step| step.action == SyncAction::RemoveHere);
    let order = deepest_first(removed.clone().map(|step| step.path.clone()).collect());
    let by_path: std::collections::BTreeMap<&Path, &PlannedStep> =
        removed.map(|step| (step.path.as_path(), step)).collect();
    for path in &order {
        let Some(step) = by_path.get(path.as_path()) else { continue };
        let number = state.next_number();
        let changed = state.tree.remove(path, &step.host, number);
        if state.is_done(path, changed)? {
            state.record.remove(path);
            let bytes = step.host_entry().map_or(0, |entry| entry.content.bytes());
            state.report.deleted.add(shown(path), bytes);
        }
    }
    for step in steps.iter().filter(|step| step.action == SyncAction::BringBack) {
        let Some(inside) = step.inside_entry() else { continue };
        let number = state.next_number();
        let path = &step.path;
        let changed = match &inside.content {
            EntryContent::File { .. } => continue,
            EntryContent::Directory => {
                state.tree.make_directory(path, inside.mode, &step.host, number)
            }
            EntryContent::Link { target } => state
                .tree
                .stage_link(path, &target.0, number)
                .and_then(|staged| state.tree.place(staged, path, &step.host)),
        };
        if state.is_done(path, changed)? {
            state.received(step, inside.clone(), inside.mode);
        }
    }
    Ok(())
}

/// Splits the files that come back into requests of a bounded size.
pub(super) fn requests(steps: &[PlannedStep]) -> Vec<Vec<PlannedStep>> {
    let mut requests: Vec<Vec<PlannedStep>> = Vec::new();
    let mut bytes = u64::MAX;
    for step in steps.iter().filter(|step| step.action == SyncAction::BringBack) {
        let Some(PresentEntry { content: EntryContent::File { size, .. }, .. }) =
            step.inside_entry()
        else {
            continue;
        };
        let is_full = bytes.saturating_add(*size) > MAX_REQUESTED_BYTES
            || requests.last().is_none_or(|last| last.len() == MAX_REQUESTED_FILES);
        if is_full {
            requests.push(Vec::new());
            bytes = 0;
        }
        bytes += size;
        requests.last_mut().expect("one was pushed").push(step.clone());
    }
    requests
}

/// Requests the contents of files and writes them on the host.
pub(super) async fn receive_files(
    session: &Session,
    inside: &str,
    shared: &SharedSync,
    steps: Vec<PlannedStep>,
    tick: impl FnMut() + Send,
) -> Result<(), SessionError> {
    let files = steps.iter().map(|step| RequestedFile {
        path: Base64Bytes(step.path.as_os_str().as_bytes().to_vec()),
        size: step.inside_entry().map_or(0, |entry| entry.content.bytes()),
    });
    let request = ReadFilesRequest { files: files.collect() };
    let shared = Arc::clone(shared);
    let job = move |mut stream: FileStream| {
        let mut state = shared.lock();
        steps.iter().try_for_each(|step| receive_file(&mut state, step, &mut stream))
    };
    session.files().read_files(inside, &request, tick, job).await
}

fn receive_file(
    state: &mut SyncState,
    step: &PlannedStep,
    stream: &mut FileStream,
) -> Result<(), SessionError> {
    let Some(PresentEntry { content: EntryContent::File { size, digest }, mode }) =
        step.inside_entry()
    else {
        return Ok(());
    };
    let path = &step.path;
    let keep_mode = kept_mode(state, step, *mode);
    let number = state.next_number();
    // A file takes the place of a directory only if the directory is empty, which `place` checks.
    let staged = state.tree.stage_file(path, *mode, keep_mode, number);
    let progress = Arc::clone(&state.progress);
    let mut writer = DigestWriter::new(staged);
    let end = stream
        .next_file(*size, |bytes| {
            progress.add_bytes(bytes.len() as u64);
            writer.write(bytes);
        })
        .map_err(|error| SessionError::Tree { name: shown(path), why: error.to_string() })?;
    progress.add_file();
    let (staged, found) = writer.finish();
    let changed = match staged {
        Err(error) => Err(error),
        Ok(_) if end == FileStreamEnd::Broken || found != (*size, *digest) => {
            state.unsettled += 1;
            state.report.left_out.add(shown(path), CHANGED_INSIDE);
            return Ok(());
        }
        Ok(staged) => {
            let host_mode = staged.mode;
            state.tree.place(staged, path, &step.host).map(|change| (change, host_mode))
        }
    };
    let host_mode = changed.as_ref().map_or(*mode, |(_, mode)| *mode);
    if state.is_done(path, changed.map(|(change, _)| change))? {
        let entry = PresentEntry {
            content: EntryContent::File { size: *size, digest: *digest },
            mode: *mode,
        };
        state.received(step, entry, host_mode);
    }
    Ok(())
}

/// Returns the permissions of the host's file, if the sandbox changed only the content.
fn kept_mode(state: &SyncState, step: &PlannedStep, inside_mode: u32) -> Option<u32> {
    let RecordedEntry { inside_mode: before, .. } = state.record.entry(&step.path)?;
    let host = step.host_entry()?;
    let is_file = matches!(host.content, EntryContent::File { .. });
    (is_file && *before == inside_mode).then_some(host.mode)
}

/// Writer of a staged file that also digests its bytes. After an error the rest is only digested.
struct DigestWriter {
    staged: io::Result<StagedEntry>,
    digest: Sha256,
    size: u64,
}

impl DigestWriter {
    fn new(staged: io::Result<StagedEntry>) -> DigestWriter {
        DigestWriter { staged, digest: Sha256::new(), size: 0 }
    }

    fn write(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
        self.size += bytes.len() as u64;
        if let Ok(StagedEntry { file: Some(file), .. }) = &mut self.staged
            && let Err(error) = file.write_all(bytes)
        {
            self.staged = Err(error);
        }
    }

    fn finish(self) -> (io::Result<StagedEntry>, (u64, FileDigest)) {
        (self.staged, (self.size, self.digest.finalize().into()))
    }
}

impl SyncState {
    /// Tells whether a change of the host's files was made. An obstacle on the host is a conflict
    /// of that path; every other error ends the sync.
    fn is_done(
        &mut self,
        path: &Path,
        changed: io::Result<HostChange>,
    ) -> Result<bool, SessionError> {
        let why = match changed {
            Ok(HostChange::Done) => return Ok(true),
            Ok(HostChange::Conflict(why)) => why,
            Err(error) if is_obstructed(&error) => NO_DIRECTORY,
            Err(source) => {
                let path = self.record.workspace.join(path);
                return Err(SessionError::HostFile { operation: "write", path, source });
            }
        };
        self.report.conflicts.add(shown(path), why);
        Ok(false)
    }

    /// Records an entry that came back.
    fn received(&mut self, step: &PlannedStep, entry: PresentEntry, host_mode: u32) {
        self.report.received.add(shown(&step.path), entry.content.bytes());
        let PresentEntry { content, mode: inside_mode } = entry;
        let recorded = RecordedEntry { content, host_mode, inside_mode, stamp: None };
        self.record.insert(step.path.clone(), recorded);
    }
}
