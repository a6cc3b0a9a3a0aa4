//! Search for the files that decide what the host's git executes for a work tree.
//!
//! The same model serves for protection before a run and for the report after it. The model covers:
//!
//! - configuration of every scope (system, user, repository, worktree, command line), with all
//!   included files, whatever the condition of an include;
//! - hooks, and the programs that settings name;
//! - the repository of the workspace, the one above it, and the workspace as a repository itself;
//! - worktrees;
//! - submodules, found by the index and by their names;
//! - rebases in progress.

mod config;
mod history;
mod index;
mod links;
mod modules;
mod nested;
mod programs;
mod protection;
mod scope;
mod sequences;
mod worktree;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::{io, iter};

use ringfence_core::workspace::remove_dots;
use rustix::fs::FileType;

use super::deciders::{Deciders, PathState, path_from};
use super::observed::{Listing, Unreadable};
use config::{ConfigVariable, parse_config};
use index::Gitlink;
use modules::SubmoduleCheckout;
use programs::{SettingEffect, setting_effect};

pub(super) use links::{LinkSurvey, WrittenDirectories};
pub(super) use scope::GitScope;
pub(super) use worktree::shared_repository;

/// Maximum size of a file that contains a path, in bytes; longer than any path.
const MAX_PATH: u64 = 1 << 16;
/// Maximum size of a configuration file in bytes; real ones are smaller.
const MAX_CONFIG: u64 = 1 << 22;
/// Maximum number of work trees of one repository directory; real ones have fewer.
const MAX_WORK_TREES: usize = 16;
/// Maximum depth of includes. Git itself refuses a chain of more than 10.
const MAX_INCLUDE_DEPTH: usize = 64;

/// Finds everything that decides what git executes in a workspace, in the other writable trees, and
/// in the directories above them.
pub(super) fn find_git_deciders(deciders: &mut Deciders, scope: &GitScope, workspace: &Path) {
    let mut search = GitSearch {
        deciders,
        scope,
        workspace,
        global: Vec::new(),
        pending: VecDeque::new(),
        repositories: HashMap::new(),
        commons: HashMap::new(),
        worktrees: HashMap::new(),
        submodules: HashMap::new(),
        index_contents: BTreeMap::new(),
        merged_submodules: HashSet::new(),
        module_directories: BTreeSet::new(),
        ancestors: HashSet::new(),
        directories: HashSet::new(),
        searched_for_links: HashSet::new(),
        directories_of_links: 0,
        has_sequence: false,
    };
    search.run();
    let repositories =
        search.repositories.into_iter().map(|(gitdir, known)| (gitdir, known.worktrees));
    deciders.repositories = repositories.collect();
}

struct GitSearch<'a> {
    deciders: &'a mut Deciders,
    scope: &'a GitScope,
    workspace: &'a Path,
    /// Settings of the system, the user and the environment.
    global: Vec<ConfigVariable>,
    /// Places still to be visited. Repositories can lead to each other in chains of any length, so
    /// each is visited in turn and not recursively.
    pending: VecDeque<PendingVisit>,
    /// Repositories, and the parts of repositories that belong to worktrees, by directory.
    repositories: HashMap<PathBuf, KnownRepository>,
    /// Configuration that the worktrees of each repository share, by its common directory.
    commons: HashMap<PathBuf, Rc<Vec<ConfigVariable>>>,
    /// Worktrees in the workspace, by the directories that their repositories keep for them.
    worktrees: HashMap<PathBuf, PathBuf>,
    /// Work trees of submodules, with the commits that git checks out there.
    submodules: HashMap<PathBuf, BTreeSet<SubmoduleCheckout>>,
    /// Parts of indexes that decide something, by index. These parts are recorded at the end of the
    /// search.
    index_contents: BTreeMap<PathBuf, BTreeSet<Vec<u8>>>,
    /// Work trees of submodules in which git merges the commit of the index with the commit that is
    /// checked out.
    merged_submodules: HashSet<PathBuf>,
    /// Directories that contain the repositories of submodules.
    module_directories: BTreeSet<PathBuf>,
    /// Directories above a writable tree in which a repository was looked for.
    ancestors: HashSet<PathBuf>,
    /// Directories in which a repository was looked for because something leads there.
    directories: HashSet<PathBuf>,
    /// Directories of repositories whose links are known.
    searched_for_links: HashSet<PathBuf>,
    /// Number of directories that were searched for links.
    directories_of_links: usize,
    /// `true` if a rebase or another sequence is in progress in some repository.
    has_sequence: bool,
}

impl GitSearch<'_> {
    fn run(&mut self) {
        let workspace = self.workspace.to_path_buf();
        // List the workspace once, so that the many words of commands that are not files cost
        // nothing.
        let _ = self.deciders.files.list(&workspace);
        let mut reading = ConfigReading::default();
        for file in &self.scope.config_files {
            self.load_config(file, &mut reading);
        }
        let environment = parse_config(self.scope.environment_config.as_bytes());
        self.load_variables(environment, &[&workspace], &mut reading);
        self.global = reading.variables;
        for command in &self.scope.commands {
            self.protect_command(command.as_bytes(), &workspace);
        }
        if let Some(template) = &self.scope.template_dir {
            self.template_directory(template);
        }
        // Git may be started in a workspace that has no repository, or only a broken one.
        let global = std::mem::take(&mut self.global);
        self.apply(&global, &workspace);
        self.global = global;
        self.visit_all(PendingVisit::Directory {
            path: workspace.clone(),
            role: GitEntry::Discovered,
        });
        self.repository_of_environment();
        let other_trees: Vec<PathBuf> =
            self.deciders.writable_trees().filter(|tree| *tree != workspace).collect();
        for tree in &other_trees {
            self.visit_all(PendingVisit::Directory {
                path: tree.clone(),
                role: GitEntry::Discovered,
            });
        }
        for tree in iter::once(&workspace).chain(&other_trees) {
            // A repository that is writable as a whole contains no other repositories, and its work
            // tree lies above it.
            if *tree == workspace || !self.is_git_directory(tree) {
                self.repositories_above(tree);
                self.nested_repositories(tree);
            }
        }
        self.note_submodules();
    }

    /// Visits the repository that the caller's environment names. Each part of a repository may be
    /// named separately.
    fn repository_of_environment(&mut self) {
        let scope = self.scope;
        let worktree = scope.work_tree.clone().unwrap_or_else(|| self.workspace.to_path_buf());
        if let Some(entry) = scope.git_dir.clone() {
            self.visit_all(PendingVisit::Entry {
                entry,
                worktree: worktree.clone(),
                role: GitEntry::Discovered,
            });
        }
        if let Some(common) = scope.common_dir.as_ref().and_then(|path| self.deciders.resolve(path))
        {
            let shared = self.common(&common.path);
            self.apply(&shared, &worktree);
        }
        if let Some(index) = &scope.index_file {
            // The file does not tell the length of its object names. The repositories of a
            // workspace usually use the same length.
            let hash_length =
                self.repositories.values().map(|known| known.hash_length).max().unwrap_or(20);
            for link in self.gitlinks(index, hash_length) {
                self.submodule(index, &worktree, &link);
            }
            self.visit_pending();
        }
    }

    /// Visits a place, and everything that it leads to.
    fn visit_all(&mut self, visit: PendingVisit) {
        self.pending.push_back(visit);
        self.visit_pending();
    }

    fn visit_pending(&mut self) {
        loop {
            match self.pending.pop_front() {
                Some(PendingVisit::Directory { path, role }) => self.repository_in(&path, role),
                Some(PendingVisit::Entry { entry, worktree, role }) => {
                    self.git_entry(&entry, &worktree, role)
                }
                Some(PendingVisit::Repository { gitdir, worktree }) => {
                    self.repository(&gitdir, worktree)
                }
                None => match self.module_directories.pop_first() {
                    Some(directory) => self.unknown_modules(&directory),
                    None => return,
                },
            }
        }
    }

    /// Visits the repository of a directory, and the directory itself if it is a repository.
    fn repository_in(&mut self, directory: &Path, role: GitEntry) {
        self.directories.insert(directory.to_path_buf());
        let entry = directory.join(".git");
        self.git_entry(&entry, directory, role);
        if role == GitEntry::OfSubmodule && !self.deciders.files.has_name(&entry) {
            self.unpopulated_submodule(directory);
        }
        if self.is_git_directory(directory) {
            // With such a `HEAD`, git takes the directory itself for a repository.
            self.deciders.note(&directory.join("HEAD"), PathState::File);
            self.visit_repository(directory, Some(directory.to_path_buf()));
        }
    }

    fn visit_repository(&mut self, gitdir: &Path, worktree: Option<PathBuf>) {
        self.pending.push_back(PendingVisit::Repository { gitdir: gitdir.to_path_buf(), worktree });
    }

    /// Visits the repositories above a tree, which git uses if the tree's own repository is broken.
    /// A `.git` that is not a repository does not stop git's way up, and only git knows which ones
    /// are repositories.
    fn repositories_above(&mut self, tree: &Path) {
        for directory in tree.ancestors().skip(1) {
            if !self.ancestors.insert(directory.to_path_buf()) {
                return;
            }
            let entry = directory.join(".git");
            let worktree = directory.to_path_buf();
            if self.deciders.files.has_name(&entry) {
                self.visit_all(PendingVisit::Entry { entry, worktree, role: GitEntry::Discovered });
            } else if self.is_git_directory(directory) {
                self.visit_all(PendingVisit::Repository {
                    gitdir: worktree.clone(),
                    worktree: Some(worktree),
                });
            }
        }
    }

    /// Tells whether git takes a directory for a repository, without checking the content of its
    /// `HEAD`.
    fn is_git_directory(&mut self, directory: &Path) -> bool {
        let files = &mut self.deciders.files;
        files.has_name(&directory.join("HEAD"))
            && (files.has_name(&directory.join("commondir"))
                || files.has_name(&directory.join("objects"))
                    && files.has_name(&directory.join("refs")))
    }

    /// Visits a `.git`, which is a repository or a file that names one.
    fn git_entry(&mut self, entry: &Path, worktree: &Path, role: GitEntry) {
        let Some(found) = self.deciders.resolve(entry) else { return };
        if found.is_directory {
            return self.visit_repository(&found.path, Some(worktree.to_path_buf()));
        }
        let content = self.deciders.read(&found.path, MAX_PATH).unwrap_or_default();
        let gitdir = self.gitfile_target(&found.path, &content);
        // The repository knows this directory as its worktree, so git made both links.
        let is_own = gitdir
            .as_ref()
            .and_then(|gitdir| self.worktrees.get(gitdir))
            .is_some_and(|own| own == worktree);
        match role {
            _ if is_own => self.deciders.protect_silently(&found.path),
            // Only record the content: two mounts for each of many submodules would cost more than
            // the rest of the search.
            GitEntry::OfSubmodule => self.deciders.note_content(&found.path, &content),
            GitEntry::Discovered => self.deciders.protect_resolved(&found),
        }
        if let Some(gitdir) = gitdir {
            self.visit_repository(&gitdir, Some(worktree.to_path_buf()));
        }
    }

    /// Returns the directory that a `.git` file names.
    fn gitfile_target(&mut self, file: &Path, content: &[u8]) -> Option<PathBuf> {
        let named = parse_gitfile(content)?;
        let base = file.parent()?;
        let found = self.deciders.resolve(&base.join(path_from(named)))?;
        found.is_directory.then_some(found.path)
    }

    /// Visits the directory of a repository, or the directory that a repository keeps for one of
    /// its worktrees. Git uses the work tree that the configuration names, or else the one in which
    /// it was started, so the settings are applied to both.
    fn repository(&mut self, gitdir: &Path, worktree: Option<PathBuf>) {
        if !self.repositories.contains_key(gitdir) {
            let repository = self.load_repository(gitdir);
            self.repositories.insert(gitdir.to_path_buf(), repository);
        }
        let known = &self.repositories[gitdir];
        let set = known.set_worktrees.clone();
        let is_used = !known.worktrees.is_empty() || !set.is_empty();
        let other = worktree.or_else(|| (!is_used).then(|| gitdir.to_path_buf()));
        for worktree in set.into_iter().chain(other) {
            // Resolve the path, because a path with links in it has endless forms.
            let worktree = self.deciders.resolve(&worktree).map_or(worktree, |found| found.path);
            let Some(known) = self.repositories.get_mut(gitdir) else { return };
            if known.worktrees.contains(&worktree) {
                continue;
            }
            if known.worktrees.len() == MAX_WORK_TREES {
                return self.deciders.note(&worktree.join(".git"), PathState::Unknown);
            }
            known.worktrees.insert(worktree.clone());
            let known = known.clone();
            self.work_tree(gitdir, &known, &worktree);
        }
    }

    /// Reads the properties of a repository that do not depend on its work tree.
    fn load_repository(&mut self, gitdir: &Path) -> KnownRepository {
        // One listing tells which of the many files exist.
        let _ = self.deciders.files.list(gitdir); // on failure, each file is looked at
        self.note_links(gitdir);
        let common = self.common_directory(gitdir);
        let shared = self.common(&common);
        let mut reading = ConfigReading::default();
        self.load_config(&gitdir.join("config.worktree"), &mut reading);
        let own = reading.variables;
        // Git takes these settings from the files themselves, not from included files, and from
        // `config.worktree` only if `extensions.worktreeConfig` is set.
        let worktree_config = direct_value(&shared, ["extensions", "worktreeconfig"]);
        let obeyed = worktree_config.is_some_and(is_true).then_some(&own);
        let set = obeyed.into_iter().chain([&*shared]);
        let set = set.filter_map(|variables| direct_value(variables, ["core", "worktree"]));
        let set: Vec<PathBuf> = set.filter_map(|path| self.scope.expand(path, gitdir)).collect();
        let set_worktrees = set
            .iter()
            .filter_map(|path| self.deciders.resolve(path))
            .map(|found| found.path)
            .collect();
        let format = direct_value(&shared, ["extensions", "objectformat"]);
        let hash_length = if format.is_some_and(|format| format.eq_ignore_ascii_case(b"sha256")) {
            32
        } else {
            20
        };
        let gitlinks = Rc::new(self.gitlinks(&gitdir.join("index"), hash_length));
        let own = Rc::new(own);
        KnownRepository {
            common,
            shared,
            own,
            set_worktrees,
            hash_length,
            gitlinks,
            worktrees: BTreeSet::new(),
        }
    }

    /// Applies the settings of a repository to one of its work trees.
    fn work_tree(&mut self, gitdir: &Path, repository: &KnownRepository, worktree: &Path) {
        self.apply(&repository.shared, worktree);
        self.apply(&repository.own, worktree);
        if worktree != self.workspace {
            let global = std::mem::take(&mut self.global);
            self.apply(&global, worktree);
            self.global = global;
        }
        self.sequences(gitdir, repository, worktree);
        let index = gitdir.join("index");
        for link in repository.gitlinks.iter() {
            self.submodule(&index, worktree, link);
        }
        self.modules(gitdir, repository, worktree);
    }

    /// Returns the directory with the configuration and the hooks of a repository.
    fn common_directory(&mut self, gitdir: &Path) -> PathBuf {
        let own = gitdir.to_path_buf();
        let Some(file) = self.deciders.resolve(&gitdir.join("commondir")) else { return own };
        let named = self.deciders.read(&file.path, MAX_PATH).unwrap_or_default();
        let common = self.deciders.resolve(&gitdir.join(path_from(trim_line(&named))));
        let common = common.filter(|common| common.is_directory).map(|common| common.path);
        // The directory of a worktree lies in that of its repository, so this `commondir` is right.
        let holder =
            gitdir.parent().filter(|holder| holder.ends_with("worktrees")).and_then(Path::parent);
        if common.is_some() && common.as_deref() == holder {
            self.deciders.protect_silently(&file.path);
        } else {
            self.deciders.protect_resolved(&file);
        }
        common.unwrap_or(own)
    }

    /// Visits the parts that all worktrees of a repository share, and returns their configuration.
    fn common(&mut self, common: &Path) -> Rc<Vec<ConfigVariable>> {
        if let Some(known) = self.commons.get(common) {
            return Rc::clone(known);
        }
        let _ = self.deciders.files.list(common); // on failure, each file is looked at
        self.note_links(common);
        let mut reading = ConfigReading::default();
        self.load_config(&common.join("config"), &mut reading);
        let variables = Rc::new(reading.variables);
        self.commons.insert(common.to_path_buf(), Rc::clone(&variables));
        self.replacements(common);
        self.resolutions(common, &variables);
        self.program_directory(&common.join("hooks"));
        // Legacy remotes (gitrepository-layout(5)): each file names a host and the way to reach the
        // host. Git reads such a file if the configuration has no remote of that name.
        for directory in ["remotes", "branches"].map(|name| common.join(name)) {
            for (name, _) in
                self.list(&directory).iter().filter(|(name, _)| !has_remote(&variables, name))
            {
                self.deciders.protect(&directory.join(name));
            }
        }
        self.worktrees(common);
        if common.ends_with(".git") {
            self.visit_repository(common, common.parent().map(Path::to_path_buf));
        }
        variables
    }

    /// Visits the worktrees that a repository knows.
    fn worktrees(&mut self, common: &Path) {
        let directory = common.join("worktrees");
        for (name, kind) in self.list(&directory).iter() {
            let own = directory.join(name);
            if *kind != FileType::Directory {
                self.deciders.protect(&own);
                continue;
            }
            // This file holds the path of the worktree's `.git`. A sandbox that can write the file
            // decides to which worktree the repository belongs.
            let back_link = self.deciders.resolve(&own.join("gitdir"));
            let named =
                back_link.as_ref().and_then(|file| self.deciders.read(&file.path, MAX_PATH));
            let entry = named.map(|named| own.join(path_from(trim_back_link(&named))));
            let named = entry.as_deref().and_then(Path::parent);
            let found = named
                .and_then(|worktree| self.deciders.resolve(worktree))
                .map(|worktree| worktree.path);
            // Git finds submodules relative to the worktree, wherever that is.
            self.visit_repository(&own, found.clone().or_else(|| named.map(remove_dots)));
            let inside = found.filter(|worktree| worktree.starts_with(self.workspace));
            match &back_link {
                Some(file) if inside.is_some() => self.deciders.protect_silently(&file.path),
                Some(file) => self.deciders.protect_resolved(file),
                None => {}
            }
            if let Some(worktree) = inside {
                let entry = worktree.join(".git");
                self.worktrees.insert(own, worktree.clone());
                self.pending.push_back(PendingVisit::Entry {
                    entry,
                    worktree,
                    role: GitEntry::Discovered,
                });
            }
        }
    }

    /// Reads a configuration file and everything that it includes. All conditions of includes count
    /// as met, because they can change.
    fn load_config(&mut self, file: &Path, reading: &mut ConfigReading) {
        let Some(found) = self.deciders.protect(file) else { return };
        if reading.depth > MAX_INCLUDE_DEPTH {
            let source = io::Error::other("too many includes lead to it");
            // The call records the failure.
            let _ = self.deciders.or_denied::<()>(Err(Unreadable { path: found.path, source }));
            return;
        }
        if !reading.seen.insert(found.path.clone()) {
            return;
        }
        let Some(content) = self.deciders.read(&found.path, MAX_CONFIG) else { return };
        // Git resolves includes relative to the path as it was named. The path relative to the
        // resolved file is tried as well.
        let bases: Vec<&Path> = [file, &found.path].into_iter().filter_map(Path::parent).collect();
        self.load_variables(parse_config(&content), &bases, reading);
    }

    /// Adds variables, and those of the files that they include relative to one of `bases`.
    fn load_variables(
        &mut self,
        found: Vec<ConfigVariable>,
        bases: &[&Path],
        reading: &mut ConfigReading,
    ) {
        for variable in found {
            if setting_effect(&variable) == SettingEffect::Include {
                reading.depth += 1;
                for base in bases {
                    if let Some(included) = self.scope.expand(&variable.value, base) {
                        self.load_config(&included, reading);
                    }
                }
                reading.depth -= 1;
            } else {
                reading
                    .variables
                    .push(ConfigVariable { is_included: reading.depth > 0, ..variable });
            }
        }
    }

    fn list(&mut self, directory: &Path) -> Listing {
        let Some(found) = self.deciders.resolve(directory) else { return Listing::default() };
        let listed = self.deciders.files.list(&found.path);
        self.deciders.or_denied(listed).unwrap_or_default()
    }
}

/// Configuration that is being read, with everything that it includes.
#[derive(Debug, Default)]
struct ConfigReading {
    seen: BTreeSet<PathBuf>,
    variables: Vec<ConfigVariable>,
    /// Number of nested includes that lead to the current file.
    depth: usize,
}

/// Place that the search has yet to visit.
#[derive(Debug)]
enum PendingVisit {
    /// Directory that may contain a repository or be one.
    Directory {
        path: PathBuf,
        role: GitEntry,
    },
    /// Path of a `.git`.
    Entry {
        entry: PathBuf,
        worktree: PathBuf,
        role: GitEntry,
    },
    Repository {
        gitdir: PathBuf,
        worktree: Option<PathBuf>,
    },
}

/// Way in which a `.git` was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GitEntry {
    Discovered,
    /// An index has a submodule here.
    OfSubmodule,
}

/// Contents of a repository's directory that the search depends on.
#[derive(Debug, Clone)]
struct KnownRepository {
    /// Directory with the parts that all worktrees share.
    common: PathBuf,
    /// Configuration that all worktrees share.
    shared: Rc<Vec<ConfigVariable>>,
    /// Configuration of this worktree alone.
    own: Rc<Vec<ConfigVariable>>,
    /// Work trees that the configuration names.
    set_worktrees: Vec<PathBuf>,
    /// Length of object names in bytes.
    hash_length: usize,
    /// Submodules in the index, relative to the work tree.
    gitlinks: Rc<Vec<Gitlink>>,
    /// Work trees to which the settings were applied.
    worktrees: BTreeSet<PathBuf>,
}

/// Returns the path in a `.git` file, as git reads it. Exactly one blank precedes the path, and
/// further blanks are part of the path.
fn parse_gitfile(content: &[u8]) -> Option<&[u8]> {
    content.strip_prefix(b"gitdir: ").map(trim_line)
}

/// Returns the path in the file `gitdir` of a worktree, as git reads it. Blanks at the end of the
/// path do not count.
fn trim_back_link(bytes: &[u8]) -> &[u8] {
    until_nul(bytes).trim_ascii_end()
}

/// Returns the text of a file with one line, without the end of the line.
fn trim_line(bytes: &[u8]) -> &[u8] {
    let bytes = until_nul(bytes);
    let end =
        bytes.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r')).map_or(0, |last| last + 1);
    &bytes[..end]
}

/// Returns the text before the first NUL, which is the part that programs in C see.
fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn last_value<'v>(variables: &'v [ConfigVariable], [section, key]: [&str; 2]) -> Option<&'v [u8]> {
    let mut matching =
        variables.iter().filter(|variable| variable.section == section && variable.key == key);
    matching.next_back().map(|variable| variable.value.as_slice())
}

/// Returns the last value of a setting that git takes from a file itself, not from included files.
fn direct_value<'v>(
    variables: &'v [ConfigVariable],
    [section, key]: [&str; 2],
) -> Option<&'v [u8]> {
    let is_match = |variable: &&ConfigVariable| {
        !variable.is_included && variable.section == section && variable.key == key
    };
    variables.iter().rfind(is_match).map(|variable| variable.value.as_slice())
}

/// Tells whether the configuration has a URL for a remote. An empty URL cancels the URLs before it.
fn has_remote(variables: &[ConfigVariable], name: &OsStr) -> bool {
    let is_url = |variable: &&ConfigVariable| {
        variable.section == "remote"
            && variable.key == "url"
            && variable.subsection.as_deref() == Some(name.as_bytes())
    };
    variables.iter().rfind(is_url).is_some_and(|url| !url.value.is_empty())
}

fn is_true(value: &[u8]) -> bool {
    !["", "false", "no", "off", "0"].iter().any(|no| value.eq_ignore_ascii_case(no.as_bytes()))
}
