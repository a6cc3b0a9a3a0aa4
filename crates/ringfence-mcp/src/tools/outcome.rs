//! Result of a command, in the form that a model sees.

use std::fmt::{self, Display};
use std::time::Duration;

use ringfence::{ExecutionResult, Manifest};
use schemars::JsonSchema;
use serde::Serialize;

use crate::tool_result::write_notes;

/// Maximum number of bytes of each stream that a model is shown: about eight thousand tokens.
pub(crate) const LONGEST_OUTPUT: usize = 32 << 10;
/// Maximum number of denials that get a note each.
const MOST_DENIALS: usize = 5;
/// Messages of programs that cannot reach the network, in lower case.
const NETWORK_ERROR_TEXTS: [&str; 8] = [
    "could not resolve host",
    "temporary failure in name resolution",
    "name or service not known",
    "network is unreachable",
    "getaddrinfo",
    "no such host",
    "failed to lookup address",
    "could not resolve proxy",
];

/// Result of a command, or of code, that has ended.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct Outcome {
    /// True if the command exited with code 0 within its time limit.
    pub(crate) ok: bool,
    /// Exit code of the command; null if a signal ended the command, or if nothing was run.
    pub(crate) exit_code: Option<i32>,
    /// Number of the signal that ended the command; otherwise null.
    pub(crate) signal: Option<i32>,
    /// True if the command was ended because its time limit was reached.
    pub(crate) timed_out: bool,
    /// Text that the command wrote to standard output. Of more than 32 KiB, only the beginning and
    /// the end are returned.
    pub(crate) stdout: String,
    /// Text that the command wrote to standard error. Of more than 32 KiB, only the beginning and
    /// the end are returned.
    pub(crate) stderr: String,
    /// Number of bytes of both streams that were left out.
    pub(crate) left_out: u64,
    /// Time from the start of the command to its end, in seconds.
    pub(crate) seconds: f64,
    /// Attempts that the policy denied while the command ran, such as connections to hosts.
    pub(crate) denials: Vec<String>,
    /// Further facts about the result, such as a limit that was reached, and suggestions for the
    /// next call.
    pub(crate) notes: Vec<String>,
}

impl Outcome {
    /// Creates the outcome from a result. `time` is the time limit that the command had, `longest`
    /// the maximum that a client can ask for.
    pub(crate) fn from_result(
        result: ExecutionResult,
        manifest: &Manifest,
        time: Duration,
        longest: Duration,
    ) -> Outcome {
        let mut notes = remarks(&result, manifest);
        if result.timed_out {
            let most = longest.min(policy_time(manifest));
            let way = if time < most {
                format!(
                    "set a larger `timeout`, at most {} s, or start the command with start_process",
                    most.as_secs()
                )
            } else {
                "start a longer command with start_process".to_owned()
            };
            notes.push(format!(
                "the command was ended after {} s, together with all processes that it started; \
                 {way}",
                time.as_secs_f64()
            ));
        }
        let (stdout, from_stdout) = shorten(result.stdout, LONGEST_OUTPUT);
        let (stderr, from_stderr) = shorten(result.stderr, LONGEST_OUTPUT);
        let left_out = result.dropped.stdout + result.dropped.stderr + from_stdout + from_stderr;
        if left_out > 0 {
            notes.push(format!(
                "{left_out} bytes in the middle of the output were left out; filter the output \
                 with grep, head or tail, or write it to a file and read parts of the file with \
                 read_file"
            ));
        }
        Outcome {
            ok: result.ok,
            exit_code: result.exit_code,
            signal: result.signal,
            timed_out: result.timed_out,
            stdout,
            stderr,
            left_out,
            seconds: (result.duration * 1000.0).round() / 1000.0,
            denials: result.meta.denials.into_iter().map(|denial| denial.what).collect(),
            notes,
        }
    }
}

/// Returns the maximum time that the policy allows a command.
pub(crate) fn policy_time(manifest: &Manifest) -> Duration {
    manifest.limits.time.map_or(Duration::MAX, |time| time.duration())
}

/// Returns notes about a result besides its output: what was denied, which limit was reached, and
/// what to do next.
pub(crate) fn remarks(result: &ExecutionResult, manifest: &Manifest) -> Vec<String> {
    let mut notes = Vec::new();
    let denials = &result.meta.denials;
    for denial in denials.iter().take(MOST_DENIALS) {
        let way = match &denial.allow {
            Some(allow) => format!("only the user can allow this, with `{allow}`"),
            None => "no action in the sandbox can change this".to_owned(),
        };
        notes.push(format!("the policy denied this: {}; {way}", denial.what));
    }
    if denials.len() > MOST_DENIALS {
        notes.push(format!("the policy denied {} more attempts", denials.len() - MOST_DENIALS));
    }
    if manifest.network == ringfence::NetworkReach::Closed
        && !result.ok
        && seems_unreached(&result.stderr)
    {
        notes.push(
            "the network of this sandbox is closed: no host can be reached; only the user can \
             allow hosts, with --allow HOST"
                .to_owned(),
        );
    }
    if result.oom_killed {
        let limit =
            result.meta.limits.memory.map(|memory| format!(" of {memory}")).unwrap_or_default();
        notes.push(format!(
            "the memory limit{limit} was reached, and a process was killed; use less memory at once"
        ));
    }
    notes.extend(
        result
            .meta
            .blocked_imports
            .iter()
            .map(|import| format!("the lint found an import of a listed module: {import}")),
    );
    notes.extend(result.meta.note.clone());
    for planted in &result.meta.planted {
        notes.push(format!(
            "`{planted}` was created, changed or removed, and programs on the host may act on this \
             path: tell the user"
        ));
    }
    notes
}

/// Returns whether a program seems to have failed to reach the network. The text of its error
/// messages is the only evidence.
fn seems_unreached(stderr: &str) -> bool {
    let said = stderr.to_ascii_lowercase();
    NETWORK_ERROR_TEXTS.iter().any(|words| said.contains(words))
}

/// Shortens a text to its head and tail, and returns the number of bytes that were left out between
/// them.
pub(crate) fn shorten(text: String, limit: usize) -> (String, u64) {
    if text.len() <= limit {
        return (text, 0);
    }
    let head = text.floor_char_boundary(limit / 2);
    let tail = text.ceil_char_boundary(text.len() - limit / 2);
    let left_out = tail - head;
    (format!("{}\n[{left_out} bytes left out]\n{}", &text[..head], &text[tail..]), left_out as u64)
}

impl Display for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_streams(formatter, &self.stdout, &self.stderr)?;
        write!(formatter, "[{}, {:.1} s]", ending(self.exit_code, self.signal), self.seconds)?;
        write_notes(formatter, &self.notes)
    }
}

/// Writes the output of a command, with standard error after a line that names it.
pub(crate) fn write_streams(
    formatter: &mut fmt::Formatter<'_>,
    stdout: &str,
    stderr: &str,
) -> fmt::Result {
    let mut write = |text: &str| match text.ends_with('\n') {
        _ if text.is_empty() => Ok(()),
        true => formatter.write_str(text),
        false => writeln!(formatter, "{text}"),
    };
    write(stdout)?;
    if !stderr.is_empty() {
        write("[standard error]")?;
        write(stderr)?;
    }
    Ok(())
}

/// Returns a description of how a command ended.
pub(crate) fn ending(exit_code: Option<i32>, signal: Option<i32>) -> String {
    match (exit_code, signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "no exit code".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_too_long_keeps_its_head_and_its_tail_whole() {
        assert_eq!(shorten("short".to_owned(), 10), ("short".to_owned(), 0));
        let (text, left_out) = shorten(format!("{}é{}", "a".repeat(9), "z".repeat(30)), 20);
        assert_eq!(text, format!("{}\n[22 bytes left out]\n{}", "a".repeat(9), "z".repeat(10)));
        assert_eq!(left_out, 22);
    }

    #[test]
    fn the_text_names_each_stream() {
        let outcome = Outcome {
            ok: false,
            exit_code: Some(2),
            signal: None,
            timed_out: false,
            stdout: "out".to_owned(),
            stderr: "wrong\n".to_owned(),
            left_out: 0,
            seconds: 0.25,
            denials: Vec::new(),
            notes: vec!["look".to_owned()],
        };
        assert_eq!(
            outcome.to_string(),
            "out\n[standard error]\nwrong\n[exit code 2, 0.2 s]\n[note: look]"
        );
    }

    #[test]
    fn error_texts_of_programs_without_a_network_are_understood() {
        assert!(seems_unreached("curl: (6) Could not resolve host: example.org"));
        assert!(!seems_unreached("cc: error: no such file"));
    }
}
