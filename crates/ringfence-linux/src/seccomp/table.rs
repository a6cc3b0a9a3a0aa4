//! The system calls that the filter refuses, family by family, with reasons.
//!
//! The table holds the numbers of both architectures, so that each filter can be built and tested
//! on either. A test compares the numbers with libc's. Reviewed against Linux 6.18.

use libc::c_int;

/// A group of system calls that the filter treats alike, for one reason.
#[derive(Debug, Clone, Copy)]
pub struct SyscallFamily {
    /// Short name for documents and reports.
    pub name: &'static str,
    /// Reason for which no program in a sandbox may use the family, in one line.
    pub reason: &'static str,
    /// System calls of the family.
    pub syscalls: &'static [Syscall],
    /// Rule that the filter applies to these calls.
    pub rule: FamilyRule,
}

/// A system call and its number on each architecture that has it.
#[derive(Debug, Clone, Copy)]
pub struct Syscall {
    /// Name of the call in the kernel.
    pub name: &'static str,
    pub(super) x86_64: Option<u32>,
    pub(super) aarch64: Option<u32>,
}

impl Syscall {
    /// Returns the number of the call on the architecture that this program was built for.
    pub fn number(&self) -> Option<u32> {
        super::Architecture::NATIVE.number(self)
    }
}

/// The action of the filter on the calls of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FamilyRule {
    /// Every call fails with this errno.
    Refuse(c_int),
    /// `personality` may be read, reset, and told not to randomise addresses.
    Personality,
    /// `unshare` may not create a namespace.
    Unshare,
    /// `clone` may not create a namespace.
    Clone,
    /// `ioctl` may not insert input into a terminal.
    Terminal,
    /// `socket` creates sockets of the families that the profile allows.
    Socket,
    /// `socketpair` creates pairs of Unix sockets.
    SocketPair,
    /// `setxattr` and similar calls set values that are no longer than common file systems allow.
    AttributeSize,
    /// The first argument is 0, which stands for the calling process.
    OwnProcess,
    /// The argument of this index may not ask for huge pages with this flag.
    HugePages {
        /// The index of the argument with the flags, from 0.
        argument: u32,
        /// The bit that asks for huge pages.
        flag: u32,
    },
}

pub(super) const fn both(name: &'static str, x86_64: u32, aarch64: u32) -> Syscall {
    Syscall { name, x86_64: Some(x86_64), aarch64: Some(aarch64) }
}

/// Returns a call that is newer than the shared numbering (Linux 5.1). Such calls have one number
/// on all architectures.
pub(super) const fn shared(name: &'static str, number: u32) -> Syscall {
    both(name, number, number)
}

pub(super) const fn x86(name: &'static str, number: u32) -> Syscall {
    Syscall { name, x86_64: Some(number), aarch64: None }
}

/// Returns every family that the filter refuses or checks. All other known calls are allowed.
pub fn families() -> &'static [SyscallFamily] {
    FAMILIES
}

const EPERM: FamilyRule = FamilyRule::Refuse(libc::EPERM);

static FAMILIES: &[SyscallFamily] = &[
    SyscallFamily {
        name: "io_uring",
        reason: "its requests pass no seccomp filter, and it is a frequent source of kernel \
            exploits",
        syscalls: &[
            shared("io_uring_setup", 425),
            shared("io_uring_enter", 426),
            shared("io_uring_register", 427),
        ],
        rule: EPERM,
    },
    SyscallFamily {
        name: "userfaultfd",
        reason: "stops the kernel in the middle of a copy, which turns races into reliable \
            exploits",
        syscalls: &[both("userfaultfd", 323, 282)],
        rule: EPERM,
    },
    SyscallFamily {
        name: "bpf",
        reason: "loads programs into the kernel",
        syscalls: &[both("bpf", 321, 280)],
        rule: EPERM,
    },
    SyscallFamily {
        name: "perf",
        reason: "observes other processes and the kernel",
        syscalls: &[both("perf_event_open", 298, 241)],
        rule: EPERM,
    },
    SyscallFamily {
        name: "boot",
        reason: "replaces or stops the running kernel",
        syscalls: &[
            both("kexec_load", 246, 104),
            both("kexec_file_load", 320, 294),
            both("reboot", 169, 142),
        ],
        rule: EPERM,
    },
    SyscallFamily {
        name: "modules",
        reason: "loads and unloads kernel code",
        syscalls: &[
            both("init_module", 175, 105),
            both("finit_module", 313, 273),
            both("delete_module", 176, 106),
            x86("create_module", 174),
            x86("get_kernel_syms", 177),
            x86("query_module", 178),
        ],
        rule: EPERM,
    },
    SyscallFamily {
        name: "keyring",
        reason: "keyrings belong to the user, not to a namespace: the host's keys would be in \
            reach",
        syscalls: &[
            both("add_key", 248, 217),
            both("request_key", 249, 218),
            both("keyctl", 250, 219),
        ],
        rule: EPERM,
    },
    SyscallFamily {
        name: "mount",
        reason: "changes the view of the filesystem that the policy fixed",
        syscalls: &[
            both("mount", 165, 40),
            both("umount2", 166, 39),
            both("pivot_root", 155, 41),
            both("chroot", 161, 51),
            shared("open_tree", 428),
            shared("move_mount", 429),
            shared("fsopen", 430),
            shared("fsconfig", 431),
            shared("fsmount", 432),
            shared("fspick", 433),
            shared("mount_setattr", 442),
            shared("open_tree_attr", 467),
        ],
        rule: EPERM,
    },
    SyscallFamily {
        name: "setns",
        reason: "enters a namespace of somebody else",
        syscalls: &[both("setns", 308, 268)],
        rule: EPERM,
    },
    SyscallFamily {
        name: "unshare",
        reason: "a new user namespace gives back the capabilities that reach most kernel bugs",
        syscalls: &[both("unshare", 272, 97)],
        rule: FamilyRule::Unshare,
    },
    SyscallFamily {
        name: "clone",
        reason: "a new user namespace gives back the capabilities that reach most kernel bugs",
        syscalls: &[both("clone", 56, 220)],
        rule: FamilyRule::Clone,
    },
    SyscallFamily {
        name: "clone3",
        reason: "its flags lie behind a pointer, out of a filter's sight; on ENOSYS a libc falls \
            back to clone",
        syscalls: &[shared("clone3", 435)],
        rule: FamilyRule::Refuse(libc::ENOSYS),
    },
    SyscallFamily {
        name: "descriptors",
        reason: "takes files by handle or out of another process, past the view of the filesystem",
        syscalls: &[both("open_by_handle_at", 304, 265), shared("pidfd_getfd", 438)],
        rule: EPERM,
    },
    SyscallFamily {
        name: "fanotify",
        reason: "watches whole filesystems, beyond the part that is visible",
        syscalls: &[both("fanotify_init", 300, 262)],
        rule: EPERM,
    },
    SyscallFamily {
        name: "pages",
        reason: "moves memory between nodes, of other processes too; exploits use it to shape the \
            heap",
        syscalls: &[both("move_pages", 279, 239), both("migrate_pages", 256, 238)],
        rule: EPERM,
    },
    SyscallFamily {
        name: "storage",
        reason: "swap, quota and accounting belong to the host's administrator",
        syscalls: &[
            both("swapon", 167, 224),
            both("swapoff", 168, 225),
            both("quotactl", 179, 60),
            shared("quotactl_fd", 443),
            both("acct", 163, 89),
        ],
        rule: EPERM,
    },
    SyscallFamily {
        // adjtimex and clock_adjtime can also only read, but a flag behind a pointer decides that.
        // The calls would show the state of the host's time daemon, which no program in a sandbox
        // needs.
        name: "clock",
        reason: "sets the host's clock",
        syscalls: &[
            both("settimeofday", 164, 170),
            both("clock_settime", 227, 112),
            both("clock_adjtime", 305, 266),
            both("adjtimex", 159, 171),
        ],
        rule: EPERM,
    },
    SyscallFamily {
        name: "host",
        reason: "names, log and terminals of the host",
        syscalls: &[
            both("sethostname", 170, 161),
            both("setdomainname", 171, 162),
            both("syslog", 103, 116),
            both("vhangup", 153, 58),
        ],
        rule: EPERM,
    },
    SyscallFamily {
        name: "hardware",
        reason: "ports and descriptor tables of the processor",
        syscalls: &[x86("ioperm", 173), x86("iopl", 172), x86("modify_ldt", 154)],
        rule: EPERM,
    },
    SyscallFamily {
        name: "obsolete",
        reason: "no living program calls them, and old code is the least tested",
        syscalls: &[
            both("nfsservctl", 180, 42),
            both("lookup_dcookie", 212, 18),
            x86("uselib", 134),
            x86("ustat", 136),
            x86("sysfs", 139),
            x86("_sysctl", 156),
        ],
        rule: EPERM,
    },
    SyscallFamily {
        name: "personality",
        reason: "other execution domains weaken address randomisation and reach rarely used kernel \
            code",
        syscalls: &[both("personality", 135, 92)],
        rule: FamilyRule::Personality,
    },
    SyscallFamily {
        name: "terminal",
        reason: "TIOCSTI and TIOCLINUX type into a terminal that the host's shell reads afterwards",
        syscalls: &[both("ioctl", 16, 29)],
        rule: FamilyRule::Terminal,
    },
    SyscallFamily {
        name: "socket",
        reason: "only Unix, TCP, UDP and route sockets: the other families are the kernel's least \
            reviewed code",
        syscalls: &[both("socket", 41, 198)],
        rule: FamilyRule::Socket,
    },
    SyscallFamily {
        name: "socketpair",
        reason: "only pairs of Unix sockets: other families are out of reach by socket(2) too",
        syscalls: &[both("socketpair", 53, 199)],
        rule: FamilyRule::SocketPair,
    },
    SyscallFamily {
        // With an access control list of 64 KiB each, two inodes would use as much memory as a file
        // system in memory of 128 KiB. No file system in memory counts these lists.
        name: "attributes",
        reason: "long access control lists take memory that no limit counts; ext4 takes no longer \
            ones, either",
        syscalls: &[both("setxattr", 188, 5), both("lsetxattr", 189, 6), both("fsetxattr", 190, 7)],
        rule: FamilyRule::AttributeSize,
    },
    SyscallFamily {
        name: "setxattrat",
        reason: "the length lies behind a pointer, out of a filter's sight; on ENOSYS a libc falls \
            back to setxattr",
        syscalls: &[shared("setxattrat", 463)],
        rule: FamilyRule::Refuse(libc::ENOSYS),
    },
    SyscallFamily {
        // The first process has the user id of the command. With a limit on its processor time, the
        // command could have the kernel kill the first process, and with it the report of the run.
        // A filter cannot tell reading from setting, because the new limit lies behind a pointer.
        // Limits can be read in /proc/PID/limits instead.
        name: "limits of others",
        reason: "limits of another process have the kernel kill it, the first one of the sandbox \
            included",
        syscalls: &[both("prlimit64", 302, 261)],
        rule: FamilyRule::OwnProcess,
    },
    SyscallFamily {
        // Programs that ask for huge pages take ENOMEM for a host that has reserved none.
        name: "huge pages of memory",
        reason: HUGE_PAGES,
        syscalls: &[both("mmap", 9, 222)],
        rule: FamilyRule::HugePages { argument: 3, flag: libc::MAP_HUGETLB as u32 },
    },
    SyscallFamily {
        name: "huge pages of files",
        reason: HUGE_PAGES,
        syscalls: &[both("memfd_create", 319, 279)],
        rule: FamilyRule::HugePages { argument: 1, flag: libc::MFD_HUGETLB },
    },
    SyscallFamily {
        name: "huge pages of segments",
        reason: HUGE_PAGES,
        syscalls: &[both("shmget", 29, 194)],
        rule: FamilyRule::HugePages { argument: 2, flag: libc::SHM_HUGETLB as u32 },
    },
];

const HUGE_PAGES: &str =
    "the host reserved huge pages for a program of its own, and no limit on memory counts them";
