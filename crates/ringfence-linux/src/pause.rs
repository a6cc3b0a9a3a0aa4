//! A process tree seen from outside of it: what it uses, brought to rest, and let go on.
//!
//! Its first process is ours, and goes on waiting: it is what ends the others when their owner does, at rest or not. By
//! signals and not by a cgroup's freezer: not every sandbox has a cgroup, and one of version 1 has another hierarchy
//! for that. Nothing that is stopped can let itself go on, and what runs meanwhile is found by the next look.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde::{Deserialize, Serialize};

use crate::processes::{Snapshot, Stat, listed_below, lists_children};

/// How long a tree may take to come to rest: one that forks faster than it is stopped never does.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it is given between two looks.
const MOMENT: Duration = Duration::from_millis(1);
/// How many looks in a row must find all at rest: one that was seen may have been woken by one that was not yet.
const LOOKS: u32 = 2;
/// The place of SIGSTOP in a set of signals, as proc_pid_status(5) prints them.
const STOP_BIT: u64 = 1 << (Signal::STOP.as_raw() - 1);

/// A process tree, by its first process: told from another process that may have its number later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessTree {
    first: i32,
    began: u64,
}

impl ProcessTree {
    /// The tree below a process, if that is there.
    pub fn of(first: i32) -> Option<ProcessTree> {
        Some(ProcessTree { first, began: Stat::of(first)?.began })
    }

    /// Whether its first process is still there.
    pub fn is_there(&self) -> io::Result<bool> {
        let stat = Stat::at(format!("/proc/{}/stat", self.first).as_ref())?;
        Ok(stat.is_some_and(|stat| stat.began == self.began && !stat.is_dead()))
    }

    /// Lists those that are stopped now, as by a shell's job control: they are not to go on with the rest.
    pub fn stopped(&self) -> io::Result<Vec<i32>> {
        let is_stopped = |pid: &i32| Stat::of(*pid).is_some_and(|stat| stat.state == b'T');
        Ok(self.members()?.into_iter().map(|pid| pid.as_raw_nonzero().get()).filter(is_stopped).collect())
    }

    /// Stops every process below the first one, and returns once none of them runs. When one still does after a while, or
    /// they cannot be looked at, those that were stopped go on.
    pub fn stop(&self) -> io::Result<()> {
        let mut told = Vec::new();
        self.stop_all(&mut told).inspect_err(|_| go_on(told.into_iter().rev()))
    }

    /// The same, and lists those that were told to stop.
    fn stop_all(&self, told: &mut Vec<Pid>) -> io::Result<()> {
        let (deadline, mut looks) = (Instant::now() + PATIENCE, 0);
        while looks < LOOKS {
            if !self.is_there()? {
                return Err(io::ErrorKind::NotFound.into());
            }
            let running: Vec<Pid> = self.members()?.into_iter().filter(|pid| !is_at_rest(*pid)).collect();
            // The parent first: it does not see that its child is stopped.
            for pid in &running {
                let _ = kill_process(*pid, Signal::STOP); // it may have ended meanwhile
            }
            looks = if running.is_empty() { looks + 1 } else { 0 };
            told.extend(running);
            if Instant::now() > deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(MOMENT);
        }
        Ok(())
    }

    /// Lets every process below the first one go on, but for those in `except`; an error where not all are known.
    pub fn go_on(&self, except: &[i32]) -> io::Result<()> {
        if self.is_there()? {
            let is_meant = |pid: &Pid| !except.contains(&pid.as_raw_nonzero().get());
            go_on(self.members()?.into_iter().rev().filter(is_meant));
        }
        Ok(())
    }

    /// The id of its first process.
    pub(crate) fn first(&self) -> i32 {
        self.first
    }

    /// The processes below the first one, as they are found quickest.
    pub(crate) fn members_at_hand(&self) -> Vec<i32> {
        match lists_children() {
            true => listed_below(self.first),
            false => Snapshot::take().below(self.first, &[]),
        }
    }

    fn members(&self) -> io::Result<Vec<Pid>> {
        let members = Snapshot::take_whole()?.below(self.first, &[]);
        Ok(members.into_iter().filter_map(Pid::from_raw).collect())
    }
}

/// What a process tree uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Footprint {
    /// The time on processors of its processes so far, those included that have ended and been waited for.
    pub processor_time: Duration,
    /// What its processes have in memory, in bytes. What several share counts for each.
    pub memory: u64,
}

impl Footprint {
    /// What each of some trees uses at this moment; nothing where a tree is gone.
    pub fn of_all(trees: &[Option<ProcessTree>]) -> Vec<Option<Footprint>> {
        // All processes of the host are looked at once, where they must be.
        let snapshot = (!lists_children()).then(Snapshot::take);
        let below = |first| snapshot.as_ref().map_or_else(|| listed_below(first), |all| all.below(first, &[]));
        trees.iter().map(|tree| Footprint::of((*tree)?, below)).collect()
    }

    fn of(tree: ProcessTree, below: impl Fn(i32) -> Vec<i32>) -> Option<Footprint> {
        let first = Stat::of(tree.first).filter(|stat| stat.began == tree.began)?;
        let all = below(tree.first).into_iter().filter_map(Stat::of).chain([first]);
        let (ticks, pages) = all.fold((0, 0), |(ticks, pages), stat| (ticks + stat.ticks, pages + stat.pages));
        let processor_time = Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64);
        Some(Footprint { processor_time, memory: pages * rustix::param::page_size() as u64 })
    }
}

/// Lets processes go on, the child first: its parent does not see that it was stopped.
fn go_on(processes: impl Iterator<Item = Pid>) {
    for pid in processes {
        let _ = kill_process(pid, Signal::CONT); // it may have been killed at rest
    }
}

/// The states of the threads of a process that are there.
fn states(pid: i32) -> io::Result<Vec<u8>> {
    let threads = fs_err::read_dir(format!("/proc/{pid}/task"))?;
    let stats = threads.flatten().filter_map(|thread| Stat::at(&thread.path().join("stat")).transpose());
    stats.map(|stat| Ok(stat?.state)).collect()
}

/// Whether no thread of a process runs, or will before it is told to go on. One that cannot be looked at may.
fn is_at_rest(process: Pid) -> bool {
    let pid = process.as_raw_nonzero().get();
    let Ok(states) = states(pid) else { return test_kill_process(process) == Err(Errno::SRCH) };
    if states.iter().any(|state| !matches!(state, b'T' | b't' | b'D' | b'Z' | b'X')) {
        return false;
    }
    // A stop of one thread is one of all. Who waits for a disk, or for a vforked child that is stopped, does not run,
    // and is stopped before it does.
    !states.contains(&b'D') || states.iter().any(|state| matches!(state, b'T' | b't')) || is_to_stop(pid)
}

/// Whether a process was sent the signal that stops it and has not taken it yet.
fn is_to_stop(pid: i32) -> bool {
    let status = fs_err::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    pending.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set & STOP_BIT != 0)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// The first process goes on, for what it is worth.
    const TICK: Duration = Duration::from_millis(10);

    fn used(tree: ProcessTree) -> Duration {
        let [footprint] = Footprint::of_all(&[Some(tree)])[..] else { panic!("there is one for each") };
        footprint.unwrap().processor_time
    }

    /// A tree whose first process waits, and which is gone when this is dropped.
    struct Trial(Child);

    impl Trial {
        fn of(script: &str) -> Trial {
            let mut command = Command::new("sh");
            // The shell that waits stands for the first process: it does nothing that could be stopped.
            Trial(command.args(["-c", &format!("({script}) & wait; :")]).stdout(Stdio::null()).spawn().unwrap())
        }

        fn tree(&self) -> ProcessTree {
            ProcessTree::of(self.0.id() as i32).unwrap()
        }

        /// Waits until so many processes are below the first.
        fn until(&self, count: usize) -> ProcessTree {
            let (tree, deadline) = (self.tree(), Instant::now() + Duration::from_secs(20));
            while tree.members().unwrap().len() < count {
                assert!(Instant::now() < deadline, "they do not come");
                thread::sleep(MOMENT);
            }
            tree
        }
    }

    impl Drop for Trial {
        fn drop(&mut self) {
            for pid in self.tree().members().unwrap() {
                let _ = kill_process(pid, Signal::KILL); // it may have ended
            }
            let _ = self.0.kill(); // see above
            let _ = self.0.wait(); // see above
        }
    }

    #[test]
    fn a_tree_at_rest_uses_no_time_and_goes_on_where_it_was() {
        let trial = Trial::of("while :; do :; done & while :; do :; done");
        let tree = trial.until(2);
        let deadline = Instant::now() + Duration::from_secs(20);
        let wait_for_more = |than: Duration| {
            while used(tree) <= than {
                assert!(Instant::now() < deadline, "it does not run");
                thread::sleep(MOMENT);
            }
        };
        wait_for_more(Duration::ZERO);
        tree.stop().unwrap();
        let before = used(tree);
        thread::sleep(Duration::from_millis(200));
        assert!(used(tree) <= before + TICK);
        assert!(tree.is_there().unwrap());
        tree.go_on(&[]).unwrap();
        wait_for_more(before);
    }

    #[test]
    fn a_tree_that_forks_all_the_time_comes_to_rest() {
        let trial = Trial::of("while :; do (:) & wait; done");
        let tree = trial.until(1);
        tree.stop().unwrap();
        let before = used(tree);
        thread::sleep(Duration::from_millis(200));
        assert!(used(tree) <= before + TICK);
    }

    #[test]
    fn what_was_stopped_before_is_not_let_go_on() {
        let trial = Trial::of("sleep 600 & kill -STOP $!; sleep 600 & wait; :");
        // All in the background: what a shell waits for at once, it starts by vfork, and is not stopped until that is done.
        let tree = trial.until(3);
        let deadline = Instant::now() + Duration::from_secs(20);
        while tree.stopped().unwrap().is_empty() {
            assert!(Instant::now() < deadline, "it is not stopped");
            thread::sleep(MOMENT);
        }
        let before = tree.stopped().unwrap();
        assert_eq!(before.len(), 1);
        tree.stop().unwrap();
        assert_eq!(tree.stopped().unwrap().len(), 3);
        tree.go_on(&before).unwrap();
        while tree.stopped().unwrap() != before {
            assert!(Instant::now() < deadline, "the rest does not go on");
            thread::sleep(MOMENT);
        }
    }

    #[test]
    fn a_number_that_another_process_has_by_now_is_no_tree() {
        let tree = ProcessTree::of(std::process::id() as i32).unwrap();
        let other = ProcessTree { began: tree.began + 1, ..tree };
        assert!(tree.is_there().unwrap() && !other.is_there().unwrap());
        assert_eq!(other.stop().unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(Footprint::of_all(&[Some(other), None]), [None, None]);
    }
}
