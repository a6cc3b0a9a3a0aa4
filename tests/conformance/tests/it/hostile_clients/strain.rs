//! Loads that could stall a server: bodies and heads that never arrive, data that is sent in vain,
//! and a full disk.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ringfence::Backend;
use ringfence_test_ledger::require;
use serde_json::Value;

use super::{ANY_KEY, CreatedSandbox, KeyClient, against, status};
use crate::asks;
use crate::keeper::{SandboxKeeper, WAIT_TIMEOUT};
use crate::served::{RunningServer, expect_nothing_left};

/// Number of connections that one owner may have at once.
const MAX_OWNER_CONNECTIONS: usize = 1024;

#[test]
fn a_missing_body_times_out_and_delays_no_client() {
    require!(root, binary, user_namespaces);
    against(|client, _| {
        let mut slow = client.connect();
        let head = format!(
            "POST /sandboxes HTTP/1.1\r\nHost: x.localhost\r\nX-API-KEY: {ANY_KEY}\r\n\
             Content-Length: 100\r\n\r\n{{"
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
fn a_connection_stays_usable_after_a_refusal() {
    require!(root, binary, user_namespaces);
    against(|client, _| {
        let made = client.make();
        let mut stream = client.connect();
        let mut ask = |line: &str, headers: &str, length: usize| {
            let head = format!(
                "{line} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n{headers}\r\n"
            );
            stream
                .write_all(head.as_bytes())
                .and_then(|()| stream.write_all(&vec![b'x'; length]))
                .expect("it is read");
            answer_on(&mut stream)
        };
        let (key, sandbox) =
            (format!("X-API-KEY: {ANY_KEY}\r\n"), format!("E2b-Sandbox-Id: {}\r\n", made.id));
        for length in [0, 10, 3 << 20] {
            assert_eq!(
                ask("POST /files?path=x", "E2b-Sandbox-Id: gone\r\n", length),
                502,
                "no sandbox"
            );
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

#[test]
fn unauthenticated_requests_do_not_use_the_owners_connections() {
    require!(root, binary, user_namespaces, python3);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let key =
        keeper.expect(&mut keeper.ringfence(&["keys", "create", "one"])).trim_end().to_owned();
    let server = RunningServer::start(&keeper);
    let client = KeyClient { server: &server, key };
    let made = client.make();
    let sandbox = format!("E2b-Sandbox-Id: {}\r\n", made.id);
    let ask = |headers: &str| {
        let mut stream = client.connect();
        let head =
            format!("GET /files?path=x HTTP/1.1\r\nHost: 127.0.0.1\r\n{sandbox}{headers}\r\n");
        stream.write_all(head.as_bytes()).expect("the server reads");
        let status = answer_on(&mut stream);
        (status, stream)
    };
    let strangers: Vec<TcpStream> = (0..MAX_OWNER_CONNECTIONS)
        .map(|_| ask(""))
        .map(|(status, stream)| {
            assert_eq!(status, 401);
            stream
        })
        .collect();
    client.check("GET /sandboxes", "", 200);
    // Visitors of a sandbox's ports have a limit of their own. A connection that was upgraded to
    // another protocol still counts.
    let port = listener_inside(&client, &made);
    let visit = format!("E2b-Sandbox-Port: {port}\r\nConnection: upgrade\r\nUpgrade: anything\r\n");
    drop(strangers);
    let visitors: Vec<TcpStream> = (0..MAX_OWNER_CONNECTIONS)
        .map(|_| ask(&visit))
        .map(|(status, stream)| {
            assert_eq!(status, 101);
            stream
        })
        .collect();
    assert_eq!(ask(&visit).0, 429);
    client.check("GET /sandboxes", "", 200);
    drop(visitors);
    let begun = Instant::now();
    while ask(&visit).0 != 101 {
        assert!(begun.elapsed() < WAIT_TIMEOUT, "their places are still taken");
        std::thread::sleep(Duration::from_millis(100));
    }
    client.check(&format!("DELETE /sandboxes/{}", made.id), "", 204);
    server.end();
    expect_nothing_left(&keeper);
}

/// Starts a program in a sandbox that upgrades every connection to another protocol until the
/// client leaves. Returns its port.
fn listener_inside(client: &KeyClient<'_>, made: &CreatedSandbox) -> u16 {
    let program = "import asyncio, resource\n\
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n\
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))\n\
        async def talk(reader, writer):\n \
         await reader.readuntil(b'\\r\\n\\r\\n')\n \
         writer.write(b'HTTP/1.1 101 x\\r\\nConnection: upgrade\\r\\nUpgrade: \
         anything\\r\\n\\r\\n')\n \
         await reader.read()\n \
         writer.close()\n\
        async def main():\n \
         server = await asyncio.start_server(talk, '127.0.0.1', 4000, backlog=2000)\n \
         open('ready', 'w').close()\n \
         await server.serve_forever()\n\
        asyncio.run(main())\n";
    assert_eq!(client.guest(made, "POST /files?path=talk.py", program).0, 200);
    let client = &asks::RawClient::for_url(&client.server.url);
    let made = (made.id.clone(), made.token.clone());
    client.shell(
        &made,
        "python3 talk.py > /dev/null 2>&1 & while ! test -e ready; do sleep 0.01; done",
        &[],
    );
    4000
}

/// Reads the next answer on a connection to its end and returns the status. The answer must not
/// close the connection.
#[track_caller]
pub(super) fn answer_on(stream: &mut TcpStream) -> u16 {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("it is answered");
        head.extend(byte);
    }
    let head = String::from_utf8(head).expect("it is text").to_lowercase();
    assert!(!head.contains("connection: close"), "{head}");
    let length = head
        .split("content-length: ")
        .nth(1)
        .and_then(|rest| rest.split("\r\n").next()?.parse().ok());
    stream.read_exact(&mut vec![0; length.unwrap_or(0)]).expect("it is whole");
    status(&head.to_uppercase())
}

#[test]
fn a_slow_request_head_times_out_and_an_idle_connection_stays() {
    require!(root, binary, user_namespaces);
    against(|client, _| {
        let plain = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
        let mut resting = client.connect();
        resting.write_all(plain).expect("the server reads");
        assert_eq!(answer_on(&mut resting), 204);
        let mut trickling = client.connect();
        trickling.write_all(plain).expect("the server reads");
        assert_eq!(answer_on(&mut trickling), 204);
        trickling.set_read_timeout(Some(Duration::from_millis(100))).expect("it is a socket");
        let begun = Instant::now();
        let is_open = |trickling: &mut TcpStream| {
            trickling.write_all(b"x").is_ok()
                && trickling
                    .read(&mut [0])
                    .is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        };
        while is_open(&mut trickling) {
            assert!(begun.elapsed() < Duration::from_secs(50), "it is waited for");
        }
        assert!(begun.elapsed() > Duration::from_secs(20), "it had no time");
        resting.write_all(plain).expect("the server reads");
        assert_eq!(answer_on(&mut resting), 204);
    });
}

/// Starts a server whose state is on a small file system of its own. This process reaches that file
/// system through the server's root.
fn served_on_little(keeper: &SandboxKeeper) -> RunningServer<'_> {
    let serve = keeper.ringfence(&["serve", "--listen", "127.0.0.1:0"]);
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs -o size=24m,mode=700 none \"$1\"; shift; exec \"$@\"";
    command.args(["--mount", "sh", "-ec", script, "sh"]).arg(keeper.home().join(".local"));
    command.arg(serve.get_program()).args(serve.get_args());
    command
        .env_clear()
        .envs(keeper.variables())
        .current_dir(keeper.workspace())
        .stdin(Stdio::null());
    fs_err::create_dir_all(keeper.home().join(".local")).expect("the home is ours");
    RunningServer::run(keeper, command)
}

#[test]
fn a_full_disk_is_reported_and_loses_no_sandbox() {
    require!(root, binary, user_namespaces);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let server = served_on_little(&keeper);
    let client = KeyClient { server: &server, key: ANY_KEY.to_owned() };
    let made = client.make();
    let stay = r#"{"templateID": "base", "timeout": 4, "autoPause": true}"#;
    let sleeper: Value =
        serde_json::from_str(&client.check("POST /sandboxes", stay, 201)).expect("it is JSON");
    let sleeper = sleeper["sandboxID"].as_str().expect("it is text");
    server.note_sandboxes();
    assert_eq!(client.guest(&made, "POST /files?path=note", "kept").0, 200);
    let filler = PathBuf::from(format!("/proc/{}/root", server.id()))
        .join(keeper.home().join(".local/filler").strip_prefix("/").expect("it is absolute"));
    let mut file = fs_err::File::create(&filler).expect("there is room for one more");
    while file.write_all(&[0; 4096]).is_ok() {}

    let (pause, timeout) = (
        format!("POST /sandboxes/{}/pause", made.id),
        format!("POST /sandboxes/{}/timeout", made.id),
    );
    let wish = r#"{"templateID": "base"}"#;
    for (line, body) in
        [("POST /sandboxes", wish), (&pause, "{}"), (&timeout, r#"{"timeout": 600}"#)]
    {
        let told = client.check(line, body, 507);
        assert!(told.contains("the server's disk is full"), "{told}");
    }
    assert_eq!(client.guest(&made, "POST /files?path=other", "lost").0, 507);
    assert_eq!(client.guest(&made, "GET /files?path=note", ""), (200, "kept".to_owned()));
    let begun = Instant::now();
    while !client
        .check(&format!("GET /sandboxes/{sleeper}"), "", 200)
        .contains(r#""state":"paused""#)
    {
        assert!(begun.elapsed() < WAIT_TIMEOUT, "it is not brought to rest");
        std::thread::sleep(Duration::from_millis(50));
    }

    drop(file);
    fs_err::remove_file(filler).expect("it is ours");
    client.check(&timeout, r#"{"timeout": 600}"#, 204);
    client.check(&pause, "{}", 204);
    let another: Value =
        serde_json::from_str(&client.check("POST /sandboxes", wish, 201)).expect("it is JSON");
    server.note_sandboxes();
    client.check(&format!("POST /sandboxes/{sleeper}/resume"), "{}", 201);
    client.check(&format!("POST /sandboxes/{}/resume", made.id), "{}", 201);
    assert_eq!(client.guest(&made, "GET /files?path=note", ""), (200, "kept".to_owned()));
    for id in [made.id.as_str(), sleeper, another["sandboxID"].as_str().expect("it is text")] {
        client.check(&format!("DELETE /sandboxes/{id}"), "", 204);
    }
    server.end();
    fs_err::remove_dir(keeper.home().join(".local"))
        .expect("its file system was the server's alone");
    fs_err::remove_dir_all(keeper.workspace()).expect("it is ours");
    fs_err::remove_file(keeper.home().join("server.log")).expect("it is ours");
    keeper.expect_nothing_left();
}
