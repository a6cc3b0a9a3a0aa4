//! Lines of the ledger, one for each skip.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Record of a test that did not run, and of the reason.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Skip {
    /// Path of the test's function.
    pub place: String,
    /// Name of the need that the machine does not meet.
    pub need: String,
    /// Description of the probe and of its result.
    pub reason: String,
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SKIP {} {}: {}", self.place, self.need, self.reason)
    }
}

impl Skip {
    /// Appends this skip to a ledger that other processes may be writing, too.
    pub fn append_to(&self, ledger: &Path) -> io::Result<()> {
        let mut line = serde_json::to_string(self).map_err(io::Error::other)?;
        line.push('\n');
        // A single write to a file opened for appending is not interleaved with the writes of other
        // processes.
        fs_err::OpenOptions::new()
            .create(true)
            .append(true)
            .open(ledger)?
            .write_all(line.as_bytes())
    }
}

/// Reads every skip of a ledger, sorted and without repetitions. A ledger that does not exist is
/// empty.
pub fn read(ledger: &Path) -> io::Result<Vec<Skip>> {
    let text = match fs_err::read_to_string(ledger) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read?,
    };
    let mut skips = text
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<Vec<Skip>, _>>()
        .map_err(io::Error::other)?;
    skips.sort();
    skips.dedup();
    Ok(skips)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skip(place: &str) -> Skip {
        Skip {
            place: place.to_owned(),
            need: "bwrap".to_owned(),
            reason: "cannot run `bwrap`:\nnot found".to_owned(),
        }
    }

    #[test]
    fn appended_entries_are_read_back_sorted_and_once() {
        let directory = tempfile::tempdir().unwrap();
        let ledger = directory.path().join("ledger.jsonl");
        for place in ["b::two", "a::one", "b::two"] {
            skip(place).append_to(&ledger).unwrap();
        }
        assert_eq!(read(&ledger).unwrap(), [skip("a::one"), skip("b::two")]);
    }

    #[test]
    fn a_ledger_that_was_never_written_is_empty() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(read(&directory.path().join("none")).unwrap(), []);
    }

    #[test]
    fn a_damaged_ledger_is_an_error_and_not_an_empty_one() {
        let directory = tempfile::tempdir().unwrap();
        let ledger = directory.path().join("ledger.jsonl");
        fs_err::write(&ledger, "{\"place\":").unwrap();
        assert!(read(&ledger).is_err());
    }
}
