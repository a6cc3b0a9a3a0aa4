//! The system-call filter of a sandbox: built once, installed in the child right before it executes its program.
//!
//! The filter is a denylist over reviewed numbers: calls that [`families`] names fail with an errno, never with a
//! signal; numbers that nobody has reviewed do not exist (`ENOSYS`), so that a libc falls back to what does. Other
//! entry points of the machine (32-bit calls, x32) do not exist either.
//!
//! Its shape is a binary tree over the call's number, about ten instructions deep. That keeps installation cheap,
//! too: the kernel then runs the filter once for each number, to remember which calls need no filter at all.

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
pub use table::{Family, Rule, Syscall, families};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the system-call filter knows the numbers of x86_64 and aarch64 only");

/// What differs between the filters of two sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Profile {
    /// The sockets that a program may make.
    pub sockets: Sockets,
}

/// The sockets that a program may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Sockets {
    /// Unix, TCP, UDP and route sockets, which reach no further than the sandbox's own network namespace.
    Private,
    /// None but connected pairs of Unix sockets: without a network namespace, the filter alone closes the network.
    None,
    /// Unix, TCP, UDP and route sockets, on the host's network.
    Open,
}

/// A compiled filter.
#[derive(Debug, Clone)]
pub struct Filter {
    program: Vec<sock_filter>,
}

impl Filter {
    /// Compiles the filter of a profile for the architecture that this program was built for.
    pub fn build(profile: Profile) -> Self {
        Self { program: compile::compile(&Architecture::NATIVE, profile) }
    }

    /// Returns the program.
    pub fn program(&self) -> &[sock_filter] {
        &self.program
    }

    /// Returns the program as the array of `struct sock_filter` that `bwrap --seccomp FD` reads.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.program.iter().flat_map(encode).collect()
    }

    /// Puts the calling thread, and all it starts from now on, behind the filter; allocates nothing.
    ///
    /// The thread must have given up gaining privileges (`no_new_privs`).
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
    /// The kernel's `AUDIT_ARCH_*` (linux/audit.h).
    audit: u32,
    /// What libseccomp calls it.
    oci: &'static str,
    /// Ranges of numbers that were no system call when the table was reviewed; the last has no end.
    unknown: &'static [(u32, Option<u32>)],
    number: fn(&Syscall) -> Option<u32>,
}
