//! Replacements and grafts, which change the commits that git uses for the names in other files.
//! The names in a rebase or an index then stay the same but refer to other contents.

use std::path::Path;

use rustix::fs::FileType;

use super::GitSearch;
use crate::view::deciders::{PathState, SearchPhase};
use crate::view::observed::is_present_and_changed_since;

/// Maximum number of replacements; real repositories have fewer.
const MAX_REPLACEMENTS: usize = 1 << 12;
/// Maximum size of a reference in bytes, longer than the name of a commit.
const MAX_REFERENCE: u64 = 1 << 12;
/// Maximum size of a file of packed references in bytes; real ones are smaller.
pub(super) const MAX_PACKED_REFERENCES: u64 = 1 << 27;

impl GitSearch<'_> {
    /// Records replaced objects (git-replace(1)) and grafted parents (gitrepository-layout(5),
    /// "info/grafts").
    pub(super) fn replacements(&mut self, common: &Path) {
        if !self.deciders.is_writable(common) {
            return;
        }
        let replacements = common.join("refs/replace");
        if self.deciders.files.has_name(&replacements) {
            self.loose_replacements(&replacements);
        }
        let grafts = common.join("info/grafts");
        let packed = common.join("packed-refs");
        match self.deciders.phase {
            // Most repositories have packed references. Reading that file would delay the command.
            SearchPhase::BeforeRun => self.deciders.written.single.extend([grafts, packed]),
            SearchPhase::AfterRun { began } => {
                if is_present_and_changed_since(&grafts, began) {
                    self.deciders.note(&grafts, PathState::File);
                }
                if is_present_and_changed_since(&packed, began) && self.has_packed_replacement(&packed) {
                    self.deciders.note(&packed, PathState::File);
                }
            }
        }
    }

    /// Records all references in and below a directory. Git takes the last component of each name
    /// as the replaced object.
    fn loose_replacements(&mut self, directory: &Path) {
        let mut pending = vec![directory.to_path_buf()];
        let mut count = 0;
        while let Some(directory) = pending.pop() {
            for (name, kind) in self.list(&directory).iter() {
                count += 1;
                if count > MAX_REPLACEMENTS {
                    return self.deciders.note(&directory, PathState::Unknown);
                }
                let path = directory.join(name);
                if *kind == FileType::Directory {
                    pending.push(path);
                } else if let Some(found) = self.deciders.resolve(&path) {
                    let content = self.deciders.read(&found.path, MAX_REFERENCE).unwrap_or_default();
                    self.deciders.note_content(&found.path, &content);
                }
            }
        }
    }

    fn has_packed_replacement(&mut self, packed: &Path) -> bool {
        let Some(found) = self.deciders.resolve(packed) else { return false };
        let content = self.deciders.read(&found.path, MAX_PACKED_REFERENCES).unwrap_or_default();
        let name = b" refs/replace/";
        content.windows(name.len()).any(|window| window == name)
    }
}
