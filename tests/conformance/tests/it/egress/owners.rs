//! Ownership of a proxy: it belongs to one sandbox, and ends with the owner of that sandbox.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use conformance::{BackendSetup, BackendVariant, Caller, CallerDirectory, SimulatedNetwork};
use ringfence_test_ledger::{binary, require};
use serde_json::Value;
use tempfile::TempDir;

const NATIVE: BackendSetup = BackendSetup { variant: BackendVariant::Native, caller: Caller::Root };
const BWRAP: BackendSetup = BackendSetup { variant: BackendVariant::Bwrap, caller: Caller::Root };
/// Time limit for each wait on a busy host.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Program that repeatedly asks the proxy for a page of an allowed host, and a server directly.
const RESTLESS: &str = "
import socket, sys, urllib.request
token, number = sys.argv[1], 0
while True:
    number += 1
    try:
        urllib.request.urlopen(f'http://good.test/{token}-asked-{number}', timeout=5).read()
    except OSError:
        pass
    try:
        with socket.create_connection(('11.22.33.66', 80), timeout=5) as stream:
            stream.sendall(f'GET /{token}-direct-{number} HTTP/1.1\\r\\nHost: \
            evil.test\\r\\n\\r\\n'.encode())
    except OSError:
        pass
";
/// Program that fetches pages in turn and prints the result of each.
const FETCH: &str = "
import sys, urllib.request
for address in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(address, timeout=10).status)
    except OSError as error:
        print(error)
";

fn token(name: &str) -> String {
    format!("o{:05x}{name}", std::process::id())
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Returns the number of arrivals so far that contain a text.
fn count(text: &str) -> usize {
    SimulatedNetwork::shared().so_far(text).len()
}

#[track_caller]
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < WAIT_TIMEOUT, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A process that is killed when the value is dropped.
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill(); // the process may have ended
        let _ = self.0.wait(); // the process may have ended
    }
}

/// Checks that nothing leaves any more. Requests that were on their way arrive first; after that,
/// nothing arrives although the program inside was not told to stop. One request may still be
/// unread, because the program makes one request after the other.
#[track_caller]
fn nothing_leaves(token: &str) {
    let before = SimulatedNetwork::shared().arrivals(token).len();
    std::thread::sleep(Duration::from_millis(500));
    assert!(count(token) <= before + 1, "something leaves although nobody owns it");
    assert_eq!(count(&format!("{token}-direct")), 0, "the direct way was open");
}

#[track_caller]
fn nothing_leaves_after_a_kill(setup: BackendSetup, name: &str) {
    let (place, token) =
        (CallerDirectory::for_host_of(SimulatedNetwork::shared(), setup.caller), token(name));
    let mut command = setup.ringfence("run", &place);
    command.args(["--allow", "good.test", "--", "python3", "-c", RESTLESS, &token]);
    let mut ringfence = KilledOnDrop(
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it can be started"),
    );
    wait_until("the sandbox has reached the allowed host", || {
        count(&format!("{token}-asked-3")) > 0
    });
    ringfence.0.kill().expect("it is ours");
    ringfence.0.wait().expect("it is ours");
    nothing_leaves(&token);
}

#[test]
fn a_native_sandbox_with_a_killed_owner_reaches_no_host() {
    require!(root, binary, python3, own_network, user_namespaces);
    nothing_leaves_after_a_kill(NATIVE, "killednative");
}

#[test]
fn a_bubblewrap_sandbox_with_a_killed_owner_reaches_no_host() {
    require!(root, binary, python3, own_network, user_namespaces, bwrap);
    nothing_leaves_after_a_kill(BWRAP, "killedbwrap");
}

#[test]
fn a_container_with_a_killed_owner_reaches_no_host() {
    require!(root, binary, python3, own_network, ordinary_user, docker, podman, test_image_dev);
    for (variant, name) in
        [(BackendVariant::Docker, "killeddocker"), (BackendVariant::Podman, "killedpodman")]
    {
        nothing_leaves_after_a_kill(BackendSetup { variant, caller: Caller::Ordinary }, name);
    }
}

/// A sandbox that stays, on the host of the world, with its own home.
struct StayingSandbox {
    place: CallerDirectory,
    home: TempDir,
    name: &'static str,
}

impl StayingSandbox {
    #[track_caller]
    fn up(name: &'static str, flags: &[&str]) -> StayingSandbox {
        let home = tempfile::tempdir().expect("a temporary directory can be made");
        let kept = StayingSandbox {
            place: CallerDirectory::for_host_of(SimulatedNetwork::shared(), Caller::Root),
            home,
            name,
        };
        let output = NATIVE
            .ringfence("up", &kept.place)
            .arg(name)
            .args(flags)
            .env("HOME", kept.home())
            .output();
        let output = output.expect("ringfence can be started");
        assert!(output.status.success(), "{}", said(&output));
        kept
    }

    fn home(&self) -> &Path {
        self.home.path()
    }

    fn ringfence(&self, words: &[&str]) -> Output {
        let mut command = NATIVE.command(binary(), &self.place);
        command.args(words).env("HOME", self.home()).output().expect("ringfence can be started")
    }

    fn exec(&self, words: &[&str]) -> Output {
        self.ringfence(&[&["exec", self.name, "--"], words].concat())
    }

    fn owner(&self) -> rustix::process::Pid {
        let output = self.ringfence(&["inspect", self.name, "--json"]);
        let manifest: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", said(&output)));
        let owner = manifest["owner"]["pid"]
            .as_i64()
            .and_then(|id| i32::try_from(id).ok())
            .expect("it has an owner");
        rustix::process::Pid::from_raw(owner).expect("it is a process")
    }

    /// Returns the Unix sockets in the sandbox's room on the host.
    fn sockets(&self) -> Vec<String> {
        let room = self.home().join(".local/state/ringfence/sandboxes").join(self.name);
        let mut found = Vec::new();
        let mut left = vec![room];
        while let Some(directory) = left.pop() {
            for entry in fs_err::read_dir(&directory).into_iter().flatten().flatten() {
                use std::os::unix::fs::FileTypeExt;
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => left.push(entry.path()),
                    Ok(kind) if kind.is_socket() => found.push(entry.path().display().to_string()),
                    _ => {}
                }
            }
        }
        found
    }
}

impl Drop for StayingSandbox {
    fn drop(&mut self) {
        self.ringfence(&["stop", self.name]);
    }
}

#[test]
fn a_sandbox_with_a_killed_monitor_reaches_no_host() {
    require!(root, binary, python3, own_network, user_namespaces);
    let (kept, token) =
        (StayingSandbox::up("restless", &["--allow", "good.test"]), token("monitor"));
    let mut command = NATIVE.command(binary(), &kept.place);
    command
        .args(["exec", kept.name, "--", "python3", "-c", RESTLESS, &token])
        .env("HOME", kept.home());
    let _exec = KilledOnDrop(
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it can be started"),
    );
    wait_until("the sandbox has reached the allowed host", || {
        count(&format!("{token}-asked-3")) > 0
    });
    rustix::process::kill_process(kept.owner(), rustix::process::Signal::KILL).expect("it is ours");
    nothing_leaves(&token);
}

/// Program that connects to Unix sockets by their paths, and asks the proxy that a variable names
/// for a page.
const NEIGHBOUR: &str = "
import os, socket, sys, urllib.request
for path in sys.argv[2:]:
    try:
        with socket.socket(socket.AF_UNIX) as stream:
            stream.connect(path)
        print('connected')
    except OSError as error:
        print(error.strerror)
address = f'http://{sys.argv[1]}.evil.test/'
handler = urllib.request.ProxyHandler({'http': os.environ['NEIGHBOUR']})
try:
    print(urllib.request.build_opener(handler).open(address).status)
except OSError as error:
    print(error)
";

#[test]
fn a_sandbox_does_not_reach_the_proxy_of_another() {
    require!(root, binary, python3, own_network, user_namespaces);
    let kept = StayingSandbox::up("neighbour", &["--allow", "*.evil.test"]);
    let proxy = said(&kept.exec(&["sh", "-c", "printf %s $HTTP_PROXY"]));
    let own = token("own");
    let reached = kept.exec(&["python3", "-c", FETCH, &format!("http://{own}.evil.test/")]);
    assert_eq!(said(&reached), "200\n", "the neighbour reaches it");

    let sockets = kept.sockets();
    assert!(!sockets.is_empty(), "there is something to reach");
    let place = CallerDirectory::for_host_of(SimulatedNetwork::shared(), Caller::Root);
    let others = token("others");
    let words = [
        &["python3", "-c", NEIGHBOUR, &others],
        sockets.iter().map(String::as_str).collect::<Vec<_>>().as_slice(),
    ]
    .concat();
    let variable = format!("NEIGHBOUR={proxy}");
    let mut command = NATIVE.ringfence("run", &place);
    let output =
        command.args(["--allow", "good.test", "--env", &variable, "--"]).args(&words).output();
    let said = said(&output.expect("ringfence can be started"));
    let expected = format!(
        "{}HTTP Error 403: Forbidden\n",
        "No such file or directory\n".repeat(sockets.len())
    );
    assert_eq!(said, expected);
    let outside =
        NATIVE.command(words[0], &place).args(&words[1..]).env("NEIGHBOUR", &proxy).output();
    let outside = self::said(&outside.expect("python3 can be started"));
    assert!(outside.starts_with(&"connected\n".repeat(sockets.len())), "they are there: {outside}");

    assert!(SimulatedNetwork::shared().places_of(&own).contains("evil"));
    assert_eq!(SimulatedNetwork::shared().places_of(&others), BTreeSet::new());
}
