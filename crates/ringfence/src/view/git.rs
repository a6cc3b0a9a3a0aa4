//! Git repositories: what of them makes programs on the host run code, and where that of a worktree is.
//!
//! A worktree's `.git` is a file that names a directory elsewhere. It can be written in a sandbox, so it is believed
//! only when the directory it names says the same: git keeps a link back, which nobody inside can forge.

use std::path::{Path, PathBuf};

use ringfence_core::workspace::without_dots;

use crate::untrusted;

/// More than a path can be long.
const LONGEST_PATH: u64 = 1 << 12;
/// More than anybody configures.
const LONGEST_CONFIG: u64 = 1 << 18;
/// How deep submodules are looked for in each other, and in directories that their names contain.
const DEPTH: usize = 6;

/// What of a repository makes the host run code, or has git take that from elsewhere (gitrepository-layout(5)).
pub(super) const OF_A_REPOSITORY: [&str; 4] = ["hooks", "config", "config.worktree", "commondir"];
/// The same of what a repository holds about one worktree.
const OF_A_WORKTREE: [&str; 3] = ["commondir", "config.worktree", "gitdir"];

/// The repository outside a workspace that the workspace is a worktree of.
pub(super) fn shared_repository(workspace: &Path) -> Option<PathBuf> {
    let link = workspace.join(".git");
    let named = untrusted::read(&link, LONGEST_PATH).ok()?;
    let named = workspace.join(named.strip_prefix("gitdir:")?.trim());
    let worktree = fs_err::canonicalize(named).ok()?;

    // <repository>/worktrees/<name>/gitdir holds the path of the worktree's own `.git` (gitrepository-layout(5)).
    let link_back = untrusted::read(&worktree.join("gitdir"), LONGEST_PATH).ok()?;
    let link_back = fs_err::canonicalize(worktree.join(link_back.trim())).ok()?;
    if link_back != link {
        return None;
    }
    let common = untrusted::read(&worktree.join("commondir"), LONGEST_PATH).ok()?;
    let repository = fs_err::canonicalize(worktree.join(common.trim())).ok()?;
    let holds_worktree = worktree.starts_with(repository.join("worktrees"));
    let is_repository = ["objects", "refs"].iter().all(|part| repository.join(part).is_dir());
    (holds_worktree && is_repository).then_some(repository)
}

/// What of a repository, of its worktrees and of its submodules makes the host run code: paths relative to it, of
/// which some may not be there.
pub(super) fn sensitive(repository: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    collect(repository, Path::new(""), DEPTH, &mut found);
    found
}

fn collect(root: &Path, repository: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    found.extend(OF_A_REPOSITORY.map(|part| repository.join(part)));
    for worktree in directories(root, &repository.join("worktrees")) {
        found.extend(OF_A_WORKTREE.map(|part| worktree.join(part)));
    }
    collect_modules(root, &repository.join("modules"), depth, found);
}

/// A submodule's directory is named like it, and that name can have slashes in it.
fn collect_modules(root: &Path, directory: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    let Some(depth) = depth.checked_sub(1) else { return };
    for module in directories(root, directory) {
        if root.join(&module).join("HEAD").exists() {
            collect(root, &module, depth, found);
        } else {
            collect_modules(root, &module, depth, found);
        }
    }
}

fn directories(root: &Path, directory: &Path) -> Vec<PathBuf> {
    let entries = fs_err::read_dir(root.join(directory)).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.map(|entry| directory.join(entry.file_name())).collect()
}

/// The paths that the configuration of a repository has git run hooks from or read more configuration from.
pub(super) fn named_in_config(repository: &Path, worktree: &Path) -> Vec<PathBuf> {
    let Ok(config) = untrusted::read(&repository.join("config"), LONGEST_CONFIG) else { return Vec::new() };
    let mut named = Vec::new();
    for (name, value) in variables(&config) {
        let base = match name.as_str() {
            "core.hookspath" => worktree,
            "include.path" | "includeif.path" => repository,
            _ => continue,
        };
        if value.is_empty() || value.starts_with('~') {
            continue;
        }
        let path = without_dots(&base.join(value));
        // Husky's `_` does nothing but run the scripts beside it.
        let beside = path.parent().filter(|above| path.ends_with("_") && *above != worktree);
        named.push(beside.map_or_else(|| path.clone(), Path::to_path_buf));
    }
    named
}

/// The variables of a configuration, without subsections, and their values (git-config(1), "Syntax").
fn variables(config: &str) -> impl Iterator<Item = (String, String)> {
    let mut section = String::new();
    config.lines().filter_map(move |line| {
        let mut line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            let has_subsection = header.split(']').next().is_some_and(|name| name.contains('"'));
            let (name, rest) = header.split_once(if has_subsection { "\"]" } else { "]" })?;
            section = name.split([' ', '\t', '"', '.']).next()?.to_lowercase();
            line = rest.trim();
        }
        let (name, value) = line.split_once('=')?;
        Some((format!("{section}.{}", name.trim().to_lowercase()), unquoted(value.trim())))
    })
}

fn unquoted(value: &str) -> String {
    let mut text = String::new();
    let mut is_quoted = false;
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => is_quoted = !is_quoted,
            '\\' => text.extend(characters.next()),
            '#' | ';' if !is_quoted => break,
            _ => text.push(character),
        }
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repository at `repo` with a worktree at `tree`, as `git worktree add` lays them out.
    fn worktree(root: &Path) -> (PathBuf, PathBuf) {
        let root = fs_err::canonicalize(root).unwrap();
        let (repository, tree) = (root.join("repo/.git"), root.join("tree"));
        let own = repository.join("worktrees/tree");
        for directory in [&own, &repository.join("objects"), &repository.join("refs"), &tree] {
            fs_err::create_dir_all(directory).unwrap();
        }
        fs_err::write(tree.join(".git"), format!("gitdir: {}\n", own.display())).unwrap();
        fs_err::write(own.join("gitdir"), format!("{}\n", tree.join(".git").display())).unwrap();
        fs_err::write(own.join("commondir"), "../..\n").unwrap();
        (repository, tree)
    }

    #[test]
    fn a_worktree_shares_the_repository_it_belongs_to() {
        let root = tempfile::tempdir().unwrap();
        let (repository, tree) = worktree(root.path());
        assert_eq!(shared_repository(&tree), Some(repository));
    }

    #[test]
    fn a_planted_git_file_that_nothing_links_back_to_shares_nothing() {
        let root = tempfile::tempdir().unwrap();
        let (repository, tree) = worktree(root.path());
        let victim = repository.join("worktrees/tree");
        fs_err::write(victim.join("gitdir"), "/somewhere/else/.git\n").unwrap();
        assert_eq!(shared_repository(&tree), None);
    }

    #[test]
    fn an_ordinary_repository_shares_nothing() {
        let root = tempfile::tempdir().unwrap();
        fs_err::create_dir_all(root.path().join(".git/objects")).unwrap();
        assert_eq!(shared_repository(root.path()), None);
    }

    #[test]
    fn what_was_planted_in_place_of_links_makes_nobody_wait() {
        let root = tempfile::tempdir().unwrap();
        let (repository, tree) = worktree(root.path());
        let own = repository.join("worktrees/tree");
        for path in [own.join("commondir"), own.join("gitdir"), tree.join(".git")] {
            fs_err::remove_file(&path).unwrap();
            rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
            assert_eq!(shared_repository(&tree), None);
        }
    }

    #[test]
    fn worktrees_and_submodules_are_as_sensitive_as_their_repository() {
        let root = tempfile::tempdir().unwrap();
        let (repository, _) = worktree(root.path());
        for module in ["modules/a", "modules/b/c", "modules/a/modules/d"] {
            fs_err::create_dir_all(repository.join(module)).unwrap();
            fs_err::write(repository.join(module).join("HEAD"), "").unwrap();
        }
        let found = sensitive(&repository);
        for path in [
            "config",
            "commondir",
            "worktrees/tree/commondir",
            "modules/a/hooks",
            "modules/b/c/config",
            "modules/a/modules/d/config",
        ] {
            assert!(found.contains(&path.into()), "{path} is not in {found:?}");
        }
    }

    #[test]
    fn hooks_and_settings_elsewhere_are_found_in_the_configuration() {
        let check = |config: &str, expected: &[&str]| {
            let root = tempfile::tempdir().unwrap();
            let repository = root.path().join(".git");
            fs_err::create_dir(&repository).unwrap();
            fs_err::write(repository.join("config"), config).unwrap();
            let expected: Vec<_> = expected.iter().map(|path| root.path().join(path)).collect();
            assert_eq!(named_in_config(&repository, root.path()), expected, "{config}");
        };
        check("[core]\n\tbare = false\n\thooksPath = ./tools/hooks # ours\n", &["tools/hooks"]);
        check("[Core] HOOKSPATH = \"with space\"", &["with space"]);
        check("[core]\n\thooksPath = .husky/_\n", &[".husky"]);
        check("[include]\n\tpath = ../.gitconfig\n", &[".gitconfig"]);
        check("[includeIf \"gitdir:[x]\"]\n\tpath = more\n", &[".git/more"]);
        check("[other]\n\thooksPath = x\n[core]\n\thooksPath = ~/hooks\n", &[]);
    }
}
