//! One directory of a cgroup filesystem: made, filled with limits, killed, removed.

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
pub(super) struct Setting {
    pub(super) file: &'static str,
    pub(super) value: String,
    pub(super) presence: Presence,
}

/// Whether a kernel may lack the file of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    Required,
    /// A kernel can be built or started without this accounting.
    Optional,
}

impl Setting {
    pub(super) fn required(file: &'static str, value: impl ToString) -> Self {
        Self { file, value: value.to_string(), presence: Presence::Required }
    }

    pub(super) fn optional(file: &'static str, value: impl ToString) -> Self {
        Self { file, value: value.to_string(), presence: Presence::Optional }
    }
}

/// A directory that belongs to one run. Its handle holds a lock, which tells other processes that the owner lives.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    handle: OwnedFd,
}

impl Directory {
    /// How long killed processes may take to leave.
    const PATIENCE: Duration = Duration::from_secs(2);

    /// Makes a new directory.
    pub(super) fn make(path: PathBuf) -> io::Result<Self> {
        fs::create_dir(&path)?;
        Self::adopt(path)
    }

    /// Takes over a directory that nobody holds.
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

    /// Writes a setting, and fails unless the kernel kept it or may lack its file.
    pub(super) fn set(&self, setting: &Setting) -> Result<(), CgroupError> {
        let path = self.path.join(setting.file);
        if setting.presence == Presence::Optional && !path.exists() {
            return Ok(());
        }
        let failed = |source| CgroupError::Set { path: path.clone(), value: setting.value.clone(), source };
        write(&path, &setting.value).map_err(failed)?;
        let kept = fs::read_to_string(&path).map_err(failed)?;
        if kept.trim_end() == setting.value {
            Ok(())
        } else {
            Err(CgroupError::NotKept { path, value: setting.value.clone(), kept: kept.trim_end().to_owned() })
        }
    }

    /// Tells whether the group still has the value that was set. A file that may be missing holds nothing.
    pub(super) fn holds(&self, setting: &Setting) -> bool {
        match fs::read_to_string(self.path.join(setting.file)) {
            Ok(kept) => kept.trim_end() == setting.value,
            Err(_) => setting.presence == Presence::Optional,
        }
    }

    /// Tells whether the group has a file, and so the accounting that the file stands for.
    pub(super) fn has(&self, file: &str) -> bool {
        self.path.join(file).exists()
    }

    /// Tells whether a process with the rights of this one can leave the group.
    ///
    /// Both versions want the right to write to a `cgroup.procs` outside of the group: version 2 to that of the group
    /// that holds both the old place and the new one, version 1 to that of the new place (cgroups(7)).
    pub(super) fn can_be_left(&self) -> bool {
        let around = self.path.ancestors().skip(1).map(|group| group.join("cgroup.procs"));
        around.take_while(|file| file.exists()).any(|file| fs::OpenOptions::new().write(true).open(file).is_ok())
    }

    /// Kills every process in the group and below it. A killed group kills newcomers, too: it is never used again.
    pub(super) fn kill(&self) -> io::Result<()> {
        match write(&self.path.join("cgroup.kill"), "1") {
            // Version 1, or version 2 before Linux 5.14.
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.kill_each(),
            result => result,
        }
    }

    fn kill_each(&self) -> io::Result<()> {
        // Where the group counts processes, no new ones from here on; elsewhere the loop outruns ordinary forks.
        let _ = write(&self.path.join("pids.max"), "0");
        let deadline = Instant::now() + Self::PATIENCE;
        loop {
            let groups = self.tree()?;
            let mut alive = false;
            for group in &groups {
                // A pid may die and come back as another process between two lines of code, but not while its pidfd
                // is open: whoever is still listed then is the one that was opened.
                let processes = members(group)?;
                let opened = processes.iter().filter_map(|&pid| {
                    let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?;
                    Some((pid, handle))
                });
                let opened: Vec<(Pid, OwnedFd)> = opened.collect();
                let listed = members(group)?;
                for (_, handle) in opened.iter().filter(|(pid, _)| listed.contains(pid)) {
                    let _ = rustix::process::pidfd_send_signal(handle, Signal::KILL); // it may be gone already
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

    /// Removes the group and those below it. Killed processes leave a moment after the signal: it waits a little.
    pub(super) fn remove(&self) -> io::Result<()> {
        let deadline = Instant::now() + Self::PATIENCE;
        for group in self.tree()? {
            while let Err(error) = fs::remove_dir(&group) {
                match error.kind() {
                    io::ErrorKind::NotFound => break,
                    io::ErrorKind::ResourceBusy if Instant::now() < deadline => thread::sleep(Duration::from_millis(1)),
                    _ => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Lists the group and all below it, the deepest first.
    fn tree(&self) -> io::Result<Vec<PathBuf>> {
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

/// Reads the number behind a key of a file with one key and one number per line; a missing one counts as zero.
pub(super) fn number(file: &Path, key: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let mut entries = text.lines().filter_map(|line| line.split_once(' '));
    entries.find(|(name, _)| *name == key).and_then(|(_, number)| number.parse().ok()).unwrap_or(0)
}

/// Lists the processes of a group.
pub(super) fn members(group: &Path) -> io::Result<Vec<Pid>> {
    let text = fs::read_to_string(group.join("cgroup.procs"))?;
    // Processes outside our pid namespace are listed as 0.
    Ok(text.lines().filter_map(|line| line.parse().ok().and_then(Pid::from_raw)).collect())
}

/// Writes to a file that must exist: a file of a cgroup filesystem takes one write, whole.
pub(super) fn write(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write;
    fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}
