//! Clients that violate the protocol or do not read, and commands that attack their first process.

use std::io::{Read, Write};
use std::time::Duration;

use ringfence_proto::code::Code;
use ringfence_proto::frame;
use ringfence_proto::process::StartRequest;
use serde_json::json;

use crate::guest::{CommandEvents, GuestProcess, HttpAnswer, eventually, lives, shell};

#[test]
fn malformed_streams_are_answered_with_an_error() {
    let guest = GuestProcess::start();
    let head = "POST /process.Process/Start HTTP/1.1\r\ncontent-type: application/connect+json";
    let whole = frame::encode_message(&shell("exit 0"));
    let cases: [&[u8]; 8] = [
        b"",
        b"\0",
        &whole[..whole.len() - 1],
        b"\x01\0\0\0\x02{}",
        b"\x02\0\0\0\x02{}",
        b"\0\xff\xff\xff\xff",
        b"\0\0\0\0\x03nul",
        b"\0\0\0\0\x10{\"process\":\"cmd\"}",
    ];
    for body in cases {
        let error = CommandEvents::from_answer(guest.request(head, body)).finish().error.unwrap();
        assert!(
            [Code::InvalidArgument, Code::ResourceExhausted].contains(&error.code),
            "{body:?}: {error:?}"
        );
    }
    assert_eq!(guest.run("echo alive").stdout, "alive\n");
}

#[test]
fn malformed_calls_are_answered_with_an_error() {
    let guest = GuestProcess::start();
    let post = |path: &str, kind: &str| format!("POST {path} HTTP/1.1\r\ncontent-type: {kind}");
    for (head, body, status) in [
        (post("/process.Process/SendSignal", "application/json"), &b"{"[..], 400),
        (post("/process.Process/SendSignal", "application/json"), b"", 400),
        (post("/process.Process/SendSignal", "application/json"), b"\xff", 400),
        (post("/process.Process/List", "application/proto"), b"", 415),
        (post("/process.Process/Start", "application/json"), b"{}", 415),
        (post("/process.Process/Nothing", "application/json"), b"{}", 501),
        (post("/nothing", "application/json"), b"{}", 404),
        ("GET /process.Process/List HTTP/1.1".into(), b"", 405),
        (
            post("/process.Process/List", "application/json") + "\r\nconnect-timeout-ms: soon",
            b"{}",
            400,
        ),
    ] {
        let mut answer = guest.request(&head, body);
        assert_eq!(answer.status, status, "{head}");
        assert!(
            serde_json::from_slice::<serde_json::Value>(&answer.rest()).unwrap()["message"]
                .is_string()
        );
    }
    let message = vec![b' '; ringfence_proto::MAX_MESSAGE_BYTES + 1];
    let head = post("/process.Process/List", "application/json");
    let mut stream = guest.connect();
    write!(stream, "{head}\r\nhost: guest\r\ncontent-length: {}\r\n\r\n", message.len()).unwrap();
    let _ = stream.write_all(&message); // the guest may answer before it has read everything
    assert_eq!(HttpAnswer::read(stream).status, 429);
}

#[test]
fn bytes_that_are_no_request_end_only_their_connection() {
    let guest = GuestProcess::start();
    for bytes in [
        &b"\0\0\0\0"[..],
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\xfc\x03",
    ] {
        let mut stream = guest.connect();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap();
    }
    let mut stream = guest.connect();
    // Ignore the error, because the guest may refuse the request before it has read everything.
    let _ = stream.write_all(format!("GET /{} HTTP/1.1\r\n", "x".repeat(1 << 20)).as_bytes());
    assert!(stream.read(&mut [0; 64]).is_ok_and(|length| length > 0));
    assert_eq!(guest.request("GET /health HTTP/1.1", b"").status, 204);
}

#[test]
fn a_client_that_does_not_read_delays_no_other_command() {
    let guest = GuestProcess::start();
    let before = guest.memory();
    let mut deaf: Vec<_> = (0..8).map(|_| guest.shell("exec cat /dev/zero")).collect();
    let pids: Vec<_> = deaf.iter_mut().map(|events| events.pid()).collect();
    assert_eq!(guest.run("head -c 3000000 /dev/zero").stdout.len(), 3_000_000);
    let grown = guest.memory().saturating_sub(before);
    assert!(grown < 32 * 1024, "{grown} KiB more");
    // The commands can be ended although their client does not read.
    for pid in pids {
        guest.call("SendSignal", &json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"}));
        eventually("it is ended", || !lives(pid));
    }
    eventually("nothing is listed", || guest.list().is_empty());
}

#[test]
fn a_command_that_kills_its_supervisor_is_ended() {
    let guest = GuestProcess::start();
    let script = "(setsid sh -c 'echo $$ > daemon; exec sleep 1000' > /dev/null 2>&1 &)
        while [ ! -s daemon ]; do sleep 0.01; done; kill -9 $PPID; exec sleep 1000";
    let mut left = guest.shell("sleep 1000 > /dev/null 2>&1 & echo $!");
    left.pid();
    let innocent: u64 = left.until("\n").trim().parse().unwrap();
    assert!(left.finish().end.unwrap().exited);
    let mut other = guest.shell("exec sleep 1000");
    let other_pid = other.pid();
    let finished = guest.run(script);
    assert_eq!(finished.end.unwrap().status, "signal: killed");
    let daemon = fs_err::read_to_string(guest.directory.path().join("daemon"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    eventually("what it left is ended", || !lives(daemon) && !lives(finished.pid));
    assert!(lives(innocent) && lives(other_pid), "others were ended with it");
}

#[test]
fn a_command_that_stops_its_supervisor_can_be_ended() {
    let guest = GuestProcess::start();
    let request = StartRequest {
        stdin: None,
        ..shell("read line; kill -STOP $PPID; echo stopped; exec sleep 1000")
    };
    let mut events = guest.start_request(&request);
    let pid = events.pid();
    guest.call("CloseStdin", &json!({"process": {"pid": pid}}));
    events.until("stopped");
    assert_eq!(guest.run("echo free").stdout, "free\n");
    let kill = json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"});
    assert_eq!(guest.call("SendSignal", &kill).0, 200);
    assert_eq!(events.finish().end.unwrap().status, "signal: killed");
    eventually("it is ended", || !lives(pid));
}

#[test]
fn a_command_that_stops_its_supervisor_at_once_is_ended_by_its_deadline() {
    let guest = GuestProcess::start();
    let script = "echo $$ > command; kill -STOP $PPID; exec sleep 1000";
    let finished = guest.stream("Start", "\r\nconnect-timeout-ms: 3000", &shell(script)).finish();
    assert_eq!(finished.error.unwrap().code, Code::DeadlineExceeded);
    let command = fs_err::read_to_string(guest.directory.path().join("command"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    eventually("it is ended", || !lives(command));
}

#[test]
fn an_endless_request_delays_no_other_client() {
    let guest = GuestProcess::start();
    let slow: Vec<_> = (0..50)
        .map(|_| {
            let mut stream = guest.connect();
            stream.write_all(b"POST /process.Process/Start HTTP/1.1\r\nx-slow: ").unwrap();
            stream
        })
        .collect();
    let began = std::time::Instant::now();
    assert_eq!(guest.run("echo free").stdout, "free\n");
    assert!(began.elapsed() < Duration::from_secs(10));
    drop(slow);
}
