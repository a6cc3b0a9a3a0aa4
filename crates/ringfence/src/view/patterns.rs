//! Search of the workspace for the paths that the patterns of `hide` and `protect` match.
//!
//! A pattern is followed directory by directory, as a shell expands it. A name that matches may be
//! a link to a directory, and the rest of the pattern then applies to that directory. `**` matches
//! only real directories, so every directory is visited a bounded number of times, however links
//! are arranged.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ringfence_core::policy::{GlobComponent, PathGlob};

use super::ViewError;
use super::guarded_links::{GuardedLink, RuleEffect};
use super::observed::{ObservedFiles, PathTrace, TraceEnd};

/// Maximum number of links to guarded files that are watched. Code in a sandbox can make any number
/// of links, and each link to a directory counts once for each file that a rule matches there.
const MAX_GUARDED_LINKS: usize = 1 << 14;

/// Device and inode of a file, which all names of the file have in common.
pub(super) type Inode = (u64, u64);

/// Position in a pattern: the number of the pattern, and how many of its components are matched.
type PatternPosition = (usize, usize);

/// Result of a search.
#[derive(Debug, Default)]
pub(super) struct PatternMatches {
    pub(super) hidden: BTreeSet<PathBuf>,
    pub(super) protected: BTreeSet<PathBuf>,
    /// Directories that could not be searched and may hold anything.
    pub(super) denied: BTreeSet<PathBuf>,
    /// Files that have more than one name, with the names that were found.
    pub(super) linked: BTreeMap<Inode, BTreeSet<PathBuf>>,
    /// Links on the way to a match.
    pub(super) links: Vec<GuardedLink>,
}

/// Pattern of a rule, or one of its alternatives.
struct RulePattern {
    rule: String,
    components: Vec<GlobComponent>,
    effect: RuleEffect,
}

/// Links that a search followed to a directory.
struct FollowedLinks {
    /// Path and target text of each link.
    links: Vec<(PathBuf, PathBuf)>,
    directory: PathBuf,
    /// Numbers of the patterns that continue in the directory.
    patterns: BTreeSet<usize>,
}

/// Search of a workspace.
pub(super) struct PatternSearch<'a> {
    root: &'a Path,
    /// Trees that links may lead to, which are those that the sandbox is shown.
    shown: &'a [PathBuf],
    patterns: Vec<RulePattern>,
    visited: BTreeMap<PathBuf, BTreeSet<PatternPosition>>,
    pending: Vec<(PathBuf, BTreeSet<PatternPosition>)>,
    matches: PatternMatches,
    followed: Vec<FollowedLinks>,
    /// Matches that may lie behind links, with the numbers of their patterns.
    behind_links: Vec<(usize, PathBuf)>,
}

impl<'a> PatternSearch<'a> {
    pub(super) fn new(
        root: &'a Path,
        shown: &'a [PathBuf],
        hide: &[PathGlob],
        protect: &[PathGlob],
    ) -> Self {
        let with = |effect| {
            move |glob: &PathGlob| {
                let rule = glob.as_str().to_owned();
                let alternatives = glob.components().into_iter();
                alternatives.map(move |components| RulePattern {
                    rule: rule.clone(),
                    components,
                    effect,
                })
            }
        };
        let hide = hide.iter().flat_map(with(RuleEffect::Hide));
        // Add a pattern that matches nothing, so that every real directory is visited and all names
        // of files that have several are found.
        let components = vec![GlobComponent::AnyDepth];
        let everything =
            RulePattern { rule: String::new(), components, effect: RuleEffect::Protect };
        let patterns = [everything]
            .into_iter()
            .chain(hide)
            .chain(protect.iter().flat_map(with(RuleEffect::Protect)));
        PatternSearch {
            root,
            shown,
            patterns: patterns.collect(),
            visited: BTreeMap::new(),
            pending: Vec::new(),
            matches: PatternMatches::default(),
            followed: Vec::new(),
            behind_links: Vec::new(),
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
                self.check_number_of_links()?;
            }
        }
        self.keep_followed_links()?;
        Ok(self.matches)
    }

    /// Keeps the links to directories in which something matches, and the links on the way to such
    /// a link.
    fn keep_followed_links(&mut self) -> Result<(), ViewError> {
        let mut to_directory: HashMap<(usize, &OsStr), Vec<usize>> = HashMap::new();
        for (at, followed) in self.followed.iter().enumerate() {
            for number in &followed.patterns {
                to_directory.entry((*number, followed.directory.as_os_str())).or_default().push(at);
            }
        }
        for (number, target) in &self.behind_links {
            let RulePattern { rule, effect, .. } = &self.patterns[*number];
            let mut used = BTreeSet::new();
            let mut pending = vec![target];
            while let Some(path) = pending.pop() {
                let directories = path
                    .ancestors()
                    .filter_map(|above| to_directory.get(&(*number, above.as_os_str())));
                for at in directories.flatten().filter(|at| used.insert(**at)) {
                    let links = &self.followed[*at].links;
                    pending.extend(links.iter().map(|(link, _)| link));
                    self.matches.links.extend(
                        links.iter().map(|link| GuardedLink::new(*effect, rule, link, target)),
                    );
                }
                self.check_number_of_links()?;
            }
        }
        Ok(())
    }

    fn check_number_of_links(&self) -> Result<(), ViewError> {
        match self.matches.links.get(MAX_GUARDED_LINKS) {
            Some(link) => {
                Err(ViewError::TooManyLinks { path: link.link.clone(), limit: MAX_GUARDED_LINKS })
            }
            None => Ok(()),
        }
    }

    /// Adds the positions after each `**`, which may match no directory at all.
    fn skip_any_depth(
        &self,
        mut positions: BTreeSet<PatternPosition>,
    ) -> BTreeSet<PatternPosition> {
        let mut pending: Vec<_> = positions.iter().copied().collect();
        while let Some((number, at)) = pending.pop() {
            let components = &self.patterns[number].components;
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
            // Code in the sandbox owns the directory and can open it again.
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
                self.matches.linked.entry(inode).or_default().insert(path.clone());
            }
            self.advance(&path, &entry.file_name(), &metadata, positions, files);
        }
        Ok(())
    }

    /// Advances each pattern by one name.
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
        let mut matching = Vec::new();
        for (number, at) in positions.iter().copied() {
            let components = &self.patterns[number].components;
            let is_last = at + 1 == components.len();
            match &components[at] {
                GlobComponent::AnyDepth => {
                    below.insert((number, at));
                    if is_last && number != 0 {
                        matching.push(number);
                    }
                }
                GlobComponent::Name(matcher) if !matcher.is_match(Path::new(name)) => {}
                GlobComponent::Name(_) if is_last => matching.push(number),
                GlobComponent::Name(_) => {
                    below.insert((number, at + 1));
                    below_link.insert((number, at + 1));
                }
            }
        }
        if metadata.is_dir() {
            self.pending.push((path.to_path_buf(), below));
        }
        if matching.is_empty() && (below_link.is_empty() || !metadata.is_symlink()) {
            return;
        }
        let PathTrace { links, end } = if metadata.is_symlink() {
            files.trace(path)
        } else {
            let end = TraceEnd::At { path: path.to_path_buf(), is_directory: metadata.is_dir() };
            PathTrace { links: Vec::new(), end }
        };
        if let TraceEnd::At { path: end, .. } | TraceEnd::Denied(end) = &end
            && !self.root.starts_with(end)
        {
            for number in &matching {
                let RulePattern { rule, effect, .. } = &self.patterns[*number];
                self.matches
                    .links
                    .extend(links.iter().map(|link| GuardedLink::new(*effect, rule, link, end)));
                if !self.followed.is_empty() {
                    self.behind_links.push((*number, end.clone()));
                }
            }
        }
        match end {
            TraceEnd::At { path: end, is_directory } if !self.root.starts_with(&end) => {
                for number in matching {
                    match self.patterns[number].effect {
                        RuleEffect::Hide => self.matches.hidden.insert(end.clone()),
                        RuleEffect::Protect => self.matches.protected.insert(end.clone()),
                    };
                }
                let is_shown = self.shown.iter().any(|shown| end.starts_with(shown));
                if metadata.is_symlink() && is_directory && is_shown && !below_link.is_empty() {
                    let patterns = below_link.iter().map(|(number, _)| *number).collect();
                    self.followed.push(FollowedLinks { links, directory: end.clone(), patterns });
                    self.pending.push((end, below_link));
                }
            }
            TraceEnd::Denied(directory) if directory != self.root => {
                self.matches.denied.insert(directory);
            }
            // A link to the workspace itself continues the search there. Paths above the workspace
            // need no search, because the contents of the workspace are found by their own paths.
            TraceEnd::At { is_directory: true, path: end }
                if end == self.root && !below_link.is_empty() =>
            {
                self.pending.push((end, below_link));
            }
            _ => {}
        }
    }
}

impl PatternMatches {
    /// Finds further names of the files `wanted` in a tree that the sandbox is shown. Links are not
    /// followed.
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
                self.linked.entry(inode).or_default().insert(path);
            } else if metadata.is_dir() {
                match fs_err::read_dir(&path) {
                    Ok(entries) => pending.extend(entries.flatten().map(|entry| entry.path())),
                    Err(error) if is_absent(&error) => {}
                    // Code in the sandbox may be able to open the directory.
                    Err(_) => drop(self.denied.insert(path)),
                }
            }
        }
    }
}

/// Returns the identity of a file that has more than one name.
pub(super) fn shared_inode(metadata: &Metadata) -> Option<Inode> {
    (!metadata.is_dir() && metadata.nlink() > 1).then(|| (metadata.dev(), metadata.ino()))
}

/// Tells whether an error means that a path does not exist. After any other error, anything may be
/// there.
pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
