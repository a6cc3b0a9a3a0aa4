//! Signals that end ringfence while it captures the output of a command. The command ends with
//! ringfence, its result is printed and recorded, and nothing else is left.

use std::process::Stdio;

use ringfence::Backend;
use ringfence_test_ledger::require;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::interpreters::until;
use crate::keeper::SandboxKeeper;

/// Makes ringfence run `sleep SECONDS` with the command line `words`, sends it a signal, and
/// returns the result that it printed.
#[track_caller]
fn end(keeper: &SandboxKeeper, words: &[&str], seconds: &str, signal: Signal) -> Value {
    let mut ringfence = keeper.ringfence(words);
    let child = ringfence.stdout(Stdio::piped()).spawn().expect("ringfence can be started");
    keeper.note(child.id());
    let sleeps = || keeper.processes().iter().any(|process| process.words == ["sleep", seconds]);
    until("it sleeps", sleeps);
    let process = Pid::from_raw(child.id().cast_signed()).expect("it has been started");
    kill_process(process, signal).expect("it is ours");
    let output = child.wait_with_output().expect("it is ours");
    assert_eq!(output.status.code(), Some(128 + signal.as_raw()), "{words:?}");
    until("it sleeps no more", || !sleeps());
    // The run wrote a record, which is meant to stay.
    fs_err::remove_dir_all(keeper.workspace().join("artifacts")).expect("it is recorded");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{words:?}: {output:?}"))
}

#[track_caller]
fn check(backend: Backend) {
    let keeper = SandboxKeeper::for_root(backend);
    let (seconds, words) = (format!("4{}", std::process::id()), keeper.words());
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        let run = [&["run", "--json"], &words[..], &["--", "sleep", &seconds]].concat();
        let result = end(&keeper, &run, &seconds, signal);
        assert_eq!(
            (&result["signal"], &result["ok"]),
            (&Value::from(9), &Value::from(false)),
            "{result}"
        );
        keeper.expect_nothing_left();
    }
    keeper.expect(&mut keeper.up("stays"));
    let result =
        end(&keeper, &["exec", "--json", "stays", "--", "sleep", &seconds], &seconds, Signal::TERM);
    assert_eq!(result["signal"], 9, "{result}");
    keeper.expect(&mut keeper.ringfence(&["exec", "stays", "--", "true"]));
    keeper.expect(&mut keeper.ringfence(&["stop", "stays"]));
    keeper.expect_nothing_left();
}

#[test]
fn a_terminated_run_leaves_nothing_on_native() {
    require!(root, binary, user_namespaces);
    check(Backend::Native);
}

#[test]
fn a_terminated_run_leaves_nothing_on_bubblewrap() {
    require!(root, binary, user_namespaces, bwrap);
    check(Backend::Bwrap);
}

#[test]
fn a_terminated_run_leaves_nothing_on_docker() {
    require!(root, binary, docker);
    check(Backend::Docker);
}

#[test]
fn a_terminated_run_leaves_nothing_on_podman() {
    require!(root, binary, podman);
    check(Backend::Podman);
}

#[test]
fn a_terminated_code_run_leaves_nothing() {
    require!(root, binary, user_namespaces);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let seconds = format!("5{}", std::process::id());
    fs_err::write(keeper.workspace().join("code.sh"), format!("echo kept > file\nsleep {seconds}"))
        .expect("it is ours");
    for signal in [Signal::TERM, Signal::INT] {
        let result = end(&keeper, &["code", "--json", "code.sh"], &seconds, signal);
        assert_eq!(result["signal"], 9, "{result}");
    }
    fs_err::remove_file(keeper.workspace().join("code.sh")).expect("it is ours");
    keeper.expect_nothing_left();
}
