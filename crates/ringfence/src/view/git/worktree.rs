//! Repository of which a workspace is a worktree.
//!
//! The `.git` of a worktree is a file that names a directory elsewhere, and that directory names
//! the worktree. Sandboxes can write both links: one sandbox that of the worktree, another that of
//! the repository. Each such link that a run made is therefore remembered on the host, and
//! remembered links are not followed.

use std::path::{Path, PathBuf};

use ringfence_core::workspace::remove_dots;
use rustix::fs::{AtFlags, CWD, statat};
use serde::{Deserialize, Serialize};

use super::{MAX_PATH, parse_gitfile, trim_back_link, trim_line};
use crate::Host;
use crate::host_paths::untrusted;
use crate::view::deciders::path_from;

/// Returns the repository outside a workspace of which the workspace is a worktree.
pub(in crate::view) fn shared_repository(
    workspace: &Path,
    distrusted: &DistrustedLinks,
) -> Option<PathBuf> {
    let link = workspace.join(".git");
    let named = untrusted::read(&link, MAX_PATH).ok()?;
    let named = workspace.join(path_from(parse_gitfile(named.as_bytes())?));
    let worktree = fs_err::canonicalize(named).ok()?;

    // <repository>/worktrees/<name>/gitdir holds the path of the worktree's own `.git`
    // (gitrepository-layout(5)). Git writes this path without links. A path with a link is refused,
    // because the link could be changed later.
    let back_link = worktree.join("gitdir");
    let linked = untrusted::read(&back_link, MAX_PATH).ok()?;
    if remove_dots(&worktree.join(path_from(trim_back_link(linked.as_bytes())))) != link {
        return None;
    }
    let common = untrusted::read(&worktree.join("commondir"), MAX_PATH).ok()?;
    let repository =
        fs_err::canonicalize(worktree.join(path_from(trim_line(common.as_bytes())))).ok()?;
    let holds_worktree = worktree.parent() == Some(&repository.join("worktrees"));
    let is_repository = ["objects", "refs"].iter().all(|part| repository.join(part).is_dir());
    if !holds_worktree || !is_repository {
        return None;
    }
    if let Some(made) = [&link, &back_link].into_iter().find(|path| distrusted.holds(path)) {
        tracing::warn!(
            path = %made.display(),
            "the repository of this worktree is not shared: a sandbox made the link to it; \
             run `git worktree repair` on the host if the link is right"
        );
        return None;
    }
    Some(repository)
}

/// Git links that a sandbox made, kept among the user's own files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::view) struct DistrustedLinks {
    directory: Option<PathBuf>,
}

impl DistrustedLinks {
    pub(super) fn for_host(host: &Host) -> DistrustedLinks {
        let directory = host.state_directory().map(|state| state.join("distrusted-links"));
        DistrustedLinks { directory: directory.filter(|directory| directory.to_str().is_some()) }
    }

    /// Remembers a file that a sandbox made. The file is identified by its inode and the time of
    /// its last change, which no process can set. A file that the user puts in the same place
    /// therefore has another identity.
    pub(in crate::view) fn remember(&self, path: &Path) {
        let Some(mark) = self.find_mark(path) else { return };
        let written = mark.parent().map_or(Ok(()), fs_err::create_dir_all);
        let written =
            written.and_then(|()| fs_err::write(&mark, path.as_os_str().as_encoded_bytes()));
        if let Err(error) = written {
            tracing::warn!(path = %path.display(), %error, "cannot remember that a sandbox made \
                this link");
        }
    }

    fn holds(&self, path: &Path) -> bool {
        self.find_mark(path).is_some_and(|mark| mark.exists())
    }

    fn find_mark(&self, path: &Path) -> Option<PathBuf> {
        let stat = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let name =
            format!("{:x}-{:x}-{}-{}", stat.st_dev, stat.st_ino, stat.st_ctime, stat.st_ctime_nsec);
        Some(self.directory.as_ref()?.join(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a repository at `repo` with a worktree at `tree`, laid out as by `git worktree add`.
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

    fn shared(tree: &Path) -> Option<PathBuf> {
        shared_repository(tree, &DistrustedLinks::default())
    }

    #[test]
    fn a_worktree_shares_the_repository_it_belongs_to() {
        let root = tempfile::tempdir().unwrap();
        let (repository, tree) = worktree(root.path());
        assert_eq!(shared(&tree), Some(repository.clone()));
        fs_err::write(repository.join("worktrees/tree/gitdir"), "../../../../tree/.git\n").unwrap();
        assert_eq!(shared(&tree), Some(repository), "relative back links are as good");
    }

    #[test]
    fn a_planted_git_file_that_nothing_links_back_to_shares_nothing() {
        let root = tempfile::tempdir().unwrap();
        let (repository, tree) = worktree(root.path());
        let victim = repository.join("worktrees/tree");
        fs_err::write(victim.join("gitdir"), "/somewhere/else/.git\n").unwrap();
        assert_eq!(shared(&tree), None);
        let link = repository.join("way");
        std::os::unix::fs::symlink(&tree, &link).unwrap();
        fs_err::write(victim.join("gitdir"), link.join(".git").display().to_string()).unwrap();
        assert_eq!(shared(&tree), None, "a back link through a symbolic link can be turned later");
    }

    #[test]
    fn a_link_that_a_sandbox_made_shares_nothing_until_it_is_made_anew() {
        let root = tempfile::tempdir().unwrap();
        let (repository, tree) = worktree(root.path());
        let distrusted = DistrustedLinks { directory: Some(root.path().join("state")) };
        for link in [repository.join("worktrees/tree/gitdir"), tree.join(".git")] {
            assert_eq!(shared_repository(&tree, &distrusted), Some(repository.clone()));
            distrusted.remember(&link);
            assert_eq!(shared_repository(&tree, &distrusted), None, "{link:?}");
            let content = fs_err::read(&link).unwrap();
            fs_err::rename(&link, root.path().join("old")).unwrap();
            fs_err::write(&link, content).unwrap();
        }
    }

    #[test]
    fn an_ordinary_repository_shares_nothing() {
        let root = tempfile::tempdir().unwrap();
        fs_err::create_dir_all(root.path().join(".git/objects")).unwrap();
        assert_eq!(shared(root.path()), None);
    }

    #[test]
    fn a_pipe_in_place_of_a_link_makes_nobody_wait() {
        let root = tempfile::tempdir().unwrap();
        let (repository, tree) = worktree(root.path());
        let own = repository.join("worktrees/tree");
        for path in [own.join("commondir"), own.join("gitdir"), tree.join(".git")] {
            fs_err::remove_file(&path).unwrap();
            rustix::fs::mknodat(CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
                .unwrap();
            assert_eq!(shared(&tree), None);
        }
    }
}
