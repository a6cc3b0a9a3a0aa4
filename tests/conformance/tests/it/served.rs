//! E2B's own packages against `ringfence serve`.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use ringfence::Backend;
use ringfence_test_ledger::{e2b_javascript, e2b_python, require};
use rustix::process::{Pid, Signal, kill_process};

use crate::asks::RawClient;
use crate::interpreters::until;
use crate::keeper::{SandboxKeeper, WAIT_TIMEOUT};

/// A running server of a keeper.
pub(crate) struct RunningServer<'a> {
    keeper: &'a SandboxKeeper,
    pub(crate) process: Child,
    pub(crate) url: String,
}

impl<'a> RunningServer<'a> {
    /// Starts a server on a free port.
    #[track_caller]
    pub(crate) fn start(keeper: &'a SandboxKeeper) -> RunningServer<'a> {
        RunningServer::start_with_flags(keeper, &[])
    }

    /// Starts a server with additional flags.
    #[track_caller]
    pub(crate) fn start_with_flags(keeper: &'a SandboxKeeper, flags: &[&str]) -> RunningServer<'a> {
        RunningServer::told(keeper, flags, &[])
    }

    /// Starts a server with settings, which are written to a file in the workspace.
    #[track_caller]
    pub(crate) fn configured(keeper: &'a SandboxKeeper, settings: &str) -> RunningServer<'a> {
        let config = keeper.workspace().join("server.toml");
        fs_err::write(&config, settings).expect("the workspace is ours");
        RunningServer::start_with_flags(keeper, &["--config", config.to_str().expect("it is text")])
    }

    /// Starts a server with additional flags and variables.
    #[track_caller]
    pub(crate) fn told(
        keeper: &'a SandboxKeeper,
        flags: &[&str],
        variables: &[(&str, &str)],
    ) -> RunningServer<'a> {
        let mut command = keeper.ringfence(&["serve", "--listen", "127.0.0.1:0"]);
        command.args(flags).envs(variables.iter().copied());
        RunningServer::run(keeper, command)
    }

    /// Starts a server with a prepared command.
    #[track_caller]
    pub(crate) fn run(keeper: &'a SandboxKeeper, mut command: Command) -> RunningServer<'a> {
        let log = fs_err::OpenOptions::new()
            .create(true)
            .append(true)
            .open(keeper.home().join("server.log"));
        let log = log.expect("the home is ours").into_file();
        let mut process =
            command.stdout(Stdio::piped()).stderr(log).spawn().expect("ringfence can be started");
        let mut url = String::new();
        let output = process.stdout.take().expect("it was asked for");
        BufReader::new(output).read_line(&mut url).expect("it is text");
        assert!(url.contains("://127.0.0.1:"), "{url}: {}", log_of(keeper));
        RunningServer { keeper, process, url: url.trim_end().to_owned() }
    }

    /// Notes the processes that keep the sandboxes of the server.
    pub(crate) fn note_sandboxes(&self) {
        self.keeper.note_children_of(self.process.id());
    }

    /// Runs one act of the package's script, and returns the lines of its output.
    #[track_caller]
    fn package(&self, act: &str, more: &[&str]) -> Vec<String> {
        let mut command = script(e2b_python().expect("the test requires it"), "e2b_server.py");
        command.args([&self.url, act]).args(more);
        if self.url.starts_with("https:") {
            command.env("SSL_CERT_FILE", self.keeper.server().join("tls/ca.pem"));
        }
        let outcome = self.keeper.run(command.current_dir("/"));
        self.keeper.note_children_of(self.process.id());
        assert!(outcome.is_good(), "{act}: {}\n{}", outcome.said, log_of(self.keeper));
        outcome.said.lines().map(str::to_owned).collect()
    }

    /// Runs a script that finds the server only through the usual variables of E2B, and returns the
    /// lines of its output.
    #[track_caller]
    pub(crate) fn drive(&self, mut script: Command) -> Vec<String> {
        script
            .env("E2B_API_URL", &self.url)
            .env("E2B_SANDBOX_URL", &self.url)
            .env("E2B_API_KEY", "e2b_0");
        script.env("NO_PROXY", "127.0.0.1");
        let outcome = self.keeper.run(script.current_dir("/"));
        self.keeper.note_children_of(self.process.id());
        assert!(outcome.is_good(), "{}\n{}", outcome.said, log_of(self.keeper));
        outcome.said.lines().map(str::to_owned).collect()
    }

    /// Returns the id of the server's process.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Asks the server to end, and waits until it has ended.
    #[track_caller]
    pub(crate) fn end(mut self) {
        kill_process(Pid::from_child(&self.process), Signal::TERM).expect("it is ours");
        let begun = Instant::now();
        while self.process.try_wait().expect("it is ours").is_none() {
            assert!(begun.elapsed() < WAIT_TIMEOUT, "it does not end: {}", log_of(self.keeper));
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

impl Drop for RunningServer<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = log_of(self.keeper);
            let told: Vec<&str> = log.lines().filter(|line| !line.contains(" request ")).collect();
            let _ = std::io::stderr().write_all(told.join("\n").as_bytes()); // best effort
        }
        let _ = self.process.kill(); // the server may have ended
        let _ = self.process.wait(); // the server may have ended
    }
}

/// A page of this machine's own, served until the test ends.
struct ServedPage {
    port: u16,
}

impl ServedPage {
    fn serve() -> ServedPage {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let port = listener.local_addr().expect("it listens").port();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut head = BufReader::new(&stream).lines();
                while head.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
                // The client may have gone.
                let _ = (&stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
            }
        });
        ServedPage { port }
    }
}

/// Returns a command that runs a script of this directory. Python scripts find the module `checks`
/// beside them.
pub(crate) fn script(interpreter: impl Into<PathBuf>, name: &str) -> Command {
    let mut command = Command::new(interpreter.into());
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it").join(name));
    command
}

pub(crate) fn log_of(keeper: &SandboxKeeper) -> String {
    fs_err::read_to_string(keeper.home().join("server.log")).unwrap_or_default()
}

/// Checks that nothing is left of a server's sandboxes, and removes the server's other files.
#[track_caller]
pub(crate) fn expect_nothing_left(keeper: &SandboxKeeper) {
    let server = keeper.server();
    for kind in ["workspaces", "snapshots"] {
        let left = fs_err::read_dir(server.join(kind)).expect("it is there").count();
        assert_eq!(left, 0, "{kind} are left by an ended server: {}", log_of(keeper));
    }
    fs_err::remove_dir_all(server).expect("it is ours");
    fs_err::remove_dir_all(keeper.workspace()).expect("it is ours");
    fs_err::remove_file(keeper.home().join("server.log")).expect("it is ours");
    keeper.expect_nothing_left();
}

#[test]
fn the_e2b_package_runs_against_a_server() {
    require!(root, binary, user_namespaces, python3, e2b_python);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let server = RunningServer::start(&keeper);
    for act in [
        "life",
        "lists",
        "expiry",
        "pausing",
        "resting",
        "streams",
        "asynchronous",
        "signatures",
        "ports",
        "refusals",
        "repeats",
        "history",
        "interpreter",
    ] {
        server.package(act, &[]);
    }
    server.end();
    expect_nothing_left(&keeper);
}

#[test]
fn the_e2b_package_runs_against_host_names_of_a_server_in_tls() {
    require!(root, binary, user_namespaces, python3, e2b_python);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let server = RunningServer::start_with_flags(&keeper, &["--tls"]);
    server.package("life", &[]);
    server.end();
    expect_nothing_left(&keeper);
}

#[test]
fn the_e2b_package_for_javascript_runs_against_a_server() {
    require!(root, binary, user_namespaces, pseudo_terminals, e2b_javascript);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let server = RunningServer::start(&keeper);
    let mut package = script("node", "e2b_server.mjs");
    package.arg(e2b_javascript().expect("the test requires it"));
    server.drive(package);
    server.end();
    expect_nothing_left(&keeper);
}

#[test]
fn pooled_sandboxes_are_used_once_and_end_with_their_server() {
    require!(root, binary, user_namespaces, python3, e2b_python);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let config = keeper.home().join("server.toml");
    fs_err::write(&config, "[templates.base]\nwarm = 2\n").expect("the home is ours");
    let server = RunningServer::start_with_flags(
        &keeper,
        &["--config", config.to_str().expect("it is text")],
    );
    server.package("warm", &[]);
    server.end();
    let left = keeper.run(&mut keeper.ringfence(&["ps", "--json"]));
    assert_eq!(left.said.trim_end(), "[]");
    fs_err::remove_file(config).expect("it is ours");
    expect_nothing_left(&keeper);
}

#[test]
fn visitors_of_a_sandbox_on_the_host_network_reach_only_its_ports() {
    require!(root, binary, user_namespaces, bwrap, python3, e2b_python);
    for backend in [Backend::Native, Backend::Bwrap] {
        let keeper = SandboxKeeper::for_root(backend);
        let policy = format!("backend = '{backend}'\n[network]\nmode = 'open'\n");
        fs_err::write(keeper.workspace().join("open.toml"), policy).expect("the workspace is ours");
        let server = RunningServer::configured(&keeper, "[templates.open]\npolicy = 'open.toml'\n");
        server.package("shared_ports", &[]);
        server.end();
        expect_nothing_left(&keeper);
    }
}

/// Waits until the short lease of a sandbox has ended and its room is gone.
#[track_caller]
fn wait_for_end_of_lease(keeper: &SandboxKeeper, sandbox: &str) {
    let begun = Instant::now();
    while keeper.room(sandbox).exists() {
        assert!(begun.elapsed() < WAIT_TIMEOUT, "its lease does not end it");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn sandboxes_outlive_their_server_and_are_found_again() {
    require!(root, binary, user_namespaces, python3, e2b_python);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let server = RunningServer::start(&keeper);
    let made = server.package("begin", &[]);
    let [kept, short] = made.as_slice() else { panic!("{made:?}") };
    // Kill the server, as a crash does. The lease of the second sandbox ends while there is no
    // server.
    drop(server);
    wait_for_end_of_lease(&keeper, short);
    let server = RunningServer::start(&keeper);
    server.package("found_again", &[kept, short]);
    // Stop sandboxes without the server's knowledge, once while it runs and once while it does not.
    keeper.expect(&mut keeper.ringfence(&["stop", kept]));
    server.package("vanished", &[kept]);
    let made = server.package("begin", &[]);
    server.end();
    keeper.expect(&mut keeper.ringfence(&["stop", &made[0]]));
    wait_for_end_of_lease(&keeper, &made[1]);
    let server = RunningServer::start(&keeper);
    server.package("vanished", &[&made[0]]);
    server.end();
    expect_nothing_left(&keeper);
}

#[test]
fn stopping_all_sandboxes_keeps_those_of_a_servers_clients() {
    require!(root, binary, user_namespaces);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let config = keeper.home().join("server.toml");
    fs_err::write(&config, "[templates.code-interpreter-v1]\nwarm = 1\n")
        .expect("the home is ours");
    let server = RunningServer::start_with_flags(
        &keeper,
        &["--config", config.to_str().expect("it is text")],
    );
    let client = RawClient::for_url(&server.url);
    let waiting = || {
        let (_, text) = client.ask("GET /metrics", &[("x-api-key", "e2b_0")], b"");
        String::from_utf8_lossy(&text).contains("ringfence_sandboxes_waiting 1\n")
    };
    until("none waits", waiting);
    let (one, other) = (client.create(&[]), client.create(&[]));
    server.note_sandboxes();
    let is_up = |name: &str| keeper.room(name).exists();
    keeper.expect(&mut keeper.up("mine"));
    let told = keeper.expect(&mut keeper.ringfence(&["stop", "--all"]));
    assert!(told.contains("stopped mine") && !is_up("mine"), "{told}");
    assert!(told.contains("3 sandboxes belong to clients of `ringfence serve`"), "{told}");
    assert!(told.contains("hint: ") && told.contains("ringfence stop "), "{told}");
    assert!(is_up(&one.0) && is_up(&other.0));
    assert!(client.shell(&one, "echo as before", &[]).contains("exit status 0"));
    // The result is the same without the server and on a second call, when nothing else can be
    // stopped.
    server.end();
    let told = keeper.expect(&mut keeper.ringfence(&["stop", "--all"]));
    assert!(
        told.contains("2 sandboxes belong to clients of `ringfence serve`") && is_up(&one.0),
        "{told}"
    );
    keeper.expect(&mut keeper.ringfence(&["stop", &one.0]));
    let told = keeper.expect(&mut keeper.ringfence(&["stop", "--all"]));
    assert!(told.contains("1 sandbox belongs to a client of `ringfence serve`"), "{told}");
    assert!(!is_up(&one.0) && is_up(&other.0));
    keeper.expect(&mut keeper.ringfence(&["stop", &other.0]));
    RunningServer::start(&keeper).end(); // the next server removes files without a sandbox
    fs_err::remove_file(config).expect("it is ours");
    expect_nothing_left(&keeper);
}

#[test]
fn changed_egress_rules_outlive_the_server() {
    require!(root, binary, user_namespaces, python3, e2b_python);
    let (keeper, page) = (SandboxKeeper::for_root(Backend::Native), ServedPage::serve());
    let port = page.port.to_string();
    let config = keeper.home().join("server.toml");
    let policy = format!(
        "[network]\nallow = ['127.0.0.1:{port}', '*.example.org']\ndeny = ['b.example.org']\n"
    );
    fs_err::write(keeper.home().join("policy.toml"), policy).expect("the home is ours");
    let base = "[templates.base]\npolicy = 'policy.toml'\n";
    let both = format!("{base}[templates.other]\npolicy = 'policy.toml'\n");
    fs_err::write(&config, both).expect("the home is ours");
    let flags = ["--config", config.to_str().expect("it is text")];
    let server = RunningServer::start_with_flags(&keeper, &flags);
    let made = server.package("network", &[&port]);
    drop(server); // kills the server, as a crash does
    fs_err::write(&config, base).expect("the home is ours");
    let server = RunningServer::start_with_flags(&keeper, &flags);
    server.package("network_kept", &[&made[0], &made[1], &port]);
    server.end();
    for file in ["policy.toml", "server.toml", ".local/state/ringfence/egress.jsonl"] {
        fs_err::remove_file(keeper.home().join(file)).expect("it is ours");
    }
    expect_nothing_left(&keeper);
}

#[test]
fn a_paused_sandbox_outlives_its_server_and_its_lease_stands_still() {
    require!(root, binary, user_namespaces, python3, e2b_python);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let server = RunningServer::start(&keeper);
    let made = server.package("rest", &[]);
    let [id, pid, over] = made.as_slice() else { panic!("{made:?}") };
    drop(server); // kills the server, as a crash does
    let server = RunningServer::start(&keeper);
    server.package("rested", &[id, pid, over]);
    server.end();
    expect_nothing_left(&keeper);
}

#[test]
fn a_paused_sandbox_ends_with_the_process_that_keeps_it() {
    require!(root, binary, user_namespaces, python3, e2b_python);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let server = RunningServer::start(&keeper);
    let made = server.package("rest", &[]);
    let manifest = fs_err::read(keeper.room(&made[0]).join("manifest.json")).expect("it is there");
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("it is JSON");
    let monitor =
        manifest["owner"]["pid"].as_i64().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    kill_process(monitor.expect("it is a number"), Signal::KILL).expect("it is ours");
    server.package("vanished", &[&made[0]]);
    keeper.expect(&mut keeper.ringfence(&["ps"])); // clears what a crash left
    server.end();
    expect_nothing_left(&keeper);
}

#[test]
fn a_key_has_its_own_sandboxes_until_it_is_revoked() {
    require!(root, binary, user_namespaces, python3, e2b_python);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let mut beyond = keeper.ringfence(&["serve", "--listen", "0.0.0.0:0"]);
    let refused = keeper.run(&mut beyond);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.said.contains("hint: ringfence keys create NAME"), "{refused:?}");
    let server = RunningServer::start(&keeper);
    let create = |words: &[&str]| {
        let mut command = keeper.ringfence(&["keys", "create"]);
        keeper.expect(command.args(words)).trim_end().to_owned()
    };
    // A server learns of new keys while it runs.
    let (one, other) = (create(&["one"]), create(&["other"]));
    server.package("tenants", &[&one, &other]);
    let few = create(&["few", "--sandboxes", "2", "--longest", "10m"]);
    let slow = create(&["slow", "--per-minute", "1"]);
    server.package("quotas", &[&few, &slow]);
    server.package("spent", &[&create(&["spent", "--cpu-per-day", "1s"])]);
    keeper.expect(&mut keeper.ringfence(&["keys", "revoke", "one"]));
    server.package("refused", &[&one]);
    server.end();
    expect_nothing_left(&keeper);
}
