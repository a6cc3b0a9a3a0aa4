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
const PIECE: usize = 4096;

/// State of a process, as proc_pid_stat(5) describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
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

impl Stat {
    /// Reads the state of a process. Returns `None` if the process is gone or its file cannot be
    /// read.
    pub(crate) fn of(pid: i32) -> Option<Stat> {
        Stat::at(format!("/proc/{pid}/stat").as_ref()).ok().flatten()
    }

    /// Reads the `stat` file of a process or of a thread.
    ///
    /// Returns `None` if the process is gone, or if it belongs to another user and is hidden from
    /// this user (proc(5), hidepid).
    pub(crate) fn at(path: &Path) -> io::Result<Option<Stat>> {
        match open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            // A read fails if the process ends after the open; that is also `None`.
            Ok(file) => Ok(Stat::in_file(&File::from_parts(file.into(), path))),
            // If the process ends during the path lookup, open(2) returns ESRCH instead of ENOENT.
            Err(Errno::NOENT | Errno::SRCH | Errno::ACCESS | Errno::PERM) => Ok(None),
            Err(error) => {
                Err(io::Error::other(format!("cannot open `{}`: {error}", path.display())))
            }
        }
    }

    fn in_file(file: &File) -> Option<Stat> {
        look(file, Stat::parse)
    }

    fn parse(line: &[u8]) -> Option<Stat> {
        // The name is in parentheses and may hold any byte, parentheses included. The fields
        // therefore start after the last closing parenthesis.
        let name_ends = line.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(&line[name_ends + 1..]).ok()?;
        let mut fields = [""; 22];
        for (field, found) in fields.iter_mut().zip(rest.split_ascii_whitespace()) {
            *field = found;
        }
        let number = |index: usize| fields[index].parse::<u64>().ok();
        Some(Stat {
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
const MOST_THREADS: usize = 16;

/// A process whose files below `/proc` are open already, so that each query is a single read.
#[derive(Debug)]
pub struct Process {
    id: i32,
    stat: File,
    /// Threads that the process had when it was opened, at most [`MOST_THREADS`].
    threads: Vec<Thread>,
}

impl Process {
    /// Opens the files of a process. Returns `None` if the process is gone or the kernel does not
    /// list children.
    pub fn open(id: i32) -> Option<Process> {
        let stat = File::open(format!("/proc/{id}/stat")).ok()?;
        Some(Process {
            id,
            stat,
            threads: Thread::of(id)?.take(MOST_THREADS).collect::<Option<_>>()?,
        })
    }

    /// Returns the process id.
    pub fn id(&self) -> i32 {
        self.id
    }

    /// Reads the current state of the process. Returns `None` if the process is gone.
    pub fn stat(&self) -> Option<Stat> {
        Stat::in_file(&self.stat)
    }

    /// Returns the children of all threads of the process.
    ///
    /// `stat` must be current: its thread count tells whether the threads that are already open are
    /// all of them. If a thread has very many children, only the first are returned.
    pub fn children(&self, stat: &Stat) -> Option<Vec<i32>> {
        let are_known = stat.threads == self.threads.len() as u64;
        let known =
            are_known.then(|| self.threads.iter().map(Thread::children).collect()).flatten();
        let all = || Thread::of(self.id)?.map(|thread| thread?.children()).collect();
        known.or_else(all).map(|children: Vec<_>| children.concat())
    }
}

/// A thread; each thread has its own list of children (proc_pid_task(5)).
#[derive(Debug)]
struct Thread {
    children: File,
    name: File,
}

impl Thread {
    /// Opens the threads of a process, one after the other.
    fn of(process: i32) -> Option<impl Iterator<Item = Option<Thread>>> {
        let threads = fs_err::read_dir(format!("/proc/{process}/task")).ok()?;
        Some(threads.map(|thread| {
            let path = thread.ok()?.path();
            let file = |name: &str| File::open(path.join(name)).ok();
            Some(Thread { children: file("children")?, name: file("comm")? })
        }))
    }

    /// Returns the children of the thread, or `None` if the thread is gone.
    ///
    /// The name is read as well, because a thread that is gone still yields an empty list of
    /// children but no name.
    fn children(&self) -> Option<Vec<i32>> {
        let children = look(&self.children, listed)?;
        look(&self.name, |_| Some(children))
    }
}

/// Reads as much of a file as a single read returns, and passes the bytes to `read`.
fn look<T>(file: &File, read: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
    let mut buffer = [0; PIECE];
    let length = file.read_at(&mut buffer, 0).ok()?;
    read(&buffer[..length])
}

/// Parses a list of process ids that are separated by white space.
fn listed(text: &[u8]) -> Option<Vec<i32>> {
    std::str::from_utf8(text).ok()?.split_ascii_whitespace().map(|pid| pid.parse().ok()).collect()
}

/// The children of each living process, found in one pass over `/proc`.
#[derive(Debug, Default)]
pub(crate) struct Snapshot(HashMap<i32, Vec<i32>>);

impl Snapshot {
    /// Takes a snapshot of the processes whose files can be read, and skips the others.
    pub(crate) fn take() -> Snapshot {
        Snapshot::of(living().into_iter().flatten().flatten())
    }

    /// Takes a snapshot of all living processes. Returns an error if a process may be missing from
    /// it.
    pub(crate) fn take_whole() -> io::Result<Snapshot> {
        Ok(Snapshot::of(living()?.collect::<io::Result<Vec<_>>>()?))
    }

    fn of(living: impl IntoIterator<Item = (i32, Stat)>) -> Snapshot {
        let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
        for (pid, stat) in living {
            children.entry(stat.parent).or_default().push(pid);
        }
        Snapshot(children)
    }

    /// Returns every descendant of `root`, except the processes in `except` and their descendants.
    /// Each process comes after its parent.
    pub(crate) fn below(&self, root: i32, except: &[i32]) -> Vec<i32> {
        descend(root, |parent| {
            let children = self.0.get(&parent).into_iter().flatten();
            children.filter(|pid| !except.contains(pid)).copied().collect()
        })
    }
}

/// Lists all living processes. A process whose `stat` file cannot be opened yields an error.
fn living() -> io::Result<impl Iterator<Item = io::Result<(i32, Stat)>>> {
    Ok(fs_err::read_dir("/proc")?.filter_map(|entry| {
        let entry = entry.ok()?;
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        match Stat::at(&entry.path().join("stat")) {
            Ok(stat) => stat.filter(|stat| !stat.is_dead()).map(|stat| Ok((pid, stat))),
            Err(error) => Some(Err(error)),
        }
    }))
}

/// Returns every descendant of `root` that is alive now, except the processes in `except` and their
/// descendants. Each process comes after its parent.
pub(crate) fn below(root: i32, except: &[i32]) -> Vec<Pid> {
    Snapshot::take().below(root, except).into_iter().filter_map(Pid::from_raw).collect()
}

/// Returns true if the kernel lists the children of a process, proc_pid_tid_children(5). A kernel
/// can be built without that file.
pub(crate) fn lists_children() -> bool {
    Path::new("/proc/thread-self/children").exists()
}

/// Returns the descendants of `root` from the kernel's lists of children.
///
/// The cost grows with the size of the tree, unlike that of [`below`], which grows with the number
/// of processes on the host. The result may miss a process whose sibling ends during the call.
pub(crate) fn listed_below(root: i32) -> Vec<i32> {
    descend(root, |parent| {
        let threads = numbers(&format!("/proc/{parent}/task"));
        let paths =
            threads.into_iter().map(|thread| format!("/proc/{parent}/task/{thread}/children"));
        paths.filter_map(|path| listed(&fs_err::read(path).ok()?)).flatten().collect()
    })
}

/// Returns every process below `root`, each after its parent.
fn descend(root: i32, children: impl Fn(i32) -> Vec<i32>) -> Vec<i32> {
    let mut found = children(root);
    let mut next = 0;
    while let Some(parent) = found.get(next) {
        found.extend(children(*parent));
        next += 1;
    }
    found
}

/// Returns the entries of a directory whose names are numbers.
fn numbers(directory: &str) -> Vec<i32> {
    let entries = fs_err::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_pretend_to_be_what_follows_it() {
        let line =
            b"7 (a) Z 1 (\xff) S 3 7 7 0 -1 4194304 1 2 0 0 10 20 30 40 20 0 2 0 5000 8192 6 0";
        let (faults_of_children, ticks) = (2, 100);
        let stat = Stat {
            state: b'S',
            parent: 3,
            faults_of_children,
            threads: 2,
            ticks,
            began: 5000,
            pages: 6,
        };
        assert_eq!(Stat::parse(line), Some(stat));
        assert_eq!(Stat::parse(b"7 (a) S 3"), None);
    }

    #[test]
    fn what_the_kernel_lists_is_what_is_found_among_all() {
        let mut child =
            std::process::Command::new("sh").args(["-c", "sleep 60 & wait; :"]).spawn().unwrap();
        let root = child.id() as i32;
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while Snapshot::take().below(root, &[]).is_empty() {
            assert!(std::time::Instant::now() < deadline, "it starts nothing");
        }
        let found = Snapshot::take().below(root, &[]);
        assert!(!lists_children() || listed_below(root) == found);
        assert!(Snapshot::take().below(root, &found).is_empty());
        for pid in below(root, &[]) {
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
        child.wait().unwrap();
    }

    #[test]
    fn one_whose_first_thread_has_ended_is_not_dead_while_others_run() {
        let (faults_of_children, ticks) = (0, 0);
        let stat = Stat {
            state: b'Z',
            parent: 1,
            faults_of_children,
            threads: 2,
            ticks,
            began: 0,
            pages: 0,
        };
        assert!(!stat.is_dead());
        assert!(Stat { threads: 1, ..stat }.is_dead());
        assert!(!Stat { state: b'T', threads: 1, ..stat }.is_dead());
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
        let process = Process::open(child.id().cast_signed()).unwrap();
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
        let process = Process::open(python.id().cast_signed()).unwrap();
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
    fn children_and_whether_one_was_waited_for_are_seen() {
        check(":", 0, false);
        check("/bin/true", 0, true);
        check("exec 3>&1; { read x; } > /dev/null < /dev/null & wait", 0, true);
        check("sleep 600 > /dev/null & trap 'kill $!' EXIT", 1, false);
    }
}
