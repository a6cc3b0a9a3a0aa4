//! A process tree seen from outside: its resource use, stopping it, and continuing it.
//!
//! The first process of the tree is ours and is never stopped, because it must be able to end the
//! others when their owner ends, even while they are stopped. Stopping uses signals instead of a
//! cgroup's freezer for two reasons: not every sandbox has a cgroup, and cgroup v1 has a separate
//! hierarchy for the freezer. A stopped process cannot continue itself, and the next pass finds a
//! process that still runs.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde::{Deserialize, Serialize};

use crate::processes::{ProcessStat, Snapshot, listed_descendants, lists_children};

/// Timeout for stopping a tree. A tree that forks faster than it is stopped never stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay between two passes over the tree.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Number of consecutive passes that must find every process stopped. One pass is not enough,
/// because a process that was already checked may be continued by a process that was not.
const STOPPED_PASSES: u32 = 2;
/// Bit of SIGSTOP in a signal set, as proc_pid_status(5) prints it.
const STOP_BIT: u64 = 1 << (Signal::STOP.as_raw() - 1);

/// A process tree, identified by its first process and that process's start time. The start time
/// distinguishes it from a later process with the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessTree {
    first: i32,
    began: u64,
}

impl ProcessTree {
    /// Returns the tree below a process, or `None` if the process is gone.
    pub fn from_pid(first: i32) -> Option<ProcessTree> {
        Some(ProcessTree { first, began: ProcessStat::read(first)?.began })
    }

    /// Returns true if the first process still exists.
    pub fn is_alive(&self) -> io::Result<bool> {
        let stat = ProcessStat::read_at(format!("/proc/{}/stat", self.first).as_ref())?;
        Ok(stat.is_some_and(|stat| stat.began == self.began && !stat.is_dead()))
    }

    /// Lists the processes that are stopped now, for example by a shell's job control. These
    /// processes must not be continued with the others.
    pub fn list_stopped(&self) -> io::Result<Vec<i32>> {
        let is_stopped = |pid: &i32| ProcessStat::read(*pid).is_some_and(|stat| stat.state == b'T');
        Ok(self
            .members()?
            .into_iter()
            .map(|pid| pid.as_raw_nonzero().get())
            .filter(is_stopped)
            .collect())
    }

    /// Stops every process below the first process, and returns when none of them runs.
    ///
    /// If a process still runs at the timeout, or the processes cannot be listed, the processes
    /// that were stopped are continued.
    pub fn stop(&self) -> io::Result<()> {
        let mut stopped = Vec::new();
        self.stop_all(&mut stopped).inspect_err(|_| resume_processes(stopped.into_iter().rev()))
    }

    /// Stops every process as [`ProcessTree::stop`] does, and adds each process that got SIGSTOP to
    /// `told`.
    fn stop_all(&self, stopped: &mut Vec<Pid>) -> io::Result<()> {
        let (deadline, mut looks) = (Instant::now() + STOP_TIMEOUT, 0);
        while looks < STOPPED_PASSES {
            if !self.is_alive()? {
                return Err(io::ErrorKind::NotFound.into());
            }
            let running: Vec<Pid> =
                self.members()?.into_iter().filter(|pid| !is_at_rest(*pid)).collect();
            // Members are listed parent first, so that a parent is stopped before it can see its
            // child stop.
            for pid in &running {
                let _ = kill_process(*pid, Signal::STOP); // the process may have ended meanwhile
            }
            looks = if running.is_empty() { looks + 1 } else { 0 };
            stopped.extend(running);
            if Instant::now() > deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Continues every process below the first process, except those in `except`. Returns an error
    /// if the processes cannot all be listed.
    pub fn resume(&self, except: &[i32]) -> io::Result<()> {
        if self.is_alive()? {
            let is_meant = |pid: &Pid| !except.contains(&pid.as_raw_nonzero().get());
            resume_processes(self.members()?.into_iter().rev().filter(is_meant));
        }
        Ok(())
    }

    /// Returns the id of the first process.
    pub(crate) fn first(&self) -> i32 {
        self.first
    }

    /// Lists the processes below the first process, by the fastest method that the kernel offers.
    pub(crate) fn list_members(&self) -> Vec<i32> {
        match lists_children() {
            true => listed_descendants(self.first),
            false => Snapshot::take().descendants(self.first, &[]),
        }
    }

    fn members(&self) -> io::Result<Vec<Pid>> {
        let members = Snapshot::take_complete()?.descendants(self.first, &[]);
        Ok(members.into_iter().filter_map(Pid::from_raw).collect())
    }
}

/// Resources that a process tree uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TreeUsage {
    /// Processor time of the tree's processes so far, including ended processes that were waited
    /// for.
    pub processor_time: Duration,
    /// Resident memory of the tree's processes, in bytes. Memory that several processes share
    /// counts for each of them.
    pub memory: u64,
}

impl TreeUsage {
    /// Measures the current use of each tree. The result has `None` for a tree that is gone.
    pub fn measure_all(trees: &[Option<ProcessTree>]) -> Vec<Option<TreeUsage>> {
        // If the kernel does not list children, all processes of the host are read, but only once.
        let snapshot = (!lists_children()).then(Snapshot::take);
        let below = |first| {
            snapshot
                .as_ref()
                .map_or_else(|| listed_descendants(first), |all| all.descendants(first, &[]))
        };
        trees.iter().map(|tree| TreeUsage::measure((*tree)?, below)).collect()
    }

    fn measure(tree: ProcessTree, below: impl Fn(i32) -> Vec<i32>) -> Option<TreeUsage> {
        let first = ProcessStat::read(tree.first).filter(|stat| stat.began == tree.began)?;
        let all = below(tree.first).into_iter().filter_map(ProcessStat::read).chain([first]);
        let (ticks, pages) =
            all.fold((0, 0), |(ticks, pages), stat| (ticks + stat.ticks, pages + stat.pages));
        let processor_time =
            Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64);
        Some(TreeUsage { processor_time, memory: pages * rustix::param::page_size() as u64 })
    }
}

/// Continues processes. Callers pass children before their parents, so that a parent does not see
/// its child stopped.
fn resume_processes(processes: impl Iterator<Item = Pid>) {
    for pid in processes {
        let _ = kill_process(pid, Signal::CONT); // the process may have been killed while stopped
    }
}

/// Returns the state of each existing thread of a process.
fn thread_states(pid: i32) -> io::Result<Vec<u8>> {
    let threads = fs_err::read_dir(format!("/proc/{pid}/task"))?;
    let stats = threads
        .flatten()
        .filter_map(|thread| ProcessStat::read_at(&thread.path().join("stat")).transpose());
    stats.map(|stat| Ok(stat?.state)).collect()
}

/// Returns true if no thread of a process runs, or can run before SIGCONT. A process whose threads
/// cannot be read counts as running, unless it is gone.
fn is_at_rest(process: Pid) -> bool {
    let pid = process.as_raw_nonzero().get();
    let Ok(states) = thread_states(pid) else {
        return test_kill_process(process) == Err(Errno::SRCH);
    };
    if states.iter().any(|state| !matches!(state, b'T' | b't' | b'D' | b'Z' | b'X')) {
        return false;
    }
    // A stop always affects all threads of a process. A thread in state D waits for a disk, or for
    // a stopped child of vfork(2): it does not run, and a pending stop takes effect before it runs
    // again.
    !states.contains(&b'D')
        || states.iter().any(|state| matches!(state, b'T' | b't'))
        || has_pending_stop(pid)
}

/// Returns true if SIGSTOP is pending for a process.
fn has_pending_stop(pid: i32) -> bool {
    let status = fs_err::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    pending
        .and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .is_some_and(|set| set & STOP_BIT != 0)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Processor time that the first process of a tree may use while the tree is stopped.
    const CPU_TOLERANCE: Duration = Duration::from_millis(10);

    fn processor_time(tree: ProcessTree) -> Duration {
        let [footprint] = TreeUsage::measure_all(&[Some(tree)])[..] else {
            panic!("there is one for each")
        };
        footprint.unwrap().processor_time
    }

    /// A process tree whose first process waits. Dropping the value ends the tree.
    struct TestTree(Child);

    impl TestTree {
        fn from_script(script: &str) -> TestTree {
            let mut command = Command::new("sh");
            // The waiting shell stands for the first process, which is never stopped.
            TestTree(
                command
                    .args(["-c", &format!("({script}) & wait; :")])
                    .stdout(Stdio::null())
                    .spawn()
                    .unwrap(),
            )
        }

        fn tree(&self) -> ProcessTree {
            ProcessTree::from_pid(self.0.id() as i32).unwrap()
        }

        /// Waits until `count` processes are below the first process.
        fn wait_for_members(&self, count: usize) -> ProcessTree {
            let (tree, deadline) = (self.tree(), Instant::now() + Duration::from_secs(20));
            while tree.members().unwrap().len() < count {
                assert!(Instant::now() < deadline, "they do not come");
                thread::sleep(POLL_INTERVAL);
            }
            tree
        }
    }

    impl Drop for TestTree {
        fn drop(&mut self) {
            for pid in self.tree().members().unwrap() {
                let _ = kill_process(pid, Signal::KILL); // the process may have ended
            }
            let _ = self.0.kill(); // see above
            let _ = self.0.wait(); // see above
        }
    }

    #[test]
    fn a_stopped_tree_uses_no_processor_time_and_resumes() {
        let trial = TestTree::from_script("while :; do :; done & while :; do :; done");
        let tree = trial.wait_for_members(2);
        let deadline = Instant::now() + Duration::from_secs(20);
        let wait_for_more = |than: Duration| {
            while processor_time(tree) <= than {
                assert!(Instant::now() < deadline, "it does not run");
                thread::sleep(POLL_INTERVAL);
            }
        };
        wait_for_more(Duration::ZERO);
        tree.stop().unwrap();
        let before = processor_time(tree);
        thread::sleep(Duration::from_millis(200));
        assert!(processor_time(tree) <= before + CPU_TOLERANCE);
        assert!(tree.is_alive().unwrap());
        tree.resume(&[]).unwrap();
        wait_for_more(before);
    }

    #[test]
    fn a_tree_that_forks_constantly_can_be_stopped() {
        let trial = TestTree::from_script("while :; do (:) & wait; done");
        let tree = trial.wait_for_members(1);
        tree.stop().unwrap();
        let before = processor_time(tree);
        thread::sleep(Duration::from_millis(200));
        assert!(processor_time(tree) <= before + CPU_TOLERANCE);
    }

    #[test]
    fn processes_that_were_stopped_before_are_not_resumed() {
        let trial = TestTree::from_script("sleep 600 & kill -STOP $!; sleep 600 & wait; :");
        // Every process runs in the background, because a shell starts a foreground command with
        // vfork(2) and cannot be stopped until that is done.
        let tree = trial.wait_for_members(3);
        let deadline = Instant::now() + Duration::from_secs(20);
        while tree.list_stopped().unwrap().is_empty() {
            assert!(Instant::now() < deadline, "it is not stopped");
            thread::sleep(POLL_INTERVAL);
        }
        let before = tree.list_stopped().unwrap();
        assert_eq!(before.len(), 1);
        tree.stop().unwrap();
        assert_eq!(tree.list_stopped().unwrap().len(), 3);
        tree.resume(&before).unwrap();
        while tree.list_stopped().unwrap() != before {
            assert!(Instant::now() < deadline, "the rest does not go on");
            thread::sleep(POLL_INTERVAL);
        }
    }

    #[test]
    fn a_reused_process_id_is_no_tree() {
        let tree = ProcessTree::from_pid(std::process::id() as i32).unwrap();
        let other = ProcessTree { began: tree.began + 1, ..tree };
        assert!(tree.is_alive().unwrap() && !other.is_alive().unwrap());
        assert_eq!(other.stop().unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(TreeUsage::measure_all(&[Some(other), None]), [None, None]);
    }
}
