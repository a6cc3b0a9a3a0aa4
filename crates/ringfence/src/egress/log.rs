//! Egress logs: denied connections, and connections that were let out under observation, as lines
//! of JSON.
//!
//! A sandbox that stays has a log in its own directory, which no other sandbox can fill. This log
//! keeps the first events and the last ones. It numbers all events, so that the number of missing
//! ones is known. When the sandbox ends, its log is handed over to the log of its user. Runs of one
//! command write to the user's log, too. There each writer has a bounded share, and events beyond
//! the share are counted. Code in a sandbox decides how many events there are. It can neither fill
//! the disk nor remove an earlier denial without a trace.

use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use fs_err::os::unix::fs::OpenOptionsExt;
use jiff::Timestamp;
use ringfence_core::result::Denial;
use ringfence_egress::{DenialReason, EgressEvent};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::gate_holder::{MAX_LISTED_DENIALS, add_uncounted, convert_denial};
use crate::Host;
use crate::sandbox::directory::SandboxDirs;

/// File name of a log's current part.
const CURRENT_FILE: &str = "egress.jsonl";
/// File name of a log's previous part.
const PREVIOUS_FILE: &str = "egress.jsonl.1";
/// File name of the first part of a sandbox's log.
const FIRST_FILE: &str = "egress.jsonl.first";
/// Length at which a new part of a user's log is begun, in bytes.
const MAX_PART_BYTES: u64 = 8 << 20;
/// Length at which a new part of a sandbox's log is begun, in bytes.
const MAX_SANDBOX_PART_BYTES: u64 = 1 << 20;
/// Highest number of bytes that one run, or one sandbox that has ended, adds to its user's log.
const MAX_SHARE_BYTES: u64 = 1 << 20;
/// Longest line, in bytes.
const MAX_LINE_BYTES: u64 = 8 << 10;
/// Longest text of a client in an event that would not fit into a line, in characters.
const MAX_TEXT_CHARS: usize = 300;
/// Highest number of bytes of a part that are read, from its end. A part can be longer than its
/// limit, because processes that had it open wrote on.
const MAX_READ_BYTES: u64 = 64 << 20;

/// One line of the log.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LogEntry {
    /// Time of the event, in RFC 3339.
    pub time: String,
    /// Name of the sandbox, if it is one that stays.
    pub sandbox: Option<String>,
    /// Workspace of the sandbox.
    pub workspace: PathBuf,
    /// Event that the proxy reported.
    pub event: EgressEvent,
    /// Position among all events of a sandbox that stays, from 1 on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
}

impl LogEntry {
    /// Returns the time of the event, if it can be parsed.
    pub fn time(&self) -> Option<std::time::SystemTime> {
        self.time.parse::<Timestamp>().ok().map(Into::into)
    }
}

/// Line that stands for omitted events.
#[derive(Debug, Serialize, Deserialize)]
struct Omission {
    time: String,
    omitted: u64,
}

/// Events in the logs of a user.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct RecordedEvents {
    /// Events, oldest first.
    pub entries: Vec<LogEntry>,
    /// Number of events that were not kept.
    pub omitted: u64,
}

/// Log of one sandbox's events.
#[derive(Debug)]
pub(crate) struct EgressLog {
    sandbox: Option<String>,
    workspace: PathBuf,
    /// True if connections that are let out are logged, too.
    observes: bool,
    sink: Mutex<Option<LogSink>>,
}

#[derive(Debug)]
enum LogSink {
    Shared(SharedLog),
    Own(OwnLog),
}

impl EgressLog {
    /// Returns the log for one sandbox of a user: its own log if the sandbox stays, and otherwise a
    /// share of the user's log.
    pub(crate) fn for_sandbox(
        host: &Host,
        sandbox: Option<String>,
        workspace: &Path,
        observes: bool,
    ) -> EgressLog {
        let directory = sandbox.as_deref().and_then(|name| directory_of(host, name));
        let sink = match (&sandbox, directory) {
            (Some(_), Some(directory)) => Some(LogSink::Own(OwnLog::new(&directory))),
            _ => host.state_directory().map(|state| LogSink::Shared(SharedLog::new(&state))),
        };
        EgressLog { sandbox, workspace: workspace.into(), observes, sink: Mutex::new(sink) }
    }

    /// Writes one event. If the write fails, the event was still acted on, and is in the result.
    pub(crate) fn write(&self, event: &EgressEvent) {
        if !self.observes && !matches!(event, EgressEvent::Denied(_) | EgressEvent::Omitted { .. })
        {
            return;
        }
        let entry = LogEntry {
            time: Timestamp::now().to_string(),
            sandbox: self.sandbox.clone(),
            workspace: self.workspace.clone(),
            event: event.clone(),
            number: None,
        };
        match &mut *self.sink.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(LogSink::Shared(log)) => log.write(entry),
            Some(LogSink::Own(log)) => log.write(entry),
            None => {}
        }
    }
}

/// Returns the directory of a sandbox that stays.
fn directory_of(host: &Host, sandbox: &str) -> Option<PathBuf> {
    let name = crate::sandbox::directory::Name::new(sandbox).ok()?;
    SandboxDirs::for_host(host).ok().map(|sandbox_dirs| sandbox_dirs.path(&name))
}

/// Returns the path of the log of the sandbox with this directory.
pub(crate) fn log_in(directory: &Path) -> PathBuf {
    directory.join(CURRENT_FILE)
}

/// Returns the paths of the parts of a log, oldest first.
fn parts_of(log: &Path) -> [PathBuf; 3] {
    [log.with_file_name(FIRST_FILE), log.with_file_name(PREVIOUS_FILE), log.to_owned()]
}

/// Returns the paths of the parts of a sandbox's log, oldest first; `None` if there can be no log.
pub(super) fn parts_of_sandbox(host: &Host, sandbox: &str) -> Option<[PathBuf; 3]> {
    directory_of(host, sandbox).map(|directory| parts_of(&log_in(&directory)))
}

/// Serialises a line. Returns `None` if the workspace is not valid text or the line stays too long.
fn serialize_line(mut entry: LogEntry) -> Option<Vec<u8>> {
    let spell = |entry: &LogEntry| serde_json::to_vec(entry).ok();
    let mut line = spell(&entry)?;
    if line.len() as u64 >= MAX_LINE_BYTES {
        shorten(&mut entry.event);
        line = spell(&entry)?;
    }
    line.push(b'\n');
    (line.len() as u64 <= MAX_LINE_BYTES).then_some(line)
}

/// Shortens the text of a client in an event.
fn shorten(event: &mut EgressEvent) {
    let shorten = |text: &mut String| *text = text.chars().take(MAX_TEXT_CHARS).collect();
    match event {
        EgressEvent::Denied(denial) => {
            shorten(&mut denial.target);
            match &mut denial.reason {
                DenialReason::Malformed { fault } => shorten(fault),
                DenialReason::OtherName { name } => shorten(name),
                _ => {}
            }
        }
        EgressEvent::Allowed(passage) => shorten(&mut passage.target),
        _ => {}
    }
}

fn open_part(path: &Path) -> io::Result<fs_err::File> {
    fs_err::OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// Log of a sandbox that stays, which only one process writes.
#[derive(Debug)]
struct OwnLog {
    path: PathBuf,
    /// Part that is written, and its length in bytes.
    part: Option<(fs_err::File, u64)>,
    /// Number of the last event.
    number: u64,
}

impl OwnLog {
    fn new(directory: &Path) -> OwnLog {
        let path = log_in(directory);
        let number = last_number(&path);
        OwnLog { path, part: None, number }
    }

    fn write(&mut self, entry: LogEntry) {
        // An event that cannot be written still takes a number, so that the gap shows that it is
        // missing.
        self.number += 1;
        let Some(line) = serialize_line(LogEntry { number: Some(self.number), ..entry }) else {
            return;
        };
        let written = self.append(&line);
        if let Err(error) = written {
            self.part = None;
            tracing::warn!(%error, "cannot write the egress log of a sandbox");
        }
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let length = line.len() as u64;
        if self.part.as_ref().is_some_and(|(_, written)| written + length > MAX_SANDBOX_PART_BYTES)
        {
            self.part = None;
            let [first, old, _] = parts_of(&self.path);
            // The first part stays, so that a flood of events cannot remove the events before it.
            let to = if first.exists() { old } else { first };
            fs_err::rename(&self.path, to)?;
        }
        let (file, written) = match &mut self.part {
            Some(part) => part,
            None => {
                let file = open_part(&self.path)?;
                let length = file.metadata()?.len();
                self.part.insert((file, length))
            }
        };
        file.write_all(line)?;
        *written += length;
        Ok(())
    }
}

/// Share of one writer in a user's log.
#[derive(Debug)]
struct SharedLog {
    path: PathBuf,
    file: Option<fs_err::File>,
    written: u64,
    /// Number of omitted events that no line reports yet.
    omitted: u64,
    /// Number of omitted events at which the next line reports them.
    told_at: u64,
}

impl SharedLog {
    fn new(state: &Path) -> SharedLog {
        SharedLog { path: state.join(CURRENT_FILE), file: None, written: 0, omitted: 0, told_at: 1 }
    }

    fn write(&mut self, entry: LogEntry) {
        match serialize_line(entry) {
            Some(line) if self.written + line.len() as u64 <= MAX_SHARE_BYTES => self.append(&line),
            _ => self.omit(1),
        }
    }

    /// Counts events that are not written. The number of events between two lines that report them
    /// doubles each time. Therefore a process that is killed leaves at least half of the count, and
    /// a flood leaves few lines.
    fn omit(&mut self, events: u64) {
        self.omitted += events;
        if self.omitted >= self.told_at {
            self.report_omitted();
            self.told_at = self.told_at.saturating_mul(2);
        }
    }

    fn report_omitted(&mut self) {
        if let Some(line) = omission(std::mem::take(&mut self.omitted)) {
            self.append(&line);
        }
    }

    fn append(&mut self, line: &[u8]) {
        self.written += line.len() as u64;
        if let Err(error) = self.append_to_current_part(line) {
            // The disk may be full. The proxy continues without this line.
            tracing::warn!(%error, "cannot write the egress log");
            self.file = None;
        }
    }

    /// Appends a line to the part that has the log's name now. Since the last event, other runs may
    /// have begun a new part, and deleted the part that this run wrote to.
    fn append_to_current_part(&mut self, line: &[u8]) -> io::Result<()> {
        loop {
            let file = match &mut self.file {
                Some(file) => file,
                None => self.file.insert(open_shared(&self.path)?),
            };
            // Another run needs an exclusive lock on this part to begin a new one. So the part
            // keeps its name until this run unlocks it.
            flock(&*file, FlockOperation::LockShared)?;
            if has_path(file, &self.path)? {
                let written = file.write_all(line);
                flock(&*file, FlockOperation::Unlock)?;
                return written;
            }
            self.file = None;
        }
    }
}

/// Tells whether `path` leads to the open file `file`.
fn has_path(file: &fs_err::File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    match fs_err::metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (own.dev(), own.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl Drop for SharedLog {
    fn drop(&mut self) {
        self.report_omitted();
    }
}

/// Returns the line that reports omitted events; `None` if there are none.
fn omission(omitted: u64) -> Option<Vec<u8>> {
    if omitted == 0 {
        return None;
    }
    let mut line =
        serde_json::to_vec(&Omission { time: Timestamp::now().to_string(), omitted }).ok()?;
    line.push(b'\n');
    Some(line)
}

/// Opens a user's log for one more line, and begins a new part when the current part is too long.
/// The new part counts the events of the oldest part, which is replaced.
fn open_shared(path: &Path) -> io::Result<fs_err::File> {
    fs_err::create_dir_all(path.parent().unwrap_or(path))?;
    loop {
        let mut file = open_part(path)?;
        if file.metadata()?.len() <= MAX_PART_BYTES {
            return Ok(file);
        }
        // One writer at a time, because a second one would rename the part that the first has just
        // begun.
        flock(&file, FlockOperation::LockExclusive)?;
        if has_path(&file, path)? {
            let old = path.with_file_name(PREVIOUS_FILE);
            let gone = read_part(&old)?;
            fs_err::rename(path, &old)?;
            file = open_part(path)?;
            if let Some(line) = omission(gone.omitted + gone.entries.len() as u64) {
                file.write_all(&line)?;
            }
            return Ok(file);
        }
    }
}

/// Hands over the log of a sandbox, whose directory is about to be cleared, to its user's log in
/// `state`. The first and the last events are kept.
pub(crate) fn hand_over(directory: &Path, state: &Path) {
    let recorded = match read_numbered(&log_in(directory)) {
        Ok(recorded) => recorded,
        Err(error) => {
            return tracing::warn!(%error, "cannot read the egress log of a sandbox that ends");
        }
    };
    let lines: Vec<Vec<u8>> = recorded.entries.into_iter().filter_map(serialize_line).collect();
    let mut log = SharedLog::new(state);
    let first = count_fitting(lines.iter());
    let last = count_fitting(lines[first..].iter().rev());
    for line in &lines[..first] {
        log.append(line);
    }
    log.omit(recorded.omitted + (lines.len() - first - last) as u64);
    for line in &lines[lines.len() - last..] {
        log.append(line);
    }
}

/// Returns the number of lines that fit into half a share, besides the line that reports the
/// omitted ones.
fn count_fitting<'a>(lines: impl Iterator<Item = &'a Vec<u8>>) -> usize {
    let most = MAX_SHARE_BYTES / 2 - MAX_LINE_BYTES;
    let lengths = lines.scan(0, |sum, line| {
        *sum += line.len() as u64;
        Some(*sum)
    });
    lengths.take_while(|sum| *sum <= most).count()
}

/// Returns the number of the last event in a sandbox's log.
pub(crate) fn last_number(log: &Path) -> u64 {
    let last = |path: PathBuf| -> Option<u64> {
        let mut file = fs_err::File::open(path).ok()?;
        let length = file.metadata().ok()?.len();
        // Long enough for a complete line before a line that is being written.
        file.seek(SeekFrom::Start(length.saturating_sub(2 * MAX_LINE_BYTES))).ok()?;
        let mut tail = Vec::new();
        file.take(2 * MAX_LINE_BYTES).read_to_end(&mut tail).ok()?;
        let whole = &tail[..tail.iter().rposition(|byte| *byte == b'\n')?];
        let line = whole.rsplit(|byte| *byte == b'\n').next()?;
        serde_json::from_slice::<LogEntry>(line).ok()?.number
    };
    parts_of(log).into_iter().rev().find_map(last).unwrap_or(0)
}

/// Returns the denials in a sandbox's log after the event with the number `start`.
pub(crate) fn denials_since(log: &Path, start: u64, sandbox: &str) -> Vec<Denial> {
    let read = read_numbered(log)
        .inspect_err(|error| tracing::warn!(%error, "cannot read the egress log of a sandbox"));
    let recent = |entry: &LogEntry| {
        entry.number.unwrap_or(0) > start && entry.sandbox.as_deref() == Some(sandbox)
    };
    let entries: Vec<LogEntry> =
        read.unwrap_or_default().entries.into_iter().filter(recent).collect();
    // A missing event is older than those in the log, or was never written.
    let last = last_number(log).max(start);
    let missing = (last - start).saturating_sub(entries.len() as u64);
    let mut omitted = 0;
    let mut denials = entries.into_iter().filter_map(|entry| match entry.event {
        EgressEvent::Denied(denial) => Some(convert_denial(denial)),
        EgressEvent::Omitted { denials } => {
            omitted += denials;
            None
        }
        _ => None,
    });
    let kept: Vec<Denial> = denials.by_ref().take(MAX_LISTED_DENIALS).collect();
    let more = denials.count() as u64;
    add_uncounted(kept, missing + more + omitted)
}

/// Reads the logs of a user and of the user's sandboxes.
pub fn recorded(host: &Host) -> io::Result<RecordedEvents> {
    let Some(state) = host.state_directory() else { return Ok(RecordedEvents::default()) };
    let mut recorded = RecordedEvents::default();
    for path in [state.join(PREVIOUS_FILE), state.join(CURRENT_FILE)] {
        recorded.add(read_part(&path)?);
    }
    if let Ok(sandbox_dirs) = SandboxDirs::for_host(host) {
        for name in sandbox_dirs.names() {
            recorded.add(read_numbered(&log_in(&sandbox_dirs.path(&name)))?);
        }
    }
    recorded.entries.sort_by_key(LogEntry::time);
    Ok(recorded)
}

impl RecordedEvents {
    fn add(&mut self, other: RecordedEvents) {
        self.entries.extend(other.entries);
        self.omitted += other.omitted;
    }
}

/// Reads all parts of a sandbox's log. A number without a line means that the event was omitted.
fn read_numbered(log: &Path) -> io::Result<RecordedEvents> {
    let mut recorded = RecordedEvents::default();
    for path in parts_of(log) {
        recorded.add(read_part(&path)?);
    }
    let last = recorded.entries.iter().filter_map(|entry| entry.number).max().unwrap_or(0);
    recorded.omitted += last.saturating_sub(recorded.entries.len() as u64);
    Ok(recorded)
}

/// Reads the end of one part of a log, if the part exists. A line that cannot be parsed is left
/// out.
fn read_part(path: &Path) -> io::Result<RecordedEvents> {
    let mut file = match fs_err::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(RecordedEvents::default());
        }
        Err(error) => return Err(error),
    };
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_READ_BYTES)))?;
    let mut recorded = RecordedEvents::default();
    for line in BufReader::new(file.take(MAX_READ_BYTES)).split(b'\n') {
        let line = line?;
        if let Ok(entry) = serde_json::from_slice::<LogEntry>(&line) {
            recorded.entries.push(entry);
        } else if let Ok(omission) = serde_json::from_slice::<Omission>(&line) {
            recorded.omitted = recorded.omitted.saturating_add(omission.omitted);
        }
    }
    Ok(recorded)
}

#[cfg(test)]
mod tests;
