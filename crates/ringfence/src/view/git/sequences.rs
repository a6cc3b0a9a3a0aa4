//! Rebases and sequences in progress, which hold commands for `--continue`.

use std::path::Path;

use super::config::parse_config;
use super::{GitSearch, last_value};

/// More steps than a rebase has.
const MAX_TODO: u64 = 1 << 24;
/// Merge strategies that are part of git: any other is a program, and one with a slash is one in the work tree.
const BUILTIN_STRATEGIES: [&str; 6] = ["ort", "recursive", "resolve", "octopus", "ours", "subtree"];

impl GitSearch<'_> {
    /// Looks at a rebase or a sequence that is in progress: it holds commands for `--continue`.
    pub(super) fn sequences(&mut self, gitdir: &Path, worktree: &Path) {
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
}
