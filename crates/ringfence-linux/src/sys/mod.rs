//! One system call per function: borrowed descriptors in, `io::Result` out, no policy.
//!
//! This is the only module with unsafe code. `rustix` wraps what it can; here is the rest.
#![expect(unsafe_code, reason = "the one place where system calls without a safe wrapper are made")]

pub mod attempt;
pub mod landlock;
pub mod mount;
pub mod network;
pub mod ownership;
pub mod process;
pub mod seccomp;
pub mod signal;
