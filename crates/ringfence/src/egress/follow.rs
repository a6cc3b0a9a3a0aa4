//! The egress log, read as it grows.

use std::collections::HashMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::log::{Entry, LONGEST, OLD, log_of};
use crate::Host;

/// Reads the egress log of a user as it grows.
#[derive(Debug)]
pub struct Follower {
    log: Option<PathBuf>,
    /// How far each file was read, by its inode: whoever had a log open when a new one was begun goes on writing there.
    read: HashMap<u64, u64>,
}

impl Follower {
    /// Begins at the beginning of the log of `host`'s user.
    pub fn of(host: &Host) -> Follower {
        Follower { log: log_of(host), read: HashMap::new() }
    }

    /// Returns what was written since the last time, oldest first; a line that cannot be read is left out.
    pub fn read_on(&mut self) -> io::Result<Vec<Entry>> {
        let Some(log) = &self.log else { return Ok(Vec::new()) };
        let mut text = Vec::new();
        // Only of the files that are there: a later one may have the number of one that is gone.
        let mut read = HashMap::new();
        for path in [log.with_file_name(OLD), log.clone()] {
            if let Some((inode, end)) = append_from(&path, &self.read, &mut text)? {
                read.insert(inode, end);
            }
        }
        self.read = read;
        Ok(text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect())
    }
}

/// Appends the whole lines of a file that were not read yet, and returns which file it is and how far it is read now.
fn append_from(path: &Path, read: &HashMap<u64, u64>, text: &mut Vec<u8>) -> io::Result<Option<(u64, u64)>> {
    let mut file = match fs_err::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let found = file.metadata()?;
    let start = read.get(&found.ino()).copied().filter(|start| *start <= found.len()).unwrap_or_default();
    file.seek(SeekFrom::Start(start))?;
    let before = text.len();
    file.take(2 * LONGEST).read_to_end(text)?;
    let lines = text[before..].iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    text.truncate(before + lines);
    Ok(Some((found.ino(), start + lines as u64)))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use ringfence_egress::{Denial, Event, Reason, Via};

    use super::*;

    fn line(target: &str) -> String {
        let denial = Denial { target: target.to_owned(), reason: Reason::Unlisted, via: Via::Connect, policy: None };
        let event = Event::Denied(denial);
        let entry = Entry { time: String::new(), sandbox: None, workspace: PathBuf::new(), event };
        serde_json::to_string(&entry).unwrap() + "\n"
    }

    #[track_caller]
    fn check(follower: &mut Follower, expected: &[&str]) {
        let entries = follower.read_on().unwrap();
        let targets = entries.iter().map(|entry| match &entry.event {
            Event::Denied(denial) => denial.target.as_str(),
            _ => "",
        });
        assert_eq!(targets.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn every_line_is_read_once_also_when_a_new_log_is_begun() {
        let place = tempfile::tempdir().unwrap();
        let log = place.path().join("egress.jsonl");
        let mut follower = Follower { log: Some(log.clone()), read: HashMap::new() };
        check(&mut follower, &[]);
        let append = |path: &Path| fs_err::OpenOptions::new().append(true).create(true).open(path).unwrap();
        let mut first = append(&log);
        let (half, rest) = (line("b").split_at(9).0.to_owned(), line("b").split_at(9).1.to_owned());
        write!(first, "{}no line\n{half}", line("a")).unwrap();
        check(&mut follower, &["a"]);
        check(&mut follower, &[]);
        write!(first, "{rest}").unwrap();
        fs_err::rename(&log, log.with_file_name(OLD)).unwrap();
        write!(append(&log), "{}", line("d")).unwrap();
        write!(first, "{}", line("c")).unwrap();
        check(&mut follower, &["b", "c", "d"]);
        check(&mut follower, &[]);
    }
}
