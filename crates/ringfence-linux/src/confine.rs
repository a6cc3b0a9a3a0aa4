//! Dropping privileges: identity, resources, Landlock, capabilities, seccomp.
//!
//! The order matters, because each step needs privileges that a later step removes.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_capabilities_secure_bits,
    set_no_new_privs,
};

use crate::init::{SetupError, StepContext};
use crate::landlock::{self, Rules};
use crate::seccomp::{AllowedSockets, FilterProfile, SeccompFilter};
use crate::shares;
use crate::sys::process::join_new_session_keyring;
use crate::view::View;

/// Maps a user and a group to themselves in the new user namespace, user_namespaces(7).
///
/// Files that are created inside therefore belong to the caller on the host.
pub(crate) fn map_identity(user: u32, group: u32) -> io::Result<()> {
    map([user, group], [user, group])
}

/// Maps a user and a group of the new user namespace to root and root's group in the namespace
/// around it.
pub(crate) fn map_root_to(user: u32, group: u32) -> io::Result<()> {
    map([user, group], [0, 0])
}

fn map([user, group]: [u32; 2], [outer_user, outer_group]: [u32; 2]) -> io::Result<()> {
    // The kernel lets an unprivileged process write `gid_map` only after it has denied
    // setgroups(2). Otherwise the process could drop a group and so get access to files that deny
    // access to that group.
    fs_err::write("/proc/self/setgroups", "deny")?;
    fs_err::write("/proc/self/uid_map", format!("{user} {outer_user} 1"))?;
    fs_err::write("/proc/self/gid_map", format!("{group} {outer_group} 1"))
}

/// Overwrites the command line and the environment that this process was forked with.
///
/// Both belong to the launcher, and processes inside can read `/proc/1/cmdline`.
pub(crate) fn forget_launcher() -> io::Result<()> {
    // Fields 48 to 51 hold their start and end addresses, proc_pid_stat(5). Parsing starts after
    // the last parenthesis, because the name in field 2 may hold spaces.
    let stat = fs_err::read_to_string("/proc/self/stat")?;
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = |number: usize| {
        after_name.split_ascii_whitespace().nth(number - 3).and_then(|text| text.parse().ok())
    };
    let memory = fs_err::OpenOptions::new().write(true).open("/proc/self/mem")?;
    for (start, end) in [(48, 49), (50, 51)] {
        let (Some(start), Some(end)) = (field(start), field(end)) else { continue };
        let nothing = vec![0; usize::try_from(u64::saturating_sub(end, start)).unwrap_or(0)];
        memory.file().write_all_at(&nothing, start)?;
    }
    Ok(())
}

/// Confines a first process whose namespaces and root exist, and every process that it will start.
pub(crate) fn confine_in_namespaces(
    view: &View,
    landlock_abi: u32,
    passed: &[(i32, OwnedFd)],
) -> Result<(), SetupError> {
    let rules = Rules::in_own_root(landlock_abi, view.writable().cloned());
    give_up_resources()?;
    shares::limit_queues().step("limit signals and message queues")?;
    set_no_new_privs(true).step("forbid new privileges")?;
    if landlock_abi > 0 {
        landlock::restrict(&rules, passed).step("restrict the process with Landlock")?;
    }
    drop_capabilities()?;
    // Our memory is a copy of the launcher's, including its environment, so no process inside may
    // read it.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .step("close the process to its descendants")?;
    install_filter(AllowedSockets::Private)
}

/// Confines a command that sees the host's own tree.
pub(crate) fn confine_in_place(
    rules: &Rules,
    sockets: AllowedSockets,
    passed: &[(i32, OwnedFd)],
) -> Result<(), SetupError> {
    give_up_resources()?;
    set_no_new_privs(true).step("forbid new privileges")?;
    landlock::restrict(rules, passed).step("restrict the process with Landlock")?;
    drop_capabilities()?;
    install_filter(sockets)
}

/// Forbids core dumps.
///
/// The limit is 1 byte, because a program that the host runs for core dumps (outside, as root)
/// ignores a limit of 0; only a limit of 1 prevents it from running (fs/coredump.c).
pub(crate) fn forbid_core_dumps() -> Result<(), SetupError> {
    let limit =
        |bytes| setrlimit(Resource::Core, Rlimit { current: Some(bytes), maximum: Some(bytes) });
    match limit(1) {
        // The caller's own limit is 0, and an unprivileged process cannot raise it.
        Err(rustix::io::Errno::PERM) => limit(0).step("forbid core dumps"),
        limited => limited.step("forbid core dumps"),
    }
}

/// Forbids core dumps and joins a new, empty session keyring.
fn give_up_resources() -> Result<(), SetupError> {
    forbid_core_dumps()?;
    match join_new_session_keyring() {
        // A kernel without keyrings has no keys to protect.
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        joined => joined.step("leave the session keyring"),
    }
}

/// Drops every capability from every set, capabilities(7), and locks the secure bits that could
/// restore one.
pub(crate) fn drop_capabilities() -> Result<(), SetupError> {
    clear_ambient_capability_set().step("clear the ambient capabilities")?;
    for number in 0..64u32 {
        let Some(capability) = CapabilitySet::from_bits(1 << number) else { break };
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            Err(rustix::io::Errno::INVAL) => break, // beyond the kernel's last capability
            // Without a user namespace, an unprivileged process may not change the set. The set
            // then grants nothing, because `no_new_privs` is on.
            Err(rustix::io::Errno::PERM) => break,
            Err(error) => return Err(error).step("shrink the capability bounding set"),
        }
    }
    let bits = CapabilitiesSecureBits::NO_ROOT
        | CapabilitiesSecureBits::NO_ROOT_LOCKED
        | CapabilitiesSecureBits::NO_SETUID_FIXUP
        | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
        | CapabilitiesSecureBits::KEEP_CAPS_LOCKED
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
    match set_capabilities_secure_bits(bits) {
        // As above: without CAP_SETPCAP there is nothing to lock.
        Ok(()) | Err(rustix::io::Errno::PERM) => {}
        Err(error) => return Err(error).step("lock the secure bits"),
    }
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none).step("drop the capabilities")
}

pub(crate) fn install_filter(sockets: AllowedSockets) -> Result<(), SetupError> {
    SeccompFilter::build(FilterProfile { sockets }).install().step("install the seccomp filter")
}
