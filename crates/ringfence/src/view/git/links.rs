//! Symbolic links in repositories. Git writes many files of a repository by name, and follows a
//! link in place of such a file. If `COMMIT_EDITMSG` is a link to `config`, for example, a commit
//! message becomes the configuration.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use serde::{Deserialize, Serialize};

use super::GitSearch;
use crate::view::deciders::{PathState, SearchPhase};
use crate::view::observed::{
    DirectoryScan, FileTime, ObservedIdentity, RepositoryOrigin, TraceEnd, TreeWalk, is_absent,
    is_changed_since, is_present_and_changed_since, paths_below, scan_directory,
};

/// Directories of a repository in which git writes files by name. Directories of objects are not
/// listed, because a sandbox cannot choose the names and contents of objects.
const WRITTEN_DIRECTORIES: [&str; 8] = [
    "NOTES_MERGE_WORKTREE",
    "info",
    "logs",
    "rebase-apply",
    "rebase-merge",
    "refs",
    "rr-cache",
    "sequencer",
];
/// Directories of a submodule's repository that are not searched for other repositories. Git looks
/// only for hooks and objects in some of these directories, and the others have a search of their
/// own.
const OWN_DIRECTORIES: [&str; 9] =
    ["annex", "branches", "hooks", "lfs", "modules", "objects", "remotes", "svn", "worktrees"];
/// Maximum number of files whose content matters that are looked at, which takes half a second.
pub(super) const MAX_CONTENTS: usize = 1 << 17;
/// Maximum number of directories that are searched for links, which takes a tenth of a second. Most
/// repositories have fewer than 20.
const MAX_DIRECTORIES: usize = 1 << 14;

/// Directories of repositories in which git on the host writes files by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::view) struct WrittenDirectories {
    /// Directories, including everything below them.
    pub(in crate::view) trees: Vec<PathBuf>,
    /// Single paths. A path may be missing if its parent directory is also watched.
    pub(in crate::view) single: Vec<PathBuf>,
    /// Trees in which a new repository matters wherever it lies.
    pub(in crate::view) searched: Vec<PathBuf>,
    /// Directories, including everything below them, in which the content of each file matters.
    pub(in crate::view) contents: Vec<PathBuf>,
}

/// Directories in which git on the host writes files by name, as found after the start of a run.
///
/// Only the paths are kept. The kernel records when a directory or a link was changed, and code in
/// a sandbox cannot set that time. Everything that is older than the run was therefore not made by
/// the run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::view) struct LinkSurvey {
    directories: Vec<PathBuf>,
    /// Paths that need not exist.
    single: Vec<PathBuf>,
    /// `true` if some directories could not be looked at.
    is_partial: bool,
    /// Directories of the searched trees that had a repository before the run.
    pub(in crate::view) repositories: HashSet<PathBuf>,
}

impl LinkSurvey {
    /// Takes a survey of all directories of `written`, and of the directories in `writable` trees
    /// that links lead to.
    pub(in crate::view) fn take(
        written: &WrittenDirectories,
        writable: &[PathBuf],
        began: FileTime,
    ) -> LinkSurvey {
        let mut survey = LinkSurvey { single: written.single.clone(), ..LinkSurvey::default() };
        let mut pending = written.trees.clone();
        let mut behind_links = BTreeSet::new();
        while let Some(directory) = pending.pop() {
            let entries = scan_directory(&directory)
                .ok()
                .filter(|_| survey.directories.len() < MAX_DIRECTORIES);
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
        for directory in &written.contents {
            let paths = paths_below(directory, MAX_CONTENTS);
            survey.is_partial |= paths.is_none();
            survey.single.extend(paths.unwrap_or_default());
        }
        written.searched.iter().for_each(|tree| survey.add_tree(tree, began));
        survey
    }

    /// Returns the identities that the directories of the survey do not cover, and removes from the
    /// survey the paths that the identities cover. An unchanged directory contains the same names,
    /// so a missing name is still missing.
    pub(in crate::view) fn without_covered(
        &mut self,
        identities: &[(PathBuf, ObservedIdentity)],
    ) -> Vec<(PathBuf, ObservedIdentity)> {
        let surveyed: HashSet<&OsStr> =
            self.directories.iter().map(|path| path.as_os_str()).collect();
        let mut listed = HashSet::new();
        let mut read = HashSet::new();
        for (path, identity) in identities {
            if identity.is_listed_directory() {
                listed.insert(path.as_os_str());
            } else if let ObservedIdentity::Read { .. } = identity {
                read.insert(path.as_os_str());
            }
        }
        let is_in_known_directory = |path: &Path| {
            let above = path.parent().map(Path::as_os_str);
            above.is_some_and(|above| surveyed.contains(above) || listed.contains(above))
        };
        let is_covered = |path: &Path, identity: &ObservedIdentity| match identity {
            ObservedIdentity::Absent => is_in_known_directory(path),
            ObservedIdentity::Passed { .. } => {
                surveyed.contains(path.as_os_str()) && is_in_known_directory(path)
            }
            ObservedIdentity::Read { .. } | ObservedIdentity::Denied => false,
        };
        let uncovered = identities
            .iter()
            .filter(|(path, identity)| !is_covered(path, identity))
            .cloned()
            .collect();
        self.single.retain(|path| {
            let is_covered =
                read.contains(path.as_os_str()) || is_in_known_directory(path) && is_absent(path);
            !is_covered
        });
        uncovered
    }

    /// Adds all directories of a tree, and the deciding files of the repositories in it.
    fn add_tree(&mut self, tree: &Path, began: FileTime) {
        let mut walk = TreeWalk::new(tree);
        while let Some(directory) = walk.next_directory() {
            let Some(scan) = directory.scan.filter(|_| walk.count() < MAX_DIRECTORIES) else {
                self.is_partial = true;
                return;
            };
            let entry = directory.path.join(".git");
            let has_repository = || {
                RepositoryOrigin::find(tree, &directory.path, began) == RepositoryOrigin::BeforeRun
            };
            if (scan.has_git || scan.has_head) && has_repository() {
                self.repositories.insert(directory.path.clone());
            }
            if scan.has_git {
                self.single.extend([entry.join("config"), entry.join("hooks"), entry]);
            } else if scan.is_leaf && !is_absent(&entry) {
                self.single.push(entry);
            }
            self.directories.push(directory.path);
        }
    }

    /// Tells whether anything in the surveyed directories may have changed since `began`.
    pub(in crate::view) fn is_changed_since(&self, began: FileTime) -> bool {
        self.is_partial
            || self.directories.iter().any(|directory| is_changed_since(directory, began))
            || self.single.iter().any(|directory| is_present_and_changed_since(directory, began))
    }
}

/// Directory that is still to be searched for links.
struct PendingDirectory {
    path: PathBuf,
    /// `true` if the run changed this directory, or a directory above it.
    is_changed: bool,
}

impl GitSearch<'_> {
    /// Records the links through which git writes in the directory of a repository: all links at
    /// its top, and after a run also those further down that the run may have made.
    pub(super) fn note_links(&mut self, gitdir: &Path) {
        if !self.searched_for_links.insert(gitdir.to_path_buf())
            || !self.deciders.is_writable(gitdir)
        {
            return;
        }
        // If the directory cannot be listed, its files are looked at and recorded one by one.
        let entries = self.deciders.files.list(gitdir).unwrap_or_default();
        let mut pending = Vec::new();
        let is_module = self.is_module(gitdir);
        for (name, kind) in entries.iter() {
            let path = gitdir.join(name);
            let is_written = WRITTEN_DIRECTORIES.iter().any(|written| name == written);
            let is_strange = || !OWN_DIRECTORIES.iter().any(|own| name == own);
            match kind {
                FileType::Directory if is_written || is_module && is_strange() => {
                    pending.push(path)
                }
                FileType::Symlink => pending.extend(self.note_link(&path).filter(|_| is_written)),
                _ => {}
            }
        }
        match self.deciders.phase {
            // Git also writes to the repository of a submodule in which nobody works. A sandbox
            // chooses part of the contents of branch logs, namely the subjects of commits.
            // References contain only names of commits.
            SearchPhase::BeforeRun if is_module => {
                let written = &mut self.deciders.written;
                for path in pending {
                    match path.file_name().and_then(OsStr::to_str) {
                        Some("logs") => {
                            let [references, branches] =
                                ["refs", "refs/heads"].map(|name| path.join(name));
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

    /// Records the links in and below some directories that may have changed since `began`.
    fn note_links_below(&mut self, directories: Vec<PathBuf>, is_module: bool, began: FileTime) {
        let mut pending: Vec<PendingDirectory> = directories
            .into_iter()
            .map(|path| PendingDirectory { path, is_changed: false })
            .collect();
        while let Some(PendingDirectory { path: directory, is_changed }) = pending.pop() {
            if self.directories_of_links >= MAX_DIRECTORIES {
                self.deciders.note(&directory, PathState::Unknown);
                return;
            }
            self.directories_of_links += 1;
            // A directory that the run moved here may contain links that are older than the run.
            let is_changed = is_changed || is_changed_since(&directory, began);
            let Ok(scan) = scan_directory(&directory) else {
                self.deciders.note(&directory, PathState::Unknown);
                continue;
            };
            if is_module && is_changed && scan.has_head && self.is_git_directory(&directory) {
                self.visit_repository(&directory, None);
            }
            pending.extend(
                scan.directories.into_iter().map(|path| PendingDirectory { path, is_changed }),
            );
            for link in scan.links {
                let is_changed = is_changed || is_changed_since(&link, began);
                let target =
                    if is_changed { self.note_link(&link) } else { self.directory_behind(&link) };
                pending.extend(target.map(|path| PendingDirectory { path, is_changed }));
            }
        }
    }

    /// Tells whether a directory is kept for a submodule. The name of another submodule can lead
    /// into that directory: the repository of `sub/logs/more` lies among the logs of `sub`.
    fn is_module(&self, gitdir: &Path) -> bool {
        gitdir.ancestors().skip(1).any(|above| {
            let keeper = above.parent().filter(|_| above.ends_with("modules"));
            keeper.is_some_and(|keeper| {
                self.commons.contains_key(keeper) || self.repositories.contains_key(keeper)
            })
        })
    }

    /// Records a link, and returns the directory that it leads to if that is still to be searched.
    fn note_link(&mut self, path: &Path) -> Option<PathBuf> {
        for (link, text) in self.deciders.files.trace(path).links {
            self.deciders.note(&link, PathState::Link(text.into()));
        }
        self.directory_behind(path)
    }

    /// Returns the directory that a link leads to if that is still to be searched.
    fn directory_behind(&mut self, link: &Path) -> Option<PathBuf> {
        let end = self.deciders.files.trace(link).end;
        let TraceEnd::At { path, is_directory: true } = end else { return None };
        let is_new =
            self.deciders.is_writable(&path) && self.searched_for_links.insert(path.clone());
        is_new.then_some(path)
    }
}
