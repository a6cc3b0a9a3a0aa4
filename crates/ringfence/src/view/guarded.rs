//! Files that `hide` and `protect` name in a workspace, with the links to them and their other
//! names, and the paths to look at again after the run because they did not exist before.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::iter;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ringfence_core::policy::{PathGlob, Policy};
use ringfence_linux::{Access, Entry};

use super::ViewError;
use super::deciders::{Deciders, SearchScope, WatchedPaths};
use super::git::{GitScope, shared_repository};
use super::guarded_links::{GuardedLink, RemovedLinks, RuleEffect};
use super::observed::{ObservedFiles, TraceEnd, Unreadable};
use super::patterns::{Inode, PatternSearch, is_absent, shared_inode};
use super::search_cache::SearchCache;
use super::visible_names::{VisibleNames, lies_in};
use crate::Host;
use crate::host_paths::granted::MountTable;
use crate::host_paths::workspace::ResolvedWorkspace;

/// Maximum number of paths that are guarded one by one. Each path takes a mount, and code in a
/// sandbox can make any number of files.
const MAX_GUARDED_PATHS: usize = 1 << 14;

/// Guarded paths of one workspace, on the host. The paths in `hidden` and `protected` exist, and no
/// component of them is a symbolic link.
#[derive(Debug, Clone, Default)]
pub(crate) struct Guarded {
    /// Repository outside of which the workspace is a worktree.
    shared: Option<PathBuf>,
    /// Paths that must not be read.
    hidden: BTreeSet<PathBuf>,
    /// Paths that must not be written.
    protected: BTreeSet<PathBuf>,
    /// `true` if the policy protects anything that exists. Evidence does not count, because it is
    /// protected only if the backend can.
    protects_something: bool,
    /// Paths to look at again after the run.
    watched: WatchedPaths,
}

/// Entries that guard paths in a view.
pub(super) struct GuardEntries {
    /// Directories that must not be renamed, to be pinned before anything is mounted in them.
    pub(super) pins: BTreeSet<PathBuf>,
    /// Guards that come last, after all mounts.
    pub(super) guards: Vec<Entry>,
}

impl Guarded {
    /// Finds the guarded paths for a policy whose fields are filled in. The directories of
    /// `evidence` are also protected if the sandbox could write to them.
    pub(crate) fn find(
        policy: &Policy,
        workspace: &ResolvedWorkspace,
        host: &Host,
        locations: &MountTable,
        evidence: &[PathBuf],
    ) -> Result<Guarded, ViewError> {
        let files = &policy.filesystem;
        let hide = files.hide.clone().unwrap_or_default();
        let protect = files.protect.clone().unwrap_or_default();
        let root = workspace.source.as_path();
        let git = GitScope::for_host(host);
        let shared = shared_repository(root, git.distrusted());
        let granted = |access: Access| {
            let paths = workspace.granted.iter().filter(move |granted| granted.access == access);
            paths.map(|granted| granted.source.clone())
        };
        let writable: Vec<PathBuf> = iter::once(root.to_path_buf())
            .chain(shared.clone())
            .chain(granted(Access::Write))
            .collect();
        let literals: Vec<PathBuf> =
            protect.iter().filter_map(PathGlob::as_literal).map(Path::to_path_buf).collect();
        let protects_git = literals.iter().any(|path| path.starts_with(".git"));
        let scope = SearchScope {
            workspace: root.to_path_buf(),
            writable,
            literals,
            git: protects_git.then_some(git),
        };

        let (mut deciders, unsaved) = SearchCache::for_scope(host, &scope).find(&scope);
        if let Some(unreadable) = deciders.unreadable.pop() {
            return Err(ViewError::Undecided { path: unreadable.path, source: unreadable.source });
        }
        let mut hidden = BTreeSet::new();
        let memory = RemovedLinks::for_workspace(host, root);
        let mut links = memory.load()?;
        for link in &links {
            let rules = if link.effect == RuleEffect::Hide { &hide } else { &protect };
            if rules.iter().any(|rule| rule.as_str() == link.rule) {
                guard_former_target(link, &mut deciders, &mut hidden);
            }
        }
        let protects_something = !deciders.protected.is_empty() || !deciders.denied.is_empty();
        evidence.iter().for_each(|directory| protect_evidence(&mut deciders, directory));
        for (effect, rules) in [(RuleEffect::Hide, &hide), (RuleEffect::Protect, &protect)] {
            for (rule, path) in rules.iter().filter_map(|rule| Some((rule, rule.as_literal()?))) {
                let trace = deciders.files.trace(&root.join(path));
                let end = match trace.end {
                    TraceEnd::At { path, .. } if !root.starts_with(&path) => path,
                    TraceEnd::Denied(directory) => directory,
                    _ => continue,
                };
                links.extend(
                    trace
                        .links
                        .iter()
                        .map(|link| GuardedLink::new(effect, rule.as_str(), link, &end)),
                );
                if effect == RuleEffect::Hide {
                    hidden.insert(end);
                }
            }
        }
        let patterns = |globs: &[PathGlob]| -> Vec<PathGlob> {
            globs.iter().filter(|glob| glob.as_literal().is_none()).cloned().collect()
        };
        let protect_patterns = patterns(&protect);
        let mut protected = deciders.protected.clone();
        let twins = find_linked_names(&protected, &mut deciders.files)?;
        let shown: Vec<PathBuf> =
            scope.writable.iter().cloned().chain(granted(Access::Read)).collect();
        let has_mounted_names = locations.has_other_names(shown.iter().map(PathBuf::as_path));
        if !hide.is_empty() || !protect_patterns.is_empty() || !twins.is_empty() {
            let search = PatternSearch::new(root, &shown, &patterns(&hide), &protect_patterns);
            let mut matches = search.run(&mut deciders.files)?;
            hidden.append(&mut matches.hidden);
            protected.append(&mut matches.protected);
            links.append(&mut matches.links);
            let mut unfound =
                files_with_unfound_names([&hidden, &protected], &twins, &matches.linked)?;
            if has_mounted_names {
                // With such mounts, one hard link has several paths. So the number of paths does
                // not tell whether all hard links are found.
                unfound.extend(matches.linked.keys());
            }
            if !unfound.is_empty() {
                for tree in shown.iter().filter(|tree| !tree.starts_with(root)) {
                    matches.find_other_names(tree, &unfound);
                }
            }
            hidden.append(&mut matches.denied);
            hidden.extend(other_names(&hidden, &BTreeSet::new(), &matches.linked));
            protected.extend(other_names(&protected, &twins, &matches.linked));
        }
        hidden.extend(deciders.denied.iter().cloned());
        hidden.extend(closed_directories(root, &hidden));
        protected.extend(closed_directories(root, &protected));
        let protects_something = protects_something || !protected.is_subset(&deciders.protected);
        if has_mounted_names {
            for guarded in [&mut hidden, &mut protected] {
                let others: Vec<PathBuf> =
                    guarded.iter().flat_map(|path| locations.other_names(path)).collect();
                guarded.extend(others);
            }
        }
        check_number(&hidden)?;
        check_number(&protected)?;
        if let Some(directory) = hidden.iter().find(|hidden| root.starts_with(hidden)) {
            let source = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
            return Err(ViewError::Search { path: directory.clone(), source });
        }
        let watched =
            WatchedPaths::new(scope, deciders).with_links(links, memory).with_unsaved(unsaved);
        Ok(Guarded { shared, hidden, protected, protects_something, watched })
    }

    /// Returns the directories outside the workspace in which git works for it.
    pub(crate) fn shared(&self) -> &[PathBuf] {
        self.shared.as_slice()
    }

    /// Tells whether both guard the same paths, so that a view made for one serves for the other.
    pub(crate) fn is_same(&self, other: &Guarded) -> bool {
        self.shared == other.shared
            && self.hidden == other.hidden
            && self.protected == other.protected
            && self.watched.is_same(&other.watched)
    }

    /// Tells whether a host path without links in it is hidden or protected.
    pub(crate) fn guards(&self, path: &Path) -> bool {
        path.ancestors().any(|above| self.hidden.contains(above) || self.protected.contains(above))
    }

    /// Tells whether a host path without links in it is hidden.
    pub(crate) fn hides(&self, path: &Path) -> bool {
        path.ancestors().any(|above| self.hidden.contains(above))
    }

    /// Returns the paths that must not be read.
    pub(crate) fn hidden(&self) -> &BTreeSet<PathBuf> {
        &self.hidden
    }

    /// Returns the paths that must not be written.
    pub(crate) fn protected(&self) -> &BTreeSet<PathBuf> {
        &self.protected
    }

    /// Tells whether the policy protects anything that exists.
    pub(crate) fn protects_something(&self) -> bool {
        self.protects_something
    }

    /// Returns the entries that guard the paths in a view, under every name that they have there.
    pub(super) fn steps(&self, names: &VisibleNames) -> GuardEntries {
        let hidden: BTreeSet<PathBuf> =
            self.hidden.iter().flat_map(|path| names.readable(path)).collect();
        let protected: BTreeSet<PathBuf> =
            self.protected.iter().flat_map(|path| names.writable(path)).collect();
        let guarded = self.protected.iter().chain(&self.hidden);
        let above: HashSet<&OsStr> =
            guarded.flat_map(|path| path.ancestors().skip(1)).map(Path::as_os_str).collect();
        let pinned = above.into_iter().flat_map(|path| names.renamable(Path::new(path)));

        // Skip paths in a guarded directory: they are guarded with it, and cannot be found once it
        // is hidden.
        let [hidden_names, protected_names] = [&hidden, &protected]
            .map(|paths| paths.iter().map(|path| path.as_os_str()).collect::<HashSet<&OsStr>>());
        let is_in = |path: &Path, guarded: &HashSet<&OsStr>| {
            !guarded.is_empty() && path.ancestors().any(|above| guarded.contains(above.as_os_str()))
        };
        let is_below =
            |path: &Path, guarded| path.parent().is_some_and(|above| is_in(above, guarded));
        let hide = hidden.iter().filter(|path| !is_below(path, &hidden_names));
        let is_outermost =
            |path: &&PathBuf| !is_below(path, &protected_names) && !is_in(path, &hidden_names);
        let protect = protected.iter().filter(is_outermost);
        let protect = protect.map(|path| Entry::Protect { path: path.clone() });
        GuardEntries {
            pins: pinned
                .filter(|path| !is_in(path, &protected_names) && !is_in(path, &hidden_names))
                .collect(),
            guards: protect.chain(hide.map(|path| Entry::Hide { path: path.clone() })).collect(),
        }
    }

    /// Returns the protected paths that the run made, changed or removed although nothing could
    /// prevent it, relative to the workspace if they lie in it.
    pub(crate) fn planted(&self) -> Vec<String> {
        self.watched.planted()
    }

    /// Does the part of the search that can be done while a command runs.
    pub(crate) fn survey(&self) {
        self.watched.survey();
    }

    /// Returns the paths to look at again.
    pub(crate) fn watched(&self) -> &WatchedPaths {
        &self.watched
    }
}

/// Refuses more paths than can be guarded. Paths in a guarded directory are guarded with the
/// directory, and do not count.
fn check_number(guarded: &BTreeSet<PathBuf>) -> Result<(), ViewError> {
    let mut outermost: Option<&Path> = None;
    let mut count = 0;
    // In a sorted set, a directory comes right before the paths in it.
    for path in guarded {
        if !outermost.is_some_and(|above| lies_in(path, above)) {
            outermost = Some(path);
            count += 1;
        }
        if count > MAX_GUARDED_PATHS {
            return Err(ViewError::TooManyPaths { path: path.clone(), limit: MAX_GUARDED_PATHS });
        }
    }
    Ok(())
}

/// Guards the file that a rule led to before a run removed or changed the link to the file.
fn guard_former_target(
    link: &GuardedLink,
    deciders: &mut Deciders,
    hidden: &mut BTreeSet<PathBuf>,
) {
    match (deciders.files.trace(&link.target).end, link.effect) {
        (TraceEnd::At { path, .. }, RuleEffect::Protect) => deciders.protect_silently(&path),
        (TraceEnd::At { path, .. } | TraceEnd::Denied(path), _) => drop(hidden.insert(path)),
        _ => {}
    }
}

/// Returns the directories above guarded paths that their owner has closed. Root can search such a
/// directory, but the process that mounts in a sandbox may not be able to, so the directory is
/// guarded as a whole.
fn closed_directories(root: &Path, guarded: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
    let below_root = |directory: &&Path| lies_in(directory, root) && *directory != root;
    let above = |path| Path::ancestors(path).skip(1).take_while(below_root);
    let directories: BTreeSet<&Path> = guarded.iter().flat_map(|path| above(path)).collect();
    let is_closed =
        |path: &&Path| fs_err::metadata(path).is_ok_and(|file| file.mode() & 0o100 == 0);
    directories.into_iter().filter(is_closed).map(Path::to_path_buf).collect()
}

/// Protects a directory of evidence. If the directory itself has to stay writable, protects its
/// contents.
fn protect_evidence(deciders: &mut Deciders, directory: &Path) {
    let Some(found) = deciders.protect(directory) else { return };
    if found.is_directory
        && deciders.is_writable(&found.path)
        && deciders.holds_writable(&found.path)
    {
        let listed = deciders.files.list(&found.path);
        for (name, _) in deciders.or_denied(listed).unwrap_or_default().iter() {
            deciders.protect(&found.path.join(name));
        }
    }
}

/// Returns the protected files, and the files directly in protected directories, that have more
/// than one name.
fn find_linked_names(
    protected: &BTreeSet<PathBuf>,
    files: &mut ObservedFiles,
) -> Result<BTreeSet<Inode>, ViewError> {
    let mut twins = BTreeSet::new();
    for path in protected {
        let metadata = match fs_err::symlink_metadata(path) {
            Err(error) if is_absent(&error) => continue,
            looked => looked.map_err(|source| ViewError::Search { path: path.clone(), source })?,
        };
        twins.extend(shared_inode(&metadata));
        if !metadata.is_dir() {
            continue;
        }
        let listed = files
            .list(path)
            .map_err(|Unreadable { path, source }| ViewError::Search { path, source })?;
        // Skip samples of hooks: git does not run them, and every repository has a dozen.
        let children = listed.iter().map(|(name, _)| path.join(name));
        for child in
            children.filter(|child| child.extension().is_none_or(|extension| extension != "sample"))
        {
            match fs_err::symlink_metadata(&child) {
                Err(error) if is_absent(&error) => {}
                looked => {
                    let metadata =
                        looked.map_err(|source| ViewError::Search { path: child, source })?;
                    twins.extend(shared_inode(&metadata));
                }
            }
        }
    }
    Ok(twins)
}

/// Returns the guarded files that have more names than were found in the workspace.
fn files_with_unfound_names(
    guarded: [&BTreeSet<PathBuf>; 2],
    twins: &BTreeSet<Inode>,
    linked: &BTreeMap<Inode, BTreeSet<PathBuf>>,
) -> Result<BTreeSet<Inode>, ViewError> {
    let mut unfound: BTreeSet<Inode> =
        twins.iter().filter(|inode| !linked.contains_key(inode)).copied().collect();
    let is_guarded = |name: &Path| {
        name.ancestors().any(|above| guarded.iter().any(|paths| paths.contains(above)))
    };
    let is_wanted = |inode, names: &BTreeSet<PathBuf>| {
        twins.contains(inode) || names.iter().any(|name| is_guarded(name))
    };
    let in_workspace = linked.iter().filter(|(inode, names)| is_wanted(inode, names));
    let in_workspace = in_workspace.filter_map(|(_, names)| names.first());
    for path in in_workspace.chain(guarded.into_iter().flatten()) {
        let metadata = match fs_err::symlink_metadata(path) {
            Err(error) if is_absent(&error) => continue,
            looked => looked.map_err(|source| ViewError::Search { path: path.clone(), source })?,
        };
        let inode = shared_inode(&metadata);
        let found = inode.and_then(|inode| linked.get(&inode)).map_or(0, BTreeSet::len) as u64;
        unfound.extend(inode.filter(|_| metadata.nlink() > found));
    }
    Ok(unfound)
}

/// Returns the other names of guarded files. Hard links have nothing in common but their inode.
fn other_names(
    guarded: &BTreeSet<PathBuf>,
    twins: &BTreeSet<Inode>,
    linked: &BTreeMap<Inode, BTreeSet<PathBuf>>,
) -> Vec<PathBuf> {
    let is_guarded = |name: &PathBuf| name.ancestors().any(|above| guarded.contains(above));
    let files = linked
        .iter()
        .filter(|(inode, names)| twins.contains(inode) || names.iter().any(is_guarded));
    files.flat_map(|(_, names)| names).filter(|name| !is_guarded(name)).cloned().collect()
}

#[cfg(test)]
mod tests;
