//! Rebases and other sequences in progress. A sequence contains commands for `--continue`, and
//! commits that git writes into the work tree, over scripts and hooks that a sandbox cannot write
//! itself.

use std::path::Path;

use super::config::parse_config;
use super::history::MAX_PACKED_REFERENCES;
use super::index::digest_index;
use super::{GitSearch, KnownRepository, last_value};
use crate::view::deciders::{PathState, path_from};

/// Maximum size of the files of a sequence in bytes; real ones are smaller.
const MAX_TODO: u64 = 1 << 24;
/// Maximum number of patches that are applied at once; real sequences have fewer.
const MAX_PATCHES: usize = 1 << 12;
/// Merge strategies that are part of git. Any other strategy is a program, and one with a slash is
/// a program in the work tree.
const BUILTIN_STRATEGIES: [&str; 6] = ["ort", "recursive", "resolve", "octopus", "ours", "subtree"];
/// Files of a rebase that decide which commits git checks out. Files that only record progress are
/// not listed.
const REBASE_FILES: [&str; 6] = ["autostash", "git-rebase-todo", "head-name", "onto", "orig-head", "update-refs"];
/// Files with the same role in a sequence of picks or reverts.
const SEQUENCER_FILES: [&str; 2] = ["head", "todo"];

impl GitSearch<'_> {
    /// Visits a rebase or a sequence in progress, and the stash of a merge.
    pub(super) fn sequences(&mut self, gitdir: &Path, repository: &KnownRepository, worktree: &Path) {
        let [stash, rebase, sequencer, patches] =
            ["MERGE_AUTOSTASH", "rebase-merge", "sequencer", "rebase-apply"].map(|name| gitdir.join(name));
        if [&stash, &rebase, &sequencer, &patches].iter().all(|path| !self.deciders.files.has_name(path)) {
            return;
        }
        self.has_sequence = true;
        let start = self.sequence_start(gitdir, repository);
        if let Some(content) = self.read_sequence_file(&stash) {
            self.deciders.note_content(&stash, &[content, start.clone()].concat());
        }
        if self.deciders.files.has_name(&rebase) {
            self.note_sequence(&rebase, REBASE_FILES.map(Path::new), &start);
            let todo = self.read_sequence_file(&rebase.join("git-rebase-todo")).unwrap_or_default();
            for command in executed_lines(&todo) {
                self.protect_command(command, worktree);
            }
            let strategy = rebase.join("strategy");
            if let Some(name) = self.read_sequence_file(&strategy) {
                self.note_strategy(&strategy, name.trim_ascii());
            }
        }
        if self.deciders.files.has_name(&sequencer) {
            self.note_sequence(&sequencer, SEQUENCER_FILES.map(Path::new), &start);
            let options = sequencer.join("opts");
            let variables = parse_config(&self.read_sequence_file(&options).unwrap_or_default());
            if let Some(name) = last_value(&variables, ["options", "strategy"]) {
                self.note_strategy(&options, name);
            }
        }
        if self.deciders.files.has_name(&patches) {
            let entries = self.list(&patches);
            if entries.len() > MAX_PATCHES {
                self.deciders.note(&patches, PathState::Unknown);
            } else {
                self.note_sequence(&patches, entries.iter().map(|(name, _)| Path::new(name)), &start);
            }
        }
    }

    /// Returns the state from which git continues. Git merges each commit with the one that is
    /// checked out, so if a file there was renamed to the name of a hook, git writes the hook.
    pub(super) fn sequence_start(&mut self, gitdir: &Path, repository: &KnownRepository) -> Vec<u8> {
        let mut start = self.read_sequence_file(&gitdir.join("HEAD")).unwrap_or_default();
        if let Some(branch) = start.strip_prefix(b"ref:").map(|branch| branch.trim_ascii().to_vec()) {
            let loose = self.read_sequence_file(&repository.common.join(path_from(&branch)));
            start.extend(loose.unwrap_or_else(|| self.packed_reference(&repository.common, &branch)));
        }
        // A commit in this file has no parents, so all of its files count as changes.
        start.extend(self.read_sequence_file(&repository.common.join("shallow")).unwrap_or_default());
        let mut index = Some(gitdir.join("index"));
        // The file that a split index refers to is not split itself.
        for _ in 0..2 {
            let found = index.take().and_then(|path| self.deciders.resolve(&path));
            let Some(found) = found else { break };
            let opened = self.deciders.files.open(&found.path);
            let Some(Some(file)) = self.deciders.or_denied(opened) else { break };
            // An index that cannot be read is reported elsewhere.
            let Ok((digest, shared)) = digest_index(file, repository.hash_length) else { break };
            start.extend(digest);
            index = shared.map(|shared| gitdir.join(shared));
        }
        start
    }

    fn packed_reference(&mut self, common: &Path, name: &[u8]) -> Vec<u8> {
        let found = self.deciders.resolve(&common.join("packed-refs"));
        let content = found.and_then(|found| self.deciders.read(&found.path, MAX_PACKED_REFERENCES));
        let content = content.unwrap_or_default();
        let mut lines = content.split(|byte| *byte == b'\n');
        let line = lines.find(|line| line.strip_suffix(name).is_some_and(|start| start.ends_with(b" ")));
        line.unwrap_or_default().to_vec()
    }

    /// Records the content of files in the directory of a sequence, and the state from which the
    /// sequence continues.
    fn note_sequence<'n>(&mut self, directory: &Path, names: impl IntoIterator<Item = &'n Path>, start: &[u8]) {
        let Some(found) = self.deciders.resolve(directory) else { return };
        let mut content = Vec::new();
        for name in names {
            if let Some(text) = self.read_sequence_file(&found.path.join(name)) {
                let length = text.len();
                content.extend(format!("{} {length}\n", name.display()).into_bytes());
                content.extend(text);
            }
            if content.len() as u64 > MAX_TODO {
                return self.deciders.note(&found.path, PathState::Unknown);
            }
        }
        if !content.is_empty() {
            content.extend(start);
            self.deciders.note_content(&found.path, &content);
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
}

/// Returns the lines of a rebase's todo list that run a command (git-rebase(1), "exec").
fn executed_lines(todo: &[u8]) -> impl Iterator<Item = &[u8]> {
    let is_executed = |line: &&[u8]| {
        let command = line.trim_ascii_start();
        let end = command.iter().position(u8::is_ascii_whitespace).unwrap_or(command.len());
        matches!(&command[..end], b"exec" | b"x")
    };
    todo.split(|byte| *byte == b'\n').filter(is_executed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_that_run_a_command_count_in_a_rebase() {
        let check = |todo: &str, expected: &str| {
            let lines: Vec<&[u8]> = executed_lines(todo.as_bytes()).collect();
            assert_eq!(String::from_utf8_lossy(&lines.join(&b'\n')), expected, "{todo}");
        };
        check("pick 1 exec\n# exec x\nlabel exec\n", "");
        check("pick 1\nexec make\n\tx  true\nx\n", "exec make\n\tx  true\nx");
        check("execute 1\nxx 2\n", "");
    }
}
