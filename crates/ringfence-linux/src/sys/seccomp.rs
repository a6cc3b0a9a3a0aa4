//! System calls for seccomp filters, seccomp(2).

use std::io;

use libc::{c_long, sock_filter, sock_fprog};

/// Installs a filter for the calling thread, permanently.
pub(crate) fn set_filter(program: &[sock_filter]) -> io::Result<()> {
    let len =
        u16::try_from(program.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let program = sock_fprog { len, filter: program.as_ptr().cast_mut() };
    // SAFETY: seccomp(2) reads `len` instructions from `filter`, which is the slice's own length,
    // and keeps a copy; it writes nothing, so a pointer from a shared slice is enough.
    let result: c_long = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes a system call with plain numbers as arguments. The call must fail or have no effect.
#[cfg(test)]
pub(crate) fn attempt(number: c_long, arguments: [usize; 4]) -> Result<c_long, i32> {
    let [a, b, c, d] = arguments;
    // SAFETY: the tests pass only null pointers and flags, with which the kernel reads and writes
    // no memory of ours.
    let result = unsafe { libc::syscall(number, a, b, c, d, 0, 0) };
    if result >= 0 {
        Ok(result)
    } else {
        Err(io::Error::last_os_error().raw_os_error().unwrap_or_default())
    }
}
