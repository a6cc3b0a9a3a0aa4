//! Repositories in subdirectories of a work tree. Git uses such a repository if it is started
//! there, or if an index or a commit has a submodule there.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::config::ConfigVariable;
use super::{GitEntry, GitSearch, PendingVisit, is_true};
use crate::view::deciders::{PathState, SearchPhase};
use crate::view::observed::{
    FileTime, RepositoryOrigin, TraceEnd, TreeWalk, is_present_and_changed_since,
};

/// Maximum number of directories in which repositories are looked for before a run, which takes
/// some tenths of a millisecond.
const MAX_PROTECTED_DIRECTORIES: usize = 32;
/// Maximum number of directories in which repositories are looked for after a run, which takes half
/// a second.
const MAX_SEARCHED_DIRECTORIES: usize = 1 << 17;

impl GitSearch<'_> {
    /// Looks for repositories in the directories of a tree, the nearest first. A search of all
    /// directories before a run would take longer than a short run.
    pub(super) fn nested_repositories(&mut self, tree: &Path) {
        self.nearest_repositories(tree);
        if let SearchPhase::AfterRun { began } = self.deciders.phase {
            self.deciders.note_only_since(Some(began));
            self.add_newer_repositories(tree, began);
            self.deciders.note_only_since(None);
        } else if self.reaches_unnamed_submodules() {
            self.deciders.written.searched.push(tree.to_path_buf());
        }
    }

    fn nearest_repositories(&mut self, tree: &Path) {
        let mut pending = VecDeque::from([tree.to_path_buf()]);
        let mut looked_at = 0;
        while let Some(directory) = pending.pop_front() {
            // A directory that is closed to everybody is not a repository yet. The directory is
            // left as it is, and recorded so that a change is reported.
            let Ok(entries) = self.deciders.files.list(&directory) else {
                self.deciders.note(&directory, PathState::Denied);
                continue;
            };
            for (name, kind) in entries.iter() {
                if *kind != FileType::Directory || name == ".git" {
                    continue;
                }
                if looked_at == MAX_PROTECTED_DIRECTORIES {
                    return;
                }
                looked_at += 1;
                self.nested_repository(directory.join(name), &mut pending);
            }
        }
    }

    fn nested_repository(&mut self, nested: PathBuf, pending: &mut VecDeque<PathBuf>) {
        if self.submodules.contains_key(&nested) {
            return;
        }
        let entry = nested.join(".git");
        if let TraceEnd::Denied(closed) = self.deciders.files.trace(&entry).end {
            return self.deciders.note(&closed, PathState::Denied);
        }
        self.visit_all(PendingVisit::Directory {
            path: nested.clone(),
            role: GitEntry::Discovered,
        });
        if !self.repositories.contains_key(&nested) {
            pending.push_back(nested);
        }
    }

    /// Visits the repositories of a tree that the search before the run did not know. Records only
    /// files that changed since the run began, because the kernel notes when a file was changed. A
    /// directory that the run moved brings older files. So all files of a repository count if the
    /// run may have moved the repository, and git may take it for a submodule.
    fn add_newer_repositories(&mut self, tree: &Path, began: FileTime) {
        let counts_moved = self.reaches_unnamed_submodules();
        let mut walk = TreeWalk::new(tree);
        while let Some(directory) = walk.next_directory() {
            if walk.count() > MAX_SEARCHED_DIRECTORIES {
                return self.deciders.note(&directory.path, PathState::Unknown);
            }
            let Some(scan) = directory.scan else {
                self.deciders.note(&directory.path, PathState::Denied);
                continue;
            };
            let is_known = self.directories.contains(&directory.path)
                || self.repositories.contains_key(&directory.path);
            let entry = directory.path.join(".git");
            let has_entry =
                scan.has_git || scan.is_leaf && is_present_and_changed_since(&entry, began);
            let may_be_repository = scan.has_head || scan.is_leaf;
            if is_known
                || !(has_entry || may_be_repository && self.is_git_directory(&directory.path))
            {
                continue;
            }
            let is_moved = counts_moved
                && !self.deciders.surveyed_repositories.contains(&directory.path)
                && RepositoryOrigin::find(tree, &directory.path, began) == RepositoryOrigin::Unsure;
            self.deciders.note_only_since(Some(began).filter(|_| !is_moved));
            let known = self.repositories.len();
            self.visit_all(PendingVisit::Directory {
                path: directory.path,
                role: GitEntry::Discovered,
            });
            // The other files may be older than the run. The directory was not a repository as long
            // as it had no `HEAD`.
            if self.repositories.len() > known {
                self.deciders.note_existing(&entry.join("HEAD"));
            }
            self.deciders.note_only_since(Some(began));
        }
    }

    /// Tells whether git on the host may take a directory for a submodule that no index contains. A
    /// sequence in progress can put submodules into an index.
    fn reaches_unnamed_submodules(&self) -> bool {
        let of_worktrees = self.repositories.values().map(|known| &known.own);
        let of_repositories =
            self.commons.values().chain(of_worktrees).map(|variables| variables.as_slice());
        let mut known = of_repositories.chain([self.global.as_slice()]);
        self.has_sequence || known.any(|variables| variables.iter().any(follows_commits))
    }
}

/// Tells whether a setting makes git look into submodules that only a commit names. `git fetch`
/// does so if the configuration has the submodule, `git log -p` and `git diff` if they show the
/// commits of a submodule, `git status` if it summarizes these commits, and `git push` if it also
/// pushes submodules.
fn follows_commits(variable: &ConfigVariable) -> bool {
    match (variable.section.as_str(), variable.key.as_str()) {
        ("submodule", _) => true,
        ("diff", "submodule") => !variable.value.eq_ignore_ascii_case(b"short"),
        ("status", "submodulesummary") => is_true(&variable.value),
        ("push", "recursesubmodules") => is_true(&variable.value),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::parse_config;
    use super::*;

    #[test]
    fn a_setting_that_shows_or_pushes_submodules_has_git_follow_commits() {
        for (config, expected) in [
            ("[submodule \"x\"]\nurl = y", true),
            ("[diff]\nsubmodule = log", true),
            ("[diff]\nsubmodule = diff", true),
            ("[diff]\nsubmodule = short", false),
            ("[diff]\nexternal = x", false),
            ("[status]\nsubmoduleSummary", true),
            ("[status]\nsubmoduleSummary = 5", true),
            ("[status]\nsubmoduleSummary = false", false),
            ("[push]\nrecurseSubmodules = on-demand", true),
            ("[push]\nrecurseSubmodules = check", true),
            ("[push]\nrecurseSubmodules = no", false),
        ] {
            assert_eq!(follows_commits(&parse_config(config.as_bytes())[0]), expected, "{config}");
        }
    }
}
