//! The tokens that each route of a sandbox requires.

use std::io::Write;

use ringfence::Backend;
use ringfence_test_ledger::require;
use serde_json::Value;

use super::{KeyClient, against_each};
use crate::asks;
use crate::keeper::SandboxKeeper;
use crate::served::{RunningServer, expect_nothing_left};

/// The proof that a route of a sandbox requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequiredProof {
    /// No proof at all.
    None,
    /// The token of the guest, and no other.
    Token,
    /// The token of the guest, or the traffic access token.
    AnyToken,
}

/// Every route of a sandbox: its port, the request, the body, and the required proof. `CONTEXT`
/// stands for the id of an existing context.
const ROUTES: [(u16, &str, &str, RequiredProof); 27] = [
    (49999, "GET /contexts", "", RequiredProof::AnyToken),
    (49999, "POST /contexts", "{}", RequiredProof::AnyToken),
    (49999, "POST /contexts/CONTEXT/restart", "", RequiredProof::AnyToken),
    (49999, "DELETE /contexts/CONTEXT", "", RequiredProof::AnyToken),
    (49999, "GET /contexts/", "", RequiredProof::AnyToken),
    (49999, "PUT /contexts/any/thing", "", RequiredProof::AnyToken),
    (49999, "POST /execute", r#"{"code": "1"}"#, RequiredProof::Token),
    (49999, "GET /execute", "", RequiredProof::Token),
    (49983, "GET /health", "", RequiredProof::None),
    (49983, "GET /metrics", "", RequiredProof::Token),
    (49983, "GET /envs", "", RequiredProof::Token),
    (49983, "GET /files?path=note", "", RequiredProof::Token),
    (49983, "POST /files?path=other", "x", RequiredProof::Token),
    (49983, "POST /process.Process/List", "{}", RequiredProof::Token),
    (49983, "POST /process.Process/Start", "{}", RequiredProof::Token),
    (49983, "POST /process.Process/Connect", "{}", RequiredProof::Token),
    (49983, "POST /process.Process/SendInput", "{}", RequiredProof::Token),
    (49983, "POST /process.Process/StreamInput", "{}", RequiredProof::Token),
    (49983, "POST /process.Process/SendSignal", "{}", RequiredProof::Token),
    (49983, "POST /process.Process/CloseStdin", "{}", RequiredProof::Token),
    (49983, "POST /process.Process/Update", "{}", RequiredProof::Token),
    (49983, "POST /filesystem.Filesystem/Stat", r#"{"path": "note"}"#, RequiredProof::Token),
    (49983, "POST /filesystem.Filesystem/ListDir", r#"{"path": "."}"#, RequiredProof::Token),
    (49983, "POST /filesystem.Filesystem/MakeDir", r#"{"path": "made"}"#, RequiredProof::Token),
    (49983, "POST /filesystem.Filesystem/CreateWatcher", r#"{"path": "."}"#, RequiredProof::Token),
    (49983, "POST /filesystem.Filesystem/Remove", r#"{"path": "made"}"#, RequiredProof::Token),
    (4000, "GET /", "", RequiredProof::None),
];

/// The headers of a caller, with its key or tokens, and the proofs that they satisfy.
struct CallerHeaders<'a> {
    who: &'a str,
    headers: Vec<(&'a str, &'a str)>,
    opens: &'a [RequiredProof],
}

/// Creates a context in a sandbox and returns its id.
fn context(client: &asks::RawClient, made: &(String, String)) -> String {
    let headers =
        route(49999, &made.0).into_iter().chain([("x-access-token".to_owned(), made.1.clone())]);
    let headers: Vec<(String, String)> = headers.collect();
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let (status, answer) = client.ask("POST /contexts", &headers, b"{}");
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&answer));
    let answer: Value = serde_json::from_slice(&answer).expect("it is JSON");
    answer["id"].as_str().expect("it is text").to_owned()
}

fn route(port: u16, id: &str) -> [(String, String); 3] {
    [
        ("e2b-sandbox-id".to_owned(), id.to_owned()),
        ("e2b-sandbox-port".to_owned(), port.to_string()),
        ("content-type".to_owned(), "application/json".to_owned()),
    ]
}

#[test]
fn every_sandbox_route_but_the_public_ones_requires_a_token() {
    require!(root, ordinary_user, binary, user_namespaces, ordinary_user_namespaces, python3);
    for keeper in SandboxKeeper::for_each_user(Backend::Native) {
        check_every_route(&keeper);
        expect_nothing_left(&keeper);
    }
}

#[track_caller]
fn check_every_route(keeper: &SandboxKeeper) {
    let key = |name: &str| {
        keeper.expect(&mut keeper.ringfence(&["keys", "create", name])).trim_end().to_owned()
    };
    let (one, other) = (key("one"), key("other"));
    let server = RunningServer::start(keeper);
    let make = |key: &str| {
        let client = KeyClient { server: &server, key: key.to_owned() };
        let answer =
            client.check("POST /v2/sandboxes", r#"{"templateID": "base", "timeout": 300}"#, 201);
        server.note_sandboxes();
        let answer: Value = serde_json::from_str(&answer).expect("it is JSON");
        let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
        (text("sandboxID"), text("envdAccessToken"), text("trafficAccessToken"))
    };
    let (id, token, traffic) = make(&one);
    let (strange_id, strange_token, strange_traffic) = make(&other);
    let client = asks::RawClient::for_url(&server.url);
    let nothing = "0".repeat(token.len());
    let all = [RequiredProof::None, RequiredProof::Token, RequiredProof::AnyToken];
    let shown = [
        CallerHeaders { who: "nobody", headers: vec![], opens: &[RequiredProof::None] },
        CallerHeaders {
            who: "its owner's key alone",
            headers: vec![("x-api-key", &one)],
            opens: &[RequiredProof::None],
        },
        CallerHeaders {
            who: "another's key",
            headers: vec![("x-api-key", &other)],
            opens: &[RequiredProof::None],
        },
        CallerHeaders {
            who: "a wrong token",
            headers: vec![("x-access-token", &nothing)],
            opens: &[RequiredProof::None],
        },
        CallerHeaders {
            who: "another's token",
            headers: vec![("x-access-token", &strange_token), ("x-api-key", &other)],
            opens: &[RequiredProof::None],
        },
        CallerHeaders {
            who: "another's traffic token",
            headers: vec![("e2b-traffic-access-token", &strange_traffic)],
            opens: &[RequiredProof::None],
        },
        CallerHeaders {
            who: "the token as traffic token",
            headers: vec![("e2b-traffic-access-token", &token)],
            opens: &[RequiredProof::None],
        },
        CallerHeaders {
            who: "the traffic token as token",
            headers: vec![("x-access-token", &traffic)],
            opens: &[RequiredProof::None],
        },
        CallerHeaders {
            who: "its traffic token and a wrong token",
            headers: vec![("e2b-traffic-access-token", &traffic), ("x-access-token", &nothing)],
            opens: &[RequiredProof::None],
        },
        CallerHeaders {
            who: "its traffic token",
            headers: vec![("e2b-traffic-access-token", &traffic)],
            opens: &[RequiredProof::None, RequiredProof::AnyToken],
        },
        CallerHeaders { who: "its token", headers: vec![("x-access-token", &token)], opens: &all },
    ];
    for (port, line, body, proof) in ROUTES {
        for CallerHeaders { who, headers, opens } in &shown {
            let line = match line.contains("CONTEXT") {
                true => line.replace("CONTEXT", &context(&client, &(id.clone(), token.clone()))),
                false => line.to_owned(),
            };
            let route = route(port, &id);
            let route = route.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            // A caller who names the sandbox in the host name has no more access.
            let host = format!("{port}-{id}.x.localhost");
            for by_host in [false, true] {
                let named: Vec<(&str, &str)> = match by_host {
                    false => route.clone().chain(headers.iter().copied()).collect(),
                    true => [("content-type", "application/json")]
                        .into_iter()
                        .chain(headers.iter().copied())
                        .collect(),
                };
                let (status, answer) = match by_host {
                    false => client.ask(&line, &named, body.as_bytes()),
                    true => ask_by_host(&server, &line, &host, &named, body),
                };
                let is_open = !matches!(status, 401 | 403);
                let told = String::from_utf8_lossy(&answer);
                assert_eq!(
                    is_open,
                    opens.contains(&proof),
                    "{port} {line}, by {who}: {status} {told}"
                );
            }
        }
    }
    // A context that only its owner could change still exists.
    let kept = context(&client, &(id.clone(), token.clone()));
    let headers = route(49999, &id);
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    for line in [format!("DELETE /contexts/{kept}"), format!("POST /contexts/{kept}/restart")] {
        assert_eq!(client.ask(&line, &headers, b"").0, 401);
    }
    let (_, listed) = client.ask(
        "GET /contexts",
        &[&headers[..], &[("e2b-traffic-access-token", &traffic)]].concat(),
        b"",
    );
    assert!(String::from_utf8_lossy(&listed).contains(&kept));
    for (id, key) in [(id, &one), (strange_id, &other)] {
        KeyClient { server: &server, key: key.clone() }.check(
            &format!("DELETE /sandboxes/{id}"),
            "",
            204,
        );
    }
    server.end();
}

fn ask_by_host(
    server: &RunningServer<'_>,
    line: &str,
    host: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, Vec<u8>) {
    use std::io::Read;
    let mut stream =
        std::net::TcpStream::connect(server.url.trim_start_matches("http://")).expect("it listens");
    stream.set_read_timeout(Some(crate::keeper::WAIT_TIMEOUT)).expect("it is a socket");
    let mut head = format!("{line} HTTP/1.0\r\nHost: {host}\r\nContent-Length: {}\r\n", body.len());
    headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
    stream.write_all(format!("{head}\r\n{body}").as_bytes()).expect("it reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("it answers");
    let status = String::from_utf8_lossy(&answer[9..12]).parse().expect("it is HTTP");
    (status, answer)
}

#[test]
fn an_unauthenticated_request_does_not_resume_a_paused_sandbox() {
    require!(root, ordinary_user, binary, user_namespaces, ordinary_user_namespaces, python3);
    against_each(|client, _| {
        let asked = concat!(
            r#"{"templateID": "base", "timeout": 300, "autoPause": true, "autoResume": "#,
            r#"{"enabled": true}}"#
        );
        let answer: Value =
            serde_json::from_str(&client.check("POST /sandboxes", asked, 201)).expect("it is JSON");
        client.server.note_sandboxes();
        let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
        let (id, traffic) = (text("sandboxID"), text("trafficAccessToken"));
        client.check(&format!("POST /sandboxes/{id}/pause"), "", 204);
        let contexts = |more: &str| {
            let headers = format!("E2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 49999\r\n{more}");
            client.request_with("GET /contexts", &headers, "").0
        };
        let is_paused = || {
            client.check(&format!("GET /sandboxes/{id}"), "", 200).contains(r#""state":"paused""#)
        };
        assert_eq!(contexts(""), 401);
        assert!(is_paused());
        assert_eq!(contexts(&format!("E2b-Traffic-Access-Token: {traffic}\r\n")), 200);
        assert!(!is_paused());
        client.check(&format!("DELETE /sandboxes/{id}"), "", 204);
    });
}
