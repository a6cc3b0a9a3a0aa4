//! Tests of the process that is a carrier.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use crate::guest::DEADLINE;

#[test]
fn a_carrier_passes_bytes_on_and_each_direction_ends_on_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("link.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let mut carrier = Command::new(env!("CARGO_BIN_EXE_ringfence-guest"))
        .arg("--carry")
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut guest, _) = listener.accept().unwrap();
    guest.set_read_timeout(Some(DEADLINE)).unwrap();
    let bytes: Vec<u8> = (0..300_000_u32).map(|number| ((number * 31) >> 4) as u8).collect();

    let mut input = carrier.stdin.take().unwrap();
    let sent = bytes.clone();
    let writer = std::thread::spawn(move || input.write_all(&sent).unwrap());
    let mut received = Vec::new();
    guest.read_to_end(&mut received).unwrap();
    writer.join().unwrap();
    assert!(received == bytes, "{} bytes", received.len());

    // The input has ended, and the other direction still works.
    let mut output = carrier.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut received = Vec::new();
        output.read_to_end(&mut received).unwrap();
        received
    });
    guest.write_all(&bytes).unwrap();
    guest.shutdown(Shutdown::Both).unwrap();
    assert!(reader.join().unwrap() == bytes);
    let mut printed = String::new();
    carrier.stderr.take().unwrap().read_to_string(&mut printed).unwrap();
    assert_eq!(printed, "");
    assert!(carrier.wait().unwrap().success());
}

#[test]
fn a_carrier_ends_when_the_guest_closes_it_although_its_input_is_open() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("link.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let mut carrier = Command::new(env!("CARGO_BIN_EXE_ringfence-guest"))
        .arg("--carry")
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let _input = carrier.stdin.take().unwrap();
    drop(listener.accept().unwrap());
    assert!(carrier.wait().unwrap().success());
}

#[test]
fn a_carrier_without_a_socket_fails_in_silence() {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_ringfence-guest"))
        .arg("--carry")
        .arg(directory.path().join("absent"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty() && output.stderr.is_empty());
}
