//! Files that change what git does with the names in a rebase or in an index, although the names
//! stay the same. Replacements and grafts change which commits the names stand for. Recorded
//! resolutions of conflicts are written into files again.

use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::GitSearch;
use super::config::ConfigVariable;
use super::links::MAX_CONTENTS;
use crate::view::deciders::{PathState, SearchPhase};
use crate::view::observed::{is_present_and_changed_since, paths_below};

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
                if is_present_and_changed_since(&packed, began)
                    && self.has_packed_replacement(&packed)
                {
                    self.deciders.note(&packed, PathState::File);
                }
            }
        }
    }

    /// Records all references in and below a directory. Git takes the last component of each name
    /// as the replaced object.
    fn loose_replacements(&mut self, directory: &Path) {
        match self.loose_references(directory) {
            Some(references) => {
                references
                    .iter()
                    .for_each(|(path, content)| self.deciders.note_content(path, content));
            }
            None => self.deciders.note(directory, PathState::Unknown),
        }
    }

    /// Returns the references in and below a directory, or `None` if there are too many.
    pub(super) fn loose_references(&mut self, directory: &Path) -> Option<Vec<(PathBuf, Vec<u8>)>> {
        let mut pending = vec![directory.to_path_buf()];
        let mut references = Vec::new();
        let mut count = 0;
        while let Some(directory) = pending.pop() {
            for (name, kind) in self.list(&directory).iter() {
                count += 1;
                if count > MAX_REPLACEMENTS {
                    return None;
                }
                let path = directory.join(name);
                if *kind == FileType::Directory {
                    pending.push(path);
                } else if let Some(found) = self.deciders.resolve(&path) {
                    let content =
                        self.deciders.read(&found.path, MAX_REFERENCE).unwrap_or_default();
                    references.push((found.path, content));
                }
            }
        }
        Some(references)
    }

    /// Records the directory of recorded resolutions. Its existence makes git use resolutions if no
    /// setting says otherwise (git-rerere(1)).
    pub(super) fn resolutions(&mut self, common: &Path, variables: &[ConfigVariable]) {
        let resolutions = common.join("rr-cache");
        let mut settings = variables.iter().chain(&self.global);
        let is_set =
            settings.any(|variable| variable.section == "rerere" && variable.key == "enabled");
        let is_before = self.deciders.phase == SearchPhase::BeforeRun;
        if self.deciders.files.has_name(&resolutions) && (is_before || !is_set) {
            self.deciders.note_content(&resolutions, b"");
        }
    }

    /// Records the directory of recorded resolutions if the run changed something in it, because a
    /// sequence that continues writes the resolutions into files of the work tree.
    pub(super) fn resolutions_of_run(&mut self, common: &Path) {
        let resolutions = common.join("rr-cache");
        match self.deciders.phase {
            SearchPhase::BeforeRun => self.deciders.written.contents.push(resolutions),
            SearchPhase::AfterRun { began } => {
                let paths = paths_below(&resolutions, MAX_CONTENTS);
                if paths.is_none_or(|paths| {
                    paths.iter().any(|path| is_present_and_changed_since(path, began))
                }) {
                    self.deciders.note(&resolutions, PathState::File);
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
