//! Execution records on disk: one file each, every one linked to the one before it by hash.
//!
//! The directory may lie in a workspace, where sandboxed code can write: nothing here follows a symbolic link
//! that somebody may have planted there.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use ringfence_core::ExecutionResult;
use ringfence_core::audit::{ChainFault, Record, redact, verify_chain};
use rustix::fs::{CWD, Dir, FlockOperation, Mode, OFlags, ResolveFlags, flock, mkdirat, openat2, renameat};
use rustix::io::Errno;

use crate::Command;

/// Holds the hash of the newest record, so that its removal shows, too.
const NEWEST: &str = "newest";

/// The execution records of one directory.
#[derive(Debug)]
pub struct Records {
    directory: PathBuf,
}

/// A record could not be written or read.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} `{path}`")]
pub struct RecordError {
    /// What was tried.
    pub action: &'static str,
    /// On what.
    pub path: PathBuf,
    /// Why it failed.
    pub source: io::Error,
}

impl Records {
    /// The records in `directory`, which need not exist.
    pub fn at(directory: impl Into<PathBuf>) -> Records {
        Records { directory: directory.into() }
    }

    fn failed<E: Into<io::Error>>(&self, action: &'static str, name: &str) -> impl FnOnce(E) -> RecordError {
        let path = self.directory.join(name);
        move |source| RecordError { action, path, source: source.into() }
    }

    /// Adds a record of a run. The values of `secrets` are replaced wherever they appear.
    pub fn append(
        &self,
        command: &Command,
        mut result: ExecutionResult,
        secrets: &[String],
    ) -> Result<PathBuf, RecordError> {
        let directory = make_directory(&self.directory).map_err(self.failed("make the directory", ""))?;
        // One writer at a time: each links to the one before. The lock goes with the descriptor.
        flock(&directory, FlockOperation::LockExclusive).map_err(self.failed("lock", ""))?;
        let previous = read_in(&directory, NEWEST).map_err(self.failed("read", NEWEST))?;
        let previous = previous.map(|hash| hash.trim().to_owned());
        result.stdout = redact(&result.stdout, secrets);
        result.stderr = redact(&result.stderr, secrets);
        let words = command.words().iter().map(|word| redact(word, secrets)).collect();
        let now = jiff::Timestamp::now();
        let record = Record::seal(previous, now.to_string(), words, None, result);
        let stamp = now.strftime("%Y%m%dT%H%M%S%.6fZ");
        let name = format!("{stamp}_{}.json", &record.hash[..12]);
        let json =
            serde_json::to_vec_pretty(&record).map_err(io::Error::other).map_err(self.failed("encode", &name))?;
        write_in(&directory, &name, &json).map_err(self.failed("write", &name))?;
        write_in(&directory, NEWEST, record.hash.as_bytes()).map_err(self.failed("write", NEWEST))?;
        Ok(self.directory.join(name))
    }

    /// Every record with its file's name, oldest first.
    pub fn read(&self) -> Result<Vec<(String, Record)>, RecordError> {
        let directory = match open_directory(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            opened => opened.map_err(self.failed("open", ""))?,
        };
        let mut names = Vec::new();
        for entry in Dir::read_from(&directory).map_err(self.failed("list", ""))? {
            let entry = entry.map_err(self.failed("list", ""))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(".json") {
                names.push(name);
            }
        }
        names.sort_unstable();
        let mut records = Vec::new();
        for name in names {
            let text = read_in(&directory, &name).map_err(self.failed("read", &name))?.unwrap_or_default();
            let record = serde_json::from_str(&text).map_err(io::Error::other).map_err(self.failed("decode", &name))?;
            records.push((name, record));
        }
        Ok(records)
    }

    /// What is wrong with the chain; nothing, when every record is as it was written and none is missing.
    pub fn verify(&self) -> Result<Vec<String>, RecordError> {
        let records = self.read()?;
        let faults = verify_chain(records.iter().map(|(name, record)| (name.as_str(), record)));
        let mut told: Vec<String> = faults.iter().map(ChainFault::to_string).collect();
        let directory = match open_directory(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(told),
            opened => opened.map_err(self.failed("open", ""))?,
        };
        let newest = read_in(&directory, NEWEST).map_err(self.failed("read", NEWEST))?;
        let last = records.last().map(|(_, record)| record.hash.as_str());
        if newest.as_deref().map(str::trim) != last {
            told.push("the newest record is missing, or one was added by somebody else".to_owned());
        }
        Ok(told)
    }
}

/// Opens a directory without following a link; what is relative starts at the working directory.
fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?)
}

fn make_directory(path: &Path) -> io::Result<OwnedFd> {
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

fn read_in(directory: &OwnedFd, name: &str) -> io::Result<Option<String>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match openat2(directory, name, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut text = String::new();
    fs_err::File::from_parts(file.into(), name).read_to_string(&mut text)?;
    Ok(Some(text))
}

/// Writes a file whole or not at all.
fn write_in(directory: &OwnedFd, name: &str, bytes: &[u8]) -> io::Result<()> {
    let unfinished = format!(".{name}.unfinished");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let file = openat2(directory, unfinished.as_str(), flags, Mode::from_raw_mode(0o600), resolve)?;
    fs_err::File::from_parts(file.into(), &unfinished).write_all(bytes)?;
    Ok(renameat(directory, unfinished.as_str(), directory, name)?)
}
