//! A sandbox's share of the resources that the kernel grants to a user as a whole.
//!
//! The kernel counts some resources per user: inotify instances, queued signals, bytes of message
//! queues. A sandbox has its caller's user id, so it could exhaust the caller's resources. In a
//! user namespace of its own, the kernel counts the sandbox's use a second time, against limits of
//! that namespace and of the process (namespaces(7), getrlimit(2)).

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Divisor of the caller's limits: one sandbox may use a quarter of each.
const SHARE_DIVISOR: u64 = 4;
/// Pairs of the host's limit per user and the limit of a user namespace for the same resource.
/// Paths are relative to `/proc`.
const WATCHER_LIMITS: [(&str, &str); 2] = [
    ("sys/fs/inotify/max_user_instances", "sys/user/max_inotify_instances"),
    ("sys/fs/inotify/max_user_watches", "sys/user/max_inotify_watches"),
];

/// Limits the file watchers in the user namespace of this process to a share of the host's limits
/// per user.
///
/// `proc` must be a proc file system that can still be written, and this process must hold
/// CAP_SYS_RESOURCE in its user namespace.
pub(crate) fn limit_watchers(proc: impl AsFd) -> io::Result<()> {
    for (granted, limit) in WATCHER_LIMITS {
        match read_number(&proc, granted) {
            Ok(granted) => write_number(&proc, limit, share(granted))?,
            // A kernel without inotify has no watchers to limit.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Limits the queued signals and message queues of this process, and of every process that it
/// starts, to a share of the current limits.
pub(crate) fn limit_queues() -> io::Result<()> {
    for resource in [Resource::Sigpending, Resource::Msgqueue] {
        let Rlimit { maximum, current } = getrlimit(resource);
        // An unlimited resource stays unlimited, because it cannot be exhausted.
        let limit = current.or(maximum).map(share);
        setrlimit(resource, Rlimit { current: limit, maximum: limit })?;
    }
    Ok(())
}

fn share(granted: u64) -> u64 {
    granted.div_ceil(SHARE_DIVISOR)
}

fn read_number(proc: impl AsFd, path: &str) -> io::Result<u64> {
    let file = openat(proc, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = [0; 24];
    let length = rustix::io::read(file, &mut text[..])?;
    let number =
        std::str::from_utf8(&text[..length]).ok().and_then(|text| text.trim().parse().ok());
    number.ok_or_else(|| io::Error::other(format!("`/proc/{path}` holds no number")))
}

fn write_number(proc: impl AsFd, path: &str, number: u64) -> io::Result<()> {
    let file = openat(proc, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(file, number.to_string().as_bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_quarter_rounded_up() {
        assert_eq!([128, 5, 1, 0].map(share), [32, 2, 1, 0]);
    }

    #[test]
    fn limits_of_the_host_are_read() {
        let proc =
            rustix::fs::open("/proc", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let written = fs_err::read_to_string("/proc/sys/fs/inotify/max_user_instances").unwrap();
        assert_eq!(read_number(&proc, WATCHER_LIMITS[0].0).unwrap().to_string(), written.trim());
        assert!(read_number(&proc, "sys/kernel/ostype").is_err());
    }
}
