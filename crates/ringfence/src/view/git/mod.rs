//! The files that decide what the host's git executes for a work tree.
//!
//! One model serves for protection before a run and for the report after it. It covers configuration of every scope
//! (system, user, repository, worktree, command line) with all that is included from there, whatever the condition;
//! hooks, and the programs that settings name; the repository of the workspace and the one above it; the workspace as
//! a repository itself; worktrees; submodules, found by the index and by their names; and rebases in progress.

mod config;
mod index;
mod links;
mod programs;
mod protection;
mod scope;
mod sequences;
mod worktree;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::FileType;

use super::deciders::{Deciders, PathState, path_from};
use super::observed::{Listing, TraceEnd};
use config::{ConfigVariable, parse_config};
use index::{IndexLinks, read_index};
use programs::{SettingEffect, effect_of};

pub(super) use scope::GitScope;
pub(super) use worktree::shared_repository;

/// More than a path can be long.
const MAX_PATH: u64 = 1 << 16;
/// More than anybody configures.
const MAX_CONFIG: u64 = 1 << 22;
/// The number of directories of a workspace in which repositories are looked for: some tenths of a millisecond.
const MAX_NESTED_DIRECTORIES: usize = 32;

/// Finds all that decides what git executes in a workspace, on the way from its root up.
pub(super) fn find_git_deciders(deciders: &mut Deciders, scope: &GitScope, workspace: &Path) {
    let mut search = GitSearch {
        deciders,
        scope,
        workspace,
        global: Vec::new(),
        seen_gitdirs: BTreeSet::new(),
        submodules: BTreeSet::new(),
        commons: BTreeMap::new(),
        searched_for_links: BTreeSet::new(),
        directories_of_links: 0,
    };
    search.run();
}

struct GitSearch<'a> {
    deciders: &'a mut Deciders,
    scope: &'a GitScope,
    workspace: &'a Path,
    /// Settings of the system, the user and the environment.
    global: Vec<ConfigVariable>,
    seen_gitdirs: BTreeSet<PathBuf>,
    /// The work trees of submodules.
    submodules: BTreeSet<PathBuf>,
    /// The configuration that the worktrees of each repository share.
    commons: BTreeMap<PathBuf, Rc<Vec<ConfigVariable>>>,
    /// Directories of repositories whose links are known.
    searched_for_links: BTreeSet<PathBuf>,
    /// The number of directories that were searched for links.
    directories_of_links: usize,
}

impl GitSearch<'_> {
    fn run(&mut self) {
        let workspace = self.workspace.to_path_buf();
        let _ = self.deciders.files.list(&workspace); // most words of commands are no files of it
        let mut global = Vec::new();
        let mut seen = BTreeSet::new();
        for file in &self.scope.config_files {
            self.load_config(file, &mut seen, &mut global);
        }
        let environment = parse_config(self.scope.environment_config.as_bytes());
        self.load_variables(environment, &[&workspace], &mut seen, &mut global);
        self.global = global;
        for command in &self.scope.commands {
            self.protect_command(command.as_bytes(), &workspace);
        }
        // Git may be started in a workspace that has no repository, or none that works.
        let global = std::mem::take(&mut self.global);
        self.apply(&global, &workspace);
        self.global = global;
        self.repository_in(&workspace, GitEntry::Discovered);
        self.repository_above();
        for written in self.deciders.writable_trees().filter(|tree| *tree != workspace).collect::<Vec<_>>() {
            self.repository_in(&written, GitEntry::Discovered);
        }
        self.nested_repositories();
    }

    /// Looks at the repository of a directory, or at the directory as a repository.
    fn repository_in(&mut self, directory: &Path, role: GitEntry<'_>) {
        self.git_entry(&directory.join(".git"), directory, role);
        if self.is_git_directory(directory) {
            // Such a `HEAD` has git take the directory itself for a repository.
            self.deciders.note(&directory.join("HEAD"), PathState::File);
            self.repository(directory, Some(directory));
        }
    }

    /// Looks for repositories in directories of the workspace, the nearest first. Git started there takes them, and
    /// git started in the workspace does not. A search of all directories would take longer than a short run.
    fn nested_repositories(&mut self) {
        let mut pending = VecDeque::from([self.workspace.to_path_buf()]);
        let mut looked_at = 0;
        while let Some(directory) = pending.pop_front() {
            // A directory that is closed to everybody is no repository yet: it stays as it is, and is reported.
            let Ok(entries) = self.deciders.files.list(&directory) else {
                self.deciders.note(&directory, PathState::Denied);
                continue;
            };
            for (name, kind) in entries.iter() {
                if *kind != FileType::Directory || name == ".git" {
                    continue;
                }
                if looked_at == MAX_NESTED_DIRECTORIES {
                    return;
                }
                looked_at += 1;
                self.nested_repository(directory.join(name), &mut pending);
            }
        }
    }

    fn nested_repository(&mut self, nested: PathBuf, pending: &mut VecDeque<PathBuf>) {
        if self.submodules.contains(&nested) {
            return;
        }
        let entry = nested.join(".git");
        if let TraceEnd::Denied(closed) = self.deciders.files.trace(&entry).end {
            return self.deciders.note(&closed, PathState::Denied);
        }
        self.repository_in(&nested, GitEntry::Discovered);
        if !self.seen_gitdirs.contains(&nested) {
            pending.push_back(nested);
        }
    }

    /// The nearest repository above the workspace is git's once the workspace's own one is broken.
    fn repository_above(&mut self) {
        for directory in self.workspace.ancestors().skip(1) {
            let entry = directory.join(".git");
            if self.deciders.files.has_name(&entry) {
                self.git_entry(&entry, directory, GitEntry::Discovered);
                return;
            }
            if self.is_git_directory(directory) {
                self.repository(directory, Some(directory));
                return;
            }
        }
    }

    /// Tells whether git takes a directory for a repository, apart from the content of its `HEAD`.
    fn is_git_directory(&mut self, directory: &Path) -> bool {
        let files = &mut self.deciders.files;
        files.has_name(&directory.join("HEAD"))
            && (files.has_name(&directory.join("commondir"))
                || files.has_name(&directory.join("objects")) && files.has_name(&directory.join("refs")))
    }

    /// Looks at a `.git`, which is a repository or a file that names one.
    fn git_entry(&mut self, entry: &Path, worktree: &Path, role: GitEntry<'_>) {
        let Some(found) = self.deciders.resolve(entry) else { return };
        if found.is_directory {
            return self.repository(&found.path, Some(worktree));
        }
        let content = self.deciders.read(&found.path, MAX_PATH).unwrap_or_default();
        let gitdir = self.gitfile_target(&found.path, &content);
        match role {
            GitEntry::OfWorktree(own) if gitdir.as_deref() == Some(own) => {
                self.deciders.protect_silently(&found.path);
            }
            // Two mounts for each of many submodules would cost more than the rest of the search.
            GitEntry::OfSubmodule => self.deciders.note_content(&found.path, &content),
            GitEntry::OfWorktree(_) | GitEntry::Discovered => self.deciders.protect_resolved(&found),
        }
        if let Some(gitdir) = gitdir {
            self.repository(&gitdir, Some(worktree));
        }
    }

    /// The directory that a `.git` file names.
    fn gitfile_target(&mut self, file: &Path, content: &[u8]) -> Option<PathBuf> {
        let named = trim_line(content.strip_prefix(b"gitdir:")?.trim_ascii_start());
        let base = file.parent()?;
        let found = self.deciders.resolve(&base.join(path_from(named)))?;
        found.is_directory.then_some(found.path)
    }

    /// Looks at the directory of a repository, or at what a repository keeps for one of its worktrees.
    fn repository(&mut self, gitdir: &Path, worktree: Option<&Path>) {
        if !self.seen_gitdirs.insert(gitdir.to_path_buf()) {
            return;
        }
        // One list tells which of its many files there are.
        let _ = self.deciders.files.list(gitdir); // where it fails, each file is looked at
        self.note_links(gitdir);
        let common = self.common_directory(gitdir);
        let shared = self.common(&common);
        let mut own = Vec::new();
        self.load_config(&gitdir.join("config.worktree"), &mut BTreeSet::new(), &mut own);
        let value = |key: [&str; 2]| last_value(&own, key).or_else(|| last_value(&shared, key));
        let set_worktree = value(["core", "worktree"]);
        let set_worktree = set_worktree.and_then(|path| self.scope.expand(path, gitdir));
        let set_worktree = set_worktree.and_then(|path| self.deciders.resolve(&path)).map(|found| found.path);
        let worktree = set_worktree.or_else(|| worktree.map(Path::to_path_buf)).unwrap_or_else(|| gitdir.to_path_buf());

        self.apply(&shared, &worktree);
        self.apply(&own, &worktree);
        if worktree != self.workspace {
            let global = std::mem::take(&mut self.global);
            self.apply(&global, &worktree);
            self.global = global;
        }
        self.sequences(gitdir, &worktree);
        let format = value(["extensions", "objectformat"]);
        let hash_length = if format.is_some_and(|format| format.eq_ignore_ascii_case(b"sha256")) { 32 } else { 20 };
        for path in self.gitlinks(gitdir, "index", hash_length) {
            let place = worktree.join(path);
            self.repository_in(&place, GitEntry::OfSubmodule);
            self.submodules.insert(place);
        }
        self.modules(&common, &shared);
    }

    /// The directory with the configuration and the hooks of a repository.
    fn common_directory(&mut self, gitdir: &Path) -> PathBuf {
        let own = gitdir.to_path_buf();
        let Some(file) = self.deciders.resolve(&gitdir.join("commondir")) else { return own };
        let named = self.deciders.read(&file.path, MAX_PATH).unwrap_or_default();
        let common = self.deciders.resolve(&gitdir.join(path_from(trim_line(&named))));
        let common = common.filter(|common| common.is_directory).map(|common| common.path);
        // A worktree's directory lies in that of its repository: this one leads where it has to.
        let holder = gitdir.parent().filter(|holder| holder.ends_with("worktrees")).and_then(Path::parent);
        if common.is_some() && common.as_deref() == holder {
            self.deciders.protect_silently(&file.path);
        } else {
            self.deciders.protect_resolved(&file);
        }
        common.unwrap_or(own)
    }

    /// Looks at what all worktrees of a repository share.
    fn common(&mut self, common: &Path) -> Rc<Vec<ConfigVariable>> {
        if let Some(known) = self.commons.get(common) {
            return Rc::clone(known);
        }
        let _ = self.deciders.files.list(common); // as above
        self.note_links(common);
        let mut variables = Vec::new();
        self.load_config(&common.join("config"), &mut BTreeSet::new(), &mut variables);
        let variables = Rc::new(variables);
        self.commons.insert(common.to_path_buf(), Rc::clone(&variables));
        self.program_directory(&common.join("hooks"));
        // Remotes of old (gitrepository-layout(5)): each file names a host, and how to reach it. Git reads one where the
        // configuration has no remote of that name.
        let has_remote = variables.iter().any(|variable| variable.section == "remote" && variable.key == "url");
        for directory in ["remotes", "branches"].iter().filter(|_| !has_remote) {
            let directory = common.join(directory);
            for (name, _) in self.list(&directory).iter() {
                self.deciders.protect(&directory.join(name));
            }
        }
        self.worktrees(common);
        if common.ends_with(".git") {
            self.repository(common, common.parent());
        }
        variables
    }

    /// Looks at the worktrees that a repository knows.
    fn worktrees(&mut self, common: &Path) {
        let directory = common.join("worktrees");
        for (name, kind) in self.list(&directory).iter() {
            let own = directory.join(name);
            if *kind != FileType::Directory {
                self.deciders.protect(&own);
                continue;
            }
            // The path of the worktree's `.git`: a sandbox that gets to say it says whose repository this is.
            let back_link = self.deciders.resolve(&own.join("gitdir"));
            let named = back_link.as_ref().and_then(|file| self.deciders.read(&file.path, MAX_PATH));
            let entry = named.map(|named| own.join(path_from(trim_line(&named))));
            let worktree = entry.as_deref().and_then(Path::parent);
            let worktree = worktree.and_then(|worktree| self.deciders.resolve(worktree));
            let worktree = worktree.filter(|worktree| worktree.path.starts_with(self.workspace));
            match &back_link {
                Some(file) if worktree.is_some() => self.deciders.protect_silently(&file.path),
                Some(file) => self.deciders.protect_resolved(file),
                None => {}
            }
            self.repository(&own, worktree.as_ref().map(|worktree| worktree.path.as_path()));
            if let Some(worktree) = worktree {
                let entry = worktree.path.join(".git");
                self.git_entry(&entry, &worktree.path, GitEntry::OfWorktree(&own));
            }
        }
    }

    /// The submodules in an index.
    fn gitlinks(&mut self, gitdir: &Path, name: &str, hash_length: usize) -> Vec<PathBuf> {
        let path = gitdir.join(name);
        let Some(found) = self.deciders.resolve(&path) else { return Vec::new() };
        let opened = self.deciders.files.open(&found.path);
        let Some(Some(file)) = self.deciders.or_denied(opened) else { return Vec::new() };
        match read_index(file, hash_length) {
            Ok(IndexLinks { mut gitlinks, shared_index }) => {
                if let Some(shared) = shared_index.filter(|_| name == "index") {
                    gitlinks.extend(self.gitlinks(gitdir, &shared, hash_length));
                }
                gitlinks
            }
            // Git refuses such an index, too; yet a newer git may not.
            Err(_) => {
                self.deciders.note(&path, PathState::Denied);
                Vec::new()
            }
        }
    }

    /// Looks at the repositories of submodules that a repository keeps.
    fn modules(&mut self, common: &Path, variables: &[ConfigVariable]) {
        let directory = common.join("modules");
        if !self.deciders.files.has_name(&directory) {
            return;
        }
        let of_submodule = variables.iter().filter(|variable| variable.section == "submodule");
        let names: BTreeSet<&[u8]> = of_submodule.filter_map(|variable| variable.subsection.as_deref()).collect();
        for name in names {
            let module = directory.join(path_from(name));
            if let Some(found) = self.deciders.resolve(&module).filter(|found| found.is_directory) {
                self.repository(&found.path, None);
            }
        }
        self.unknown_modules(&directory);
    }

    /// Protects what lies among the repositories of submodules and is none that is in use.
    fn unknown_modules(&mut self, directory: &Path) {
        for (name, _) in self.list(directory).iter() {
            let path = directory.join(name);
            let mut in_use = self.seen_gitdirs.range(path.clone()..);
            match in_use.next() {
                Some(known) if *known == path => {}
                Some(known) if known.starts_with(&path) => self.unknown_modules(&path),
                _ => drop(self.deciders.protect(&path)),
            }
        }
    }

    /// Reads a configuration file and all that it includes. Conditions of includes can change: all count as met.
    fn load_config(&mut self, file: &Path, seen: &mut BTreeSet<PathBuf>, variables: &mut Vec<ConfigVariable>) {
        let Some(found) = self.deciders.protect(file) else { return };
        if !seen.insert(found.path.clone()) {
            return;
        }
        let Some(content) = self.deciders.read(&found.path, MAX_CONFIG) else { return };
        // Git starts at the file as it was named; a link on the way there counts as well.
        let bases: Vec<&Path> = [file, &found.path].into_iter().filter_map(Path::parent).collect();
        self.load_variables(parse_config(&content), &bases, seen, variables);
    }

    /// Adds variables, and those of the files that they include from one of `bases`.
    fn load_variables(
        &mut self,
        found: Vec<ConfigVariable>,
        bases: &[&Path],
        seen: &mut BTreeSet<PathBuf>,
        variables: &mut Vec<ConfigVariable>,
    ) {
        for variable in found {
            if effect_of(&variable) == SettingEffect::Include {
                for base in bases {
                    if let Some(included) = self.scope.expand(&variable.value, base) {
                        self.load_config(&included, seen, variables);
                    }
                }
            } else {
                variables.push(variable);
            }
        }
    }

    fn list(&mut self, directory: &Path) -> Listing {
        let Some(found) = self.deciders.resolve(directory) else { return Listing::default() };
        let listed = self.deciders.files.list(&found.path);
        self.deciders.or_denied(listed).unwrap_or_default()
    }
}

/// The way by which a `.git` was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GitEntry<'a> {
    Discovered,
    /// An index has a submodule here.
    OfSubmodule,
    /// A repository has this directory for the worktree, and says that the worktree is here.
    OfWorktree(&'a Path),
}

fn trim_line(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r')).map_or(0, |last| last + 1);
    &bytes[..end]
}

fn last_value<'v>(variables: &'v [ConfigVariable], [section, key]: [&str; 2]) -> Option<&'v [u8]> {
    let mut matching = variables.iter().filter(|variable| variable.section == section && variable.key == key);
    matching.next_back().map(|variable| variable.value.as_slice())
}
