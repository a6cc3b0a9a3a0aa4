//! What hostile clients send to `ringfence serve`, byte by byte. Each refusal stands beside what is answered.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ringfence::Backend;
use ringfence_test_ledger::require;
use serde_json::Value;

use crate::keeper::{Keeper, PATIENCE};
use crate::served::{Served, expect_nothing_left};

/// The key of a server that has none.
const ANY: &str = "e2b_0";

/// One client of a server.
struct Client<'a> {
    server: &'a Served<'a>,
    key: String,
}

/// A sandbox that a client has.
struct Made {
    id: String,
    token: String,
}

impl Client<'_> {
    fn connect(&self) -> TcpStream {
        let address = self.server.url.trim_start_matches("http://");
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("it is a socket");
        stream
    }

    /// Sends bytes, and returns all that is answered until the server hangs up.
    fn send(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        let _ = stream.write_all(bytes); // it may hang up before it has read all
        read(stream)
    }

    /// The same, and says that nothing more comes.
    fn send_all(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        let _ = stream.write_all(bytes); // see above
        let _ = stream.shutdown(Shutdown::Write); // see above
        read(stream)
    }

    /// Sends a request with this client's key, and returns its status and its body.
    fn request(&self, line: &str, body: &str) -> (u16, String) {
        self.request_with(line, &format!("X-API-KEY: {}\r\n", self.key), body)
    }

    fn request_with(&self, line: &str, headers: &str, body: &str) -> (u16, String) {
        let length = body.len();
        let head = format!(
            "{line} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
        );
        let answer = self.send(format!("{head}{body}").as_bytes());
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{line}: {answer:?}"));
        (status(head), body.to_owned())
    }

    #[track_caller]
    fn check(&self, line: &str, body: &str, expected: u16) -> String {
        let (status, answer) = self.request(line, body);
        assert_eq!(status, expected, "{line} {body}: {answer}");
        if status >= 400 {
            let told: Value = serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{line}: {answer:?}"));
            assert_eq!(told["code"], u64::from(expected), "{line}: {answer}");
        }
        answer
    }

    #[track_caller]
    fn make(&self) -> Made {
        let answer = self.check("POST /v2/sandboxes", r#"{"templateID": "base", "timeout": 300}"#, 201);
        self.server.note_sandboxes();
        let made: Value = serde_json::from_str(&answer).expect("it is JSON");
        let text = |name: &str| made[name].as_str().expect("it is text").to_owned();
        Made { id: text("sandboxID"), token: text("envdAccessToken") }
    }

    /// Asks the guest of a sandbox, with its token.
    fn guest(&self, made: &Made, line: &str, body: &str) -> (u16, String) {
        let headers = format!("E2b-Sandbox-Id: {}\r\nX-Access-Token: {}\r\n", made.id, made.token);
        self.request_with(line, &format!("{headers}Content-Type: application/octet-stream\r\n"), body)
    }
}

fn read(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer); // a reset ends it, too
    String::from_utf8_lossy(&answer).into_owned()
}

fn status(head: &str) -> u16 {
    let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).and_then(|status| status.parse().ok());
    status.unwrap_or_else(|| panic!("{head:?}"))
}

/// Does something against a server that has no keys.
fn against(act: impl FnOnce(&Client<'_>, &Keeper)) {
    let keeper = Keeper::on(Backend::Native);
    let server = Served::by(&keeper);
    act(&Client { server: &server, key: ANY.to_owned() }, &keeper);
    server.end();
    expect_nothing_left(&keeper);
}

#[test]
fn what_is_too_large_or_makes_no_sense_is_refused_and_what_is_just_right_is_answered() {
    require!(root, binary, user_namespaces);
    against(|client, _| {
        let made = client.make();
        let head = |length: usize| {
            let filler = "x".repeat(length);
            let text =
                format!("GET /sandboxes HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nX-API-KEY: {ANY}\r\n");
            status(&client.send(format!("{text}X-Filler: {filler}\r\n\r\n").as_bytes()))
        };
        assert_eq!((head(30_000), head(100_000)), (200, 431));
        let timeout = format!("POST /sandboxes/{}/timeout", made.id);
        let padded = |length: usize| format!(r#"{{"timeout": 60{}}}"#, " ".repeat(length));
        client.check(&timeout, &padded(1000), 204);
        client.check(&timeout, &padded(2 << 20), 413);
        for wrong in ["{", "[]", "\"\"", r#"{"timeout": -1}"#, r#"{"timeout": "60"}"#, r#"{"timeout": 1e99}"#, "\u{0}"]
        {
            client.check(&timeout, wrong, 400);
        }
        let deep = "[".repeat(100_000);
        client.check("POST /sandboxes", &format!(r#"{{"templateID": "base", "mcp": {deep}"#), 400);
        client.check("POST /sandboxes", r#"{"templateID": "../base"}"#, 404);
        client.check(&format!("GET /sandboxes/{}/metrics?start=x", made.id), "", 400);
        client.check(&format!("GET /sandboxes/{}/metrics?start=99999999999999999", made.id), "", 400);
        client.check(&format!("GET /sandboxes/{}/metrics?start=1", made.id), "", 200);
        for path in ["/sandboxes/%00", "/sandboxes/..%2f..%2fetc", "/sandboxes//timeout", "//", "/%"] {
            client.check(&format!("GET {path}"), "", 404);
        }
        client.check(&format!("DELETE /sandboxes/{}", made.id), "", 204);
    });
}

#[test]
fn a_wrong_key_and_another_tenants_sandbox_open_nothing_on_any_route() {
    require!(root, binary, user_namespaces);
    let keeper = Keeper::on(Backend::Native);
    let key = |name: &str| keeper.expect(&mut keeper.ringfence(&["keys", "create", name])).trim_end().to_owned();
    let (one, other) = (key("one"), key("other"));
    let server = Served::by(&keeper);
    let owner = Client { server: &server, key: one };
    let stranger = Client { server: &server, key: other };
    let nobody = Client { server: &server, key: format!("e2b_{}", "0".repeat(40)) };
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
fn a_guest_listens_to_its_own_token_alone() {
    require!(root, binary, user_namespaces);
    against(|client, _| {
        let (made, other) = (client.make(), client.make());
        let ask = |headers: &str| client.request_with("GET /files?path=/etc/hostname", headers, "").0;
        let sandbox = format!("E2b-Sandbox-Id: {}\r\n", made.id);
        for route in [sandbox.as_str(), ""] {
            let nothing = "0".repeat(made.token.len());
            assert_ne!(ask(&format!("{route}X-Access-Token: {}\r\n", made.token)), 401, "{route:?}");
            for wrong in [nothing.as_str(), &made.token[1..], ""] {
                assert_eq!(ask(&format!("{route}X-Access-Token: {wrong}\r\n")), 401, "{route:?} {wrong:?}");
            }
            assert_eq!(ask(route), 401, "{route:?}");
        }
        assert_eq!(ask(&format!("{sandbox}X-Access-Token: {}\r\n", other.token)), 401, "another's token");
        for made in [made, other] {
            client.check(&format!("DELETE /sandboxes/{}", made.id), "", 204);
        }
    });
}

#[test]
fn no_path_leads_out_of_a_sandbox() {
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
            ("/home/user/%2e%2e/user/note".to_owned(), format!("/home/user/%2e%2e/%2e%2e{home}/secret")),
            ("note".to_owned(), format!("../../..{home}/secret")),
            ("//home//user//note".to_owned(), format!("//proc/1/root{home}/secret")),
        ] {
            assert_eq!(client.guest(&made, &format!("GET /files?path={good}"), ""), (200, "inside".to_owned()));
            let (status, answer) = client.guest(&made, &format!("GET /files?path={wrong}"), "");
            assert!(matches!(status, 403 | 404) && !answer.contains("the host's"), "{wrong}: {status} {answer}");
        }
        let (status, _) = client.guest(&made, "GET /files?path=/home/user/note%00.txt", "");
        assert_eq!(status, 400);

        // A link is followed inside, and leads nowhere else.
        let link = |target: &str, name: &str| {
            let start = format!(r#"{{"process": {{"cmd": "ln", "args": ["-s", "{target}", "/home/user/{name}"]}}}}"#);
            let mut frame = vec![0];
            frame.extend(u32::try_from(start.len()).expect("it is short").to_be_bytes());
            let frame = String::from_utf8([frame, start.into_bytes()].concat()).expect("it is text");
            let headers = format!("E2b-Sandbox-Id: {}\r\nX-Access-Token: {}\r\n", made.id, made.token);
            let headers = format!("{headers}Content-Type: application/connect+json\r\nConnect-Protocol-Version: 1\r\n");
            let (status, answer) = client.request_with("POST /process.Process/Start", &headers, &frame);
            assert!(status == 200 && answer.contains("exit status 0"), "{answer:?}");
        };
        link("note", "inwards");
        link(&format!("{home}/secret"), "outwards");
        assert_eq!(client.guest(&made, "GET /files?path=inwards", ""), (200, "inside".to_owned()));
        let (status, answer) = client.guest(&made, "GET /files?path=outwards", "");
        assert!(status == 404 && !answer.contains("the host's"), "{status} {answer}");
        client.guest(&made, "POST /files?path=outwards", "overwritten");
        assert_eq!(fs_err::read_to_string(&secret).expect("it is there"), "the host's");

        // Nor do the server's own names of sandboxes.
        let route = "E2b-Sandbox-Id: ../../x\r\n";
        assert_eq!(client.request_with("GET /health", route, "").0, 502);
        client.check(&format!("DELETE /sandboxes/{}", made.id), "", 204);
        fs_err::remove_file(secret).expect("it is ours");
    });
}

#[test]
fn requests_that_are_two_or_none_are_answered_for_what_they_are() {
    require!(root, binary, user_namespaces);
    against(|client, _| {
        let made = client.make();
        let list = format!("GET /sandboxes HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-KEY: {ANY}\r\n");
        let plain = format!("{list}\r\n");
        let last = format!("{list}Connection: close\r\n\r\n");
        let all = |answer: String| -> Vec<u16> {
            answer.match_indices("HTTP/1.1 ").map(|(at, _)| status(&answer[at..])).collect()
        };
        let statuses = |bytes: String| all(client.send(bytes.as_bytes()));
        assert_eq!(statuses(format!("{plain}{plain}{last}")), [200, 200, 200]);

        // What is behind a body is a request of its own, and shows no key.
        let kill = format!("DELETE /sandboxes/{} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n", made.id);
        let route = format!("E2b-Sandbox-Id: {}\r\nX-Access-Token: {}\r\n", made.id, made.token);
        let upload = format!("POST /files?path=/home/user/x HTTP/1.1\r\nHost: 127.0.0.1\r\n{route}");
        let upload = format!("{upload}Content-Type: application/octet-stream\r\n");
        let both = format!("Content-Length: {}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 5 + kill.len());
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
        for nonsense in
            ["\r\n\r\n\r\n", "GET\r\n\r\n", "\u{0}\u{0}", "GET / HTTP/9.9\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
        {
            let found = all(client.send_all(format!("{nonsense}\r\n\r\n").as_bytes()));
            assert!(found.is_empty() || found == [400] || found == [505], "{nonsense:?}: {found:?}");
        }
        assert_eq!(
            statuses("CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".to_owned()).first(),
            Some(&405)
        );
        let (status, _) = client.guest(&made, "POST /files?path=/home/user/x", "y");
        assert_eq!(status, 200, "the sandbox is still there");
        client.check(&format!("DELETE /sandboxes/{}", made.id), "", 204);
    });
}

#[test]
fn a_body_that_does_not_come_is_not_waited_for_and_holds_up_nobody() {
    require!(root, binary, user_namespaces);
    against(|client, _| {
        let mut slow = client.connect();
        let head = format!(
            "POST /sandboxes HTTP/1.1\r\nHost: x.localhost\r\nX-API-KEY: {ANY}\r\nContent-Length: 100\r\n\r\n{{"
        );
        slow.write_all(head.as_bytes()).expect("the server reads");
        let begun = Instant::now();
        client.check("GET /sandboxes", "", 200);
        assert!(begun.elapsed() < Duration::from_secs(20), "somebody is held up");
        let mut answer = [0; 12];
        slow.read_exact(&mut answer).expect("it is answered");
        assert_eq!(&answer, b"HTTP/1.1 408");
        assert!(begun.elapsed() < Duration::from_secs(60), "it was waited for");
    });
}

#[test]
fn a_refusal_leaves_its_connection_of_use_however_much_was_sent() {
    require!(root, binary, user_namespaces);
    against(|client, _| {
        let made = client.make();
        let mut stream = client.connect();
        let mut ask = |line: &str, headers: &str, length: usize| {
            let head = format!("{line} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n{headers}\r\n");
            stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&vec![b'x'; length])).expect("it is read");
            answer_on(&mut stream)
        };
        let (key, sandbox) = (format!("X-API-KEY: {ANY}\r\n"), format!("E2b-Sandbox-Id: {}\r\n", made.id));
        for length in [0, 10, 3 << 20] {
            assert_eq!(ask("POST /files?path=x", "E2b-Sandbox-Id: gone\r\n", length), 502, "no sandbox");
            assert_eq!(ask("POST /files?path=x", &sandbox, length), 401, "no token");
            assert_eq!(ask("POST /sandboxes", "", length), 401, "no key");
            assert_eq!(ask("POST /nowhere", &key, length), 404, "nothing there");
            assert_eq!(ask("POST /nowhere", &sandbox, length), 404, "nothing there, of a sandbox");
            assert!(matches!(ask("POST /sandboxes", &key, length), 400 | 413), "it makes no sense");
            assert_eq!(ask("GET /sandboxes", &key, 0), 200);
        }
        client.check(&format!("DELETE /sandboxes/{}", made.id), "", 204);
    });
}

/// The status of the next answer on a connection, which is read to its end and is not said to be the last one.
#[track_caller]
fn answer_on(stream: &mut TcpStream) -> u16 {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("it is answered");
        head.extend(byte);
    }
    let head = String::from_utf8(head).expect("it is text").to_lowercase();
    assert!(!head.contains("connection: close"), "{head}");
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next()?.parse().ok());
    stream.read_exact(&mut vec![0; length.unwrap_or(0)]).expect("it is whole");
    status(&head.to_uppercase())
}

#[test]
fn a_head_that_trickles_in_is_not_waited_for_and_a_connection_may_rest() {
    require!(root, binary, user_namespaces);
    against(|client, _| {
        let plain = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
        let mut resting = client.connect();
        resting.write_all(plain).expect("the server reads");
        assert_eq!(answer_on(&mut resting), 204);
        let mut trickling = client.connect();
        trickling.set_read_timeout(Some(Duration::from_millis(100))).expect("it is a socket");
        let begun = Instant::now();
        let is_open = |trickling: &mut TcpStream| {
            trickling.write_all(b"x").is_ok()
                && trickling.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        };
        while is_open(&mut trickling) {
            assert!(begun.elapsed() < Duration::from_secs(50), "it is waited for");
        }
        assert!(begun.elapsed() > Duration::from_secs(20), "it had no time");
        resting.write_all(plain).expect("the server reads");
        assert_eq!(answer_on(&mut resting), 204);
    });
}

/// A server whose state is on a small file system of its own, which this process reaches through the server's root.
fn served_on_little(keeper: &Keeper) -> Served<'_> {
    let serve = keeper.ringfence(&["serve", "--listen", "127.0.0.1:0"]);
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs -o size=24m,mode=700 none \"$1\"; shift; exec \"$@\"";
    command.args(["--mount", "sh", "-ec", script, "sh"]).arg(keeper.home().join(".local"));
    command.arg(serve.get_program()).args(serve.get_args());
    command.env_clear().envs(keeper.variables()).current_dir(keeper.workspace()).stdin(Stdio::null());
    fs_err::create_dir_all(keeper.home().join(".local")).expect("the home is ours");
    Served::run(keeper, command)
}

#[test]
fn a_full_disk_is_told_of_and_nothing_is_lost_by_it() {
    require!(root, binary, user_namespaces);
    let keeper = Keeper::on(Backend::Native);
    let server = served_on_little(&keeper);
    let client = Client { server: &server, key: ANY.to_owned() };
    let made = client.make();
    let stay = r#"{"templateID": "base", "timeout": 4, "autoPause": true}"#;
    let sleeper: Value = serde_json::from_str(&client.check("POST /sandboxes", stay, 201)).expect("it is JSON");
    let sleeper = sleeper["sandboxID"].as_str().expect("it is text");
    server.note_sandboxes();
    assert_eq!(client.guest(&made, "POST /files?path=note", "kept").0, 200);
    let filler = PathBuf::from(format!("/proc/{}/root", server.id()))
        .join(keeper.home().join(".local/filler").strip_prefix("/").expect("it is absolute"));
    let mut file = fs_err::File::create(&filler).expect("there is room for one more");
    while file.write_all(&[0; 4096]).is_ok() {}

    let (pause, timeout) =
        (format!("POST /sandboxes/{}/pause", made.id), format!("POST /sandboxes/{}/timeout", made.id));
    let long = format!(r#"{{"templateID": "base", "metadata": {{"long": "{}"}}}}"#, "x".repeat(500_000));
    for (line, body) in [("POST /sandboxes", long.as_str()), (&pause, "{}"), (&timeout, r#"{"timeout": 600}"#)] {
        let told = client.check(line, body, 507);
        assert!(told.contains("the server's disk is full"), "{told}");
    }
    assert_eq!(client.guest(&made, "POST /files?path=other", "lost").0, 507);
    assert_eq!(client.guest(&made, "GET /files?path=note", ""), (200, "kept".to_owned()));
    let begun = Instant::now();
    while !client.check(&format!("GET /sandboxes/{sleeper}"), "", 200).contains(r#""state":"paused""#) {
        assert!(begun.elapsed() < PATIENCE, "it is not brought to rest");
        std::thread::sleep(Duration::from_millis(50));
    }

    drop(file);
    fs_err::remove_file(filler).expect("it is ours");
    client.check(&timeout, r#"{"timeout": 600}"#, 204);
    client.check(&pause, "{}", 204);
    let another: Value = serde_json::from_str(&client.check("POST /sandboxes", &long, 201)).expect("it is JSON");
    server.note_sandboxes();
    client.check(&format!("POST /sandboxes/{sleeper}/resume"), "{}", 201);
    client.check(&format!("POST /sandboxes/{}/resume", made.id), "{}", 201);
    assert_eq!(client.guest(&made, "GET /files?path=note", ""), (200, "kept".to_owned()));
    for id in [made.id.as_str(), sleeper, another["sandboxID"].as_str().expect("it is text")] {
        client.check(&format!("DELETE /sandboxes/{id}"), "", 204);
    }
    server.end();
    fs_err::remove_dir(keeper.home().join(".local")).expect("its file system was the server's alone");
    fs_err::remove_dir_all(keeper.workspace()).expect("it is ours");
    fs_err::remove_file(keeper.home().join("server.log")).expect("it is ours");
    keeper.expect_nothing_left();
}
