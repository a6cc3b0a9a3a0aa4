use std::process::Command;

use libc::{EAFNOSUPPORT, ENOSYS, EPERM, EPROTONOSUPPORT, c_int, sock_filter};

use super::assemble::{Assembler, Comparison, Verdict};
use super::interpret::{FilterOutcome, SyscallData, interpret};
use super::{
    AllowedSockets, Architecture, FamilyRule, FilterProfile, SeccompFilter, compile, families,
};
use crate::sys::seccomp::attempt;

const HIGH_WORD_GARBAGE: u64 = 0xdead_beef_0000_0000;
const ARCHITECTURES: [(&str, Architecture); 2] =
    [("x86_64", Architecture::X86_64), ("aarch64", Architecture::AARCH64)];

/// Calls `check` with the filter of each architecture.
fn each_filter(sockets: AllowedSockets, check: impl Fn(&FilterUnderTest)) {
    for (name, architecture) in ARCHITECTURES {
        let program = compile::compile(&architecture, FilterProfile { sockets });
        check(&FilterUnderTest { name, architecture, program });
    }
}

struct FilterUnderTest {
    name: &'static str,
    architecture: Architecture,
    program: Vec<sock_filter>,
}

impl FilterUnderTest {
    fn run(&self, number: u32, arguments: &[u64]) -> FilterOutcome {
        let mut call =
            SyscallData { number, architecture: self.architecture.audit, ..SyscallData::default() };
        call.arguments[..arguments.len()].copy_from_slice(arguments);
        interpret(&self.program, call)
    }

    fn number(&self, syscall: &str) -> u32 {
        let found = families()
            .iter()
            .flat_map(|family| family.syscalls)
            .find(|known| known.name == syscall);
        self.architecture
            .number(found.expect("the table names it"))
            .expect("both architectures have it")
    }

    /// Runs a call with plain arguments and with garbage in their high words. Both verdicts must be
    /// the same.
    #[track_caller]
    fn expect(&self, syscall: &str, arguments: &[u32], verdict: Result<(), c_int>) {
        let number = self.number(syscall);
        for garbage in [0, HIGH_WORD_GARBAGE] {
            let words: Vec<u64> = arguments.iter().map(|&word| u64::from(word) | garbage).collect();
            let outcome = self.run(number, &words);
            assert_eq!(outcome.verdict, verdict, "{syscall}({arguments:x?}) on {}", self.name);
        }
    }
}

#[test]
fn every_refused_call_fails_with_the_errno_of_its_family() {
    each_filter(AllowedSockets::Private, |subject| {
        for family in families() {
            let FamilyRule::Refuse(errno) = family.rule else { continue };
            for syscall in family.syscalls {
                let Some(number) = subject.architecture.number(syscall) else { continue };
                let outcome = subject.run(number, &[]);
                assert_eq!(outcome.verdict, Err(errno), "{} on {}", syscall.name, subject.name);
            }
        }
    });
}

#[test]
fn every_known_call_outside_the_table_is_allowed_and_every_unknown_one_does_not_exist() {
    each_filter(AllowedSockets::Private, |subject| {
        let named: Vec<u32> = families()
            .iter()
            .flat_map(|family| family.syscalls)
            .filter_map(|syscall| subject.architecture.number(syscall))
            .collect();
        for number in (0..1024).filter(|number| !named.contains(number)) {
            let mut unknown = subject.architecture.unknown.iter();
            let unknown =
                unknown.any(|&(from, to)| number >= from && to.is_none_or(|to| number <= to));
            let expected = if unknown { Err(ENOSYS) } else { Ok(()) };
            assert_eq!(
                subject.run(number, &[]).verdict,
                expected,
                "call {number} on {}",
                subject.name
            );
        }
    });
}

#[test]
fn the_numbers_in_the_table_are_those_of_libc() {
    // Names differ between architectures; these names exist on both.
    let known = [
        ("io_uring_setup", libc::SYS_io_uring_setup),
        ("io_uring_enter", libc::SYS_io_uring_enter),
        ("io_uring_register", libc::SYS_io_uring_register),
        ("userfaultfd", libc::SYS_userfaultfd),
        ("bpf", libc::SYS_bpf),
        ("perf_event_open", libc::SYS_perf_event_open),
        ("kexec_load", libc::SYS_kexec_load),
        ("kexec_file_load", libc::SYS_kexec_file_load),
        ("reboot", libc::SYS_reboot),
        ("init_module", libc::SYS_init_module),
        ("finit_module", libc::SYS_finit_module),
        ("delete_module", libc::SYS_delete_module),
        ("add_key", libc::SYS_add_key),
        ("request_key", libc::SYS_request_key),
        ("keyctl", libc::SYS_keyctl),
        ("mount", libc::SYS_mount),
        ("umount2", libc::SYS_umount2),
        ("pivot_root", libc::SYS_pivot_root),
        ("chroot", libc::SYS_chroot),
        ("open_tree", libc::SYS_open_tree),
        ("move_mount", libc::SYS_move_mount),
        ("fsopen", libc::SYS_fsopen),
        ("fsconfig", libc::SYS_fsconfig),
        ("fsmount", libc::SYS_fsmount),
        ("fspick", libc::SYS_fspick),
        ("mount_setattr", libc::SYS_mount_setattr),
        ("setns", libc::SYS_setns),
        ("unshare", libc::SYS_unshare),
        ("clone", libc::SYS_clone),
        ("clone3", libc::SYS_clone3),
        ("open_by_handle_at", libc::SYS_open_by_handle_at),
        ("pidfd_getfd", libc::SYS_pidfd_getfd),
        ("fanotify_init", libc::SYS_fanotify_init),
        ("move_pages", libc::SYS_move_pages),
        ("migrate_pages", libc::SYS_migrate_pages),
        ("swapon", libc::SYS_swapon),
        ("swapoff", libc::SYS_swapoff),
        ("quotactl", libc::SYS_quotactl),
        ("quotactl_fd", libc::SYS_quotactl_fd),
        ("acct", libc::SYS_acct),
        ("settimeofday", libc::SYS_settimeofday),
        ("clock_settime", libc::SYS_clock_settime),
        ("clock_adjtime", libc::SYS_clock_adjtime),
        ("adjtimex", libc::SYS_adjtimex),
        ("sethostname", libc::SYS_sethostname),
        ("setdomainname", libc::SYS_setdomainname),
        ("syslog", libc::SYS_syslog),
        ("vhangup", libc::SYS_vhangup),
        ("nfsservctl", libc::SYS_nfsservctl),
        ("lookup_dcookie", libc::SYS_lookup_dcookie),
        ("personality", libc::SYS_personality),
        ("ioctl", libc::SYS_ioctl),
        ("socket", libc::SYS_socket),
        ("socketpair", libc::SYS_socketpair),
        ("setxattr", libc::SYS_setxattr),
        ("lsetxattr", libc::SYS_lsetxattr),
        ("fsetxattr", libc::SYS_fsetxattr),
    ];
    for (name, number) in known {
        let syscall = families()
            .iter()
            .flat_map(|family| family.syscalls)
            .find(|syscall| syscall.name == name);
        let syscall = syscall.unwrap_or_else(|| panic!("{name} is not in the table"));
        assert_eq!(syscall.number().map(libc::c_long::from), Some(number), "{name}");
    }
}

#[test]
fn other_entry_points_do_not_exist() {
    const I386: u32 = 0x4000_0003;
    const ARM: u32 = 0x4000_0028;
    const X32: u32 = 0x4000_0000;
    each_filter(AllowedSockets::Open, |subject| {
        for number in 0..600 {
            for architecture in [I386, ARM, 0] {
                let call = SyscallData { number, architecture, ..SyscallData::default() };
                assert_eq!(interpret(&subject.program, call).verdict, Err(ENOSYS));
            }
            assert_eq!(subject.run(number | X32, &[]).verdict, Err(ENOSYS));
            assert_eq!(subject.run(number | 0x8000_0000, &[]).verdict, Err(ENOSYS));
        }
    });
}

#[test]
fn no_namespace_can_be_made() {
    let flags = [
        libc::CLONE_NEWNS,
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
    ];
    each_filter(AllowedSockets::Private, |subject| {
        for flag in flags.map(|flag| flag as u32) {
            subject.expect("unshare", &[flag], Err(EPERM));
            subject.expect("unshare", &[flag | libc::CLONE_FS as u32], Err(EPERM));
            subject.expect("clone", &[flag | libc::SIGCHLD as u32], Err(EPERM));
        }
        subject.expect("unshare", &[0x80], Err(EPERM));
        subject.expect("unshare", &[libc::CLONE_FS as u32 | libc::CLONE_FILES as u32], Ok(()));
        subject.expect("clone", &[libc::SIGCHLD as u32], Ok(()));
        // The flags that glibc's pthread_create passes, and a signal that shares its bit with
        // CLONE_NEWTIME.
        subject.expect("clone", &[0x003d_0f00], Ok(()));
        subject.expect("clone", &[0x80], Ok(()));
    });
}

#[test]
fn an_attribute_is_no_longer_than_a_block() {
    each_filter(AllowedSockets::Private, |subject| {
        for call in ["setxattr", "lsetxattr", "fsetxattr"] {
            for length in [0, 1, 4095] {
                subject.expect(call, &[0, 0, 0, length], Ok(()));
            }
            for length in [4096, 65_000, u32::MAX] {
                subject.expect(call, &[0, 0, 0, length], Err(libc::ENOSPC));
            }
        }
        subject.expect("setxattrat", &[], Err(ENOSYS));
    });
}

#[test]
fn a_process_sets_its_own_limits_alone() {
    each_filter(AllowedSockets::Private, |filter| {
        filter.expect("prlimit64", &[0, 7, 1, 0], Ok(()));
        filter.expect("prlimit64", &[1, 0, 1, 0], Err(EPERM));
        filter.expect("prlimit64", &[4711, 0, 0, 1], Err(EPERM));
    });
}

#[test]
fn huge_pages_cannot_be_asked_for() {
    each_filter(AllowedSockets::Private, |filter| {
        let (private, huge) = (libc::MAP_PRIVATE as u32, libc::MAP_HUGETLB as u32);
        // The size of a huge page lies in bits of its own, and asks for nothing by itself.
        let sized = libc::MAP_HUGE_2MB as u32;
        for (flags, verdict) in [
            (private, Ok(())),
            (private | sized, Ok(())),
            (private | huge, Err(libc::ENOMEM)),
            (private | huge | sized, Err(libc::ENOMEM)),
        ] {
            filter.expect("mmap", &[0, 1 << 21, 3, flags], verdict);
        }
        filter.expect("memfd_create", &[0, libc::MFD_CLOEXEC], Ok(()));
        filter.expect(
            "memfd_create",
            &[0, libc::MFD_CLOEXEC | libc::MFD_HUGETLB],
            Err(libc::ENOMEM),
        );
        filter.expect("shmget", &[0, 1 << 21, 0o1600], Ok(()));
        filter.expect(
            "shmget",
            &[0, 1 << 21, 0o1600 | libc::SHM_HUGETLB as u32],
            Err(libc::ENOMEM),
        );
    });
}

#[test]
fn a_terminal_takes_no_input_from_a_program() {
    each_filter(AllowedSockets::Private, |subject| {
        subject.expect("ioctl", &[0, 0x5412], Err(EPERM));
        subject.expect("ioctl", &[0, 0x541c], Err(EPERM));
        for request in [0x5401, 0x5411, 0x5413, 0x541b, 0x541d] {
            subject.expect("ioctl", &[0x5412, request], Ok(()));
        }
    });
}

#[test]
fn a_personality_can_only_be_read_reset_or_made_predictable() {
    each_filter(AllowedSockets::Private, |subject| {
        for harmless in [0, u32::MAX, 0x0004_0000] {
            subject.expect("personality", &[harmless], Ok(()));
        }
        for other in [8, 0x0002_0000, 0x0040_0000, 0x0044_0000, 0xffff_fffe] {
            subject.expect("personality", &[other], Err(EPERM));
        }
    });
}

#[test]
fn only_sockets_of_common_families_types_and_protocols_are_made() {
    const CLOEXEC: u32 = libc::SOCK_CLOEXEC as u32;
    for sockets in [AllowedSockets::Private, AllowedSockets::Open] {
        each_filter(sockets, |subject| {
            for allowed in [
                [1, 1, 0],
                [1, 2 | CLOEXEC, 0],
                [1, 5, 0],
                [2, 1, 0],
                [2, 1 | CLOEXEC, 6],
                [2, 2, 17],
                [2, 2, 1],
                [2, 1, 262],
                [10, 1, 0],
                [10, 2, 58],
                [16, 3 | CLOEXEC, 0],
                [16, 2, 0],
            ] {
                subject.expect("socket", &allowed, Ok(()));
            }
            for (refused, errno) in [
                ([2, 3, 0], EPERM),
                ([2, 3 | CLOEXEC, 255], EPERM),
                ([2, 10, 0x300], EPERM),
                ([10, 3, 58], EPERM),
                ([2, 5, 132], EPERM),
                ([2, 1, 132], EPROTONOSUPPORT),
                ([2, 2, 115], EPROTONOSUPPORT),
                ([16, 3, 6], EPROTONOSUPPORT),
                ([16, 3, 9], EPROTONOSUPPORT),
            ] {
                subject.expect("socket", &refused, Err(errno));
            }
            for family in
                (0..64).chain([u32::MAX]).filter(|family| ![1, 2, 10, 16].contains(family))
            {
                subject.expect("socket", &[family, 1, 0], Err(EAFNOSUPPORT));
                subject.expect("socketpair", &[family, 1, 0], Err(EAFNOSUPPORT));
            }
            for kind in [1, 2, 5 | CLOEXEC] {
                subject.expect("socketpair", &[1, kind, 0], Ok(()));
                subject.expect("socketpair", &[2, kind, 0], Err(EAFNOSUPPORT));
            }
        });
    }
}

#[test]
fn without_a_network_namespace_only_connected_pairs_are_left() {
    each_filter(AllowedSockets::None, |subject| {
        for family in 0..64 {
            for kind in 0..16 {
                subject.expect("socket", &[family, kind, 0], Err(EPERM));
            }
        }
        subject.expect("socketpair", &[1, 1, 0], Ok(()));
        subject.expect("socketpair", &[1, 5 | libc::SOCK_CLOEXEC as u32, 0], Ok(()));
        // A datagram socket could still send to any name. AF_UNIX treats SOCK_RAW as a datagram.
        subject.expect("socketpair", &[1, 2, 0], Err(EPERM));
        subject.expect("socketpair", &[1, 3, 0], Err(EPERM));
        subject.expect("socketpair", &[2, 1, 0], Err(EAFNOSUPPORT));
    });
}

#[test]
fn the_search_tree_of_a_filter_is_shallow_and_small() {
    each_filter(AllowedSockets::Private, |subject| {
        let deepest = (0..500).map(|number| subject.run(number, &[]).steps).max();
        assert!(deepest <= Some(20), "{deepest:?} instructions at worst on {}", subject.name);
        // The cost of an installation: the kernel runs the filter for each number.
        let total: usize = (0..470).map(|number| subject.run(number, &[]).steps).sum();
        assert!(total < 470 * 10, "{} instructions on average on {}", total / 470, subject.name);
        assert!(
            subject.program.len() <= 200,
            "{} instructions on {}",
            subject.program.len(),
            subject.name
        );
        // read, write, openat and getpid on x86_64; the same calls or their neighbours on aarch64.
        for number in [0, 1, 257, 39, 63, 64, 56, 172] {
            let steps = subject.run(number, &[]).steps;
            assert!(steps <= 18, "{steps} instructions for call {number} on {}", subject.name);
        }
    });
}

#[test]
fn targets_beyond_the_reach_of_a_conditional_jump_are_reached() {
    // A tree over 2000 numbers with alternating verdicts, several times larger than a jump of eight
    // bits.
    fn tree(assembler: &mut Assembler, from: u32, to: u32) -> super::assemble::Label {
        if to - from == 1 {
            return assembler.verdict(Verdict::Errno((from % 1000) as c_int + 1));
        }
        let middle = from.midpoint(to);
        let high = tree(assembler, middle, to);
        let low = tree(assembler, from, middle);
        assembler.branch(Comparison::AtLeast(middle), high, low)
    }
    let mut assembler = Assembler::default();
    let entry = tree(&mut assembler, 0, 2000);
    let entry = assembler.load(0, entry);
    let program = assembler.finish(entry);
    for number in 0..2000 {
        let outcome = interpret(&program, SyscallData { number, ..SyscallData::default() });
        assert_eq!(outcome.verdict, Err((number % 1000) as c_int + 1));
    }
}

#[test]
fn the_bytes_of_a_filter_match_the_kernel_structure() {
    let filter = SeccompFilter::build(FilterProfile { sockets: AllowedSockets::Private });
    let bytes = filter.to_bytes();
    assert_eq!(bytes.len(), size_of_val(filter.program()));
    for (chunk, instruction) in bytes.chunks(8).zip(filter.program()) {
        assert_eq!(u16::from_ne_bytes([chunk[0], chunk[1]]), instruction.code);
        assert_eq!((chunk[2], chunk[3]), (instruction.jt, instruction.jf));
        assert_eq!(u32::from_ne_bytes([chunk[4], chunk[5], chunk[6], chunk[7]]), instruction.k);
    }
}

/// Variable that is set in the process that the next tests start. That process is this test program
/// again, and installs a filter.
const INSIDE_VARIABLE: &str = "RINGFENCE_TEST_INSIDE_FILTER";

/// Runs a test of this module again in a process of its own, which installs the filter in the
/// test's thread.
#[track_caller]
fn behind_the_filter(test: &str, sockets: AllowedSockets, body: impl FnOnce()) {
    if std::env::var_os(INSIDE_VARIABLE).is_some() {
        rustix::thread::set_no_new_privs(true).unwrap();
        SeccompFilter::build(FilterProfile { sockets }).install().unwrap();
        return body();
    }
    let module = module_path!().split_once("::").expect("a module of this crate").1;
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("{module}::{test}"), "--nocapture"])
        .env(INSIDE_VARIABLE, "1")
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{report}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(report.contains("1 passed"), "the test did not run: {report}");
}

#[test]
fn the_kernel_enforces_what_the_interpreter_says() {
    const PER_LINUX32: usize = 8;
    // The control case: without the filter the call succeeds.
    if std::env::var_os(INSIDE_VARIABLE).is_none() {
        assert!(attempt(libc::SYS_personality, [PER_LINUX32, 0, 0, 0]).is_ok());
        assert!(attempt(libc::SYS_personality, [0; 4]).is_ok());
    }
    behind_the_filter(
        "the_kernel_enforces_what_the_interpreter_says",
        AllowedSockets::Private,
        || {
            assert_eq!(attempt(libc::SYS_personality, [PER_LINUX32, 0, 0, 0]), Err(EPERM));
            assert_eq!(
                attempt(libc::SYS_unshare, [libc::CLONE_NEWUSER as usize, 0, 0, 0]),
                Err(EPERM)
            );
            assert_eq!(attempt(libc::SYS_unshare, [libc::CLONE_FS as usize, 0, 0, 0]), Ok(0));
            assert_eq!(attempt(libc::SYS_keyctl, [0, 0, 0, 0]), Err(EPERM));
            assert_eq!(attempt(libc::SYS_io_uring_setup, [0, 0, 0, 0]), Err(EPERM));
            assert_eq!(attempt(libc::SYS_clone3, [0; 4]), Err(ENOSYS));
            assert_eq!(
                attempt(libc::SYS_socket, [libc::AF_ALG as usize, 5, 0, 0]),
                Err(EAFNOSUPPORT)
            );
            assert_eq!(attempt(libc::SYS_socket, [libc::AF_INET as usize, 3, 1, 0]), Err(EPERM));
            assert_eq!(
                attempt(
                    libc::SYS_socket,
                    [libc::AF_UNIX as usize | HIGH_WORD_GARBAGE as usize, 1, 0, 0]
                )
                .map(drop),
                Ok(())
            );
            assert_eq!(attempt(0x4000_0000 | libc::SYS_getpid, [0; 4]), Err(ENOSYS));
            assert_eq!(attempt(1000, [0; 4]), Err(ENOSYS));
        },
    );
}

#[test]
fn threads_processes_and_nested_filters_work_behind_the_filter() {
    behind_the_filter(
        "threads_processes_and_nested_filters_work_behind_the_filter",
        AllowedSockets::None,
        || {
            assert_eq!(std::thread::spawn(|| 6 * 7).join().unwrap(), 42);
            let output =
                Command::new("/bin/sh").args(["-c", "echo $(echo inside)"]).output().unwrap();
            assert_eq!(output.stdout, b"inside\n");
            assert!(std::os::unix::net::UnixStream::pair().is_ok());
            assert!(std::os::unix::net::UnixDatagram::unbound().is_err());
            SeccompFilter::build(FilterProfile { sockets: AllowedSockets::None })
                .install()
                .unwrap();
            assert!(std::net::TcpListener::bind("127.0.0.1:0").is_err());
        },
    );
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_entry_point_of_32_bit_programs_is_closed() {
    use crate::sys::attempt::getpid_of_32_bit;
    behind_the_filter(
        "the_entry_point_of_32_bit_programs_is_closed",
        AllowedSockets::Private,
        || {
            assert_eq!(getpid_of_32_bit().unwrap_err().raw_os_error(), Some(ENOSYS));
        },
    );
}
