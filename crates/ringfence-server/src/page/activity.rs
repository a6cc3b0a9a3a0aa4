//! Record of the executions in a sandbox that go through this server: the commands and cells that
//! clients start, and how they end. The server sees them in the messages that it forwards and keeps
//! them in memory.
//!
//! The start of an execution is the server's own knowledge. The end is only what the sandbox says,
//! and code in the sandbox may have replaced the guest.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use ringfence_proto::process::ProcessConfig;
use serde::Serialize;
use tokio::sync::{Semaphore, watch};

/// Maximum number of executions that are kept per sandbox.
const MAX_EXECUTIONS: usize = 200;
/// Maximum length of a command or of code that is kept, in characters.
const LONGEST_WORDS: usize = 1000;
/// Maximum number of names of variables that are kept per command.
const MOST_VARIABLES: usize = 20;
/// Maximum length of the name of a variable, in characters.
const LONGEST_NAME: usize = 100;
/// Maximum number of clients that watch one sandbox at once.
const MOST_WATCHERS: usize = 16;

/// Executions of a sandbox, past and running.
#[derive(Debug)]
pub(crate) struct Activity {
    kept: Mutex<VecDeque<ExecutionRecord>>,
    /// Number of changes so far.
    changes: watch::Sender<u64>,
    /// Permits for clients that watch the sandbox.
    pub(crate) watchers: Arc<Semaphore>,
}

/// Command or cell that was run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExecutionRecord {
    id: u64,
    began: Timestamp,
    #[serde(flatten)]
    what: ExecutionInfo,
    #[serde(flatten)]
    state: ExecutionState,
    /// Number of the change that gave the execution its current state.
    #[serde(skip)]
    change: u64,
}

/// Command or code that was started, as the server forwarded it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExecutionInfo {
    kind: ExecutionKind,
    /// Command with its arguments, or the code. `None` if the message was too long to be read by
    /// the server.
    words: Option<Vec<String>>,
    /// Number of characters that are omitted at the end of `words`.
    omitted: usize,
    /// Directory in which the command starts, if the client named one.
    directory: Option<String>,
    /// Names of the variables that the client adds to those of the sandbox. Variables such as
    /// `PATH` and `LD_PRELOAD` decide what a command does. Their values are not kept, because they
    /// may be secrets.
    variables: Vec<String>,
    /// Number of names that are omitted from `variables`.
    omitted_variables: usize,
}

impl ExecutionInfo {
    /// Describes a cell of code.
    pub(crate) fn code(code: String) -> ExecutionInfo {
        let (words, omitted) = bounded([code]);
        ExecutionInfo {
            kind: ExecutionKind::Code,
            words: Some(words),
            omitted,
            ..ExecutionInfo::unread(ExecutionKind::Code)
        }
    }

    /// Describes a command with its directory and variables.
    pub(crate) fn command(kind: ExecutionKind, process: ProcessConfig) -> ExecutionInfo {
        let ProcessConfig { cmd, args, envs, cwd } = process;
        let (words, omitted) = bounded(std::iter::once(cmd).chain(args));
        let omitted_variables = envs.len().saturating_sub(MOST_VARIABLES);
        let variables = envs
            .into_keys()
            .take(MOST_VARIABLES)
            .map(|name| shortened(&name, LONGEST_NAME))
            .collect();
        let directory = cwd.map(|directory| shortened(&directory, LONGEST_WORDS));
        ExecutionInfo {
            words: Some(words),
            omitted,
            directory,
            variables,
            omitted_variables,
            ..ExecutionInfo::unread(kind)
        }
    }

    /// Describes an execution whose message was too long to be read.
    pub(crate) fn unread(kind: ExecutionKind) -> ExecutionInfo {
        ExecutionInfo {
            kind,
            words: None,
            omitted: 0,
            directory: None,
            variables: Vec::new(),
            omitted_variables: 0,
        }
    }
}

/// Returns the beginning of a text, with an ellipsis if the text is longer than `longest`
/// characters.
fn shortened(text: &str, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Form of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ExecutionKind {
    Command,
    Terminal,
    Code,
}

/// State of an execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub(crate) enum ExecutionState {
    Running,
    /// The execution ended; `status` describes how.
    Ended {
        at: Timestamp,
        ok: bool,
        status: String,
    },
    /// The client disconnected. A command may still run, but the server does not learn of its end.
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
    /// Records the start of an execution.
    pub(crate) fn begin(self: &Arc<Activity>, what: ExecutionInfo) -> ExecutionHandle {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let change = self.next_change();
        kept.push_back(ExecutionRecord {
            id: change,
            began: Timestamp::now(),
            what,
            state: ExecutionState::Running,
            change,
        });
        if kept.len() > MAX_EXECUTIONS {
            kept.pop_front();
        }
        ExecutionHandle { activity: Arc::clone(self), id: change }
    }

    fn settle(&self, id: u64, state: ExecutionState) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // The execution may already have been dropped from the record.
        if let Some(execution) = kept.iter_mut().find(|execution| execution.id == id)
            && execution.state == ExecutionState::Running
        {
            execution.state = state;
            execution.change = self.next_change();
        }
    }

    /// Counts a change and notifies the watchers. The watchers see the change once they get the
    /// lock.
    fn next_change(&self) -> u64 {
        let mut change = 0;
        self.changes.send_modify(|changes| {
            *changes += 1;
            change = *changes;
        });
        change
    }

    /// Returns a receiver of the number of changes, which reports the current number first.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        let mut changes = self.changes.subscribe();
        changes.mark_changed();
        changes
    }

    /// Returns the executions that began or changed after `change`, and the number of the latest
    /// change.
    pub(crate) fn after(&self, change: u64) -> (Vec<ExecutionRecord>, u64) {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let later = kept.iter().filter(|execution| execution.change > change).cloned().collect();
        (later, *self.changes.borrow())
    }
}

/// Handle of a running execution. Dropping the handle marks the execution as left.
#[derive(Debug)]
pub(crate) struct ExecutionHandle {
    activity: Arc<Activity>,
    id: u64,
}

impl ExecutionHandle {
    /// Records the end of the execution.
    pub(crate) fn ended(&self, ok: bool, status: impl Into<String>) {
        let status = status.into().chars().take(LONGEST_WORDS).collect();
        self.activity.settle(self.id, ExecutionState::Ended { at: Timestamp::now(), ok, status });
    }
}

impl Drop for ExecutionHandle {
    fn drop(&mut self) {
        self.activity.settle(self.id, ExecutionState::Left { at: Timestamp::now() });
    }
}

/// Returns the first [`LONGEST_WORDS`] characters of some words, and the number of omitted
/// characters. Each gap between two words counts as one character.
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
        left = left.saturating_sub(length + 1); // an empty word counts as one character, too
        kept.push(short);
    }
    (kept, omitted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_reported_once_and_the_oldest_are_forgotten() {
        let activity = Arc::new(Activity::default());
        let begun: Vec<ExecutionHandle> = (0..MAX_EXECUTIONS + 1)
            .map(|n| activity.begin(ExecutionInfo::code(n.to_string())))
            .collect();
        let (all, seen) = activity.after(0);
        assert_eq!(
            (all.len(), &all[0].what),
            (MAX_EXECUTIONS, &ExecutionInfo::code("1".to_owned()))
        );
        assert_eq!(activity.after(seen).0, []);
        begun[0].ended(true, "forgotten");
        begun[5].ended(false, "exit status 3");
        let (changed, seen) = activity.after(seen);
        let [changed] = changed.as_slice() else { panic!("{changed:?}") };
        assert!(matches!(
            &changed.state,
            ExecutionState::Ended { ok: false, status, .. } if status == "exit status 3"
        ));
        drop(begun);
        assert_eq!(
            activity.after(seen).0.len(),
            MAX_EXECUTIONS - 1,
            "one that has ended does not change any more"
        );
    }

    #[test]
    fn long_words_are_cut_short_and_what_is_left_out_is_counted() {
        let (words, omitted) =
            bounded(["ä".repeat(LONGEST_WORDS - 2), "bc".to_owned(), "d".to_owned()]);
        assert_eq!(
            words.iter().map(|word| word.chars().count()).collect::<Vec<_>>(),
            [LONGEST_WORDS - 2, 1]
        );
        assert_eq!(omitted, "c d".len());
        let (words, omitted) = bounded(vec![String::new(); 100_000]);
        assert_eq!(words.len() + omitted, 100_000);
        assert_eq!(bounded(["x".repeat(LONGEST_WORDS)]).1, 0);
        assert_eq!(bounded([" ".repeat(LONGEST_WORDS), "rm".to_owned()]).1, 3);
    }

    #[test]
    fn a_command_is_reported_with_its_directory_and_the_names_of_its_variables() {
        let envs = (0..30)
            .map(|number| (format!("V{number:02}{}", "x".repeat(200)), "secret".to_owned()))
            .collect();
        let process = ProcessConfig {
            cmd: "ls".to_owned(),
            args: Vec::new(),
            envs,
            cwd: Some("/tmp".to_owned()),
        };
        let told =
            serde_json::to_value(ExecutionInfo::command(ExecutionKind::Command, process)).unwrap();
        assert_eq!(
            (&told["words"], &told["directory"]),
            (&serde_json::json!(["ls"]), &serde_json::json!("/tmp"))
        );
        assert_eq!(
            (told["variables"].as_array().unwrap().len(), &told["omittedVariables"]),
            (20, &10.into())
        );
        assert!(told["variables"][0].as_str().unwrap().ends_with("x…"));
        assert!(!told.to_string().contains("secret"));
        assert!(
            serde_json::to_value(ExecutionInfo::unread(ExecutionKind::Terminal)).unwrap()["words"]
                .is_null()
        );
    }
}
