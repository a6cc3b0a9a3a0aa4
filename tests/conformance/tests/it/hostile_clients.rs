//! Requests of hostile clients to `ringfence serve`, byte by byte. Each refusal is tested beside a
//! request that succeeds.

mod idle;
mod lost;
mod settings;
mod strain;
mod tokens;
mod visitors;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use ringfence::Backend;
use ringfence_test_ledger::require;
use serde_json::Value;

use crate::keeper::{SandboxKeeper, WAIT_TIMEOUT};
use crate::served::{RunningServer, expect_nothing_left};

/// Any key, which is valid at a server without keys.
const ANY_KEY: &str = "e2b_0";

/// A client of a server, with its key.
struct KeyClient<'a> {
    server: &'a RunningServer<'a>,
    key: String,
}

/// A sandbox that a client created.
struct CreatedSandbox {
    id: String,
    token: String,
}

impl KeyClient<'_> {
    fn connect(&self) -> TcpStream {
        let address = self.server.url.trim_start_matches("http://");
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_read_timeout(Some(WAIT_TIMEOUT)).expect("it is a socket");
        stream
    }

    /// Sends bytes and returns the whole answer until the server closes the connection.
    fn send(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        let _ = stream.write_all(bytes); // the server may hang up before it has read everything
        read(stream)
    }

    /// Sends bytes, closes the sending side, and returns the whole answer.
    fn send_all(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        let _ = stream.write_all(bytes); // the server may hang up before it has read everything
        let _ = stream.shutdown(Shutdown::Write); // the server may have closed the connection
        read(stream)
    }

    /// Sends a request with the key of this client, and returns the status and the body of the
    /// answer.
    fn request(&self, line: &str, body: &str) -> (u16, String) {
        self.request_with(line, &format!("X-API-KEY: {}\r\n", self.key), body)
    }

    fn request_with(&self, line: &str, headers: &str, body: &str) -> (u16, String) {
        let length = body.len();
        let head = format!(
            "{line} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: \
             {length}\r\n{headers}\r\n"
        );
        let answer = self.send(format!("{head}{body}").as_bytes());
        let (head, body) =
            answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{line}: {answer:?}"));
        (status(head), body.to_owned())
    }

    #[track_caller]
    fn check(&self, line: &str, body: &str, expected: u16) -> String {
        let (status, answer) = self.request(line, body);
        assert_eq!(status, expected, "{line} {body}: {answer}");
        if status >= 400 {
            let told: Value =
                serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{line}: {answer:?}"));
            assert_eq!(told["code"], u64::from(expected), "{line}: {answer}");
        }
        answer
    }

    #[track_caller]
    fn make(&self) -> CreatedSandbox {
        let answer =
            self.check("POST /v2/sandboxes", r#"{"templateID": "base", "timeout": 300}"#, 201);
        self.server.note_sandboxes();
        let made: Value = serde_json::from_str(&answer).expect("it is JSON");
        let text = |name: &str| made[name].as_str().expect("it is text").to_owned();
        CreatedSandbox { id: text("sandboxID"), token: text("envdAccessToken") }
    }

    /// Sends a request to the guest of a sandbox, with the sandbox's token.
    fn guest(&self, made: &CreatedSandbox, line: &str, body: &str) -> (u16, String) {
        let headers = format!("E2b-Sandbox-Id: {}\r\nX-Access-Token: {}\r\n", made.id, made.token);
        self.request_with(
            line,
            &format!("{headers}Content-Type: application/octet-stream\r\n"),
            body,
        )
    }
}

fn read(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer); // a reset ends the answer, too
    String::from_utf8_lossy(&answer).into_owned()
}

fn status(head: &str) -> u16 {
    let status = head
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3))
        .and_then(|status| status.parse().ok());
    status.unwrap_or_else(|| panic!("{head:?}"))
}

/// Runs `act` against a server of root that has no keys.
fn against(act: impl FnOnce(&KeyClient<'_>, &SandboxKeeper)) {
    against_server_of(&SandboxKeeper::for_root(Backend::Native), act);
}

/// Runs `act` against a server of root and against a server of an ordinary user.
fn against_each(act: impl Fn(&KeyClient<'_>, &SandboxKeeper)) {
    for keeper in SandboxKeeper::for_each_user(Backend::Native) {
        against_server_of(&keeper, &act);
    }
}

fn against_server_of(keeper: &SandboxKeeper, act: impl FnOnce(&KeyClient<'_>, &SandboxKeeper)) {
    let server = RunningServer::start(keeper);
    act(&KeyClient { server: &server, key: ANY_KEY.to_owned() }, keeper);
    server.end();
    expect_nothing_left(keeper);
}

#[test]
fn oversized_and_malformed_requests_are_refused_and_valid_ones_answered() {
    require!(root, binary, user_namespaces);
    against(|client, _| {
        let made = client.make();
        let head = |length: usize| {
            let filler = "x".repeat(length);
            let text = format!(
                "GET /sandboxes HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nX-API-KEY: \
                 {ANY_KEY}\r\n"
            );
            status(&client.send(format!("{text}X-Filler: {filler}\r\n\r\n").as_bytes()))
        };
        assert_eq!((head(30_000), head(100_000)), (200, 431));
        let hosts = |lines: &str| {
            let text = format!(
                "GET /sandboxes HTTP/1.1\r\n{lines}Connection: close\r\nX-API-KEY: \
                 {ANY_KEY}\r\n\r\n"
            );
            status(&client.send(text.as_bytes()))
        };
        assert_eq!(
            (hosts("Host: localhost\r\n"), hosts("Host: localhost\r\nHost: localhost\r\n")),
            (200, 400)
        );
        let timeout = format!("POST /sandboxes/{}/timeout", made.id);
        let padded = |length: usize| format!(r#"{{"timeout": 60{}}}"#, " ".repeat(length));
        client.check(&timeout, &padded(1000), 204);
        client.check(&timeout, &padded(2 << 20), 413);
        let no_times =
            ["{}", "", r#"{"timeout": -1}"#, r#"{"timeout": "60"}"#, r#"{"timeout": 1e99}"#];
        for wrong in no_times.into_iter().chain(["{", "[]", "\"\"", "\u{0}"]) {
            client.check(&timeout, wrong, 400);
        }
        client.check(&format!("POST /sandboxes/{}/refreshes", made.id), "{}", 204);
        let deep = "[".repeat(100_000);
        client.check("POST /sandboxes", &format!(r#"{{"templateID": "base", "mcp": {deep}"#), 400);
        client.check("POST /sandboxes", r#"{"templateID": "../base"}"#, 404);
        let variable = |length: usize| {
            let value = "x".repeat(length);
            format!(r#"{{"templateID": "base", "timeout": 86400, "envVars": {{"A": "{value}"}}}}"#)
        };
        let answer = client.check("POST /sandboxes", &variable(131_069), 201);
        client.server.note_sandboxes();
        let longest: Value = serde_json::from_str(&answer).expect("it is JSON");
        assert!(client.check("POST /sandboxes", &variable(131_070), 400).contains("`envVars`"));
        client.check("POST /sandboxes", r#"{"templateID": "base", "timeout": 86401}"#, 400);
        let marked =
            format!(r#"{{"templateID": "base", "metadata": {{"a": "{}"}}}}"#, "x".repeat(8 << 10));
        assert!(client.check("POST /sandboxes", &marked, 400).contains("`metadata`"));
        client.check(
            &format!("DELETE /sandboxes/{}", longest["sandboxID"].as_str().unwrap()),
            "",
            204,
        );
        for field in ["allowOut", "denyOut"] {
            let network = format!(r#"{{"{field}": ["1.2.3.4/99"]}}"#);
            let asked = format!(r#"{{"templateID": "base", "network": {network}}}"#);
            assert!(client.check("POST /sandboxes", &asked, 400).contains(field));
            assert!(
                client
                    .check(&format!("PUT /sandboxes/{}/network", made.id), &network, 400)
                    .contains(field)
            );
        }
        for (query, expected) in
            [("limit=1&state=running", 200), ("limit=0", 400), ("state=asleep", 400)]
        {
            client.check(&format!("GET /v2/sandboxes?{query}"), "", expected);
        }
        client.check(&format!("GET /sandboxes/{}/metrics?start=x", made.id), "", 400);
        client.check(
            &format!("GET /sandboxes/{}/metrics?start=99999999999999999", made.id),
            "",
            400,
        );
        client.check(&format!("GET /sandboxes/{}/metrics?start=1", made.id), "", 200);
        for path in
            ["/sandboxes/%00", "/sandboxes/..%2f..%2fetc", "/sandboxes//timeout", "//", "/%"]
        {
            client.check(&format!("GET {path}"), "", 404);
        }
        client.check(&format!("DELETE /sandboxes/{}", made.id), "", 204);
    });
}

#[test]
fn no_route_accepts_a_wrong_key_or_another_tenants_sandbox() {
    require!(root, binary, user_namespaces);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let key = |name: &str| {
        keeper.expect(&mut keeper.ringfence(&["keys", "create", name])).trim_end().to_owned()
    };
    let (one, other) = (key("one"), key("other"));
    let server = RunningServer::start(&keeper);
    let owner = KeyClient { server: &server, key: one };
    let stranger = KeyClient { server: &server, key: other };
    let nobody = KeyClient { server: &server, key: format!("e2b_{}", "0".repeat(40)) };
    let made = owner.make();
    let stay = r#"{"timeout": 60}"#;
    for (line, body, expected) in [
        ("GET /sandboxes/ID", "", 200),
        ("GET /sandboxes/ID/metrics", "", 200),
        ("GET /sandboxes/ID/logs", "", 200),
        ("GET /v2/sandboxes/ID/logs", "", 200),
        ("POST /sandboxes/ID/timeout", stay, 204),
        ("POST /sandboxes/ID/refreshes", stay, 204),
        ("POST /sandboxes/ID/pause", "", 204),
        ("POST /sandboxes/ID/resume", stay, 201),
        ("POST /v2/sandboxes/ID/connect", stay, 200),
        ("POST /sandboxes/ID/snapshots", "{}", 501),
        ("POST /sandboxes/ID/fork", "{}", 501),
        ("PUT /sandboxes/ID/network", "{}", 204),
        ("DELETE /sandboxes/ID", "", 204),
    ] {
        let line = line.replace("ID", &made.id);
        nobody.check(&line, body, 401);
        stranger.check(&line, body, 404);
        owner.check(&line, body, expected);
    }
    let mine = owner.make();
    assert_eq!(stranger.check("GET /v2/sandboxes", "", 200), "[]");
    assert!(owner.check("GET /v2/sandboxes", "", 200).contains(&mine.id));
    let several = format!("GET /sandboxes/metrics?sandbox_ids={}", mine.id);
    assert_eq!(stranger.check(&several, "", 200), r#"{"sandboxes":{}}"#);
    assert!(owner.check(&several, "", 200).contains(&mine.id));
    owner.check(&format!("DELETE /sandboxes/{}", mine.id), "", 204);
    server.end();
    expect_nothing_left(&keeper);
}

#[test]
fn a_guest_accepts_only_its_own_token() {
    require!(root, binary, user_namespaces);
    against(|client, _| {
        let (made, other) = (client.make(), client.make());
        let ask =
            |headers: &str| client.request_with("GET /files?path=/etc/hostname", headers, "").0;
        let sandbox = format!("E2b-Sandbox-Id: {}\r\n", made.id);
        for route in [sandbox.as_str(), ""] {
            let nothing = "0".repeat(made.token.len());
            assert_ne!(
                ask(&format!("{route}X-Access-Token: {}\r\n", made.token)),
                401,
                "{route:?}"
            );
            for wrong in [nothing.as_str(), &made.token[1..], ""] {
                assert_eq!(
                    ask(&format!("{route}X-Access-Token: {wrong}\r\n")),
                    401,
                    "{route:?} {wrong:?}"
                );
            }
            assert_eq!(ask(route), 401, "{route:?}");
        }
        assert_eq!(
            ask(&format!("{sandbox}X-Access-Token: {}\r\n", other.token)),
            401,
            "another's token"
        );
        for made in [made, other] {
            client.check(&format!("DELETE /sandboxes/{}", made.id), "", 204);
        }
    });
}

#[test]
fn no_request_path_leads_out_of_a_sandbox() {
    require!(root, binary, user_namespaces);
    against(|client, keeper| {
        let secret = keeper.home().join("secret");
        fs_err::write(&secret, "the host's").expect("the home is ours");
        let made = client.make();
        let (status, _) = client.guest(&made, "POST /files?path=/home/user/note", "inside");
        assert_eq!(status, 200);
        let home = keeper.home().display().to_string();
        for (good, wrong) in [
            ("/home/user/note".to_owned(), format!("{home}/secret")),
            ("/home/user/../user/note".to_owned(), format!("/home/user/../..{home}/secret")),
            (
                "/home/user/%2e%2e/user/note".to_owned(),
                format!("/home/user/%2e%2e/%2e%2e{home}/secret"),
            ),
            ("note".to_owned(), format!("../../..{home}/secret")),
            ("//home//user//note".to_owned(), format!("//proc/1/root{home}/secret")),
        ] {
            assert_eq!(
                client.guest(&made, &format!("GET /files?path={good}"), ""),
                (200, "inside".to_owned())
            );
            let (status, answer) = client.guest(&made, &format!("GET /files?path={wrong}"), "");
            assert!(
                matches!(status, 403 | 404) && !answer.contains("the host's"),
                "{wrong}: {status} {answer}"
            );
        }
        let (status, _) = client.guest(&made, "GET /files?path=/home/user/note%00.txt", "");
        assert_eq!(status, 400);

        // A link is followed inside the sandbox and leads nowhere else.
        let link = |target: &str, name: &str| {
            let start = format!(
                r#"{{"process": {{"cmd": "ln", "args": ["-s", "{target}", "/home/user/{name}"]}}}}"#
            );
            let mut frame = vec![0];
            frame.extend(u32::try_from(start.len()).expect("it is short").to_be_bytes());
            let frame =
                String::from_utf8([frame, start.into_bytes()].concat()).expect("it is text");
            let headers =
                format!("E2b-Sandbox-Id: {}\r\nX-Access-Token: {}\r\n", made.id, made.token);
            let headers = format!(
                "{headers}Content-Type: application/connect+json\r\nConnect-Protocol-Version: 1\r\n"
            );
            let (status, answer) =
                client.request_with("POST /process.Process/Start", &headers, &frame);
            assert!(status == 200 && answer.contains("exit status 0"), "{answer:?}");
        };
        link("note", "inwards");
        link(&format!("{home}/secret"), "outwards");
        assert_eq!(client.guest(&made, "GET /files?path=inwards", ""), (200, "inside".to_owned()));
        let (status, answer) = client.guest(&made, "GET /files?path=outwards", "");
        assert!(status == 404 && !answer.contains("the host's"), "{status} {answer}");
        client.guest(&made, "POST /files?path=outwards", "overwritten");
        assert_eq!(fs_err::read_to_string(&secret).expect("it is there"), "the host's");

        // The server's own names of sandboxes lead to no other path, either.
        let route = "E2b-Sandbox-Id: ../../x\r\n";
        assert_eq!(client.request_with("GET /health", route, "").0, 502);
        client.check(&format!("DELETE /sandboxes/{}", made.id), "", 204);
        fs_err::remove_file(secret).expect("it is ours");
    });
}

#[test]
fn smuggled_and_malformed_requests_are_answered_as_sent() {
    require!(root, binary, user_namespaces);
    against(|client, _| {
        let made = client.make();
        let list =
            format!("GET /sandboxes HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-KEY: {ANY_KEY}\r\n");
        let plain = format!("{list}\r\n");
        let last = format!("{list}Connection: close\r\n\r\n");
        let all = |answer: String| -> Vec<u16> {
            answer.match_indices("HTTP/1.1 ").map(|(at, _)| status(&answer[at..])).collect()
        };
        let statuses = |bytes: String| all(client.send(bytes.as_bytes()));
        assert_eq!(statuses(format!("{plain}{plain}{last}")), [200, 200, 200]);

        // Bytes after a body are a request of their own, which here has no key.
        let kill = format!(
            "DELETE /sandboxes/{} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
            made.id
        );
        let route = format!("E2b-Sandbox-Id: {}\r\nX-Access-Token: {}\r\n", made.id, made.token);
        let upload =
            format!("POST /files?path=/home/user/x HTTP/1.1\r\nHost: 127.0.0.1\r\n{route}");
        let upload = format!("{upload}Content-Type: application/octet-stream\r\n");
        let both = format!(
            "Content-Length: {}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            5 + kill.len()
        );
        let found = statuses(format!("{upload}{both}{kill}"));
        assert!(matches!(found[..], [200 | 400] | [200, 401]), "{found:?}");
        for ambiguous in [
            "Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
            "Content-Length: +1\r\n\r\nx",
            "Content-Length: 0x1\r\n\r\nx",
            "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
            "Content-Length : 1\r\n\r\nx",
            "Content-Length: 1\r\n X: y\r\n\r\nx",
        ] {
            let found = statuses(format!("{upload}{ambiguous}"));
            assert_eq!(found, [400], "{ambiguous:?}");
        }
        for nonsense in [
            "\r\n\r\n\r\n",
            "GET\r\n\r\n",
            "\u{0}\u{0}",
            "GET / HTTP/9.9\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ] {
            let found = all(client.send_all(format!("{nonsense}\r\n\r\n").as_bytes()));
            assert!(
                found.is_empty() || found == [400] || found == [505],
                "{nonsense:?}: {found:?}"
            );
        }
        assert_eq!(
            statuses(
                "CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".to_owned()
            )
            .first(),
            Some(&405)
        );
        let (status, _) = client.guest(&made, "POST /files?path=/home/user/x", "y");
        assert_eq!(status, 200, "the sandbox is still there");
        client.check(&format!("DELETE /sandboxes/{}", made.id), "", 204);
    });
}
