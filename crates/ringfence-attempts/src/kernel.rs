//! Attempts on parts of the kernel that programs do not need: system calls, entry points, socket
//! families, files of /proc.

use std::io;

use ringfence_core::Clause::Kernel;
use ringfence_linux::seccomp::{FamilyRule, families};
use ringfence_linux::sys::attempt::{self, ArgumentWidth};
use rustix::net::{AddressFamily, Protocol, SocketType};
use rustix::process::Resource;

use super::{Attempt, denied, impossible, no_result, refused};

/// The errors with which the filter refuses a call.
const EPERM: &[i32] = &[libc::EPERM];
const ENOSYS: &[i32] = &[libc::ENOSYS];

pub(super) const ATTEMPTS: &[Attempt] = &[
    refused("call-io-uring", Kernel, "queue work for the kernel by io_uring", EPERM, |_| {
        try_family("io_uring")
    }),
    refused(
        "call-userfaultfd",
        Kernel,
        "stop the kernel in the middle of a copy by userfaultfd",
        EPERM,
        |_| try_family("userfaultfd"),
    ),
    refused("call-bpf", Kernel, "load a program into the kernel by bpf", EPERM, |_| {
        try_family("bpf")
    }),
    refused("call-perf", Kernel, "watch the processor by perf_event_open", EPERM, |_| {
        try_family("perf")
    }),
    refused("call-kexec", Kernel, "call kexec_load or reboot", EPERM, |_| try_family("boot")),
    refused("call-modules", Kernel, "load or unload a kernel module", EPERM, |_| {
        try_family("modules")
    }),
    refused("call-keyring", Kernel, "call add_key, request_key or keyctl", EPERM, |_| {
        try_family("keyring")
    }),
    refused(
        "call-mount",
        Kernel,
        "call mount, pivot_root, chroot, or a newer call of their kind",
        EPERM,
        |_| try_family("mount"),
    ),
    refused("call-setns", Kernel, "enter a namespace of somebody else by setns", EPERM, |_| {
        try_family("setns")
    }),
    refused(
        "call-setxattrat",
        Kernel,
        "set an attribute by setxattrat, whose length a filter cannot see",
        ENOSYS,
        |_| try_family("setxattrat"),
    ),
    refused(
        "call-clone3",
        Kernel,
        "make a process by clone3, whose flags a filter cannot see",
        ENOSYS,
        |_| try_family("clone3"),
    ),
    refused(
        "call-handles",
        Kernel,
        "open a file by its handle, or take a descriptor of a process",
        EPERM,
        |_| try_family("descriptors"),
    ),
    refused("call-fanotify", Kernel, "watch a whole file system", EPERM, |_| {
        try_family("fanotify")
    }),
    refused("call-pages", Kernel, "move pages of memory between nodes", EPERM, |_| {
        try_family("pages")
    }),
    refused("call-storage", Kernel, "call swapon, quotactl or acct", EPERM, |_| {
        try_family("storage")
    }),
    refused("call-clock", Kernel, "set the clock", EPERM, |_| try_family("clock")),
    refused("call-host", Kernel, "set the host's name, or read its log", EPERM, |_| {
        try_family("host")
    }),
    refused(
        "call-hardware",
        Kernel,
        "reach ports or descriptor tables of the processor",
        EPERM,
        |_| try_family("hardware"),
    ),
    refused("call-obsolete", Kernel, "call what no living program calls", EPERM, |_| {
        try_family("obsolete")
    }),
    denied("change-personality", Kernel, "make readable memory executable", |_| {
        attempt::make_data_executable().map(|()| "it is executable".to_owned())
    }),
    refused(
        "enter-32-bit",
        Kernel,
        "make a system call by the entry point of 32-bit programs",
        ENOSYS,
        |_| attempt::getpid_of_32_bit().map(|_| "it was answered".to_owned()),
    ),
    refused(
        "enter-x32",
        Kernel,
        "make a system call by the entry point of x32 programs",
        ENOSYS,
        |_| attempt::getpid_of_x32().map(|_| "it was answered".to_owned()),
    ),
    refused("unshare-user", Kernel, "enter a new user namespace by unshare", EPERM, |_| {
        attempt::unshare_user(ArgumentWidth::Plain).map(|()| "it is in one".to_owned())
    }),
    refused(
        "unshare-user-wide",
        Kernel,
        "enter one by unshare with a bit that a filter may trip over",
        EPERM,
        |_| attempt::unshare_user(ArgumentWidth::Widened).map(|()| "it is in one".to_owned()),
    ),
    refused("clone-user", Kernel, "make a new user namespace by clone", EPERM, |_| {
        attempt::clone_user().map(|()| "it was made".to_owned())
    }),
    refused("clone3-user", Kernel, "make a new user namespace by clone3", ENOSYS, |_| {
        attempt::clone3_user().map(|()| "it was made".to_owned())
    }),
    denied("socket-raw", Kernel, "make a raw socket", |_| {
        try_socket(libc::AF_INET, SocketType::RAW, Some(rustix::net::ipproto::ICMP))
    }),
    denied("socket-packet", Kernel, "make a packet socket", |_| {
        try_socket(libc::AF_PACKET, SocketType::DGRAM, None)
    }),
    denied("socket-netlink", Kernel, "make a netlink socket that is not for routes", |_| {
        attempt::open_xfrm_socket(ArgumentWidth::Plain).map(|()| "it was made".to_owned())
    }),
    denied(
        "socket-netlink-wide",
        Kernel,
        "make such a socket with a bit that a filter may trip over",
        |_| attempt::open_xfrm_socket(ArgumentWidth::Widened).map(|()| "it was made".to_owned()),
    ),
    denied("socket-vsock", Kernel, "make a socket to the hypervisor", |_| {
        try_socket(libc::AF_VSOCK, SocketType::STREAM, None)
    }),
    denied("socket-crypto", Kernel, "make a socket of the kernel's cryptography", |_| {
        try_socket(libc::AF_ALG, SocketType::SEQPACKET, None)
    }),
    denied("write-core-pattern", Kernel, "open the pattern of core dumps for writing", |_| {
        open_for_writing("/proc/sys/kernel/core_pattern")
    }),
    denied(
        "write-kernel-setting",
        Kernel,
        "open a setting of the kernel's memory for writing",
        |_| open_for_writing("/proc/sys/vm/overcommit_memory"),
    ),
    denied("write-trigger", Kernel, "open the trigger of the magic SysRq key for writing", |_| {
        open_for_writing("/proc/sysrq-trigger")
    }),
    denied("write-device-settings", Kernel, "open a setting in /sys for writing", |_| {
        open_for_writing("/sys/power/state")
    }),
    denied("read-kernel-core", Kernel, "open the kernel's memory in /proc/kcore", |_| {
        fs_err::File::open("/proc/kcore").map(|_| "it was opened".to_owned())
    }),
    denied(
        "dump-core",
        Kernel,
        "have the host's handler of core dumps run, outside and as its root",
        |_| match rustix::process::getrlimit(Resource::Core).maximum {
            Some(1) => Err(no_result("the limit on core dumps is 1, which keeps it from running")),
            _ => Ok("no limit on core dumps keeps it from running".to_owned()),
        },
    ),
];

/// Makes every call of a family, and returns the first answer that is not the filter's.
fn try_family(name: &str) -> io::Result<String> {
    let family = families()
        .iter()
        .find(|family| family.name == name)
        .ok_or_else(|| impossible("no such family"))?;
    let FamilyRule::Refuse(refusal) = family.rule else {
        return Err(impossible("the family is not refused outright"));
    };
    let (mut is_refused, mut absent) = (false, None);
    for syscall in family.syscalls {
        match attempt::with_wrong_arguments(syscall, family.rule) {
            Ok(_) => return Ok(format!("{} was carried out", syscall.name)),
            Err(error) if error.raw_os_error() == Some(refusal) => is_refused = true,
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => absent = Some(error),
            Err(error) => return Err(error),
        }
    }
    // A filter that another program compiled may answer ENOSYS for the newest calls of a family. If
    // no call is refused and one is absent, the kernel may lack the whole family, so that error is
    // returned.
    Err(absent.filter(|_| !is_refused).unwrap_or_else(|| io::Error::from_raw_os_error(refusal)))
}

fn try_socket(family: i32, kind: SocketType, protocol: Option<Protocol>) -> io::Result<String> {
    rustix::net::socket(AddressFamily::from_raw(family as u16), kind, protocol)?;
    Ok("it was made".to_owned())
}

/// Opens a file of the kernel for writing without writing to it.
fn open_for_writing(path: &str) -> io::Result<String> {
    fs_err::OpenOptions::new().write(true).open(path).map(|_| "it was opened".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_that_is_refused_outright_is_tried() {
        let outright =
            families().iter().filter(|family| matches!(family.rule, FamilyRule::Refuse(_)));
        let tried = ATTEMPTS.iter().filter(|attempt| attempt.name.starts_with("call-"));
        assert_eq!(outright.count(), tried.count());
    }
}
