//! Contexts of `ringfence serve` after the server has ended: E2B's own package finds them
//! unchanged.

use std::time::{Duration, Instant};

use ringfence::Backend;
use ringfence_test_ledger::{e2b_python, require};

use crate::asks::RawClient;
use crate::interpreters::until;
use crate::keeper::{SandboxKeeper, WAIT_TIMEOUT};
use crate::served::{RunningServer, expect_nothing_left, log_of, script};

/// Runs one action of the package's script.
#[track_caller]
fn act(server: &RunningServer<'_>, words: &[&str]) {
    let mut package = script(e2b_python().expect("the test requires it"), "contexts_sdk.py");
    package.args(words);
    server.drive(package);
}

/// Waits until a server that was asked to end has ended.
#[track_caller]
fn wait_for_end(keeper: &SandboxKeeper, mut server: RunningServer<'_>) {
    let begun = Instant::now();
    while server.process.try_wait().expect("it is ours").is_none() {
        assert!(begun.elapsed() < WAIT_TIMEOUT, "it does not end: {}", log_of(keeper));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Checks that contexts outlive their server. Each of `signals` ends the server while a cell runs;
/// finally the server is killed while the sandbox is at rest. `waiting` sandboxes wait for a
/// client.
#[track_caller]
fn check(waiting: usize, signals: &[&str]) {
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let config = keeper.home().join("server.toml");
    fs_err::write(&config, format!("[templates.code-interpreter-v1]\nwarm = {waiting}\n"))
        .expect("the home is ours");
    let serve = || {
        RunningServer::start_with_flags(
            &keeper,
            &["--config", config.to_str().expect("it is text")],
        )
    };
    let mut server = serve();
    let client = RawClient::for_url(&server.url);
    until("none waits", || {
        let (_, text) = client.ask("GET /metrics", &[("x-api-key", "e2b_0")], b"");
        String::from_utf8_lossy(&text).contains(&format!("ringfence_sandboxes_waiting {waiting}\n"))
    });
    act(&server, &["begin", &waiting.to_string()]);
    let mut cells = 1;
    for signal in signals {
        act(&server, &["leave", &server.id().to_string(), signal]);
        wait_for_end(&keeper, server);
        server = serve();
        act(&server, &["go_on", &cells.to_string()]);
        cells += 1;
    }
    act(&server, &["rest"]);
    drop(server); // kills the server, as a crash does
    let server = serve();
    act(&server, &["go_on", &cells.to_string()]);
    act(&server, &["end"]);
    server.end();
    fs_err::remove_file(config).expect("it is ours");
    expect_nothing_left(&keeper);
}

#[test]
fn contexts_outlive_a_killed_or_stopped_server() {
    require!(root, binary, user_namespaces, python3, e2b_python);
    check(0, &["SIGKILL", "SIGTERM"]);
}

#[test]
fn a_prepared_context_outlives_its_server() {
    require!(root, binary, user_namespaces, python3, e2b_python);
    check(1, &["SIGKILL"]);
}

#[test]
fn code_that_ends_its_interpreter_gets_a_new_one_next_time() {
    require!(root, binary, user_namespaces, python3, e2b_python);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let server = RunningServer::start_with_flags(&keeper, &[]);
    act(&server, &["outlive"]);
    server.end();
    expect_nothing_left(&keeper);
}
