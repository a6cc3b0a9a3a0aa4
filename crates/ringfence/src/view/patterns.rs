//! A search of the workspace for what the patterns of `hide` and `protect` match.
//!
//! A pattern is followed directory by directory, as a shell expands it: a name that matches may be a link to a
//! directory, and the rest of the pattern then applies to that directory. `**` stands for real directories alone,
//! so that every directory is visited a bounded number of times, however links are arranged.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ringfence_core::policy::{GlobComponent, PathGlob};

use super::ViewError;
use super::observed::{ObservedFiles, TraceEnd};

/// A file, by what all of its names have in common.
pub(super) type Inode = (u64, u64);

/// The effect of a pattern on the files that it matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PatternEffect {
    Hide,
    Protect,
}

/// A position in a pattern: the pattern's number, and how many of its components are matched.
type PatternPosition = (usize, usize);

/// The result of a search.
#[derive(Debug, Default)]
pub(super) struct PatternMatches {
    pub(super) hidden: BTreeSet<PathBuf>,
    pub(super) protected: BTreeSet<PathBuf>,
    /// Directories that could not be searched, and may hold anything.
    pub(super) denied: BTreeSet<PathBuf>,
    /// The files that have more than one name, with those of their names that were found.
    pub(super) linked: BTreeMap<Inode, Vec<PathBuf>>,
}

/// A search of a workspace.
pub(super) struct PatternSearch<'a> {
    root: &'a Path,
    /// The trees that links may lead to: those that the sandbox is shown.
    shown: &'a [PathBuf],
    patterns: Vec<(Vec<GlobComponent>, PatternEffect)>,
    visited: BTreeMap<PathBuf, BTreeSet<PatternPosition>>,
    pending: Vec<(PathBuf, BTreeSet<PatternPosition>)>,
    matches: PatternMatches,
}

impl<'a> PatternSearch<'a> {
    pub(super) fn new(root: &'a Path, shown: &'a [PathBuf], hide: &[PathGlob], protect: &[PathGlob]) -> Self {
        let with = |effect| move |glob: &PathGlob| glob.components().into_iter().map(move |list| (list, effect));
        let hide = hide.iter().flat_map(with(PatternEffect::Hide));
        // One that matches nothing has every real directory visited, for the names of files that have several.
        let everything = (vec![GlobComponent::AnyDepth], PatternEffect::Protect);
        let patterns =
            [everything].into_iter().chain(hide).chain(protect.iter().flat_map(with(PatternEffect::Protect)));
        PatternSearch {
            root,
            shown,
            patterns: patterns.collect(),
            visited: BTreeMap::new(),
            pending: Vec::new(),
            matches: PatternMatches::default(),
        }
    }

    pub(super) fn run(mut self, files: &mut ObservedFiles) -> Result<PatternMatches, ViewError> {
        let start = (0..self.patterns.len()).map(|number| (number, 0)).collect();
        self.pending.push((self.root.to_path_buf(), start));
        while let Some((directory, positions)) = self.pending.pop() {
            let positions = self.skip_any_depth(positions);
            let visited = self.visited.entry(directory.clone()).or_default();
            let new: BTreeSet<_> = positions.difference(visited).copied().collect();
            if !new.is_empty() {
                visited.extend(&new);
                self.search_directory(&directory, &new, files)?;
            }
        }
        Ok(self.matches)
    }

    /// Adds the positions after each `**`, which may stand for no directory at all.
    fn skip_any_depth(&self, mut positions: BTreeSet<PatternPosition>) -> BTreeSet<PatternPosition> {
        let mut pending: Vec<_> = positions.iter().copied().collect();
        while let Some((number, at)) = pending.pop() {
            let components = &self.patterns[number].0;
            let is_any_depth = matches!(components.get(at), Some(GlobComponent::AnyDepth));
            if is_any_depth && at + 1 < components.len() && positions.insert((number, at + 1)) {
                pending.push((number, at + 1));
            }
        }
        positions
    }

    fn search_directory(
        &mut self,
        directory: &Path,
        positions: &BTreeSet<PatternPosition>,
        files: &mut ObservedFiles,
    ) -> Result<(), ViewError> {
        let failed = |source| ViewError::Search { path: directory.to_path_buf(), source };
        let entries = match fs_err::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) if directory == self.root => return Err(failed(error)),
            // Code inside owns it and can open it up again.
            Err(_) => {
                self.matches.denied.insert(directory.to_path_buf());
                return Ok(());
            }
        };
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let path = directory.join(entry.file_name());
            let metadata = match fs_err::symlink_metadata(&path) {
                Ok(metadata) => metadata,
                Err(error) if is_absent(&error) => continue,
                Err(error) if directory == self.root => return Err(failed(error)),
                Err(_) => {
                    self.matches.denied.insert(directory.to_path_buf());
                    return Ok(());
                }
            };
            if let Some(inode) = shared_inode(&metadata) {
                let names = self.matches.linked.entry(inode).or_default();
                if !names.contains(&path) {
                    names.push(path.clone());
                }
            }
            self.advance(&path, &entry.file_name(), &metadata, positions, files);
        }
        Ok(())
    }

    /// Takes each pattern one name further.
    fn advance(
        &mut self,
        path: &Path,
        name: &OsStr,
        metadata: &Metadata,
        positions: &BTreeSet<PatternPosition>,
        files: &mut ObservedFiles,
    ) {
        let mut below = BTreeSet::new();
        let mut below_link = BTreeSet::new();
        let mut effects = Vec::new();
        for (number, at) in positions.iter().copied() {
            let (components, effect) = &self.patterns[number];
            let is_last = at + 1 == components.len();
            match &components[at] {
                GlobComponent::AnyDepth => {
                    below.insert((number, at));
                    if is_last && number != 0 {
                        effects.push(*effect);
                    }
                }
                GlobComponent::Name(matcher) if !matcher.is_match(Path::new(name)) => {}
                GlobComponent::Name(_) if is_last => effects.push(*effect),
                GlobComponent::Name(_) => {
                    below.insert((number, at + 1));
                    below_link.insert((number, at + 1));
                }
            }
        }
        if metadata.is_dir() {
            self.pending.push((path.to_path_buf(), below));
        }
        if effects.is_empty() && (below_link.is_empty() || !metadata.is_symlink()) {
            return;
        }
        let end = if metadata.is_symlink() {
            files.trace(path).end
        } else {
            TraceEnd::At { path: path.to_path_buf(), is_directory: metadata.is_dir() }
        };
        match end {
            TraceEnd::At { path: end, is_directory } if !self.root.starts_with(&end) => {
                for effect in effects {
                    match effect {
                        PatternEffect::Hide => self.matches.hidden.insert(end.clone()),
                        PatternEffect::Protect => self.matches.protected.insert(end.clone()),
                    };
                }
                let is_shown = self.shown.iter().any(|shown| end.starts_with(shown));
                if metadata.is_symlink() && is_directory && is_shown && !below_link.is_empty() {
                    self.pending.push((end, below_link));
                }
            }
            TraceEnd::Denied(directory) if directory != self.root => {
                self.matches.denied.insert(directory);
            }
            // A link to the workspace itself, or above it: what lies below it is found by its own path.
            TraceEnd::At { is_directory: true, path: end } if end == self.root && !below_link.is_empty() => {
                self.pending.push((end, below_link));
            }
            _ => {}
        }
    }
}

impl PatternMatches {
    /// Looks for further names of the files `wanted` in a tree that the sandbox is shown. Links are not followed.
    pub(super) fn find_other_names(&mut self, tree: &Path, wanted: &BTreeSet<Inode>) {
        let mut pending = vec![tree.to_path_buf()];
        while let Some(path) = pending.pop() {
            let metadata = match fs_err::symlink_metadata(&path) {
                Ok(metadata) => metadata,
                Err(error) if is_absent(&error) => continue,
                Err(_) => {
                    self.denied.extend(path.parent().map(Path::to_path_buf));
                    continue;
                }
            };
            if let Some(inode) = shared_inode(&metadata).filter(|inode| wanted.contains(inode)) {
                let names = self.linked.entry(inode).or_default();
                if !names.contains(&path) {
                    names.push(path);
                }
            } else if metadata.is_dir() {
                match fs_err::read_dir(&path) {
                    Ok(entries) => pending.extend(entries.flatten().map(|entry| entry.path())),
                    Err(error) if is_absent(&error) => {}
                    // Code inside may be able to open it up.
                    Err(_) => drop(self.denied.insert(path)),
                }
            }
        }
    }
}

/// The identity of a file that has more than one name.
pub(super) fn shared_inode(metadata: &Metadata) -> Option<Inode> {
    (!metadata.is_dir() && metadata.nlink() > 1).then(|| (metadata.dev(), metadata.ino()))
}

/// Tells whether an error means that a path is not there; every other one may hide anything.
pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
