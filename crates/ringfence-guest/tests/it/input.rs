//! Input of commands.

use std::io::{Read, Write};

use ringfence_proto::bytes::Base64Bytes;
use ringfence_proto::frame;
use ringfence_proto::process::{
    InputEvent, ProcessInput, ProcessRequest, ProcessSelector, StartRequest, StreamInputRequest,
};
use serde_json::json;

use crate::guest::{GuestProcess, HttpAnswer, shell};

fn with_input(script: &str) -> StartRequest {
    StartRequest { stdin: None, ..shell(script) }
}

#[test]
fn input_is_written_until_it_is_closed() {
    let guest = GuestProcess::start();
    let mut events = guest.start_request(&with_input("cat; echo end"));
    let pid = events.pid();
    for text in ["b25lCg==", "dHdvCg=="] {
        let message = json!({"process": {"pid": pid}, "input": {"stdin": text}});
        assert_eq!(guest.call("SendInput", &message).0, 200);
    }
    assert_eq!(guest.call("CloseStdin", &json!({"process": {"pid": pid}})).0, 200);
    assert_eq!(events.finish().stdout, "one\ntwo\nend\n");
}

#[test]
fn a_command_started_without_input_reads_an_empty_input() {
    let guest = GuestProcess::start();
    assert_eq!(guest.run("cat; echo end").stdout, "end\n");
    let mut events = guest.shell("exec sleep 1000");
    let pid = events.pid();
    let message = json!({"process": {"pid": pid}, "input": {"stdin": "b25lCg=="}});
    let (status, failure) = guest.call("SendInput", &message);
    assert_eq!((status, &failure["code"]), (400, &json!("failed_precondition")));
}

#[test]
fn unread_input_waits_until_the_command_ends() {
    let guest = GuestProcess::start();
    let mut events = guest.start_request(&with_input("exec sleep 1000"));
    let pid = events.pid();
    let body =
        json!({"process": {"pid": pid}, "input": {"stdin": "A".repeat(1 << 20)}}).to_string();
    let mut waiting = guest.connect();
    let head =
        "POST /process.Process/SendInput HTTP/1.1\r\nhost: guest\r\ncontent-type: application/json";
    write!(waiting, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    assert_eq!(guest.run("echo free").stdout, "free\n");
    guest.call("SendSignal", &json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"}));
    assert!([400, 404].contains(&HttpAnswer::read(waiting).status));
    events.finish();
}

#[test]
fn a_stream_of_input_arrives_in_order() {
    let guest = GuestProcess::start();
    let mut events = guest.start_request(&with_input("exec wc -c"));
    let pid = events.pid();
    let process = ProcessSelector::Pid(u32::try_from(pid).unwrap());
    let mut body = frame::encode_message(&StreamInputRequest::Start(ProcessRequest { process }));
    let data = StreamInputRequest::Data(InputEvent {
        input: ProcessInput::Stdin(Base64Bytes(vec![b'x'; 100_000])),
    });
    for _ in 0..10 {
        body.extend(frame::encode_message(&data));
        body.extend(frame::encode_message(&json!({"keepalive": {}})));
    }
    let head =
        "POST /process.Process/StreamInput HTTP/1.1\r\ncontent-type: application/connect+json";
    let mut answer = guest.request(head, &body);
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.rest(),
        [frame::encode_message(&json!({})), frame::encode_end(&json!({}))].concat()
    );
    assert_eq!(guest.call("CloseStdin", &json!({"process": {"pid": pid}})).0, 200);
    assert_eq!(events.finish().stdout.trim(), "1000000");
}

#[test]
fn a_stream_of_input_that_names_no_command_is_refused() {
    let guest = GuestProcess::start();
    let head =
        "POST /process.Process/StreamInput HTTP/1.1\r\ncontent-type: application/connect+json";
    let body = frame::encode_message(&json!({"data": {"input": {"stdin": ""}}}));
    let answer = String::from_utf8(guest.request(head, &body).rest()).unwrap();
    assert!(answer.contains("invalid_argument"), "{answer}");
}

#[test]
fn an_abandoned_input_stream_does_not_end_the_command() {
    let guest = GuestProcess::start();
    let mut events = guest.start_request(&with_input("read line; echo $line"));
    let pid = events.pid();
    let mut abandoned = guest.connect();
    let head = "POST /process.Process/StreamInput HTTP/1.1\r\nhost: guest\r\ncontent-type: \
                application/connect+json";
    write!(abandoned, "{head}\r\ncontent-length: 1000\r\n\r\n\0\0").unwrap();
    abandoned.shutdown(std::net::Shutdown::Write).unwrap();
    let _ = abandoned.read_to_end(&mut Vec::new()); // an answer is allowed, but not required
    let message = json!({"process": {"pid": pid}, "input": {"stdin": "b25lCg=="}});
    assert_eq!(guest.call("SendInput", &message).0, 200);
    assert_eq!(events.finish().stdout, "one\n");
}
