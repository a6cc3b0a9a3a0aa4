//! Sends the changes of the host into a sandbox: first removes what was removed on the host, and
//! then sends an archive that the guest unpacks.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfence_proto::bytes::Base64Bytes;
use ringfence_proto::tree::RemoveEntriesRequest;
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use super::decision::SyncAction;
use super::entry::{EntryContent, PERMISSIONS, RecordedEntry, deepest_first, shown};
use super::plan::PlannedStep;
use super::{SharedSync, SyncState};
use crate::session::{Session, SessionError};

/// Highest number of entries that are removed at once.
const MAX_REMOVED_ENTRIES: usize = 10_000;
/// Number of bytes that are read from a file at once.
const READ_BYTES: usize = 128 << 10;
/// Length of the blocks of a tar file, in bytes.
const BLOCK_BYTES: u64 = 512;

const KEPT_INSIDE: &str = "it was removed on the host, and could not be removed in the sandbox; a \
                           directory is removed only when it is empty";
const REPLACED_INSIDE: &str =
    "it was replaced on the host, and what is in its place in the sandbox could not be removed";
pub(super) const CHANGED_HERE: &str = "it was changed on the host during the sync";

/// Removes entries in the sandbox, and returns the steps of the archive that can follow.
pub(super) async fn remove_inside(
    session: &Session,
    inside: &str,
    shared: &SharedSync,
    steps: &[PlannedStep],
) -> Result<Vec<PlannedStep>, SessionError> {
    let is_removed = |step: &&PlannedStep| match step.action {
        SyncAction::RemoveInside => true,
        SyncAction::SendIn => step.replaces_kind(),
        _ => false,
    };
    let paths = steps.iter().filter(is_removed).map(|step| step.path.clone()).collect();
    let mut kept: Vec<PathBuf> = Vec::new();
    for batch in deepest_first(paths).chunks(MAX_REMOVED_ENTRIES) {
        let encoded = batch.iter().map(|path| Base64Bytes(path.as_os_str().as_bytes().to_vec()));
        let request = RemoveEntriesRequest { paths: encoded.collect() };
        let positions = session.files().remove_entries(inside, &request).await?;
        let named = positions.into_iter().filter_map(|at| batch.get(usize::try_from(at).ok()?));
        kept.extend(named.cloned());
    }
    kept.sort();
    let is_kept = |path: &Path| kept.binary_search_by(|kept| kept.as_path().cmp(path)).is_ok();
    let mut state = shared.lock();
    let mut sent = Vec::new();
    for step in steps {
        let path = &step.path;
        match step.action {
            SyncAction::RemoveInside if is_kept(path) => {
                state.report.conflicts.add(shown(path), KEPT_INSIDE);
            }
            SyncAction::RemoveInside => {
                state.record.remove(path);
                let bytes = step.inside_entry().map_or(0, |entry| entry.content.bytes());
                state.report.deleted_inside.add(shown(path), bytes);
            }
            SyncAction::SendIn if path.ancestors().any(is_kept) => {
                state.report.conflicts.add(shown(path), REPLACED_INSIDE);
            }
            SyncAction::SendIn => sent.push(step.clone()),
            _ => {}
        }
    }
    Ok(sent)
}

/// Sends entries of the host as one archive. The entries are recorded when the guest has confirmed
/// the whole archive.
pub(super) async fn send_entries(
    session: &Session,
    inside: &str,
    shared: &SharedSync,
    steps: Vec<PlannedStep>,
    tick: impl FnMut(),
) -> Result<(), SessionError> {
    let job = {
        let shared = Arc::clone(shared);
        move |writer: &mut dyn Write| pack(&mut shared.lock(), steps, writer)
    };
    let sent = session.files().send_archive(inside, tick, job).await?;
    let mut state = shared.lock();
    for (path, entry) in sent {
        state.report.sent.add(shown(&path), entry.content.bytes());
        state.record.insert(path, entry);
    }
    Ok(())
}

fn pack(
    state: &mut SyncState,
    steps: Vec<PlannedStep>,
    writer: &mut dyn Write,
) -> Result<Vec<(PathBuf, RecordedEntry)>, SessionError> {
    let mut tar = Builder::new(writer);
    let mut sent = Vec::with_capacity(steps.len());
    let workspace = state.record.workspace.clone();
    for step in steps {
        let path = step.path.clone();
        match pack_entry(state, &step, &mut tar) {
            Ok(Some(entry)) => sent.push((path, entry)),
            Ok(None) => {
                state.unsettled += 1;
                state.report.left_out.add(shown(&path), CHANGED_HERE);
            }
            Err(source) => {
                let path = workspace.join(path);
                return Err(SessionError::HostFile { operation: "send", path, source });
            }
        }
    }
    let ended = tar.into_inner().and_then(|writer| writer.flush());
    ended.map_err(|source| SessionError::HostFile {
        operation: "send",
        path: workspace,
        source,
    })?;
    Ok(sent)
}

/// Packs one entry, and returns what the sandbox then has. Returns `None` if the host no longer has
/// such an entry.
fn pack_entry(
    state: &mut SyncState,
    step: &PlannedStep,
    tar: &mut Builder<&mut dyn Write>,
) -> io::Result<Option<RecordedEntry>> {
    let Some(host) = step.host_entry() else { return Ok(None) };
    let (path, mode) = (&step.path, host.mode);
    let (content, stamp) = match &host.content {
        EntryContent::Directory => {
            let mut header = header(EntryType::Directory, mode, 0, 0);
            tar.append_data(&mut header, path, io::empty())?;
            (EntryContent::Directory, None)
        }
        EntryContent::Link { target } => {
            let mut header = header(EntryType::Symlink, mode, 0, 0);
            tar.append_link(&mut header, path, std::ffi::OsStr::from_bytes(&target.0))?;
            (host.content.clone(), None)
        }
        EntryContent::File { .. } => {
            let Ok((file, stat)) = state.tree.open_file(path) else { return Ok(None) };
            let size = u64::try_from(stat.st_size).unwrap_or_default();
            let mut header = header(EntryType::Regular, mode, size, stat.st_mtime);
            tar.append_data(&mut header, path, io::empty())?;
            let content = pack_content(state, file, size, tar.get_mut())?;
            let stamp = (content == host.content).then(|| state.stamps.get(path).copied());
            (content, stamp.flatten())
        }
    };
    Ok(Some(RecordedEntry { content, host_mode: mode, inside_mode: mode, stamp }))
}

/// Packs as many bytes of a file as its header promised, and returns the content that the sandbox
/// gets. A file that has grown is cut, and one that has shrunk is filled up with zeros. The next
/// sync then finds that the host's file differs, and sends it again.
fn pack_content(
    state: &SyncState,
    mut file: File,
    size: u64,
    writer: &mut dyn Write,
) -> io::Result<EntryContent> {
    let mut buffer = vec![0; READ_BYTES];
    let mut digest = Sha256::new();
    let mut left = size;
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(READ_BYTES);
        let mut read = file.read(&mut buffer[..most])?;
        if read == 0 {
            buffer.fill(0);
            read = most;
        }
        digest.update(&buffer[..read]);
        writer.write_all(&buffer[..read])?;
        left -= read as u64;
        state.progress.add_bytes(read as u64);
    }
    state.progress.add_file();
    let padding = size.next_multiple_of(BLOCK_BYTES) - size;
    io::copy(&mut io::repeat(0).take(padding), writer)?;
    Ok(EntryContent::File { size, digest: digest.finalize().into() })
}

fn header(kind: EntryType, mode: u32, size: u64, modified: i64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode & PERMISSIONS);
    header.set_mtime(u64::try_from(modified).unwrap_or_default());
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(size);
    header
}
