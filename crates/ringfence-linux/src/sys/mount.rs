//! Mount attributes, mount_setattr(2).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Restrictions of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountRestriction {
    /// Device files and set-user-id bits have no effect.
    DevicesAndPrivilege,
    /// As [`MountRestriction::DevicesAndPrivilege`], and the mount is read-only.
    Writing,
    /// Set-user-id bits have no effect, no file can be executed, and the mount is read-only. Device
    /// files still work.
    Changing,
}

/// Restricts one mount, mount_setattr(2). The call never lifts a restriction.
pub fn restrict(mount: BorrowedFd<'_>, restrict: MountRestriction) -> io::Result<()> {
    set_restrictions(mount, restrict, libc::AT_EMPTY_PATH)
}

/// Restricts a mount and every mount below it, mount_setattr(2). The call never lifts a
/// restriction.
pub fn restrict_tree(tree: BorrowedFd<'_>, restrict: MountRestriction) -> io::Result<()> {
    set_restrictions(tree, restrict, libc::AT_EMPTY_PATH | libc::AT_RECURSIVE)
}

fn set_restrictions(
    mount: BorrowedFd<'_>,
    restrict: MountRestriction,
    flags: i32,
) -> io::Result<()> {
    let common = libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOSUID;
    let attributes = libc::mount_attr {
        attr_set: match restrict {
            MountRestriction::DevicesAndPrivilege => common,
            MountRestriction::Writing => common | libc::MOUNT_ATTR_RDONLY,
            // A read-only mount still permits writing to a device, because the data does not go to
            // the file system that holds the device file.
            MountRestriction::Changing => {
                libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC
            }
        },
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    set_attributes(mount, &attributes, flags)
}

/// Changes the attributes of the mount that a descriptor refers to, mount_setattr(2).
pub(super) fn set_attributes(
    mount: BorrowedFd<'_>,
    attributes: &libc::mount_attr,
    flags: i32,
) -> io::Result<()> {
    let size = size_of::<libc::mount_attr>();
    // SAFETY: mount_setattr(2) reads a NUL-terminated path, which the empty path is, and `size`
    // bytes of `attributes`, which is alive and has that size.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const *attributes,
            size,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
