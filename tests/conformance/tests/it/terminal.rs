//! The terminal, job control and keys belong to the command, on every backend.

use std::process::{Command, Stdio};

use ringfence_test_ledger::{binary, require};

#[track_caller]
fn check(backend: &str) {
    let workspace =
        tempfile::TempDir::new_in("/var/tmp").expect("a temporary directory can be made");
    let mut command = Command::new("python3");
    command.args(["-c", include_str!("terminal.py")]).arg(binary()).arg(backend);
    let output = command
        .current_dir(workspace.path())
        .stdin(Stdio::null())
        .output()
        .expect("python3 can be started");
    assert!(output.status.success(), "{backend}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_terminal_is_the_commands_own_on_native() {
    require!(binary, user_namespaces, python3, pseudo_terminals);
    check("native");
}

#[test]
fn the_terminal_is_the_commands_own_on_bwrap() {
    require!(binary, bwrap, python3, pseudo_terminals);
    check("bwrap");
}

#[test]
fn the_terminal_is_the_commands_own_on_local() {
    require!(binary, python3, pseudo_terminals);
    check("local");
}
