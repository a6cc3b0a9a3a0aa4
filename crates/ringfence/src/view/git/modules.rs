//! Submodules: those in an index, and the repositories that a superproject keeps for them.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use ringfence_core::workspace::remove_dots;

use super::config::{ConfigVariable, parse_config};
use super::index::{Gitlink, IndexLinks, read_index};
use super::{GitEntry, GitSearch, KnownRepository, MAX_CONFIG, PendingVisit};
use crate::view::deciders::{PathState, path_from};
use crate::view::visible_names::lies_in;

/// Commit that an index makes git check out in the work tree of a submodule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SubmoduleCheckout {
    index: PathBuf,
    commit: Vec<u8>,
}

impl GitSearch<'_> {
    /// Returns the submodules in an index.
    pub(super) fn gitlinks(&mut self, index: &Path, hash_length: usize) -> Vec<Gitlink> {
        let Some(found) = self.deciders.resolve(index) else { return Vec::new() };
        let opened = self.deciders.files.open(&found.path);
        let Some(Some(file)) = self.deciders.or_denied(opened) else { return Vec::new() };
        match read_index(file, hash_length) {
            Ok(IndexLinks { mut gitlinks, shared_index, is_partial }) => {
                // The user may have a sparse or split index. An index that becomes sparse or split
                // is reported.
                if is_partial {
                    self.deciders.note(index, PathState::Denied);
                }
                // The file that a split index refers to is not split itself.
                let is_split = index
                    .file_name()
                    .is_some_and(|name| name.as_bytes().starts_with(b"sharedindex."));
                if let Some(shared) = shared_index.filter(|_| !is_split) {
                    gitlinks.extend(self.gitlinks(&index.with_file_name(shared), hash_length));
                }
                gitlinks
            }
            // Git may see other entries in an index that no git wrote, or that a newer git wrote.
            Err(_) => {
                self.deciders.note(index, PathState::Unknown);
                Vec::new()
            }
        }
    }

    /// Visits a submodule that an index contains.
    pub(super) fn submodule(&mut self, index: &Path, worktree: &Path, link: &Gitlink) {
        let path = self.submodule_path(&worktree.join(&link.path));
        if self.deciders.notes_file(index) {
            let checkout =
                SubmoduleCheckout { index: index.to_path_buf(), commit: link.commit.clone() };
            self.submodules.entry(path.clone()).or_default().insert(checkout);
        } else {
            self.submodules.entry(path.clone()).or_default();
        }
        self.pending.push_back(PendingVisit::Directory { path, role: GitEntry::OfSubmodule });
    }

    /// Returns the path of a submodule's work tree without links. The work tree need not exist.
    fn submodule_path(&mut self, path: &Path) -> PathBuf {
        self.deciders.resolve(path).map_or_else(|| remove_dots(path), |found| found.path)
    }

    /// Records the commits from which `git submodule update` would write a deciding file. All
    /// deciding files must be known by then, because any repository's settings can name one.
    pub(super) fn note_submodules(&mut self) {
        for worktree in self.deciding_submodules() {
            let merged = if self.merged_submodules.contains(&worktree) {
                self.merge_start(&worktree)
            } else {
                Vec::new()
            };
            let mut shown = Vec::new();
            for SubmoduleCheckout { index, commit } in
                self.submodules.remove(&worktree).unwrap_or_default()
            {
                if self.deciders.is_writable(&worktree) {
                    shown.extend(commit);
                } else {
                    // The sandbox cannot write to this work tree, but may be able to write to the
                    // index.
                    let content =
                        [worktree.as_os_str().as_bytes(), b"\0", &commit, &merged].concat();
                    self.index_contents.entry(index).or_default().insert(content);
                }
            }
            if !shown.is_empty() {
                shown.extend(&merged);
                self.deciders.note_content(&worktree, &shown);
            }
        }
        for (index, contents) in std::mem::take(&mut self.index_contents) {
            if !self.deciders.is_unjudged(&index) {
                let contents: Vec<Vec<u8>> = contents.into_iter().collect();
                self.deciders.note_content(&index, &contents.concat());
            }
        }
    }

    /// Returns the work trees of submodules that contain a deciding path, even if no file exists at
    /// the path. Paths below a `.git` do not count, because git checks nothing out there.
    fn deciding_submodules(&mut self) -> BTreeSet<PathBuf> {
        let mut found = BTreeSet::new();
        if self.submodules.is_empty() {
            return found;
        }
        for path in std::mem::take(&mut self.deciders.deciding) {
            let outside_git = path
                .ancestors()
                .take_while(|above| above.file_name().is_some_and(|name| name != ".git"));
            found.extend(
                outside_git
                    .filter(|above| self.submodules.contains_key(*above))
                    .map(Path::to_path_buf),
            );
        }
        found
    }

    /// Returns the state of a submodule with which git merges another commit.
    fn merge_start(&mut self, worktree: &Path) -> Vec<u8> {
        let of_worktree =
            self.repositories.iter().filter(|(_, known)| known.worktrees.contains(worktree));
        let mut of_worktree: Vec<(PathBuf, KnownRepository)> =
            of_worktree.map(|(gitdir, known)| (gitdir.clone(), known.clone())).collect();
        of_worktree.sort_by(|one, other| one.0.cmp(&other.0));
        of_worktree.iter().flat_map(|(gitdir, known)| self.sequence_start(gitdir, known)).collect()
    }

    /// Visits the repositories that a repository keeps for its submodules, for all worktrees or for
    /// one.
    pub(super) fn modules(&mut self, gitdir: &Path, repository: &KnownRepository, worktree: &Path) {
        let directories = BTreeSet::from([gitdir, &repository.common])
            .into_iter()
            .map(|kept| kept.join("modules"));
        let directories: Vec<PathBuf> =
            directories.filter(|kept| self.deciders.files.has_name(kept)).collect();
        if directories.is_empty() {
            return;
        }
        let described = self.deciders.resolve(&worktree.join(".gitmodules"));
        let described = described.and_then(|file| self.deciders.read(&file.path, MAX_CONFIG));
        if described.is_none() && !repository.gitlinks.is_empty() {
            // Without `.gitmodules`, git takes the names from a commit or from the index, and any
            // directory may be meant.
            let paths: Vec<&[u8]> =
                repository.gitlinks.iter().map(|link| link.path.as_os_str().as_bytes()).collect();
            let index = gitdir.join("index");
            if self.deciders.notes_file(&index) {
                self.index_contents.entry(index).or_default().insert(paths.join(&0));
            }
        }
        let described = parse_config(&described.unwrap_or_default());
        let is_of_submodule = |variable: &&ConfigVariable| variable.section == "submodule";
        let of_submodules: Vec<&ConfigVariable> =
            described.iter().chain(&*repository.shared).filter(is_of_submodule).collect();
        let names: BTreeSet<&[u8]> =
            of_submodules.iter().filter_map(|known| known.subsection.as_deref()).collect();
        let is_plain = |name: &&[u8]| {
            path_from(name).components().all(|part| matches!(part, Component::Normal(_)))
                && !name.contains(&0)
        };
        for name in names.into_iter().filter(is_plain) {
            let values = |key: &'static str| {
                let matching = move |known: &&&ConfigVariable| {
                    known.subsection.as_deref() == Some(name) && known.key == key
                };
                of_submodules.iter().filter(matching).map(|known| known.value.as_slice())
            };
            // Git connects the repository with this path, whatever path it had before.
            let paths = values("path").map(path_from);
            let paths = paths.filter(|path| {
                repository.gitlinks.iter().any(|link| link.path.as_os_str() == path.as_os_str())
            });
            let paths: Vec<PathBuf> = paths.map(|path| worktree.join(path)).collect();
            if values("update").any(|strategy| matches!(strategy, b"merge" | b"rebase")) {
                let resolved = paths.iter().map(|path| self.submodule_path(path));
                let resolved: Vec<PathBuf> = resolved.collect();
                self.merged_submodules.extend(resolved);
            }
            for directory in &directories {
                let module = directory.join(OsStr::from_bytes(name));
                let Some(found) = self.deciders.resolve(&module).filter(|found| found.is_directory)
                else {
                    continue;
                };
                self.visit_repository(&found.path, None);
                paths
                    .iter()
                    .for_each(|path| self.visit_repository(&found.path, Some(path.clone())));
            }
        }
        self.module_directories.extend(directories);
    }

    /// Visits the work tree of a submodule that has no repository yet. Git will connect a
    /// repository with the files that are there.
    pub(super) fn unpopulated_submodule(&mut self, worktree: &Path) {
        let global = std::mem::take(&mut self.global);
        self.apply(&global, worktree);
        self.global = global;
        // Git creates an empty directory for a submodule, so any content is recorded.
        if !self.list(worktree).is_empty() {
            self.deciders.note(worktree, PathState::Directory);
        }
    }

    /// Protects everything among the repositories of submodules that is not a repository in use.
    pub(super) fn unknown_modules(&mut self, directory: &Path) {
        let in_use = self.repositories.keys().filter(|gitdir| lies_in(gitdir, directory));
        let in_use: BTreeSet<PathBuf> = in_use.cloned().collect();
        self.protect_unused_modules(directory, &in_use);
    }

    fn protect_unused_modules(&mut self, directory: &Path, in_use: &BTreeSet<PathBuf>) {
        for (name, _) in self.list(directory).iter() {
            let path = directory.join(name);
            match in_use.range(path.clone()..).next() {
                Some(known) if *known == path => {}
                Some(known) if known.starts_with(&path) => {
                    self.protect_unused_modules(&path, in_use)
                }
                _ => drop(self.deciders.protect(&path)),
            }
        }
    }
}
