//! Processes as `/proc` shows them.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use fs_err::File;
use fs_err::os::unix::fs::FileExt;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::Pid;

/// Bytes that one query reads from a file below `/proc`. A query makes a single read, because a
/// caller may be waiting and every read takes time.
const READ_BYTES: usize = 4096;

/// State of a process, as proc_pid_stat(5) describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessStat {
    pub(crate) state: u8,
    pub(crate) parent: i32,
    /// Page faults of the children that the process has waited for. Every child causes at least
    /// one.
    faults_of_children: u64,
    threads: u64,
    /// Processor time of the process and of the children that it has waited for, in clock ticks.
    pub(crate) ticks: u64,
    /// Start time of the process, in clock ticks since the machine booted.
    pub(crate) began: u64,
    /// Resident set size, in pages.
    pub(crate) pages: u64,
}

impl ProcessStat {
    /// Reads the state of a process. Returns `None` if the process is gone or its file cannot be
    /// read.
    pub(crate) fn read(pid: i32) -> Option<ProcessStat> {
        ProcessStat::read_at(format!("/proc/{pid}/stat").as_ref()).ok().flatten()
    }

    /// Reads the `stat` file of a process or of a thread.
    ///
    /// Returns `None` if the process is gone, or if it belongs to another user and is hidden from
    /// this user (proc(5), hidepid).
    pub(crate) fn read_at(path: &Path) -> io::Result<Option<ProcessStat>> {
        match open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            // A read fails if the process ends after the open; that is also `None`.
            Ok(file) => Ok(ProcessStat::read_open_file(&File::from_parts(file.into(), path))),
            // If the process ends during the path lookup, open(2) returns ESRCH instead of ENOENT.
            Err(Errno::NOENT | Errno::SRCH | Errno::ACCESS | Errno::PERM) => Ok(None),
            Err(error) => {
                Err(io::Error::other(format!("cannot open `{}`: {error}", path.display())))
            }
        }
    }

    fn read_open_file(file: &File) -> Option<ProcessStat> {
        read_once(file, ProcessStat::parse)
    }

    fn parse(line: &[u8]) -> Option<ProcessStat> {
        // The name is in parentheses and may hold any byte, parentheses included. The fields
        // therefore start after the last closing parenthesis.
        let name_ends = line.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(&line[name_ends + 1..]).ok()?;
        let mut fields = [""; 22];
        for (field, found) in fields.iter_mut().zip(rest.split_ascii_whitespace()) {
            *field = found;
        }
        let number = |index: usize| fields[index].parse::<u64>().ok();
        Some(ProcessStat {
            state: *fields[0].as_bytes().first()?,
            parent: fields[1].parse().ok()?,
            faults_of_children: number(8)?,
            // The children's ticks are signed fields, but never negative.
            ticks: (11..15).map(number).sum::<Option<u64>>()?,
            threads: number(17)?,
            began: number(19)?,
            pages: number(21)?,
        })
    }

    /// Returns true if the process has waited for a child.
    pub fn has_waited(&self) -> bool {
        self.faults_of_children > 0
    }

    /// Returns true if no thread of the process can run any more.
    ///
    /// The state alone is not enough: a process whose first thread has ended is shown as a zombie
    /// while its other threads run on.
    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X') && self.threads <= 1
    }
}

/// Limit on the threads of a process whose files are kept open: each thread takes two descriptors.
const MAX_THREADS: usize = 16;

/// A process whose files below `/proc` are open already, so that each query is a single read.
#[derive(Debug)]
pub struct ProcProcess {
    id: i32,
    stat: File,
    /// Threads that the process had when it was opened, at most [`MAX_THREADS`].
    threads: Vec<ProcThread>,
}

impl ProcProcess {
    /// Opens the files of a process. Returns `None` if the process is gone or the kernel does not
    /// list children.
    pub fn open(id: i32) -> Option<ProcProcess> {
        let stat = File::open(format!("/proc/{id}/stat")).ok()?;
        Some(ProcProcess {
            id,
            stat,
            threads: ProcThread::open_all(id)?.take(MAX_THREADS).collect::<Option<_>>()?,
        })
    }

    /// Returns the process id.
    pub fn id(&self) -> i32 {
        self.id
    }

    /// Reads the current state of the process. Returns `None` if the process is gone.
    pub fn stat(&self) -> Option<ProcessStat> {
        ProcessStat::read_open_file(&self.stat)
    }

    /// Returns the children of all threads of the process.
    ///
    /// `stat` must be current: its thread count tells whether the threads that are already open are
    /// all of them. If a thread has very many children, only the first are returned.
    pub fn children(&self, stat: &ProcessStat) -> Option<Vec<i32>> {
        let are_known = stat.threads == self.threads.len() as u64;
        let known =
            are_known.then(|| self.threads.iter().map(ProcThread::children).collect()).flatten();
        let all = || ProcThread::open_all(self.id)?.map(|thread| thread?.children()).collect();
        known.or_else(all).map(|children: Vec<_>| children.concat())
    }
}

/// A thread; each thread has its own list of children (proc_pid_task(5)).
#[derive(Debug)]
struct ProcThread {
    children: File,
    name: File,
}

impl ProcThread {
    /// Opens the threads of a process, one after the other.
    fn open_all(process: i32) -> Option<impl Iterator<Item = Option<ProcThread>>> {
        let threads = fs_err::read_dir(format!("/proc/{process}/task")).ok()?;
        Some(threads.map(|thread| {
            let path = thread.ok()?.path();
            let file = |name: &str| File::open(path.join(name)).ok();
            Some(ProcThread { children: file("children")?, name: file("comm")? })
        }))
    }

    /// Returns the children of the thread, or `None` if the thread is gone.
    ///
    /// The name is read as well, because a thread that is gone still yields an empty list of
    /// children but no name.
    fn children(&self) -> Option<Vec<i32>> {
        let children = read_once(&self.children, parse_pids)?;
        read_once(&self.name, |_| Some(children))
    }
}

/// Reads as much of a file as a single read returns, and passes the bytes to `read`.
fn read_once<T>(file: &File, read: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
    let mut buffer = [0; READ_BYTES];
    let length = file.read_at(&mut buffer, 0).ok()?;
    read(&buffer[..length])
}

/// Parses a list of process ids that are separated by white space.
fn parse_pids(text: &[u8]) -> Option<Vec<i32>> {
    std::str::from_utf8(text).ok()?.split_ascii_whitespace().map(|pid| pid.parse().ok()).collect()
}

/// The children of each living process, found in one pass over `/proc`.
#[derive(Debug, Default)]
pub(crate) struct Snapshot(HashMap<i32, Vec<i32>>);

impl Snapshot {
    /// Takes a snapshot of the processes whose files can be read, and skips the others.
    pub(crate) fn take() -> Snapshot {
        Snapshot::from_stats(living_processes().into_iter().flatten().flatten())
    }

    /// Takes a snapshot of all living processes. Returns an error if a process may be missing from
    /// it.
    pub(crate) fn take_complete() -> io::Result<Snapshot> {
        Ok(Snapshot::from_stats(living_processes()?.collect::<io::Result<Vec<_>>>()?))
    }

    fn from_stats(living: impl IntoIterator<Item = (i32, ProcessStat)>) -> Snapshot {
        let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
        for (pid, stat) in living {
            children.entry(stat.parent).or_default().push(pid);
        }
        Snapshot(children)
    }

    /// Returns every descendant of `root`, except the processes in `except` and their descendants.
    /// Each process comes after its parent.
    pub(crate) fn descendants(&self, root: i32, except: &[i32]) -> Vec<i32> {
        walk_descendants(root, |parent| {
            let children = self.0.get(&parent).into_iter().flatten();
            children.filter(|pid| !except.contains(pid)).copied().collect()
        })
    }
}

/// Lists all living processes. A process whose `stat` file cannot be opened yields an error.
fn living_processes() -> io::Result<impl Iterator<Item = io::Result<(i32, ProcessStat)>>> {
    Ok(fs_err::read_dir("/proc")?.filter_map(|entry| {
        let entry = entry.ok()?;
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        match ProcessStat::read_at(&entry.path().join("stat")) {
            Ok(stat) => stat.filter(|stat| !stat.is_dead()).map(|stat| Ok((pid, stat))),
            Err(error) => Some(Err(error)),
        }
    }))
}

/// Returns every descendant of `root` that is alive now, except the processes in `except` and their
/// descendants. Each process comes after its parent.
pub(crate) fn descendants(root: i32, except: &[i32]) -> Vec<Pid> {
    Snapshot::take().descendants(root, except).into_iter().filter_map(Pid::from_raw).collect()
}

/// Returns true if the kernel lists the children of a process, proc_pid_tid_children(5). A kernel
/// can be built without that file.
pub(crate) fn lists_children() -> bool {
    Path::new("/proc/thread-self/children").exists()
}

/// Returns the descendants of `root` from the kernel's lists of children.
///
/// The cost grows with the size of the tree, unlike that of [`descendants`], which grows with the
/// number of processes on the host. The result may miss a process whose sibling ends during the
/// call.
pub(crate) fn listed_descendants(root: i32) -> Vec<i32> {
    walk_descendants(root, |parent| {
        let threads = numeric_entries(&format!("/proc/{parent}/task"));
        let paths =
            threads.into_iter().map(|thread| format!("/proc/{parent}/task/{thread}/children"));
        paths.filter_map(|path| parse_pids(&fs_err::read(path).ok()?)).flatten().collect()
    })
}

/// Returns every process below `root`, each after its parent.
fn walk_descendants(root: i32, children: impl Fn(i32) -> Vec<i32>) -> Vec<i32> {
    let mut found = children(root);
    let mut next = 0;
    while let Some(parent) = found.get(next) {
        found.extend(children(*parent));
        next += 1;
    }
    found
}

/// Returns the entries of a directory whose names are numbers.
fn numeric_entries(directory: &str) -> Vec<i32> {
    let entries = fs_err::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_cannot_imitate_the_fields_after_it() {
        let line =
            b"7 (a) Z 1 (\xff) S 3 7 7 0 -1 4194304 1 2 0 0 10 20 30 40 20 0 2 0 5000 8192 6 0";
        let (faults_of_children, ticks) = (2, 100);
        let stat = ProcessStat {
            state: b'S',
            parent: 3,
            faults_of_children,
            threads: 2,
            ticks,
            began: 5000,
            pages: 6,
        };
        assert_eq!(ProcessStat::parse(line), Some(stat));
        assert_eq!(ProcessStat::parse(b"7 (a) S 3"), None);
    }

    #[test]
    fn listed_children_equal_those_found_among_all_processes() {
        let mut child =
            std::process::Command::new("sh").args(["-c", "sleep 60 & wait; :"]).spawn().unwrap();
        let root = child.id() as i32;
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while Snapshot::take().descendants(root, &[]).is_empty() {
            assert!(std::time::Instant::now() < deadline, "it starts nothing");
        }
        let found = Snapshot::take().descendants(root, &[]);
        assert!(!lists_children() || listed_descendants(root) == found);
        assert!(Snapshot::take().descendants(root, &found).is_empty());
        for pid in descendants(root, &[]) {
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
        child.wait().unwrap();
    }

    #[test]
    fn a_process_lives_while_any_of_its_threads_runs() {
        let (faults_of_children, ticks) = (0, 0);
        let stat = ProcessStat {
            state: b'Z',
            parent: 1,
            faults_of_children,
            threads: 2,
            ticks,
            began: 0,
            pages: 0,
        };
        assert!(!stat.is_dead());
        assert!(ProcessStat { threads: 1, ..stat }.is_dead());
        assert!(!ProcessStat { state: b'T', threads: 1, ..stat }.is_dead());
    }

    #[track_caller]
    fn check(line: &str, children_expected: usize, waited: bool) {
        use std::io::{BufRead, BufReader, Write};
        use std::process::{Command, Stdio};
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &format!("{line}; echo done; read end")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "done\n");
        let process = ProcProcess::open(child.id().cast_signed()).unwrap();
        let stat = process.stat().unwrap();
        let children = process.children(&stat).unwrap();
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        child.wait().unwrap();
        assert_eq!((children.len(), stat.has_waited()), (children_expected, waited), "{line}");
        assert_eq!(process.stat(), None, "it is gone");
    }

    #[test]
    fn a_thread_that_takes_the_place_of_another_hides_no_child() {
        use std::io::{BufRead, BufReader, Write};
        use std::process::{Command, Stdio};
        // The first thread ends when it reads a line. Then a second thread starts a child process.
        let lines = "
import subprocess, sys, threading
def first(): sys.stdin.readline()
def second():
    child = subprocess.Popen(['sleep', '600']); print('another', flush=True)
    sys.stdin.readline(); child.kill(); child.wait()
thread = threading.Thread(target=first); thread.start(); print('one', flush=True)
thread.join()
threading.Thread(target=second).start()
";
        let mut python = Command::new("python3");
        python.args(["-c", lines]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut python = python.spawn().unwrap();
        let mut stdin = python.stdin.take().unwrap();
        let mut said = BufReader::new(python.stdout.take().unwrap()).lines();
        let mut hear = || said.next().unwrap().unwrap();
        assert_eq!(hear(), "one");
        let process = ProcProcess::open(python.id().cast_signed()).unwrap();
        let look = || {
            let stat = process.stat().unwrap();
            (stat.threads, process.children(&stat).unwrap().len())
        };
        assert_eq!(look(), (2, 0));
        stdin.write_all(b"\n").unwrap();
        assert_eq!(hear(), "another");
        let begun = std::time::Instant::now();
        while process.stat().unwrap().threads != 2 {
            // The end may take a moment.
            assert!(begun.elapsed().as_secs() < 20, "the first thread does not end");
        }
        assert_eq!(look(), (2, 1));
        stdin.write_all(b"\n").unwrap();
        python.wait().unwrap();
    }

    #[test]
    fn a_process_shows_its_children_and_its_past_waits() {
        check(":", 0, false);
        check("/bin/true", 0, true);
        check("exec 3>&1; { read x; } > /dev/null < /dev/null & wait", 0, true);
        check("sleep 600 > /dev/null & trap 'kill $!' EXIT", 1, false);
    }
}
