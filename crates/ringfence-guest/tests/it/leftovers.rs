//! Commands leave no processes, descriptors or memory behind.

use ringfence_proto::process::StartRequest;
use serde_json::json;

use crate::guest::{GuestProcess, eventually, lives, shell};

/// Returns the number of descendants of a process, zombies included.
fn below(root: u32) -> usize {
    let parents: Vec<(u32, u32)> = fs_err::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs_err::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let parent = stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()?;
            Some((pid, parent))
        })
        .collect();
    let mut found = vec![root];
    let mut next = 0;
    while next < found.len() {
        let of = found[next];
        found.extend(parents.iter().filter(|(_, parent)| *parent == of).map(|(pid, _)| *pid));
        next += 1;
    }
    found.len() - 1
}

#[test]
fn a_thousand_commands_leave_no_process_no_descriptor_and_no_memory() {
    let guest = GuestProcess::start();
    let round = |count: usize| {
        for number in 0..count {
            let script =
                ["exit 0", "echo x", "kill -9 $$", "sleep 0.001 &", "exec /nowhere"][number % 5];
            let events = guest.shell(script);
            if number % 7 == 0 { events.hang_up() } else { drop(events.finish()) }
        }
        eventually("they end", || guest.list().is_empty() && below(guest.process.id()) == 1);
    };
    round(200);
    let (descriptors, memory) = (guest.descriptors(), guest.memory());
    round(1000);
    eventually("descriptors are closed", || guest.descriptors() <= descriptors);
    let grown = guest.memory().saturating_sub(memory);
    assert!(grown < 2048, "{grown} KiB more");
}

#[test]
fn the_number_of_concurrent_commands_is_limited() {
    let guest = GuestProcess::start();
    let mut running = Vec::new();
    let refused = loop {
        let mut events = guest.shell("exec sleep 1000");
        match events.next() {
            Ok(_) => running.push(events),
            Err(end) => break end.error.unwrap(),
        }
        assert!(running.len() <= 1000, "nothing bounds them");
    };
    assert_eq!(refused.code, ringfence_proto::code::Code::ResourceExhausted);
    for pid in guest.list() {
        guest.call("SendSignal", &json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"}));
    }
    drop(running);
    eventually("all end", || below(guest.process.id()) == 1);
    assert_eq!(guest.run("echo free").stdout, "free\n");
}

#[test]
fn background_processes_end_with_their_command_only_on_request() {
    let guest = GuestProcess::start();
    let script =
        "(setsid sh -c 'echo $$; exec sleep 1000 > /dev/null 2>&1' &) | { read pid; echo $pid; }";
    for end_survivors in [false, true] {
        let mut events = guest.start_request(&StartRequest { end_survivors, ..shell(script) });
        events.pid();
        let daemon: u64 = events.until("\n").trim().parse().unwrap();
        events.finish();
        // With `end_survivors`, the end of the command is reported only after the end of its
        // survivors.
        assert_eq!(lives(daemon), !end_survivors);
    }
}

#[test]
fn all_commands_end_with_the_guest() {
    let mut guest = GuestProcess::start();
    let mut running = guest.shell("exec sleep 1000");
    let pid = running.pid();
    let mut left = guest.shell("(setsid sh -c 'echo $$; exec sleep 1000 > /dev/null 2>&1' &)");
    left.pid();
    let daemon: u64 = left.until("\n").trim().parse().unwrap();
    left.finish();
    assert!(lives(pid) && lives(daemon));
    guest.process.kill().unwrap();
    eventually("they are ended", || !lives(pid) && !lives(daemon));
}
