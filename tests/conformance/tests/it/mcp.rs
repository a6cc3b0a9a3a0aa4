//! The official Python package of the Model Context Protocol drives `ringfence mcp`.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use ringfence::Backend;
use ringfence_test_ledger::engine::DEV_IMAGE;
use ringfence_test_ledger::{mcp_python, require};
use rustix::process::{Pid, Signal, kill_process};

use crate::keeper::SandboxKeeper;

/// Creates a keeper whose probes are cached before clients start.
fn keeper(backend: Backend) -> SandboxKeeper {
    let keeper = SandboxKeeper::for_root(backend);
    keeper.expect(&mut keeper.ringfence(&["doctor"])); // caches the probes
    keeper
}

/// Returns a client that runs one of the functions in `mcp_client.py`.
fn client(keeper: &SandboxKeeper, what: &str, flags: &[&str]) -> Command {
    let (mark, home) = keeper.mark();
    let mut client = Command::new(mcp_python().expect("the test requires it"));
    client
        .env_clear()
        .envs(keeper.variables())
        .current_dir(keeper.workspace())
        .stdin(Stdio::null());
    client.args(["-c", include_str!("mcp_client.py"), what]).arg(keeper.program()).args(flags);
    client.args([
        "--memory",
        "256M",
        "--allow-weaker",
        "memory",
        "--env",
        &format!("{mark}={home}"),
    ]);
    client
}

#[track_caller]
fn check(what: &str) {
    let keeper = keeper(Backend::Native);
    keeper.expect(&mut client(&keeper, what, &["--backend", "native"]));
    leave(&keeper);
}

/// Runs a client that uses every tool in a container.
#[track_caller]
pub(crate) fn check_container(backend: Backend) {
    let keeper = keeper(backend);
    let flags = ["--backend", backend.name(), "--image", DEV_IMAGE, "--pull", "never"];
    keeper.expect(&mut client(&keeper, "on_streams", &flags));
    leave(&keeper);
}

/// Removes the workspace, which clients fill, and the log of denials, which stays. Everything else
/// must be gone.
#[track_caller]
fn leave(keeper: &SandboxKeeper) {
    // The log may not exist.
    let _ = fs_err::remove_file(keeper.home().join(".local/state/ringfence/egress.jsonl"));
    fs_err::remove_dir_all(keeper.workspace()).expect("it is ours");
    keeper.expect_nothing_left();
}

#[test]
fn an_mcp_client_on_standard_streams_uses_every_tool() {
    require!(binary, user_namespaces, python3, mcp_python, cgroup_limits);
    check("on_streams");
}

#[test]
fn mcp_names_the_rule_that_would_allow_a_denied_host() {
    require!(binary, user_namespaces, python3, mcp_python, cgroup_limits);
    check("denied");
}

#[test]
fn mcp_clients_over_http_use_every_tool_each_in_its_own_sandbox() {
    require!(binary, user_namespaces, python3, mcp_python, cgroup_limits);
    check("at_an_address");
}

#[test]
fn mcp_over_http_refuses_requests_that_are_not_mcp() {
    require!(binary, user_namespaces, python3, mcp_python, cgroup_limits);
    check("hostile");
}

#[test]
fn mcp_uses_a_running_sandbox_and_leaves_it_running() {
    require!(binary, user_namespaces, python3, mcp_python, cgroup_limits);
    let keeper = keeper(Backend::Native);
    keeper.expect(&mut keeper.up("kept"));
    keeper.expect(&mut client(&keeper, "attached", &[]));
    keeper.expect(&mut keeper.ringfence(&["stop", "kept"]));
    leave(&keeper);
}

#[test]
fn mcp_refuses_an_invalid_workspace_before_it_accepts_clients() {
    require!(binary, user_namespaces, cgroup_limits);
    let keeper = keeper(Backend::Native);
    let serve = |workspace: &str| {
        let mut serve =
            keeper.ringfence(&["mcp", "--listen", "127.0.0.1:0", "--backend", "native"]);
        serve
            .current_dir(workspace)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        serve.spawn().expect("the program can be started")
    };
    let refused = serve("/").wait_with_output().expect("it ends");
    let mut run = keeper.ringfence(&["run", "--backend", "native", "--", "true"]);
    let run = run.current_dir("/").output().expect("the program can be started");
    assert_eq!(refused.status.code(), Some(2));
    assert!(refused.stdout.is_empty(), "{}", String::from_utf8_lossy(&refused.stdout));
    assert_eq!(String::from_utf8_lossy(&refused.stderr), String::from_utf8_lossy(&run.stderr));
    // With a possible workspace, clients are admitted.
    let workspace = keeper.workspace();
    let mut served = serve(workspace.to_str().expect("it is text"));
    let mut line = String::new();
    let said = BufReader::new(served.stdout.take().expect("it was asked for")).read_line(&mut line);
    let ended = kill_process(Pid::from_child(&served), Signal::TERM);
    let status = served.wait().expect("it is ours");
    assert!(said.is_ok() && line.starts_with("http://127.0.0.1:"), "{line}");
    assert!(ended.is_ok() && status.success(), "{status}");
    leave(&keeper);
}

/// Starts a client that starts everything it can, kills the process that `victim` returns, and
/// checks that nothing is left.
#[track_caller]
fn check_killed(victim: impl FnOnce(&SandboxKeeper, &Child) -> u32) {
    let keeper = keeper(Backend::Native);
    let mut child = client(&keeper, "left_alone", &["--backend", "native"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("python can be started");
    let mut line = String::new();
    let said = BufReader::new(child.stdout.take().expect("it was asked for")).read_line(&mut line);
    assert!(said.is_ok() && line == "ready\n", "{line}");
    keeper.note_children_of(child.id());
    let victim = i32::try_from(victim(&keeper, &child))
        .ok()
        .and_then(Pid::from_raw)
        .expect("it is a process");
    kill_process(victim, Signal::KILL).expect("it is ours");
    let _ = child.kill(); // the process may have ended
    let _ = child.wait(); // its exit status is not tested
    keeper.expect(&mut keeper.ringfence(&["ps"])); // sweeps what a killed server cannot
    leave(&keeper);
}

#[test]
fn a_killed_mcp_client_leaves_no_sandbox() {
    require!(binary, user_namespaces, python3, mcp_python, cgroup_limits);
    check_killed(|_, child| child.id());
}

#[test]
fn a_killed_mcp_server_leaves_no_sandbox() {
    require!(binary, user_namespaces, python3, mcp_python, cgroup_limits);
    check_killed(|keeper, _| {
        let is_server = |words: &[String]| words.get(1).is_some_and(|word| word == "mcp");
        let server = keeper.processes().into_iter().find(|process| is_server(&process.words));
        server.expect("it runs").id
    });
}
