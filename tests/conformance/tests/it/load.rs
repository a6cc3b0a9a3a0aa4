//! Many clients of many sandboxes of one server, which is ended and killed meanwhile. Only calls
//! that can be repeated fail, no sandbox is lost, and in the end everything is as it was before.
//!
//! `RINGFENCE_SOAK=full` runs the full load; otherwise the load fits into a usual test run.

use std::io::Write;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ringfence::Backend;
use ringfence_test_ledger::client::{CallError, Client, Sandbox};
use ringfence_test_ledger::require;

use crate::keeper::{SandboxKeeper, WAIT_TIMEOUT};
use crate::remains;
use crate::served::{RunningServer, expect_nothing_left};
use crate::soak::SoakExtent;

/// Lifetime of a sandbox in seconds, longer than the test.
const SANDBOX_SECONDS: u64 = 3600;
/// Memory in KiB that a server may keep at the end, because allocators keep some.
const MEMORY_SLACK_KIB: u64 = 32 << 10;
/// Number of calls after which a client reads the list and creates a sandbox of its own.
const CALLS_PER_LISTING: usize = 25;

/// The amount of load.
#[derive(Debug, Clone, Copy)]
struct LoadSize {
    sandboxes: usize,
    clients: usize,
    /// Duration without restarts.
    calm: Duration,
    /// Duration before and after each restart.
    around: Duration,
}

impl LoadSize {
    fn chosen() -> LoadSize {
        let seconds = Duration::from_secs;
        match SoakExtent::chosen() {
            SoakExtent::Full => {
                LoadSize { sandboxes: 200, clients: 64, calm: seconds(300), around: seconds(20) }
            }
            SoakExtent::Usual => {
                LoadSize { sandboxes: 24, clients: 8, calm: seconds(6), around: seconds(1) }
            }
        }
    }
}

/// The current URL of the server.
#[derive(Debug)]
struct ServerAddress {
    url: Mutex<String>,
    changed: Condvar,
}

impl ServerAddress {
    fn new(server: &RunningServer<'_>) -> ServerAddress {
        ServerAddress { url: Mutex::new(server.url.clone()), changed: Condvar::new() }
    }

    fn now(&self) -> String {
        self.url.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change_to(&self, server: &RunningServer<'_>) {
        self.url.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&server.url);
        self.changed.notify_all();
    }

    /// Waits until the URL differs from `gone`, which means that another server has started.
    fn other_than(&self, gone: &str) -> String {
        let url = self.url.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(url, WAIT_TIMEOUT, |url| url == gone);
        let (url, result) = waited.unwrap_or_else(PoisonError::into_inner);
        assert!(!result.timed_out(), "no server took the place of {gone}");
        url.clone()
    }
}

/// The conditions under which clients work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientConditions {
    /// Every call must work.
    Calm,
    /// A call may fail, and is then repeated at the next server.
    Restarts,
}

/// Measurements of clients.
#[derive(Debug, Default)]
struct ClientMeasurements {
    commands: Vec<Duration>,
    starts: Vec<Duration>,
    /// Number of calls that failed.
    broken: usize,
}

impl ClientMeasurements {
    /// Adds up the measurements of several clients.
    fn sum_of(all: impl IntoIterator<Item = ClientMeasurements>) -> ClientMeasurements {
        all.into_iter().fold(ClientMeasurements::default(), |mut sum, one| {
            sum.commands.extend(one.commands);
            sum.starts.extend(one.starts);
            sum.broken += one.broken;
            sum
        })
    }
}

/// One client and its measurements.
struct LoadClient<'a> {
    address: &'a ServerAddress,
    url: String,
    client: Client,
    met: ClientMeasurements,
}

impl<'a> LoadClient<'a> {
    fn new(address: &'a ServerAddress) -> LoadClient<'a> {
        let url = address.now();
        LoadClient {
            address,
            client: Client::for_url(&url),
            url,
            met: ClientMeasurements::default(),
        }
    }

    /// Starts a sandbox with a file that contains its own name.
    fn start(&mut self) -> Result<Sandbox, CallError> {
        let begun = Instant::now();
        let sandbox = self.client.create("base", SANDBOX_SECONDS)?;
        self.met.starts.push(begun.elapsed());
        self.client.write(&sandbox, "name", format!("{}\n", sandbox.id).as_bytes())?;
        Ok(sandbox)
    }

    /// Runs a command that checks in which sandbox it runs.
    fn command(&mut self, sandbox: &Sandbox, number: usize) -> Result<(), CallError> {
        let expected = (number % 200) as i64;
        let script =
            format!("read -r name < name && test $name = {} && exit {expected}", sandbox.id);
        let begun = Instant::now();
        let code = self.client.run(sandbox, &["sh", "-c", &script])?;
        self.met.commands.push(begun.elapsed());
        assert_eq!(code, expected, "{sandbox:?}");
        Ok(())
    }

    fn act(
        &mut self,
        all: &[Sandbox],
        sandbox: &Sandbox,
        round: usize,
        mood: ClientConditions,
    ) -> Result<(), CallError> {
        self.command(sandbox, round)?;
        if round % CALLS_PER_LISTING == CALLS_PER_LISTING - 1 {
            let listed = self.client.list()?;
            assert!(
                all.iter().all(|one| listed.contains(&one.id)),
                "a sandbox is lost: {listed:?}"
            );
            assert_eq!(self.client.read(sandbox, "name")?, format!("{}\n", sandbox.id).as_bytes());
            if mood == ClientConditions::Calm {
                let own = self.start()?;
                self.command(&own, round)?;
                self.client.kill(&own.id)?;
            }
        }
        Ok(())
    }

    /// Works until `until`, on each sandbox in turn, beginning with `first`.
    fn work(
        mut self,
        all: &[Sandbox],
        first: usize,
        until: Instant,
        mood: ClientConditions,
    ) -> ClientMeasurements {
        let mut round = 0;
        while Instant::now() < until {
            match self.act(all, &all[(first + round * 7) % all.len()], round, mood) {
                Ok(()) => round += 1,
                Err(CallError::Broken(_)) if mood == ClientConditions::Restarts => {
                    self.met.broken += 1;
                    self.url = self.address.other_than(&self.url);
                    self.client = Client::for_url(&self.url);
                }
                Err(error) => panic!("{error:?}"),
            }
        }
        self.met
    }
}

/// Runs `each` in a thread per client, while the calling thread runs `meanwhile`.
fn at_once<T: Send, R>(
    clients: usize,
    each: impl Fn(usize) -> T + Sync,
    meanwhile: impl FnOnce() -> R,
) -> (Vec<T>, R) {
    std::thread::scope(|scope| {
        let each = &each;
        let workers: Vec<_> =
            (0..clients).map(|number| scope.spawn(move || each(number))).collect();
        let done = meanwhile();
        let met = workers
            .into_iter()
            .map(|worker| worker.join().expect("what a client met is told above"));
        (met.collect(), done)
    })
}

/// Starts all sandboxes and returns them with the time that each start took.
fn start_all(address: &ServerAddress, load: LoadSize) -> (Vec<Sandbox>, ClientMeasurements) {
    let (started, ()) = at_once(
        load.clients,
        |number| {
            let mut worker = LoadClient::new(address);
            let own = (number..load.sandboxes).step_by(load.clients);
            let own: Vec<Sandbox> =
                own.map(|_| worker.start().expect("a sandbox can be started")).collect();
            (own, worker.met)
        },
        || (),
    );
    let (all, met): (Vec<_>, Vec<_>) = started.into_iter().unzip();
    (all.concat(), ClientMeasurements::sum_of(met))
}

/// Ends the server on request and kills the next one. Each time, starts another server in its
/// place.
fn restart<'a>(
    keeper: &SandboxKeeper,
    serve: impl Fn() -> RunningServer<'a>,
    mut server: RunningServer<'a>,
    there: &ServerAddress,
    load: LoadSize,
) -> RunningServer<'a> {
    for is_asked in [true, false] {
        pass(keeper, &server, load.around);
        if is_asked {
            server.end();
        } else {
            drop(server);
        }
        server = serve();
        there.change_to(&server);
    }
    server
}

/// Waits for a time, and meanwhile notes the processes that a server starts.
fn pass(keeper: &SandboxKeeper, server: &RunningServer<'_>, time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        keeper.note_children_of(server.id());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the time that `percentage` percent of the times did not exceed.
fn percentile(times: &mut [Duration], percentage: usize) -> Duration {
    times.sort();
    let place = (times.len() * percentage / 100).min(times.len().saturating_sub(1));
    times.get(place).copied().unwrap_or_default()
}

/// Returns the number of descriptors of a server and its memory in KiB.
fn held_by(server: &RunningServer<'_>) -> (usize, u64) {
    let name = server.id().to_string();
    (remains::descriptors(&name), remains::memory(&name))
}

#[test]
fn a_server_survives_many_clients_and_restarts() {
    require!(root, binary, user_namespaces, cgroup_limits);
    let load = LoadSize::chosen();
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let config = keeper.home().join("server.toml");
    fs_err::write(&config, "[templates.base]\npolicy = \"base.toml\"\n").expect("the home is ours");
    fs_err::write(
        keeper.home().join("base.toml"),
        "allow_weaker = [\"memory\"]\n[limits]\nmemory = \"256M\"\n",
    )
    .expect("the home is ours");
    let serve = || {
        RunningServer::start_with_flags(
            &keeper,
            &["--config", config.to_str().expect("it is text")],
        )
    };

    let server = serve();
    let address = ServerAddress::new(&server);
    // Use everything once before counting, so that resources that are created once and kept do not
    // count.
    let mut worker = LoadClient::new(&address);
    let first = worker.start().expect("a sandbox can be started");
    worker.command(&first, 1).expect("it is up");
    keeper.note_children_of(server.id());
    worker.client.kill(&first.id).expect("it is there");
    drop(worker);
    let before = held_by(&server);

    let (all, mut started) = start_all(&address, load);
    keeper.note_children_of(server.id());
    let work = |number, time, mood| {
        LoadClient::new(&address).work(&all, number, Instant::now() + time, mood)
    };
    let (restarts, server) = at_once(
        load.clients,
        |number| work(number, load.around * 4, ClientConditions::Restarts),
        || restart(&keeper, serve, server, &address, load),
    );
    let (calm, ()) = at_once(
        load.clients,
        |number| work(number, load.calm, ClientConditions::Calm),
        || pass(&keeper, &server, load.calm),
    );
    let (restarts, mut calm) =
        (ClientMeasurements::sum_of(restarts), ClientMeasurements::sum_of(calm));
    let busy = held_by(&server);

    at_once(
        load.clients,
        |number| {
            let mut client = Client::for_url(&server.url);
            let own = all.iter().skip(number).step_by(load.clients);
            own.for_each(|sandbox| client.kill(&sandbox.id).expect("it is there"));
        },
        || (),
    );
    assert_eq!(
        Client::for_url(&server.url).list().expect("the server answers"),
        Vec::<String>::new()
    );
    let begun = Instant::now();
    let after = loop {
        let now = held_by(&server);
        if now.0 <= before.0 && now.1 < before.1 + MEMORY_SLACK_KIB {
            break now;
        }
        assert!(
            begun.elapsed() < WAIT_TIMEOUT,
            "descriptors and memory are {now:?}, and were {before:?}"
        );
        std::thread::sleep(Duration::from_millis(20));
    };
    server.end();
    fs_err::remove_file(config).expect("it is ours");
    fs_err::remove_file(keeper.home().join("base.toml")).expect("it is ours");
    expect_nothing_left(&keeper);

    let LoadSize { sandboxes, clients, .. } = load;
    let figures = format!(
        "load: {sandboxes} sandboxes, {clients} clients: {} commands, {:.0} a second, p50 {:.1?}, \
         p99 {:.1?}; starts at \
         first p50 {:.1?}, p99 {:.1?}, then {} with p50 {:.1?}; {} calls broken off by two \
         restarts; descriptors and \
         KiB of the server: {before:?}, then {busy:?}, then {after:?}\n",
        calm.commands.len(),
        calm.commands.len() as f64 / load.calm.as_secs_f64(),
        percentile(&mut calm.commands, 50),
        percentile(&mut calm.commands, 99),
        percentile(&mut started.starts, 50),
        percentile(&mut started.starts, 99),
        calm.starts.len(),
        percentile(&mut calm.starts, 50),
        restarts.broken,
    );
    let _ = std::io::stderr().write_all(figures.as_bytes()); // the figures are only for people
}
