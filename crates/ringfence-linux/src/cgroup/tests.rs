use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use super::*;

/// Creates the group. Prints the reason and returns `None` if this host cannot create it.
#[expect(clippy::print_stderr, reason = "a skip is a result, and a test has no other way to tell")]
fn group(wanted: WantedLimits) -> Option<Cgroup> {
    match Cgroup::create(&wanted) {
        Ok(group) => Some(group),
        Err(error @ (CgroupError::Discover { .. } | CgroupError::Unavailable { .. })) => {
            eprintln!(
                "SKIP control groups: {error}: {:?}; {}",
                std::error::Error::source(&error),
                error.hint()
            );
            None
        }
        Err(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
    }
}

fn paths(group: &Cgroup) -> Vec<PathBuf> {
    group.directories().map(|directory| directory.path().to_owned()).collect()
}

/// Returns a shell command that enters the group and then runs a script.
fn shell(group: &Cgroup, script: &str) -> Command {
    let mut entry = String::new();
    for path in paths(group) {
        let file = if path.join("tasks").exists() { "tasks" } else { "cgroup.procs" };
        entry.push_str(&format!("echo 0 > '{}' && ", path.join(file).display()));
    }
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", &format!("{entry} {{ {script}\n}}")])
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    command
}

#[test]
fn a_process_over_its_memory_limit_is_killed_and_reported() {
    let Some(group) = group(WantedLimits { memory: Some(32 << 20), ..WantedLimits::default() })
    else {
        return;
    };
    // The control case: a process with little memory succeeds.
    assert!(shell(&group, "exec true").status().unwrap().success());
    assert!(!group.oom_killed());
    let status = shell(&group, "exec tail /dev/zero").status().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGKILL), "{status}");
    assert!(group.oom_killed());
}

#[test]
fn a_group_of_version_1_limits_the_buffers_of_sockets_too() {
    let wanted = WantedLimits { memory: Some((64 << 20) + 1), ..WantedLimits::default() };
    let Some(group) = group(wanted) else { return };
    let holder = group.holder(CgroupLimit::Memory);
    let limits: Vec<String> = paths(&group)
        .iter()
        .filter_map(|path| fs::read_to_string(path.join(v1::SOCKET_BUFFER_FILE)).ok())
        .collect();
    match holder.version {
        CgroupVersion::V1 => assert_eq!(limits.is_empty(), holder.uncounted.sockets),
        CgroupVersion::V2 => assert!(limits.is_empty() && !holder.uncounted.sockets),
    }
    assert!(limits.iter().all(|limit| limit.trim_end() == (8 << 20).to_string()), "{limits:?}");
}

#[test]
fn a_group_can_be_left_if_the_files_of_its_parent_are_writable() {
    let Some(group) = group(WantedLimits { processes: Some(8), ..WantedLimits::default() }) else {
        return;
    };
    let parent = paths(&group)[0].parent().unwrap().to_owned();
    let script = format!("echo 0 > '{}/cgroup.procs' && cat /proc/self/cgroup", parent.display());
    let output = shell(&group, &script).output().unwrap();
    let name = paths(&group)[0].file_name().unwrap().to_str().unwrap().to_owned();
    let has_left =
        output.status.success() && !String::from_utf8_lossy(&output.stdout).contains(&name);
    assert_eq!(group.can_be_left(), has_left, "{output:?}");
}

#[test]
fn an_imitation_of_a_group_can_be_left_only_while_the_file_around_it_can_be_written() {
    if rustix::process::geteuid().is_root() {
        return; // root may write to files whatever their modes say
    }
    let around = tempfile::tempdir().unwrap();
    let procs = around.path().join("cgroup.procs");
    fs::write(&procs, "").unwrap();
    let directory = CgroupDirectory::create(around.path().join("ringfence-1-1-1")).unwrap();
    assert!(directory.can_be_left());
    fs::set_permissions(&procs, std::os::unix::fs::PermissionsExt::from_mode(0o444)).unwrap();
    assert!(!directory.can_be_left());
}

#[test]
fn a_group_with_a_limit_of_processes_stops_forks() {
    let Some(group) = group(WantedLimits { processes: Some(3), ..WantedLimits::default() }) else {
        return;
    };
    assert!(shell(&group, "sleep 0 & wait $!").status().unwrap().success());
    let status = shell(&group, "sleep 5 & sleep 5 & sleep 5 & exit 0").status().unwrap();
    assert!(!status.success(), "the third child was one too many");
    group.kill().unwrap();
}

#[test]
fn a_group_has_the_configured_processor_share() {
    let Some(group) = group(WantedLimits { cpus: Some(0.5), ..WantedLimits::default() }) else {
        return;
    };
    let version = group.version(CgroupLimit::Cpus);
    let (file, expected) = match version {
        CgroupVersion::V1 => ("cpu.cfs_quota_us", "50000\n"),
        CgroupVersion::V2 => ("cpu.max", "50000 100000\n"),
    };
    assert_eq!(fs::read_to_string(paths(&group)[0].join(file)).unwrap(), expected);
}

#[test]
fn a_child_enters_a_group_through_its_tasks_file() {
    let Some(group) = group(WantedLimits { processes: Some(8), ..WantedLimits::default() }) else {
        return;
    };
    let Some(entrance) = group.tasks().first() else { return };
    let output = Command::new("/bin/sh")
        .args(["-c", "echo 0 >&0 && cat /proc/self/cgroup"])
        .stdin(entrance.try_clone().unwrap())
        .output()
        .unwrap();
    let name = paths(&group)[0].file_name().unwrap().to_str().unwrap().to_owned();
    assert!(String::from_utf8_lossy(&output.stdout).contains(&name), "{output:?}");
}

#[track_caller]
fn check_that_the_whole_tree_dies(group: Cgroup) {
    let paths = paths(&group);
    // Daemons in sessions of their own, whose parent is gone.
    let script = "for i in 1 2 3 4 5; do setsid sh -c 'sleep 60 & sleep 60' & done; exit 0";
    assert!(shell(&group, script).stdout(Stdio::null()).status().unwrap().success());
    assert!(
        !directory::list_members(&paths[0]).unwrap().is_empty(),
        "the daemons live on, or the test proves nothing"
    );
    group.kill().unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while !directory::list_members(&paths[0]).unwrap().is_empty() {
        assert!(std::time::Instant::now() < deadline, "somebody survived");
        std::thread::yield_now();
    }
    group.remove().unwrap();
    for path in paths {
        assert!(!path.exists(), "{} is left behind", path.display());
    }
}

#[test]
fn a_kill_reaches_daemons() {
    let Some(group) = group(WantedLimits { tree_kill: true, ..WantedLimits::default() }) else {
        return;
    };
    check_that_the_whole_tree_dies(group);
}

#[test]
fn a_kill_reaches_daemons_through_the_limit_of_processes() {
    let Some(group) = group(WantedLimits { processes: Some(100), ..WantedLimits::default() })
    else {
        return;
    };
    check_that_the_whole_tree_dies(group);
}

#[test]
fn dropping_a_group_kills_its_processes_and_removes_it() {
    let wanted = WantedLimits {
        memory: Some(64 << 20),
        cpus: Some(1.0),
        processes: Some(16),
        tree_kill: true,
    };
    let Some(group) = group(wanted) else { return };
    let paths = paths(&group);
    let mut sleeper = shell(&group, "exec sleep 60").spawn().unwrap();
    while paths.iter().any(|path| directory::list_members(path).unwrap().is_empty()) {
        std::thread::yield_now();
    }
    drop(group);
    assert_eq!(sleeper.wait().unwrap().signal(), Some(libc::SIGKILL));
    for path in paths {
        assert!(!path.exists(), "{} is left behind", path.display());
    }
}

#[test]
fn groups_of_dead_owners_are_swept_and_those_of_the_living_are_not() {
    let Some(living) = group(WantedLimits { processes: Some(16), ..WantedLimits::default() })
    else {
        return;
    };
    let group = paths(&living)[0].clone();
    // No other process sweeps in this group. No process has this pid, because it is above the
    // kernel's maximum.
    let dead = group.join("ringfence-4194999-1-0");
    fs::create_dir(&dead).unwrap();
    let locked = group.join("ringfence-4194999-1-1");
    let lock = CgroupDirectory::create(locked.clone()).unwrap();
    name::sweep(&group);
    assert!(!dead.exists());
    assert!(locked.exists(), "somebody in another pid namespace may own it");
    name::sweep(group.parent().unwrap());
    assert!(group.exists());
    lock.remove().unwrap();
}

#[test]
fn a_host_without_control_groups_names_the_unavailable_limit() {
    let nothing = CgroupHierarchies::default();
    for (wanted, limit) in [
        (WantedLimits { memory: Some(1 << 20), ..WantedLimits::default() }, CgroupLimit::Memory),
        (WantedLimits { cpus: Some(1.0), ..WantedLimits::default() }, CgroupLimit::Cpus),
        (
            WantedLimits { processes: Some(1), tree_kill: true, ..WantedLimits::default() },
            CgroupLimit::Processes,
        ),
        (WantedLimits { tree_kill: true, ..WantedLimits::default() }, CgroupLimit::TreeKill),
    ] {
        let error = Cgroup::create_in(&nothing, &wanted, CgroupName::next().unwrap()).unwrap_err();
        assert!(
            matches!(error, CgroupError::Unavailable { limit: named, .. } if named == limit),
            "{error}"
        );
    }
}

#[test]
fn a_limit_that_the_kernel_refuses_is_an_error() {
    let wanted = WantedLimits { cpus: Some(0.000_01), ..WantedLimits::default() };
    match Cgroup::create(&wanted) {
        Ok(_) => panic!("the kernel takes no quota of a microsecond"),
        Err(CgroupError::Set { value, .. }) => assert!(value.starts_with('1'), "{value}"),
        Err(_) => {} // this host has no control groups
    }
}

#[test]
fn a_probe_leaves_nothing_behind_and_agrees_with_a_real_group() {
    let support = probe();
    let wanted = WantedLimits { memory: Some(64 << 20), ..WantedLimits::default() };
    assert_eq!(support.memory.is_ok(), Cgroup::create(&wanted).is_ok());
}
