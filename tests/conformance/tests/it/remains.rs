//! Resources that sandboxes could leave on a host: processes, mounts, control groups and files.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fmt;
use std::path::{Path, PathBuf};

/// A process of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostProcess {
    pub(crate) id: u32,
    pub(crate) parent: u32,
    pub(crate) is_zombie: bool,
    pub(crate) words: Vec<String>,
}

impl HostProcess {
    fn read(id: u32) -> Option<HostProcess> {
        let stat = fs_err::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // The name in parentheses may contain any character: proc_pid_stat(5).
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let (state, parent) = (fields.next()?, fields.next()?.parse().ok()?);
        let words = fs_err::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let words =
            String::from_utf8_lossy(&words).split_terminator('\0').map(str::to_owned).collect();
        Some(HostProcess { id, parent, is_zombie: state == "Z", words })
    }

    /// Returns true if the program, the arguments or the environment of the process name a
    /// directory, or if mounts of its own mount namespace do. In a container, everything but the
    /// mounts is the same for every keeper.
    fn names(&self, directory: &Path) -> bool {
        let wanted = directory.as_os_str().as_encoded_bytes();
        let has = |bytes: &[u8]| bytes.windows(wanted.len()).any(|window| window == wanted);
        let is_mounted = || {
            let table =
                fs_err::read_to_string(format!("/proc/{}/mountinfo", self.id)).unwrap_or_default();
            // These mounts belong to the host, and every process with a copy of the host's mounts
            // sees them.
            table
                .lines()
                .any(|line| has(line.as_bytes()) && !line.contains(" /run/ringfence-mapped/"))
        };
        let program = rustix::fs::readlink(format!("/proc/{}/exe", self.id), Vec::new());
        program.is_ok_and(|program| has(program.as_bytes()))
            || self.words.iter().any(|word| has(word.as_bytes()))
            || fs_err::read(format!("/proc/{}/environ", self.id))
                .is_ok_and(|variables| has(&variables))
            || (mount_namespace(&self.id.to_string()) != mount_namespace("self") && is_mounted())
    }

    /// Returns the number of open descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        descriptors(&self.id.to_string())
    }

    /// Returns the resident memory in KiB.
    pub(crate) fn memory(&self) -> u64 {
        memory(&self.id.to_string())
    }
}

impl fmt::Display for HostProcess {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "process {} of {}{}",
            self.id,
            self.parent,
            if self.is_zombie { ", a zombie" } else { "" }
        )?;
        write!(formatter, ": {}", self.words.join(" "))
    }
}

fn mount_namespace(process: &str) -> Option<CString> {
    rustix::fs::readlink(format!("/proc/{process}/ns/mnt"), Vec::new()).ok()
}

/// Returns the number of open descriptors of a process, which is given by its name in `/proc`.
pub(crate) fn descriptors(process: &str) -> usize {
    fs_err::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().count()
}

/// Returns the resident memory in KiB of a process, which is given by its name in `/proc`.
pub(crate) fn memory(process: &str) -> u64 {
    let status = fs_err::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse().ok()).unwrap_or_default()
}

/// Returns the processes that name a directory, and their zombie children, without the calling
/// process.
pub(crate) fn processes(directory: &Path) -> Vec<HostProcess> {
    let entries = fs_err::read_dir("/proc").expect("/proc can be listed").flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let all: Vec<HostProcess> =
        ids.filter(|id| *id != std::process::id()).filter_map(HostProcess::read).collect();
    let named: Vec<&HostProcess> = all.iter().filter(|process| process.names(directory)).collect();
    let ids: BTreeSet<u32> = named.iter().map(|process| process.id).collect();
    let dead = all.iter().filter(|process| process.is_zombie && ids.contains(&process.parent));
    named.iter().copied().chain(dead).cloned().collect()
}

/// Returns the mounts in the namespace of the tests whose source or mount point is below a
/// directory.
pub(crate) fn mounts(directory: &Path) -> Vec<String> {
    let table = fs_err::read_to_string("/proc/self/mountinfo").expect("/proc can be read");
    let name = directory.display().to_string();
    table.lines().filter(|line| line.contains(&name)).map(|line| format!("mount {line}")).collect()
}

/// Returns the ids of the children of a process.
pub(crate) fn children(process: u32) -> Vec<u32> {
    let threads = fs_err::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let children =
        threads.filter_map(|thread| fs_err::read_to_string(thread.path().join("children")).ok());
    children
        .flat_map(|ids| ids.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Returns the control groups that some processes made.
pub(crate) fn groups(makers: &BTreeSet<u32>) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = left.pop() {
        for entry in fs_err::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let name = entry.file_name();
                let maker = name.to_str().and_then(|name| name.strip_prefix("ringfence-"));
                if maker.is_some_and(|name| is_of(makers, name)) {
                    found.push(format!("control group {}", entry.path().display()));
                }
                left.push(entry.path());
            }
        }
    }
    found
}

/// Returns the directories below `/tmp` and `/run` that some processes made for a run or a start.
pub(crate) fn private_directories(makers: &BTreeSet<u32>) -> Vec<String> {
    let user = rustix::process::geteuid().as_raw();
    let bases = [format!("/tmp/ringfence-{user}"), "/run/ringfence-mapped".to_owned()];
    let entries =
        bases.iter().flat_map(|base| fs_err::read_dir(base).into_iter().flatten().flatten());
    let left =
        entries.filter(|entry| entry.file_name().to_str().is_some_and(|name| is_of(makers, name)));
    left.map(|entry| format!("directory {}", entry.path().display())).collect()
}

/// Returns true if a name begins with the id of one of the processes.
fn is_of(makers: &BTreeSet<u32>, name: &str) -> bool {
    name.split('-')
        .next()
        .and_then(|id| id.parse().ok())
        .is_some_and(|maker| makers.contains(&maker))
}

/// Returns the files below a directory, without those at or below the `expected` paths.
pub(crate) fn files(directory: &Path, expected: &[PathBuf]) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs_err::read_dir(&directory).into_iter().flatten().flatten() {
            match entry.path() {
                path if expected.contains(&path) => {}
                path if entry.file_type().is_ok_and(|kind| kind.is_dir()) => left.push(path),
                path => found.push(format!("file {}", path.display())),
            }
        }
    }
    found
}

/// Returns the files below a directory that have another name than `name`.
pub(crate) fn half_written(directory: &Path, name: &str) -> Vec<String> {
    let mut found = files(directory, &[]);
    found.retain(|path| !path.ends_with(&format!("/{name}")));
    found
}
