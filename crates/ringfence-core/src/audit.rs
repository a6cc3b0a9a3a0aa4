//! Execution records: a record describes one run, and a chain of hashes protects the records.
//!
//! Each record carries the hash of the record before it, so that a removed or altered record can be
//! found. A record has no field for the values of variables. [`redact`] removes those values from
//! text that can contain them: the command, the code and the output.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::ExecutionResult;

/// Selection of runs by their result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Store")]
pub enum RecordedRuns {
    /// Only runs that failed: `ok` is false in the result.
    #[default]
    OnError,
    /// All runs, whatever the result.
    Always,
    /// No run at all.
    Never,
}

impl RecordedRuns {
    /// Returns `true` if the run with this result leaves a record.
    pub fn wants(self, result: &ExecutionResult) -> bool {
        match self {
            RecordedRuns::OnError => !result.ok,
            RecordedRuns::Always => true,
            RecordedRuns::Never => false,
        }
    }
}

impl fmt::Display for RecordedRuns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RecordedRuns::OnError => "on_error",
            RecordedRuns::Always => "always",
            RecordedRuns::Never => "never",
        })
    }
}

/// Error for a text that is not the name of a [`RecordedRuns`] variant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown choice `{0}`: it is one of on_error, always, never")]
pub struct UnknownRecordedRuns(String);

impl FromStr for RecordedRuns {
    type Err = UnknownRecordedRuns;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [RecordedRuns::OnError, RecordedRuns::Always, RecordedRuns::Never];
        all.into_iter()
            .find(|store| store.to_string() == text)
            .ok_or_else(|| UnknownRecordedRuns(text.to_owned()))
    }
}

/// Record of one run, linked to the previous record by a hash.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Record")]
pub struct RunRecord {
    /// Hash of the previous record; null in the first record.
    pub previous: Option<String>,
    /// Time at which the run ended, in RFC 3339 format.
    pub time: String,
    /// Command of the run and its arguments.
    pub command: Vec<String>,
    /// Source code, if the run executed code and `code.store_code` selects the run; otherwise
    /// absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Result of the run.
    pub result: ExecutionResult,
    /// SHA-256 hash of all other fields as canonical JSON, in hexadecimal digits.
    pub hash: String,
}

impl RunRecord {
    /// Makes a record that links to the record with the hash `previous`, and computes its hash.
    pub fn seal(
        previous: Option<String>,
        time: String,
        command: Vec<String>,
        code: Option<String>,
        result: ExecutionResult,
    ) -> RunRecord {
        let mut record = RunRecord { previous, time, command, code, result, hash: String::new() };
        record.hash = record.expected_hash();
        record
    }

    /// Returns the hash of the record's content, which is every field except `hash`.
    fn expected_hash(&self) -> String {
        let mut value = serde_json::to_value(self).expect("a record has only string keys");
        let fields = value.as_object_mut().expect("a struct is an object");
        fields.remove("hash");
        // The text is canonical, because serde_json keeps the keys of an object sorted and prints
        // each number in one way only.
        let canonical = value.to_string();
        crate::to_hex(&Sha256::digest(canonical.as_bytes()))
    }
}

/// Fault in a chain of records.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChainFault {
    /// The content of a record does not match the hash that the record carries.
    #[error("`{name}` was altered: its content does not have the hash it carries")]
    Altered {
        /// Name of the record, as given to [`verify_chain`].
        name: String,
    },
    /// The record before the named record is missing.
    #[error("a record before `{name}` was removed: it follows {previous}, which is not there")]
    Removed {
        /// Name of the record, as given to [`verify_chain`].
        name: String,
        /// Hash of the missing record.
        previous: String,
    },
    /// Another record has the same hash, so that the named record is a copy.
    #[error("`{name}` is a copy of another record")]
    Duplicated {
        /// Name of the record, as given to [`verify_chain`].
        name: String,
    },
    /// The named record follows the same record as another record, or both have no previous record.
    #[error("`{name}` follows a record that another one follows too")]
    Forked {
        /// Name of the record, as given to [`verify_chain`].
        name: String,
    },
}

/// Checks named records against their hashes and against each other, and returns the faults.
///
/// The records can come in any order. If there is no fault, the records form one chain without a
/// gap. A missing end of the chain is not found, because no record points to the last one. To find
/// a missing end, keep the hash of the last record elsewhere.
pub fn verify_chain<'a>(
    records: impl IntoIterator<Item = (&'a str, &'a RunRecord)>,
) -> Vec<ChainFault> {
    let records: Vec<_> = records.into_iter().collect();
    let known: BTreeSet<&str> = records.iter().map(|(_, record)| record.hash.as_str()).collect();
    let mut seen = BTreeSet::new();
    let mut followed = BTreeSet::new();
    let mut faults = Vec::new();
    for (name, record) in records {
        let name = name.to_owned();
        if !seen.insert(&record.hash) {
            faults.push(ChainFault::Duplicated { name });
            continue;
        }
        if record.hash != record.expected_hash() {
            faults.push(ChainFault::Altered { name: name.clone() });
        }
        match &record.previous {
            Some(previous) if !known.contains(previous.as_str()) => {
                faults.push(ChainFault::Removed { name: name.clone(), previous: previous.clone() });
            }
            _ => {}
        }
        if !followed.insert(&record.previous) {
            faults.push(ChainFault::Forked { name });
        }
    }
    faults
}

/// Length in bytes of the shortest value that [`redact`] replaces; shorter values occur in text by
/// chance.
const MIN_SECRET_BYTES: usize = 6;

/// Replaces each value in `secrets` by `***`.
///
/// The longest values come first, so that no part of a longer value remains. Values shorter than
/// `MIN_SECRET_BYTES` stay in the text.
pub fn redact(text: &str, secrets: &[String]) -> String {
    let mut secrets: Vec<&str> = secrets
        .iter()
        .map(String::as_str)
        .filter(|secret| secret.len() >= MIN_SECRET_BYTES)
        .collect();
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets.into_iter().fold(text.to_owned(), |text, secret| text.replace(secret, "***"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Backend;
    use crate::result::{DroppedBytes, RunMetadata, RunUsage};

    fn result(id: &str, ok: bool) -> ExecutionResult {
        ExecutionResult {
            id: id.to_owned(),
            exit_code: Some(if ok { 0 } else { 1 }),
            signal: None,
            ok,
            timed_out: false,
            oom_killed: false,
            stdout: "héllo\n".to_owned(),
            stderr: String::new(),
            dropped: DroppedBytes::default(),
            duration: 0.1 + 0.2,
            meta: RunMetadata {
                usage: RunUsage { cpu_seconds: 1.0 / 3.0, max_rss: u64::MAX },
                ..RunMetadata::new(
                    Backend::Native,
                    "native works here".to_owned(),
                    Default::default(),
                    "0".repeat(64),
                    Default::default(),
                )
            },
        }
    }

    fn chain(length: usize) -> Vec<(String, RunRecord)> {
        let mut records: Vec<(String, RunRecord)> = Vec::new();
        for index in 0..length {
            let previous = records.last().map(|(_, record)| record.hash.clone());
            let time = format!("2026-01-01T00:00:0{index}Z");
            let record = RunRecord::seal(
                previous,
                time,
                vec!["true".into()],
                None,
                result(&index.to_string(), false),
            );
            records.push((format!("{index}.json"), record));
        }
        records
    }

    #[track_caller]
    fn check(records: &[(String, RunRecord)], expected: &[&str]) {
        let faults = verify_chain(records.iter().map(|(name, record)| (name.as_str(), record)));
        assert_eq!(faults.iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_whole_chain_has_no_fault_in_any_order_and_after_a_round_trip() {
        check(&[], &[]);
        let mut records = chain(4);
        check(&records, &[]);
        records.reverse();
        check(&records, &[]);
        for (_, record) in &mut records {
            *record = serde_json::from_str(&serde_json::to_string_pretty(record).unwrap()).unwrap();
        }
        check(&records, &[]);
    }

    #[test]
    fn an_altered_record_shows() {
        let mut records = chain(3);
        records[1].1.result.exit_code = Some(0);
        check(&records, &["`1.json` was altered: its content does not have the hash it carries"]);
    }

    #[test]
    fn an_altered_and_resealed_record_shows_in_the_next_one() {
        let mut records = chain(3);
        let old = records[1].1.clone();
        records[1].1 =
            RunRecord::seal(old.previous, old.time, vec!["false".into()], old.code, old.result);
        let message = format!(
            "a record before `2.json` was removed: it follows {}, which is not there",
            old.hash
        );
        check(&records, &[&message]);
    }

    #[test]
    fn a_removed_record_shows() {
        let mut records = chain(3);
        let (_, removed) = records.remove(1);
        let message = format!(
            "a record before `2.json` was removed: it follows {}, which is not there",
            removed.hash
        );
        check(&records, &[&message]);
        let mut records = chain(3);
        let (_, first) = records.remove(0);
        let message = format!(
            "a record before `1.json` was removed: it follows {}, which is not there",
            first.hash
        );
        check(&records, &[&message]);
    }

    #[test]
    fn a_copied_record_and_a_forked_chain_show() {
        let mut records = chain(2);
        records.push(("copy.json".into(), records[1].1.clone()));
        check(&records, &["`copy.json` is a copy of another record"]);
        let mut records = chain(2);
        let fork = RunRecord::seal(
            records[1].1.previous.clone(),
            "t".into(),
            Vec::new(),
            None,
            result("x", true),
        );
        records.push(("fork.json".into(), fork));
        check(&records, &["`fork.json` follows a record that another one follows too"]);
    }

    #[test]
    fn the_store_decides_which_runs_leave_a_record() {
        let (good, bad) = (result("a", true), result("b", false));
        let wants = |store: RecordedRuns| (store.wants(&good), store.wants(&bad));
        assert_eq!(wants(RecordedRuns::OnError), (false, true));
        assert_eq!(wants(RecordedRuns::Always), (true, true));
        assert_eq!(wants(RecordedRuns::Never), (false, false));
        assert_eq!(
            "sometimes".parse::<RecordedRuns>().unwrap_err().to_string(),
            "unknown choice `sometimes`: it is one of on_error, always, never"
        );
    }

    #[test]
    fn secrets_are_redacted_longest_first_and_short_values_stay() {
        let secrets = [
            "hunter22".to_owned(),
            "hunter22-and-more".to_owned(),
            "yes".to_owned(),
            String::new(),
        ];
        assert_eq!(redact("a hunter22-and-more b hunter22 yes", &secrets), "a *** b *** yes");
        assert_eq!(redact("nothing", &secrets), "nothing");
    }
}
