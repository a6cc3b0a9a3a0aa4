//! Commands that run on a pseudoterminal.

use ringfence_proto::process::{Pty, PtySize, StartRequest};
use serde_json::{Value, json};

use crate::guest::{GuestProcess, lives, shell};

fn on_terminal(script: &str, cols: u32, rows: u32) -> StartRequest {
    StartRequest { pty: Some(Pty { size: Some(PtySize { cols, rows }) }), ..shell(script) }
}

fn type_in(guest: &GuestProcess, pid: u64, base64: &str) -> (u16, Value) {
    guest.call("SendInput", &json!({"process": {"pid": pid}, "input": {"pty": base64}}))
}

#[test]
fn a_terminal_has_the_requested_size_or_the_default_size() {
    let guest = GuestProcess::start();
    let size = |cols, rows| guest.start_request(&on_terminal("stty size", cols, rows)).finish().pty;
    assert_eq!(size(100, 30), "30 100\r\n");
    assert_eq!(size(0, 0), "24 80\r\n");
}

#[test]
fn a_terminal_is_the_controlling_terminal_of_its_own_session() {
    let guest = GuestProcess::start();
    let finished = guest
        .start_request(&on_terminal("test -t 0 && test -t 2 && echo here > /dev/tty", 80, 24))
        .finish();
    assert_eq!((finished.pty.as_str(), finished.stdout.as_str()), ("here\r\n", ""));
    assert!(finished.end.unwrap().exited);
}

#[test]
fn keys_reach_the_command_and_control_c_interrupts_it() {
    let guest = GuestProcess::start();
    let mut events = guest.start_request(&on_terminal(
        "stty -echo; echo ready; read line; echo got $line; exec cat",
        80,
        24,
    ));
    let pid = events.pid();
    events.until("ready");
    assert_eq!(type_in(&guest, pid, "eWVzCg==").0, 200);
    events.until("got yes");
    // A shell that is about to execute a program can miss the interrupt. The test therefore waits
    // until `cat` has copied a line.
    assert_eq!(type_in(&guest, pid, "Y2F0Cg==").0, 200);
    events.until("cat");
    assert_eq!(type_in(&guest, pid, "Aw==").0, 200);
    assert_eq!(events.finish().end.unwrap().status, "signal: interrupt");
}

#[test]
fn the_command_is_notified_of_a_new_terminal_size() {
    let guest = GuestProcess::start();
    let script = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done";
    let mut events = guest.start_request(&on_terminal(script, 80, 24));
    let pid = events.pid();
    events.until("ready");
    let update = |cols, rows| {
        let size = json!({"cols": cols, "rows": rows});
        json!({"process": {"pid": pid}, "pty": {"size": size}})
    };
    assert_eq!(guest.call("Update", &update(0, 0)).0, 200);
    assert_eq!(guest.call("Update", &update(132, 0)).0, 200);
    assert_eq!(events.finish().pty.trim(), "24 132");
}

#[test]
fn terminal_operations_are_refused_without_a_terminal() {
    let guest = GuestProcess::start();
    let mut events = guest.shell("exec sleep 1000");
    let pid = events.pid();
    let (status, failure) = type_in(&guest, pid, "eWVzCg==");
    assert_eq!((status, &failure["code"]), (400, &json!("failed_precondition")));
    let update = json!({"process": {"pid": pid}, "pty": {"size": {"cols": 1, "rows": 1}}});
    assert_eq!(guest.call("Update", &update).0, 400);
    assert!(lives(pid));
}
