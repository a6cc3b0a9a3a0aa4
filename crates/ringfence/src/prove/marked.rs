//! Processes that bear a mark among their arguments, wherever on the host they are.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How often the processes are looked at.
const PACE: Duration = Duration::from_millis(5);

/// How many looks in a row must find nothing.
const LOOKS: u32 = 3;

/// The processes with one mark.
#[derive(Debug)]
pub(super) struct Marked {
    words: Vec<u8>,
    except: Option<u32>,
}

impl Marked {
    pub(super) fn of(mark: &str) -> Marked {
        // As proc_pid_cmdline(5) shows it: each word is ended by a NUL byte.
        Marked { words: format!("\0--mark\0{mark}\0").into_bytes(), except: None }
    }

    /// Those of them that are not `process`.
    pub(super) fn other_than(&self, process: u32) -> Marked {
        Marked { words: self.words.clone(), except: Some(process) }
    }

    /// Waits until there is one; false when there is none in time.
    pub(super) fn appear(&self, within: Duration) -> bool {
        wait(within, || !self.find().is_empty())
    }

    /// Waits until there is none; false when there still is one after that time.
    pub(super) fn vanish(&self, within: Duration) -> bool {
        // In the middle of an exec a process shows no words at all: one look is not enough.
        wait(within, || {
            (0..LOOKS).all(|look| {
                if look > 0 {
                    std::thread::sleep(PACE);
                }
                self.find().is_empty()
            })
        })
    }

    /// Kills them, and says how many there were.
    pub(super) fn end(&self) -> usize {
        let found = self.find();
        for process in &found {
            let _ = kill_process(*process, Signal::KILL); // it may have ended meanwhile
        }
        found.len()
    }

    fn find(&self) -> Vec<Pid> {
        let Ok(entries) = fs_err::read_dir("/proc") else { return Vec::new() };
        let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let is_marked = |id: &u32| {
            let words = fs_err::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            Some(*id) != self.except && words.windows(self.words.len()).any(|part| part == self.words)
        };
        ids.filter(is_marked).filter_map(|id| Pid::from_raw(i32::try_from(id).ok()?)).collect()
    }
}

fn wait(within: Duration, is_so: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    loop {
        if is_so() {
            return true;
        }
        if begun.elapsed() >= within {
            return false;
        }
        std::thread::sleep(PACE);
    }
}
