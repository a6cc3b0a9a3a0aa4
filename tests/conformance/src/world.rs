//! A network of the tests' own: a host, on which ringfence runs, and a world, in which servers listen.
//!
//! Both are network namespaces, joined by a pair of interfaces and by nothing to any other: whatever a test lets out
//! of a sandbox arrives in the world, or nowhere. Servers there have addresses that look public, and such that do not;
//! a name server tells whatever a name asks it to tell; and all of them write down what they are sent. The host has a
//! resolver and a list of names of its own, servers that only it may reach, and a proxy that lets everything through.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ringfence_test_ledger::User;
use serde_json::Value;

/// Where the programs of the world are.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/world");
/// The proxy of the host that lets everything through.
const CARELESS_PROXY: &str = "http://127.0.0.1:3128";
/// How long nothing arrives once all has.
const QUIET: Duration = Duration::from_millis(150);
/// How long the world may take to come to rest.
const PATIENCE: Duration = Duration::from_secs(20);

/// A host and a world.
#[derive(Debug)]
pub struct World {
    /// Ends when its standard input does, which is when this process has ended: it outlives no test.
    host: Child,
    directory: PathBuf,
}

/// One piece of what a server was sent.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// Which: `good`, `evil`, `names`, `private`, `files`, or `host`.
    pub service: String,
    /// What, in lower case.
    pub data: String,
}

impl World {
    /// The world that all tests share. What each sends is told apart by a token.
    ///
    /// # Panics
    ///
    /// Panics when it cannot be made; tests require [`ringfence_test_ledger::needs::own_network`].
    pub fn shared() -> &'static World {
        static WORLD: OnceLock<World> = OnceLock::new();
        WORLD.get_or_init(World::make)
    }

    fn make() -> World {
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--propagation", "private", "python3", "-B"]);
        command.arg(Path::new(SOURCE).join("host.py")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut host = command.spawn().expect("the test requires a network of its own");
        let mut line = String::new();
        let output = host.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut line).expect("the host tells of itself");
        let facts: Value = serde_json::from_str(&line).expect("the host and the world could be made");
        World { host, directory: facts["directory"].as_str().expect("it names its directory").into() }
    }

    /// Prepares a command on the host: a user's, or root's.
    pub(crate) fn command(&self, user: Option<&User>, program: &Path, directory: &Path) -> Command {
        let namespaces = format!("/proc/{}/ns", self.host.id());
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={namespaces}/net")).arg(format!("--mount={namespaces}/mnt")).arg("--");
        if let Some(user) = user {
            let (uid, gid) = (user.uid.to_string(), user.gid.to_string());
            command.args(["setpriv", "--reuid", &uid, "--regid", &gid, "--clear-groups", "--"]);
        }
        // Another mount namespace begins at its root.
        command.args(["env", "--chdir"]).arg(directory).arg(program);
        command
    }

    /// What attempts have to be told of the host, as variables.
    pub fn variables(&self) -> [(&'static str, String); 2] {
        let socket = self.directory.join("host.sock");
        [("HOST_SOCKET", socket.display().to_string()), ("HOST_PROCESS", self.host.id().to_string())]
    }

    /// The variables that lead to a proxy of the host that lets everything through.
    pub fn careless_proxy(&self) -> [(&'static str, String); 2] {
        ["HTTP_PROXY", "http_proxy"].map(|name| (name, CARELESS_PROXY.to_owned()))
    }

    /// The certificate of the authority that all servers' certificates are from.
    pub fn authority(&self) -> PathBuf {
        self.directory.join("authority.pem")
    }

    /// What `https://….client.test` and `http://….client.test` serve.
    pub fn files(&self) -> PathBuf {
        self.directory.join("files")
    }

    /// All that has arrived with a mark in it, once nothing more of it is on its way.
    ///
    /// # Panics
    ///
    /// Panics when it does not end.
    pub fn arrivals(&self, mark: &str) -> Vec<Arrival> {
        let begun = Instant::now();
        let (mut found, mut since) = (self.so_far(mark), begun);
        while since.elapsed() < QUIET {
            assert!(begun.elapsed() < PATIENCE, "the world does not come to rest");
            std::thread::sleep(Duration::from_millis(20));
            let now = self.so_far(mark);
            if now.len() != found.len() {
                (found, since) = (now, Instant::now());
            }
        }
        found
    }

    /// All that has arrived with a mark in it so far.
    ///
    /// # Panics
    ///
    /// Panics when the world's journal is not what it should be.
    pub fn so_far(&self, mark: &str) -> Vec<Arrival> {
        // Without one, nothing has.
        let text = fs_err::read_to_string(self.directory.join("arrivals")).unwrap_or_default().to_lowercase();
        // The last line may still be being written.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let marked = whole.lines().filter(|line| line.contains(mark));
        marked.map(|line| Arrival::read(line).expect("the world keeps its journal in JSON")).collect()
    }

    /// Who has seen a token, once nothing more of it is on its way.
    pub fn places_of(&self, token: &str) -> BTreeSet<String> {
        self.arrivals(token).into_iter().map(|arrival| arrival.service).collect()
    }
}

impl Arrival {
    fn read(line: &str) -> Option<Arrival> {
        let value: Value = serde_json::from_str(line).ok()?;
        let (service, data) = (value["service"].as_str()?, value["data"].as_str()?);
        Some(Arrival { service: service.to_owned(), data: data.to_owned() })
    }
}
