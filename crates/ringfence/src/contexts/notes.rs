//! Notes of contexts that outlive the process that started them: files in the sandbox directory of
//! their sandbox.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, open, openat, renameat, unlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::process::HarnessProcess;

/// Directory of the notes, below the sandbox directory.
const NOTES_DIRECTORY: &str = "contexts";
/// Suffix of a note's file name; a file without it was not written completely.
const NOTE_SUFFIX: &str = ".json";
/// Highest number of bytes that are read of a note.
const MAX_NOTE_BYTES: u64 = 64 << 10;
/// Longest wait for a process that is just ending to release the lock; `POLL_INTERVAL` is the pause
/// between two attempts.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Notes of a sandbox, locked by the one process that has its contexts.
#[derive(Debug)]
pub(super) struct ContextNotes {
    path: PathBuf,
    /// Locked directory. Files are written through this descriptor, because its path may lead to
    /// another sandbox's directory later.
    directory: OwnedFd,
}

/// Record of a context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ContextNote {
    pub(super) id: String,
    pub(super) language: String,
    /// Directory that the caller asked for.
    pub(super) directory: Option<String>,
    /// True if the context is the usual one of its language, which runs cells that name no context.
    pub(super) is_usual: bool,
    pub(super) started: Timestamp,
    pub(super) process: ProcessTrace,
}

/// Data by which the process of a context is found, and its progress.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProcessTrace {
    pub(super) pid: u32,
    /// Tag that the guest knows the process by, too, because process ids are reused.
    pub(super) tag: String,
    pub(super) mark: String,
    /// Number of cells that the process was sent.
    pub(super) cells: u64,
    /// True if the last cell may have been sent only in part.
    #[serde(rename = "is_half_told")]
    pub(super) is_partly_sent: bool,
}

impl ContextNotes {
    /// Locks the notes of the sandbox whose directory is `sandbox_dir`. Returns an error of the
    /// kind `WouldBlock` if another process has them.
    pub(super) async fn take(sandbox_dir: &Path) -> io::Result<ContextNotes> {
        let path = sandbox_dir.join(NOTES_DIRECTORY);
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = open(&path, flags, Mode::empty())?;
        let deadline = Instant::now() + LOCK_TIMEOUT;
        while let Err(error) = flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            if error != Errno::WOULDBLOCK || Instant::now() > deadline {
                return Err(error.into());
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(ContextNotes { path, directory })
    }

    /// Returns all notes in the order of their start. A note that cannot be parsed is left out.
    pub(super) fn all(&self) -> io::Result<Vec<ContextNote>> {
        let mut notes = Vec::new();
        for entry in fs_err::read_dir(&self.path)? {
            let entry = entry?;
            if !entry.file_name().to_str().is_some_and(|name| name.ends_with(NOTE_SUFFIX)) {
                continue;
            }
            let mut text = Vec::new();
            fs_err::File::open(entry.path())?.take(MAX_NOTE_BYTES).read_to_end(&mut text)?;
            match serde_json::from_slice(&text) {
                Ok(note) => notes.push(note),
                Err(error) => {
                    tracing::warn!(path = %entry.path().display(), %error, "the note of a context \
                                                                            cannot be used")
                }
            }
        }
        notes.sort_by_key(|note: &ContextNote| note.started);
        Ok(notes)
    }

    /// Writes a note completely or not at all.
    fn write(&self, note: &ContextNote) -> io::Result<()> {
        let temporary = format!(".{}", note.id);
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.directory, &temporary, flags, Mode::RUSR | Mode::WUSR)?;
        std::fs::File::from(file).write_all(&serde_json::to_vec(note)?)?;
        Ok(renameat(&self.directory, &temporary, &self.directory, file_of(&note.id))?)
    }

    /// Removes the note of a context.
    pub(super) fn remove(&self, id: &str) -> io::Result<()> {
        match unlinkat(&self.directory, file_of(id), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn file_of(id: &str) -> String {
    format!("{id}{NOTE_SUFFIX}")
}

/// Note of a context of this process.
#[derive(Debug)]
pub(super) struct NotedContext {
    notes: Arc<ContextNotes>,
    note: Mutex<ContextNote>,
}

impl NotedContext {
    pub(super) fn new(notes: Arc<ContextNotes>, note: ContextNote) -> NotedContext {
        NotedContext { notes, note: Mutex::new(note) }
    }

    /// Records the process that runs the context from now on.
    pub(super) fn record_process(&self, process: &HarnessProcess, tag: String) -> io::Result<()> {
        let mut note = self.note.lock().unwrap_or_else(PoisonError::into_inner);
        let (pid, mark) = (process.execution.pid(), process.mark.clone());
        note.process = ProcessTrace { pid, tag, mark, cells: process.cells, is_partly_sent: false };
        self.notes.write(&note)
    }

    /// Records the number of cells that the process with `mark` was sent, and whether the last may
    /// be sent only in part.
    pub(super) fn record_cells(
        &self,
        mark: &str,
        cells: u64,
        is_partly_sent: bool,
    ) -> io::Result<()> {
        let mut note = self.note.lock().unwrap_or_else(PoisonError::into_inner);
        if note.process.mark != mark {
            return Ok(()); // another process has replaced it
        }
        (note.process.cells, note.process.is_partly_sent) = (cells, is_partly_sent);
        self.notes.write(&note)
    }

    /// Removes the note.
    pub(super) fn forget(&self) -> io::Result<()> {
        let note = self.note.lock().unwrap_or_else(PoisonError::into_inner);
        self.notes.remove(&note.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(id: &str, second: i64) -> ContextNote {
        let process = ProcessTrace {
            pid: 7,
            tag: "tag".to_owned(),
            mark: "mark".to_owned(),
            cells: 0,
            is_partly_sent: false,
        };
        let started = Timestamp::from_second(second).unwrap();
        let (id, language) = (id.to_owned(), "python".to_owned());
        ContextNote { id, language, directory: None, is_usual: true, started, process }
    }

    #[tokio::test]
    async fn notes_are_found_by_the_next_process_and_by_one_at_a_time() {
        let sandbox_dir = tempfile::tempdir().unwrap();
        let notes = Arc::new(ContextNotes::take(sandbox_dir.path()).await.unwrap());
        let (first, second) = (note("b", 1), note("a", 2));
        notes.write(&second).unwrap();
        notes.write(&first).unwrap();
        let noted = NotedContext::new(Arc::clone(&notes), first.clone());
        noted.record_cells("mark", 3, true).unwrap();
        noted.record_cells("an earlier one's", 9, false).unwrap();
        fs_err::write(sandbox_dir.path().join("contexts/.c"), "{").unwrap();
        fs_err::write(sandbox_dir.path().join("contexts/d.json"), "{").unwrap();
        let held = ContextNotes::take(sandbox_dir.path()).await.unwrap_err();
        assert_eq!(held.kind(), io::ErrorKind::WouldBlock);
        drop((noted, notes));
        let notes = ContextNotes::take(sandbox_dir.path()).await.unwrap();
        let mut found = notes.all().unwrap();
        assert_eq!((found[0].process.cells, found[0].process.is_partly_sent), (3, true));
        found[0].process = first.process.clone();
        assert_eq!(found, [first, second]);
        notes.remove("a").unwrap();
        notes.remove("a").unwrap();
        assert_eq!(notes.all().unwrap().len(), 1);
    }
}
