//! Parser, runner and matcher for transcripts.

use std::path::Path;
use std::process::{Command, Stdio};

/// Command of a transcript with its expected output and exit code.
#[derive(Debug, Default)]
struct Step {
    line: usize,
    command: String,
    expected: Vec<String>,
    code: i32,
}

/// Runs the transcript `tests/cli/{name}.md` and compares the results.
#[track_caller]
pub(crate) fn check(name: &str) {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli").join(name).with_extension("md");
    let steps = parse(&fs_err::read_to_string(&path).expect("the transcript is there"));
    assert!(!steps.is_empty(), "{} has no command", path.display());
    // Not in /tmp, because a sandbox has its own /tmp and could not have a home directory there.
    let place = tempfile::tempdir_in("/var/tmp").expect("/var/tmp can be written");
    for directory in ["workspace", "home"] {
        fs_err::create_dir(place.path().join(directory)).expect("the directory is new");
    }
    for step in steps {
        let (output, code) = run(&step.command, place.path());
        let lines: Vec<&str> = output.lines().collect();
        let expected: Vec<&str> = step.expected.iter().map(String::as_str).collect();
        assert!(
            matches_lines(&expected, &lines) && code == step.code,
            "{}:{}: $ {}\n--- expected, then exit {}\n{}\n--- found, then exit {code}\n{output}",
            path.display(),
            step.line,
            step.command,
            step.code,
            step.expected.join("\n"),
        );
    }
}

fn parse(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut is_inside = false;
    for (index, line) in text.lines().enumerate() {
        if line.starts_with("```") {
            is_inside = line == "```console";
        } else if !is_inside {
            continue;
        } else if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { line: index + 1, command: command.to_owned(), ..Step::default() });
        } else {
            let step = steps.last_mut().expect("output follows a command");
            if let Some(more) = line.strip_prefix("> ") {
                step.command.push('\n');
                step.command.push_str(more);
            } else if let Some(code) = line.strip_prefix("? ") {
                step.code = code.parse().expect("an exit code is a number");
            } else {
                step.expected.push(line.to_owned());
            }
        }
    }
    steps
}

/// Runs a command in the workspace, and returns the output of both streams together with the exit
/// code.
fn run(command: &str, place: &Path) -> (String, i32) {
    let binary = Path::new(env!("CARGO_BIN_EXE_ringfence"));
    let own = binary.parent().expect("a file lies in a directory");
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", own.display());
    let output = Command::new("timeout")
        .args(["60", "sh", "-c", &format!("exec 2>&1\n{command}")])
        .current_dir(place.join("workspace"))
        .env_clear()
        .env("PATH", path)
        .env("HOME", place.join("home"))
        .env("LANG", "C.UTF-8")
        .stdin(Stdio::null())
        .output()
        .expect("timeout and sh are everywhere");
    let place = place.canonicalize().expect("the place is there").display().to_string();
    let text = String::from_utf8_lossy(&output.stdout).replace(&place, "/demo");
    (text, output.status.code().unwrap_or(-1))
}

fn matches_lines(expected: &[&str], found: &[&str]) -> bool {
    match (expected, found) {
        ([], []) => true,
        (["...", rest @ ..], _) => {
            (0..=found.len()).any(|skipped| matches_lines(rest, &found[skipped..]))
        }
        ([pattern, expected @ ..], [line, found @ ..]) => {
            matches_line(pattern, line) && matches_lines(expected, found)
        }
        _ => false,
    }
}

fn matches_line(pattern: &str, line: &str) -> bool {
    match pattern.split_once("[..]") {
        None => pattern == line,
        Some((start, rest)) => line.strip_prefix(start).is_some_and(|line| {
            line.char_indices()
                .map(|(at, _)| at)
                .chain([line.len()])
                .any(|at| matches_line(rest, &line[at..]))
        }),
    }
}

#[test]
fn patterns_stand_for_what_they_say_and_no_more() {
    assert!(
        matches_line("a[..]c", "abc") && matches_line("a[..]c", "ac") && matches_line("[..]", "")
    );
    assert!(!matches_line("a[..]c", "abd") && !matches_line("a", "ab"));
    assert!(
        matches_lines(&["a", "...", "d"], &["a", "b", "c", "d"]) && matches_lines(&["..."], &[])
    );
    assert!(!matches_lines(&["a"], &["a", "b"]) && !matches_lines(&["a", "...", "d"], &["a", "b"]));
}
