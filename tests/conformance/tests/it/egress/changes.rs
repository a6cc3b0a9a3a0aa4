//! Changes to the allowlist of a sandbox that stays, while it runs.

use std::path::PathBuf;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use conformance::{BackendSetup, BackendVariant, Caller, CallerDirectory, SimulatedNetwork};
use ringfence::egress::ChangeError;
use ringfence::policy::{Egress, HostRule};
use ringfence::{Host, Sandbox};
use ringfence_test_ledger::require;
use serde_json::Value;

use crate::engines::{EngineSandbox, said, with_workspace};

const NATIVE: BackendSetup = BackendSetup { variant: BackendVariant::Native, caller: Caller::Root };
const BWRAP: BackendSetup = BackendSetup { variant: BackendVariant::Bwrap, caller: Caller::Root };
/// Time limit for each wait on a busy host.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Program that fetches pages, through the proxy that the variables name or directly, and prints
/// the result of each.
const FETCH: &str = "
import http.client, sys, urllib.request
way, *addresses = sys.argv[1:]
if way == 'directly':
    urllib.request.install_opener(urllib.request.build_opener(urllib.request.ProxyHandler({})))
for address in addresses:
    try:
        print(urllib.request.urlopen(address, timeout=10).status)
    except (OSError, http.client.HTTPException) as error:
        print(error)
";
/// Program that connects to a server that speaks first, through the proxy or directly, and creates
/// files when the connection is open and when it is cut.
const TALK: &str = "
import os, pathlib, socket, sys
way = sys.argv[1]
if way == 'directly':
    stream = socket.create_connection(('good.test', 22))
else:
    host, _, port = os.environ['HTTP_PROXY'].removeprefix('http://').partition(':')
    stream = socket.create_connection((host, int(port)))
    stream.sendall(b'CONNECT good.test:22 HTTP/1.1\\r\\nHost: good.test:22\\r\\n\\r\\n')
received = b''
while b'SSH-2.0' not in received:
    received += stream.recv(4096)
pathlib.Path('open').write_text(way)
try:
    while stream.recv(4096):
        pass
except OSError:
    pass
pathlib.Path('cut').write_text(way)
";

/// A sandbox that is up, and the library's handle to it.
struct RunningSandbox<'a> {
    kept: EngineSandbox<'a>,
    sandbox: Sandbox,
}

fn place(setup: BackendSetup) -> CallerDirectory {
    with_workspace(CallerDirectory::for_host_of(SimulatedNetwork::shared(), setup.caller))
}

/// Runs `ringfence up` with a workspace that does not contain the home.
fn up_with(kept: &EngineSandbox<'_>, flags: &[&str]) -> Output {
    let mut command = kept.prepare_up(flags);
    command
        .arg("--workspace")
        .arg(kept.place.path().join("workspace"))
        .output()
        .expect("ringfence can be started")
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("it can be made")
        .block_on(future)
}

impl<'a> RunningSandbox<'a> {
    #[track_caller]
    fn new(setup: BackendSetup, place: &'a CallerDirectory, flags: &[&str]) -> RunningSandbox<'a> {
        RunningSandbox::start(EngineSandbox::new(setup, place), flags)
    }

    #[track_caller]
    fn start(kept: EngineSandbox<'a>, flags: &[&str]) -> RunningSandbox<'a> {
        let output = up_with(&kept, flags);
        assert!(output.status.success(), "{:?}: {}", kept.setup, said(&output));
        let host = Host::new([("HOME".into(), kept.home.clone().into())].into(), "/".into());
        let sandbox = block_on(Sandbox::attach(&host, &kept.name)).expect("it is up");
        RunningSandbox { kept, sandbox }
    }

    fn set(&self, egress: Egress) -> Result<(), ChangeError> {
        block_on(self.sandbox.set_egress(egress))
    }

    #[track_caller]
    fn allow(&self, like: &Egress, rules: &[&str]) {
        self.set(Egress { allow: parsed(rules), ..like.clone() }).expect("it has a gate");
    }

    /// Returns the result of fetching a page of a host.
    fn fetch(&self, way: &str, host: &str) -> String {
        let page = format!("http://{host}/");
        said(&self.kept.ringfence(&[
            "exec",
            &self.kept.name,
            "--",
            "python3",
            "-c",
            FETCH,
            way,
            &page,
        ]))
    }

    /// Returns the manifest of the sandbox, as `ringfence inspect` prints it.
    fn manifest(&self) -> Value {
        let output = self.kept.ringfence(&["inspect", &self.kept.name, "--json"]);
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", said(&output)))
    }

    /// Returns the target and the reason of each denial in the log of the sandbox.
    fn denials(&self) -> Vec<(String, String)> {
        let output =
            self.kept.ringfence(&["egress", "log", "--sandbox", &self.kept.name, "--json"]);
        let entries: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let entries = entries.as_array().expect("it is a list").iter().map(|entry| &entry["event"]);
        entries.map(|event| (text(&event["target"]), text(&event["reason"]["code"]))).collect()
    }

    /// Starts a program in the sandbox that holds a connection open.
    fn talk(&self, way: &str) -> OpenConnection {
        let mut command =
            self.kept.command(&["exec", &self.kept.name, "--", "python3", "-c", TALK, way]);
        let process = command.stdout(Stdio::null()).spawn().expect("it can be started");
        let talking = OpenConnection { process, place: self.kept.place.path().join("workspace") };
        talking.wait_for("open");
        talking
    }
}

fn parsed(rules: &[&str]) -> Vec<HostRule> {
    rules.iter().map(|rule| rule.parse().expect("it is a rule")).collect()
}

/// A connection that is held open; its process is killed when the value is dropped.
struct OpenConnection {
    process: Child,
    place: PathBuf,
}

impl OpenConnection {
    fn has(&self, file: &str) -> bool {
        self.place.join(file).exists()
    }

    #[track_caller]
    fn wait_for(&self, file: &str) {
        let begun = Instant::now();
        while !self.has(file) {
            assert!(begun.elapsed() < WAIT_TIMEOUT, "waited in vain for `{file}`");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let _ = self.process.kill(); // the process may have ended
        let _ = self.process.wait(); // the process may have ended
    }
}

const REACHED: &str = "200\n";

/// Returns the flags of a sandbox that may reach `rule` and otherwise has the settings of `like`.
fn flags(like: &Egress, rule: &'static str) -> Vec<&'static str> {
    like.transparent.then_some("--transparent").into_iter().chain(["--allow", rule]).collect()
}

#[track_caller]
fn another_list_holds_at_once(setup: BackendSetup, like: &Egress, way: &str, denied: &str) {
    let place = place(setup);
    let flags = flags(like, "good.test");
    let up = RunningSandbox::new(setup, &place, &flags);
    let first = up.manifest();
    assert_eq!(up.fetch(way, "good.test"), REACHED, "{setup:?}");

    up.allow(like, &["evil.test"]);
    assert_eq!(up.fetch(way, "good.test"), denied, "{setup:?}");
    assert_eq!(up.fetch(way, "evil.test"), REACHED, "{setup:?}");
    let (target, reason) = up.denials().pop().expect("it is told of");
    assert!(
        target.starts_with("good.test") && reason == "unlisted",
        "{setup:?}: {target} {reason}"
    );
    let told = up.manifest();
    assert_eq!(told["policy"]["network"]["allow"], serde_json::json!(["evil.test"]), "{setup:?}");
    assert_ne!(told["policy_sha256"], first["policy_sha256"], "{setup:?}");
    let result = block_on(up.sandbox.execute("true", None)).expect("it is up");
    assert_eq!(told["policy_sha256"], result.meta.policy_sha256, "{setup:?}");
    let again = said(&up_with(&up.kept, &flags));
    assert!(
        again.contains("the hosts that it may reach were changed since its start"),
        "{setup:?}: {again}"
    );

    up.set(Egress {
        allow: parsed(&["good.test", "evil.test"]),
        deny: parsed(&["evil.test"]),
        ..like.clone()
    })
    .expect("it has a gate");
    assert_eq!(up.fetch(way, "evil.test"), denied, "{setup:?}");
    assert_eq!(up.denials().pop().expect("it is told of").1, "listed", "{setup:?}");

    up.allow(like, &["good.test"]);
    assert_eq!(up.fetch(way, "good.test"), REACHED, "{setup:?}");
    let last = up.manifest();
    assert_eq!(
        (&last["policy_sha256"], &last["policy"]),
        (&first["policy_sha256"], &first["policy"]),
        "{setup:?}"
    );
}

#[track_caller]
fn an_open_connection_is_cut(setup: BackendSetup, like: &Egress, way: &str) {
    let place = place(setup);
    let up = RunningSandbox::new(setup, &place, &flags(like, "good.test:22"));
    let talking = up.talk(way);
    up.allow(like, &["good.test:22", "evil.test"]);
    std::thread::sleep(Duration::from_millis(300));
    assert!(!talking.has("cut"), "{setup:?}: it is allowed still");
    up.allow(like, &["evil.test"]);
    talking.wait_for("cut");
    assert_eq!(up.denials(), [("good.test:22".to_owned(), "unlisted".to_owned())], "{setup:?}");
}

const PROXIED: &str = "HTTP Error 403: Forbidden\n";
const UNKNOWN: &str = "<urlopen error [Errno -2] Name or service not known>\n";

fn transparent() -> Egress {
    Egress { transparent: true, ..Egress::default() }
}

#[test]
fn a_native_sandbox_applies_a_changed_list_to_open_connections() {
    require!(root, binary, python3, own_network, user_namespaces);
    another_list_holds_at_once(NATIVE, &Egress::default(), "proxied", PROXIED);
    an_open_connection_is_cut(NATIVE, &Egress::default(), "proxied");
}

#[test]
fn a_bubblewrap_sandbox_applies_a_changed_list_to_open_connections() {
    require!(root, binary, python3, own_network, user_namespaces, bwrap);
    another_list_holds_at_once(BWRAP, &Egress::default(), "proxied", PROXIED);
    an_open_connection_is_cut(BWRAP, &Egress::default(), "proxied");
}

#[test]
fn a_tunnel_sandbox_applies_a_changed_list_to_open_connections() {
    require!(root, binary, python3, own_network, user_namespaces, bwrap, tunnels);
    for setup in [NATIVE, BWRAP] {
        another_list_holds_at_once(setup, &transparent(), "directly", UNKNOWN);
        an_open_connection_is_cut(setup, &transparent(), "directly");
    }
}

#[test]
fn settings_fixed_at_the_start_cannot_be_changed() {
    require!(root, binary, own_network, user_namespaces);
    let place = place(NATIVE);
    let closed = RunningSandbox::new(NATIVE, &place, &[]);
    let refused = closed.set(Egress::default()).unwrap_err();
    assert!(matches!(&refused, ChangeError::NoGate { network: "closed", .. }), "{refused:?}");
    assert!(refused.hints()[0].contains("--replace --allow HOST"), "{:?}", refused.hints());
    let open = RunningSandbox::new(NATIVE, &place, &["--net", "open"]);
    assert!(matches!(
        open.set(Egress::default()),
        Err(ChangeError::NoGate { network: "open", .. })
    ));
    let some = RunningSandbox::new(NATIVE, &place, &["--allow", "good.test"]);
    some.set(Egress::default()).expect("it has a gate");
    assert!(matches!(some.set(transparent()), Err(ChangeError::Fixed { key: "transparent", .. })));
    let observed = Egress { observe: true, ..Egress::default() };
    assert!(matches!(some.set(observed), Err(ChangeError::Fixed { key: "observe", .. })));
    let long = Egress {
        allow: vec!["a-rather-long-name.example.org".parse().unwrap(); 20_000],
        ..Egress::default()
    };
    assert!(matches!(some.set(long), Err(ChangeError::TooLong { .. })));
}

#[test]
fn the_secret_of_a_host_allowed_later_is_never_read() {
    require!(root, binary, python3, own_network, user_namespaces);
    let place = place(NATIVE);
    let kept = EngineSandbox::new(NATIVE, &place);
    let settings = kept.home.join(".config/ringfence");
    fs_err::create_dir_all(&settings).expect("the place is ours");
    // The file does not exist, so reading the secret fails.
    let credential = "[[credentials]]\nhost = 'evil.test'\nfile = '/nowhere/secret'\n";
    fs_err::write(settings.join("config.toml"), credential).expect("the place is ours");
    let read = said(&up_with(&kept, &["--allow", "good.test", "--allow", "evil.test"]));
    assert!(read.contains("cannot get the secret for `evil.test`"), "{read}");
    let up = RunningSandbox::start(kept, &["--allow", "good.test"]);
    up.allow(&Egress::default(), &["good.test", "evil.test"]);
    assert_eq!(up.fetch("proxied", "evil.test"), REACHED);
}
