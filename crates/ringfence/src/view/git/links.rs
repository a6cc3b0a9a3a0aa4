//! Symbolic links in repositories. Git writes many files of a repository by their names, and follows a
//! link in place of one: `COMMIT_EDITMSG`, a link to `config`, makes a commit message the configuration.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use serde::{Deserialize, Serialize};

use super::GitSearch;
use crate::view::deciders::{PathState, SearchPhase};
use crate::view::observed::{
    DirectoryScan, FileIdentity, FileTime, TraceEnd, TreeWalk, is_absent, is_changed_since,
    is_present_and_changed_since, scan_directory,
};

/// Directories of a repository in which git writes files by their names. Objects are not among them:
/// their names and their content are no choice of a sandbox.
const WRITTEN_DIRECTORIES: [&str; 8] =
    ["NOTES_MERGE_WORKTREE", "info", "logs", "rebase-apply", "rebase-merge", "refs", "rr-cache", "sequencer"];
/// Directories of a submodule's repository that are not searched for other repositories. Git looks for
/// hooks and objects alone in there, and the others are searched as what they are.
const OWN_DIRECTORIES: [&str; 9] =
    ["annex", "branches", "hooks", "lfs", "modules", "objects", "remotes", "svn", "worktrees"];
/// The number of directories that are searched for links: a tenth of a second. Most repositories have less than 20.
const MAX_DIRECTORIES: usize = 1 << 14;

/// The directories of repositories in which git on the host writes files by their names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::view) struct WrittenDirectories {
    /// Directories with all that is below them.
    pub(in crate::view) trees: Vec<PathBuf>,
    /// Directories alone. Each may be missing as long as the one that it would lie in is among them.
    pub(in crate::view) single: Vec<PathBuf>,
    /// Trees in which a new repository matters wherever it is.
    pub(in crate::view) searched: Vec<PathBuf>,
}

/// The directories in which git on the host writes files by their names, as a search after the start of a run finds them.
///
/// Only their names are kept. The kernel notes when a directory or a link was changed, and nobody in a sandbox can set
/// that time: whatever is older than the run is not the run's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::view) struct LinkSurvey {
    directories: Vec<PathBuf>,
    /// Directories that need not exist.
    single: Vec<PathBuf>,
    /// Not all directories could be looked at.
    is_partial: bool,
}

impl LinkSurvey {
    /// Looks for all directories of `written`, and for those in `writable` trees that links lead to.
    pub(in crate::view) fn take(written: &WrittenDirectories, writable: &[PathBuf]) -> LinkSurvey {
        let mut survey = LinkSurvey { single: written.single.clone(), ..LinkSurvey::default() };
        let mut pending = written.trees.clone();
        let mut behind_links = BTreeSet::new();
        while let Some(directory) = pending.pop() {
            let entries = scan_directory(&directory).ok().filter(|_| survey.directories.len() < MAX_DIRECTORIES);
            survey.is_partial |= entries.is_none();
            let DirectoryScan { links, directories, .. } = entries.unwrap_or_default();
            pending.extend(directories);
            for target in links.iter().filter_map(|link| fs_err::canonicalize(link).ok()) {
                let is_writable = writable.iter().any(|tree| target.starts_with(tree));
                if is_writable && target.is_dir() && behind_links.insert(target.clone()) {
                    pending.push(target);
                }
            }
            survey.directories.push(directory);
        }
        written.searched.iter().for_each(|tree| survey.add_tree(tree));
        survey
    }

    /// Leaves out the identities that the directories of the survey cover, and the files of the survey that the identities
    /// cover. A directory that did not change has the same names in it: a name that was missing is missing still.
    pub(in crate::view) fn without_covered(
        &mut self,
        identities: &[(PathBuf, FileIdentity)],
    ) -> Vec<(PathBuf, FileIdentity)> {
        let surveyed: HashSet<&OsStr> = self.directories.iter().map(|path| path.as_os_str()).collect();
        let mut listed = HashSet::new();
        let mut read = HashSet::new();
        for (path, identity) in identities {
            if identity.is_listed_directory() {
                listed.insert(path.as_os_str());
            } else if let FileIdentity::Read { .. } = identity {
                read.insert(path.as_os_str());
            }
        }
        let is_in_known_directory = |path: &Path| {
            let above = path.parent().map(Path::as_os_str);
            above.is_some_and(|above| surveyed.contains(above) || listed.contains(above))
        };
        let is_covered = |path: &Path, identity: &FileIdentity| match identity {
            FileIdentity::Absent => is_in_known_directory(path),
            FileIdentity::Passed { .. } => surveyed.contains(path.as_os_str()) && is_in_known_directory(path),
            FileIdentity::Read { .. } | FileIdentity::Denied => false,
        };
        let uncovered = identities.iter().filter(|(path, identity)| !is_covered(path, identity)).cloned().collect();
        self.single.retain(|path| {
            let is_covered = read.contains(path.as_os_str()) || is_in_known_directory(path) && is_absent(path);
            !is_covered
        });
        uncovered
    }

    /// Adds all directories of a tree, and the deciding files of the repositories in it.
    fn add_tree(&mut self, tree: &Path) {
        let mut walk = TreeWalk::new(tree);
        while let Some(directory) = walk.next_directory() {
            let Some(scan) = directory.scan.filter(|_| walk.count() < MAX_DIRECTORIES) else {
                self.is_partial = true;
                return;
            };
            let entry = directory.path.join(".git");
            if scan.has_git {
                self.single.extend([entry.join("config"), entry.join("hooks"), entry]);
            } else if scan.is_leaf && !is_absent(&entry) {
                self.single.push(entry);
            }
            self.directories.push(directory.path);
        }
    }

    /// Tells whether something in the directories may be younger than `began`.
    pub(in crate::view) fn is_changed_since(&self, began: FileTime) -> bool {
        self.is_partial
            || self.directories.iter().any(|directory| is_changed_since(directory, began))
            || self.single.iter().any(|directory| is_present_and_changed_since(directory, began))
    }
}

/// A directory that is still to be searched for links.
struct PendingDirectory {
    path: PathBuf,
    /// The directory, or one that it lies in, was changed by the run.
    is_changed: bool,
}

impl GitSearch<'_> {
    /// Keeps the links through which git writes in the directory of a repository: all those at its top, and after a run
    /// those further down that may be the run's.
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
                FileType::Directory if is_written || is_module && is_strange() => pending.push(path),
                FileType::Symlink => pending.extend(self.note_link(&path).filter(|_| is_written)),
                _ => {}
            }
        }
        match self.deciders.phase {
            // Git writes to the repository of a submodule that nobody works in, too. A sandbox chooses what it writes
            // in logs of branches: the subjects of commits. References are names of commits.
            SearchPhase::BeforeRun if is_module => {
                let written = &mut self.deciders.written;
                for path in pending {
                    match path.file_name().and_then(OsStr::to_str) {
                        Some("logs") => {
                            let [references, branches] = ["refs", "refs/heads"].map(|name| path.join(name));
                            written.single.extend([path, references, branches]);
                        }
                        Some("info" | "refs") => {}
                        _ => written.trees.push(path),
                    }
                }
            }
            SearchPhase::BeforeRun => self.deciders.written.trees.append(&mut pending),
            SearchPhase::AfterRun { began } => self.note_links_below(pending, is_module, began),
        }
    }

    /// Keeps the links in some directories, and below them, that may be younger than `began`.
    fn note_links_below(&mut self, directories: Vec<PathBuf>, is_module: bool, began: FileTime) {
        let mut pending: Vec<PendingDirectory> =
            directories.into_iter().map(|path| PendingDirectory { path, is_changed: false }).collect();
        while let Some(PendingDirectory { path: directory, is_changed }) = pending.pop() {
            if self.directories_of_links >= MAX_DIRECTORIES {
                self.deciders.note(&directory, PathState::Unknown);
                return;
            }
            self.directories_of_links += 1;
            // A directory that the run has moved here brings links that are older.
            let is_changed = is_changed || is_changed_since(&directory, began);
            let Ok(scan) = scan_directory(&directory) else {
                self.deciders.note(&directory, PathState::Unknown);
                continue;
            };
            if is_module && is_changed && scan.has_head && self.is_git_directory(&directory) {
                self.visit_repository(&directory, None);
            }
            pending.extend(scan.directories.into_iter().map(|path| PendingDirectory { path, is_changed }));
            for link in scan.links {
                let is_changed = is_changed || is_changed_since(&link, began);
                let target = if is_changed { self.note_link(&link) } else { self.directory_behind(&link) };
                pending.extend(target.map(|path| PendingDirectory { path, is_changed }));
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
        for (link, text) in self.deciders.files.trace(path).links {
            self.deciders.note(&link, PathState::Link(text.into()));
        }
        self.directory_behind(path)
    }

    /// The directory that a link leads to, where that is still to be searched.
    fn directory_behind(&mut self, link: &Path) -> Option<PathBuf> {
        let end = self.deciders.files.trace(link).end;
        let TraceEnd::At { path, is_directory: true } = end else { return None };
        let is_new = self.deciders.is_writable(&path) && self.searched_for_links.insert(path.clone());
        is_new.then_some(path)
    }
}
