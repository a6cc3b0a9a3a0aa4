//! A network for the tests: a host on which ringfence runs, and a world in which servers listen.
//!
//! Both are network namespaces, joined by a pair of interfaces and connected to no other network.
//! Traffic that a test lets out of a sandbox therefore arrives in the world or nowhere. Servers in
//! the world have addresses that look public and addresses that do not. A name server gives the
//! answer that the queried name asks for. All servers record what they are sent. The host has its
//! own resolver and list of names, servers that only the host may reach, and a proxy that lets
//! everything through.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ringfence_test_ledger::User;
use serde_json::Value;

/// Directory of the programs that make up the world.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/simulated_network");
/// URL of the proxy on the host that lets everything through.
const CARELESS_PROXY: &str = "http://127.0.0.1:3128";
/// Time without an arrival after which everything has arrived.
const QUIET_PERIOD: Duration = Duration::from_millis(150);
/// Time limit for the arrivals to stop.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(20);

/// A host and a world.
#[derive(Debug)]
pub struct SimulatedNetwork {
    /// Process of the host. It ends at the end of its standard input, which is when this process
    /// ends, so it outlives no test.
    host: Child,
    directory: PathBuf,
}

/// Data that a server received in one piece.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// Name of the server: `good`, `evil`, `names`, `private`, `files`, or `host`.
    pub service: String,
    /// The received data, in lower case.
    pub data: String,
}

impl SimulatedNetwork {
    /// Returns the world that all tests share. A token in the data tells the arrivals of one test
    /// from those of another.
    ///
    /// # Panics
    ///
    /// Panics if the world cannot be made; tests require
    /// [`ringfence_test_ledger::needs::own_network`].
    pub fn shared() -> &'static SimulatedNetwork {
        static WORLD: OnceLock<SimulatedNetwork> = OnceLock::new();
        WORLD.get_or_init(SimulatedNetwork::make)
    }

    fn make() -> SimulatedNetwork {
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--propagation", "private", "python3", "-B"]);
        command.arg(Path::new(SOURCE).join("host.py")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut host = command.spawn().expect("the test requires a network of its own");
        let mut line = String::new();
        let output = host.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut line).expect("the host tells of itself");
        let facts: Value =
            serde_json::from_str(&line).expect("the host and the world could be made");
        SimulatedNetwork {
            host,
            directory: facts["directory"].as_str().expect("it names its directory").into(),
        }
    }

    /// Returns a command that runs on the host, as `user` or as root.
    pub(crate) fn command(&self, user: Option<&User>, program: &Path, directory: &Path) -> Command {
        let namespaces = format!("/proc/{}/ns", self.host.id());
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net={namespaces}/net"))
            .arg(format!("--mount={namespaces}/mnt"))
            .arg("--");
        if let Some(user) = user {
            let (uid, gid) = (user.uid.to_string(), user.gid.to_string());
            command.args(["setpriv", "--reuid", &uid, "--regid", &gid, "--clear-groups", "--"]);
        }
        // A process that enters another mount namespace starts at its root directory.
        command.args(["env", "--chdir"]).arg(directory).arg(program);
        command
    }

    /// Returns the variables that tell attempts about the host.
    pub fn variables(&self) -> [(&'static str, String); 2] {
        let socket = self.directory.join("host.sock");
        [
            ("HOST_SOCKET", socket.display().to_string()),
            ("HOST_PROCESS", self.host.id().to_string()),
        ]
    }

    /// Returns the variables that lead to the proxy of the host that lets everything through.
    pub fn careless_proxy(&self) -> [(&'static str, String); 2] {
        ["HTTP_PROXY", "http_proxy"].map(|name| (name, CARELESS_PROXY.to_owned()))
    }

    /// Returns the path of the certificate of the authority that issued all servers' certificates.
    pub fn authority(&self) -> PathBuf {
        self.directory.join("authority.pem")
    }

    /// Returns the directory that `https://….client.test` and `http://….client.test` serve.
    pub fn files(&self) -> PathBuf {
        self.directory.join("files")
    }

    /// Returns all arrivals that contain a mark, once no more of them arrive.
    ///
    /// # Panics
    ///
    /// Panics if the arrivals do not stop in time.
    pub fn arrivals(&self, mark: &str) -> Vec<Arrival> {
        let begun = Instant::now();
        let (mut found, mut since) = (self.so_far(mark), begun);
        while since.elapsed() < QUIET_PERIOD {
            assert!(begun.elapsed() < ARRIVAL_TIMEOUT, "the world does not come to rest");
            std::thread::sleep(Duration::from_millis(20));
            let now = self.so_far(mark);
            if now.len() != found.len() {
                (found, since) = (now, Instant::now());
            }
        }
        found
    }

    /// Returns all arrivals so far that contain a mark.
    ///
    /// # Panics
    ///
    /// Panics if the journal of the world is not valid JSON.
    pub fn so_far(&self, mark: &str) -> Vec<Arrival> {
        // Without a journal, nothing has arrived.
        let text = fs_err::read_to_string(self.directory.join("arrivals"))
            .unwrap_or_default()
            .to_lowercase();
        // The last line may still be incomplete.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let marked = whole.lines().filter(|line| line.contains(mark));
        marked
            .map(|line| Arrival::read(line).expect("the world keeps its journal in JSON"))
            .collect()
    }

    /// Returns the names of the servers that have seen a token, once no more arrivals with the
    /// token come.
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
