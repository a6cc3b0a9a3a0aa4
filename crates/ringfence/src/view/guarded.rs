//! What `hide` and `protect` come to in a workspace: which files, which links to them, which other names of
//! them, and which paths to look for again after the run because they did not exist before it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Metadata;
use std::io;
use std::iter;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ringfence_core::policy::{PathGlob, Policy};
use ringfence_linux::Entry;

use super::names::Names;
use super::watched::Watched;
use super::{ViewError, git};
use crate::workspace::ResolvedWorkspace;

/// The guarded paths of one workspace, on the host. Those of `hidden` and `protected` are there, and no component of
/// them is a symbolic link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Guarded {
    /// The workspace, and the repository that it is a worktree of.
    roots: Vec<PathBuf>,
    /// Unreadable.
    hidden: BTreeSet<PathBuf>,
    /// Unwritable.
    protected: BTreeSet<PathBuf>,
    /// To be looked at again after the run.
    watched: Watched,
}

/// What guards paths in a view.
pub(super) struct Steps {
    /// Directories that must not be renamed away, to be pinned before anything is mounted in them.
    pub(super) pins: BTreeSet<PathBuf>,
    /// What comes last, once all is mounted.
    pub(super) guards: Vec<Entry>,
}

/// A file, by what all of its names have in common.
type Inode = (u64, u64);

impl Guarded {
    /// Finds them, for a policy whose fields are filled in.
    pub(crate) fn find(policy: &Policy, workspace: &ResolvedWorkspace) -> Result<Guarded, ViewError> {
        let files = &policy.filesystem;
        let hide = files.hide.clone().unwrap_or_default();
        let protect = files.protect.clone().unwrap_or_default();
        let root = workspace.source.as_path();
        let roots = [root.to_path_buf()].into_iter().chain(git::shared_repository(root)).collect();
        let mut guarded = Guarded { roots, ..Guarded::default() };

        for path in protect.iter().filter_map(PathGlob::as_literal) {
            guarded.protect(root, path);
        }
        if protect.iter().filter_map(PathGlob::as_literal).any(|path| path.starts_with(".git")) {
            guarded.protect_repositories(root);
        }
        for path in hide.iter().filter_map(PathGlob::as_literal) {
            guarded.hide(root, path);
        }
        let patterns = |globs: &[PathGlob]| -> Vec<PathGlob> {
            globs.iter().filter(|glob| glob.as_literal().is_none()).cloned().collect()
        };
        let (hide_patterns, protect_patterns) = (patterns(&hide), patterns(&protect));
        let twins = guarded.protected_twins();
        if !hide.is_empty() || !protect_patterns.is_empty() || !twins.is_empty() {
            let search = Search { root, hide: &hide_patterns, protect: &protect_patterns };
            let linked = search.run(&mut guarded)?;
            guarded.hidden.extend(other_names(&guarded.hidden, &BTreeSet::new(), &linked));
            guarded.protected.extend(other_names(&guarded.protected, &twins, &linked));
        }
        Ok(guarded)
    }

    /// The directories outside the workspace that git works in there.
    pub(crate) fn shared(&self) -> &[PathBuf] {
        self.roots.get(1..).unwrap_or_default()
    }

    /// Whether anything exists that `protect` must hold.
    pub(crate) fn protects_something(&self) -> bool {
        !self.protected.is_empty()
    }

    /// The steps that guard them in a view, by every name they have there.
    pub(super) fn steps(&self, names: &Names) -> Steps {
        let hidden: BTreeSet<PathBuf> = self.hidden.iter().flat_map(|path| names.readable(path)).collect();
        let protected: BTreeSet<PathBuf> = self.protected.iter().flat_map(|path| names.writable(path)).collect();
        let guarded = self.protected.iter().chain(&self.hidden);
        let above: BTreeSet<&Path> = guarded.flat_map(|path| path.ancestors().skip(1)).collect();
        let pinned = above.into_iter().flat_map(|path| names.renamable(path));

        // What lies in a guarded directory is guarded with it, and once that is hidden can no longer be found.
        let is_in = |path: &Path, guarded: &BTreeSet<PathBuf>| path.ancestors().any(|above| guarded.contains(above));
        let is_below = |path: &Path, guarded| path.parent().is_some_and(|above| is_in(above, guarded));
        let hide = hidden.iter().filter(|path| !is_below(path, &hidden));
        let protect = protected.iter().filter(|path| !is_below(path, &protected) && !is_in(path, &hidden));
        let protect = protect.map(|path| Entry::Protect { path: path.clone() });
        Steps {
            pins: pinned.filter(|path| !is_in(path, &protected) && !is_in(path, &hidden)).collect(),
            guards: protect.chain(hide.map(|path| Entry::Hide { path: path.clone() })).collect(),
        }
    }

    /// The protected paths that the run made or changed although nothing could keep it from doing so, relative
    /// to the workspace when they are in it.
    pub(crate) fn planted(&self, workspace: &ResolvedWorkspace) -> Vec<String> {
        self.watched.planted(&workspace.source)
    }

    /// The paths to look at again.
    pub(crate) fn watched(&self) -> &Watched {
        &self.watched
    }

    /// Protects a path beyond what the policy says, if it is there and no link.
    pub(crate) fn protect_if_there(&mut self, workspace: &ResolvedWorkspace, path: &Path) {
        if let Located::At(path) = locate(&workspace.source, path) {
            self.protected.insert(path);
        }
    }

    /// Protects what makes the host run code in the workspace's repository, be it in the workspace or shared.
    fn protect_repositories(&mut self, workspace: &Path) {
        let own = self.resolve(workspace, Path::new(".git"));
        if own.is_none() {
            // The workspace may get a repository, or itself become one. Each of those has a `HEAD`.
            let parts = git::OF_A_REPOSITORY.map(|part| Path::new(".git").join(part));
            parts
                .iter()
                .map(PathBuf::as_path)
                .chain([Path::new("HEAD")])
                .for_each(|path| self.watched.watch(workspace, path));
        }
        let repositories: Vec<PathBuf> = own.into_iter().chain(self.shared().iter().cloned()).collect();
        for repository in repositories {
            // From the root: whatever leads to a repository in the workspace is to be watched, too.
            let root = if repository.starts_with(workspace) { workspace } else { &repository };
            for path in git::sensitive(&repository).into_iter().map(|part| repository.join(part)) {
                self.protect(root, path.strip_prefix(root).expect("it was joined to it"));
            }
            for path in git::named_in_config(&repository, workspace) {
                let holder = self.roots.iter().find(|root| path != **root && path.starts_with(root)).cloned();
                if let Some(root) = holder {
                    self.protect(&root, path.strip_prefix(&root).expect("it starts with it"));
                }
            }
        }
    }

    fn protect(&mut self, root: &Path, path: &Path) {
        match locate(root, path) {
            // A worktree's `.git` is a file: it must keep pointing where it points.
            Located::At(found) | Located::BelowFile(found) => drop(self.protected.insert(found)),
            Located::ThroughLink => {
                self.watched.watch(root, path);
                self.protected.extend(self.resolve(root, path));
            }
            Located::Nowhere => self.watched.watch(root, path),
        }
    }

    fn hide(&mut self, root: &Path, path: &Path) {
        let found = match locate(root, path) {
            Located::At(found) => Some(found),
            Located::ThroughLink => self.resolve(root, path),
            Located::BelowFile(_) | Located::Nowhere => None,
        };
        self.hidden.extend(found);
    }

    /// Where a path with links in it ends, when that is in the workspace or in what it shares.
    fn resolve(&self, root: &Path, path: &Path) -> Option<PathBuf> {
        let resolved = fs_err::canonicalize(root.join(path)).ok()?;
        self.roots.iter().any(|root| resolved != *root && resolved.starts_with(root)).then_some(resolved)
    }

    /// The protected files, and those right in protected directories, that have more names than one.
    fn protected_twins(&self) -> BTreeSet<Inode> {
        let children =
            |path: &PathBuf| fs_err::read_dir(path).into_iter().flatten().flatten().map(|child| child.path());
        let protected = self.protected.iter().flat_map(|path| iter::once(path.clone()).chain(children(path)));
        protected.filter_map(|path| twin(&fs_err::symlink_metadata(path).ok()?)).collect()
    }
}

fn twin(metadata: &Metadata) -> Option<Inode> {
    (!metadata.is_dir() && metadata.nlink() > 1).then(|| (metadata.dev(), metadata.ino()))
}

/// The other names of guarded files: hard links have nothing in common but their inode.
fn other_names(
    guarded: &BTreeSet<PathBuf>,
    twins: &BTreeSet<Inode>,
    linked: &BTreeMap<Inode, Vec<PathBuf>>,
) -> Vec<PathBuf> {
    let is_guarded = |name: &PathBuf| name.ancestors().any(|above| guarded.contains(above));
    let files = linked.iter().filter(|(inode, names)| twins.contains(inode) || names.iter().any(is_guarded));
    files.flat_map(|(_, names)| names).filter(|name| !is_guarded(name)).cloned().collect()
}

/// Where a path leads.
enum Located {
    /// To itself.
    At(PathBuf),
    /// Through a symbolic link, itself or above it.
    ThroughLink,
    /// Into this file, where a directory would have to be.
    BelowFile(PathBuf),
    /// To nothing.
    Nowhere,
}

fn locate(root: &Path, path: &Path) -> Located {
    let whole = root.join(path);
    let mut so_far = root.to_path_buf();
    for component in path.components() {
        so_far.push(component);
        match fs_err::symlink_metadata(&so_far) {
            Err(_) => return Located::Nowhere,
            Ok(metadata) if metadata.is_symlink() => return Located::ThroughLink,
            Ok(metadata) if !metadata.is_dir() && so_far != whole => return Located::BelowFile(so_far),
            Ok(_) => {}
        }
    }
    Located::At(so_far)
}

/// A search of the workspace for what patterns match. It follows no link.
struct Search<'a> {
    root: &'a Path,
    hide: &'a [PathGlob],
    protect: &'a [PathGlob],
}

impl Search<'_> {
    /// Adds what matches to `guarded`, and returns the files that have more than one name.
    fn run(&self, guarded: &mut Guarded) -> Result<BTreeMap<Inode, Vec<PathBuf>>, ViewError> {
        let mut linked: BTreeMap<Inode, Vec<PathBuf>> = BTreeMap::new();
        let mut pending = vec![PathBuf::new()];
        while let Some(directory) = pending.pop() {
            let host = self.root.join(&directory);
            let entries = match fs_err::read_dir(&host) {
                Ok(entries) => entries,
                // What cannot be read here cannot be read inside, where there is less privilege.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => continue,
                Err(source) => return Err(ViewError::Search { path: host, source }),
            };
            for entry in entries {
                let entry = entry.map_err(|source| ViewError::Search { path: host.clone(), source })?;
                let path = directory.join(entry.file_name());
                let Ok(metadata) = fs_err::symlink_metadata(self.root.join(&path)) else { continue };
                if self.hide.iter().any(|glob| glob.matches(&path)) {
                    guarded.hide(self.root, &path);
                }
                if self.protect.iter().any(|glob| glob.matches(&path)) {
                    guarded.protect(self.root, &path);
                }
                if let Some(inode) = twin(&metadata) {
                    linked.entry(inode).or_default().push(self.root.join(&path));
                }
                if metadata.is_dir() {
                    pending.push(path);
                }
            }
        }
        Ok(linked)
    }
}

#[cfg(test)]
mod tests;
