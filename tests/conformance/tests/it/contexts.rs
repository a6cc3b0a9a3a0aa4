//! Contexts of `ringfence serve` after the server has ended: E2B's own package finds them
//! unchanged.

use std::time::{Duration, Instant};

use ringfence::Backend;
use ringfence_test_ledger::{e2b_python, require};

use crate::asks::Client;
use crate::interpreters::until;
use crate::keeper::{Keeper, PATIENCE};
use crate::served::{Served, expect_nothing_left, log_of, script};

/// Runs one action of the package's script.
#[track_caller]
fn act(server: &Served<'_>, words: &[&str]) {
    let mut package = script(e2b_python().expect("the test requires it"), "contexts_sdk.py");
    package.args(words);
    server.drive(package);
}

/// Waits until a server that was asked to end has ended.
#[track_caller]
fn wait_for_end(keeper: &Keeper, mut server: Served<'_>) {
    let begun = Instant::now();
    while server.process.try_wait().expect("it is ours").is_none() {
        assert!(begun.elapsed() < PATIENCE, "it does not end: {}", log_of(keeper));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Checks that contexts outlive their server. Each of `signals` ends the server while a cell runs;
/// finally the server is killed while the sandbox is at rest. `waiting` sandboxes wait for a
/// client.
#[track_caller]
fn check(waiting: usize, signals: &[&str]) {
    let keeper = Keeper::on(Backend::Native);
    let config = keeper.home().join("server.toml");
    fs_err::write(&config, format!("[templates.code-interpreter-v1]\nwarm = {waiting}\n"))
        .expect("the home is ours");
    let serve = || Served::with(&keeper, &["--config", config.to_str().expect("it is text")]);
    let mut server = serve();
    let client = Client::of(&server.url);
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
fn contexts_outlive_their_server_however_it_ends() {
    require!(root, binary, user_namespaces, python3, e2b_python);
    check(0, &["SIGKILL", "SIGTERM"]);
}

#[test]
fn a_context_that_waited_for_its_client_outlives_the_server_too() {
    require!(root, binary, user_namespaces, python3, e2b_python);
    check(1, &["SIGKILL"]);
}

#[test]
fn code_that_ends_its_interpreter_leaves_the_next_one_a_new_one() {
    require!(root, binary, user_namespaces, python3, e2b_python);
    let keeper = Keeper::on(Backend::Native);
    let server = Served::with(&keeper, &[]);
    act(&server, &["outlive"]);
    server.end();
    expect_nothing_left(&keeper);
}
