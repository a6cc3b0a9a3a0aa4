//! Conditions in which a server could lose a sandbox, or mistake it for lost: no descriptors,
//! records of another version, clients that hang up, and the last moment of a sandbox's lease.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use redb::{ReadableTable, TableDefinition};
use ringfence::Backend;
use ringfence_test_ledger::require;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use serde_json::Value;

use super::{ANY_KEY, CreatedSandbox, KeyClient, against};
use crate::keeper::{SandboxKeeper, WAIT_TIMEOUT};
use crate::served::{RunningServer, expect_nothing_left, log_of};

/// Number of descriptors with which a server can start, but cannot examine many sandboxes.
const FEW_DESCRIPTORS: u32 = 36;

/// Returns the ids of all sandboxes that a server lists.
fn listed(client: &KeyClient<'_>) -> Vec<String> {
    let list: Value =
        serde_json::from_str(&client.check("GET /v2/sandboxes", "", 200)).expect("it is JSON");
    let id = |one: &Value| one["sandboxID"].as_str().expect("it is text").to_owned();
    list.as_array().expect("it is a list").iter().map(id).collect()
}

#[track_caller]
fn expect_all(server: &RunningServer<'_>, made: &[CreatedSandbox]) {
    let client = KeyClient { server, key: ANY_KEY.to_owned() };
    let mut found = listed(&client);
    let mut expected: Vec<String> = made.iter().map(|made| made.id.clone()).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    for made in made {
        assert_eq!(
            client.guest(made, "GET /files?path=note", ""),
            (200, "kept".to_owned()),
            "{}",
            made.id
        );
        client.check(&format!("DELETE /sandboxes/{}", made.id), "", 204);
    }
}

/// Creates sandboxes with a file in each, and ends their server.
fn left_behind(keeper: &SandboxKeeper, count: usize) -> Vec<CreatedSandbox> {
    let server = RunningServer::start(keeper);
    let client = KeyClient { server: &server, key: ANY_KEY.to_owned() };
    let made: Vec<CreatedSandbox> = (0..count).map(|_| client.make()).collect();
    for made in &made {
        assert_eq!(client.guest(made, "POST /files?path=note", "kept").0, 200);
    }
    server.end();
    made
}

/// Starts a server that soon has no descriptors left.
fn with_few_descriptors(keeper: &SandboxKeeper) -> RunningServer<'_> {
    let serve = keeper.ringfence(&["serve", "--listen", "127.0.0.1:0"]);
    let mut few = Command::new("sh");
    few.args(["-c", &format!("ulimit -n {FEW_DESCRIPTORS}; exec \"$@\""), "sh"])
        .arg(serve.get_program())
        .args(serve.get_args());
    few.env_clear().envs(keeper.variables()).current_dir(keeper.workspace());
    RunningServer::run(keeper, few)
}

#[test]
fn a_server_without_descriptors_keeps_its_sandboxes() {
    require!(root, binary, user_namespaces);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let made = left_behind(&keeper, 12);
    let server = with_few_descriptors(&keeper);
    let begun = Instant::now();
    while !log_of(&keeper).contains("Too many open files") {
        assert!(begun.elapsed() < WAIT_TIMEOUT, "it has enough");
        std::thread::sleep(Duration::from_millis(50));
    }
    server.end();
    let server = RunningServer::start(&keeper);
    expect_all(&server, &made);
    server.end();
    expect_nothing_left(&keeper);
}

/// Sets the descriptor limit of a server and returns the former limit. The server keeps the
/// descriptors that it has.
fn set_descriptor_limit(server: &RunningServer<'_>, limit: Rlimit) -> Rlimit {
    let server = Pid::from_raw(server.id().cast_signed());
    prlimit(server, Resource::Nofile, limit).expect("the server runs and is ours")
}

/// Opens a connection that the server has accepted, as its answer to a request shows.
fn accepted(client: &KeyClient<'_>) -> TcpStream {
    let mut stream = client.connect();
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: x.localhost\r\n\r\n")
        .expect("the server reads");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("the server answers");
        head.extend(byte);
    }
    assert_eq!(super::status(&String::from_utf8_lossy(&head)), 204);
    stream
}

#[test]
fn a_server_without_descriptors_names_sandboxes_it_could_not_pause_or_end() {
    require!(root, binary, user_namespaces);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let made = left_behind(&keeper, 1);
    let server = RunningServer::start(&keeper);
    let client = KeyClient { server: &server, key: ANY_KEY.to_owned() };
    let id = &made[0].id;
    let requests = [
        (format!("POST /sandboxes/{id}/pause"), "paused"),
        (format!("DELETE /sandboxes/{id}"), "ended"),
    ]
    .map(|request| (request, accepted(&client)));
    let former = set_descriptor_limit(
        &server,
        Rlimit { current: Some(3), maximum: getrlimit(Resource::Nofile).maximum },
    );
    for ((line, undone), mut stream) in requests {
        let head = format!(
            "{line} HTTP/1.1\r\nHost: x.localhost\r\nX-API-KEY: {ANY_KEY}\r\nConnection: close\r\n"
        );
        stream
            .write_all(format!("{head}Content-Length: 0\r\n\r\n").as_bytes())
            .expect("the server reads");
        let answer = super::read(stream);
        assert!(
            answer.starts_with("HTTP/1.1 500")
                && answer.contains(&format!("could not be {undone}")),
            "{answer}"
        );
    }
    set_descriptor_limit(&server, former);
    expect_all(&server, &made);
    server.end();
    expect_nothing_left(&keeper);
}

/// Replaces text in the stored record of a sandbox.
fn change_record(
    keeper: &SandboxKeeper,
    id: &str,
    from: &str,
    to: &str,
) -> Result<(), redb::Error> {
    let database = redb::Database::open(keeper.server().join("state.redb"))?;
    let transaction = database.begin_write()?;
    {
        let mut table = transaction.open_table(TableDefinition::<&str, &[u8]>::new("sandboxes"))?;
        let record =
            table.get(id)?.map(|record| String::from_utf8_lossy(record.value()).into_owned());
        let record = record.expect("it was made");
        assert!(record.contains(from), "{record}");
        table.insert(id, record.replace(from, to).as_bytes())?;
    }
    Ok(transaction.commit()?)
}

#[test]
fn a_sandbox_with_an_unreadable_record_is_kept() {
    require!(root, binary, user_namespaces);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let made = left_behind(&keeper, 1);
    let patch = |from: &str, to: &str| {
        change_record(&keeper, &made[0].id, from, to).expect("no server has it open")
    };
    let (known, unknown) = (r#""at_end":"kill""#, r#""at_end":"sing""#);
    patch(known, unknown);
    let server = RunningServer::start(&keeper);
    assert_eq!(listed(&KeyClient { server: &server, key: ANY_KEY.to_owned() }), [""; 0]);
    server.end();
    patch(unknown, known);
    let server = RunningServer::start(&keeper);
    expect_all(&server, &made);
    server.end();
    expect_nothing_left(&keeper);
}

#[test]
fn a_server_ends_after_the_files_of_killed_sandboxes_are_removed() {
    require!(root, binary, user_namespaces);
    against(|client, keeper| {
        let made = client.make();
        let many = keeper.server().join("workspaces").join(&made.id).join("many");
        fs_err::create_dir(&many).expect("it is ours");
        // Removing this many files takes longer than ending the server, which is told to end
        // immediately afterwards.
        for number in 0..20_000 {
            fs_err::write(many.join(number.to_string()), "").expect("it is ours");
        }
        client.check(&format!("DELETE /sandboxes/{}", made.id), "", 204);
    });
}

#[test]
fn a_kill_by_a_disconnected_client_completes_or_does_not_start() {
    require!(root, binary, user_namespaces);
    against(|client, _| {
        for moment in 0..12 {
            let made = client.make();
            let line = format!("DELETE /sandboxes/{}", made.id);
            let request =
                format!("{line} HTTP/1.1\r\nHost: x.localhost\r\nX-API-KEY: {ANY_KEY}\r\n\r\n");
            let mut stream = client.connect();
            stream.write_all(request.as_bytes()).expect("the server reads");
            std::thread::sleep(Duration::from_millis(moment));
            drop(stream);
            // The server may have deleted the sandbox already.
            assert!([204, 404].contains(&client.request(&line, "").0));
        }
    });
}

#[test]
fn a_timeout_set_by_a_disconnected_client_is_consistent() {
    require!(root, binary, user_namespaces);
    against(|client, keeper| {
        let made = client.make();
        let end = |text: &str, name: &str| {
            let told: Value = serde_json::from_str(text).expect("it is JSON");
            let end: jiff::Timestamp =
                told[name].as_str().expect("it is text").parse().expect("it is a time");
            end.as_second()
        };
        let told = || end(&client.check(&format!("GET /sandboxes/{}", made.id), "", 200), "endAt");
        let kept =
            || end(&keeper.expect(&mut keeper.ringfence(&["inspect", "--json", &made.id])), "ends");
        assert!(kept() >= told(), "who keeps it does not end it before its server does");
        for seconds in 1000..1020 {
            let body = format!(r#"{{"timeout": {seconds}}}"#);
            let (id, length) = (&made.id, body.len());
            let head = format!(
                "POST /sandboxes/{id}/timeout HTTP/1.1\r\nHost: x.localhost\r\nX-API-KEY: \
                 {ANY_KEY}\r\n"
            );
            let request = format!("{head}Content-Length: {length}\r\n\r\n{body}");
            // The temporary connection is closed right after the write, so the client hangs up.
            client.connect().write_all(request.as_bytes()).expect("the server reads");
        }
        let begun = Instant::now();
        while (told() - kept()).abs() > 1 {
            assert!(begun.elapsed() < WAIT_TIMEOUT, "{} and {}", told(), kept());
            std::thread::sleep(Duration::from_millis(100));
        }
        client.check(&format!("DELETE /sandboxes/{}", made.id), "", 204);
    });
}

#[test]
fn an_acknowledged_timeout_extension_holds() {
    require!(root, binary, user_namespaces);
    against(|client, keeper| {
        let mut tried = 0;
        for late in 0..6 {
            let line = format!("/sandboxes/{}", client.make().id);
            client.check(&format!("POST {line}/timeout"), r#"{"timeout": 1}"#, 204);
            let (status, told) = client.request(&format!("GET {line}"), "");
            if status == 404 {
                continue; // the lease ended before this request
            }
            tried += 1;
            let told: Value = serde_json::from_str(&told).expect("it is JSON");
            let ends: jiff::Timestamp =
                told["endAt"].as_str().expect("it is text").parse().expect("it is a time");
            let left =
                Duration::try_from(ends.duration_since(jiff::Timestamp::now())).unwrap_or_default();
            std::thread::sleep(left + Duration::from_micros(400 * late));
            match client.request(&format!("POST {line}/timeout"), r#"{"timeout": 600}"#).0 {
                204 => {
                    std::thread::sleep(Duration::from_millis(300));
                    client.check(&format!("DELETE {line}"), "", 204);
                }
                status => assert_eq!(status, 404),
            }
        }
        assert!(tried > 0, "none was there to be asked for");
        let begun = Instant::now();
        let workspaces = keeper.server().join("workspaces");
        while fs_err::read_dir(&workspaces).expect("it is there").count() > 0 {
            assert!(begun.elapsed() < WAIT_TIMEOUT, "it does not end");
            std::thread::sleep(Duration::from_millis(50));
        }
    });
}

/// Returns a field of a sandbox as the server reports it.
fn told(client: &KeyClient<'_>, id: &str, field: &str) -> String {
    let told = client.check(&format!("GET /sandboxes/{id}"), "", 200);
    let told: Value = serde_json::from_str(&told).expect("it is JSON");
    told[field].as_str().expect("it is text").to_owned()
}

#[test]
fn an_expired_sandbox_that_cannot_be_paused_is_not_killed() {
    require!(root, binary, user_namespaces);
    against(|client, keeper| {
        let answer = client.check(
            "POST /sandboxes",
            r#"{"templateID": "base", "timeout": 600, "autoPause": true}"#,
            201,
        );
        client.server.note_sandboxes();
        let made: Value = serde_json::from_str(&answer).expect("it is JSON");
        let id = made["sandboxID"].as_str().expect("it is text");
        // The file that records the pause cannot be written.
        let obstacle = keeper.room(id).join(".paused");
        fs_err::create_dir(&obstacle).expect("it is ours");
        client.check(&format!("POST /sandboxes/{id}/timeout"), r#"{"timeout": 1}"#, 204);
        let begun = Instant::now();
        while !log_of(keeper).contains("cannot end or pause a sandbox at the end of its lifetime") {
            assert!(begun.elapsed() < WAIT_TIMEOUT, "its time is not over");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(told(client, id, "state"), "running");
        fs_err::remove_dir(&obstacle).expect("it is ours");
        while told(client, id, "state") != "paused" {
            assert!(begun.elapsed() < WAIT_TIMEOUT, "it is not tried again");
            std::thread::sleep(Duration::from_millis(100));
        }
        client.check(&format!("DELETE /sandboxes/{id}"), "", 204);
    });
}

#[test]
fn a_sandbox_found_paused_keeps_its_reported_expiry() {
    require!(root, binary, user_namespaces);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let made = left_behind(&keeper, 1);
    // This is the state after a server is killed while it takes a snapshot.
    let mark = keeper.room(&made[0].id).join("paused");
    fs_err::write(mark, "[]").expect("it is ours");
    let server = RunningServer::start(&keeper);
    let client = KeyClient { server: &server, key: ANY_KEY.to_owned() };
    let seconds = |text: &str| text.parse::<jiff::Timestamp>().expect("it is a time").as_second();
    assert_eq!(told(&client, &made[0].id, "state"), "paused");
    let kept = keeper.expect(&mut keeper.ringfence(&["inspect", "--json", &made[0].id]));
    let kept: Value = serde_json::from_str(&kept).expect("it is JSON");
    let kept = seconds(kept["ends"].as_str().expect("it is text"));
    assert!((kept - seconds(&told(&client, &made[0].id, "endAt"))).abs() <= 1);
    client.check(&format!("POST /sandboxes/{}/connect", made[0].id), r#"{"timeout": 60}"#, 201);
    expect_all(&server, &made);
    server.end();
    expect_nothing_left(&keeper);
}

#[test]
fn a_server_stopped_while_it_starts_sandboxes_leaves_none() {
    require!(root, binary, user_namespaces);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let server = RunningServer::configured(&keeper, "[templates.base]\nwarm = 16\n");
    server.note_sandboxes();
    server.end();
    expect_nothing_left(&keeper);
}

#[test]
fn sandboxes_of_a_server_killed_during_their_start_are_swept() {
    require!(root, binary, user_namespaces);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let server = RunningServer::configured(&keeper, "[templates.base]\nwarm = 16\n");
    let begun = Instant::now();
    let rooms = keeper.room("any").parent().expect("it is below our home").to_owned();
    while fs_err::read_dir(&rooms).map_or(0, Iterator::count) == 0 {
        assert!(begun.elapsed() < WAIT_TIMEOUT, "it starts none");
    }
    server.note_sandboxes();
    drop(server);
    // The monitors continue only after the next server has looked for existing sandboxes.
    let monitors: Vec<Pid> =
        keeper.processes().iter().filter_map(|one| Pid::from_raw(one.id.cast_signed())).collect();
    let tell_all = |signal| {
        for monitor in &monitors {
            let _ = kill_process(*monitor, signal); // the monitor may have ended
        }
    };
    tell_all(Signal::STOP);
    let next = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_secs(1));
            tell_all(Signal::CONT);
        });
        RunningServer::start(&keeper)
    });
    next.end();
    expect_nothing_left(&keeper);
}
