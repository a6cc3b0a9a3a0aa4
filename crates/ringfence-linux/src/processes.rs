//! Processes as `/proc` shows them.

use std::collections::HashMap;
use std::path::Path;

use rustix::process::Pid;

/// What proc_pid_stat(5) tells of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) state: u8,
    pub(crate) parent: i32,
    threads: u64,
    /// Its own time on processors and that of the children that it has waited for, in ticks of the clock.
    pub(crate) ticks: u64,
    /// When it began, in ticks since the machine did.
    pub(crate) began: u64,
    /// Its pages in memory.
    pub(crate) pages: u64,
}

impl Stat {
    /// What is told of a process, if it is there.
    pub(crate) fn of(pid: i32) -> Option<Stat> {
        Stat::at(format!("/proc/{pid}/stat").as_ref())
    }

    /// What is told in a file: of a process, or of a thread.
    pub(crate) fn at(path: &Path) -> Option<Stat> {
        // A process's name need not be text.
        Stat::parse(&String::from_utf8_lossy(&fs_err::read(path).ok()?))
    }

    fn parse(text: &str) -> Option<Stat> {
        // The name is in parentheses and may hold any character, parentheses too: what follows the last one counts.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        // The children's are signed, and never below zero.
        let ticks = (11..15).map(number).sum::<Option<u64>>()?;
        let state = *fields.first()?.as_bytes().first()?;
        let (parent, threads) = (fields.get(1)?.parse().ok()?, number(17)?);
        Some(Stat { state, parent, threads, ticks, began: number(19)?, pages: number(21)? })
    }

    /// Whether nothing of it is left to run. One whose first thread has ended looks dead while others run on.
    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X') && self.threads <= 1
    }
}

/// The children of all living processes, as they are found in one look.
#[derive(Debug, Default)]
pub(crate) struct Snapshot(HashMap<i32, Vec<i32>>);

impl Snapshot {
    pub(crate) fn take() -> Snapshot {
        let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
        for pid in numbers("/proc") {
            if let Some(stat) = Stat::of(pid).filter(|stat| !stat.is_dead()) {
                children.entry(stat.parent).or_default().push(pid);
            }
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
        let listed = threads.into_iter().map(|thread| format!("/proc/{parent}/task/{thread}/children"));
        let listed = listed.filter_map(|path| fs_err::read_to_string(path).ok());
        listed
            .flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>())
            .collect()
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
        let line = "7 (a) Z 1 (x) S 3 7 7 0 -1 4194304 1 2 0 0 10 20 30 40 20 0 2 0 5000 8192 6 0";
        let stat = Stat { state: b'S', parent: 3, threads: 2, ticks: 100, began: 5000, pages: 6 };
        assert_eq!(Stat::parse(line), Some(stat));
        assert_eq!(Stat::parse("7 (a) S 3"), None);
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
        let stat = Stat { state: b'Z', parent: 1, threads: 2, ticks: 0, began: 0, pages: 0 };
        assert!(!stat.is_dead());
        assert!(Stat { threads: 1, ..stat }.is_dead());
        assert!(!Stat { state: b'T', threads: 1, ..stat }.is_dead());
    }
}
