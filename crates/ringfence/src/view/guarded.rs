//! What `hide` and `protect` come to in a workspace: which files, which links to them, which other names of
//! them, and which paths to look for again after the run because they did not exist before it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ringfence_core::policy::{PathGlob, Policy};
use ringfence_linux::Entry;

use super::ViewError;
use crate::workspace::ResolvedWorkspace;

/// What of a repository makes the host run code.
const OF_A_REPOSITORY: [&str; 2] = ["hooks", "config"];

/// Has git take hooks and configuration from another directory (gitrepository-layout(5)). Ordinary repositories have
/// none, and nothing can keep one from being made beside what git itself makes: it is reported.
const REDIRECTION: &str = ".git/commondir";

/// The guarded paths of one workspace.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Guarded {
    /// Inside: unreadable.
    hidden: BTreeSet<PathBuf>,
    /// Inside: unwritable.
    protected: BTreeSet<PathBuf>,
    /// Inside: directories above protected ones, which must not be renamed away.
    pinned: BTreeSet<PathBuf>,
    /// To be looked at again after the run: paths of the workspace that do not exist, or that are links, with
    /// what each link says.
    watched: BTreeMap<PathBuf, Option<PathBuf>>,
}

impl Guarded {
    /// Finds them, for a policy whose fields are filled in. `shared` are directories of git's outside the workspace.
    pub(crate) fn find(
        policy: &Policy,
        workspace: &ResolvedWorkspace,
        shared: &[PathBuf],
    ) -> Result<Guarded, ViewError> {
        let files = &policy.filesystem;
        let hide = files.hide.clone().unwrap_or_default();
        let protect = files.protect.clone().unwrap_or_default();
        let mut guarded = Guarded::default();

        for path in protect.iter().filter_map(PathGlob::as_literal) {
            guarded.protect(workspace, path);
        }
        if protect.iter().filter_map(PathGlob::as_literal).any(|path| path.starts_with(".git")) {
            guarded.protect(workspace, Path::new(REDIRECTION));
        }
        for path in hide.iter().filter_map(PathGlob::as_literal) {
            guarded.hide(workspace, path);
        }
        let patterns = |globs: &[PathGlob]| -> Vec<PathGlob> {
            globs.iter().filter(|glob| glob.as_literal().is_none()).cloned().collect()
        };
        let (hide_patterns, protect_patterns) = (patterns(&hide), patterns(&protect));
        if !hide.is_empty() || !protect_patterns.is_empty() {
            let search = Search { workspace, hide: &hide_patterns, protect: &protect_patterns };
            let linked = search.run(&mut guarded)?;
            guarded.hide_other_names(workspace, &linked);
        }
        if !protect.is_empty() {
            let repository = shared.iter().flat_map(|directory| OF_A_REPOSITORY.map(|part| directory.join(part)));
            guarded.protected.extend(repository.filter(|path| path.exists()));
        }
        Ok(guarded)
    }

    /// Whether anything exists that `protect` must hold.
    pub(crate) fn protects_something(&self) -> bool {
        !self.protected.is_empty()
    }

    /// The steps that make it so, after the workspace is mounted.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry> {
        // What lies in a hidden directory is hidden with it, and can no longer be found to be covered.
        let reachable = |path: &&PathBuf| !path.ancestors().skip(1).any(|above| self.hidden.contains(above));
        let pins = self.pinned.iter().map(|path| Entry::Pin { path: path.clone() });
        let protected = self.protected.iter().map(|path| Entry::Protect { path: path.clone() });
        let hidden = self.hidden.iter().filter(reachable).map(|path| Entry::Hide { path: path.clone() });
        pins.chain(protected).chain(hidden)
    }

    /// The protected paths that the run made or changed although nothing could keep it from doing so, relative
    /// to the workspace.
    pub(crate) fn planted(&self, workspace: &ResolvedWorkspace) -> Vec<String> {
        let is_planted = |path: &PathBuf, before: &Option<PathBuf>| {
            let host = workspace.source.join(path);
            let exists = fs_err::symlink_metadata(&host).is_ok();
            exists && (before.is_none() || fs_err::read_link(&host).ok() != *before)
        };
        let planted = self.watched.iter().filter(|(path, before)| is_planted(path, before));
        planted.map(|(path, _)| path.display().to_string()).collect()
    }

    fn protect(&mut self, workspace: &ResolvedWorkspace, path: &Path) {
        match locate(&workspace.source, path) {
            Located::At(path) => self.protect_existing(workspace, &path),
            Located::ThroughLink(path) => {
                self.watched.insert(path.clone(), fs_err::read_link(workspace.source.join(&path)).ok());
                if let Some(target) = target_in(&workspace.source, &path) {
                    self.protect_existing(workspace, &target);
                }
            }
            // A worktree's `.git` is a file: it must keep pointing where it points.
            Located::BelowFile(file) => self.protect_existing(workspace, &file),
            Located::Nowhere => drop(self.watched.insert(path.to_path_buf(), None)),
        }
    }

    /// Protects a path beyond what the policy says, if it is there and no link.
    pub(crate) fn protect_if_there(&mut self, workspace: &ResolvedWorkspace, path: &Path) {
        if let Located::At(path) = locate(&workspace.source, path) {
            self.protect_existing(workspace, &path);
        }
    }

    fn protect_existing(&mut self, workspace: &ResolvedWorkspace, path: &Path) {
        self.protected.insert(workspace.destination.join(path));
        let above = path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty());
        self.pinned.extend(above.map(|parent| workspace.destination.join(parent)));
    }

    fn hide(&mut self, workspace: &ResolvedWorkspace, path: &Path) {
        let found = match locate(&workspace.source, path) {
            Located::At(path) => Some(path),
            Located::ThroughLink(path) => target_in(&workspace.source, &path),
            Located::BelowFile(_) | Located::Nowhere => None,
        };
        self.hidden.extend(found.map(|path| workspace.destination.join(path)));
    }

    /// Hides the other names of hidden files: hard links have nothing in common but their inode.
    fn hide_other_names(&mut self, workspace: &ResolvedWorkspace, linked: &BTreeMap<(u64, u64), Vec<PathBuf>>) {
        let is_hidden = |path: &PathBuf| {
            let inside = workspace.destination.join(path);
            inside.ancestors().any(|above| self.hidden.contains(above))
        };
        let names: Vec<_> = linked.values().filter(|names| names.iter().any(is_hidden)).flatten().collect();
        let inside: Vec<_> = names.into_iter().map(|name| workspace.destination.join(name)).collect();
        self.hidden.extend(inside);
    }
}

/// Where a path of the workspace leads.
enum Located {
    /// To itself.
    At(PathBuf),
    /// Through a symbolic link, itself or above it.
    ThroughLink(PathBuf),
    /// Into a file, where a directory would have to be.
    BelowFile(PathBuf),
    /// To nothing.
    Nowhere,
}

fn locate(workspace: &Path, path: &Path) -> Located {
    let mut so_far = PathBuf::new();
    for component in path.components() {
        so_far.push(component);
        match fs_err::symlink_metadata(workspace.join(&so_far)) {
            Err(_) => return Located::Nowhere,
            Ok(metadata) if metadata.is_symlink() => return Located::ThroughLink(path.to_path_buf()),
            Ok(metadata) if !metadata.is_dir() && so_far != path => return Located::BelowFile(so_far),
            Ok(_) => {}
        }
    }
    Located::At(so_far)
}

/// Where a path with links in it ends, when that is in the workspace.
fn target_in(workspace: &Path, path: &Path) -> Option<PathBuf> {
    let resolved = fs_err::canonicalize(workspace.join(path)).ok()?;
    let inside = resolved.strip_prefix(workspace).ok()?;
    (!inside.as_os_str().is_empty()).then(|| inside.to_path_buf())
}

/// A search of the workspace for what patterns match. It follows no link.
struct Search<'a> {
    workspace: &'a ResolvedWorkspace,
    hide: &'a [PathGlob],
    protect: &'a [PathGlob],
}

impl Search<'_> {
    /// Adds what matches to `guarded`, and returns the files that have more than one name, by inode.
    fn run(&self, guarded: &mut Guarded) -> Result<BTreeMap<(u64, u64), Vec<PathBuf>>, ViewError> {
        let mut linked: BTreeMap<(u64, u64), Vec<PathBuf>> = BTreeMap::new();
        let mut pending = vec![PathBuf::new()];
        while let Some(directory) = pending.pop() {
            let host = self.workspace.source.join(&directory);
            let entries = match fs_err::read_dir(&host) {
                Ok(entries) => entries,
                // What cannot be read here cannot be read inside, where there is less privilege.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => continue,
                Err(source) => return Err(ViewError::Search { path: host, source }),
            };
            for entry in entries {
                let entry = entry.map_err(|source| ViewError::Search { path: host.clone(), source })?;
                let path = directory.join(entry.file_name());
                let Ok(metadata) = fs_err::symlink_metadata(self.workspace.source.join(&path)) else { continue };
                if self.hide.iter().any(|glob| glob.matches(&path)) {
                    guarded.hide(self.workspace, &path);
                }
                if self.protect.iter().any(|glob| glob.matches(&path)) {
                    guarded.protect(self.workspace, &path);
                }
                if metadata.is_dir() {
                    pending.push(path);
                } else if metadata.nlink() > 1 {
                    linked.entry((metadata.dev(), metadata.ino())).or_default().push(path);
                }
            }
        }
        Ok(linked)
    }
}
