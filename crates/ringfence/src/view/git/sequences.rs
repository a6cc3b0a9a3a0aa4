//! Rebases and other sequences in progress. They hold commands for `--continue`, and commits that git
//! writes into the work tree, over scripts and hooks that a sandbox cannot write itself.

use std::path::Path;

use super::config::parse_config;
use super::{GitSearch, last_value};
use crate::view::deciders::PathState;

/// More steps than a rebase has.
const MAX_TODO: u64 = 1 << 24;
/// More patches than anybody applies at once.
const MAX_PATCHES: usize = 1 << 12;
/// Merge strategies that are part of git: any other is a program, and one with a slash is one in the work tree.
const BUILTIN_STRATEGIES: [&str; 6] = ["ort", "recursive", "resolve", "octopus", "ours", "subtree"];
/// Files of a rebase that decide which commits git checks out. Those that only say how far it got are
/// not among them.
const REBASE_FILES: [&str; 6] = ["autostash", "git-rebase-todo", "head-name", "onto", "orig-head", "update-refs"];
/// Files of a sequence of picks or reverts that decide the same.
const SEQUENCER_FILES: [&str; 2] = ["head", "todo"];

impl GitSearch<'_> {
    /// Looks at a rebase or a sequence that is in progress, and at what a merge stashed.
    pub(super) fn sequences(&mut self, gitdir: &Path, worktree: &Path) {
        let stash = gitdir.join("MERGE_AUTOSTASH");
        if let Some(content) = self.read_sequence_file(&stash) {
            self.deciders.note_content(&stash, &content);
        }
        let rebase = gitdir.join("rebase-merge");
        if self.deciders.files.has_name(&rebase) {
            self.note_sequence(&rebase, REBASE_FILES.map(Path::new));
            let todo = self.read_sequence_file(&rebase.join("git-rebase-todo")).unwrap_or_default();
            for command in executed_lines(&todo) {
                self.protect_command(command, worktree);
            }
            let strategy = rebase.join("strategy");
            if let Some(name) = self.read_sequence_file(&strategy) {
                self.note_strategy(&strategy, name.trim_ascii());
            }
        }
        let sequencer = gitdir.join("sequencer");
        if self.deciders.files.has_name(&sequencer) {
            self.note_sequence(&sequencer, SEQUENCER_FILES.map(Path::new));
            let options = sequencer.join("opts");
            let variables = parse_config(&self.read_sequence_file(&options).unwrap_or_default());
            if let Some(name) = last_value(&variables, ["options", "strategy"]) {
                self.note_strategy(&options, name);
            }
        }
        let patches = gitdir.join("rebase-apply");
        if self.deciders.files.has_name(&patches) {
            let entries = self.list(&patches);
            if entries.len() > MAX_PATCHES {
                self.deciders.note(&patches, PathState::Unknown);
            } else {
                self.note_sequence(&patches, entries.iter().map(|(name, _)| Path::new(name)));
            }
        }
    }

    /// Keeps the content of files in the directory of a sequence.
    fn note_sequence<'n>(&mut self, directory: &Path, names: impl IntoIterator<Item = &'n Path>) {
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

/// The lines of a rebase's list that run a command (git-rebase(1), "exec").
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
