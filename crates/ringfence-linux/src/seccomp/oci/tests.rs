use std::collections::BTreeSet;
use std::path::Path;

use libc::{ENOSYS, c_int};
use serde_json::Value;

use super::*;
use crate::seccomp::interpret::{SyscallData, interpret};

const HIGH_WORD_GARBAGE: u64 = 0xdead_beef_0000_0000;

/// Returns the verdict of an engine's filter. Panics if two rules apply, because libseccomp would
/// then choose between them.
#[track_caller]
fn answer(rules: &[&OciSyscallRule], arguments: [u64; 6]) -> Result<(), c_int> {
    let holds = |condition: &ArgumentCondition| {
        assert_eq!(condition.op, MASKED_EQUAL);
        arguments[condition.index] & u64::from(condition.value) == u64::from(condition.value_two)
    };
    let mut applying = rules.iter().filter(|rule| rule.args.iter().all(holds));
    let rule = applying.next();
    assert!(applying.next().is_none(), "two rules apply to ({arguments:x?})");
    match rule.map(|rule| (rule.action, rule.errno_ret)) {
        None => Err(ENOSYS),
        Some((ALLOW, None)) => Ok(()),
        Some((ERRNO, Some(errno))) => Err(errno),
        Some(other) => panic!("no rule of ours says {other:?}"),
    }
}

/// Returns words on both sides of every condition: the constants of the filter, some neighbours,
/// and every single bit.
fn words() -> Vec<u32> {
    let constants = [0x5412, 0x541c, 0x0004_0001, 0x003d_0f00, 0x7e02_0080, u32::MAX];
    let small = [0, 3, 5, 6, 7, 9, 10, 11, 17, 18, 57, 58, 59, 261, 262, 263, 0x8_0001, 0x8_0002];
    let mut words: Vec<u32> =
        constants.into_iter().chain(small).chain((0..32).map(|bit| 1 << bit)).collect();
    words.sort_unstable();
    words.dedup();
    words
}

/// Compares the rules with the filter for every number and every combination of `words` in the
/// checked arguments.
#[track_caller]
fn check(
    architecture: &Architecture,
    profile: FilterProfile,
    rules: &[OciSyscallRule],
    compared: impl Fn(&Syscall) -> bool,
) {
    let program = compile(architecture, profile);
    let words = words();
    for number in 0..1024 {
        let mut known = families().iter().flat_map(|family| family.syscalls).chain(ALLOWED);
        let syscall = known.find(|syscall| architecture.number(syscall) == Some(number));
        if syscall.is_some_and(|syscall| !compared(syscall)) {
            continue;
        }
        let name = syscall.map_or("", |syscall| syscall.name);
        let rules: Vec<&OciSyscallRule> =
            rules.iter().filter(|rule| rule.names.contains(&name)).collect();
        let checks = |index| {
            rules.iter().flat_map(|rule| &rule.args).any(|condition| condition.index == index)
        };
        let choices = |index| if checks(index) { words.as_slice() } else { &[0x5a5a_5a5a] };
        for &first in choices(0) {
            let rules = narrowed(&rules, 0, first);
            for &second in choices(1) {
                let rules = narrowed(&rules, 1, second);
                for &third in choices(2) {
                    for garbage in [0, HIGH_WORD_GARBAGE] {
                        let word = |word: u32| u64::from(word) | garbage;
                        let arguments = [word(first), word(second), word(third), 0, 0, 0];
                        let call =
                            SyscallData { number, architecture: architecture.audit, arguments };
                        let expected = interpret(&program, call).verdict;
                        assert_eq!(
                            answer(&rules, arguments),
                            expected,
                            "{name} ({number}) of {arguments:x?}"
                        );
                    }
                }
            }
        }
    }
}

/// Returns the rules that one argument does not exclude. Without this, the test would spend its
/// time on rules that cannot apply.
fn narrowed<'a>(rules: &[&'a OciSyscallRule], index: usize, word: u32) -> Vec<&'a OciSyscallRule> {
    let possible = |condition: &ArgumentCondition| {
        condition.index != index || word & condition.value == condition.value_two
    };
    rules.iter().copied().filter(|rule| rule.args.iter().all(possible)).collect()
}

#[test]
fn no_call_has_two_names_and_no_name_stands_for_two_calls() {
    let known = || families().iter().flat_map(|family| family.syscalls).chain(ALLOWED);
    assert_eq!(known().map(|syscall| syscall.name).collect::<BTreeSet<_>>().len(), known().count());
    for architecture in [Architecture::X86_64, Architecture::AARCH64] {
        let numbers = || known().filter_map(|syscall| architecture.number(syscall));
        assert_eq!(numbers().collect::<BTreeSet<_>>().len(), numbers().count());
    }
}

#[test]
fn every_call_gets_the_answer_of_the_filter() {
    for sockets in [AllowedSockets::Private, AllowedSockets::None] {
        for architecture in [Architecture::X86_64, Architecture::AARCH64] {
            let rules =
                rules(std::slice::from_ref(&architecture), FilterProfile { sockets }, |_| None);
            check(&architecture, FilterProfile { sockets }, &rules, |_| true);
        }
    }
}

#[test]
fn the_nesting_profile_adds_only_calls_that_build_sandboxes() {
    let profile = FilterProfile { sockets: AllowedSockets::Open };
    let architectures = [Architecture::X86_64, Architecture::AARCH64];
    let rules = rules(&architectures, profile, nesting_exception);
    for architecture in &architectures {
        check(architecture, profile, &rules, |syscall| nesting_exception(syscall).is_none());
    }
    for name in BUILDING_CALLS {
        let of_call: Vec<&OciSyscallRule> =
            rules.iter().filter(|rule| rule.names.contains(&name)).collect();
        assert_eq!(answer(&of_call, [u64::MAX; 6]), Ok(()), "{name}");
        let refused = families()
            .iter()
            .flat_map(|family| family.syscalls)
            .any(|syscall| syscall.name == name);
        assert!(refused, "{name} would be allowed without being named");
    }
}

#[test]
fn an_oci_profile_refuses_calls_that_it_does_not_name() {
    let text = oci_profile(FilterProfile { sockets: AllowedSockets::Private });
    let profile: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    assert_eq!(profile["defaultErrnoRet"], ENOSYS);
    assert_eq!(
        profile["architectures"].as_array().map(Vec::len),
        Some(1),
        "a machine's other entry points are closed"
    );
    let rules = profile["syscalls"].as_array().unwrap();
    let unconditional = |name: &str| {
        let mut rules = rules
            .iter()
            .filter(|rule| rule["names"].as_array().unwrap().iter().any(|known| known == name));
        let rule = rules.next().unwrap_or_else(|| panic!("{name} has a rule"));
        assert!(rules.next().is_none() && rule.get("args").is_none(), "{name} has one answer");
        (rule["action"].as_str().unwrap().to_owned(), rule["errnoRet"].as_i64())
    };
    assert_eq!(unconditional("execve"), (ALLOW.to_owned(), None));
    assert_eq!(unconditional("io_uring_setup"), (ERRNO.to_owned(), Some(libc::EPERM.into())));
    // The rule is stated although it is the default, because an engine whose only default is EPERM
    // would otherwise prevent every libc from starting threads.
    assert_eq!(unconditional("clone3"), (ERRNO.to_owned(), Some(ENOSYS.into())));
    // The kernel accepts filters of up to 4096 instructions, and libseccomp makes a few of each
    // rule.
    assert!(rules.len() < 350, "{} rules", rules.len());
}

#[test]
fn the_stored_profile_of_the_dev_container_is_the_one_the_table_gives() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.devcontainer/seccomp.json");
    let generated = nesting_profile();
    if std::env::var_os("RINGFENCE_BLESS").is_some_and(|bless| bless == "1") {
        fs_err::create_dir_all(path.parent().unwrap()).unwrap();
        fs_err::write(&path, &generated).unwrap();
    }
    let stored = fs_err::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == generated,
        "{} is out of date: run `cargo xtask seccomp-profile`",
        path.display()
    );
}
