//! Attempts on files of the workspace that `hide` and `protect` guard.
//!
//! The workspace holds the hidden files `hidden.txt`, `nested/hidden.txt`, `keys/hidden.key` and
//! `closed/hidden.txt`, and other names of the first. The workspace also holds a `.git` directory
//! whose hooks and configuration are protected. The file that this configuration includes is
//! protected too, and so is the directory of hooks that the included file names.

use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use fs_err as fs;
use ringfence_core::Clause::{Hide, Protect};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags, mount_remount, unmount};

use super::files::{change_mode, overwrite_file, read_secret};
use super::{Attempt, AttemptContext, denied, refused};

/// Attempts to read hidden files.
pub(super) const HIDDEN: &[Attempt] = &[
    denied("read-hidden", Hide, "read a hidden file by its name", |context| {
        read_secret(&workspace_path(context, "hidden.txt"))
    }),
    denied(
        "read-hidden-link",
        Hide,
        "read a hidden file by a symbolic link that was there",
        |context| read_secret(&workspace_path(context, "link-to-hidden")),
    ),
    denied(
        "read-hidden-own-link",
        Hide,
        "read a hidden file by a symbolic link made inside",
        |context| {
            let link = workspace_path(context, "own-link-to-hidden");
            symlink(workspace_path(context, "hidden.txt"), &link)?;
            read_secret(&link)
        },
    ),
    denied(
        "read-hidden-other-name",
        Hide,
        "read a hidden file by its other name, a hard link",
        |context| read_secret(&workspace_path(context, "other-name")),
    ),
    denied(
        "read-hidden-own-hard-link",
        Hide,
        "read a hidden file by a hard link made inside",
        |context| {
            fs::hard_link(
                workspace_path(context, "hidden.txt"),
                workspace_path(context, "own-other-name"),
            )?;
            read_secret(&workspace_path(context, "own-other-name"))
        },
    ),
    denied(
        "read-hidden-moved",
        Hide,
        "move a hidden file to another name and read it there",
        |context| {
            fs::rename(workspace_path(context, "hidden.txt"), workspace_path(context, "moved"))?;
            read_secret(&workspace_path(context, "moved"))
        },
    ),
    denied(
        "read-hidden-moved-parent",
        Hide,
        "move the directory of a hidden file and read it there",
        |context| {
            fs::rename(
                workspace_path(context, "nested"),
                workspace_path(context, "moved-directory"),
            )?;
            read_secret(&workspace_path(context, "moved-directory/hidden.txt"))
        },
    ),
    denied(
        "read-hidden-reopened",
        Hide,
        "read a hidden file by an O_PATH descriptor that is reopened",
        |context| {
            let path = rustix::fs::open(
                workspace_path(context, "hidden.txt"),
                OFlags::PATH | OFlags::CLOEXEC,
                Mode::empty(),
            )?;
            read_secret(&PathBuf::from(format!(
                "/proc/self/fd/{}",
                std::os::fd::AsRawFd::as_raw_fd(&path)
            )))
        },
    ),
    denied("read-hidden-own-root", Hide, "read a hidden file by /proc/self/root", |context| {
        let path = workspace_path(context, "hidden.txt");
        read_secret(&Path::new("/proc/self/root").join(path.strip_prefix("/").unwrap_or(&path)))
    }),
    denied("read-hidden-mode", Hide, "give oneself the right to read a hidden file", |context| {
        let path = workspace_path(context, "hidden.txt");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o600))?;
        read_secret(&path)
    }),
    denied(
        "read-hidden-behind-link",
        Hide,
        "read a file that a pattern hides by the way of a link",
        |context| read_secret(&workspace_path(context, "keys/hidden.key")),
    ),
    denied(
        "read-hidden-closed",
        Hide,
        "open a closed directory and read a hidden file in it",
        |context| {
            let closed = workspace_path(context, "closed");
            fs::set_permissions(&closed, PermissionsExt::from_mode(0o700))?;
            read_secret(&closed.join("hidden.txt"))
        },
    ),
    refused(
        "unmount-hidden",
        Hide,
        "unmount what covers a hidden file",
        &[libc::EPERM],
        |context| {
            unmount(workspace_path(context, "hidden.txt"), UnmountFlags::DETACH)?;
            Ok("it was unmounted".to_owned())
        },
    ),
];

/// Attempts to change protected files.
pub(super) const PROTECTED: &[Attempt] = &[
    denied("write-protected", Protect, "write to a protected file", |context| {
        overwrite_file(&workspace_path(context, ".git/config"))
    }),
    denied("append-protected", Protect, "append to a protected file", |context| {
        fs::OpenOptions::new()
            .append(true)
            .open(workspace_path(context, ".git/config"))?
            .write_all(b"x")?;
        Ok("it was appended to".to_owned())
    }),
    denied("truncate-protected", Protect, "cut a protected file short", |context| {
        fs::OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(workspace_path(context, ".git/config"))?;
        Ok("it was cut".to_owned())
    }),
    denied("delete-protected", Protect, "delete a protected file", |context| {
        fs::remove_file(workspace_path(context, ".git/config"))
            .map(|()| "it was deleted".to_owned())
    }),
    denied("move-protected", Protect, "move a protected file away", |context| {
        fs::rename(workspace_path(context, ".git/config"), workspace_path(context, "moved"))
            .map(|()| "it was moved".to_owned())
    }),
    denied("replace-protected", Protect, "replace a protected file with another", |context| {
        fs::write(workspace_path(context, "replacement"), "x")?;
        fs::rename(workspace_path(context, "replacement"), workspace_path(context, ".git/config"))
            .map(|()| "it was replaced".to_owned())
    }),
    denied(
        "replace-protected-parent",
        Protect,
        "put another directory in the place of a protected one's",
        |context| {
            fs::rename(workspace_path(context, ".git"), workspace_path(context, ".git2"))?;
            fs::create_dir(workspace_path(context, ".git")).map(|()| "it was replaced".to_owned())
        },
    ),
    denied("move-protected-directory", Protect, "move a protected directory away", |context| {
        fs::rename(workspace_path(context, ".git/hooks"), workspace_path(context, "moved"))
            .map(|()| "it was moved".to_owned())
    }),
    denied("create-protected", Protect, "make a file in a protected directory", |context| {
        fs::write(workspace_path(context, ".git/hooks/post-commit"), "x")
            .map(|()| "it was made".to_owned())
    }),
    denied(
        "write-protected-include",
        Protect,
        "write to a file that git's configuration includes",
        |context| overwrite_file(&workspace_path(context, "team-config")),
    ),
    denied(
        "create-protected-hook",
        Protect,
        "make a hook where git's configuration has them",
        |context| {
            fs::write(workspace_path(context, "team-hooks/pre-push"), "x")
                .map(|()| "it was made".to_owned())
        },
    ),
    denied(
        "write-protected-link",
        Protect,
        "write to a protected file by a symbolic link made inside",
        |context| {
            symlink(".git/config", workspace_path(context, "link-to-protected"))?;
            overwrite_file(&workspace_path(context, "link-to-protected"))
        },
    ),
    denied(
        "write-protected-hard-link",
        Protect,
        "write to a protected file by a hard link made inside",
        |context| {
            fs::hard_link(
                workspace_path(context, ".git/config"),
                workspace_path(context, "other-name-of-protected"),
            )?;
            overwrite_file(&workspace_path(context, "other-name-of-protected"))
        },
    ),
    denied(
        "write-protected-reopened",
        Protect,
        "reopen a descriptor of a protected file for writing",
        |context| {
            let file = fs::File::open(workspace_path(context, ".git/config"))?;
            overwrite_file(&PathBuf::from(format!(
                "/proc/self/fd/{}",
                std::os::fd::AsRawFd::as_raw_fd(&file)
            )))
        },
    ),
    denied(
        "change-mode-protected",
        Protect,
        "change the permissions of a protected file",
        |context| change_mode(&workspace_path(context, ".git/config")),
    ),
    refused(
        "remount-protected",
        Protect,
        "remount a protected directory writable",
        &[libc::EPERM],
        |context| {
            mount_remount(workspace_path(context, ".git/hooks"), MountFlags::BIND, "")?;
            Ok("it was remounted".to_owned())
        },
    ),
];

fn workspace_path(context: &AttemptContext, name: &str) -> PathBuf {
    context.paths.workspace.join(name)
}
