//! What was let out and what was not, for whoever asks later: a line of JSON for each, in the user's own state.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use fs_err::os::unix::fs::OpenOptionsExt;
use jiff::Timestamp;
use ringfence_core::result::Denial;
use ringfence_egress::Event;
use serde::{Deserialize, Serialize};

use super::{MOST_DENIALS, told};
use crate::{Host, untrusted};

/// What the log is called.
const NAME: &str = "egress.jsonl";
/// What it is called when a new one was begun.
pub(super) const OLD: &str = "egress.jsonl.1";
/// How long it may get before a new one is begun, in bytes.
pub(super) const LONGEST: u64 = 8 << 20;
/// How many lines one sandbox may write: code inside decides how much there is to tell.
const MOST_LINES: u32 = 10_000;

/// One line of the log.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Entry {
    /// When.
    pub time: String,
    /// In which sandbox, if it is one that stays.
    pub sandbox: Option<String>,
    /// With which workspace.
    pub workspace: PathBuf,
    /// What.
    pub event: Event,
}

impl Entry {
    /// When, if that can be read.
    pub fn time(&self) -> Option<std::time::SystemTime> {
        self.time.parse::<Timestamp>().ok().map(Into::into)
    }
}

/// Where one sandbox's events are written.
#[derive(Debug)]
pub(crate) struct Log {
    path: Option<PathBuf>,
    sandbox: Option<String>,
    workspace: PathBuf,
    /// Whether what is let out is written down, too.
    observes: bool,
    written: Mutex<Written>,
}

#[derive(Debug, Default)]
struct Written {
    file: Option<fs_err::File>,
    lines: u32,
}

impl Log {
    /// The log of a user, for one sandbox of theirs.
    pub(crate) fn of(host: &Host, sandbox: Option<String>, workspace: &Path, observes: bool) -> Log {
        Log { path: log_of(host), sandbox, workspace: workspace.into(), observes, written: Mutex::default() }
    }

    /// Writes one event down. Where that fails the event was still acted on, and is in the result.
    pub(crate) fn write(&self, event: &Event) {
        if !self.observes && !matches!(event, Event::Denied(_)) {
            return;
        }
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(path) = self.path.as_ref().filter(|_| written.lines < MOST_LINES) else { return };
        if written.file.is_none() {
            written.file = open(path).inspect_err(|error| tracing::warn!(%error, "cannot open the egress log")).ok();
        }
        let entry = Entry {
            time: Timestamp::now().to_string(),
            sandbox: self.sandbox.clone(),
            workspace: self.workspace.clone(),
            event: event.clone(),
        };
        let Ok(mut line) = serde_json::to_vec(&entry) else { return }; // a workspace that is not text
        line.push(b'\n');
        written.lines += 1;
        if let Some(file) = &mut written.file {
            let _ = file.write_all(&line); // the disk is full: the proxy goes on
        }
    }
}

/// Opens the log for one more line, and begins a new one when it has grown long.
fn open(path: &Path) -> std::io::Result<fs_err::File> {
    fs_err::create_dir_all(path.parent().unwrap_or(path))?;
    if length(path) > LONGEST {
        fs_err::rename(path, path.with_file_name(OLD))?;
    }
    fs_err::OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// Where the log of a user is.
pub(crate) fn log_of(host: &Host) -> Option<PathBuf> {
    Some(host.state_directory()?.join(NAME))
}

/// How long a log is, in bytes.
pub(crate) fn length(log: &Path) -> u64 {
    fs_err::metadata(log).map_or(0, |log| log.len())
}

/// What a sandbox was denied, by what stands in a log beyond its first `start` bytes; one that has grown too long to
/// read, or was begun anew, tells nothing.
pub(crate) fn denials_since(log: &Path, start: u64, sandbox: &str) -> Vec<Denial> {
    let text = untrusted::read_from(log, start, 2 * LONGEST).unwrap_or_default();
    let entries = text.lines().filter_map(|line| serde_json::from_str::<Entry>(line).ok());
    let denials =
        entries.filter(|entry| entry.sandbox.as_deref() == Some(sandbox)).filter_map(|entry| match entry.event {
            Event::Denied(denial) => Some(told(denial)),
            _ => None,
        });
    denials.take(MOST_DENIALS).collect()
}

/// What the log of a user tells, oldest first; a line that cannot be read is left out.
pub fn recorded(host: &Host) -> std::io::Result<Vec<Entry>> {
    let Some(log) = log_of(host) else { return Ok(Vec::new()) };
    let mut entries = Vec::new();
    for path in [log.with_file_name(OLD), log] {
        let file = match fs_err::File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let text = untrusted::text(file.into(), 2 * LONGEST)?;
        entries.extend(text.lines().filter_map(|line| serde_json::from_str(line).ok()));
    }
    Ok(entries)
}
