//! `kill -9` of ringfence at any moment: the next command works, and in the end nothing is left.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ringfence::Backend;
use ringfence_test_ledger::require;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::keeper::{SandboxKeeper, WAIT_TIMEOUT};
use crate::remains::HostProcess;
use crate::soak::{RandomNumbers, SoakExtent};

const NAME: &str = "victim";

/// The command that ringfence runs when it is killed.
#[derive(Debug, Clone, Copy)]
enum InterruptedCommand {
    Up,
    Exec,
    Stop,
}

/// The process that is killed.
#[derive(Debug, Clone, Copy)]
enum KilledProcess {
    /// The command that the user typed.
    Foreground,
    /// The process that keeps the sandbox, if there is one.
    Monitor,
    /// The command first, and then the monitor.
    Both,
}

/// Number of starts that may sweep after the last kill.
const STARTS: u32 = 10;

/// The command that is run after the kill.
#[derive(Debug, Clone, Copy)]
enum NextCommand {
    Up,
    Ps,
    Stop,
}

impl InterruptedCommand {
    fn command(self, keeper: &SandboxKeeper) -> Command {
        match self {
            InterruptedCommand::Up => keeper.up(NAME),
            InterruptedCommand::Exec => {
                keeper.ringfence(&["exec", NAME, "--", "sh", "-c", "sleep 300 & sleep 0.02"])
            }
            InterruptedCommand::Stop => keeper.ringfence(&["stop", NAME]),
        }
    }
}

/// Returns the usual time of an act plus a margin. Kills happen within this time and a little
/// later.
fn usual_time(keeper: &SandboxKeeper, act: InterruptedCommand) -> Duration {
    let begun = Instant::now();
    keeper.expect(&mut act.command(keeper));
    begun.elapsed() + Duration::from_millis(10)
}

/// Kills the monitors of all sandboxes and waits for their end, because a monitor that has not
/// ended cannot be told from a busy one. Without a pid namespace, the first process of a sandbox
/// looks like a monitor, and is killed, too.
fn kill_monitors(keeper: &SandboxKeeper) {
    let is_monitor = |process: &HostProcess| process.words.contains(&"--monitor".to_owned());
    let monitors: Vec<HostProcess> = keeper.processes().into_iter().filter(is_monitor).collect();
    for monitor in monitors {
        let id =
            i32::try_from(monitor.id).ok().and_then(Pid::from_raw).expect("it was found in /proc");
        // A process that cannot be opened has ended.
        let Ok(process) = pidfd_open(id, PidfdFlags::empty()) else { continue };
        let _ = pidfd_send_signal(&process, Signal::KILL); // the process may have ended
        // A process is a zombie as soon as its first thread has ended, but its locks are held until
        // the last thread has ended.
        let mut ended = [PollFd::new(&process, PollFlags::IN)];
        let patience = WAIT_TIMEOUT.try_into().expect("it is not that long");
        assert_eq!(poll(&mut ended, Some(&patience)), Ok(1), "a killed process ends");
    }
}

#[track_caller]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < WAIT_TIMEOUT, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Starts an act, and kills the victim after `moment`.
fn interrupt(
    keeper: &SandboxKeeper,
    act: InterruptedCommand,
    victim: KilledProcess,
    moment: Duration,
) {
    let mut command = act.command(keeper);
    let mut foreground = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("ringfence can be started");
    std::thread::sleep(moment);
    keeper.note_children_of(foreground.id());
    if matches!(victim, KilledProcess::Foreground | KilledProcess::Both) {
        foreground.kill().expect("it is ours");
    }
    if matches!(victim, KilledProcess::Monitor | KilledProcess::Both) {
        kill_monitors(keeper);
    }
    wait_until("the command has ended", || foreground.try_wait().expect("it is ours").is_some());
}

#[track_caller]
fn recover(keeper: &SandboxKeeper, next: NextCommand, round: &str) {
    match next {
        NextCommand::Up => {
            let up = keeper.run(&mut keeper.up(NAME));
            assert!(up.is_good(), "{round}: {up:?}");
            let exec = keeper.run(&mut keeper.ringfence(&["exec", NAME, "--", "true"]));
            assert!(exec.is_good(), "{round}: {exec:?} after {up:?}");
        }
        NextCommand::Ps => {
            let ps = keeper.run(&mut keeper.ringfence(&["ps"]));
            assert!(ps.is_good() && !ps.said.contains("silent"), "{round}: {ps:?}");
        }
        NextCommand::Stop => {
            let stop = keeper.run(&mut keeper.ringfence(&["stop", NAME]));
            let was_gone = stop.said.contains("there is no sandbox");
            assert!(stop.is_good() || was_gone, "{round}: {stop:?}");
        }
    }
}

#[track_caller]
fn check(backend: Backend) {
    let keeper = SandboxKeeper::for_root(backend);
    let mut random = RandomNumbers::seeded();
    let acts = [InterruptedCommand::Up, InterruptedCommand::Exec, InterruptedCommand::Stop];
    let usual = acts.map(|act| usual_time(&keeper, act));
    for round in 0..SoakExtent::chosen().kills(backend) {
        let index = random.below(acts.len());
        let (act, usual) = (acts[index], usual[index]);
        let victim = [KilledProcess::Foreground, KilledProcess::Monitor, KilledProcess::Both]
            [random.below(3)];
        let next = [NextCommand::Up, NextCommand::Ps, NextCommand::Stop][random.below(3)];
        let moment = usual.mul_f64(random.fraction() * 1.2);
        let round = format!(
            "{backend}, seed {}, round {round}: {victim:?} killed in {act:?} after {moment:?}, \
             then {next:?}",
            random.seed
        );
        if !matches!(act, InterruptedCommand::Up) {
            let up = keeper.run(&mut keeper.up(NAME));
            assert!(up.is_good(), "before {round}: {up:?}");
        }
        interrupt(&keeper, act, victim, moment);
        recover(&keeper, next, &round);
    }
    let begun = Instant::now();
    loop {
        // A sandbox that was starting when its caller was killed comes up later, and only then has
        // a name to stop.
        keeper.expect(&mut keeper.ringfence(&["stop", "--all"]));
        let left = keeper.processes();
        if left.is_empty() {
            break;
        }
        assert!(begun.elapsed() < WAIT_TIMEOUT, "these never end: {left:#?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    // The next start sweeps what else the kills left. The kernel may take a moment to release a
    // killed control group.
    for _ in 0..STARTS {
        keeper.expect(&mut keeper.up("last"));
        keeper.expect(&mut keeper.ringfence(&["ps"]));
        keeper.expect(&mut keeper.ringfence(&["stop", "--all"]));
        if keeper.remains().is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    keeper.expect_nothing_left();
}

/// Checks that a second start waits while the first start clears what a kill left, which takes an
/// engine some time.
#[track_caller]
fn check_two_starts(backend: Backend) {
    // The name differs from that of the other tests, which use the same engine at the same time.
    let keeper = SandboxKeeper::for_root(backend);
    for pause in [50, 300].map(Duration::from_millis) {
        keeper.expect(&mut keeper.up("twice"));
        kill_monitors(&keeper);
        let mut up = keeper.up("twice");
        let mut first = up
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("ringfence can be started");
        std::thread::sleep(pause);
        let second = keeper.run(&mut keeper.up("twice"));
        assert!(second.is_good(), "{pause:?} after another: {second:?}");
        assert!(first.wait().expect("it is ours").success());
        keeper.expect(&mut keeper.ringfence(&["exec", "twice", "--", "true"]));
        keeper.expect(&mut keeper.ringfence(&["stop", "twice"]));
    }
    keeper.expect_nothing_left();
}

#[test]
fn two_starts_after_a_kill_are_one_sandbox_on_docker() {
    require!(root, binary, docker);
    check_two_starts(Backend::Docker);
}

#[test]
fn two_starts_after_a_kill_are_one_sandbox_on_podman() {
    require!(root, binary, podman);
    check_two_starts(Backend::Podman);
}

#[test]
fn the_next_command_recovers_from_a_kill_on_native() {
    require!(root, binary, user_namespaces, cgroup_limits);
    check(Backend::Native);
}

#[test]
fn the_next_command_recovers_from_a_kill_on_bubblewrap() {
    require!(root, binary, user_namespaces, cgroup_limits, bwrap);
    check(Backend::Bwrap);
}

#[test]
fn the_next_command_recovers_from_a_kill_on_local() {
    require!(root, binary);
    check(Backend::Local);
}

#[test]
fn the_next_command_recovers_from_a_kill_on_docker() {
    require!(root, binary, docker);
    check(Backend::Docker);
}

#[test]
fn the_next_command_recovers_from_a_kill_on_podman() {
    require!(root, binary, podman);
    check(Backend::Podman);
}
