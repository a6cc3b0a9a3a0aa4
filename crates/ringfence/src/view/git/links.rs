//! Symbolic links in repositories. Git writes many files of a repository by their names, and follows a
//! link in place of one: `COMMIT_EDITMSG`, a link to `config`, makes a commit message the configuration.

use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::GitSearch;
use crate::view::deciders::{PathState, SearchPhase};
use crate::view::observed::TraceEnd;

/// Directories of a repository in which git writes files by their names. Objects are not among them:
/// their names and their content are no choice of a sandbox.
const WRITTEN_DIRECTORIES: [&str; 8] =
    ["NOTES_MERGE_WORKTREE", "info", "logs", "rebase-apply", "rebase-merge", "refs", "rr-cache", "sequencer"];
/// Directories of a submodule's repository that are not searched for other repositories. Git looks for
/// hooks and objects alone in there, and the others are searched as what they are.
const OWN_DIRECTORIES: [&str; 9] =
    ["annex", "branches", "hooks", "lfs", "modules", "objects", "remotes", "svn", "worktrees"];
/// The number of directories that are searched for links before a run: some milliseconds. Most repositories
/// have less than 20. Where there are more, links that were there before count as new.
const MAX_DIRECTORIES_BEFORE: usize = 1 << 10;
/// The number of directories that are searched for links after a run: a tenth of a second.
const MAX_DIRECTORIES_AFTER: usize = 1 << 14;

impl GitSearch<'_> {
    /// Keeps the links through which git writes in the directory of a repository.
    pub(super) fn note_links(&mut self, gitdir: &Path) {
        if !self.searched_for_links.insert(gitdir.to_path_buf()) || !self.deciders.is_writable(gitdir) {
            return;
        }
        // A directory that cannot be listed has every file of it looked at, and noted.
        let entries = self.deciders.files.list(gitdir).unwrap_or_default();
        let mut pending = Vec::new();
        let is_module = self.is_module(gitdir);
        for (name, kind) in entries.iter() {
            let path = gitdir.join(name);
            let is_written = WRITTEN_DIRECTORIES.iter().any(|written| name == written);
            let is_strange = || !OWN_DIRECTORIES.iter().any(|own| name == own);
            match kind {
                FileType::Directory if is_module && is_strange() => pending.push(path),
                FileType::Symlink => pending.extend(self.note_link(&path).filter(|_| is_written)),
                _ if is_written => pending.push(path),
                _ => {}
            }
        }
        let limit = match self.deciders.phase {
            SearchPhase::BeforeRun => MAX_DIRECTORIES_BEFORE,
            SearchPhase::AfterRun => MAX_DIRECTORIES_AFTER,
        };
        while let Some(directory) = pending.pop() {
            if self.directories_of_links >= limit {
                self.deciders.is_partial = true;
                if self.deciders.phase == SearchPhase::AfterRun {
                    self.deciders.note(&directory, PathState::Unknown);
                }
                return;
            }
            self.directories_of_links += 1;
            match self.deciders.files.scan(&directory) {
                Ok(scan) => {
                    if is_module && scan.has_head && self.is_git_directory(&directory) {
                        self.visit_repository(&directory, None);
                    }
                    pending.extend(scan.links.iter().filter_map(|link| self.note_link(link)));
                    pending.extend(scan.directories);
                }
                Err(_) => self.deciders.note(&directory, PathState::Unknown),
            }
        }
    }

    /// Tells whether a directory is kept for a submodule. The name of another submodule can lead into it: the
    /// repository of `sub/logs/more` lies among the logs of `sub`.
    fn is_module(&self, gitdir: &Path) -> bool {
        gitdir.ancestors().skip(1).any(|above| {
            let keeper = above.parent().filter(|_| above.ends_with("modules"));
            keeper.is_some_and(|keeper| self.commons.contains_key(keeper) || self.repositories.contains_key(keeper))
        })
    }

    /// Keeps a link, and returns the directory that it leads to where that is still to be searched.
    fn note_link(&mut self, path: &Path) -> Option<PathBuf> {
        let trace = self.deciders.files.trace(path);
        for (link, text) in trace.links {
            self.deciders.note(&link, PathState::Link(text.into()));
        }
        let TraceEnd::At { path, is_directory: true } = trace.end else { return None };
        let is_new = self.deciders.is_writable(&path) && self.searched_for_links.insert(path.clone());
        is_new.then_some(path)
    }
}
