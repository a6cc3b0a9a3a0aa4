//! The files that decide what the host's git executes for a work tree.
//!
//! One model serves for protection before a run and for the report after it. It covers configuration of every scope
//! (system, user, repository, worktree, command line) with all that is included from there, whatever the condition;
//! hooks, and the programs that settings name; the repository of the workspace and the one above it; the workspace as
//! a repository itself; worktrees; submodules, found by the index and by their names; and rebases in progress.

mod config;
mod index;
mod programs;
mod worktree;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::FileType;
use serde::{Deserialize, Serialize};

use super::deciders::{Deciders, PathState, ResolvedPath, path_from};
use super::observed::{Listing, TraceEnd};
use crate::Host;
use config::{ConfigVariable, parse_config};
use index::{IndexLinks, read_index};
use programs::{COMMAND_VARIABLES, SettingEffect, effect_of, words_of_command};

pub(super) use worktree::{DistrustedLinks, shared_repository};

/// More than a path can be long.
const MAX_PATH: u64 = 1 << 16;
/// More than anybody configures.
const MAX_CONFIG: u64 = 1 << 22;
/// More steps than a rebase has.
const MAX_TODO: u64 = 1 << 24;
/// The system's configuration, where the usual builds of git look for it.
const SYSTEM_CONFIG_FILES: [&str; 2] = ["/etc/gitconfig", "/usr/local/etc/gitconfig"];
/// More settings than anybody puts into an environment.
const MAX_ENVIRONMENT_SETTINGS: usize = 1000;
/// The number of directories of a workspace in which repositories are looked for: some tenths of a millisecond.
const MAX_NESTED_DIRECTORIES: usize = 32;
/// Merge strategies that are part of git: any other is a program, and one with a slash is one in the work tree.
const BUILTIN_STRATEGIES: [&str; 6] = ["ort", "recursive", "resolve", "octopus", "ours", "subtree"];
/// Files by which interpreters start a directory.
const DIRECTORY_PROGRAMS: [&str; 5] = ["__main__.py", "index.js", "package.json", "Makefile", "makefile"];
/// The hooks that git knows (githooks(5)), for a hook directory that cannot be protected as a whole.
const HOOKS: [&str; 28] = [
    "applypatch-msg",
    "pre-applypatch",
    "post-applypatch",
    "pre-commit",
    "pre-merge-commit",
    "prepare-commit-msg",
    "commit-msg",
    "post-commit",
    "pre-rebase",
    "post-checkout",
    "post-merge",
    "pre-push",
    "pre-receive",
    "update",
    "proc-receive",
    "post-receive",
    "post-update",
    "reference-transaction",
    "push-to-checkout",
    "pre-auto-gc",
    "post-rewrite",
    "sendemail-validate",
    "fsmonitor-watchman",
    "p4-changelist",
    "p4-prepare-changelist",
    "p4-post-changelist",
    "p4-pre-submit",
    "post-index-change",
];

/// The caller's surroundings as far as git looks at them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GitScope {
    home: Option<PathBuf>,
    /// The configuration files of the system and of the user.
    config_files: Vec<PathBuf>,
    /// Settings that come from the environment, as a configuration file.
    environment_config: String,
    /// Commands that come from the environment.
    commands: Vec<String>,
    /// Links of git that sandboxes made.
    distrusted: DistrustedLinks,
}

impl GitScope {
    /// The surroundings of git on `host`. What is not text cannot name a file of a workspace that is kept.
    pub(super) fn for_host(host: &Host) -> GitScope {
        let home = host.home.clone().filter(|home| home.to_str().is_some());
        let mut config_files: Vec<PathBuf> = match host.text("GIT_CONFIG_SYSTEM") {
            Some(file) => vec![file.into()],
            None => SYSTEM_CONFIG_FILES.map(PathBuf::from).into(),
        };
        match host.text("GIT_CONFIG_GLOBAL") {
            Some(file) => config_files.push(file.into()),
            None => {
                config_files.extend(home.iter().map(|home| home.join(".gitconfig")));
                let base = host.text("XDG_CONFIG_HOME").map(PathBuf::from);
                let base = base.or_else(|| home.as_ref().map(|home| home.join(".config")));
                config_files.extend(base.map(|base| base.join("git/config")));
            }
        }
        let config_files = config_files.iter().map(|file| host.directory.join(file)).collect();
        let commands = COMMAND_VARIABLES.iter().filter_map(|name| host.text(name)).map(str::to_owned);
        GitScope {
            config_files,
            environment_config: environment_config(host),
            commands: commands.collect(),
            distrusted: DistrustedLinks::for_host(host),
            home,
        }
    }

    /// Links of git that sandboxes made.
    pub(super) fn distrusted(&self) -> &DistrustedLinks {
        &self.distrusted
    }

    /// A path of a setting, from `base` on when it is relative.
    fn expand(&self, path: &[u8], base: &Path) -> Option<PathBuf> {
        if path.is_empty() || path.contains(&0) {
            return None;
        }
        let Some(rest) = path.strip_prefix(b"~") else { return Some(base.join(path_from(path))) };
        let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
        let (user, rest) = (&rest[..end], path_from(rest.get(end + 1..).unwrap_or_default()));
        let home = if user.is_empty() { self.home.clone() } else { home_of(user) };
        Some(home?.join(rest))
    }
}

/// The home directory of a user by name (passwd(5)).
fn home_of(user: &[u8]) -> Option<PathBuf> {
    let users = fs_err::read("/etc/passwd").ok()?;
    let mut lines = users.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b':'));
    let home = lines.find_map(|mut fields| (fields.next() == Some(user)).then(|| fields.nth(4)).flatten())?;
    Some(path_from(home).to_path_buf())
}

/// The settings of `GIT_CONFIG_COUNT` and its kin (git-config(1), "Environment") that execute something, as a
/// configuration file. The others are left out, because a header with a token may be among them.
fn environment_config(host: &Host) -> String {
    let count: usize = host.text("GIT_CONFIG_COUNT").and_then(|count| count.parse().ok()).unwrap_or(0);
    let mut config = String::new();
    for number in 0..count.min(MAX_ENVIRONMENT_SETTINGS) {
        let key = host.text(&format!("GIT_CONFIG_KEY_{number}"));
        let value = host.text(&format!("GIT_CONFIG_VALUE_{number}"));
        let (Some(key), Some(value)) = (key, value) else { continue };
        let Some((section, rest)) = key.split_once('.') else { continue };
        let escape = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let (header, name) = match rest.rsplit_once('.') {
            Some((subsection, name)) => (format!("{section} \"{}\"", escape(subsection)), name),
            None => (section.to_owned(), rest),
        };
        let setting = format!("[{header}]\n{name} = \"{}\"\n", escape(value));
        if parse_config(setting.as_bytes()).iter().any(|variable| effect_of(variable) != SettingEffect::None) {
            config.push_str(&setting);
        }
    }
    config
}

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

    /// Looks at a rebase or a sequence that is in progress: it holds commands for `--continue`.
    fn sequences(&mut self, gitdir: &Path, worktree: &Path) {
        if self.deciders.files.has_name(&gitdir.join("rebase-merge")) {
            let todo = gitdir.join("rebase-merge/git-rebase-todo");
            let commands = self.read_sequence_file(&todo).map(|todo| executed_lines(&todo));
            if let Some(commands) = commands.filter(|commands| !commands.is_empty()) {
                self.deciders.note_content(&todo, &commands);
                for command in commands.split(|byte| *byte == b'\n') {
                    self.protect_command(command, worktree);
                }
            }
            let strategy = gitdir.join("rebase-merge/strategy");
            if let Some(name) = self.read_sequence_file(&strategy) {
                self.note_strategy(&strategy, name.trim_ascii());
            }
        }
        if self.deciders.files.has_name(&gitdir.join("sequencer")) {
            let options = gitdir.join("sequencer/opts");
            let variables = parse_config(&self.read_sequence_file(&options).unwrap_or_default());
            if let Some(name) = last_value(&variables, ["options", "strategy"]) {
                self.note_strategy(&options, name);
            }
        }
    }

    fn read_sequence_file(&mut self, path: &Path) -> Option<Vec<u8>> {
        let found = self.deciders.resolve(path)?;
        self.deciders.read(&found.path, MAX_TODO)
    }

    fn note_strategy(&mut self, path: &Path, name: &[u8]) {
        if !name.is_empty() && BUILTIN_STRATEGIES.iter().all(|known| known.as_bytes() != name) {
            self.deciders.note_content(path, name);
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

    /// Protects the files of `worktree` that settings have git run.
    fn apply(&mut self, variables: &[ConfigVariable], worktree: &Path) {
        for variable in variables {
            match effect_of(variable) {
                SettingEffect::Command => self.protect_command(&variable.value, worktree),
                SettingEffect::ProgramDirectory => {
                    let Some(path) = self.scope.expand(&variable.value, worktree) else { continue };
                    // Husky's `_` does nothing but run the scripts beside it.
                    let beside = path.parent().filter(|above| path.ends_with("_") && *above != worktree);
                    self.program_directory(beside.unwrap_or(&path));
                }
                SettingEffect::Repository => self.local_repository(variable, worktree),
                SettingEffect::Include | SettingEffect::None => {}
            }
        }
    }

    /// Protects a directory whose files git runs, and those that links in it lead to.
    fn program_directory(&mut self, path: &Path) {
        let Some(found) = self.deciders.resolve(path) else { return };
        if !found.is_directory || !self.deciders.holds_writable(&found.path) {
            self.deciders.protect_resolved(&found);
            for (name, kind) in self.list(&found.path).iter() {
                if *kind == FileType::Symlink {
                    self.deciders.protect(&found.path.join(name));
                }
            }
        } else {
            // The workspace itself cannot be protected as a whole.
            for name in HOOKS {
                self.deciders.protect(&found.path.join(name));
            }
        }
    }

    /// Protects the files of `worktree` that a command names.
    fn protect_command(&mut self, command: &[u8], worktree: &Path) {
        let words = words_of_command(command);
        let mut directories = Vec::new();
        for word in words.iter().filter(|word| !word.is_program) {
            let Some(path) = self.scope.expand(&word.text, worktree) else { continue };
            self.protect_word(&path, &mut directories);
            // What follows a substitution looks absolute and is not: `$(git rev-parse --show-toplevel)/run`.
            if word.text.starts_with(b"/") {
                let relative = path_from(&word.text).strip_prefix("/").expect("it starts with a slash");
                self.protect_word(&worktree.join(relative), &mut directories);
            }
        }
        // `cd tools && ./run`, `make -C tools`, `python3 tools`.
        for directory in directories {
            let names = words.iter().map(|word| path_from(&word.text));
            for name in names.chain(DIRECTORY_PROGRAMS.map(Path::new)).filter(|name| name.is_relative()) {
                self.protect_word(&directory.join(name), &mut Vec::new());
            }
        }
    }

    /// Protects a file that a word of a command may be.
    fn protect_word(&mut self, path: &Path, directories: &mut Vec<PathBuf>) {
        // A word that leads nowhere through no link of the sandbox's is a word.
        let Some(ResolvedPath { path, is_directory }) = self.deciders.resolve(path) else { return };
        if !self.deciders.is_writable(&path) {
            return;
        }
        if !is_directory {
            self.deciders.protect_resolved(&ResolvedPath { path, is_directory });
        } else if !self.deciders.holds_writable(&path) {
            directories.push(path);
        }
    }

    /// Looks at a repository of the workspace that another one fetches from or pushes to.
    fn local_repository(&mut self, variable: &ConfigVariable, worktree: &Path) {
        let url = &variable.value;
        let path = url.strip_prefix(b"file://").unwrap_or(url);
        // A submodule's relative URL starts at another URL, not at a directory.
        let is_relative_url = variable.section == "submodule" && path.starts_with(b".");
        let has_host = path.split(|byte| *byte == b'/').next().is_some_and(|start| start.contains(&b':'));
        if is_relative_url || has_host {
            return;
        }
        let Some(path) = self.scope.expand(path, worktree) else { return };
        let Some(found) = self.deciders.resolve(&path) else { return };
        if !found.is_directory || !self.deciders.is_writable(&found.path) {
            return;
        }
        self.repository_in(&found.path, GitEntry::Discovered);
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

/// The lines of a rebase's list that run a command (git-rebase(1), "exec").
fn executed_lines(todo: &[u8]) -> Vec<u8> {
    let is_executed = |line: &&[u8]| {
        let command = line.trim_ascii_start();
        let end = command.iter().position(u8::is_ascii_whitespace).unwrap_or(command.len());
        matches!(&command[..end], b"exec" | b"x")
    };
    todo.split(|byte| *byte == b'\n').filter(is_executed).collect::<Vec<_>>().join(&b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_that_run_a_command_count_in_a_rebase() {
        let check = |todo: &str, expected: &str| {
            assert_eq!(String::from_utf8_lossy(&executed_lines(todo.as_bytes())), expected, "{todo}");
        };
        check("pick 1 exec\n# exec x\nlabel exec\n", "");
        check("pick 1\nexec make\n\tx  true\nx\n", "exec make\n\tx  true\nx");
        check("execute 1\nxx 2\n", "");
    }

    #[test]
    fn settings_of_the_environment_are_kept_only_where_they_execute_something() {
        let variables = [
            ("GIT_CONFIG_COUNT", "3"),
            ("GIT_CONFIG_KEY_0", "http.https://host/.extraheader"),
            ("GIT_CONFIG_VALUE_0", "a token"),
            ("GIT_CONFIG_KEY_1", "filter.a.b.clean"),
            ("GIT_CONFIG_VALUE_1", "tools/\"x\"\n"),
            ("GIT_CONFIG_KEY_2", "include.path"),
            ("GIT_CONFIG_VALUE_2", "/conf"),
        ];
        let variables = variables.map(|(name, value)| (name.into(), value.into()));
        let config = environment_config(&Host::new(variables.into(), "/".into()));
        let found: Vec<_> = parse_config(config.as_bytes());
        let found: Vec<_> = found.iter().map(|found| (found.key.as_str(), found.value.as_slice())).collect();
        assert_eq!(found, [("clean", &b"tools/\"x\"\n"[..]), ("path", b"/conf")]);
    }
}
