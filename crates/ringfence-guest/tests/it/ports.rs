//! Forwarding of ports inside the sandbox.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};

use crate::guest::{Answer, Guest};

fn connect(guest: &Guest, target: &str) -> Answer {
    let mut stream = guest.connect();
    write!(stream, "CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n\r\n").unwrap();
    Answer::read(stream)
}

#[test]
fn bytes_go_both_ways_and_an_end_of_one_is_not_an_end_of_the_other() {
    let guest = Guest::start();
    for host in ["127.0.0.1", "localhost"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).unwrap();
            stream.write_all(&all).unwrap();
        });
        let mut answer = connect(&guest, &format!("{host}:{port}"));
        assert_eq!(answer.status, 200);
        let sent: Vec<u8> = (0..1_000_000u32).flat_map(u32::to_le_bytes).collect();
        answer.stream.get_mut().write_all(&sent).unwrap();
        answer.stream.get_ref().shutdown(Shutdown::Write).unwrap();
        let mut received = Vec::new();
        answer.stream.read_to_end(&mut received).unwrap();
        assert!(received == sent);
        server.join().unwrap();
    }
}

#[test]
fn a_port_that_nobody_listens_on_is_said_not_to_be_open() {
    let guest = Guest::start();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut answer = connect(&guest, &free.to_string());
    let body: serde_json::Value = serde_json::from_slice(&answer.rest()).unwrap();
    assert_eq!((answer.status, &body["code"]), (502, &serde_json::json!(502)));
    assert!(body["message"].as_str().unwrap().contains("port is not open"));
}

#[test]
fn nothing_but_loopback_can_be_reached() {
    let guest = Guest::start();
    for target in ["192.0.2.1:80", "example.org:80", "127.0.0.1", "[fe80::1]:80"] {
        assert_eq!(connect(&guest, target).status, 400, "{target}");
    }
}
