//! Comparison of the proxy with its peers: throughput, latency of a request, and memory of a
//! connection.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::driver::LineProtocol;
use super::rates::{self, ContenderRates, cells, measure_in_turn};
use super::report::{BenchGoal, goals_as_json, list_absent};
use super::staying_sandboxes::ContenderMethod;
use crate::table::{CellAlignment, table};
use crate::workspace::find_program;

const DIRECT: &str = "direct";
const OURS: &str = "ringfence";
const PEERS: [&str; 2] = ["tinyproxy", "squid"];
/// The measured quantities, in this order.
const COLUMNS: [&str; 5] =
    ["1 stream, MB/s", "64 streams, MB/s", "p50 µs", "p99 µs", "KiB a connection"];
/// Bytes that a single stream carries, and bytes that each of many streams carries.
const STREAM_BYTES: [u64; 2] = [2 << 30, 32 << 20];
const STREAMS: usize = 64;
const REQUESTS: usize = 2000;
/// Number of tunnels that are held open to measure the memory of one tunnel.
const HELD_TUNNELS: usize = 500;
/// Number of times that each contender is measured. A single direct stream can be twice as fast in
/// one round as in another, depending on the processors that its two ends run on. A few rounds
/// would show only that difference.
const ROUNDS: usize = 11;
/// Time limit for a proxy to start to listen.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// The programs that the measurement runs.
pub(super) struct EgressPrograms {
    pub(super) load: PathBuf,
    pub(super) proxy: PathBuf,
}

/// A running proxy, or no proxy for the direct way. The proxy ends when the contender is dropped.
struct ProxyContender {
    proxy: Option<(Child, SocketAddr)>,
    _directory: TempDir,
}

impl Drop for ProxyContender {
    fn drop(&mut self) {
        if let Some((child, _)) = &mut self.proxy {
            let _ = child.kill(); // the proxy may have ended
            let _ = child.wait();
        }
    }
}

/// Function that starts a contender anew for each round.
type ContenderStarter<'a> = Box<dyn Fn() -> Result<ProxyContender> + 'a>;

/// Measures the direct way and every proxy in turn.
pub(super) fn measure(programs: &EgressPrograms) -> Result<ContenderRates<5>> {
    let load = LoadGenerator::start(&programs.load)?;
    let origin = load.origin;
    let peer = |name: &'static str,
                begin: fn(&Path, SocketAddr) -> Result<ProxyContender>|
     -> ContenderMethod<ContenderStarter<'_>> {
        match find_program(name) {
            Some(program) => (name, Ok(Box::new(move || begin(&program, origin)))),
            None => (name, Err(format!("{name} is not installed"))),
        }
    };
    let ways: Vec<ContenderMethod<ContenderStarter<'_>>> = vec![
        (DIRECT, Ok(Box::new(ProxyContender::direct))),
        (OURS, Ok(Box::new(|| ProxyContender::ours(&programs.proxy, origin)))),
        peer(PEERS[0], ProxyContender::tinyproxy),
        peer(PEERS[1], ProxyContender::squid),
    ];
    Ok(measure_in_turn(ROUNDS, ways, |begin| load.measure(&begin()?)))
}

/// Returns the goals that the proxy must reach.
pub(super) fn goals(rates: &ContenderRates<5>) -> Vec<BenchGoal> {
    let of = |name: &str, column: usize| {
        rates
            .iter()
            .find(|(contender, _)| *contender == name)?
            .1
            .as_ref()
            .ok()
            .map(|rates| rates[column])
    };
    let ratio = |above: Option<f64>, below: Option<f64>| {
        above.zip(below).map(|(above, below)| above / below)
    };
    let mut goals = vec![BenchGoal::at_least(
        0.8,
        "the proxy, one stream: at least 0.8 of the direct way".to_owned(),
        ratio(of(OURS, 0), of(DIRECT, 0)),
        "×",
    )];
    for peer in PEERS {
        for (column, name) in COLUMNS.iter().enumerate() {
            // Higher is better for throughput; lower is better for the other columns.
            let (above, below) = if column < 2 { (OURS, peer) } else { (peer, OURS) };
            let name = format!("the proxy, {name}: ahead of {peer}");
            goals.push(BenchGoal::at_least(
                1.0,
                name,
                ratio(of(above, column), of(below, column)),
                "×",
            ));
        }
    }
    goals
}

pub(super) fn as_text(rates: &ContenderRates<5>) -> String {
    let [a, b, c, d, e] = COLUMNS.map(|name| (name, CellAlignment::Right));
    let rows = rates.iter().map(|(name, rates)| {
        let [a, b, c, d, e] = cells(rates);
        [(*name).to_owned(), a, b, c, d, e]
    });
    table(&[("egress", CellAlignment::Left), a, b, c, d, e], &rows.collect::<Vec<_>>())
        + &list_absent(rates)
}

/// Returns the measured rates and the goals as JSON.
pub(super) fn as_json(rates: &ContenderRates<5>) -> Value {
    let contenders = rates::as_json(COLUMNS.map(str::to_owned), rates);
    json!({ "contenders": contenders, "goals": goals_as_json(goals(rates)) })
}

impl ProxyContender {
    fn direct() -> Result<ProxyContender> {
        Ok(ProxyContender { proxy: None, _directory: tempfile::tempdir()? })
    }

    fn ours(program: &Path, origin: SocketAddr) -> Result<ProxyContender> {
        ProxyContender::start(|port, _| {
            let mut command = Command::new(program);
            command.args([
                "--listen",
                &format!("127.0.0.1:{port}"),
                "--allow",
                &origin.to_string(),
            ]);
            for name in
                ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"]
            {
                command.env_remove(name);
            }
            Ok(command)
        })
    }

    fn tinyproxy(program: &Path, origin: SocketAddr) -> Result<ProxyContender> {
        ProxyContender::start(|port, directory| {
            let file = directory.join("tinyproxy.conf");
            let lines = format!(
                "Port {port}\nListen 127.0.0.1\nTimeout 600\nMaxClients 1024\nAllow 127.0.0.1\n\
                 ConnectPort {}\nLogLevel Critical\n",
                origin.port()
            );
            fs_err::write(&file, lines)?;
            let mut command = Command::new(program);
            command.arg("-d").arg("-c").arg(file);
            Ok(command)
        })
    }

    fn squid(program: &Path, origin: SocketAddr) -> Result<ProxyContender> {
        ProxyContender::start(|port, directory| {
            // Squid drops the rights of root and then writes to this directory.
            fs_err::set_permissions(
                directory,
                std::os::unix::fs::PermissionsExt::from_mode(0o777),
            )?;
            let file = directory.join("squid.conf");
            let at = directory.display();
            let lines = format!(
                "http_port 127.0.0.1:{port}\nhttp_access allow all\nacl CONNECT method CONNECT\n\
                 cache deny all\n\
                 cache_mem 8 MB\npid_filename {at}/squid.pid\naccess_log none\ncache_log \
                 {at}/cache.log\n\
                 cache_store_log none\ncoredump_dir {at}\nshutdown_lifetime 0 seconds\n# origin \
                 {origin}\n"
            );
            fs_err::write(&file, lines)?;
            let mut command = Command::new(program);
            command.arg("-N").arg("-f").arg(file);
            Ok(command)
        })
    }

    /// Starts a proxy on a free port and waits until the proxy listens.
    fn start(describe: impl FnOnce(u16, &Path) -> Result<Command>) -> Result<ProxyContender> {
        let directory = tempfile::tempdir()?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = describe(port, directory.path())?;
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut contender = ProxyContender { proxy: Some((child, address)), _directory: directory };
        let deadline = Instant::now() + START_TIMEOUT;
        while TcpStream::connect(address).is_err() {
            let (child, _) = contender.proxy.as_mut().expect("it was just put there");
            if let Some(status) = child.try_wait()? {
                bail!("it ended with {status}");
            }
            ensure!(Instant::now() < deadline, "it does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(contender)
    }

    fn name(&self) -> String {
        self.proxy.as_ref().map_or_else(|| DIRECT.to_owned(), |(_, address)| address.to_string())
    }

    /// Returns the proportional set size of the proxy and its children, in KiB. The direct way has
    /// none (NaN).
    fn memory(&self) -> Result<f64> {
        let Some((child, _)) = &self.proxy else { return Ok(f64::NAN) };
        let mut sum = 0.0;
        let mut processes = vec![child.id()];
        while let Some(process) = processes.pop() {
            let text = fs_err::read_to_string(format!("/proc/{process}/smaps_rollup"))?;
            let field = text.lines().find_map(|line| line.strip_prefix("Pss:"));
            sum += field
                .and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok())
                .context("no figure")?;
            let children =
                fs_err::read_to_string(format!("/proc/{process}/task/{process}/children"));
            processes.extend(
                children
                    .unwrap_or_default()
                    .split_whitespace()
                    .filter_map(|child| child.parse::<u32>().ok()),
            );
        }
        Ok(sum)
    }
}

/// A running `bench_proxy`, which generates the load.
struct LoadGenerator {
    conversation: LineProtocol,
    origin: SocketAddr,
}

impl LoadGenerator {
    fn start(program: &Path) -> Result<LoadGenerator> {
        let conversation = LineProtocol::start(&mut Command::new(program))?;
        Ok(LoadGenerator { origin: conversation.read_line()?.trim().parse()?, conversation })
    }

    fn measure(&self, contender: &ProxyContender) -> Result<[f64; 5]> {
        let name = contender.name();
        let ask = |line: String| self.conversation.ask::<f64>(&line);
        // Measure memory first, because a proxy that has carried load keeps memory that would hide
        // the cost of a connection.
        let before = contender.memory()?;
        ask(format!("hold {name} {HELD_TUNNELS}"))?;
        let held = (contender.memory()? - before) / HELD_TUNNELS as f64;
        let one = ask(format!("stream {name} 1 {}", STREAM_BYTES[0]))?[0];
        let many = ask(format!("stream {name} {STREAMS} {}", STREAM_BYTES[1]))?[0];
        let latency = ask(format!("request {name} {REQUESTS}"))?;
        Ok([one, many, latency[0], latency[1], held])
    }
}
