//! Many commands and many sandboxes, sequentially and concurrently. Afterwards everything is as it
//! was before.
//!
//! `RINGFENCE_SOAK=full` runs the full extent; otherwise the extent fits into a usual test run.

use std::fmt;
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ringfence::{Backend, Clause, Engine, Host, Policy, Sandbox, Settings, StartRequest};
use ringfence_test_ledger::engine::TINY_IMAGE;
use ringfence_test_ledger::require;
use tokio::task::JoinSet;

use crate::keeper::{SandboxKeeper, WAIT_TIMEOUT};
use crate::remains;

/// Number of commands that run concurrently.
const CONCURRENT_COMMANDS: usize = 16;
/// Number of sandboxes that start concurrently.
const CONCURRENT_STARTS: usize = 4;
/// Memory in KiB that a guest or an owner may keep at the end, because allocators keep some.
const MEMORY_SLACK_KIB: u64 = 8 << 10;

/// The extent of the test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SoakExtent {
    /// The full extent, for `RINGFENCE_SOAK=full`.
    Full,
    /// An extent for a usual test run, because engines take a second or more for a container and
    /// share two processors.
    Usual,
}

impl SoakExtent {
    pub(crate) fn chosen() -> SoakExtent {
        match std::env::var("RINGFENCE_SOAK") {
            Ok(value) if value == "full" => SoakExtent::Full,
            _ => SoakExtent::Usual,
        }
    }

    fn execs(self, backend: Backend) -> usize {
        match (self, backend) {
            (SoakExtent::Full, _) => 2000,
            (SoakExtent::Usual, Backend::Docker | Backend::Podman) => 300,
            (SoakExtent::Usual, _) => 1000,
        }
    }

    fn sandboxes(self, backend: Backend) -> usize {
        match (self, backend) {
            (SoakExtent::Full, _) => 200,
            (SoakExtent::Usual, Backend::Docker) => 8,
            (SoakExtent::Usual, Backend::Podman) => 4,
            (SoakExtent::Usual, _) => 60,
        }
    }

    /// Returns the number of sandboxes that the command line makes.
    fn rounds(self, backend: Backend) -> usize {
        match (self, backend) {
            (SoakExtent::Full, _) => 20,
            (SoakExtent::Usual, Backend::Docker | Backend::Podman) => 1,
            (SoakExtent::Usual, _) => 5,
        }
    }

    pub(crate) fn kills(self, backend: Backend) -> usize {
        match (self, backend) {
            (SoakExtent::Full, _) => 100,
            (SoakExtent::Usual, Backend::Docker) => 8,
            (SoakExtent::Usual, Backend::Podman) => 4,
            (SoakExtent::Usual, _) => 20,
        }
    }
}

/// Pseudo-random numbers (SplitMix by Steele and others), which `RINGFENCE_SEED` makes repeatable.
#[derive(Debug)]
pub(crate) struct RandomNumbers {
    pub(crate) seed: u64,
    state: u64,
}

impl RandomNumbers {
    pub(crate) fn seeded() -> RandomNumbers {
        let given = std::env::var("RINGFENCE_SEED").ok().and_then(|seed| seed.parse().ok());
        let now = || {
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |time| u64::from(time.subsec_nanos()))
        };
        let seed = given.unwrap_or_else(now);
        RandomNumbers { seed, state: seed }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = self.state;
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ (number >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub(crate) fn fraction(&mut self) -> f64 {
        self.next() as f64 / u64::MAX as f64
    }
}

/// Resources that one or several processes hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HeldResources {
    processes: usize,
    descriptors: usize,
    memory: u64,
}

impl fmt::Display for HeldResources {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HeldResources { processes, descriptors, memory } = self;
        write!(formatter, "{processes} processes, {descriptors} descriptors, {memory} KiB")
    }
}

impl HeldResources {
    /// Returns the sum of the resources of all processes of a keeper's sandboxes.
    fn for_keeper(keeper: &SandboxKeeper) -> HeldResources {
        let processes = keeper.processes();
        HeldResources {
            processes: processes.len(),
            descriptors: processes.iter().map(|process| process.descriptors()).sum(),
            memory: processes.iter().map(|process| process.memory()).sum(),
        }
    }

    /// Waits until the resources are no more than before, and returns them. They can be less,
    /// because kept connections may be closed.
    async fn expect(self, look: impl Fn() -> HeldResources) -> HeldResources {
        let begun = Instant::now();
        loop {
            let now = look();
            let is_no_more = now.processes <= self.processes && now.descriptors <= self.descriptors;
            if is_no_more && now.memory < self.memory + MEMORY_SLACK_KIB {
                return now;
            }
            assert!(begun.elapsed() < WAIT_TIMEOUT, "{now:?}, and it was {self:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn spec(keeper: &SandboxKeeper) -> StartRequest {
    let (mark, home) = keeper.mark();
    let mut policy = Policy::default().backend(keeper.backend).set_env(mark, home);
    if matches!(keeper.backend, Backend::Native | Backend::Bwrap) {
        policy = policy.memory("256M".parse().expect("it is a size")).allow_weaker(Clause::Memory);
    }
    let mut spec = StartRequest::new(policy);
    spec.container.image = Some(TINY_IMAGE.to_owned());
    spec.container.pull = Some(ringfence::Pull::Never);
    spec
}

async fn command(sandbox: &Sandbox, number: usize) {
    let result = sandbox.execute(&format!("echo {number}; : & exit {}", number % 3), None).await;
    let result =
        result.unwrap_or_else(|error| panic!("command {number}: {}", ringfence::chain(&error)));
    let expected = (format!("{number}\n"), Some((number % 3) as i32));
    assert_eq!((result.stdout.clone(), result.exit_code), expected, "{result:?}");
}

/// Runs commands in one sandbox: the first half sequentially, the second half concurrently.
async fn commands(sandbox: &Sandbox, count: usize) {
    for number in 0..count / 2 {
        command(sandbox, number).await;
    }
    let mut underway = JoinSet::new();
    for number in count / 2..count {
        if underway.len() == CONCURRENT_COMMANDS {
            underway.join_next().await.expect("there are some").expect("it does not panic");
        }
        let sandbox = sandbox.clone();
        underway.spawn(async move { command(&sandbox, number).await });
    }
    underway.join_all().await;
}

async fn sandboxes(engine: &Engine, keeper: &SandboxKeeper, count: usize) {
    let mut underway = JoinSet::new();
    for number in 0..count {
        if underway.len() == CONCURRENT_STARTS {
            underway.join_next().await.expect("there are some").expect("it does not panic");
        }
        let (engine, spec) = (engine.clone(), spec(keeper));
        underway.spawn(async move {
            let sandbox = engine.start(spec).await;
            let sandbox = sandbox
                .unwrap_or_else(|error| panic!("sandbox {number}: {}", ringfence::chain(&error)));
            command(&sandbox, number).await;
            sandbox
                .stop()
                .await
                .unwrap_or_else(|error| panic!("sandbox {number}: {}", ringfence::chain(&error)));
        });
    }
    underway.join_all().await;
}

/// Returns the resources of the calling process: the children of the calling thread, which include
/// the launcher, and the descriptors and memory of the process.
fn own() -> HeldResources {
    let children = fs_err::read_to_string("/proc/thread-self/children").unwrap_or_default();
    let status = remains::memory("self");
    HeldResources {
        processes: children.split_whitespace().count(),
        descriptors: remains::descriptors("self"),
        memory: status,
    }
}

/// Soaks the library, with this process as the owner of the sandboxes.
async fn soak(keeper: &SandboxKeeper, extent: SoakExtent) -> String {
    let backend = keeper.backend;
    let host = Host::new(keeper.variables(), keeper.workspace());
    let engine = Engine::new(Settings::new(host).with_launcher(keeper.program()))
        .expect("a launcher can be started");
    // Use everything once before counting, so that resources that are created once and kept do not
    // count.
    sandboxes(&engine, keeper, CONCURRENT_STARTS.min(extent.sandboxes(backend))).await;
    let before = own();

    let begun = Instant::now();
    let sandbox = engine.start(spec(keeper)).await.expect("it has been started before");
    commands(&sandbox, CONCURRENT_COMMANDS * 4).await;
    let inside = HeldResources::for_keeper(keeper);
    commands(&sandbox, extent.execs(backend)).await;
    let ran = begun.elapsed();
    let after = inside.expect(|| HeldResources::for_keeper(keeper)).await;
    sandbox.stop().await.expect("it can be stopped");

    let begun = Instant::now();
    sandboxes(&engine, keeper, extent.sandboxes(backend)).await;
    let started = begun.elapsed();
    let owner = before.expect(own).await;
    drop(engine);
    let (execs, sandboxes) = (extent.execs(backend), extent.sandboxes(backend));
    format!(
        "soak: {backend}: {execs} commands in {ran:.1?}, {sandboxes} sandboxes in {started:.1?}; \
         one sandbox: {inside}, then {after}; its owner: {before}, then {owner}",
    )
}

/// Soaks the command line, where a monitor owns each sandbox and many commands share it.
fn soak_commands(keeper: &SandboxKeeper, extent: SoakExtent) {
    for round in 0..extent.rounds(keeper.backend) {
        let name = format!("soak-{round}");
        keeper.expect(&mut keeper.up(&name));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5 {
                        let said = keeper
                            .expect(&mut keeper.ringfence(&["exec", &name, "--", "echo", "said"]));
                        assert_eq!(said, "said\n");
                    }
                });
            }
        });
        keeper.expect(&mut keeper.ringfence(&["stop", &name]));
    }
}

/// Runs a test in its own process, so that other tests do not affect its descriptors and children.
#[track_caller]
fn alone(name: &str, test: impl FnOnce() -> String) {
    const ALONE: &str = "RINGFENCE_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        // The figures are only for people.
        let _ = std::io::stderr().write_all(format!("{}\n", test()).as_bytes());
        return;
    }
    let program = std::env::current_exe().expect("a test knows its own program");
    let mut command = Command::new(program);
    let output =
        command.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(ALONE, "1").output();
    let output = output.expect("it is this very program");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let figures =
        said.lines().find(|line| line.starts_with("soak: ")).expect("it says what it did");
    // The figures are only for people.
    let _ = std::io::stderr().write_all(format!("{figures}\n").as_bytes());
}

#[track_caller]
fn check(name: &str, backend: Backend) {
    alone(&format!("soak::{name}"), || {
        let keeper = SandboxKeeper::for_root(backend);
        keeper.note(std::process::id());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime can be made");
        let figures = runtime.block_on(soak(&keeper, SoakExtent::chosen()));
        soak_commands(&keeper, SoakExtent::chosen());
        keeper.expect_nothing_left();
        figures
    });
}

#[test]
fn many_sandboxes_leave_nothing_on_native() {
    require!(root, binary, user_namespaces, cgroup_limits);
    check("many_sandboxes_leave_nothing_on_native", Backend::Native);
}

#[test]
fn many_sandboxes_leave_nothing_on_bubblewrap() {
    require!(root, binary, user_namespaces, cgroup_limits, bwrap);
    check("many_sandboxes_leave_nothing_on_bubblewrap", Backend::Bwrap);
}

#[test]
fn many_sandboxes_leave_nothing_on_local() {
    require!(root, binary);
    check("many_sandboxes_leave_nothing_on_local", Backend::Local);
}

#[test]
fn many_sandboxes_leave_nothing_on_docker() {
    require!(root, binary, docker);
    check("many_sandboxes_leave_nothing_on_docker", Backend::Docker);
}

#[test]
fn many_sandboxes_leave_nothing_on_podman() {
    require!(root, binary, podman);
    check("many_sandboxes_leave_nothing_on_podman", Backend::Podman);
}
