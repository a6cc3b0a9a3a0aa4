//! Compiles the table of families into a decision tree.

use libc::sock_filter;

use super::assemble::{Assembler, Comparison, Label, Verdict};
use super::table::{FamilyRule, Syscall, families};
use super::{AllowedSockets, Architecture, FilterProfile};

// Offsets in `struct seccomp_data` (linux/seccomp.h).
const NUMBER_OFFSET: u32 = 0;
const ARCHITECTURE_OFFSET: u32 = 4;

/// Returns the offset of the low word of an argument.
///
/// Most of the checked arguments are `int`s, whose high word the kernel ignores. The filter ignores
/// it as well, because otherwise a call with garbage there would pass. For the other checked
/// arguments, the kernel itself refuses values that use the high word.
const fn argument_offset(index: u32) -> u32 {
    16 + 8 * index
}

/// All `CLONE_NEW*` flags except `CLONE_NEWTIME`.
const NEW_NAMESPACE: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;
/// Flag `CLONE_NEWTIME`, which only `unshare` knows. In `clone` this bit is part of the exit
/// signal.
const NEW_TIME_NAMESPACE: u32 = 0x80;
const ADDRESS_NO_RANDOMIZE: u32 = 0x0004_0000;
const PERSONALITY_READ: u32 = 0xffff_ffff;
const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541c;
/// Kernel constant `SOCK_TYPE_MASK`: the bits of a socket's type that are not flags.
const SOCKET_TYPE_MASK: u32 = 0xf;
const NETLINK_ROUTE: u32 = 0;
/// Shortest length of an extended attribute that is refused: a power of two, the size of a block.
const MAX_ATTRIBUTE_BYTES: u32 = 4096;

impl Architecture {
    pub(super) const X86_64: Self = Self {
        audit: 0xc000_003e,
        oci: "SCMP_ARCH_X86_64",
        // The gap below the numbers that all architectures share, and the numbers added after Linux
        // 6.18. Numbers of x32 (bit 30) are above 470, too.
        unknown: &[(337, Some(423)), (470, None)],
        number: |syscall| syscall.x86_64,
    };
    pub(super) const AARCH64: Self = Self {
        audit: 0xc000_00b7,
        oci: "SCMP_ARCH_AARCH64",
        // As above. arm64 has no calls in the range for architectures, and 403 to 423 are for
        // 32-bit kernels.
        unknown: &[(244, Some(259)), (295, Some(423)), (470, None)],
        number: |syscall| syscall.aarch64,
    };

    pub(super) const NATIVE: Self =
        if cfg!(target_arch = "x86_64") { Self::X86_64 } else { Self::AARCH64 };

    pub(super) fn number(&self, syscall: &Syscall) -> Option<u32> {
        (self.number)(syscall)
    }
}

/// An action for the numbers from `from` up to the next interval.
#[derive(Debug, Clone, Copy)]
struct NumberInterval {
    from: u32,
    action: IntervalAction,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IntervalAction {
    End(Verdict),
    Check(FamilyRule),
}

const ALLOW: IntervalAction = IntervalAction::End(Verdict::Allow);
const NO_SUCH_CALL: Verdict = Verdict::Errno(libc::ENOSYS);
const FORBIDDEN: Verdict = Verdict::Errno(libc::EPERM);

/// Compiles the filter of an architecture.
pub(super) fn compile(architecture: &Architecture, profile: FilterProfile) -> Vec<sock_filter> {
    let mut compiler =
        FilterCompiler { assembler: Assembler::default(), profile, checks: Vec::new() };
    let tree = compiler.tree(&intervals(architecture));
    let assembler = &mut compiler.assembler;
    let known = assembler.load(NUMBER_OFFSET, tree);
    let foreign = assembler.verdict(NO_SUCH_CALL);
    let entry = assembler.branch(Comparison::Equals(architecture.audit), known, foreign);
    let entry = assembler.load(ARCHITECTURE_OFFSET, entry);
    compiler.assembler.finish(entry)
}

/// Covers all numbers with one interval per change of action.
fn intervals(architecture: &Architecture) -> Vec<NumberInterval> {
    let mut ranges: Vec<(u32, Option<u32>, IntervalAction)> = architecture
        .unknown
        .iter()
        .map(|&(from, to)| (from, to, IntervalAction::End(NO_SUCH_CALL)))
        .collect();
    for family in families() {
        let action = match family.rule {
            FamilyRule::Refuse(errno) => IntervalAction::End(Verdict::Errno(errno)),
            rule => IntervalAction::Check(rule),
        };
        let numbers = family.syscalls.iter().filter_map(|syscall| architecture.number(syscall));
        ranges.extend(numbers.map(|number| (number, Some(number), action)));
    }
    ranges.sort_by_key(|&(from, ..)| from);

    let mut intervals = vec![NumberInterval { from: 0, action: ALLOW }];
    for (from, to, action) in ranges {
        // If the previous interval ends where this one starts, it is empty.
        intervals.pop_if(|last| last.from == from);
        intervals.push(NumberInterval { from, action });
        intervals.extend(to.map(|to| NumberInterval { from: to + 1, action: ALLOW }));
    }
    intervals.dedup_by_key(|interval| interval.action);
    intervals
}

struct FilterCompiler {
    assembler: Assembler,
    profile: FilterProfile,
    checks: Vec<(FamilyRule, Label)>,
}

impl FilterCompiler {
    /// Emits a tree that halves the numbers until one interval is left. The number is in the
    /// accumulator.
    ///
    /// Halving the numbers instead of the intervals puts long runs of allowed calls near the root.
    /// The kernel runs the filter for every number when it is installed, so the mean depth
    /// determines the cost of an installation.
    fn tree(&mut self, intervals: &[NumberInterval]) -> Label {
        match intervals {
            [] => unreachable!("the intervals cover all numbers"),
            [NumberInterval { action: IntervalAction::End(verdict), .. }] => {
                self.assembler.verdict(*verdict)
            }
            [NumberInterval { action: IntervalAction::Check(rule), .. }] => self.check(*rule),
            [first, .., last] => {
                let middle = first.from.midpoint(last.from);
                let nearest = (1..intervals.len())
                    .min_by_key(|&index| intervals[index].from.abs_diff(middle));
                let (low, high) =
                    intervals.split_at(nearest.expect("two or more intervals have a boundary"));
                let boundary = high[0].from;
                let high = self.tree(high);
                let low = self.tree(low);
                self.assembler.branch(Comparison::AtLeast(boundary), high, low)
            }
        }
    }

    /// Returns the label at which the arguments of a call are checked. Each rule is emitted once.
    fn check(&mut self, rule: FamilyRule) -> Label {
        if let Some(&(_, label)) = self.checks.iter().find(|(known, _)| *known == rule) {
            return label;
        }
        let label = match rule {
            FamilyRule::Refuse(errno) => self.assembler.verdict(Verdict::Errno(errno)),
            FamilyRule::Personality => self.personality(),
            FamilyRule::Unshare => self.no_flags(NEW_NAMESPACE | NEW_TIME_NAMESPACE),
            FamilyRule::Clone => self.no_flags(NEW_NAMESPACE),
            FamilyRule::Terminal => self.terminal(),
            FamilyRule::Socket => self.socket(),
            FamilyRule::SocketPair => self.socket_pair(),
            FamilyRule::AttributeSize => self.attribute_size(),
            FamilyRule::OwnProcess => self.own_process(),
            FamilyRule::HugePages { argument, flag } => self.huge_pages(argument, flag),
        };
        self.checks.push((rule, label));
        label
    }

    fn personality(&mut self) -> Label {
        let (allow, refuse) = (self.allow(), self.refuse(FORBIDDEN));
        let harmless = [0, ADDRESS_NO_RANDOMIZE, PERSONALITY_READ].map(Comparison::Equals);
        let test = self.assembler.any(harmless, allow, refuse);
        self.assembler.load(argument_offset(0), test)
    }

    fn no_flags(&mut self, flags: u32) -> Label {
        let (allow, refuse) = (self.allow(), self.refuse(FORBIDDEN));
        let test = self.assembler.branch(Comparison::HasAnyOf(flags), refuse, allow);
        self.assembler.load(argument_offset(0), test)
    }

    fn terminal(&mut self) -> Label {
        let (allow, refuse) = (self.allow(), self.refuse(FORBIDDEN));
        let test = self.assembler.any([TIOCSTI, TIOCLINUX].map(Comparison::Equals), refuse, allow);
        self.assembler.load(argument_offset(1), test)
    }

    fn socket(&mut self) -> Label {
        match self.profile.sockets {
            AllowedSockets::None => self.refuse(FORBIDDEN),
            AllowedSockets::Private | AllowedSockets::Open => {
                let unknown = self.refuse(Verdict::Errno(libc::EAFNOSUPPORT));
                let netlink = self.netlink();
                let internet = self.internet();
                let allow = self.allow();
                let families = self.assembler.branch(equals(libc::AF_NETLINK), netlink, unknown);
                let families = self.assembler.any(
                    [libc::AF_INET, libc::AF_INET6].map(equals),
                    internet,
                    families,
                );
                let families = self.assembler.branch(equals(libc::AF_UNIX), allow, families);
                self.assembler.load(argument_offset(0), families)
            }
        }
    }

    /// Emits a test that allows queries for addresses and routes, as `getaddrinfo` makes them, and
    /// no other kernel subsystem.
    fn netlink(&mut self) -> Label {
        let (allow, refuse) = (self.allow(), self.refuse(Verdict::Errno(libc::EPROTONOSUPPORT)));
        let test = self.assembler.branch(Comparison::Equals(NETLINK_ROUTE), allow, refuse);
        self.assembler.load(argument_offset(2), test)
    }

    /// Emits a test that allows streams and datagrams over the protocols that programs use.
    ///
    /// SCTP, DCCP, L2TP and raw packets are not among them. `SOCK_PACKET` would turn an internet
    /// socket into an AF_PACKET socket.
    fn internet(&mut self) -> Label {
        let (allow, refuse) = (self.allow(), self.refuse(Verdict::Errno(libc::EPROTONOSUPPORT)));
        let protocols = [
            libc::IPPROTO_MPTCP,
            libc::IPPROTO_ICMPV6,
            libc::IPPROTO_ICMP,
            libc::IPPROTO_UDP,
            libc::IPPROTO_TCP,
            libc::IPPROTO_IP,
        ];
        let protocol = self.assembler.any(protocols.map(equals), allow, refuse);
        let protocol = self.assembler.load(argument_offset(2), protocol);
        let forbidden = self.refuse(FORBIDDEN);
        self.socket_type([libc::SOCK_DGRAM, libc::SOCK_STREAM], protocol, forbidden)
    }

    fn socket_pair(&mut self) -> Label {
        let unknown = self.refuse(Verdict::Errno(libc::EAFNOSUPPORT));
        let unix = match self.profile.sockets {
            AllowedSockets::Private | AllowedSockets::Open => self.allow(),
            // A datagram socket of a pair can still connect or send to any name, so it is as
            // powerful as a new socket. A connected stream cannot.
            AllowedSockets::None => {
                let (allow, refuse) = (self.allow(), self.refuse(FORBIDDEN));
                self.socket_type([libc::SOCK_SEQPACKET, libc::SOCK_STREAM], allow, refuse)
            }
        };
        let family = self.assembler.branch(equals(libc::AF_UNIX), unix, unknown);
        self.assembler.load(argument_offset(0), family)
    }

    /// Emits a test of the low word of an attribute's length. The kernel reads all 64 bits of the
    /// length, but it refuses lengths above 64 KiB itself (linux/limits.h).
    fn attribute_size(&mut self) -> Label {
        let (allow, refuse) = (self.allow(), self.refuse(Verdict::Errno(libc::ENOSPC)));
        let test =
            self.assembler.branch(Comparison::HasAnyOf(!(MAX_ATTRIBUTE_BYTES - 1)), refuse, allow);
        self.assembler.load(argument_offset(3), test)
    }

    fn own_process(&mut self) -> Label {
        let (allow, refuse) = (self.allow(), self.refuse(FORBIDDEN));
        let test = self.assembler.branch(Comparison::Equals(0), allow, refuse);
        self.assembler.load(argument_offset(0), test)
    }

    fn huge_pages(&mut self, index: u32, flag: u32) -> Label {
        let (allow, refuse) = (self.allow(), self.refuse(Verdict::Errno(libc::ENOMEM)));
        let test = self.assembler.branch(Comparison::HasAnyOf(flag), refuse, allow);
        self.assembler.load(argument_offset(index), test)
    }

    fn socket_type(&mut self, types: [i32; 2], yes: Label, no: Label) -> Label {
        let test = self.assembler.any(types.map(equals), yes, no);
        let test = self.assembler.mask(SOCKET_TYPE_MASK, test);
        self.assembler.load(argument_offset(1), test)
    }

    fn allow(&mut self) -> Label {
        self.assembler.verdict(Verdict::Allow)
    }

    fn refuse(&mut self, verdict: Verdict) -> Label {
        self.assembler.verdict(verdict)
    }
}

/// Returns a test for equality with a constant of the kernel. The constants are signed, the
/// accumulator is not.
fn equals(constant: i32) -> Comparison {
    Comparison::Equals(constant.unsigned_abs())
}
