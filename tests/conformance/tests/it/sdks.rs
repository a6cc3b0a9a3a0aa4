//! Unmodified packages that are built on E2B's, against `ringfence serve`. Only variables name the
//! server.

use std::process::Command;

use ringfence::Backend;
use ringfence_test_ledger::{e2b_javascript, frameworks_python, openai_agents_python, require};

use crate::keeper::SandboxKeeper;
use crate::served::{RunningServer, expect_nothing_left, script};

#[track_caller]
fn check(script: Command) {
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let server = RunningServer::start(&keeper);
    server.drive(script);
    server.end();
    expect_nothing_left(&keeper);
}

#[test]
fn langchains_sandbox_runs_against_a_server() {
    require!(root, binary, user_namespaces, python3, frameworks_python);
    check(script(frameworks_python().expect("the test requires it"), "langchain_sdk.py"));
}

#[test]
fn the_executor_of_smolagents_runs_against_a_server() {
    require!(root, binary, user_namespaces, python3, frameworks_python);
    check(script(frameworks_python().expect("the test requires it"), "smolagents_sdk.py"));
}

#[test]
fn the_client_of_the_openai_agents_sdk_runs_against_a_server() {
    require!(root, binary, user_namespaces, pseudo_terminals, openai_agents_python);
    check(script(openai_agents_python().expect("the test requires it"), "openai_agents_sdk.py"));
}

#[test]
fn the_code_interpreter_for_javascript_runs_against_a_server() {
    require!(root, binary, user_namespaces, python3, e2b_javascript);
    let mut package = script("node", "interpreter_sdk.mjs");
    package.arg(e2b_javascript().expect("the test requires it"));
    check(package);
}
