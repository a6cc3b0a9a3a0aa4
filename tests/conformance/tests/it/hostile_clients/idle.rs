//! Clients that open connections and send nothing, or as little as possible.

use std::io::{Read, Write};
use std::net::TcpStream;

use ringfence_test_ledger::require;

use super::strain::answer_on;
use super::{ANY_KEY, CreatedSandbox, KeyClient, against_each};
use crate::asks;

/// Number of connections that a server keeps open at once.
const MAX_SERVER_CONNECTIONS: usize = 4096;

const PLAIN: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";

/// Takes every connection that a server has, and calls `act` on each.
fn take_all(client: &KeyClient<'_>, act: impl Fn(&mut TcpStream)) -> Vec<TcpStream> {
    let take = |_| {
        let mut stream = client.connect();
        act(&mut stream);
        stream
    };
    (0..MAX_SERVER_CONNECTIONS).map(take).collect()
}

/// Opens the event stream of a sandbox.
fn watch(client: &KeyClient<'_>, made: &CreatedSandbox) -> TcpStream {
    let mut stream = client.connect();
    let head = format!(
        "GET /ringfence/sandboxes/{} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-KEY: {ANY_KEY}\r\n\r\n",
        format_args!("{}/events", made.id)
    );
    stream.write_all(head.as_bytes()).expect("the server reads");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("it is answered");
        head.extend(byte);
    }
    assert!(head.starts_with(b"HTTP/1.1 200"));
    stream
}

#[test]
fn idle_connections_block_no_client_and_active_ones_stay() {
    require!(root, ordinary_user, binary, user_namespaces, ordinary_user_namespaces);
    let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised =
        rustix::process::Rlimit { current: descriptors.maximum, maximum: descriptors.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised)
        .expect("it is this process's own");
    against_each(|client, _| {
        let made = client.make();
        let mut watching = watch(client, &made);
        let never_spoke = take_all(client, |_| {});
        client.check("GET /sandboxes", "", 200);
        let began_to_speak =
            take_all(client, |stream| stream.write_all(b"GET /sandb").expect("the server reads"));
        client.check("GET /sandboxes", "", 200);
        drop((never_spoke, began_to_speak));
        // On its own, each of these connections could stay idle for minutes.
        let rest = take_all(client, |stream| {
            stream.write_all(PLAIN).expect("the server reads");
            assert_eq!(answer_on(stream), 204);
        });
        client.check("GET /sandboxes", "", 200);
        drop(rest);
        let refused = b"POST /sandboxes HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n";
        let owe_a_body =
            take_all(client, |stream| stream.write_all(refused).expect("the server reads"));
        client.check("GET /sandboxes", "", 200);
        drop(owe_a_body);
        let file = b"GET /page/vendor/xterm.mjs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
        let take_no_answer =
            take_all(client, |stream| stream.write_all(file).expect("the server reads"));
        client.check("GET /sandboxes", "", 200);
        drop(take_no_answer);
        // The server did not mistake the stream of a waiting client for an idle connection.
        let asks = asks::RawClient::for_url(&client.server.url);
        asks.shell(&(made.id.clone(), made.token.clone()), "echo still-watched", &[]);
        let mut seen = String::new();
        while !seen.contains("still-watched") {
            let mut bytes = [0; 1000];
            let length = watching.read(&mut bytes).expect("it goes on");
            assert_ne!(length, 0, "it was closed: {seen}");
            seen.push_str(&String::from_utf8_lossy(&bytes[..length]));
        }
        client.check(&format!("DELETE /sandboxes/{}", made.id), "", 204);
    });
}
