//! Ports inside a sandbox, forwarded to the host's loopback.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ringfence_test_ledger::engine::DEV_IMAGE;
use ringfence_test_ledger::require;

use crate::scene::{DOCKER, Engine, EngineScene, PODMAN, WAIT_TIMEOUT, expect_success};

/// Program that prints its port, and sends a text to every client.
const SERVER: &str = "
import socket
listener = socket.create_server(('127.0.0.1', 0))
print(listener.getsockname()[1], flush=True)
while True:
    with listener.accept()[0] as connection:
        connection.sendall(b'from inside')
";

/// Starts a command that keeps running, and returns its first line of output.
fn begin(command: &mut Command) -> (Child, String) {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("ringfence can be started");
    let mut line = String::new();
    let heard = child.stdout.take().expect("it was asked for");
    BufReader::new(heard).read_line(&mut line).expect("it says something");
    (child, line.trim_end().to_owned())
}

/// Connects to an address and returns what the server sends.
fn hear(address: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("somebody listens there");
    stream.set_read_timeout(Some(WAIT_TIMEOUT)).expect("a time can be set");
    let mut heard = String::new();
    stream.read_to_string(&mut heard).expect("it ends in time");
    heard
}

/// Returns true if the server inside is reached at an address. Another program of the host may have
/// that port.
fn leads_inside(address: &str) -> bool {
    let Ok(mut stream) = TcpStream::connect(address) else { return false };
    stream.set_read_timeout(Some(Duration::from_secs(1))).expect("a time can be set");
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard); // another program may send nothing
    heard == b"from inside"
}

#[track_caller]
fn a_port_is_forwarded(engine: Engine) {
    let scene = EngineScene::new(engine, "forwarded");
    scene.start(DEV_IMAGE, &["--net", "closed"]);
    let exec = ["exec", &scene.name, "--", "python3", "-c", SERVER];
    let (mut server, inside) = begin(&mut scene.ringfence(&exec));
    assert!(!leads_inside(&format!("127.0.0.1:{inside}")), "the sandbox's loopback is its own");

    let (mut forwarding, address) =
        begin(&mut scene.ringfence(&["port", &scene.name, &format!("0:{inside}")]));
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    for _ in 0..3 {
        assert_eq!(hear(&address), "from inside");
    }
    let (mut in_vain, nowhere) = begin(&mut scene.ringfence(&["port", &scene.name, "0:1"]));
    assert_eq!(hear(&nowhere), "", "nobody listens at that port inside");

    expect_success(&mut scene.ringfence(&["stop", &scene.name]));
    server.wait().expect("it was started here");
    for forwarding in [&mut forwarding, &mut in_vain] {
        assert!(
            forwarding.wait().expect("it was started here").success(),
            "it ends with its sandbox"
        );
    }
    assert!(!leads_inside(&address));
}

#[test]
fn a_port_of_a_closed_docker_container_is_forwarded_while_it_is_open() {
    require!(binary, docker, test_image_dev);
    a_port_is_forwarded(DOCKER);
}

#[test]
fn a_port_of_a_closed_podman_container_is_forwarded_while_it_is_open() {
    require!(binary, podman, test_image_dev);
    a_port_is_forwarded(PODMAN);
}
