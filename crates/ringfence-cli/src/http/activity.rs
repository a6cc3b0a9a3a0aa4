//! What is run in a sandbox through this server, as it happens: the commands and cells that clients start, and how they
//! end. It is seen in what is carried, and kept in memory. What was started is the server's own knowledge; how it ended
//! is what the sandbox says, whose code may have taken the place of its guest.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use ringfence_proto::process::ProcessConfig;
use serde::Serialize;
use tokio::sync::{Semaphore, watch};

/// How many executions are remembered of a sandbox.
const MOST: usize = 200;
/// How much of a command or of code is remembered, in characters.
const LONGEST_WORDS: usize = 1000;
/// The number of variables that are remembered of a command, by their names, and the length of each name.
const MOST_VARIABLES: usize = 20;
const LONGEST_NAME: usize = 100;
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
    #[serde(flatten)]
    what: What,
    #[serde(flatten)]
    state: State,
    /// The change that made it what it is.
    #[serde(skip)]
    change: u64,
}

/// What was started, as it was passed on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct What {
    kind: Kind,
    /// The command and its arguments, or the code; nothing where that was too long to be read on its way.
    words: Option<Vec<String>>,
    /// How many characters of them are left out at the end.
    omitted: usize,
    /// The directory that a command is started in, where its client said.
    directory: Option<String>,
    /// The names of the variables that it is started with besides the sandbox's. They decide what a command does, as
    /// `PATH` and `LD_PRELOAD` do; their values may be secrets.
    variables: Vec<String>,
    /// How many names of those are left out.
    omitted_variables: usize,
}

impl What {
    /// A cell of code.
    pub(super) fn code(code: String) -> What {
        let (words, omitted) = bounded([code]);
        What { kind: Kind::Code, words: Some(words), omitted, ..What::unread(Kind::Code) }
    }

    /// A command.
    pub(super) fn command(kind: Kind, process: ProcessConfig) -> What {
        let ProcessConfig { cmd, args, envs, cwd } = process;
        let (words, omitted) = bounded(std::iter::once(cmd).chain(args));
        let omitted_variables = envs.len().saturating_sub(MOST_VARIABLES);
        let variables = envs.into_keys().take(MOST_VARIABLES).map(|name| shortened(&name, LONGEST_NAME)).collect();
        let directory = cwd.map(|directory| shortened(&directory, LONGEST_WORDS));
        What { words: Some(words), omitted, directory, variables, omitted_variables, ..What::unread(kind) }
    }

    /// Something that was too long to be read on its way.
    pub(super) fn unread(kind: Kind) -> What {
        What { kind, words: None, omitted: 0, directory: None, variables: Vec::new(), omitted_variables: 0 }
    }
}

/// The beginning of a text, with a mark at its end if there is more.
fn shortened(text: &str, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The form of what was run.
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
    pub(super) fn begin(self: &Arc<Activity>, what: What) -> Begun {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let change = self.next_change();
        kept.push_back(Execution { id: change, began: Timestamp::now(), what, state: State::Running, change });
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

/// The beginning of some words, and how many characters are left out. Between two words one is counted.
fn bounded(words: impl IntoIterator<Item = String>) -> (Vec<String>, usize) {
    let (mut left, mut omitted) = (LONGEST_WORDS, 0);
    let mut kept = Vec::new();
    for word in words {
        let length = word.chars().count();
        if left == 0 {
            omitted += length + 1;
            continue;
        }
        let short: String = word.chars().take(left).collect();
        omitted += length.saturating_sub(left);
        left = left.saturating_sub(length + 1); // an empty word costs, too
        kept.push(short);
    }
    (kept, omitted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_is_told_once_and_the_oldest_are_forgotten() {
        let activity = Arc::new(Activity::default());
        let begun: Vec<Begun> = (0..MOST + 1).map(|n| activity.begin(What::code(n.to_string()))).collect();
        let (all, seen) = activity.after(0);
        assert_eq!((all.len(), &all[0].what), (MOST, &What::code("1".to_owned())));
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
    fn long_words_are_cut_short_and_what_is_left_out_is_counted() {
        let (words, omitted) = bounded(["ä".repeat(LONGEST_WORDS - 2), "bc".to_owned(), "d".to_owned()]);
        assert_eq!(words.iter().map(|word| word.chars().count()).collect::<Vec<_>>(), [LONGEST_WORDS - 2, 1]);
        assert_eq!(omitted, "c d".len());
        let (words, omitted) = bounded(vec![String::new(); 100_000]);
        assert_eq!(words.len() + omitted, 100_000);
        assert_eq!(bounded(["x".repeat(LONGEST_WORDS)]).1, 0);
        assert_eq!(bounded([" ".repeat(LONGEST_WORDS), "rm".to_owned()]).1, 3);
    }

    #[test]
    fn a_command_is_told_with_its_directory_and_the_names_of_its_variables() {
        let envs = (0..30).map(|number| (format!("V{number:02}{}", "x".repeat(200)), "secret".to_owned())).collect();
        let process = ProcessConfig { cmd: "ls".to_owned(), args: Vec::new(), envs, cwd: Some("/tmp".to_owned()) };
        let told = serde_json::to_value(What::command(Kind::Command, process)).unwrap();
        assert_eq!((&told["words"], &told["directory"]), (&serde_json::json!(["ls"]), &serde_json::json!("/tmp")));
        assert_eq!((told["variables"].as_array().unwrap().len(), &told["omittedVariables"]), (20, &10.into()));
        assert!(told["variables"][0].as_str().unwrap().ends_with("x…"));
        assert!(!told.to_string().contains("secret"));
        assert!(serde_json::to_value(What::unread(Kind::Terminal)).unwrap()["words"].is_null());
    }
}
