//! Execution records on disk: one file for each record, and each record contains the hash of the
//! previous one.
//!
//! The directory may lie in a workspace, where sandboxed code can write. So nothing here follows a
//! symbolic link that such code may have planted, and tampered records are reported and not
//! trusted.

mod known;

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use ringfence_core::ExecutionResult;
use ringfence_core::audit::{ChainFault, RecordedRuns, RunRecord, redact, verify_chain};
use ringfence_core::settings::Language;
use rustix::fs::{
    AtFlags, CWD, Dir, FlockOperation, Mode, OFlags, ResolveFlags, flock, mkdirat, openat2,
    renameat, unlinkat,
};
use rustix::io::Errno;

use crate::host_paths::untrusted;
use crate::{Command, Host, Settings};
use known::KnownFile;

pub(crate) use known::known_directories;

/// Name of the file with the hash of the newest record, so that the removal of that record is
/// noticed, too.
const NEWEST_FILE: &str = "newest";
/// Longest content of the file `newest` that is read, in bytes.
const MAX_HASH_BYTES: u64 = 256;
/// Longest record that is read, in bytes: more than two streams of the largest sensible output.
const MAX_RECORD_BYTES: u64 = 1 << 30;

/// The execution records of one directory.
#[derive(Debug)]
pub struct Records {
    directory: PathBuf,
    /// Count of these records; none if they are not counted, or if the host has no state directory.
    known: Option<KnownFile>,
}

/// Reason why a record could not be written or read.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} `{path}`")]
pub struct RecordError {
    /// The operation that failed, as a verb.
    pub action: &'static str,
    /// The file or directory on which the operation failed.
    pub path: PathBuf,
    /// Error of the operation.
    pub source: io::Error,
}

impl RecordError {
    /// Returns the next step for the user.
    pub fn hint(&self) -> String {
        if self.source.raw_os_error() == Some(Errno::LOOP.raw_os_error()) {
            "symbolic links are not followed there: remove the link, or set audit.dir to where it \
             leads"
                .to_owned()
        } else {
            "check the owner and the permissions of that directory, or set audit.dir to another one"
                .to_owned()
        }
    }
}

/// A file among the records.
#[derive(Debug)]
pub struct RecordFile {
    /// Name of the file, without its directory.
    pub name: String,
    /// The record in the file, or the reason why the file is not a record.
    pub record: Result<RunRecord, RecordError>,
}

impl Records {
    /// Returns the records in `directory`, which need not exist. These records are not counted in
    /// the user's state directory, so the removal of all of them is not noticed.
    pub fn at(directory: impl Into<PathBuf>) -> Records {
        Records { directory: directory.into(), known: None }
    }

    /// Returns the records in `directory` of `host`, which need not exist.
    pub fn on(host: &Host, directory: &Path) -> Records {
        let directory = host.absolute(directory);
        Records { known: KnownFile::for_directory(host, &directory), directory }
    }

    /// Returns the records of the runs under `settings`.
    pub fn for_settings(settings: &Settings) -> Records {
        Records::on(&settings.host, &settings.audit.dir)
    }

    /// Returns the directory that contains the records.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Writes a record of a run if the settings ask for one, and returns its path. The record
    /// contains no value of a variable.
    pub fn keep(
        settings: &Settings,
        command: &Command,
        result: &ExecutionResult,
    ) -> Result<Option<PathBuf>, RecordError> {
        if !settings.audit.store.wants(result) {
            return Ok(None);
        }
        Records::for_settings(settings)
            .append(command, result.clone(), &secrets(settings))
            .map(Some)
    }

    /// Writes a record of an execution of code if the settings ask for one, and returns its path.
    /// The record contains the code if `code.store_code` asks for that. If the code is to be
    /// stored, the record is written even where `audit.store` alone would not ask for it, unless
    /// `audit.store` is `never`. The record contains no value of a variable.
    pub fn keep_code(
        settings: &Settings,
        language: &str,
        code: &str,
        result: &ExecutionResult,
    ) -> Result<Option<PathBuf>, RecordError> {
        let code = settings.code.store_code.wants(result).then_some(code);
        let is_wanted = settings.audit.store.wants(result) || code.is_some();
        if !is_wanted || settings.audit.store == RecordedRuns::Never {
            return Ok(None);
        }
        // The command has no file name, because the file of the code was removed after the
        // execution.
        let known = settings.code.languages.get(language).map(Language::command);
        let (program, arguments) = known.unwrap_or((language, &[]));
        let command = Command::new(program).arguments(arguments);
        Records::for_settings(settings)
            .add(&command, code, result.clone(), &secrets(settings))
            .map(Some)
    }

    /// Adds a record of a run. Replaces the values of `secrets` wherever they appear.
    pub fn append(
        &self,
        command: &Command,
        result: ExecutionResult,
        secrets: &[String],
    ) -> Result<PathBuf, RecordError> {
        self.add(command, None, result, secrets)
    }

    fn add(
        &self,
        command: &Command,
        code: Option<&str>,
        mut result: ExecutionResult,
        secrets: &[String],
    ) -> Result<PathBuf, RecordError> {
        let directory =
            make_directory(&self.directory).map_err(self.failed("make the directory", ""))?;
        // Only one process may write at a time, because each record links to the previous one. The
        // lock is released with the descriptor.
        lock(&directory).map_err(self.failed("lock", ""))?;
        let previous = read_in(&directory, NEWEST_FILE, MAX_HASH_BYTES)
            .map_err(self.failed("read", NEWEST_FILE))?;
        let previous = previous.map(|hash| hash.trim().to_owned());
        result.stdout = redact(&result.stdout, secrets);
        result.stderr = redact(&result.stderr, secrets);
        let words = command.words().iter().map(|word| redact(word, secrets)).collect();
        let now = jiff::Timestamp::now();
        let code = code.map(|code| redact(code, secrets));
        let record = RunRecord::seal(previous, now.to_string(), words, code, result);
        let earlier =
            self.known.as_ref().map(|_| record_names(&directory).map_or(0, |names| names.len()));
        let stamp = now.strftime("%Y%m%dT%H%M%S%.6fZ");
        let name = format!("{stamp}_{}.json", &record.hash[..12]);
        let json = serde_json::to_vec_pretty(&record)
            .map_err(io::Error::other)
            .map_err(self.failed("encode", &name))?;
        write_in(&directory, &name, &json).map_err(self.failed("write", &name))?;
        write_in(&directory, NEWEST_FILE, record.hash.as_bytes())
            .map_err(self.failed("write", NEWEST_FILE))?;
        if let Some(known) = &self.known {
            known.count_record(
                &self.directory,
                earlier.unwrap_or(0),
                record.previous.as_deref(),
                &record.hash,
            );
        }
        Ok(self.directory.join(name))
    }

    /// Returns every file that should be a record, oldest first.
    pub fn entries(&self) -> Result<Vec<RecordFile>, RecordError> {
        let Some(directory) = self.open()? else { return Ok(Vec::new()) };
        let names = record_names(&directory).map_err(self.failed("list", ""))?;
        let read = |name: String| RecordFile { record: self.record(&directory, &name), name };
        Ok(names.into_iter().map(read).collect())
    }

    fn record(&self, directory: &OwnedFd, name: &str) -> Result<RunRecord, RecordError> {
        let text = read_in(directory, name, MAX_RECORD_BYTES)
            .map_err(self.failed("read", name))?
            .unwrap_or_default();
        serde_json::from_str(&text).map_err(io::Error::other).map_err(self.failed("decode", name))
    }

    /// Returns the faults of the chain. There are none if every record is as it was written and no
    /// record is missing.
    pub fn verify(&self) -> Result<Vec<String>, RecordError> {
        let Some(directory) = self.open()? else {
            let known = self.known.as_ref();
            return Ok(known.and_then(|known| known.compare(0, |_| false)).into_iter().collect());
        };
        let mut findings = Vec::new();
        let mut records = Vec::new();
        for RecordFile { name, record } in self.entries()? {
            match record {
                Ok(record) => records.push((name, record)),
                Err(error) => findings.push(format!("`{name}` is not a record: {}", error.source)),
            }
        }
        let faults = verify_chain(records.iter().map(|(name, record)| (name.as_str(), record)));
        findings.extend(faults.iter().map(ChainFault::to_string));
        let newest = read_in(&directory, NEWEST_FILE, MAX_HASH_BYTES)
            .map_err(self.failed("read", NEWEST_FILE))?;
        findings.extend(at_the_end(newest.as_deref().map(str::trim), &records));
        let has_record = |hash: &str| records.iter().any(|(_, record)| record.hash == hash);
        findings
            .extend(self.known.as_ref().and_then(|known| known.compare(records.len(), has_record)));
        Ok(findings)
    }

    /// Opens the directory; returns `None` if no record was ever written.
    fn open(&self) -> Result<Option<OwnedFd>, RecordError> {
        match open_directory(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some).map_err(self.failed("open", "")),
        }
    }

    fn failed<E: Into<io::Error>>(
        &self,
        action: &'static str,
        name: &str,
    ) -> impl FnOnce(E) -> RecordError {
        let path = if name.is_empty() { self.directory.clone() } else { self.directory.join(name) };
        move |source| RecordError { action, path, source: source.into() }
    }
}

/// Returns the values of the variables that code may have been given.
fn secrets(settings: &Settings) -> Vec<String> {
    let passed =
        settings.policy.env.pass.iter().flatten().filter_map(|name| settings.host.text(name));
    let set = settings.policy.env.set.values().map(String::as_str);
    passed.chain(set).map(str::to_owned).collect()
}

/// Returns the fault at the end of a chain, given the hash that was stored for its newest record.
fn at_the_end(newest: Option<&str>, records: &[(String, RunRecord)]) -> Option<String> {
    let Some(newest) = newest else {
        return (!records.is_empty())
            .then(|| format!("`{NEWEST_FILE}` was removed: it names the newest record"));
    };
    if !records.iter().any(|(_, record)| record.hash == newest) {
        return Some(format!(
            "the newest record was removed: `{NEWEST_FILE}` names {newest}, which is not there"
        ));
    }
    let (name, _) =
        records.iter().find(|(_, record)| record.previous.as_deref() == Some(newest))?;
    Some(format!("`{name}` was added by somebody else: it follows the newest record"))
}

/// Locks a directory. Any process that can read the directory can lock it, even code in a sandbox,
/// so the wait for the lock is limited.
fn lock(directory: &OwnedFd) -> io::Result<()> {
    const MAX_ATTEMPTS: u32 = 100;
    for _ in 0..MAX_ATTEMPTS {
        match flock(directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(20)),
            locked => return Ok(locked?),
        }
    }
    Err(io::Error::other("another process has held the lock for two seconds"))
}

/// Returns the names of all files that should be records, oldest first.
fn record_names(directory: &OwnedFd) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".json") {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Opens a directory without following links. A relative path starts at the working directory.
fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?)
}

fn make_directory(path: &Path) -> io::Result<OwnedFd> {
    // Nearly always the directory exists.
    match open_directory(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    let mut made = PathBuf::new();
    for component in path.components() {
        made.push(component);
        if matches!(component, Component::RootDir | Component::CurDir) {
            continue;
        }
        match open_directory(&made) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let above = made.parent().filter(|above| !above.as_os_str().is_empty());
                let above = open_directory(above.unwrap_or(Path::new(".")))?;
                match mkdirat(&above, component.as_os_str(), Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            opened => drop(opened?),
        }
    }
    open_directory(&made)
}

/// Reads a file that is no longer than `limit`, so that a planted file cannot fill the memory.
fn read_in(directory: &OwnedFd, name: &str, limit: u64) -> io::Result<Option<String>> {
    // Open without blocking, because a planted pipe would block the reader.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat2(
        directory,
        name,
        flags,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
    ) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    untrusted::read_text(file, limit).map(Some)
}

/// Writes a file completely or not at all.
fn write_in(directory: &OwnedFd, name: &str, bytes: &[u8]) -> io::Result<()> {
    let unfinished = format!(".{name}.unfinished");
    let flags = OFlags::WRONLY
        | OFlags::CREATE
        | OFlags::TRUNC
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let file = openat2(directory, unfinished.as_str(), flags, Mode::from_raw_mode(0o600), resolve)?;
    let written = fs_err::File::from_parts(file.into(), &unfinished).write_all(bytes);
    let named =
        written.and_then(|()| Ok(renameat(directory, unfinished.as_str(), directory, name)?));
    if named.is_err() {
        // Remove the partial file, because partial files could fill the disk. This may fail, too.
        let _ = unlinkat(directory, unfinished.as_str(), AtFlags::empty());
    }
    named
}

#[cfg(test)]
mod tests;
