//! Commands: their start, output, signals and end.

use std::io::Write;
use std::time::{Duration, Instant};

use ringfence_proto::code::Code;
use ringfence_proto::process::{ProcessConfig, ProcessEvent, StartRequest};
use serde_json::json;

use crate::guest::{DEADLINE, GuestProcess, HttpAnswer, eventually, lives, shell};

#[test]
fn a_command_starts_writes_and_ends() {
    let guest = GuestProcess::start();
    let mut events = guest.shell("echo out; echo err >&2; exit 3");
    assert!(events.pid() > 0);
    let finished = events.finish();
    assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("out\n", "err\n"));
    let end = finished.end.unwrap();
    assert_eq!((end.exit_code, end.exited, end.error.as_deref()), (3, true, Some("exit status 3")));
    assert!(end.usage.unwrap().max_rss > 0);
    assert_eq!(finished.error, None);
}

#[test]
fn a_command_gets_the_sandboxes_variables_and_its_own() {
    let guest = GuestProcess::start();
    let mut request = shell("echo $HOME:$GIVEN:$PATH:$USER");
    request.process.envs.insert("GIVEN".into(), "given".into());
    request.process.envs.insert("PATH".into(), "/somewhere".into());
    let stdout = guest.start_request(&request).finish().stdout;
    let words: Vec<_> = stdout.trim().split(':').collect();
    assert_eq!((words[1], words[2]), ("given", "/somewhere"));
    assert!(words[0].starts_with('/') && !words[3].is_empty(), "{stdout}");
}

#[test]
fn variables_of_any_length_reach_a_command() {
    let guest = GuestProcess::start();
    for length in [1, 31_000, 32_768, 100_000] {
        let mut request = shell("echo ${#LONG}");
        request.process.envs.insert("LONG".into(), "x".repeat(length));
        assert_eq!(guest.start_request(&request).finish().stdout, format!("{length}\n"));
    }
}

#[test]
fn only_the_command_holds_its_streams() {
    let guest = GuestProcess::start();
    // The parent of the command closes its copies of the streams at some later time, so the script
    // polls. The first test proves that the command's own streams can be seen in /proc.
    let finished = guest.run(
        "test -e /proc/$$/fd/1 && while test -e /proc/$PPID/fd/1; do sleep 0.01; done; echo alone",
    );
    assert_eq!(finished.stdout, "alone\n");
}

#[test]
fn a_command_starts_in_the_requested_directory() {
    let guest = GuestProcess::start();
    assert_eq!(guest.run("pwd").stdout.trim(), guest.directory.path().to_str().unwrap());
    let mut request = shell("pwd");
    request.process.cwd = Some("/usr".into());
    assert_eq!(guest.start_request(&request).finish().stdout, "/usr\n");
    for (wrong, why) in [("/nowhere", "does not exist"), ("/etc/passwd", "")] {
        request.process.cwd = Some(wrong.into());
        let error = guest.start_request(&request).finish().error.unwrap();
        assert_eq!(error.code, Code::InvalidArgument);
        assert!(error.message.contains(wrong) && error.message.contains(why), "{error}");
    }
}

#[test]
fn a_program_that_cannot_be_executed_is_reported_with_the_reason() {
    let guest = GuestProcess::start();
    let start = |cmd: &str| {
        let process = ProcessConfig { cmd: cmd.into(), ..ProcessConfig::default() };
        guest
            .start_request(&StartRequest { process, ..StartRequest::default() })
            .finish()
            .error
            .unwrap()
    };
    assert_eq!(start("no-such-program").code, Code::NotFound);
    assert_eq!(start("/no/such/program").code, Code::NotFound);
    assert_eq!(start("").code, Code::InvalidArgument);
    assert_eq!(start("a\0b").code, Code::InvalidArgument);
    let file = guest.directory.path().join("file");
    fs_err::write(&file, "text").unwrap();
    assert_eq!(start(file.to_str().unwrap()).code, Code::PermissionDenied);
    assert!(guest.list().is_empty());
}

#[test]
fn a_signal_is_reported_by_its_name() {
    let guest = GuestProcess::start();
    for (signal, status) in
        [("SIGNAL_SIGTERM", "signal: terminated"), ("SIGNAL_SIGKILL", "signal: killed")]
    {
        let mut events = guest.shell("exec sleep 1000");
        let pid = events.pid();
        let (code, _) =
            guest.call("SendSignal", &json!({"process": {"pid": pid}, "signal": signal}));
        assert_eq!(code, 200);
        let end = events.finish().end.unwrap();
        assert_eq!((end.exit_code, end.exited, end.status.as_str()), (-1, false, status));
    }
}

#[test]
fn commands_are_listed_and_found_by_id_and_tag() {
    let guest = GuestProcess::start();
    let request = StartRequest { tag: Some("server".into()), ..shell("exec sleep 1000") };
    let mut events = guest.start_request(&request);
    let pid = events.pid();
    let (_, listed) = guest.call("List", &json!({}));
    assert_eq!(listed["processes"][0]["pid"], pid);
    assert_eq!(listed["processes"][0]["tag"], "server");
    assert_eq!(listed["processes"][0]["config"]["cmd"], "/bin/sh");
    let kill = json!({"process": {"tag": "server"}, "signal": "SIGNAL_SIGKILL"});
    assert_eq!(guest.call("SendSignal", &kill).0, 200);
    assert_eq!(events.finish().end.unwrap().status, "signal: killed");
    let (status, failure) = guest.call("SendSignal", &kill);
    assert_eq!((status, &failure["code"]), (404, &json!("not_found")));
}

#[test]
fn every_method_reports_an_unknown_command() {
    let guest = GuestProcess::start();
    let process = json!({"pid": 4_000_000_000u32});
    for (method, message) in [
        ("SendInput", json!({"process": process, "input": {"stdin": ""}})),
        ("SendSignal", json!({"process": process, "signal": "SIGNAL_SIGTERM"})),
        ("CloseStdin", json!({"process": process})),
        ("Update", json!({"process": process, "pty": {"size": {"cols": 1, "rows": 1}}})),
    ] {
        let (status, failure) = guest.call(method, &message);
        assert_eq!((status, &failure["code"]), (404, &json!("not_found")), "{method}");
    }
    let error = guest.stream("Connect", "", &json!({"process": process})).finish().error.unwrap();
    assert_eq!(error.code, Code::NotFound);
}

#[test]
fn several_clients_watch_one_command() {
    let guest = GuestProcess::start();
    let mut first =
        guest.start_request(&StartRequest { stdin: None, ..shell("read line; echo $line") });
    let pid = first.pid();
    let mut second = guest.stream("Connect", "", &json!({"process": {"pid": pid}}));
    assert_eq!(second.pid(), pid);
    let input = json!({"process": {"pid": pid}, "input": {"stdin": "aGVsbG8K"}});
    assert_eq!(guest.call("SendInput", &input).0, 200);
    for events in [first, second] {
        let finished = events.finish();
        assert_eq!(finished.stdout, "hello\n");
        assert!(finished.end.unwrap().exited);
    }
}

#[test]
fn a_client_that_disconnects_does_not_end_its_command() {
    let guest = GuestProcess::start();
    let mut events = guest.start_request(&StartRequest {
        stdin: None,
        ..shell("read line; echo $line > file; read line")
    });
    let pid = events.pid();
    events.hang_up();
    let input = json!({"process": {"pid": pid}, "input": {"stdin": "aGVsbG8K"}});
    assert_eq!(guest.call("SendInput", &input).0, 200);
    let file = guest.directory.path().join("file");
    eventually("it still runs", || {
        fs_err::read_to_string(&file).is_ok_and(|text| text == "hello\n")
    });
    assert!(lives(pid));
    let mut again = guest.stream("Connect", "", &json!({"process": {"pid": pid}}));
    assert_eq!(again.pid(), pid);
    assert_eq!(guest.call("CloseStdin", &json!({"process": {"pid": pid}})).0, 200);
    assert!(again.finish().end.unwrap().exited);
}

#[test]
fn output_without_a_subscriber_does_not_block_the_command() {
    let guest = GuestProcess::start();
    let mut events = guest.shell("head -c 10000000 /dev/zero; echo done > file");
    events.pid();
    events.hang_up();
    eventually("it ends", || guest.directory.path().join("file").exists());
}

#[test]
fn a_deadline_ends_the_whole_tree_and_the_stream() {
    let guest = GuestProcess::start();
    let script =
        "(setsid sh -c 'echo $$ > daemon; exec sleep 1000' > /dev/null 2>&1 &) ; exec sleep 1000";
    let began = Instant::now();
    let finished = guest.stream("Start", "\r\nconnect-timeout-ms: 3000", &shell(script)).finish();
    assert_eq!(finished.error.unwrap().code, Code::DeadlineExceeded);
    assert_eq!(finished.end, None);
    assert!((Duration::from_secs(3)..DEADLINE).contains(&began.elapsed()));
    let daemon = fs_err::read_to_string(guest.directory.path().join("daemon"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert!(!lives(daemon) && !lives(finished.pid));
    assert!(guest.list().is_empty());
}

#[test]
fn a_deadline_of_a_later_stream_ends_that_stream_alone() {
    let guest = GuestProcess::start();
    let mut events = guest.shell("exec sleep 1000");
    let pid = events.pid();
    let later = guest
        .stream("Connect", "\r\nconnect-timeout-ms: 100", &json!({"process": {"pid": pid}}))
        .finish();
    assert_eq!(later.error.unwrap().code, Code::DeadlineExceeded);
    assert!(lives(pid));
}

#[test]
fn killing_a_command_ends_its_background_processes() {
    let guest = GuestProcess::start();
    let mut events = guest.shell("(setsid sh -c 'echo $$; exec sleep 1000' &) ; exec sleep 1000");
    let pid = events.pid();
    let daemon: u64 = events.until("\n").trim().parse().unwrap();
    assert!(lives(daemon));
    let kill = json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"});
    assert_eq!(guest.call("SendSignal", &kill).0, 200);
    assert_eq!(events.finish().end.unwrap().status, "signal: killed");
    assert!(!lives(daemon));
}

#[test]
fn background_processes_do_not_delay_the_end_of_their_command() {
    let guest = GuestProcess::start();
    let began = Instant::now();
    let left = "sh -c 'echo $$ | tee begun; while sleep 0.05; do echo more || exit; done' &";
    let finished =
        guest.run(&format!("{left} while [ ! -s begun ]; do sleep 0.01; done; sleep 0.2"));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(finished.end.unwrap().exited);
    let left: u64 = finished.stdout.lines().next().unwrap().parse().unwrap();
    // The process that is left keeps writing although nobody reads, and is not killed for it.
    let before = Instant::now();
    eventually("a while passes", || before.elapsed() > Duration::from_millis(500));
    assert!(lives(left));
}

#[test]
fn all_output_of_a_command_comes_before_its_end_event() {
    let guest = GuestProcess::start();
    for _ in 0..20 {
        let finished =
            guest.run("head -c 300000 /dev/zero | tr '\\0' x; head -c 60000 /dev/zero >&2");
        assert_eq!((finished.stdout.len(), finished.stderr.len()), (300_000, 60_000));
    }
}

#[test]
fn a_silent_stream_sends_keep_alive_messages() {
    let guest = GuestProcess::start();
    let began = Instant::now();
    let finished =
        guest.stream("Start", "\r\nkeepalive-ping-interval: 1", &shell("sleep 2.5")).finish();
    assert!(
        (1..=began.elapsed().as_secs()).contains(&(finished.keepalives as u64)),
        "{}",
        finished.keepalives
    );
}

#[test]
fn two_stuck_commands_delay_no_other_command() {
    let guest = GuestProcess::start();
    let mut stuck: Vec<_> = (0..2).map(|_| guest.shell("kill -STOP $$")).collect();
    let pids: Vec<_> = stuck.iter_mut().map(|events| events.pid()).collect();
    assert_eq!(guest.run("echo free").stdout, "free\n");
    assert_eq!(guest.list(), pids);
}

#[test]
fn a_user_that_the_sandbox_does_not_have_is_refused() {
    let guest = GuestProcess::start();
    // The headers name `user`, which E2B's clients use for the user of any sandbox, and
    // `nobody-here`.
    let ours =
        guest.stream("Start", "\r\nauthorization: Basic dXNlcjo=", &shell("exit 0")).finish();
    assert!(ours.end.unwrap().exited);
    let other = guest
        .stream("Start", "\r\nauthorization: Basic bm9ib2R5LWhlcmU6", &shell("exit 0"))
        .finish();
    assert_eq!(other.error.unwrap().code, Code::Unauthenticated);
}

#[test]
fn every_endpoint_but_health_requires_the_token() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    fs_err::write(&file, "secret\n").unwrap();
    let guest = GuestProcess::start_with(&["--token-file", file.to_str().unwrap()]);
    assert_eq!(guest.request("GET /health HTTP/1.1", b"").status, 204);
    assert_eq!(guest.call("List", &json!({})).0, 401);
    assert_eq!(guest.request("CONNECT 127.0.0.1:1 HTTP/1.1", b"").status, 401);
    let head = "POST /process.Process/List HTTP/1.1\r\ncontent-type: application/json\r\n\
                x-access-token: secret";
    assert_eq!(guest.request(head, b"{}").status, 200);
    assert_eq!(guest.request(&head.replace("secret", "secres"), b"{}").status, 401);
}

/// A client whose body arrives after its request was refused must still receive the reply.
#[test]
fn a_refusal_reaches_a_client_that_still_sends() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    fs_err::write(&file, "secret\n").unwrap();
    let guest = GuestProcess::start_with(&["--token-file", file.to_str().unwrap()]);
    let check = |head: &str, status: u16| {
        let mut stream = guest.connect();
        write!(stream, "{head}\r\nhost: guest\r\ncontent-length: 2\r\n\r\n").unwrap();
        std::thread::sleep(Duration::from_millis(20)); // a faulty guest would close the stream now
        stream.write_all(b"{}").unwrap();
        assert_eq!(HttpAnswer::read(stream).status, status, "{head}");
    };
    check("POST /process.Process/List HTTP/1.1\r\ncontent-type: application/json", 401);
    let known = "HTTP/1.1\r\nx-access-token: secret";
    check(&format!("POST /process.Process/List {known}\r\ncontent-type: text/plain"), 415);
    check(&format!("POST /process.Process/Dance {known}\r\ncontent-type: application/json"), 501);
    check(&format!("POST /nowhere {known}"), 404);
    check(&format!("PUT /files {known}"), 405);
    check(&format!("PUT /tree {known}"), 405);
}

#[test]
fn the_first_event_is_always_the_start() {
    let guest = GuestProcess::start();
    for _ in 0..50 {
        let mut events = guest.shell("echo x");
        events.pid();
        assert!(matches!(events.next(), Ok(ProcessEvent::Data(_))));
    }
}
