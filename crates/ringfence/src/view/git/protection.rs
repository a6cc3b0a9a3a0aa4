//! Protection of the programs that settings name.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ringfence_core::policy::{GlobComponent, PathGlob};
use rustix::fs::FileType;

use super::config::ConfigVariable;
use super::programs::{
    SettingEffect, effect_of, globs_of_command, imports_from_working_directory, starts_python, words_of_command,
};
use super::{GitEntry, GitSearch, PendingVisit};
use crate::view::deciders::{PathState, ResolvedPath, path_from};

/// More directories than a command names.
const MAX_COMMAND_DIRECTORIES: usize = 32;
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

/// The paths of the work tree that a command names.
#[derive(Default)]
struct NamedPaths {
    files: Vec<PathBuf>,
    directories: Vec<PathBuf>,
}

impl GitSearch<'_> {
    /// Protects the files of `worktree` that settings have git run.
    pub(super) fn apply(&mut self, variables: &[ConfigVariable], worktree: &Path) {
        for variable in variables {
            match effect_of(variable) {
                SettingEffect::Command if variable.section == "alias" => {
                    self.protect_words(&variable.value, worktree, is_path_like);
                }
                SettingEffect::Command => self.protect_command(&variable.value, worktree),
                SettingEffect::ProgramDirectory => {
                    let Some(path) = self.scope.expand(&variable.value, worktree) else { continue };
                    // Husky's `_` does nothing but run the scripts beside it.
                    let beside = path.parent().filter(|above| path.ends_with("_") && *above != worktree);
                    beside.into_iter().for_each(|beside| self.program_directory(beside));
                    self.program_directory(&path);
                    if variable.key == "templatedir" {
                        self.program_directory(&path.join("hooks"));
                    }
                }
                SettingEffect::Repository => self.local_repository(variable, worktree),
                SettingEffect::Include | SettingEffect::None => {}
            }
        }
    }

    /// Protects a directory whose files git runs, and those that links in it lead to.
    pub(super) fn program_directory(&mut self, path: &Path) {
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
    pub(super) fn protect_command(&mut self, command: &[u8], worktree: &Path) {
        self.protect_words(command, worktree, |_| true);
        if let Some(replaced) = self.scope.replace_variables(command).filter(|replaced| replaced != command) {
            self.protect_words(&replaced, worktree, |_| true);
        }
        for glob in globs_of_command(command) {
            self.protect_glob(&glob, worktree);
        }
        if imports_from_working_directory(command) {
            self.watch_imports(worktree);
        }
    }

    /// Protects the files of `worktree` that words of a command name, where `may_be_file` says that a word can.
    fn protect_words(&mut self, command: &[u8], worktree: &Path, may_be_file: fn(&[u8]) -> bool) {
        let words = words_of_command(command);
        let mut named = NamedPaths::default();
        for word in words.iter().filter(|word| !word.is_program) {
            let may_be_file = may_be_file(&word.text);
            let Some(path) = self.scope.expand(&word.text, worktree) else { continue };
            self.protect_word(&path, may_be_file, &mut named);
            // What follows a substitution looks absolute and is not: `$(git rev-parse --show-toplevel)/run`,
            // `$(git rev-parse --git-dir)/../run`.
            if word.text.starts_with(b"/") {
                let relative = path_from(&word.text).strip_prefix("/").expect("it starts with a slash");
                self.protect_word(&worktree.join(relative), may_be_file, &mut named);
                self.protect_word(&worktree.join(".git").join(relative), may_be_file, &mut named);
            }
        }
        // `cd tools && cd in && ./run`, `make -C tools`, `python3 tools`.
        let mut next = 0;
        while let Some(directory) = named.directories.get(next).filter(|_| next < MAX_COMMAND_DIRECTORIES).cloned() {
            next += 1;
            let names = words.iter().map(|word| path_from(&word.text));
            for name in names.chain(DIRECTORY_PROGRAMS.map(Path::new)).filter(|name| name.is_relative()) {
                self.protect_word(&directory.join(name), true, &mut named);
            }
        }
        if starts_python(command) {
            let directories: BTreeSet<&Path> = named.files.iter().filter_map(|file| file.parent()).collect();
            directories.into_iter().for_each(|directory| self.watch_imports(directory));
        }
    }

    /// Protects a file that a word of a command is, and keeps a directory that it is.
    fn protect_word(&mut self, path: &Path, may_be_file: bool, named: &mut NamedPaths) {
        // A word that leads nowhere through no link of the sandbox's is a word.
        let Some(ResolvedPath { path, is_directory }) = self.deciders.resolve(path) else { return };
        if !self.deciders.is_writable(&path) {
            return;
        }
        if !is_directory && may_be_file {
            named.files.push(path.clone());
            self.deciders.protect_resolved(&ResolvedPath { path, is_directory });
        } else if is_directory && !self.deciders.holds_writable(&path) && !named.directories.contains(&path) {
            named.directories.push(path);
        }
    }

    /// Protects the files that a pattern of a command matches. A pattern with `**`, or from the root, is left out.
    fn protect_glob(&mut self, glob: &str, worktree: &Path) {
        let Ok(glob) = glob.parse::<PathGlob>() else { return };
        for components in glob.components() {
            let mut paths = vec![worktree.to_path_buf()];
            for component in &components {
                let GlobComponent::Name(matcher) = component else { return };
                let mut matching = Vec::new();
                for directory in &paths {
                    let entries = self.list(directory);
                    let names = entries.iter().map(|(name, _)| name).filter(|name| matcher.is_match(Path::new(name)));
                    matching.extend(names.map(|name| directory.join(name)));
                }
                matching.truncate(MAX_COMMAND_DIRECTORIES);
                paths = matching;
            }
            for path in paths {
                self.protect_word(&path, true, &mut NamedPaths::default());
            }
        }
    }

    /// Watches a directory from which Python imports modules before it looks at its own: new ones are reported.
    fn watch_imports(&mut self, directory: &Path) {
        let is_module = |name: &OsStr| {
            let end = Path::new(name).extension().and_then(OsStr::to_str);
            end.is_some_and(|end| ["py", "pyc", "so"].contains(&end))
        };
        for (name, kind) in self.list(directory).iter() {
            let path = directory.join(name);
            if is_module(name) {
                self.deciders.note(&path, PathState::File);
            } else if *kind != FileType::RegularFile {
                let inner = self.list(&path);
                let mut names = inner.iter().map(|(name, _)| name);
                if let Some(start) = names.find(|name| is_module(name) && name.as_bytes().starts_with(b"__init__.")) {
                    self.deciders.note(&path.join(start), PathState::File);
                }
            }
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
        if self.is_git_directory(&found.path) {
            self.visit_repository(&found.path, None);
        }
        let (entry, worktree) = (found.path.join(".git"), found.path);
        self.pending.push_back(PendingVisit::Entry { entry, worktree, role: GitEntry::Discovered });
    }
}

/// Tells whether a setting has git run files that it may find in the work tree.
pub(super) fn names_files_of_work_tree(variable: &ConfigVariable) -> bool {
    let is_relative = |text: &[u8]| !text.starts_with(b"/") && !text.starts_with(b"~");
    match effect_of(variable) {
        SettingEffect::ProgramDirectory => is_relative(&variable.value),
        SettingEffect::Command if variable.section != "alias" => {
            let words = words_of_command(&variable.value);
            words.iter().any(|word| is_relative(&word.text) && is_path_like(&word.text))
        }
        _ => false,
    }
}

/// Tells whether a word is the path of a file rather than an argument. Git runs an alias only where the user types its
/// name, and the words of most are arguments: `make build` must not make a file called `build` read-only. A path has
/// a slash or a dot in it.
fn is_path_like(word: &[u8]) -> bool {
    word.contains(&b'/') || word.contains(&b'.')
}
