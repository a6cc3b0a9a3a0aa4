//! Rebases and other sequences in progress. A sequence contains commands for `--continue`, and
//! commits that git writes into the work tree, over scripts and hooks that a sandbox cannot write
//! itself.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

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
/// Files of a rebase that decide which commits git checks out. Files that only tell the progress of
/// the rebase are not listed.
const REBASE_FILES: [&str; 9] = [
    "autostash",
    "git-rebase-todo",
    "head-name",
    "onto",
    "orig-head",
    "squash-onto",
    "strategy",
    "strategy_opts",
    "update-refs",
];
/// Files of a sequence of picks or reverts that decide which commits git checks out.
const SEQUENCER_FILES: [&str; 3] = ["head", "opts", "todo"];
/// Directories in which git looks for a reference by its short name (gitrevisions(7)).
const REFERENCE_DIRECTORIES: [&str; 5] =
    ["", "refs/", "refs/tags/", "refs/heads/", "refs/remotes/"];
/// Maximum number of references that the list of a sequence names; real lists name fewer.
const MAX_NAMES: usize = 1 << 12;

impl GitSearch<'_> {
    /// Visits a rebase or a sequence in progress, and the stash of a merge.
    pub(super) fn sequences(
        &mut self,
        gitdir: &Path,
        repository: &KnownRepository,
        worktree: &Path,
    ) {
        let [stash, rebase, sequencer, patches] =
            ["MERGE_AUTOSTASH", "rebase-merge", "sequencer", "rebase-apply"]
                .map(|name| gitdir.join(name));
        if [&stash, &rebase, &sequencer, &patches]
            .iter()
            .all(|path| !self.deciders.files.has_name(path))
        {
            return;
        }
        self.has_sequence = true;
        self.resolutions_of_run(&repository.common);
        let lists = [rebase.join("git-rebase-todo"), sequencer.join("todo")];
        let lists = lists.map(|list| self.read_sequence_file(&list).unwrap_or_default());
        let start = self.sequence_start(gitdir, repository);
        if let Some(content) = self.read_sequence_file(&stash) {
            self.deciders.note_content(&stash, &[&content[..], &start].concat());
        }
        let references = self.sequence_references(gitdir, repository, &lists);
        let start = references.map(|references| [start, references].concat());
        let start = start.as_deref();
        if self.deciders.files.has_name(&rebase) {
            self.note_sequence(&rebase, REBASE_FILES.map(Path::new), start);
            for command in executed_lines(&lists[0]) {
                self.protect_command(command, worktree);
            }
            let strategy = rebase.join("strategy");
            if let Some(name) = self.read_sequence_file(&strategy) {
                self.note_strategy(&strategy, name.trim_ascii());
            }
        }
        if self.deciders.files.has_name(&sequencer) {
            self.note_sequence(&sequencer, SEQUENCER_FILES.map(Path::new), start);
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
                self.note_sequence(
                    &patches,
                    entries.iter().map(|(name, _)| Path::new(name)),
                    start,
                );
            }
        }
    }

    /// Returns the state from which git continues. Git merges each commit with the one that is
    /// checked out, so if a file there was renamed to the name of a hook, git writes the hook.
    pub(super) fn sequence_start(
        &mut self,
        gitdir: &Path,
        repository: &KnownRepository,
    ) -> Vec<u8> {
        let mut start = self.read_sequence_file(&gitdir.join("HEAD")).unwrap_or_default();
        if let Some(branch) = start.strip_prefix(b"ref:").map(|branch| branch.trim_ascii().to_vec())
        {
            let loose = self.read_sequence_file(&repository.common.join(path_from(&branch)));
            start.extend(
                loose.unwrap_or_else(|| self.packed_reference(&repository.common, &branch)),
            );
        }
        // A commit in this file has no parents, so all of its files count as changes.
        start.extend(
            self.read_sequence_file(&repository.common.join("shallow")).unwrap_or_default(),
        );
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

    /// Returns the commits that the list of a sequence names by references: labels, which are
    /// references of their own, and names that are not full names of objects. An abbreviated object
    /// name can also be the name of a reference, and then stands for another commit. Returns `None`
    /// if a name cannot be judged.
    fn sequence_references(
        &mut self,
        gitdir: &Path,
        repository: &KnownRepository,
        lists: &[Vec<u8>],
    ) -> Option<Vec<u8>> {
        if self.deciders.files.has_name(&repository.common.join("reftable")) {
            return None;
        }
        let mut found = Vec::new();
        let mut add =
            |name: &[u8], content: &[u8]| found.extend([name, b"\0", content, b"\0"].concat());
        for (path, content) in self.loose_references(&gitdir.join("refs/rewritten"))? {
            add(path.as_os_str().as_bytes(), &content);
        }
        let is_hash = |word: &[u8]| {
            word.len() == 2 * repository.hash_length && word.iter().all(u8::is_ascii_hexdigit)
        };
        let names: BTreeSet<&[u8]> = lists
            .iter()
            .flat_map(|list| named_commits(list))
            .filter(|word| !is_hash(word))
            .collect();
        if names.len() > MAX_NAMES {
            return None;
        }
        let mut pending = Vec::new();
        for name in names {
            let name = name.split(|byte| b"~^".contains(byte)).next().unwrap_or_default();
            let name = if name == b"@" { b"HEAD" } else { name };
            // Names of these forms make git look for a commit in logs and messages.
            if name.contains(&b':') || name.windows(2).any(|pair| pair == b"@{") {
                return None;
            }
            pending.extend(
                REFERENCE_DIRECTORIES.map(|directory| [directory.as_bytes(), name].concat()),
            );
            pending.push([b"refs/remotes/", name, b"/HEAD"].concat());
        }
        let mut looked_for: BTreeSet<Vec<u8>> = BTreeSet::new();
        while let Some(name) = pending.pop() {
            let is_plain =
                path_from(&name).components().all(|part| matches!(part, Component::Normal(_)));
            if !is_plain || name.contains(&0) || !looked_for.insert(name.clone()) {
                continue;
            }
            for directory in BTreeSet::from([gitdir, &repository.common]) {
                let content =
                    self.read_sequence_file(&directory.join(path_from(&name))).unwrap_or_default();
                let is_object = content.get(..2 * repository.hash_length).is_some_and(is_hash);
                let target = content.strip_prefix(b"ref:").map(<[u8]>::trim_ascii);
                if is_object || target.is_some() {
                    add(&name, &content);
                }
                pending.extend(
                    target.map(<[u8]>::to_vec).filter(|_| looked_for.len() < 8 * MAX_NAMES),
                );
            }
        }
        let packed = self.deciders.resolve(&repository.common.join("packed-refs"));
        let packed =
            packed.and_then(|found| self.deciders.read(&found.path, MAX_PACKED_REFERENCES));
        for line in packed.iter().flat_map(|packed| packed.split(|byte| *byte == b'\n')) {
            let name = line.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
            if name.starts_with(b"refs/rewritten/") || looked_for.contains(name) {
                add(name, line);
            }
        }
        Some(found)
    }

    fn packed_reference(&mut self, common: &Path, name: &[u8]) -> Vec<u8> {
        let found = self.deciders.resolve(&common.join("packed-refs"));
        let content =
            found.and_then(|found| self.deciders.read(&found.path, MAX_PACKED_REFERENCES));
        let content = content.unwrap_or_default();
        let mut lines = content.split(|byte| *byte == b'\n');
        let line =
            lines.find(|line| line.strip_suffix(name).is_some_and(|start| start.ends_with(b" ")));
        line.unwrap_or_default().to_vec()
    }

    /// Records the content of files in the directory of a sequence, and `start`, the state from
    /// which the sequence continues. A sequence without such a state cannot be judged.
    fn note_sequence<'n>(
        &mut self,
        directory: &Path,
        names: impl IntoIterator<Item = &'n Path>,
        start: Option<&[u8]>,
    ) {
        let Some(found) = self.deciders.resolve(directory) else { return };
        let Some(start) = start else { return self.deciders.note(&found.path, PathState::Unknown) };
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

/// Returns the names of the commits in the todo list of a rebase or of a series of picks
/// (git-rebase(1), "Interactive mode").
fn named_commits(todo: &[u8]) -> impl Iterator<Item = &[u8]> {
    todo.split(|byte| *byte == b'\n').flat_map(|line| {
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let count = match words.next().unwrap_or(b"#") {
            b"exec" | b"x" | b"label" | b"l" | b"break" | b"b" | b"noop" | b"update-ref" | b"u" => {
                0
            }
            b"merge" | b"m" => usize::MAX,
            command if command.starts_with(b"#") => 0,
            _ => 1,
        };
        let commits = words.take_while(|word| *word != b"#").filter(|word| !word.starts_with(b"-"));
        commits.take(count)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_commit_in_a_list_is_known_by_the_name_that_the_list_gives_it() {
        let check = |todo: &str, expected: &[&str]| {
            let names = named_commits(todo.as_bytes())
                .map(|name| String::from_utf8_lossy(name).into_owned());
            assert_eq!(names.collect::<Vec<_>>(), expected, "{todo}");
        };
        check("pick 12ab the subject\n\trevert 34 x\nfixup -C 56 y\n", &["12ab", "34", "56"]);
        check(
            "reset onto\nt topic~2 # x\nmerge -C 12 one two # three\nm four\n",
            &["onto", "topic~2", "12", "one", "two", "four"],
        );
        check("label x\nexec make\n# pick 12\nbreak\nnoop\nupdate-ref refs/heads/x\n\n", &[]);
    }

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
