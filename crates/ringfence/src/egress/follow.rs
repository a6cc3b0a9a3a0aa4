//! Reader that follows an egress log as it grows.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::log::{LogEntry, parts_of_sandbox};
use crate::Host;

/// Highest number of bytes of one part that are read at once.
const MAX_READ_BYTES: u64 = 16 << 20;

/// Reader of the egress log of one sandbox, as it grows.
#[derive(Debug)]
pub struct EgressLogFollower {
    /// Parts of the log, oldest first; empty if there can be no log.
    parts: Vec<PathBuf>,
    sandbox: String,
    /// Offset up to which each part was read, by its inode, because a part is renamed when a new
    /// one is begun.
    read: HashMap<u64, u64>,
}

impl EgressLogFollower {
    /// Returns a follower at the beginning of the log of a sandbox of `host`'s user.
    pub fn for_sandbox(host: &Host, sandbox: &str) -> EgressLogFollower {
        let parts = parts_of_sandbox(host, sandbox).map(Vec::from).unwrap_or_default();
        EgressLogFollower { parts, sandbox: sandbox.to_owned(), read: HashMap::new() }
    }

    /// Returns the entries that were written since the last call, oldest first. A line that cannot
    /// be parsed is left out.
    pub fn read_on(&mut self) -> io::Result<Vec<LogEntry>> {
        let mut entries = Vec::new();
        // Keep only the files that exist, because a later file may get the inode number of one that
        // is gone.
        let mut read = HashMap::new();
        for path in &self.parts {
            if let Some((inode, end)) = self.append_from(path, &mut entries)? {
                read.insert(inode, end);
            }
        }
        self.read = read;
        Ok(entries)
    }

    /// Appends the entries of the unread lines of a file. Returns the file's inode and the new
    /// offset. The function holds no more in memory than one line and the wanted entries.
    fn append_from(
        &self,
        path: &Path,
        entries: &mut Vec<LogEntry>,
    ) -> io::Result<Option<(u64, u64)>> {
        let mut file = match fs_err::File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let found = file.metadata()?;
        let mut end = self
            .read
            .get(&found.ino())
            .copied()
            .filter(|end| *end <= found.len())
            .unwrap_or_default();
        file.seek(SeekFrom::Start(end))?;
        let mut lines = BufReader::new(file.take(MAX_READ_BYTES));
        let mut line = String::new();
        loop {
            line.clear();
            let length = match lines.read_line(&mut line) {
                // Bytes that are not text are not a line of the log.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    return Ok(Some((found.ino(), found.len())));
                }
                length => length?,
            };
            if !line.ends_with('\n') {
                // The line is still being written, or this is the end.
                return Ok(Some((found.ino(), end)));
            }
            end += length as u64;
            let entry = line
                .contains(&self.sandbox)
                .then(|| serde_json::from_str::<LogEntry>(&line).ok())
                .flatten();
            entries.extend(entry.filter(|entry| entry.sandbox.as_ref() == Some(&self.sandbox)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use ringfence_egress::{Denial, DenialReason, EgressEvent, RequestKind};

    use super::*;

    fn line(target: &str) -> String {
        line_of("own", target)
    }

    fn line_of(sandbox: &str, target: &str) -> String {
        let denial = Denial {
            target: target.to_owned(),
            reason: DenialReason::Unlisted,
            via: RequestKind::Connect,
            policy: None,
        };
        let event = EgressEvent::Denied(denial);
        let sandbox = Some(sandbox.to_owned());
        let entry = LogEntry {
            time: String::new(),
            sandbox,
            workspace: PathBuf::new(),
            event,
            number: None,
        };
        serde_json::to_string(&entry).unwrap() + "\n"
    }

    #[track_caller]
    fn check(follower: &mut EgressLogFollower, expected: &[&str]) {
        let entries = follower.read_on().unwrap();
        let targets = entries.iter().map(|entry| match &entry.event {
            EgressEvent::Denied(denial) => denial.target.as_str(),
            _ => "",
        });
        assert_eq!(targets.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn every_line_is_read_once_also_when_a_new_log_is_begun() {
        let place = tempfile::tempdir().unwrap();
        let log = place.path().join("egress.jsonl");
        let old = log.with_file_name("egress.jsonl.1");
        let parts = vec![old.clone(), log.clone()];
        let mut follower =
            EgressLogFollower { parts, sandbox: "own".to_owned(), read: HashMap::new() };
        check(&mut follower, &[]);
        let append =
            |path: &Path| fs_err::OpenOptions::new().append(true).create(true).open(path).unwrap();
        let mut first = append(&log);
        let (half, rest) = (line("b").split_at(9).0.to_owned(), line("b").split_at(9).1.to_owned());
        write!(first, "{}no line\n{}{half}", line("a"), line_of("other", "own")).unwrap();
        check(&mut follower, &["a"]);
        check(&mut follower, &[]);
        write!(first, "{rest}").unwrap();
        fs_err::rename(&log, old).unwrap();
        write!(append(&log), "{}", line("d")).unwrap();
        write!(first, "{}", line("c")).unwrap();
        check(&mut follower, &["b", "c", "d"]);
        check(&mut follower, &[]);
    }
}
