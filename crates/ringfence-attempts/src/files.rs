//! Attempts on files outside the view, by every path that leads to them.

use std::io::{self, Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use fs_err as fs;
use ringfence_core::Clause::Filesystem;
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};

use super::context::{DirectoryIdentity, SECRET};
use super::{Attempt, AttemptContext, denied, impossible, no_result};

/// Attempts to read files that the view does not show.
pub(super) const READING: &[Attempt] = &[
    denied("read-outside", Filesystem, "read a file outside by its path", |context| {
        read_secret(&context.paths.secret())
    }),
    denied(
        "read-outside-dot-dot",
        Filesystem,
        "read a file outside by `..` from the workspace",
        |context| {
            let outside =
                context.paths.outside.file_name().ok_or_else(|| impossible("it has no name"))?;
            read_secret(&context.paths.workspace.join("..").join(outside).join("secret"))
        },
    ),
    denied(
        "read-outside-planted-link",
        Filesystem,
        "read a file outside by a symbolic link that was there",
        |context| read_secret(&context.paths.workspace.join("link-outside")),
    ),
    denied(
        "read-outside-own-link",
        Filesystem,
        "read a file outside by a symbolic link made inside",
        |context| {
            let link = context.paths.workspace.join("own-link");
            symlink(context.paths.secret(), &link)?;
            read_secret(&link)
        },
    ),
    denied(
        "read-outside-own-root",
        Filesystem,
        "read a file outside by /proc/self/root",
        |context| read_secret(&join_below("/proc/self/root", &context.paths.secret())),
    ),
    denied(
        "read-outside-first-root",
        Filesystem,
        "read a file outside by /proc/1/root",
        |context| read_secret(&join_below("/proc/1/root", &context.paths.secret())),
    ),
    denied(
        "read-outside-parent-root",
        Filesystem,
        "read a file outside by the root of the parent process",
        |context| {
            read_secret(&join_below(
                &format!("/proc/{}/root", std::os::unix::process::parent_id()),
                &context.paths.secret(),
            ))
        },
    ),
    denied(
        "read-outside-host-directory",
        Filesystem,
        "read a file outside by /proc/PID/cwd of a host process",
        |context| {
            read_secret(&PathBuf::from(format!("/proc/{}/cwd/secret", context.neighbour.process)))
        },
    ),
    denied(
        "read-outside-host-descriptor",
        Filesystem,
        "read a file outside by /proc/PID/fd of a host process",
        |context| read_secret(&PathBuf::from(format!("/proc/{}/fd/0", context.neighbour.process))),
    ),
    denied(
        "read-outside-hard-link",
        Filesystem,
        "read a file outside by a hard link made in the workspace",
        |context| {
            let link = context.paths.workspace.join("own-hard-link");
            fs::hard_link(context.paths.secret(), &link)?;
            read_secret(&link)
        },
    ),
    denied(
        "read-outside-reopened",
        Filesystem,
        "read a file outside by an O_PATH descriptor that is reopened",
        |context| {
            let path = rustix::fs::open(
                context.paths.secret(),
                OFlags::PATH | OFlags::CLOEXEC,
                Mode::empty(),
            )?;
            read_secret(&PathBuf::from(format!(
                "/proc/self/fd/{}",
                std::os::fd::AsRawFd::as_raw_fd(&path)
            )))
        },
    ),
    denied(
        "read-outside-bind-mount",
        Filesystem,
        "read a file outside by a bind mount into the workspace",
        |context| {
            let here = context.paths.workspace.join("mount-point");
            mount_bind(&context.paths.outside, &here)?;
            let read = read_secret(&here.join("secret"));
            let _ = unmount(&here, UnmountFlags::DETACH); // the mount was made just now
            read
        },
    ),
    denied(
        "read-outside-second-root",
        Filesystem,
        "leave the root by a chroot below the working directory",
        |context| {
            let jail = context.paths.workspace.join("mount-point");
            rustix::process::chroot(&jail)?;
            (0..64).try_for_each(|_| rustix::process::chdir(".."))?;
            read_secret(
                context
                    .paths
                    .secret()
                    .strip_prefix("/")
                    .map_err(|_| impossible("the path is relative"))?,
            )
        },
    ),
    denied(
        "move-outside-in",
        Filesystem,
        "move a file from outside into the workspace",
        |context| {
            let here = context.paths.workspace.join("moved");
            fs::rename(context.paths.secret(), &here)?;
            read_secret(&here)
        },
    ),
    denied(
        "stat-outside",
        Filesystem,
        "learn that a file outside exists, and its size",
        |context| Ok(format!("its size is {}", fs::metadata(context.paths.secret())?.len())),
    ),
    denied("list-outside", Filesystem, "list a directory outside", |context| {
        list_directory(&context.paths.outside)
    }),
    denied(
        "list-run",
        Filesystem,
        "list /run, with the sockets of the host's services",
        |context| list_host_directory(Path::new("/run"), context.paths.run),
    ),
    denied("list-var", Filesystem, "list /var, with logs and mail", |context| {
        list_host_directory(Path::new("/var/lib"), context.paths.var)
    }),
    denied("read-shadow", Filesystem, "read the password hashes in /etc/shadow", |_| {
        read_some(Path::new("/etc/shadow"))
    }),
    denied(
        "read-private-home",
        Filesystem,
        "look at keys, settings or history in the caller's home",
        |context| {
            let private = context
                .paths
                .private
                .as_deref()
                .ok_or_else(|| impossible("the home holds nothing private"))?;
            fs::symlink_metadata(private).map(|_| format!("`{}` is there", private.display()))
        },
    ),
    denied("list-other-home", Filesystem, "list the home of another user", |context| {
        list_directory(
            context
                .paths
                .other_home
                .as_deref()
                .ok_or_else(|| impossible("there is no other home to be read"))?,
        )
    }),
    denied(
        "open-terminal",
        Filesystem,
        "open another terminal of the caller, to read what is typed there",
        |context| {
            let path = context
                .paths
                .terminal
                .as_ref()
                .ok_or_else(|| impossible("the host has no pseudo-terminals"))?;
            rustix::fs::open(path, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
            Ok("it was opened".to_owned())
        },
    ),
    denied("read-kernel-memory", Filesystem, "open /dev/mem", |_| {
        open_device(Path::new("/dev/mem"))
    }),
    denied("read-kernel-log", Filesystem, "open /dev/kmsg", |_| {
        open_device(Path::new("/dev/kmsg"))
    }),
    denied("read-disk", Filesystem, "read a disk past its file system", |context| {
        read_some(context.paths.disk.as_deref().ok_or_else(|| impossible("no disk was found"))?)
    }),
    denied(
        "read-kernel-timers",
        Filesystem,
        "read the kernel's timers in /proc/timer_list",
        |_| read_some(Path::new("/proc/timer_list")),
    ),
    denied(
        "read-kernel-heap",
        Filesystem,
        "read how the kernel's memory is laid out in /proc/slabinfo",
        |_| read_some(Path::new("/proc/slabinfo")),
    ),
    denied(
        "read-kernel-pages",
        Filesystem,
        "read what each page of memory is used for in /proc/kpageflags",
        |_| read_some(Path::new("/proc/kpageflags")),
    ),
    denied(
        "read-own-device",
        Filesystem,
        "make a device node in the workspace and read the device",
        |context| {
            let node = context.paths.workspace.join("node");
            rustix::fs::mknodat(
                CWD,
                &node,
                FileType::CharacterDevice,
                Mode::RUSR,
                rustix::fs::makedev(1, 5),
            )?;
            let opened = read_some(&node);
            let _ = fs::remove_file(&node); // the workspace is removed with the proof
            opened
        },
    ),
];

/// Attempts to change files that may not be changed.
pub(super) const WRITING: &[Attempt] = &[
    denied("write-outside", Filesystem, "write to a file outside", |context| {
        overwrite_file(&context.paths.victim())
    }),
    denied(
        "write-outside-link",
        Filesystem,
        "write to a file outside by a symbolic link made inside",
        |context| {
            let link = context.paths.workspace.join("link-to-victim");
            symlink(context.paths.victim(), &link)?;
            overwrite_file(&link)
        },
    ),
    denied("truncate-outside", Filesystem, "cut a file outside short", |context| {
        let file = fs::OpenOptions::new().write(true).open(context.paths.victim())?;
        file.set_len(0).map(|()| "it was cut".to_owned())
    }),
    denied("create-outside", Filesystem, "make a file in a directory outside", |context| {
        fs::write(context.paths.outside.join("new"), "x").map(|()| "it was made".to_owned())
    }),
    denied("delete-outside", Filesystem, "delete a file outside", |context| {
        fs::remove_file(context.paths.victim()).map(|()| "it was deleted".to_owned())
    }),
    denied(
        "replace-outside",
        Filesystem,
        "replace a file outside with one of the workspace",
        |context| {
            let new = context.paths.workspace.join("replacement");
            fs::write(&new, "x")?;
            fs::rename(&new, context.paths.victim()).map(|()| "it was replaced".to_owned())
        },
    ),
    denied(
        "change-mode-outside",
        Filesystem,
        "change the permissions of a file outside",
        |context| change_mode(&context.paths.victim()),
    ),
    denied(
        "change-times-outside",
        Filesystem,
        "change the time stamps of a file outside",
        |context| {
            let now = rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 };
            let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
            rustix::fs::utimensat(
                CWD,
                context.paths.victim(),
                &times,
                rustix::fs::AtFlags::empty(),
            )?;
            Ok("they were changed".to_owned())
        },
    ),
    denied("write-readable", Filesystem, "write to a file that may only be read", |context| {
        overwrite_file(&context.paths.readable)
    }),
    denied(
        "write-readable-reopened",
        Filesystem,
        "reopen a descriptor of a readable file for writing",
        |context| {
            let file = fs::File::open(&context.paths.readable)?;
            overwrite_file(&PathBuf::from(format!(
                "/proc/self/fd/{}",
                std::os::fd::AsRawFd::as_raw_fd(&file)
            )))
        },
    ),
    denied(
        "change-mode-readable",
        Filesystem,
        "change the permissions of a file that may only be read",
        |context| change_mode(&context.paths.readable),
    ),
    denied("write-usr", Filesystem, "make a file in /usr/local", |context| {
        plant_file(Path::new("/usr/local"), context)
    }),
    denied("write-etc", Filesystem, "make a file in /etc", |context| {
        plant_file(Path::new("/etc"), context)
    }),
    denied(
        "mount-inside",
        Filesystem,
        "mount a file system in the workspace, for the host to see",
        |context| {
            let here = context.paths.workspace.join("mount-point");
            mount("none", &here, "tmpfs", MountFlags::empty(), None)?;
            let _ = unmount(&here, UnmountFlags::DETACH); // the mount was made just now
            Ok("it was mounted".to_owned())
        },
    ),
];

/// Reads a file. Fails unless the file holds the secret.
pub(super) fn read_secret(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    fs::File::open(path)?.take(4096).read_to_string(&mut text)?;
    if text == SECRET {
        Ok("the secret was read".to_owned())
    } else {
        Err(no_result("it holds something else"))
    }
}

/// Overwrites the start of a file.
pub(super) fn overwrite_file(path: &Path) -> io::Result<String> {
    fs::OpenOptions::new().write(true).open(path)?.write_all(b"scribble")?;
    Ok("it was overwritten".to_owned())
}

/// Changes the permissions of a file.
pub(super) fn change_mode(path: &Path) -> io::Result<String> {
    let mut permissions = fs::metadata(path)?.permissions();
    permissions.set_mode(permissions.mode() ^ 0o100);
    fs::set_permissions(path, permissions).map(|()| "they were changed".to_owned())
}

fn join_below(root: &str, path: &Path) -> PathBuf {
    Path::new(root).join(path.strip_prefix("/").unwrap_or(path))
}

fn list_directory(directory: &Path) -> io::Result<String> {
    match fs::read_dir(directory)?.count() {
        0 => Err(no_result("it is empty")),
        count => Ok(format!("it has {count} entries")),
    }
}

/// Lists a directory. Fails if the directory is known not to be the host's own.
fn list_host_directory(path: &Path, hosts: Option<DirectoryIdentity>) -> io::Result<String> {
    if hosts.is_some_and(|hosts| DirectoryIdentity::at(path).is_ok_and(|found| found != hosts)) {
        return Err(no_result("it is another directory than the host's"));
    }
    list_directory(path)
}

fn read_some(path: &Path) -> io::Result<String> {
    let mut bytes = [0u8; 16];
    match fs::File::open(path)?.read(&mut bytes)? {
        0 => Err(no_result("it is empty")),
        count => Ok(format!("{count} bytes were read")),
    }
}

/// Opens a device without reading it, because a read may block or be dangerous.
fn open_device(path: &Path) -> io::Result<String> {
    fs::File::open(path).map(|_| "it was opened".to_owned())
}

fn plant_file(directory: &Path, context: &AttemptContext) -> io::Result<String> {
    let path = directory.join(&context.name);
    fs::write(&path, "x")?;
    let _ = fs::remove_file(&path); // the file was created just now
    Ok("a file was made".to_owned())
}
