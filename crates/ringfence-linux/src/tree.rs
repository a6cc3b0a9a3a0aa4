//! Ending a process tree: as process 1 of its pid namespace, or as its subreaper, until nobody is left.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::processes::below;
use crate::sys::process::{Waited, kill_everyone, wait_any};

/// What became of a sweep.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// The command's own end, when it was among what was reaped.
    pub(crate) command: Option<Waited>,
    /// Whether no descendant is left.
    pub(crate) complete: bool,
}

/// How long a tree may take to die before it is given up and said to be so.
const PATIENCE: Duration = Duration::from_secs(5);

/// Kills and reaps everybody else in the pid namespace that this process is the first of.
pub(crate) fn end_namespace(command: Pid) -> Sweep {
    end(command, || {
        let _ = kill_everyone(); // ESRCH: nobody but us
    })
}

/// Kills every descendant of `launcher` that is not, and is not below, one of `firsts`. False when somebody is left.
/// The launcher reaps by itself.
pub(crate) fn end_strays(launcher: i32, firsts: &[i32]) -> bool {
    /// Each round kills whom it sees; those who fork meanwhile are seen by the next.
    const ROUNDS: usize = 50;
    for _ in 0..ROUNDS {
        let strays = below(launcher, firsts);
        if strays.is_empty() {
            return true;
        }
        stop_and_kill(&strays);
        std::thread::sleep(Duration::from_micros(200));
    }
    false
}

/// Stops all of them before it kills the first, so that none forks because another is gone.
fn stop_and_kill(processes: &[Pid]) {
    for signal in [Signal::STOP, Signal::KILL] {
        for pid in processes {
            let _ = kill_process(*pid, signal); // it may have ended meanwhile
        }
    }
}

/// Kills and reaps every descendant of this process. A tree that forks as it is killed is stopped first, then
/// killed, round after round.
pub(crate) fn end_descendants(command: Pid) -> Sweep {
    end(command, || stop_and_kill(&below(rustix::process::getpid().as_raw_nonzero().get(), &[])))
}

/// Reaps until there is no child, and has `kill` kill what is left between two rounds. Orphans come to us, so "no
/// child" means "no descendant".
fn end(command: Pid, kill: impl Fn()) -> Sweep {
    let deadline = Instant::now() + PATIENCE;
    let mut sweep = Sweep { command: None, complete: false };
    // What is ending by itself is given a moment: looking for it among all processes of a host is costly.
    let mut moments = 5;
    loop {
        match wait_any() {
            Ok(Some(waited)) if libc::WIFSTOPPED(waited.status) => {}
            Ok(Some(waited)) if waited.pid == command.as_raw_nonzero().get() => sweep.command = Some(waited),
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
                sweep.complete = true; // ECHILD: none left
                return sweep;
            }
        }
    }
}
