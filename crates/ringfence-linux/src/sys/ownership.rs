//! ID-mapped mounts, in which files appear to belong to another user, mount_setattr(2) "ID-mapped
//! mounts".

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use super::mount::set_attributes;

/// Maps the ids of a mount and of every mount below it by the id maps of a user namespace.
///
/// The files of one user and group appear to belong to another user and group. The files of all
/// others appear to belong to the overflow user, `nobody`. `mount` must be a detached copy, and
/// `namespace` must come from [`create_id_map`].
pub fn map_mount_ids(mount: BorrowedFd<'_>, namespace: BorrowedFd<'_>) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: namespace.as_raw_fd() as u64,
    };
    set_attributes(mount, &attributes, libc::AT_EMPTY_PATH | libc::AT_RECURSIVE)
}

/// Creates a user namespace that serves only as an id map for [`map_mount_ids`].
///
/// Files of `from` appear to belong to `to`; each is a user id and a group id.
pub fn create_id_map(from: (u32, u32), to: (u32, u32)) -> io::Result<OwnedFd> {
    let (process, pid) = in_new_user_namespace()?;
    let mapped = fs_err::write(format!("/proc/{pid}/uid_map"), format!("{} {} 1", from.0, to.0))
        .and_then(|()| {
            fs_err::write(format!("/proc/{pid}/gid_map"), format!("{} {} 1", from.1, to.1))
        })
        .and_then(|()| fs_err::File::open(format!("/proc/{pid}/ns/user")));
    // Both calls fail only if the process has already ended.
    let _ = pidfd_send_signal(&process, Signal::KILL);
    let _ = waitid(WaitId::PidFd(std::os::fd::AsFd::as_fd(&process)), WaitIdOptions::EXITED);
    mapped.map(|file| file.into_file().into())
}

/// Starts a process in a user namespace of its own. The process does nothing but wait to be killed.
fn in_new_user_namespace() -> io::Result<(OwnedFd, i32)> {
    let mut pidfd: libc::c_int = -1;
    let flags = libc::CLONE_NEWUSER | libc::CLONE_PIDFD | libc::SIGCHLD;
    // SAFETY: with a null stack the child runs on its own copy of this one, as after fork(2); the
    // kernel writes one int to `pidfd`, which is alive here. Other threads may hold locks, but the
    // child takes no lock: it makes only the two bare system calls below.
    let pid =
        unsafe { libc::syscall(libc::SYS_clone, flags, 0usize, &raw mut pidfd, 0usize, 0usize) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => loop {
            // SAFETY: PR_SET_PDEATHSIG takes integers only, and the call is a bare system call.
            unsafe {
                libc::syscall(
                    libc::SYS_prctl,
                    libc::PR_SET_PDEATHSIG,
                    libc::SIGKILL,
                    0usize,
                    0usize,
                    0usize,
                )
            };
            // SAFETY: ppoll(2) without descriptors and without a timeout reads no memory and waits
            // for a signal forever; the call is a bare system call.
            unsafe { libc::syscall(libc::SYS_ppoll, 0usize, 0usize, 0usize, 0usize, 0usize) };
        },
        // SAFETY: on success the kernel stored a new descriptor that nobody else owns
        // (CLONE_PIDFD).
        pid => Ok((unsafe { OwnedFd::from_raw_fd(pidfd) }, pid as i32)),
    }
}
