//! The files that one attempt may find: a workspace with guarded files in it, and a directory beside it.

use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use fs_err as fs;
use ringfence_linux::attempt::SECRET;

/// Files of one attempt; an attempt that gets through changes them, so each has its own.
#[derive(Debug)]
pub(super) struct Tree {
    root: PathBuf,
    /// Listens as long as it is here.
    _socket: UnixListener,
}

impl Tree {
    /// Patterns of the files that are hidden in the workspace. The third leads through a link, and the last into a
    /// directory that its owner has closed.
    pub(super) const HIDDEN: [&str; 4] = ["hidden.txt", "nested/hidden.txt", "link-to-keys/*.key", "closed/hidden.txt"];

    pub(super) fn plant(root: PathBuf) -> io::Result<Tree> {
        let (workspace, outside) = (root.join("workspace"), root.join("outside"));
        for directory in
            ["nested", "keys", "closed", "mount-point", "team-hooks", ".git/hooks", ".git/objects", ".git/refs"]
        {
            fs::create_dir_all(workspace.join(directory))?;
        }
        fs::create_dir(&outside)?;
        fs::write(outside.join("secret"), SECRET)?;
        fs::write(outside.join("victim"), "untouched")?;
        fs::write(root.join("readable"), "untouched")?;
        for name in ["hidden.txt", "nested/hidden.txt", "keys/hidden.key", "closed/hidden.txt"] {
            fs::write(workspace.join(name), SECRET)?;
        }
        fs::hard_link(workspace.join("hidden.txt"), workspace.join("other-name"))?;
        symlink("hidden.txt", workspace.join("link-to-hidden"))?;
        symlink("keys", workspace.join("link-to-keys"))?;
        fs::set_permissions(workspace.join("closed"), PermissionsExt::from_mode(0o000))?;
        symlink(outside.join("secret"), workspace.join("link-outside"))?;
        fs::write(workspace.join(".git/HEAD"), "ref: refs/heads/main\n")?;
        fs::write(workspace.join(".git/config"), "[include]\n\tpath = ../team-config\n")?;
        fs::write(workspace.join("team-config"), "[core]\n\thooksPath = team-hooks\n")?;
        fs::write(workspace.join(".git/hooks/pre-commit"), "#!/bin/sh\n")?;
        let socket = UnixListener::bind(outside.join("socket"))?;
        Ok(Tree { root, _socket: socket })
    }

    pub(super) fn workspace(&self) -> PathBuf {
        self.root.join("workspace")
    }

    pub(super) fn outside(&self) -> PathBuf {
        self.root.join("outside")
    }

    /// Where a policy for this attempt may be written.
    pub(super) fn policy(&self) -> PathBuf {
        self.root.join("policy.json")
    }

    pub(super) fn readable(&self) -> PathBuf {
        self.root.join("readable")
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root); // the directory around it goes with the proof
    }
}
