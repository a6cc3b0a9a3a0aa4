//! The filter in the format of container engines: an OCI seccomp profile, which runc and crun
//! compile with libseccomp.
//!
//! In this format, rules have no order and no "otherwise" branch. Most comparisons use all 64 bits
//! of an argument of which the kernel reads 32, so garbage in the other bits would pass. Therefore
//! each call that is checked becomes one rule for each of its [`cases`], which cover every call, do
//! not overlap, and compare by mask. The engines skip a name that libseccomp does not know yet;
//! such a call then fails with the default, `ENOSYS`.
//!
//! Other entry points are closed as well, but less gently: libseccomp kills a thread that makes a
//! 32-bit call, and a profile cannot change that.

use serde::Serialize;
use serde_json::json;

use super::assemble::Verdict;
use super::cases::{VerdictCase, WordPattern, cases};
use super::compile::compile;
use super::names::ALLOWED;
use super::{AllowedSockets, Architecture, FilterProfile, Syscall, families};

/// Returns the filter of a profile as an OCI seccomp profile in JSON, for the architecture that
/// this program was built for.
///
/// Docker's API takes the text itself; podman's takes the path of a file that holds the text.
pub fn oci_profile(profile: FilterProfile) -> String {
    let architectures = [Architecture::NATIVE];
    let names = architectures.each_ref().map(|architecture| architecture.oci);
    document("architectures", &names, &rules(&architectures, profile, |_| None))
}

/// Returns the OCI seccomp profile for a container in which an unprivileged user, without
/// capabilities, runs ringfence. The profile covers every architecture.
///
/// The profile is the filter of a sandbox without the rules that would prevent building a sandbox
/// inside. Without capabilities, the calls that the profile adds work only on namespaces that the
/// container's user created.
pub fn nesting_profile() -> String {
    let architectures = [Architecture::X86_64, Architecture::AARCH64];
    // Engines pick the entry of the machine's own architecture. No entry lists sub-architectures,
    // so programs of other architectures cannot run.
    let map =
        architectures.each_ref().map(|architecture| json!({ "architecture": architecture.oci }));
    let profile = FilterProfile { sockets: AllowedSockets::Open };
    document("archMap", &map, &rules(&architectures, profile, nesting_exception))
}

/// Calls with which the native backend and bubblewrap build a sandbox.
const BUILDING_CALLS: [&str; 14] = [
    "clone",
    "clone3",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "mount",
    "mount_setattr",
    "move_mount",
    "open_tree",
    "pivot_root",
    "sethostname",
    "umount2",
    "unshare",
];

fn nesting_exception(syscall: &Syscall) -> Option<Verdict> {
    match syscall.name {
        // The native backend takes ENOSYS for a kernel without keyrings, in which there is no
        // keyring to leave.
        "keyctl" => Some(Verdict::Errno(libc::ENOSYS)),
        name => BUILDING_CALLS.contains(&name).then_some(Verdict::Allow),
    }
}

const ALLOW: &str = "SCMP_ACT_ALLOW";
const ERRNO: &str = "SCMP_ACT_ERRNO";
const MASKED_EQUAL: &str = "SCMP_CMP_MASKED_EQ";

/// Writes `linux.seccomp` of the OCI runtime specification, one rule per line.
///
/// Docker 20.10 ignores the default errno, and runc then returns `EPERM`. For numbers above the
/// last one that has a rule, runc returns `ENOSYS` by itself.
fn document(key: &str, architectures: &impl Serialize, rules: &[OciSyscallRule]) -> String {
    let (architectures, errno) = (text(architectures), libc::ENOSYS);
    let rules = rules.iter().map(text).collect::<Vec<_>>().join(",\n    ");
    format!(
        "{{\n  \"defaultAction\": \"{ERRNO}\",\n  \"defaultErrnoRet\": {errno},\n  \"{key}\": \
         {architectures},\n  \"syscalls\": [\n    {rules}\n  ]\n}}\n"
    )
}

fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("it has only string keys")
}

/// A verdict for system calls with certain arguments.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OciSyscallRule {
    names: Vec<&'static str>,
    action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    errno_ret: Option<i32>,
    /// Conditions that must all hold, at most one per argument: of two conditions on the same
    /// argument, runc would require only one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    args: Vec<ArgumentCondition>,
}

/// A condition that holds if the bits of an argument under the mask `value` equal `value_two`.
#[derive(Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
struct ArgumentCondition {
    index: usize,
    value: u32,
    value_two: u32,
    op: &'static str,
}

/// Lists the rules for every known call of the architectures. Calls with the same verdict and
/// conditions share a rule.
fn rules(
    architectures: &[Architecture],
    profile: FilterProfile,
    exception: impl Fn(&Syscall) -> Option<Verdict>,
) -> Vec<OciSyscallRule> {
    let programs: Vec<_> =
        architectures.iter().map(|architecture| compile(architecture, profile)).collect();
    let mut syscalls: Vec<&Syscall> =
        families().iter().flat_map(|family| family.syscalls).chain(ALLOWED).collect();
    syscalls.sort_by_key(|syscall| syscall.name);

    let mut rules: Vec<OciSyscallRule> = Vec::new();
    for syscall in syscalls {
        // The arguments of a call are checked alike on every architecture that has it.
        let mut numbers =
            architectures.iter().zip(&programs).filter_map(|(architecture, program)| {
                Some((architecture.audit, program, architecture.number(syscall)?))
            });
        let Some((architecture, program, number)) = numbers.next() else { continue };
        let cases = match exception(syscall) {
            Some(verdict) => vec![VerdictCase::always(verdict)],
            None => cases(program, architecture, number),
        };
        for case in cases {
            let rule = OciSyscallRule::from_case(syscall.name, &case);
            match rules.iter_mut().find(|known| known.is_alike(&rule)) {
                Some(known) => known.names.push(syscall.name),
                None => rules.push(rule),
            }
        }
    }
    rules
}

impl OciSyscallRule {
    fn from_case(name: &'static str, case: &VerdictCase) -> Self {
        let (action, errno_ret) = match case.verdict {
            Verdict::Allow => (ALLOW, None),
            Verdict::Errno(errno) => (ERRNO, Some(errno)),
        };
        let checked = case.arguments.iter().enumerate().filter(|(_, pattern)| pattern.mask != 0);
        let condition = |(index, pattern): (usize, &WordPattern)| ArgumentCondition {
            index,
            value: pattern.mask,
            value_two: pattern.value,
            op: MASKED_EQUAL,
        };
        Self { names: vec![name], action, errno_ret, args: checked.map(condition).collect() }
    }

    fn is_alike(&self, other: &Self) -> bool {
        (self.action, self.errno_ret, &self.args) == (other.action, other.errno_ret, &other.args)
    }
}

#[cfg(test)]
mod tests;
