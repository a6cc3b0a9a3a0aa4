//! Resources that a run leaves on the host, however it ends.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use conformance::{BackendSetup, BackendVariant, Caller, CallerDirectory};
use ringfence_test_ledger::require;

/// Time limit for the kernel on a busy host.
const WAIT_TIMEOUT: Duration = Duration::from_secs(20);

/// Returns a number of seconds that no other process on the host sleeps for, to identify processes
/// of a test.
fn mark(digit: u32) -> String {
    format!("{digit}{}", 1_000_000 + std::process::id())
}

/// Returns the processes of the host that have a word among their arguments.
fn processes_with(word: &str) -> Vec<String> {
    let entries = fs_err::read_dir("/proc").expect("/proc can be listed").flatten();
    let ids = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let has_word = |id: &String| {
        let words = fs_err::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).any(|part| part == word.as_bytes())
    };
    ids.filter(|id| id.parse::<u32>().is_ok()).filter(has_word).collect()
}

#[track_caller]
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < WAIT_TIMEOUT, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the control groups that the process with this id made.
fn groups_of(process: u32) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = left.pop() {
        for entry in fs_err::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.starts_with(&format!("ringfence-{process}-")) {
                    found.push(entry.path());
                }
                left.push(entry.path());
            }
        }
    }
    found
}

/// Counts our mounts, without those of tests of container engines that run at the same time.
fn mounts_of_the_host() -> usize {
    let table = fs_err::read_to_string("/proc/self/mountinfo").expect("/proc can be read");
    let is_of_engines =
        |line: &&str| line.contains("ringfence-mapped") || line.contains("ringfence-engine");
    table.lines().filter(|line| line.contains("ringfence") && !is_of_engines(line)).count()
}

#[track_caller]
fn nothing_is_left_after_a_kill(variant: BackendVariant, digit: u32) {
    let setup = BackendSetup { variant, caller: Caller::Root };
    let place = CallerDirectory::for_caller(setup.caller);
    let (mark, mounts) = (mark(digit), mounts_of_the_host());
    let mut command = setup.ringfence("run", &place);
    let script = format!("sleep {mark} & setsid sh -c 'sleep {mark} & wait' & wait");
    command
        .args(["--memory", "256M", "--allow-weaker", "memory", "--", "sh", "-c", &script])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut ringfence = command.spawn().expect("ringfence can be started");
    wait_until("both processes run", || processes_with(&mark).len() == 2);
    assert!(!groups_of(ringfence.id()).is_empty(), "the run has a control group");

    ringfence.kill().expect("it is ours");
    ringfence.wait().expect("it is ours");
    wait_until("no process is left", || processes_with(&mark).is_empty());
    assert_eq!(mounts_of_the_host(), mounts);

    let status = setup
        .ringfence("run", &place)
        .args(["--memory", "256M", "--allow-weaker", "memory", "--", "true"])
        .status()
        .expect("ringfence can be started");
    assert!(status.success());
    // The run of another test may still be sweeping.
    wait_until("the next run has swept what the killed one left", || {
        groups_of(ringfence.id()).is_empty()
    });
}

#[test]
fn a_killed_ringfence_leaves_nothing_on_native() {
    require!(root, binary, user_namespaces, cgroup_limits);
    nothing_is_left_after_a_kill(BackendVariant::Native, 1);
}

#[test]
fn a_killed_ringfence_leaves_nothing_on_bubblewrap() {
    require!(root, binary, user_namespaces, cgroup_limits, bwrap);
    nothing_is_left_after_a_kill(BackendVariant::Bwrap, 2);
}

#[test]
fn a_run_that_ends_leaves_no_process_control_group_or_mount() {
    require!(root, binary, user_namespaces, cgroup_limits);
    let place = CallerDirectory::for_caller(Caller::Root);
    let (mark, mounts) = (mark(3), mounts_of_the_host());
    let mut command = BackendSetup { variant: BackendVariant::Native, caller: Caller::Root }
        .ringfence("run", &place);
    let mut ringfence = command
        .args([
            "--memory",
            "256M",
            "--allow-weaker",
            "memory",
            "--",
            "sh",
            "-c",
            &format!("setsid sleep {mark} &"),
        ])
        .spawn()
        .unwrap();
    assert!(ringfence.wait().unwrap().success());
    wait_until("no process is left", || processes_with(&mark).is_empty());
    assert_eq!((groups_of(ringfence.id()), mounts_of_the_host()), (Vec::new(), mounts));
}

#[test]
fn a_command_that_kills_its_process_group_does_not_hit_ringfence() {
    require!(root, binary, user_namespaces);
    let script = ["-c", "sh -c 'kill -9 0'; exit 3"];
    let plain = Command::new("sh").args(script).process_group(0).status().unwrap();
    assert_eq!(plain.signal(), Some(9), "without ringfence the caller's group is hit");

    let place = CallerDirectory::for_caller(Caller::Root);
    let mut command = BackendSetup { variant: BackendVariant::Native, caller: Caller::Root }
        .ringfence("run", &place);
    let status = command.args(["--", "sh"]).args(script).process_group(0).status().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(128 + 9), None));
}
