//! Every known way around an allowlist, each with its control.
//!
//! An attempt is a few lines of Python in `attempts/` and sends its own token. Each attempt is made
//! three times:
//!
//! - without a sandbox and with a proxy that lets everything through. The attempt must get through
//!   there, or it would prove nothing.
//! - in a sandbox whose policy does not allow the attempt. It must be denied, for the reason that
//!   its table names, and no server may have seen its token. That includes the name server, because
//!   a name query would be enough to send data out.
//! - in a sandbox with a rule that allows the attempt, if there is such a rule. The attempt must
//!   get through, which shows that the missing rule denied it.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use conformance::document::BypassOutcomes;
use conformance::{
    Arrival, BackendSetup, BackendVariant, Caller, CallerDirectory, SimulatedNetwork,
};
use ringfence::prove::corpus;
use ringfence_test_ledger::require;
use serde_json::Value;

/// Least number of attempts, on a machine without IPv6.
const MIN_ATTEMPTS: usize = 140;

/// Policy that denies the attempts.
const STRICT: &[&str] = &[
    "--allow=good.test",
    "--allow=good.test:587",
    "--allow=*.wild.test",
    "--allow=*.named.test",
    "--allow=*.alias.test",
    "--allow=*.rebind.test",
    "--allow=*.mixed.test",
    "--deny=*.secret.mixed.test",
    "--deny=11.22.33.77",
];
/// Policy that allows every target of the attempts that rules can allow.
const LENIENT: &[&str] = &[
    "--allow=good.test",
    "--allow=good.test:587",
    "--allow=*.good.test",
    "--allow=good.test:21",
    "--allow=good.test:22",
    "--allow=good.test:25",
    "--allow=good.test:8080",
    "--allow=evilgood.test",
    "--allow=evil-good.test",
    "--allow=xn--god-fdd.test",
    "--allow=wild.test",
    "--allow=*.wild.test",
    "--allow=evilwild.test",
    "--allow=*.named.test",
    "--allow=*.named.test:8080",
    "--allow=*.alias.test",
    "--allow=*.rebind.test",
    "--allow=*.mixed.test",
    "--allow=*.evil.test",
    "--allow=11.22.33.0/24",
    "--allow=10.9.8.7",
    "--allow=10.9.8.7:8080",
    "--allow=100.64.7.7",
    "--allow=127.0.0.1",
    "--allow=169.254.169.254",
    "--allow=::1",
    "--allow=2a0b:c0de::/64",
    "--allow=fd00:ec2::254",
    "--allow=fd12:3456::7",
];

/// The programs of the attempts, with the addresses of the world.
const PROGRAMS: [(&str, &str); 9] = [
    ("addresses.py", include_str!("../../../src/simulated_network/addresses.py")),
    ("around.py", include_str!("attempts/around.py")),
    ("attempt.py", include_str!("attempts/attempt.py")),
    ("plain.py", include_str!("attempts/plain.py")),
    ("run.py", include_str!("attempts/run.py")),
    ("socks.py", include_str!("attempts/socks.py")),
    ("spellings.py", include_str!("attempts/spellings.py")),
    ("tunnels.py", include_str!("attempts/tunnels.py")),
    ("wire.py", include_str!("attempts/wire.py")),
];

/// The outcome that an attempt reported.
struct AttemptOutcome {
    name: String,
    what: String,
    token: String,
    /// Servers that must not see the token. Empty if the attempt concerns no server.
    nowhere: Vec<String>,
    expected: String,
    observed: String,
    is_expected: bool,
}

impl AttemptOutcome {
    fn read(line: &str) -> AttemptOutcome {
        let value: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let text = |key: &str| {
            value[key].as_str().unwrap_or_else(|| panic!("no {key} in {line}")).to_owned()
        };
        let nowhere = value["nowhere"].as_array().into_iter().flatten();
        AttemptOutcome {
            name: text("name"),
            what: text("what"),
            token: text("token"),
            nowhere: nowhere.filter_map(|place| place.as_str().map(str::to_owned)).collect(),
            expected: text("expected"),
            observed: text("observed"),
            is_expected: value["is_expected"] == true,
        }
    }

    /// Returns true if the machine could make the attempt.
    fn was_made(&self) -> bool {
        self.observed != "not made"
    }

    /// Returns the servers that saw the token although they must not.
    fn arrived(&self, arrivals: &[Arrival]) -> BTreeSet<String> {
        let marked = arrivals.iter().filter(|arrival| arrival.data.contains(&self.token));
        let services = marked.map(|arrival| arrival.service.clone());
        services.filter(|service| self.nowhere.contains(service)).collect()
    }

    /// Returns a description of the failure if the attempt did not get through.
    fn held_up(&self, arrivals: &[Arrival]) -> Option<String> {
        let is_through = self.observed == "through"
            && (self.nowhere.is_empty() || !self.arrived(arrivals).is_empty());
        (!is_through).then(|| {
            format!("{}: {}, and arrived at {:?}", self.name, self.observed, self.arrived(arrivals))
        })
    }

    /// Returns a description of the failure if the attempt was not denied as it should be.
    fn let_through(&self, arrivals: &[Arrival], reasons: ExpectedReasons) -> Option<String> {
        let arrived = self.arrived(arrivals);
        // If no server may see the token, its absence is decisive. The reason only counts if it can
        // be known.
        let is_denied = arrived.is_empty()
            && (self.is_expected || reasons == ExpectedReasons::Any && !self.nowhere.is_empty());
        let AttemptOutcome { name, observed, expected, .. } = self;
        (!is_denied).then(|| {
            format!("{name}: {observed} instead of {expected}, and arrived at {arrived:?}")
        })
    }
}

/// The reason for a denial that an attempt must report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExpectedReasons {
    /// The reason that the table of the attempt names.
    Named,
    /// Any reason, because behind a tunnel every address answers, if only to refuse.
    Any,
}

/// One run of the attempts.
struct AttemptRun {
    /// Prefix of the tokens of all attempts.
    mark: String,
    /// Mechanism that enforces the policy, as ringfence reports it.
    claim: String,
    outcomes: Vec<AttemptOutcome>,
}

impl AttemptRun {
    /// Returns the arrivals of all attempts in the world.
    fn arrivals(&self) -> Vec<Arrival> {
        SimulatedNetwork::shared().arrivals(&self.mark)
    }

    /// Returns the attempts that this machine could make.
    fn made(&self) -> impl Iterator<Item = &AttemptOutcome> {
        self.outcomes.iter().filter(|outcome| outcome.was_made())
    }
}

/// Adds the attempts to a prepared ringfence command, runs it, and parses the outcomes.
fn make(command: &mut Command, words: &[&str]) -> AttemptRun {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    // The mark is valid in a host name, and its length does not depend on the number, so that no
    // token contains another.
    let mark = format!("r{:05x}n{:03}t", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
    for (name, value) in SimulatedNetwork::shared().variables() {
        command.arg("--env").arg(format!("{name}={value}"));
    }
    let output =
        command.args(["--json", "--", "python3", "-B", "run.py", &mark]).args(words).output();
    let output = output.expect("ringfence can be started");
    let result: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(result["exit_code"], 0, "{}", result["stderr"]);
    let lines = result["stdout"].as_str().unwrap_or_default().lines();
    let claim = result["meta"]["held"]["egress"].as_str().unwrap_or_default().to_owned();
    AttemptRun { mark, claim, outcomes: lines.map(AttemptOutcome::read).collect() }
}

/// Creates a workspace with the programs of the attempts.
fn place(caller: Caller) -> CallerDirectory {
    let place = CallerDirectory::for_host_of(SimulatedNetwork::shared(), caller);
    for (name, text) in PROGRAMS {
        fs_err::write(place.path().join(name), text).expect("the place is the test's");
    }
    place
}

/// Returns the names of the attempts that get through without a sandbox.
fn control() -> &'static BTreeSet<String> {
    static CONTROL: OnceLock<BTreeSet<String>> = OnceLock::new();
    CONTROL.get_or_init(|| {
        let setup = BackendSetup { variant: BackendVariant::Local, caller: Caller::Root };
        let place = place(setup.caller);
        let mut command = setup.ringfence("run", &place);
        command.args(["--net", "open"]);
        for (name, value) in SimulatedNetwork::shared().careless_proxy() {
            command.arg("--env").arg(format!("{name}={value}"));
        }
        let run = make(&mut command, &[]);
        let arrivals = run.arrivals();
        let held_up: Vec<String> =
            run.made().filter_map(|outcome| outcome.held_up(&arrivals)).collect();
        assert!(held_up.is_empty(), "these prove nothing:\n{}", held_up.join("\n"));
        run.made().map(|outcome| outcome.name.clone()).collect()
    })
}

/// Makes the attempts on a setup with the policy `flags`.
fn sandboxed(
    setup: BackendSetup,
    place: &CallerDirectory,
    flags: &[&[&str]],
    words: &[&str],
) -> AttemptRun {
    let mut command = setup.ringfence("run", place);
    make(command.args(flags.concat()), words)
}

/// Makes the attempts under the policy that denies them. The result is cached because the
/// documentation uses it, too.
fn denied(setup: BackendSetup, flags: &'static [&'static str]) -> Arc<AttemptRun> {
    type Known = BTreeMap<(BackendSetup, &'static [&'static str]), Arc<OnceLock<Arc<AttemptRun>>>>;
    static KNOWN: Mutex<Known> = Mutex::new(BTreeMap::new());
    let slot =
        Arc::clone(KNOWN.lock().expect("no holder panics").entry((setup, flags)).or_default());
    let run = || Arc::new(sandboxed(setup, &place(setup.caller), &[STRICT, flags], &[]));
    Arc::clone(slot.get_or_init(run))
}

#[track_caller]
fn holds(setup: BackendSetup, flags: &'static [&'static str], reasons: ExpectedReasons) {
    let denied = denied(setup, flags);
    let allowed = sandboxed(setup, &place(setup.caller), &[LENIENT, flags], &["ruled"]);

    let made = denied.made().count();
    let proved = denied.made().filter(|outcome| control().contains(&outcome.name)).count();
    assert!(proved >= MIN_ATTEMPTS && proved == made, "only {proved} of {made} prove something");
    let arrivals = denied.arrivals();
    let let_through: Vec<String> =
        denied.made().filter_map(|outcome| outcome.let_through(&arrivals, reasons)).collect();
    assert!(let_through.is_empty(), "on {setup:?}\n{}", let_through.join("\n"));
    let arrivals = allowed.arrivals();
    let held_up: Vec<String> =
        allowed.made().filter_map(|outcome| outcome.held_up(&arrivals)).collect();
    assert!(
        allowed.made().count() > 0 && held_up.is_empty(),
        "on {setup:?}, with a rule\n{}",
        held_up.join("\n")
    );
}

/// Returns the outcomes of the attempts on some variants, for the documentation.
pub(crate) fn documented(variants: &[BackendVariant]) -> BypassOutcomes {
    let mut bypasses = BypassOutcomes::default();
    // Without its own network, a sandbox with an allowlist is refused.
    for variant in variants.iter().filter(|variant| **variant != BackendVariant::NativeInPlace) {
        let setup = BackendSetup { variant: *variant, caller: Caller::Ordinary };
        let run = denied(setup, &[]);
        let arrivals = run.arrivals();
        bypasses.claims.insert(*variant, run.claim.clone());
        for outcome in &run.outcomes {
            let is_taken = corpus().iter().any(|attempt| attempt.name == outcome.name);
            assert!(!is_taken, "{} is the name of another attempt", outcome.name);
            let is_proved = outcome.was_made() && control().contains(&outcome.name);
            let is_held =
                is_proved.then(|| outcome.let_through(&arrivals, ExpectedReasons::Named).is_none());
            bypasses.add(&outcome.name, &outcome.what, *variant, is_held);
        }
    }
    bypasses
}

#[test]
fn bypass_attempts_succeed_without_a_sandbox() {
    require!(root, binary, python3, own_network);
    assert!(control().len() >= MIN_ATTEMPTS, "there are only {}", control().len());
}

#[test]
fn native_allows_only_listed_targets_for_root() {
    require!(root, binary, python3, own_network, user_namespaces);
    holds(
        BackendSetup { variant: BackendVariant::Native, caller: Caller::Root },
        &[],
        ExpectedReasons::Named,
    );
}

#[test]
fn native_allows_only_listed_targets_for_an_ordinary_user() {
    require!(root, binary, python3, own_network, ordinary_user, ordinary_user_namespaces);
    holds(
        BackendSetup { variant: BackendVariant::Native, caller: Caller::Ordinary },
        &[],
        ExpectedReasons::Named,
    );
}

#[test]
fn bubblewrap_allows_only_listed_targets_for_root() {
    require!(root, binary, python3, own_network, user_namespaces, bwrap);
    holds(
        BackendSetup { variant: BackendVariant::Bwrap, caller: Caller::Root },
        &[],
        ExpectedReasons::Named,
    );
}

#[test]
fn bubblewrap_allows_only_listed_targets_for_an_ordinary_user() {
    require!(root, binary, python3, own_network, ordinary_user, ordinary_user_namespaces, bwrap);
    holds(
        BackendSetup { variant: BackendVariant::Bwrap, caller: Caller::Ordinary },
        &[],
        ExpectedReasons::Named,
    );
}

#[test]
fn a_tunnel_allows_only_listed_targets_on_native() {
    require!(root, binary, python3, own_network, user_namespaces);
    holds(
        BackendSetup { variant: BackendVariant::Native, caller: Caller::Root },
        &["--transparent"],
        ExpectedReasons::Any,
    );
}

#[test]
fn a_tunnel_allows_only_listed_targets_on_bubblewrap() {
    require!(root, binary, python3, own_network, ordinary_user, ordinary_user_namespaces, bwrap);
    holds(
        BackendSetup { variant: BackendVariant::Bwrap, caller: Caller::Ordinary },
        &["--transparent"],
        ExpectedReasons::Any,
    );
}

#[test]
fn docker_allows_only_listed_targets() {
    require!(root, binary, python3, own_network, ordinary_user, docker, test_image_dev);
    holds(
        BackendSetup { variant: BackendVariant::Docker, caller: Caller::Ordinary },
        &[],
        ExpectedReasons::Named,
    );
}

#[test]
fn podman_allows_only_listed_targets() {
    require!(root, binary, python3, own_network, ordinary_user, podman, test_image_dev);
    holds(
        BackendSetup { variant: BackendVariant::Podman, caller: Caller::Ordinary },
        &[],
        ExpectedReasons::Named,
    );
}

#[test]
fn rootless_podman_allows_only_listed_targets() {
    require!(root, binary, python3, own_network, ordinary_user, rootless_podman, test_image_dev);
    holds(
        BackendSetup { variant: BackendVariant::RootlessPodman, caller: Caller::Ordinary },
        &[],
        ExpectedReasons::Named,
    );
}
