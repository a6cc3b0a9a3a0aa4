//! One directory of a cgroup file system: creating it, setting limits, killing its processes,
//! removing it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use fs_err as fs;
use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::CgroupError;

/// A value to be written to a file of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CgroupSetting {
    pub(super) file: &'static str,
    pub(super) value: String,
    pub(super) presence: SettingPresence,
}

/// The requirement on a kernel to have a setting's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SettingPresence {
    Required,
    /// A kernel can be built or started without this accounting.
    Optional,
}

impl CgroupSetting {
    pub(super) fn required(file: &'static str, value: impl ToString) -> Self {
        Self { file, value: value.to_string(), presence: SettingPresence::Required }
    }

    pub(super) fn optional(file: &'static str, value: impl ToString) -> Self {
        Self { file, value: value.to_string(), presence: SettingPresence::Optional }
    }
}

/// A directory that belongs to one run. The handle of the directory holds a lock, which shows other
/// processes that the owner is alive.
#[derive(Debug)]
pub(super) struct CgroupDirectory {
    path: PathBuf,
    handle: OwnedFd,
}

impl CgroupDirectory {
    /// Time that killed processes may take to leave the group.
    const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

    /// Creates a new directory and locks it.
    pub(super) fn create(path: PathBuf) -> io::Result<Self> {
        fs::create_dir(&path)?;
        Self::adopt(path)
    }

    /// Locks an existing directory. Fails if another process holds the lock.
    pub(super) fn adopt(path: PathBuf) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = rustix::fs::openat(CWD, &path, flags, Mode::empty())?;
        rustix::fs::flock(&handle, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { path, handle })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// Writes a setting. Fails unless the kernel stored the value, or the file is optional and
    /// missing.
    pub(super) fn set(&self, setting: &CgroupSetting) -> Result<(), CgroupError> {
        let path = self.path.join(setting.file);
        if setting.presence == SettingPresence::Optional && !path.exists() {
            return Ok(());
        }
        let failed =
            |source| CgroupError::Set { path: path.clone(), value: setting.value.clone(), source };
        write_file(&path, &setting.value).map_err(failed)?;
        let kept = fs::read_to_string(&path).map_err(failed)?;
        if kept.trim_end() == setting.value {
            Ok(())
        } else {
            Err(CgroupError::NotKept {
                path,
                value: setting.value.clone(),
                kept: kept.trim_end().to_owned(),
            })
        }
    }

    /// Returns true if the group still has the value that was set. An optional file may be missing.
    pub(super) fn holds(&self, setting: &CgroupSetting) -> bool {
        match fs::read_to_string(self.path.join(setting.file)) {
            Ok(kept) => kept.trim_end() == setting.value,
            Err(_) => setting.presence == SettingPresence::Optional,
        }
    }

    /// Returns true if the group has a file, and with it the accounting that the file belongs to.
    pub(super) fn has_file(&self, file: &str) -> bool {
        self.path.join(file).exists()
    }

    /// Returns true if a process with the rights of this process can leave the group.
    ///
    /// Both versions require write access to a `cgroup.procs` outside of the group. Version 2
    /// requires it for the common ancestor of the old and the new group, version 1 for the new
    /// group (cgroups(7)).
    pub(super) fn can_be_left(&self) -> bool {
        let around = self.path.ancestors().skip(1).map(|group| group.join("cgroup.procs"));
        around
            .take_while(|file| file.exists())
            .any(|file| fs::OpenOptions::new().write(true).open(file).is_ok())
    }

    /// Kills every process in the group and below it, including processes that are forked
    /// meanwhile.
    ///
    /// The group must not be used again, because the method for old kernels also forbids forks.
    pub(super) fn kill(&self) -> io::Result<()> {
        match write_file(&self.path.join("cgroup.kill"), "1") {
            // The file is missing in version 1, and in version 2 before Linux 5.14.
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.kill_each(),
            result => result,
        }
    }

    fn kill_each(&self) -> io::Result<()> {
        // With the `pids` controller, this forbids new processes. Without it, the loop is faster
        // than ordinary forks.
        let _ = write_file(&self.path.join("pids.max"), "0");
        let deadline = Instant::now() + Self::EXIT_TIMEOUT;
        loop {
            let groups = self.list_groups()?;
            let mut alive = false;
            for group in &groups {
                // A pid can be reused for another process at any time, except while its pidfd is
                // open. So a process that is still listed after its pidfd was opened is the process
                // that was listed first.
                let processes = list_members(group)?;
                let opened = processes.iter().filter_map(|&pid| {
                    let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?;
                    Some((pid, handle))
                });
                let opened: Vec<(Pid, OwnedFd)> = opened.collect();
                let listed = list_members(group)?;
                for (_, handle) in opened.iter().filter(|(pid, _)| listed.contains(pid)) {
                    // The process may be gone already.
                    let _ = rustix::process::pidfd_send_signal(handle, Signal::KILL);
                }
                alive |= !processes.is_empty() || !listed.is_empty();
            }
            if !alive {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Removes the group and the groups below it. Waits briefly, because killed processes leave a
    /// moment after the signal.
    pub(super) fn remove(&self) -> io::Result<()> {
        let deadline = Instant::now() + Self::EXIT_TIMEOUT;
        for group in self.list_groups()? {
            while let Err(error) = fs::remove_dir(&group) {
                match error.kind() {
                    io::ErrorKind::NotFound => break,
                    io::ErrorKind::ResourceBusy if Instant::now() < deadline => {
                        thread::sleep(Duration::from_millis(1))
                    }
                    _ => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Lists the group and all groups below it, the deepest first.
    fn list_groups(&self) -> io::Result<Vec<PathBuf>> {
        let mut found = vec![self.path.clone()];
        let mut next = 0;
        while let Some(group) = found.get(next) {
            for entry in fs::read_dir(group.clone())? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    found.push(entry.path());
                }
            }
            next += 1;
        }
        found.reverse();
        Ok(found)
    }
}

/// Reads the number after a key in a file that has one key and one number per line. Returns 0 if
/// the key is missing.
pub(super) fn read_counter(file: &Path, key: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let mut entries = text.lines().filter_map(|line| line.split_once(' '));
    entries.find(|(name, _)| *name == key).and_then(|(_, number)| number.parse().ok()).unwrap_or(0)
}

/// Lists the processes of a group.
pub(super) fn list_members(group: &Path) -> io::Result<Vec<Pid>> {
    let text = fs::read_to_string(group.join("cgroup.procs"))?;
    // Processes outside our pid namespace are listed as 0; they are left out.
    Ok(text.lines().filter_map(|line| line.parse().ok().and_then(Pid::from_raw)).collect())
}

/// Writes to an existing file. The text goes out in one write, as a cgroup file system requires.
pub(super) fn write_file(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write;
    fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}
