//! Forwarding of ports inside the sandbox.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};

use crate::guest::{GuestProcess, HttpAnswer};

fn connect(guest: &GuestProcess, target: &str) -> HttpAnswer {
    let mut stream = guest.connect();
    write!(stream, "CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n\r\n").unwrap();
    HttpAnswer::read(stream)
}

#[test]
fn a_forwarded_port_carries_both_directions_until_each_ends() {
    let guest = GuestProcess::start();
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
fn a_port_without_a_listener_is_reported_as_not_open() {
    let guest = GuestProcess::start();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut answer = connect(&guest, &free.to_string());
    let body: serde_json::Value = serde_json::from_slice(&answer.rest()).unwrap();
    assert_eq!((answer.status, &body["code"]), (502, &serde_json::json!(502)));
    assert!(body["message"].as_str().unwrap().contains("port is not open"));
}

#[test]
fn only_loopback_can_be_reached_through_the_guest() {
    let guest = GuestProcess::start();
    for target in ["192.0.2.1:80", "example.org:80", "127.0.0.1", "[fe80::1]:80"] {
        assert_eq!(connect(&guest, target).status, 400, "{target}");
    }
}
