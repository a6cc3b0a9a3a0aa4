//! Resources of the machine that a sandbox can take although the limit concerns something else:
//! files and attributes of a bounded `/tmp`, resources that the kernel grants to a user as a whole,
//! and control groups that a process can leave.

use conformance::{BackendSetup, BackendVariant, Caller, CallerDirectory};
use ringfence_test_ledger::require;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// Result of `shares.py`: the number of items that it took, and the error that ended it.
type TakenItems = (u64, i32);

const ISOLATED: [BackendVariant; 2] = [BackendVariant::Native, BackendVariant::Bwrap];
const CALLERS: [Caller; 2] = [Caller::Root, Caller::Ordinary];
/// Flags for the size of `/tmp` here. The size comes with one inode per page.
const TMP: [&str; 2] = ["--tmp", "1M"];
const INODES: u64 = 256;

/// Runs `shares.py WHAT COUNT DIRECTORY` in a sandbox of a variant.
#[track_caller]
fn take(setup: BackendSetup, flags: &[&str], words: &[&str]) -> TakenItems {
    let place = CallerDirectory::for_caller(setup.caller);
    let mut command = setup.ringfence("run", &place);
    command.args(flags).args(["--", "python3", "-c", include_str!("shares.py")]).args(words);
    let output = command.output().expect("ringfence can be started");
    let said = String::from_utf8_lossy(&output.stdout);
    let numbers = said
        .trim()
        .split_once(' ')
        .and_then(|(got, errno)| Some((got.parse().ok()?, errno.parse().ok()?)));
    numbers.unwrap_or_else(|| {
        panic!("{setup:?} {words:?}: {said}{}", String::from_utf8_lossy(&output.stderr))
    })
}

/// Checks that `count` items can be taken without a sandbox, and that in a sandbox of each
/// variant at most `most` can be taken before `errno` occurs.
#[track_caller]
fn check(what: &str, count: u64, most: u64, errno: Errno, directories: &[&str]) {
    let count = count.to_string();
    for caller in CALLERS {
        let local = BackendSetup { variant: BackendVariant::Local, caller };
        // This is a file system in memory, like those inside.
        let (all, _) = take(local, &[], &[what, &count, "/dev/shm"]);
        assert_eq!(all.to_string(), count, "{what} on {local:?}");
        for variant in ISOLATED {
            let setup = BackendSetup { variant, caller };
            for directory in directories {
                let (got, ended_with) = take(setup, &TMP, &[what, &count, directory]);
                assert!(got <= most, "{what} in {directory} on {setup:?}: {got}");
                assert_eq!(ended_with, errno.raw_os_error(), "{what} in {directory} on {setup:?}");
            }
        }
    }
}

const PRIVATE: [&str; 2] = ["/tmp", "$HOME"];

#[test]
fn a_bounded_directory_holds_no_more_files_than_pages() {
    require!(
        root,
        binary,
        user_namespaces,
        ordinary_user,
        ordinary_user_namespaces,
        bwrap,
        python3
    );
    for what in ["files", "links", "directories", "names"] {
        check(what, 1024, INODES, Errno::NOSPC, &PRIVATE);
    }
}

#[test]
fn attributes_of_files_count_towards_the_bound_of_a_directory() {
    require!(
        root,
        binary,
        user_namespaces,
        ordinary_user,
        ordinary_user_namespaces,
        bwrap,
        python3
    );
    if take(
        BackendSetup { variant: BackendVariant::Local, caller: Caller::Root },
        &[],
        &["attributes", "1", "/dev/shm"],
    )
    .0 == 0
    {
        return; // before Linux 6.6, a file system in memory has no user attributes
    }
    // The bound is a kilobyte for each inode, which is 256 KiB, and each value has 4000 bytes.
    check("attributes", 1024, INODES * 1024 / 4000, Errno::NOSPC, &PRIVATE);
    check("long_attributes", 64, 0, Errno::NOSPC, &["/tmp", "$HOME", "/dev/shm"]);
}

#[test]
fn access_control_lists_take_no_more_than_a_block_of_memory_each() {
    require!(
        root,
        binary,
        user_namespaces,
        ordinary_user,
        ordinary_user_namespaces,
        bwrap,
        python3
    );
    check("access_lists", 32, 0, Errno::NOSPC, &["/tmp", "$HOME", "/dev/shm"]);
}

/// A huge page of the machine that stays reserved until the value is dropped.
struct ReservedPage {
    /// Number of pages that were reserved before.
    before: String,
}

const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";

impl ReservedPage {
    fn reserve() -> ReservedPage {
        let before = fs_err::read_to_string(HUGE_PAGES).expect("the need was looked at");
        let count: u64 = before.trim().parse().expect("the kernel counts in digits");
        fs_err::write(HUGE_PAGES, (count + 1).to_string()).expect("the need was looked at");
        ReservedPage { before }
    }
}

impl Drop for ReservedPage {
    fn drop(&mut self) {
        let _ = fs_err::write(HUGE_PAGES, &self.before); // a page that stays reserved does no harm
    }
}

#[test]
fn huge_pages_that_the_host_reserved_are_given_to_no_sandbox() {
    require!(
        root,
        binary,
        user_namespaces,
        ordinary_user,
        ordinary_user_namespaces,
        bwrap,
        python3,
        huge_pages
    );
    let _page = ReservedPage::reserve();
    check("huge_pages", 1, 0, Errno::NOMEM, &["/tmp"]);
    check("huge_files", 1, 0, Errno::NOMEM, &["/tmp"]);
    // Without privilege, a segment of huge pages needs the group in vm.hugetlb_shm_group (proc(5)).
    for (variant, expected) in [
        (BackendVariant::Local, (1, 0)),
        (BackendVariant::Native, (0, Errno::NOMEM.raw_os_error())),
    ] {
        let setup = BackendSetup { variant, caller: Caller::Root };
        assert_eq!(take(setup, &[], &["huge_segments", "1"]), expected, "{setup:?}");
    }
}

#[test]
fn no_file_can_be_created_in_the_device_directory() {
    require!(
        root,
        binary,
        user_namespaces,
        ordinary_user,
        ordinary_user_namespaces,
        bwrap,
        python3
    );
    for caller in CALLERS {
        for variant in ISOLATED {
            assert_eq!(
                take(BackendSetup { variant, caller }, &[], &["files", "1", "/dev"]),
                (0, Errno::ROFS.raw_os_error()),
                "{variant:?}"
            );
        }
    }
}

/// Reads a number that the kernel shows in a file.
fn granted(file: &str) -> u64 {
    fs_err::read_to_string(file).expect("the kernel has it").trim().parse().expect("it is a number")
}

#[test]
fn a_sandbox_has_a_share_of_its_callers_watchers() {
    require!(
        root,
        binary,
        user_namespaces,
        ordinary_user,
        ordinary_user_namespaces,
        bwrap,
        python3
    );
    let share = granted("/proc/sys/fs/inotify/max_user_instances").div_ceil(4);
    // Take only one beyond the share, because other programs use watchers, too.
    check("inotify_instances", share + 1, share, Errno::MFILE, &["/tmp"]);
}

#[test]
fn a_sandbox_has_a_share_of_its_callers_queued_signals() {
    require!(
        root,
        binary,
        user_namespaces,
        ordinary_user,
        ordinary_user_namespaces,
        bwrap,
        python3
    );
    let share = getrlimit(Resource::Sigpending)
        .current
        .expect("the kernel's default is finite")
        .div_ceil(4);
    check("signals", share + 1, share, Errno::AGAIN, &["/tmp"]);
}

/// Script that moves the shell into the parent of its own control group, in every hierarchy, and
/// prints whether that succeeded.
const LEAVE: &str = "left=no; for group in /sys/fs/cgroup /sys/fs/cgroup/*; do
    echo 0 2>/dev/null > $group/cgroup.procs && left=yes; done 2>/dev/null; echo $left";

/// Returns the claim of a run for the process count, and whether its command left its control
/// group.
#[track_caller]
fn leave(setup: BackendSetup, flags: &[&str]) -> (String, bool) {
    let place = CallerDirectory::for_caller(setup.caller);
    let mut command = setup.ringfence("run", &place);
    let output = command
        .arg("--json")
        .args(flags)
        .args(["--", "sh", "-c", LEAVE])
        .output()
        .expect("it can be started");
    let said = String::from_utf8_lossy(&output.stdout);
    let result: serde_json::Value =
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let held = result["meta"]["held"]["process-count"]
        .as_str()
        .unwrap_or_else(|| panic!("{setup:?}: {said}"));
    (held.to_owned(), result["stdout"] == "yes\n")
}

#[test]
fn a_limit_that_a_command_can_escape_is_not_claimed() {
    require!(root, binary, user_namespaces, landlock, bwrap, cgroup_limits);
    let setup = |variant| BackendSetup { variant, caller: Caller::Root };
    let accepted = ["--processes", "64", "--allow-weaker", "process-count"];
    let (held, has_left) = leave(setup(BackendVariant::Local), &accepted);
    assert!(has_left && held.starts_with("weaker: the command can write cgroup files"), "{held}");
    for variant in [BackendVariant::Native, BackendVariant::NativeInPlace, BackendVariant::Bwrap] {
        let (held, has_left) = leave(setup(variant), &["--processes", "64"]);
        assert!(!has_left && held.starts_with("cgroup v"), "{variant:?}: {held}");
    }
}

#[test]
fn a_policy_that_shows_cgroup_files_weakens_its_limits() {
    require!(root, binary, user_namespaces, bwrap, cgroup_limits);
    for variant in ISOLATED {
        let setup = BackendSetup { variant, caller: Caller::Root };
        for shown in ["/sys/fs/cgroup", "/sys/fs", "/sys/fs/../fs/cgroup"] {
            let flags = ["--write", shown, "--processes", "64", "--allow-weaker", "process-count"];
            let (held, has_left) = leave(setup, &flags);
            assert!(has_left, "{variant:?} {shown}: the test would prove nothing");
            assert!(held.starts_with("weaker: "), "{variant:?} {shown}: {held}");
        }
        let read = leave(setup, &["--read", "/sys/fs/cgroup", "--processes", "64"]);
        assert!(!read.1 && read.0.starts_with("cgroup v"), "{variant:?}: {read:?}");
    }
}

#[test]
fn the_end_of_a_tree_is_not_claimed_where_processes_can_leave_their_cgroup() {
    require!(root, binary, cgroup_limits);
    let place = CallerDirectory::for_caller(Caller::Root);
    let mut command = BackendSetup { variant: BackendVariant::Local, caller: Caller::Root }
        .ringfence("run", &place);
    let output = command.args(["--json", "--", "true"]).output().expect("ringfence can be started");
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is a result");
    let held = result["meta"]["held"]["cleanup"].as_str().expect("it is told");
    assert!(held.starts_with("weaker: the command can write cgroup files"), "{held}");
}
