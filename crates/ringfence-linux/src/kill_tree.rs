//! Ending a process tree, as process 1 of its pid namespace or as its subreaper, until none is
//! left.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::processes::descendants;
use crate::sys::process::{WaitedChild, kill_all_others, wait_any};

/// The result of ending a tree.
#[derive(Debug)]
pub(crate) struct TreeSweep {
    /// End of the command itself, if the command was among the reaped processes.
    pub(crate) command: Option<WaitedChild>,
    /// True if no descendant is left.
    pub(crate) complete: bool,
}

/// Timeout after which ending a tree is given up and reported as incomplete.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Kills and reaps every other process in the pid namespace whose process 1 this process is.
pub(crate) fn end_namespace(command: Pid) -> TreeSweep {
    reap_until_ended(command, || {
        let _ = kill_all_others(); // ESRCH: no other process exists
    })
}

/// Kills every descendant of `launcher` that is neither one of `firsts` nor below one. Returns
/// false if a process is left.
///
/// The launcher reaps its children by itself.
pub(crate) fn end_strays(launcher: i32, firsts: &[i32]) -> bool {
    /// Limit on the rounds. Each round kills the processes that it finds; the next round finds
    /// their forks.
    const MAX_ROUNDS: usize = 50;
    for _ in 0..MAX_ROUNDS {
        let strays = descendants(launcher, firsts);
        if strays.is_empty() {
            return true;
        }
        stop_and_kill(&strays);
        std::thread::sleep(Duration::from_micros(200));
    }
    false
}

/// Stops all processes before killing the first, so that none forks because another is gone.
fn stop_and_kill(processes: &[Pid]) {
    for signal in [Signal::STOP, Signal::KILL] {
        for pid in processes {
            let _ = kill_process(*pid, signal); // the process may have ended meanwhile
        }
    }
}

/// Kills and reaps every descendant of this process.
///
/// Because a tree may fork while it is killed, each round first stops all processes and then kills
/// them.
pub(crate) fn end_descendants(command: Pid) -> TreeSweep {
    reap_until_ended(command, || {
        stop_and_kill(&descendants(rustix::process::getpid().as_raw_nonzero().get(), &[]))
    })
}

/// Reaps until no child is left, and calls `kill` between rounds to end the remaining processes.
///
/// Orphans become children of this process, so "no child" means "no descendant".
fn reap_until_ended(command: Pid, kill: impl Fn()) -> TreeSweep {
    let deadline = Instant::now() + END_TIMEOUT;
    let mut sweep = TreeSweep { command: None, complete: false };
    // Processes that are already ending get a few rounds first, because searching all processes of
    // a host is costly.
    let mut moments = 5;
    loop {
        match wait_any() {
            Ok(Some(waited)) if libc::WIFSTOPPED(waited.status) => {}
            Ok(Some(waited)) if waited.pid == command.as_raw_nonzero().get() => {
                sweep.command = Some(waited)
            }
            Ok(Some(_)) => {}
            Ok(None) if Instant::now() > deadline => return sweep,
            Ok(None) => {
                if moments == 0 {
                    kill();
                }
                moments = u32::saturating_sub(moments, 1);
                std::thread::sleep(Duration::from_micros(200));
            }
            Err(_) => {
                sweep.complete = true; // ECHILD: no child is left
                return sweep;
            }
        }
    }
}
