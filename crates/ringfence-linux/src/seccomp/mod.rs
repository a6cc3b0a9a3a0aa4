//! The seccomp filter of a sandbox: built once, and installed in the child right before it executes
//! its program.
//!
//! The filter is a denylist over reviewed system call numbers. Calls that [`families`] names fail
//! with an errno, never with a signal. Numbers that nobody has reviewed fail with `ENOSYS`, so that
//! a libc falls back to older calls. Other entry points of the machine (32-bit calls, x32) also
//! fail with `ENOSYS`.
//!
//! The program is a binary tree over the number of the call, about ten instructions deep. A shallow
//! tree also keeps installation cheap, because the kernel then runs the filter once for each
//! number, to record which calls need no filter at all.

mod assemble;
mod cases;
mod compile;
#[cfg(test)]
mod interpret;
mod names;
mod oci;
mod table;
#[cfg(test)]
mod tests;

use std::io;

use libc::sock_filter;

pub use oci::{nesting_profile, oci_profile};
pub use table::{FamilyRule, Syscall, SyscallFamily, families};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the system-call filter knows the numbers of x86_64 and aarch64 only");

/// The settings in which the filters of two sandboxes can differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FilterProfile {
    /// Sockets that a program may create.
    pub sockets: AllowedSockets,
}

/// The sockets that a program may create.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum AllowedSockets {
    /// Unix, TCP, UDP and route sockets, which reach no further than the sandbox's own network
    /// namespace.
    Private,
    /// Only connected pairs of Unix sockets. Without a network namespace, the filter alone closes
    /// the network.
    None,
    /// Unix, TCP, UDP and route sockets, on the host's network.
    Open,
}

/// A compiled filter, ready to install.
#[derive(Debug, Clone)]
pub struct SeccompFilter {
    program: Vec<sock_filter>,
}

impl SeccompFilter {
    /// Compiles the filter of a profile for the architecture that this program was built for.
    pub fn build(profile: FilterProfile) -> Self {
        Self { program: compile::compile(&Architecture::NATIVE, profile) }
    }

    /// Returns the instructions of the filter.
    pub fn program(&self) -> &[sock_filter] {
        &self.program
    }

    /// Returns the program as the array of `struct sock_filter` that `bwrap --seccomp FD` reads.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.program.iter().flat_map(encode).collect()
    }

    /// Installs the filter for the calling thread and for everything that it starts afterwards.
    /// Allocates nothing.
    ///
    /// The thread must have set `no_new_privs`.
    pub fn install(&self) -> io::Result<()> {
        crate::sys::seccomp::set_filter(&self.program)
    }
}

fn encode(instruction: &sock_filter) -> [u8; 8] {
    let &sock_filter { code, jt, jf, k } = instruction;
    let ([code_0, code_1], [k_0, k_1, k_2, k_3]) = (code.to_ne_bytes(), k.to_ne_bytes());
    [code_0, code_1, jt, jf, k_0, k_1, k_2, k_3]
}

/// The calling convention that a filter is for.
struct Architecture {
    /// Value of the kernel's `AUDIT_ARCH_*` constant (linux/audit.h).
    audit: u32,
    /// Name of the architecture in libseccomp.
    oci: &'static str,
    /// Ranges of numbers that were no system call when the table was reviewed. The last range has
    /// no end.
    unknown: &'static [(u32, Option<u32>)],
    number: fn(&Syscall) -> Option<u32>,
}
