//! What is written down of contexts that outlive the process that started them, in the room of their sandbox.

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

use super::process::Process;

/// The directory of a room that they are in.
const DIRECTORY: &str = "contexts";
/// What the name of one ends with; another file is one that was not written to its end.
const SUFFIX: &str = ".json";
/// The longest that is read.
const LONGEST: u64 = 64 << 10;
/// How long a process that is just ending may hold them, and how often that is looked at.
const PATIENCE: Duration = Duration::from_secs(2);
const MOMENT: Duration = Duration::from_millis(10);

/// The notes of a sandbox, held by the one process that has its contexts.
#[derive(Debug)]
pub(super) struct Notes {
    path: PathBuf,
    /// Locked. Files are made by way of it: at its path there may be another sandbox's by then.
    directory: OwnedFd,
}

/// What is written down of a context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    pub(super) id: String,
    pub(super) language: String,
    /// The directory that was asked for.
    pub(super) directory: Option<String>,
    /// Whether it is the one of its language that is used when none is named.
    pub(super) is_usual: bool,
    pub(super) started: Timestamp,
    pub(super) process: Trace,
}

/// What the process of a context is found by, and what is known of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Trace {
    pub(super) pid: u32,
    /// The guest knows it by this, too: ids are used again.
    pub(super) tag: String,
    pub(super) mark: String,
    /// How many cells it was given.
    pub(super) cells: u64,
    /// Whether the last of them may have been told in part.
    pub(super) is_half_told: bool,
}

impl Notes {
    /// Takes the notes of the sandbox whose room is at `room`; an error of the kind `WouldBlock` when another process
    /// has them.
    pub(super) async fn take(room: &Path) -> io::Result<Notes> {
        let path = room.join(DIRECTORY);
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = open(&path, flags, Mode::empty())?;
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            if error != Errno::WOULDBLOCK || Instant::now() > deadline {
                return Err(error.into());
            }
            sleep(MOMENT).await;
        }
        Ok(Notes { path, directory })
    }

    /// All of them, in the order of their start. One that cannot be read is left out.
    pub(super) fn all(&self) -> io::Result<Vec<Note>> {
        let mut notes = Vec::new();
        for entry in fs_err::read_dir(&self.path)? {
            let entry = entry?;
            if !entry.file_name().to_str().is_some_and(|name| name.ends_with(SUFFIX)) {
                continue;
            }
            let mut text = Vec::new();
            fs_err::File::open(entry.path())?.take(LONGEST).read_to_end(&mut text)?;
            match serde_json::from_slice(&text) {
                Ok(note) => notes.push(note),
                Err(error) => {
                    tracing::warn!(path = %entry.path().display(), %error, "a note of a context is of no use")
                }
            }
        }
        notes.sort_by_key(|note: &Note| note.started);
        Ok(notes)
    }

    /// Writes one down, whole or not at all.
    fn write(&self, note: &Note) -> io::Result<()> {
        let temporary = format!(".{}", note.id);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.directory, &temporary, flags, Mode::RUSR | Mode::WUSR)?;
        std::fs::File::from(file).write_all(&serde_json::to_vec(note)?)?;
        Ok(renameat(&self.directory, &temporary, &self.directory, file_of(&note.id))?)
    }

    /// Removes that of a context.
    pub(super) fn remove(&self, id: &str) -> io::Result<()> {
        match unlinkat(&self.directory, file_of(id), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn file_of(id: &str) -> String {
    format!("{id}{SUFFIX}")
}

/// The note of a context that is there.
#[derive(Debug)]
pub(super) struct Noted {
    notes: Arc<Notes>,
    note: Mutex<Note>,
}

impl Noted {
    pub(super) fn new(notes: Arc<Notes>, note: Note) -> Noted {
        Noted { notes, note: Mutex::new(note) }
    }

    /// Notes the process that has this tag from now on.
    pub(super) fn begins(&self, process: &Process, tag: String) -> io::Result<()> {
        let mut note = self.note.lock().unwrap_or_else(PoisonError::into_inner);
        let (pid, mark) = (process.execution.pid(), process.mark.clone());
        note.process = Trace { pid, tag, mark, cells: process.cells, is_half_told: false };
        self.notes.write(&note)
    }

    /// Notes that the process with a mark is given the cell of a number, and may be left with half of it.
    pub(super) fn tells(&self, mark: &str, cells: u64, is_half_told: bool) -> io::Result<()> {
        let mut note = self.note.lock().unwrap_or_else(PoisonError::into_inner);
        if note.process.mark != mark {
            return Ok(()); // another has taken its place
        }
        (note.process.cells, note.process.is_half_told) = (cells, is_half_told);
        self.notes.write(&note)
    }

    /// Removes it.
    pub(super) fn forget(&self) -> io::Result<()> {
        let note = self.note.lock().unwrap_or_else(PoisonError::into_inner);
        self.notes.remove(&note.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(id: &str, second: i64) -> Note {
        let process = Trace { pid: 7, tag: "tag".to_owned(), mark: "mark".to_owned(), cells: 0, is_half_told: false };
        let started = Timestamp::from_second(second).unwrap();
        let (id, language) = (id.to_owned(), "python".to_owned());
        Note { id, language, directory: None, is_usual: true, started, process }
    }

    #[tokio::test]
    async fn notes_are_found_by_the_next_process_and_by_one_at_a_time() {
        let room = tempfile::tempdir().unwrap();
        let notes = Arc::new(Notes::take(room.path()).await.unwrap());
        let (first, second) = (note("b", 1), note("a", 2));
        notes.write(&second).unwrap();
        notes.write(&first).unwrap();
        let noted = Noted::new(Arc::clone(&notes), first.clone());
        noted.tells("mark", 3, true).unwrap();
        noted.tells("an earlier one's", 9, false).unwrap();
        fs_err::write(room.path().join("contexts/.c"), "{").unwrap();
        fs_err::write(room.path().join("contexts/d.json"), "{").unwrap();
        let held = Notes::take(room.path()).await.unwrap_err();
        assert_eq!(held.kind(), io::ErrorKind::WouldBlock);
        drop((noted, notes));
        let notes = Notes::take(room.path()).await.unwrap();
        let mut found = notes.all().unwrap();
        assert_eq!((found[0].process.cells, found[0].process.is_half_told), (3, true));
        found[0].process = first.process.clone();
        assert_eq!(found, [first, second]);
        notes.remove("a").unwrap();
        notes.remove("a").unwrap();
        assert_eq!(notes.all().unwrap().len(), 1);
    }
}
