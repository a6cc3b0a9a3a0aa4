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

/// All living processes, as they are found in one look.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    stats: HashMap<i32, Stat>,
    children: HashMap<i32, Vec<i32>>,
}

impl Snapshot {
    pub(crate) fn take() -> Snapshot {
        let mut snapshot = Snapshot::default();
        for entry in fs_err::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
            if let Some(stat) = Stat::of(pid).filter(|stat| !stat.is_dead()) {
                snapshot.stats.insert(pid, stat);
                snapshot.children.entry(stat.parent).or_default().push(pid);
            }
        }
        snapshot
    }

    pub(crate) fn get(&self, pid: i32) -> Option<&Stat> {
        self.stats.get(&pid)
    }

    /// Every descendant of `root`, but for those in `except` and below. Each comes after its parent.
    pub(crate) fn below(&self, root: i32, except: &[i32]) -> Vec<i32> {
        let mut found = vec![root];
        let mut next = 0;
        while let Some(parent) = found.get(next) {
            let children = self.children.get(parent).into_iter().flatten();
            let children: Vec<i32> = children.filter(|pid| !except.contains(pid)).copied().collect();
            found.extend(children);
            next += 1;
        }
        found.remove(0);
        found
    }
}

/// Every living descendant of `root` at this moment, but for those in `except` and below. Each comes after its parent.
pub(crate) fn below(root: i32, except: &[i32]) -> Vec<Pid> {
    Snapshot::take().below(root, except).into_iter().filter_map(Pid::from_raw).collect()
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
    fn one_whose_first_thread_has_ended_is_not_dead_while_others_run() {
        let stat = Stat { state: b'Z', parent: 1, threads: 2, ticks: 0, began: 0, pages: 0 };
        assert!(!stat.is_dead());
        assert!(Stat { threads: 1, ..stat }.is_dead());
        assert!(!Stat { state: b'T', threads: 1, ..stat }.is_dead());
    }
}
