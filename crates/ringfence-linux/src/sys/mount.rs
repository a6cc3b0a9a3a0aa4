//! Mount attributes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// What a mount must not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restrict {
    /// No devices, no set-user-id.
    DevicesAndPrivilege,
    /// As above, and nothing can be written.
    Writing,
    /// No set-user-id, no program, and no change to the files themselves; devices still work.
    Changing,
}

/// Restricts one mount, mount_setattr(2). It never lifts a restriction.
pub fn restrict(mount: BorrowedFd<'_>, restrict: Restrict) -> io::Result<()> {
    set_attributes(mount, restrict, libc::AT_EMPTY_PATH)
}

/// Restricts a mount and every mount below it, mount_setattr(2). It never lifts a restriction.
pub fn restrict_tree(tree: BorrowedFd<'_>, restrict: Restrict) -> io::Result<()> {
    set_attributes(tree, restrict, libc::AT_EMPTY_PATH | libc::AT_RECURSIVE)
}

fn set_attributes(mount: BorrowedFd<'_>, restrict: Restrict, flags: i32) -> io::Result<()> {
    let common = libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOSUID;
    let attributes = libc::mount_attr {
        attr_set: match restrict {
            Restrict::DevicesAndPrivilege => common,
            Restrict::Writing => common | libc::MOUNT_ATTR_RDONLY,
            // What is written to a device is not written to the file system that its node is on.
            Restrict::Changing => libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC,
        },
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    let size = size_of::<libc::mount_attr>();
    // SAFETY: the empty path is NUL-terminated, `attributes` is alive and `size` bytes long (mount_setattr(2)).
    let result = unsafe {
        libc::syscall(libc::SYS_mount_setattr, mount.as_raw_fd(), c"".as_ptr(), flags, &raw const attributes, size)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
