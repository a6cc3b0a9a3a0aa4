//! Protection of the programs that settings name.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ringfence_core::policy::{GlobComponent, PathGlob};
use rustix::fs::FileType;

use super::config::ConfigVariable;
use super::programs::{
    SettingEffect, globs_of_command, imports_from_working_directory, setting_effect, split_command,
    starts_interpreter, starts_node, starts_python,
};
use super::{GitEntry, GitSearch, PendingVisit};
use crate::view::deciders::{PathState, ResolvedPath, path_from};

/// Maximum number of directories of one command; real commands name fewer.
const MAX_COMMAND_DIRECTORIES: usize = 32;
/// Maximum length of a script's first line that the kernel reads (execve(2)).
const MAX_INTERPRETER_LINE: usize = 256;
/// Modules that Python imports at each start, if they exist.
const STARTED_MODULES: [&str; 2] = ["sitecustomize", "usercustomize"];
/// File name extensions that Node.js tries after a name that is not a file.
const NODE_ENDS: [&str; 6] = [".js", ".json", ".node", ".cjs", ".mjs", ".ts"];
/// Files by which interpreters start a directory.
const DIRECTORY_PROGRAMS: [&str; 5] =
    ["__main__.py", "index.js", "package.json", "Makefile", "makefile"];
/// Hooks that git knows (githooks(5)), for a hook directory that cannot be protected as a whole.
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

/// Paths of the work tree that a command names.
#[derive(Default)]
struct NamedPaths {
    files: Vec<PathBuf>,
    directories: Vec<PathBuf>,
}

impl GitSearch<'_> {
    /// Protects the files of `worktree` that settings make git run.
    pub(super) fn apply(&mut self, variables: &[ConfigVariable], worktree: &Path) {
        for variable in variables {
            match setting_effect(variable) {
                SettingEffect::Command if variable.section == "alias" => {
                    self.protect_words(&variable.value, worktree, is_path_like);
                }
                SettingEffect::Command => self.protect_command(&variable.value, worktree),
                SettingEffect::ProgramDirectory => {
                    let Some(path) = self.scope.expand(&variable.value, worktree) else { continue };
                    // Husky's directory `_` only runs the scripts beside it.
                    let beside =
                        path.parent().filter(|above| path.ends_with("_") && *above != worktree);
                    beside.into_iter().for_each(|beside| self.program_directory(beside));
                    if variable.key == "templatedir" {
                        self.template_directory(&path);
                    } else {
                        self.program_directory(&path);
                    }
                }
                SettingEffect::Repository => self.local_repository(variable, worktree),
                SettingEffect::Include | SettingEffect::None => {}
            }
        }
    }

    /// Protects a directory whose files git copies into each new repository.
    pub(super) fn template_directory(&mut self, path: &Path) {
        self.program_directory(path);
        self.program_directory(&path.join("hooks"));
    }

    /// Protects a directory whose files git runs, and the files that links in the directory lead
    /// to.
    pub(super) fn program_directory(&mut self, path: &Path) {
        let Some(found) = self.deciders.resolve_deciding(path) else { return };
        if !found.is_directory || !self.deciders.holds_writable(&found.path) {
            self.deciders.protect_resolved(&found);
            for (name, kind) in self.list(&found.path).iter() {
                if *kind == FileType::Symlink {
                    self.protect_script(&found.path.join(name));
                }
            }
        } else {
            // The workspace itself cannot be protected as a whole, so each possible hook is.
            for name in HOOKS {
                self.protect_script(&found.path.join(name));
            }
        }
    }

    /// Protects the files of `worktree` that a command names.
    pub(super) fn protect_command(&mut self, command: &[u8], worktree: &Path) {
        self.protect_words(command, worktree, |_| true);
        if let Some(replaced) =
            self.scope.replace_variables(command).filter(|replaced| replaced != command)
        {
            self.protect_words(&replaced, worktree, |_| true);
        }
        for glob in globs_of_command(command) {
            self.protect_glob(&glob, worktree);
        }
        if imports_from_working_directory(command) {
            self.watch_imports(worktree);
        }
    }

    /// Protects the files of `worktree` that words of a command name. `may_be_file` tells whether a
    /// word can be the name of a file.
    fn protect_words(&mut self, command: &[u8], worktree: &Path, may_be_file: fn(&[u8]) -> bool) {
        let words = split_command(command);
        let mut named = NamedPaths::default();
        let is_node = starts_node(command);
        let takes_script = starts_interpreter(command);
        for word in words.iter().filter(|word| !word.is_program) {
            let may_be_file = may_be_file(&word.text);
            let Some(path) = self.scope.expand(&word.text, worktree) else { continue };
            self.protect_word(&path, may_be_file, &mut named);
            // A commit may add the file later. Most words without a slash or a dot are arguments,
            // unless the command takes the name of a script.
            if may_be_file && !is_code(&word.text) && (takes_script || is_path_like(&word.text)) {
                self.deciders.resolve_deciding(&path);
            }
            if is_node {
                for end in NODE_ENDS {
                    self.protect_word(&append_suffix(&path, end), may_be_file, &mut named);
                }
            }
            // A word after a substitution looks absolute but is not:
            // `$(git rev-parse --show-toplevel)/run`, `$(git rev-parse --git-dir)/../run`.
            if word.text.starts_with(b"/") {
                let relative =
                    path_from(&word.text).strip_prefix("/").expect("it starts with a slash");
                self.protect_word(&worktree.join(relative), may_be_file, &mut named);
                self.protect_word(&worktree.join(".git").join(relative), may_be_file, &mut named);
                if may_be_file && follows_substitution(command, &word.text) {
                    self.deciders.resolve_deciding(&worktree.join(relative));
                }
            }
        }
        // Words may be relative to directories that the command names:
        // `cd tools && cd in && ./run`, `make -C tools`, `python3 tools`.
        let mut next = 0;
        while let Some(directory) =
            named.directories.get(next).filter(|_| next < MAX_COMMAND_DIRECTORIES).cloned()
        {
            next += 1;
            let names = words.iter().map(|word| path_from(&word.text));
            for name in
                names.chain(DIRECTORY_PROGRAMS.map(Path::new)).filter(|name| name.is_relative())
            {
                self.protect_word(&directory.join(name), true, &mut named);
            }
        }
        let is_python = starts_python(command);
        let scripts = named.files.iter().filter(|file| is_python || self.is_python_script(file));
        let directories: BTreeSet<PathBuf> =
            scripts.filter_map(|file| file.parent()).map(Path::to_path_buf).collect();
        directories.iter().for_each(|directory| self.watch_imports(directory));
        named.files.iter().for_each(|file| self.protect_cached_module(file));
    }

    /// Protects a script, and watches the directory from which its interpreter imports modules.
    fn protect_script(&mut self, path: &Path) {
        let Some(found) = self.deciders.protect(path).filter(|found| !found.is_directory) else {
            return;
        };
        if self.is_python_script(&found.path)
            && let Some(directory) = found.path.parent()
        {
            self.watch_imports(directory);
        }
    }

    /// Tells whether the first line of a script makes the kernel start Python, and protects the
    /// virtual environment of that Python.
    fn is_python_script(&mut self, path: &Path) -> bool {
        if !self.deciders.is_writable(path) {
            return false;
        }
        let opened = self.deciders.files.open(path);
        let Some(Some(mut file)) = self.deciders.or_denied(opened) else { return false };
        let mut start = [0; MAX_INTERPRETER_LINE];
        let length = file.read(&mut start).unwrap_or(0);
        let line = start[..length].split(|byte| *byte == b'\n').next().unwrap_or_default();
        let Some(command) = line.strip_prefix(b"#!").filter(|command| starts_python(command))
        else {
            return false;
        };
        let interpreter =
            command.trim_ascii().split(u8::is_ascii_whitespace).next().unwrap_or_default();
        if interpreter.starts_with(b"/") {
            self.virtual_environment(path_from(interpreter));
        }
        true
    }

    /// Protects the files that the Python of a virtual environment runs at each start, and returns
    /// the directories of the environment's modules (site(1), "Python's site module").
    fn virtual_environment(&mut self, interpreter: &Path) -> Vec<PathBuf> {
        let is_python = interpreter.file_name().is_some_and(|name| starts_python(name.as_bytes()));
        let Some(root) = interpreter.parent().and_then(Path::parent).filter(|_| is_python) else {
            return Vec::new();
        };
        let Some(root) = self.deciders.resolve(root).map(|found| found.path) else {
            return Vec::new();
        };
        if !self.deciders.is_writable(&root) {
            return Vec::new();
        }
        let Some(settings) = self.deciders.resolve(&root.join("pyvenv.cfg")) else {
            return Vec::new();
        };
        self.deciders.protect_resolved(&settings);
        let mut directories = Vec::new();
        let libraries = root.join("lib");
        for (version, _) in self.list(&libraries).iter() {
            let directory = libraries.join(version).join("site-packages");
            for (name, _) in self.list(&directory).iter() {
                let is_started = name.as_bytes().ends_with(b".pth")
                    || STARTED_MODULES
                        .iter()
                        .any(|started| name.as_bytes().starts_with(started.as_bytes()));
                if is_started {
                    self.deciders.protect(&directory.join(name));
                }
            }
            directories.push(directory);
        }
        directories
    }

    /// Protects the compiled form of a protected Python module, which Python runs in its place.
    fn protect_cached_module(&mut self, module: &Path) {
        let Some(name) = module.file_name().and_then(|name| name.as_bytes().strip_suffix(b"py"))
        else {
            return;
        };
        let cache = module.with_file_name("__pycache__");
        for (cached, _) in
            self.list(&cache).iter().filter(|(cached, _)| cached.as_bytes().starts_with(name))
        {
            self.deciders.protect(&cache.join(cached));
        }
    }

    /// Protects the file that a word of a command names, or adds the directory that it names to
    /// `named`.
    fn protect_word(&mut self, path: &Path, may_be_file: bool, named: &mut NamedPaths) {
        let modules = self.virtual_environment(path);
        named.directories.extend(modules);
        // A word that leads to no file is just a word. `resolve` records the links of the sandbox
        // on its way.
        let Some(ResolvedPath { path, is_directory }) = self.deciders.resolve(path) else { return };
        if !self.deciders.is_writable(&path) {
            return;
        }
        if !is_directory && may_be_file {
            named.files.push(path.clone());
            self.deciders.protect_resolved(&ResolvedPath { path, is_directory });
        } else if is_directory
            && !self.deciders.holds_writable(&path)
            && !named.directories.contains(&path)
        {
            named.directories.push(path);
        }
    }

    /// Protects the files that a pattern of a command matches. A pattern with `**`, or from the
    /// root, is ignored.
    fn protect_glob(&mut self, glob: &str, worktree: &Path) {
        // A commit may add a file that matches the pattern.
        if let Some((directory, _)) = glob.rsplit_once('/').filter(|_| !glob.starts_with('/')) {
            let start = directory.split('/').take_while(|part| !part.contains(['*', '?', '[']));
            let start = worktree.join(start.collect::<PathBuf>());
            self.deciders.resolve_deciding(&start.join("*"));
        }
        let Ok(glob) = glob.parse::<PathGlob>() else { return };
        for components in glob.components() {
            let mut paths = vec![worktree.to_path_buf()];
            for component in &components {
                let GlobComponent::Name(matcher) = component else { return };
                let mut matching = Vec::new();
                for directory in &paths {
                    let entries = self.list(directory);
                    let names = entries
                        .iter()
                        .map(|(name, _)| name)
                        .filter(|name| matcher.is_match(Path::new(name)));
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

    /// Watches a directory from which Python imports modules before its own, so that new modules
    /// are reported.
    fn watch_imports(&mut self, directory: &Path) {
        let is_module = |name: &OsStr| {
            let end = Path::new(name).extension().and_then(OsStr::to_str);
            end.is_some_and(|end| ["py", "pyc", "so"].contains(&end))
        };
        self.deciders.resolve_deciding(&directory.join("*.py"));
        for (name, kind) in self.list(directory).iter() {
            let path = directory.join(name);
            if is_module(name) {
                self.deciders.note(&path, PathState::File);
            } else if *kind != FileType::RegularFile {
                let inner = self.list(&path);
                let mut names = inner.iter().map(|(name, _)| name);
                if let Some(start) =
                    names.find(|name| is_module(name) && name.as_bytes().starts_with(b"__init__."))
                {
                    self.deciders.note(&path.join(start), PathState::File);
                }
            }
        }
    }

    /// Visits a repository in the workspace from which another repository fetches or to which it
    /// pushes.
    fn local_repository(&mut self, variable: &ConfigVariable, worktree: &Path) {
        let url = &variable.value;
        let path = url.strip_prefix(b"file://").unwrap_or(url);
        // A relative URL of a submodule is relative to another URL, not to a directory.
        let is_relative_url = variable.section == "submodule" && path.starts_with(b".");
        let has_host =
            path.split(|byte| *byte == b'/').next().is_some_and(|start| start.contains(&b':'));
        if is_relative_url || has_host {
            return;
        }
        let Some(path) = self.scope.expand(path, worktree) else { return };
        let Some(found) = self.deciders.resolve_deciding(&path) else { return };
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

/// Tells whether a word is a whole shell command rather than the path of a file.
fn is_code(word: &[u8]) -> bool {
    word.iter().any(|byte| b"'\"`$(){};|&<>".contains(byte))
}

/// Tells whether a word of a command follows the output of another command, as in
/// `"$(git rev-parse --show-toplevel)"/run`.
fn follows_substitution(command: &[u8], word: &[u8]) -> bool {
    let starts = (0..command.len()).filter(|start| command[*start..].starts_with(word));
    let before =
        starts.filter_map(|start| command[..start].iter().rfind(|byte| !b"'\"".contains(byte)));
    before.into_iter().any(|byte| b")`".contains(byte))
}

fn append_suffix(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// Tells whether a word looks like the path of a file rather than an argument. A path contains a
/// slash or a dot. Git runs an alias only if the user types its name, and most words of an alias
/// are arguments: `make build` must not make a file called `build` read-only.
fn is_path_like(word: &[u8]) -> bool {
    word.contains(&b'/') || word.contains(&b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_behind_the_output_of_a_command_is_no_absolute_path() {
        for (command, expected) in [
            ("$(git rev-parse --show-toplevel)/run", true),
            ("sh -c '\"$(git rev-parse --show-toplevel)\"/run'", true),
            ("`pwd`/run", true),
            ("f() { /run $1; }; f", false),
            ("'/run' x", false),
        ] {
            assert_eq!(follows_substitution(command.as_bytes(), b"/run"), expected, "{command}");
        }
    }
}
