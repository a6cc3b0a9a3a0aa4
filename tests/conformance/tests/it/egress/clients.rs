//! Popular programs in a sandbox, against servers of the world. Each works with a rule, and without
//! the rule fails with an explanation.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use conformance::{BackendSetup, BackendVariant, Caller, CallerDirectory, SimulatedNetwork};
use ringfence_test_ledger::require;

/// Text that every server serves.
const SERVED_TEXT: &str = "from the world";
/// Variables that tell programs which certificates to trust.
const TRUST_VARIABLES: [&str; 8] = [
    "CARGO_HTTP_CAINFO",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
    "npm_config_cafile",
];

/// A program, with a script that fetches something from `$HOST`.
struct FetchProgram {
    script: &'static str,
    /// Text that the program prints if no rule allows the request.
    complaint: &'static str,
    /// Additional flags of ringfence.
    flags: &'static [&'static str],
    /// Programs and files in the working directory of the client.
    files: Vec<(&'static str, Vec<u8>)>,
    /// Directory of the program, if it is not one of the system's.
    path: Option<PathBuf>,
}

impl FetchProgram {
    fn new(script: &'static str, complaint: &'static str) -> FetchProgram {
        FetchProgram { script, complaint, flags: &[], files: Vec::new(), path: None }
    }

    fn with(mut self, name: &'static str, content: impl Into<Vec<u8>>) -> FetchProgram {
        self.files.push((name, content.into()));
        self
    }

    /// Runs the client in a sandbox whose policy allows one host.
    fn run(&self, host: &str, allowed: &str) -> Output {
        let world = SimulatedNetwork::shared();
        let setup = BackendSetup { variant: BackendVariant::Native, caller: Caller::Root };
        let place = CallerDirectory::for_host_of(world, setup.caller);
        fs_err::copy(world.authority(), place.path().join("authority.pem"))
            .expect("the place is ours");
        for (name, content) in &self.files {
            let path = place.path().join(name);
            fs_err::write(&path, content).expect("the place is ours");
            fs_err::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))
                .expect("it is ours");
        }
        let mut command = setup.ringfence("run", &place);
        if let Some(path) = &self.path {
            command.env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", path.display()));
        }
        command
            .args(["--allow", allowed])
            .args(self.flags)
            .arg("--env")
            .arg(format!("HOST={host}"));
        for name in TRUST_VARIABLES {
            command
                .arg("--env")
                .arg(format!("{name}={}", place.path().join("authority.pem").display()));
        }
        command.args(["--", "sh", "-ec", self.script]).output().expect("ringfence can be started")
    }

    /// Checks that the client works with the rule. Without the rule it must fail with its
    /// complaint, and no server may have heard of the request.
    #[track_caller]
    fn check(&self) {
        stock();
        let allowed = host();
        let output = self.run(&allowed, &allowed);
        let said = said(&output);
        assert!(output.status.success() && said.contains(SERVED_TEXT), "{}: {said}", output.status);
        let denied = host();
        let output = self.run(&denied, "good.test");
        let said = self::said(&output);
        assert!(
            !output.status.success() && said.contains(self.complaint),
            "{}: {said}",
            output.status
        );

        assert!(
            SimulatedNetwork::shared().places_of(&allowed).contains("files"),
            "it came from somewhere else"
        );
        assert_eq!(
            SimulatedNetwork::shared().places_of(&denied),
            BTreeSet::new(),
            "it got through"
        );
    }
}

/// Returns a new host name of the world that nothing has asked for before.
fn host() -> String {
    static HOSTS: AtomicU32 = AtomicU32::new(0);
    format!("c{:05x}n{:03}.client.test", std::process::id(), HOSTS.fetch_add(1, Ordering::Relaxed))
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Returns the directory of a program on the PATH of the tests.
fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).find(|directory| directory.join(program).is_file())
}

/// Creates the files that clients fetch from the servers of the world.
fn stock() {
    static STOCKED: OnceLock<()> = OnceLock::new();
    STOCKED.get_or_init(|| {
        let mut command = Command::new("python3");
        let output = command
            .args(["-c", include_str!("clients/stock.py")])
            .arg(SimulatedNetwork::shared().files())
            .output();
        let output = output.expect("python3 can be started");
        assert!(output.status.success(), "{}", said(&output));
    });
}

#[test]
fn curl_fetches_what_a_rule_allows() {
    require!(root, binary, python3, git, own_network, user_namespaces, curl);
    FetchProgram::new("curl --silent --show-error --fail https://$HOST/hello", "403").check();
}

#[test]
fn wget_fetches_what_a_rule_allows() {
    require!(root, binary, python3, git, own_network, user_namespaces, wget);
    let script = "wget --ca-certificate authority.pem --output-document - https://$HOST/hello";
    FetchProgram::new(script, "Proxy tunneling failed: Forbidden").check();
}

#[test]
fn git_clones_what_a_rule_allows() {
    require!(root, binary, python3, git, own_network, user_namespaces);
    FetchProgram::new("git clone --quiet https://$HOST/git/hello.git && cat hello/hello", "403")
        .check();
}

#[test]
fn pip_installs_what_a_rule_allows() {
    require!(root, binary, python3, git, own_network, user_namespaces, pip);
    let script = "python3 -m pip install --no-cache-dir --disable-pip-version-check --retries 1 \
                  --target packages \
        --index-url https://$HOST/pip/simple hello && PYTHONPATH=packages python3 -m hello";
    FetchProgram::new(script, "403 Forbidden").check();
}

#[test]
fn npm_installs_what_a_rule_allows() {
    require!(root, binary, python3, git, own_network, user_namespaces, npm);
    let script = "npm install --no-audit --no-fund --no-update-notifier --fetch-retries 0 --cache \
                  $PWD/cache \
        --registry https://$HOST/npm/ hello && node node_modules/hello";
    FetchProgram::new(script, "403").check();
}

#[test]
fn cargo_fetches_what_a_rule_allows() {
    require!(root, binary, python3, git, own_network, user_namespaces, cargo);
    let script = r#"
        mkdir -p src .cargo && touch src/lib.rs
        echo "[registries.world]\nindex = \"sparse+https://$HOST/cargo/\"" > .cargo/config.toml
        export CARGO_HOME=$PWD/home CARGO_NET_RETRY=0
        cargo fetch
        cat home/registry/src/*/hello-1.0.0/src/lib.rs"#;
    let manifest = "[package]\nname = \"user\"\nversion = \"1.0.0\"\nedition = \"2021\"\n\
        [dependencies]\nhello = { version = \"1\", registry = \"world\" }\n";
    let mut client = FetchProgram::new(script, "403").with("Cargo.toml", manifest);
    client.path = on_path("cargo");
    client.check();
}

#[test]
fn apt_downloads_what_a_rule_allows() {
    require!(root, binary, python3, git, own_network, user_namespaces, apt);
    let script = "
        mkdir -p state/lists/partial cache/archives/partial && touch status
        echo \"deb [trusted=yes] http://$HOST/apt ./\" > sources.list
        options=\"-o Dir::Etc::SourceList=$PWD/sources.list -o Dir::Etc::SourceParts=/dev/null -o \
        Dir::State=$PWD/state\"
        options=\"$options -o Dir::State::Status=$PWD/status -o Dir::Cache=$PWD/cache -o \
        APT::Sandbox::User=\"
        apt-get $options --error-on=any update
        apt-get $options download hello
        dpkg-deb --fsys-tarfile hello_1.0_all.deb";
    FetchProgram::new(script, "403  Forbidden").check();
}

#[test]
fn requests_fetches_what_a_rule_allows() {
    require!(root, binary, python3, git, own_network, user_namespaces, python_requests);
    let client =
        FetchProgram::new("python3 fetch.py requests https://$HOST/hello", "403 Forbidden");
    client.with("fetch.py", include_str!("clients/fetch.py")).check();
}

#[test]
fn httpx_fetches_what_a_rule_allows() {
    require!(root, binary, python3, git, own_network, user_namespaces, python_httpx);
    let client = FetchProgram::new("python3 fetch.py httpx https://$HOST/hello", "403 Forbidden");
    client.with("fetch.py", include_str!("clients/fetch.py")).check();
}

#[test]
fn node_fetches_what_a_rule_allows() {
    require!(root, binary, python3, git, own_network, user_namespaces, node);
    let client = FetchProgram::new("node fetch.mjs https://$HOST/hello", "fetch failed");
    let mut client = client.with("fetch.mjs", include_str!("clients/fetch.mjs"));
    if !knows_proxy_variables() {
        client.flags = &["--transparent"];
    }
    client.check();
}

/// Returns true if the installed Node honours the proxy variables, which it does since version 24.
fn knows_proxy_variables() -> bool {
    let script = "process.exit(process.allowedNodeEnvironmentFlags.has('--use-env-proxy') ? 0 : 1)";
    Command::new("/usr/bin/node").args(["-e", script]).status().is_ok_and(|status| status.success())
}

#[test]
fn go_fetches_what_a_rule_allows() {
    require!(root, binary, python3, git, own_network, user_namespaces, go);
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let (source, program) = (directory.path().join("fetch.go"), directory.path().join("fetch"));
    fs_err::write(&source, include_str!("clients/fetch.go")).expect("it is ours");
    let mut compiler = Command::new("go");
    compiler.args(["build", "-o"]).args([&program, &source]).env("CGO_ENABLED", "0");
    let output = compiler.output().expect("the test requires it");
    assert!(output.status.success(), "{}", said(&output));
    let client = FetchProgram::new("./fetch https://$HOST/hello", "Forbidden");
    client.with("fetch", fs_err::read(program).expect("it was built")).check();
}

#[test]
fn java_fetches_what_a_rule_allows() {
    require!(root, binary, python3, git, own_network, user_namespaces, java);
    let client = FetchProgram::new("java Fetch.java http://$HOST/hello", "403 for URL");
    client.with("Fetch.java", include_str!("clients/Fetch.java")).check();
}
