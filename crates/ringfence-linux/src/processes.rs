//! Processes as `/proc` shows them.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use fs_err::File;
use fs_err::os::unix::fs::FileExt;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::Pid;

/// How much of a file below `/proc` one look reads: somebody may wait meanwhile, and each reading takes its time.
const PIECE: usize = 4096;

/// What proc_pid_stat(5) tells of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    pub(crate) state: u8,
    pub(crate) parent: i32,
    /// The page faults of the children that it has waited for: any child has had some.
    faults_of_children: u64,
    threads: u64,
    /// Its own time on processors and that of the children that it has waited for, in ticks of the clock.
    pub(crate) ticks: u64,
    /// When it began, in ticks since the machine did.
    pub(crate) began: u64,
    /// Its pages in memory.
    pub(crate) pages: u64,
}

impl Stat {
    /// What is told of a process, if it is there and can be looked at.
    pub(crate) fn of(pid: i32) -> Option<Stat> {
        Stat::at(format!("/proc/{pid}/stat").as_ref()).ok().flatten()
    }

    /// What is told in a file, of a process or of a thread; nothing when that is gone, or another user's that is hidden from
    /// this one (proc(5), hidepid).
    pub(crate) fn at(path: &Path) -> io::Result<Option<Stat>> {
        match open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            // What was there a moment ago cannot be read once it is gone.
            Ok(file) => Ok(Stat::in_file(&File::from_parts(file.into(), path))),
            // One that goes while its file is looked for is no such process, not no such file.
            Err(Errno::NOENT | Errno::SRCH | Errno::ACCESS | Errno::PERM) => Ok(None),
            Err(error) => Err(io::Error::other(format!("cannot open `{}`: {error}", path.display()))),
        }
    }

    fn in_file(file: &File) -> Option<Stat> {
        look(file, Stat::parse)
    }

    fn parse(line: &[u8]) -> Option<Stat> {
        // The name is in parentheses and may hold any byte, parentheses too: what follows the last one counts.
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
            // The children's are signed, and never below zero.
            ticks: (11..15).map(number).sum::<Option<u64>>()?,
            threads: number(17)?,
            began: number(19)?,
            pages: number(21)?,
        })
    }

    /// Whether it has waited for a child.
    pub fn has_waited(&self) -> bool {
        self.faults_of_children > 0
    }

    /// Whether nothing of it is left to run. One whose first thread has ended looks dead while others run on.
    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X') && self.threads <= 1
    }
}

/// The most threads of a process whose files are kept open: each takes two descriptors.
const MOST_THREADS: usize = 16;

/// A process whose files below `/proc` are open already: a look at one is a single reading.
#[derive(Debug)]
pub struct Process {
    id: i32,
    stat: File,
    /// Those that it had when it was opened, if they were not too many.
    threads: Vec<Thread>,
}

impl Process {
    /// Opens what is told of a process, if it is there and the kernel lists children.
    pub fn open(id: i32) -> Option<Process> {
        let stat = File::open(format!("/proc/{id}/stat")).ok()?;
        Some(Process { id, stat, threads: Thread::of(id)?.take(MOST_THREADS).collect::<Option<_>>()? })
    }

    /// Its number.
    pub fn id(&self) -> i32 {
        self.id
    }

    /// How it stands, if it is still there.
    pub fn stat(&self) -> Option<Stat> {
        Stat::in_file(&self.stat)
    }

    /// The children of all its threads, which are as many as `stat` says; of very many, the first.
    pub fn children(&self, stat: &Stat) -> Option<Vec<i32>> {
        let are_known = stat.threads == self.threads.len() as u64;
        let known = are_known.then(|| self.threads.iter().map(Thread::children).collect()).flatten();
        let all = || Thread::of(self.id)?.map(|thread| thread?.children()).collect();
        known.or_else(all).map(|children: Vec<_>| children.concat())
    }
}

/// A thread, which has children of its own (proc_pid_task(5)).
#[derive(Debug)]
struct Thread {
    children: File,
    name: File,
}

impl Thread {
    /// Opens those of a process, one after the other.
    fn of(process: i32) -> Option<impl Iterator<Item = Option<Thread>>> {
        let threads = fs_err::read_dir(format!("/proc/{process}/task")).ok()?;
        Some(threads.map(|thread| {
            let path = thread.ok()?.path();
            let file = |name: &str| File::open(path.join(name)).ok();
            Some(Thread { children: file("children")?, name: file("comm")? })
        }))
    }

    /// Its children, if it is still there: one that is gone has none listed, but no name either.
    fn children(&self) -> Option<Vec<i32>> {
        let children = look(&self.children, listed)?;
        look(&self.name, |_| Some(children))
    }
}

/// Reads as much of a file as one reading gives.
fn look<T>(file: &File, read: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
    let mut buffer = [0; PIECE];
    let length = file.read_at(&mut buffer, 0).ok()?;
    read(&buffer[..length])
}

/// The processes that are listed in a text.
fn listed(text: &[u8]) -> Option<Vec<i32>> {
    std::str::from_utf8(text).ok()?.split_ascii_whitespace().map(|pid| pid.parse().ok()).collect()
}

/// The children of all living processes, as they are found in one look.
#[derive(Debug, Default)]
pub(crate) struct Snapshot(HashMap<i32, Vec<i32>>);

impl Snapshot {
    /// Those of all that can be looked at.
    pub(crate) fn take() -> Snapshot {
        Snapshot::of(living().into_iter().flatten().flatten())
    }

    /// The same; an error where there may be others.
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

    /// Every descendant of `root`, but for those in `except` and below. Each comes after its parent.
    pub(crate) fn below(&self, root: i32, except: &[i32]) -> Vec<i32> {
        descend(root, |parent| {
            let children = self.0.get(&parent).into_iter().flatten();
            children.filter(|pid| !except.contains(pid)).copied().collect()
        })
    }
}

/// All living processes; an error for one that cannot be looked at.
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

/// Every living descendant of `root` at this moment, but for those in `except` and below. Each comes after its parent.
pub(crate) fn below(root: i32, except: &[i32]) -> Vec<Pid> {
    Snapshot::take().below(root, except).into_iter().filter_map(Pid::from_raw).collect()
}

/// Whether the kernel lists the children of a process, proc_pid_tid_children(5): it can be built without that.
pub(crate) fn lists_children() -> bool {
    Path::new("/proc/thread-self/children").exists()
}

/// The same as [`below`] by what the kernel lists, which costs what the tree is large and not what the host is. It may
/// miss one whose sibling ends at that moment.
pub(crate) fn listed_below(root: i32) -> Vec<i32> {
    descend(root, |parent| {
        let threads = numbers(&format!("/proc/{parent}/task"));
        let paths = threads.into_iter().map(|thread| format!("/proc/{parent}/task/{thread}/children"));
        paths.filter_map(|path| listed(&fs_err::read(path).ok()?)).flatten().collect()
    })
}

/// All that is below `root`, each after its parent.
fn descend(root: i32, children: impl Fn(i32) -> Vec<i32>) -> Vec<i32> {
    let mut found = children(root);
    let mut next = 0;
    while let Some(parent) = found.get(next) {
        found.extend(children(*parent));
        next += 1;
    }
    found
}

/// The entries of a directory that are numbers.
fn numbers(directory: &str) -> Vec<i32> {
    let entries = fs_err::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_pretend_to_be_what_follows_it() {
        let line = b"7 (a) Z 1 (\xff) S 3 7 7 0 -1 4194304 1 2 0 0 10 20 30 40 20 0 2 0 5000 8192 6 0";
        let (faults_of_children, ticks) = (2, 100);
        let stat = Stat { state: b'S', parent: 3, faults_of_children, threads: 2, ticks, began: 5000, pages: 6 };
        assert_eq!(Stat::parse(line), Some(stat));
        assert_eq!(Stat::parse(b"7 (a) S 3"), None);
    }

    #[test]
    fn what_the_kernel_lists_is_what_is_found_among_all() {
        let mut child = std::process::Command::new("sh").args(["-c", "sleep 60 & wait; :"]).spawn().unwrap();
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
        let stat = Stat { state: b'Z', parent: 1, faults_of_children, threads: 2, ticks, began: 0, pages: 0 };
        assert!(!stat.is_dead());
        assert!(Stat { threads: 1, ..stat }.is_dead());
        assert!(!Stat { state: b'T', threads: 1, ..stat }.is_dead());
    }

    #[track_caller]
    fn check(line: &str, children_expected: usize, waited: bool) {
        use std::io::{BufRead, BufReader, Write};
        use std::process::{Command, Stdio};
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{line}; echo done; read end")]).stdin(Stdio::piped()).stdout(Stdio::piped());
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
        // One that ends when it is told to, and then another, whose child the process has from then on.
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
            assert!(begun.elapsed().as_secs() < 20, "the first thread does not end"); // it may take a moment longer
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
