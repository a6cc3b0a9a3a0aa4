//! System calls, one per function. Functions take borrowed descriptors, return `io::Result` and
//! hold no policy.
//!
//! Only this module has unsafe code. The module wraps the system calls for which `rustix` has no
//! wrapper.
#![expect(unsafe_code, reason = "the one place where system calls without a safe wrapper are made")]

pub mod attempt;
pub mod landlock;
pub mod mount;
pub mod network;
pub mod ownership;
pub mod process;
pub mod seccomp;
pub mod signal;
