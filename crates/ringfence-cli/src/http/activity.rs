//! What is run in a sandbox through this server, as it happens: the commands and cells that clients start, and how they
//! end. It is seen in what is carried, kept in memory, and believed as far as the sandbox's guest is.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::{Semaphore, watch};

/// How many executions are remembered of a sandbox.
const MOST: usize = 200;
/// How much of a command or of code is remembered, in characters.
const LONGEST_WORDS: usize = 1000;
/// How many clients watch a sandbox at once.
const MOST_WATCHERS: usize = 16;

/// What was run in a sandbox, and is.
#[derive(Debug)]
pub(super) struct Activity {
    kept: Mutex<VecDeque<Execution>>,
    /// How many changes there were.
    changes: watch::Sender<u64>,
    /// Room for those who watch.
    pub(super) watchers: Arc<Semaphore>,
}

/// Something that was run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Execution {
    id: u64,
    began: Timestamp,
    kind: Kind,
    /// The command and its arguments, or the code.
    words: Vec<String>,
    #[serde(flatten)]
    state: State,
    /// The change that made it what it is.
    #[serde(skip)]
    change: u64,
}

/// What was run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Command,
    Terminal,
    Code,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub(super) enum State {
    Running,
    /// It ended, in words.
    Ended {
        at: Timestamp,
        ok: bool,
        status: String,
    },
    /// Its client went away: a command may still run, and nobody here hears of its end.
    Left {
        at: Timestamp,
    },
}

impl Default for Activity {
    fn default() -> Activity {
        let watchers = Arc::new(Semaphore::new(MOST_WATCHERS));
        Activity { kept: Mutex::default(), changes: watch::Sender::default(), watchers }
    }
}

impl Activity {
    /// Remembers that something is run.
    pub(super) fn begin(self: &Arc<Activity>, kind: Kind, words: Vec<String>) -> Begun {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let change = self.next_change();
        kept.push_back(Execution {
            id: change,
            began: Timestamp::now(),
            kind,
            words: bounded(words),
            state: State::Running,
            change,
        });
        if kept.len() > MOST {
            kept.pop_front();
        }
        Begun { activity: Arc::clone(self), id: change }
    }

    fn settle(&self, id: u64, state: State) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // It may be forgotten already.
        if let Some(execution) = kept.iter_mut().find(|execution| execution.id == id)
            && execution.state == State::Running
        {
            execution.state = state;
            execution.change = self.next_change();
        }
    }

    /// Counts a change and tells those who watch; they find it once they get the lock.
    fn next_change(&self) -> u64 {
        let mut change = 0;
        self.changes.send_modify(|changes| {
            *changes += 1;
            change = *changes;
        });
        change
    }

    /// How many changes there were, now and later.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        let mut changes = self.changes.subscribe();
        changes.mark_changed();
        changes
    }

    /// What began or changed after a change, and the last change that it knows of.
    pub(super) fn after(&self, change: u64) -> (Vec<Execution>, u64) {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let later = kept.iter().filter(|execution| execution.change > change).cloned().collect();
        (later, *self.changes.borrow())
    }
}

/// Something that is run. Whoever drops it hears no more of it.
#[derive(Debug)]
pub(super) struct Begun {
    activity: Arc<Activity>,
    id: u64,
}

impl Begun {
    /// It has ended.
    pub(super) fn ended(&self, ok: bool, status: impl Into<String>) {
        let status = status.into().chars().take(LONGEST_WORDS).collect();
        self.activity.settle(self.id, State::Ended { at: Timestamp::now(), ok, status });
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.activity.settle(self.id, State::Left { at: Timestamp::now() });
    }
}

fn bounded(words: Vec<String>) -> Vec<String> {
    let mut left = LONGEST_WORDS;
    let mut kept = Vec::new();
    for word in words {
        if left == 0 {
            break;
        }
        let short: String = word.chars().take(left).collect();
        left = left.saturating_sub(short.chars().count() + 1); // an empty word costs, too
        kept.push(short);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_is_told_once_and_the_oldest_are_forgotten() {
        let activity = Arc::new(Activity::default());
        let begun: Vec<Begun> = (0..MOST + 1).map(|n| activity.begin(Kind::Command, vec![n.to_string()])).collect();
        let (all, seen) = activity.after(0);
        assert_eq!((all.len(), all[0].words.as_slice()), (MOST, &["1".to_owned()][..]));
        assert_eq!(activity.after(seen).0, []);
        begun[0].ended(true, "forgotten");
        begun[5].ended(false, "exit status 3");
        let (changed, seen) = activity.after(seen);
        let [changed] = changed.as_slice() else { panic!("{changed:?}") };
        assert!(matches!(&changed.state, State::Ended { ok: false, status, .. } if status == "exit status 3"));
        drop(begun);
        assert_eq!(activity.after(seen).0.len(), MOST - 1, "one that has ended does not change any more");
    }

    #[test]
    fn long_words_are_cut_short() {
        let words = bounded(vec!["ä".repeat(LONGEST_WORDS - 2), "bc".to_owned(), "d".to_owned()]);
        assert_eq!(words.iter().map(|word| word.chars().count()).collect::<Vec<_>>(), [LONGEST_WORDS - 2, 1]);
        assert_eq!(bounded(vec![String::new(); 100_000]).len(), LONGEST_WORDS);
    }
}
