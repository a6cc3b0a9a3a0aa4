//! Warm interpreters: in the sandbox of a client of `ringfence mcp`, and in the sandboxes that wait
//! for a client of `ringfence serve`.

use std::time::{Duration, Instant};

use ringfence::Backend;
use ringfence_test_ledger::require;
use serde_json::{Value, json};

use crate::asks::{McpClient, RawClient};
use crate::keeper::{SandboxKeeper, WAIT_TIMEOUT};
use crate::served::{RunningServer, expect_nothing_left, log_of};

/// Waits until a condition is true.
#[track_caller]
pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < WAIT_TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the number of code interpreters in the keeper's sandboxes. Their arguments identify
/// them.
fn interpreters(keeper: &SandboxKeeper) -> usize {
    let home = format!("HOME={}", keeper.home().display());
    let processes = fs_err::read_dir("/proc").expect("it is mounted").flatten();
    let is_one = |place: std::path::PathBuf| {
        let read = |name: &str| fs_err::read(place.join(name)).unwrap_or_default();
        read("cmdline").ends_with(b"/main.py\0")
            && read("environ").split(|byte| *byte == 0).any(|variable| variable == home.as_bytes())
    };
    processes.filter(|entry| is_one(entry.path())).count()
}

/// Gives an interpreter time to start waiting. The next call does not use an interpreter that is
/// not waiting yet.
#[track_caller]
fn come_to_wait(keeper: &SandboxKeeper) {
    until("none is started", || interpreters(keeper) == 1);
    // Nothing outside shows that the interpreter waits.
    std::thread::sleep(Duration::from_millis(300));
}

#[test]
fn mcp_code_uses_a_prepared_interpreter_unless_a_command_ran_before() {
    require!(binary, user_namespaces, python3);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let mut client = McpClient::start(&keeper, &[("RINGFENCE_PRELOAD", "csv")]);
    client.call("run_command", json!({ "command": "echo kept > /tmp/note" }), json!({}));
    assert_eq!(interpreters(&keeper), 0, "one waits although no code was run");
    // A preloaded module shows that the code ran in an interpreter that had waited.
    let code = "import os, sys; print(open('/tmp/note').read(), os.listdir('.'), 'csv' in \
                sys.modules); open('x', 'w')";
    let has_waited = |client: &mut McpClient| {
        let answer = client.call("run_python_code", json!({ "code": code }), json!({}));
        assert!(answer.contains("kept\\n [] "), "{answer}");
        answer.contains("[] True\\n")
    };
    assert!(!has_waited(&mut client));
    let begun = Instant::now();
    while !has_waited(&mut client) {
        assert!(begun.elapsed() < WAIT_TIMEOUT, "none waits");
        come_to_wait(&keeper);
    }
    client.call("run_command", json!({ "command": "true" }), json!({}));
    until("one waits although something else was run", || interpreters(&keeper) == 0);
    assert!(!has_waited(&mut client));
    client.leave();
    fs_err::remove_dir_all(keeper.workspace()).expect("it is ours");
    keeper.expect_nothing_left();
}

#[test]
fn mcp_code_imports_a_module_written_after_its_interpreter_started() {
    require!(binary, user_namespaces, python3);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let mut client = McpClient::start(&keeper, &[]);
    let code = |code: &str| json!({ "code": code });
    let answer = client.call(
        "run_python_code",
        code("import site; print(f'<{site.getusersitepackages()}>')"),
        json!({}),
    );
    let (_, place) = answer.split_once('<').unwrap_or_else(|| panic!("{answer}"));
    let path =
        format!("{}/fresh.py", place.split_once('>').unwrap_or_else(|| panic!("{answer}")).0);
    come_to_wait(&keeper);
    // The directory is new, and an interpreter looks for it only when it starts.
    let answer =
        client.call("write_file", json!({ "path": path, "content": "value = 'first'" }), json!({}));
    assert!(answer.contains("created `"), "{answer}");
    let answer =
        client.call("run_python_code", code("import fresh; print(fresh.value)"), json!({}));
    assert!(answer.contains("first"), "{answer}");
    come_to_wait(&keeper);
    let edit = json!({ "path": path, "old_text": "first", "new_text": "second" });
    client.call("edit_file", edit, json!({}));
    until("one waits although a file was changed", || interpreters(&keeper) == 0);
    let answer =
        client.call("run_python_code", code("import fresh; print(fresh.value)"), json!({}));
    assert!(answer.contains("second"), "{answer}");
    client.leave();
    fs_err::remove_dir_all(keeper.workspace()).expect("it is ours");
    keeper.expect_nothing_left();
}

#[test]
fn a_pooled_sandbox_for_code_has_python_started() {
    require!(root, binary, user_namespaces, python3);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let config = keeper.home().join("server.toml");
    let text = "[templates.base]\nwarm = 1\n[templates.code-interpreter-v1]\nwarm = 1\n";
    fs_err::write(&config, text).expect("the home is ours");
    let server = RunningServer::told(
        &keeper,
        &["--config", config.to_str().expect("it is text")],
        &[("RINGFENCE_PRELOAD", "csv")],
    );
    let client = RawClient::for_url(&server.url);
    let waiting = || {
        let (_, text) = client.ask("GET /metrics", &[("x-api-key", "e2b_0")], b"");
        String::from_utf8_lossy(&text).contains("ringfence_sandboxes_waiting 2\n")
    };
    // Returns the number of contexts before any was requested, and the output of a cell.
    let begin = |asked: Value, cell: &str| {
        until(&log_of(&keeper), waiting);
        let (id, token) = client.create_from(&asked, &[]);
        let headers = [
            ("e2b-sandbox-id", id.as_str()),
            ("e2b-sandbox-port", "49999"),
            ("x-access-token", &token),
            ("content-type", "application/json"),
        ];
        let (_, listed) = client.ask("GET /contexts", &headers, b"");
        let listed: Vec<Value> = serde_json::from_slice(&listed).expect("it is JSON");
        let (_, said) =
            client.ask("POST /execute", &headers, json!({ "code": cell }).to_string().as_bytes());
        client.kill(&(id, token));
        (listed.len(), String::from_utf8_lossy(&said).into_owned())
    };
    let cell =
        "import os, sys; ('csv' in sys.modules, 'csv' in globals(), os.environ.get('GIVEN'))";
    let (contexts, said) = begin(json!({ "templateID": "code-interpreter-v1" }), cell);
    assert!(contexts == 1 && said.contains("(True, False, None)"), "{contexts}: {said}");
    // The variables are set, as they would be without a waiting interpreter.
    let with_variable =
        json!({ "templateID": "code-interpreter-v1", "envVars": { "GIVEN": "yes" } });
    let (contexts, said) = begin(with_variable, cell);
    assert!(contexts == 0 && said.contains("(False, False, 'yes')"), "{contexts}: {said}");
    let (contexts, said) = begin(json!({ "templateID": "base" }), cell);
    assert!(contexts == 0 && said.contains("(False, False, None)"), "{contexts}: {said}");
    server.end();
    fs_err::remove_file(config).expect("it is ours");
    expect_nothing_left(&keeper);
}
