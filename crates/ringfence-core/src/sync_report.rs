//! Report of a sync: what was carried between a workspace on the host and its copy in a sandbox,
//! and what was not.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Highest number of paths that one list of a report names.
const MAX_NAMED_PATHS: usize = 1000;

/// Report of a sync between a workspace and its copy in a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SyncReport {
    /// True if the report says what a sync would do, and nothing was changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// Files, directories and links that were sent into the sandbox.
    pub sent: CarriedPaths,
    /// Files, directories and links that came back to the host.
    pub received: CarriedPaths,
    /// Paths that were removed on the host, because they were removed in the sandbox.
    pub deleted: CarriedPaths,
    /// Paths that were removed in the sandbox, because they were removed on the host.
    pub deleted_inside: CarriedPaths,
    /// Paths that differ on both sides from the last sync. Nothing was changed on either side.
    pub conflicts: UncarriedPaths,
    /// Paths that were changed in the sandbox although the policy hides or protects them. The
    /// changes did not come back.
    pub refused: UncarriedPaths,
    /// Paths that cannot be carried, such as sockets, devices, and links out of the workspace.
    pub left_out: UncarriedPaths,
    /// Paths that came back and decide what programs on the host execute, relative to the workspace
    /// if they lie in it.
    #[serde(default)]
    pub planted: Vec<String>,
    /// Reason why the last sync before the end of a sandbox failed; otherwise absent. The changes
    /// in the sandbox since the sync before are lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// Paths that a sync carried or removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CarriedPaths {
    /// Number of the paths.
    pub count: u64,
    /// Number of bytes in the files.
    #[serde(default)]
    pub bytes: u64,
    /// The paths, at most the first thousand. Characters that are not text or that control a
    /// terminal are replaced.
    pub paths: Vec<String>,
}

/// Paths that a sync did not carry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UncarriedPaths {
    /// Number of the paths.
    pub count: u64,
    /// The paths, at most the first thousand.
    pub paths: Vec<UncarriedPath>,
}

/// A path that a sync did not carry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UncarriedPath {
    /// The path, relative to the workspace. Characters that are not text or that control a terminal
    /// are replaced.
    pub path: String,
    /// Reason why the path was not carried.
    pub why: String,
}

impl SyncReport {
    /// Adds the changes of an earlier sync of the same sandbox. What was not carried is taken from
    /// the later sync alone, because the earlier one may have been settled meanwhile.
    #[must_use]
    pub fn after(mut self, earlier: SyncReport) -> SyncReport {
        for (list, before) in [
            (&mut self.sent, earlier.sent),
            (&mut self.received, earlier.received),
            (&mut self.deleted, earlier.deleted),
            (&mut self.deleted_inside, earlier.deleted_inside),
        ] {
            list.count += before.count;
            list.bytes += before.bytes;
            let named = before.paths.into_iter().chain(std::mem::take(&mut list.paths));
            list.paths = named.take(MAX_NAMED_PATHS).collect();
        }
        self
    }

    /// Returns the number of paths that were not carried.
    pub fn uncarried_count(&self) -> u64 {
        self.conflicts.count + self.refused.count + self.left_out.count
    }
}

impl CarriedPaths {
    /// Adds a path with its number of bytes.
    pub fn add(&mut self, path: String, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
        if self.paths.len() < MAX_NAMED_PATHS {
            self.paths.push(path);
        }
    }
}

impl UncarriedPaths {
    /// Adds a path with the reason why it was not carried.
    pub fn add(&mut self, path: String, why: &str) {
        self.count += 1;
        if self.paths.len() < MAX_NAMED_PATHS {
            self.paths.push(UncarriedPath { path, why: why.to_owned() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_a_bounded_number_of_paths_and_counts_all() {
        let mut report = SyncReport::default();
        for number in 0..MAX_NAMED_PATHS + 5 {
            report.received.add(format!("file-{number}"), 2);
            report.conflicts.add(format!("file-{number}"), "it differs");
        }
        let counted = MAX_NAMED_PATHS as u64 + 5;
        assert_eq!((report.received.count, report.received.bytes), (counted, 2 * counted));
        assert_eq!(report.received.paths.len(), MAX_NAMED_PATHS);
        assert_eq!((report.conflicts.count, report.uncarried_count()), (counted, counted));
        let both = SyncReport::default().after(report);
        assert_eq!((both.received.count, both.conflicts.count), (counted, 0));
    }
}
