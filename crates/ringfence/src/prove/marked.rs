//! Finds processes that have a mark among their arguments, anywhere on the host.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Time between two passes over the processes.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Number of consecutive passes that must find no process.
const EMPTY_PASSES: u32 = 3;

/// The processes that have one mark.
#[derive(Debug)]
pub(super) struct MarkedProcesses {
    words: Vec<u8>,
    except: Option<u32>,
}

impl MarkedProcesses {
    pub(super) fn from_mark(mark: &str) -> MarkedProcesses {
        // proc_pid_cmdline(5) shows each argument with a NUL byte at its end.
        MarkedProcesses { words: format!("\0--mark\0{mark}\0").into_bytes(), except: None }
    }

    /// Returns a selection of the same processes without `process`.
    pub(super) fn other_than(&self, process: u32) -> MarkedProcesses {
        MarkedProcesses { words: self.words.clone(), except: Some(process) }
    }

    /// Waits until a marked process exists. Returns false if none appears in the time `within`.
    pub(super) fn wait_for_any(&self, within: Duration) -> bool {
        wait_until(within, || !self.find().is_empty())
    }

    /// Waits until no marked process exists. Returns false if one still exists at the end of the
    /// time `within`.
    pub(super) fn wait_for_none(&self, within: Duration) -> bool {
        // One pass is not enough, because a process shows no arguments at all during an exec.
        wait_until(within, || {
            (0..EMPTY_PASSES).all(|pass| {
                if pass > 0 {
                    std::thread::sleep(POLL_INTERVAL);
                }
                self.find().is_empty()
            })
        })
    }

    /// Kills the marked processes, and returns their number.
    pub(super) fn kill(&self) -> usize {
        let found = self.find();
        for process in &found {
            let _ = kill_process(*process, Signal::KILL); // the process may have ended already
        }
        found.len()
    }

    fn find(&self) -> Vec<Pid> {
        let Ok(entries) = fs_err::read_dir("/proc") else { return Vec::new() };
        let ids =
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let is_marked = |id: &u32| {
            let words = fs_err::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            Some(*id) != self.except
                && words.windows(self.words.len()).any(|part| part == self.words)
        };
        ids.filter(is_marked).filter_map(|id| Pid::from_raw(i32::try_from(id).ok()?)).collect()
    }
}

fn wait_until(within: Duration, condition: impl Fn() -> bool) -> bool {
    let started = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if started.elapsed() >= within {
            return false;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
