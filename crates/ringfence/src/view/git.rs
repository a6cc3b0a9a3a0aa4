//! Git worktrees: a workspace whose `.git` is a file that names a directory elsewhere.
//!
//! That file can be written in a sandbox, so it is believed only when the directory it names says the same:
//! git keeps a link back, which nobody inside can forge.

use std::path::{Path, PathBuf};

use crate::workspace::ResolvedWorkspace;

/// The directories outside the workspace that git works in there: the repository that a worktree belongs to.
pub(super) fn shared_directories(workspace: &ResolvedWorkspace) -> Vec<PathBuf> {
    repository_of_worktree(&workspace.source).into_iter().collect()
}

fn repository_of_worktree(workspace: &Path) -> Option<PathBuf> {
    let link = workspace.join(".git");
    if !fs_err::symlink_metadata(&link).ok()?.is_file() {
        return None;
    }
    let named = fs_err::read_to_string(&link).ok()?;
    let named = workspace.join(named.strip_prefix("gitdir:")?.trim());
    let worktree = fs_err::canonicalize(named).ok()?;

    // <repository>/worktrees/<name>/gitdir holds the path of the worktree's own `.git` (gitrepository-layout(5)).
    let link_back = fs_err::read_to_string(worktree.join("gitdir")).ok()?;
    let link_back = fs_err::canonicalize(worktree.join(link_back.trim())).ok()?;
    if link_back != link {
        return None;
    }
    let common = fs_err::read_to_string(worktree.join("commondir")).ok()?;
    let repository = fs_err::canonicalize(worktree.join(common.trim())).ok()?;
    let holds_worktree = worktree.starts_with(repository.join("worktrees"));
    let is_repository = ["objects", "refs"].iter().all(|part| repository.join(part).is_dir());
    (holds_worktree && is_repository).then_some(repository)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace(path: &Path) -> ResolvedWorkspace {
        ResolvedWorkspace { given: path.into(), source: path.into(), destination: path.into() }
    }

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
        assert_eq!(shared_directories(&workspace(&tree)), [repository]);
    }

    #[test]
    fn a_planted_git_file_that_nothing_links_back_to_shares_nothing() {
        let root = tempfile::tempdir().unwrap();
        let (repository, tree) = worktree(root.path());
        let victim = repository.join("worktrees/tree");
        fs_err::write(victim.join("gitdir"), "/somewhere/else/.git\n").unwrap();
        assert_eq!(shared_directories(&workspace(&tree)), [] as [PathBuf; 0]);
    }

    #[test]
    fn an_ordinary_repository_shares_nothing() {
        let root = tempfile::tempdir().unwrap();
        fs_err::create_dir_all(root.path().join(".git/objects")).unwrap();
        assert_eq!(shared_directories(&workspace(root.path())), [] as [PathBuf; 0]);
    }
}
