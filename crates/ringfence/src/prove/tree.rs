//! The files that one attempt may find: a workspace that contains guarded files, and a directory
//! beside the workspace.

use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use fs_err as fs;
use ringfence_attempts::SECRET;

/// Files of one attempt. Each attempt has its own, because an attempt that gets through changes
/// them.
#[derive(Debug)]
pub(super) struct AttemptTree {
    root: PathBuf,
    /// Listening socket, open as long as the tree exists.
    _socket: UnixListener,
}

impl AttemptTree {
    /// Patterns of the hidden files of the workspace. The third pattern leads through a link, and
    /// the last into a directory that its owner has closed.
    pub(super) const HIDDEN_PATTERNS: [&str; 4] =
        ["hidden.txt", "nested/hidden.txt", "link-to-keys/*.key", "closed/hidden.txt"];

    pub(super) fn create(root: PathBuf) -> io::Result<AttemptTree> {
        let (workspace, outside) = (root.join("workspace"), root.join("outside"));
        for directory in [
            "nested",
            "keys",
            "closed",
            "mount-point",
            "team-hooks",
            ".git/hooks",
            ".git/objects",
            ".git/refs",
        ] {
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
        Ok(AttemptTree { root, _socket: socket })
    }

    pub(super) fn workspace(&self) -> PathBuf {
        self.root.join("workspace")
    }

    pub(super) fn outside(&self) -> PathBuf {
        self.root.join("outside")
    }

    /// Returns the path at which a policy for this attempt can be written.
    pub(super) fn policy(&self) -> PathBuf {
        self.root.join("policy.json")
    }

    pub(super) fn readable(&self) -> PathBuf {
        self.root.join("readable")
    }
}

impl Drop for AttemptTree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root); // the proof removes the directory around the tree
    }
}
