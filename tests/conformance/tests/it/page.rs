//! The page of `ringfence serve` in a browser.

use std::path::Path;

use ringfence::Backend;
use ringfence_test_ledger::{e2b_python, playwright_python, require};

use crate::keeper::SandboxKeeper;
use crate::served::{RunningServer, expect_nothing_left, log_of, script};

/// Template whose sandboxes may reach one host and no other.
const CONFIG: &str = "[templates.allowing]\npolicy = 'allowing.toml'\n";
const POLICY: &str = "allow_weaker = ['memory']\n[network]\nmode = 'allow'\nallow = \
                      ['allowed.example']\n[limits]\nmemory = '512M'\n";

/// Starts a server with that template.
#[track_caller]
fn served(keeper: &SandboxKeeper) -> RunningServer<'_> {
    let config = keeper.home().join("server.toml");
    fs_err::write(&config, CONFIG).expect("the home is ours");
    fs_err::write(keeper.home().join("allowing.toml"), POLICY).expect("the home is ours");
    RunningServer::start_with_flags(keeper, &["--config", config.to_str().expect("it is text")])
}

/// Runs one act of `page.py` on the page, in a browser of its own.
#[track_caller]
fn browse(keeper: &SandboxKeeper, server: &RunningServer<'_>, act: &str, more: &[&str]) {
    let mut command = script(playwright_python().expect("the test requires it"), "page.py");
    command
        .args([&server.url, act])
        .arg(e2b_python().expect("the test requires it"))
        .args(more)
        .current_dir("/");
    command.env("HOME", keeper.workspace()).env_remove("RINGFENCE_TEST_SCREENSHOTS");
    if std::env::var_os("RINGFENCE_BLESS").is_some_and(|bless| bless == "1") {
        let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/screenshots");
        fs_err::create_dir_all(&pictures).expect("the checkout is ours");
        command.env("RINGFENCE_TEST_SCREENSHOTS", pictures);
    }
    let outcome = keeper.run(&mut command);
    keeper.note_children_of(server.process.id());
    assert!(outcome.is_good(), "{act}: {}\n{}", outcome.said, log_of(keeper));
}

#[track_caller]
fn leave(keeper: &SandboxKeeper, server: RunningServer<'_>) {
    server.end();
    for name in ["server.toml", "allowing.toml", ".local/state/ringfence/egress.jsonl"] {
        // The log exists only if something was denied.
        let _ = fs_err::remove_file(keeper.home().join(name));
    }
    expect_nothing_left(keeper);
}

#[track_caller]
fn check(act: &str) {
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let server = served(&keeper);
    browse(&keeper, &server, act, &[]);
    leave(&keeper, server);
}

#[test]
fn the_page_shows_charts_promises_policy_and_terminal_of_a_sandbox() {
    require!(
        root,
        binary,
        user_namespaces,
        pseudo_terminals,
        cgroup_limits,
        e2b_python,
        playwright_python,
        chromium
    );
    check("life");
}

#[test]
fn a_sandbox_is_paused_and_resumed_on_the_page() {
    require!(
        root,
        binary,
        user_namespaces,
        pseudo_terminals,
        cgroup_limits,
        e2b_python,
        playwright_python,
        chromium
    );
    check("rest");
}

#[test]
fn the_page_transfers_files_and_shows_hostile_names_as_text() {
    require!(root, binary, user_namespaces, cgroup_limits, e2b_python, playwright_python, chromium);
    check("files");
}

#[test]
fn the_page_shows_commands_and_denials_as_they_happen() {
    require!(
        root,
        binary,
        user_namespaces,
        python3,
        curl,
        cgroup_limits,
        e2b_python,
        playwright_python,
        chromium
    );
    check("activity");
}

#[test]
fn the_page_shows_a_disguised_command_as_it_was_started() {
    require!(root, binary, user_namespaces, cgroup_limits, e2b_python, playwright_python, chromium);
    check("deceived");
}

#[test]
fn the_page_fits_a_phone() {
    require!(
        root,
        binary,
        user_namespaces,
        pseudo_terminals,
        cgroup_limits,
        e2b_python,
        playwright_python,
        chromium
    );
    check("phone");
}

#[test]
fn the_page_is_used_with_a_keyboard_alone() {
    require!(root, binary, user_namespaces, cgroup_limits, e2b_python, playwright_python, chromium);
    check("keyboard");
}

#[test]
fn the_page_shows_only_the_sandboxes_of_its_key() {
    require!(root, binary, user_namespaces, cgroup_limits, e2b_python, playwright_python, chromium);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let create = |name: &str| {
        keeper.expect(&mut keeper.ringfence(&["keys", "create", name])).trim_end().to_owned()
    };
    let (one, other, short) = (create("one"), create("other"), create("short"));
    let server = served(&keeper);
    browse(&keeper, &server, "keys", &[&one, &other]);
    let program = keeper.program();
    browse(
        &keeper,
        &server,
        "revoked",
        &[program.to_str().expect("it is text"), &keeper.home().display().to_string(), &short],
    );
    leave(&keeper, server);
}

/// With `RINGFENCE_BLESS=1`, the test takes longer and saves screenshots for the documentation.
#[test]
fn the_page_has_a_dark_and_a_light_theme() {
    require!(
        root,
        binary,
        user_namespaces,
        python3,
        curl,
        cgroup_limits,
        e2b_python,
        playwright_python,
        chromium
    );
    check("drawn");
}
