//! System calls that a sandbox refuses, made on purpose. Each call is harmless if it succeeds.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use crate::seccomp::{FamilyRule, Syscall};

fn checked(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Makes a system call of the filter's table with arguments that no call in the table accepts.
///
/// Fails with `Unsupported` unless `rule` refuses the call outright. The other rules look at the
/// arguments of the call, so they have attempts of their own.
pub fn with_wrong_arguments(syscall: &Syscall, rule: FamilyRule) -> io::Result<i64> {
    // vhangup(2) takes no argument that could be wrong, and would hang up a real terminal.
    let is_without_arguments = syscall.name == "vhangup";
    let (Some(number), FamilyRule::Refuse(_), false) =
        (syscall.number(), rule, is_without_arguments)
    else {
        return Err(io::Error::from(io::ErrorKind::Unsupported));
    };
    let wrong = usize::MAX;
    // SAFETY: a `Syscall` can only come from the filter's table, whose refused calls take pointers,
    // descriptors, lengths and flags. All ones is no address of ours, no descriptor and no known
    // flag, so nothing is read or written.
    checked(unsafe { libc::syscall(i64::from(number), wrong, wrong, wrong, wrong, wrong, wrong) })
}

/// Asks for the process id through the entry point of 32-bit programs.
#[cfg(target_arch = "x86_64")]
pub fn getpid_of_32_bit() -> io::Result<i64> {
    let mut result: i32 = 20; // number of getpid on i386
    // SAFETY: `int 0x80` with getpid's number touches no memory. The kernel preserves all registers
    // but rax, and old versions clear r8 to r11, which are declared as clobbered.
    unsafe {
        std::arch::asm!(
            "int 0x80",
            inout("eax") result,
            out("r8") _,
            out("r9") _,
            out("r10") _,
            out("r11") _,
        );
    }
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result.into()) }
}

/// Asks for the process id through the entry point of x32 programs.
#[cfg(target_arch = "x86_64")]
pub fn getpid_of_x32() -> io::Result<i64> {
    const X32: i64 = 0x4000_0000; // __X32_SYSCALL_BIT, asm/unistd.h
    // SAFETY: getpid takes no argument and touches no memory, by whichever entry point.
    checked(unsafe { libc::syscall(X32 + libc::SYS_getpid) })
}

/// Fails with `Unsupported`, because this architecture has no other entry point.
#[cfg(not(target_arch = "x86_64"))]
pub fn getpid_of_32_bit() -> io::Result<i64> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

/// Fails with `Unsupported`, because this architecture has no other entry point.
#[cfg(not(target_arch = "x86_64"))]
pub fn getpid_of_x32() -> io::Result<i64> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

/// Creates and closes a socket for IPsec key management, socket(2) with `NETLINK_XFRM`.
pub fn open_xfrm_socket(width: ArgumentWidth) -> io::Result<()> {
    let (family, protocol) = (width.apply_to(libc::AF_NETLINK as u64), libc::NETLINK_XFRM);
    // SAFETY: socket takes integers only.
    let made =
        checked(unsafe { libc::syscall(libc::SYS_socket, family, libc::SOCK_RAW, protocol) })?;
    // SAFETY: the descriptor was created just now, and nobody else closes it.
    unsafe { libc::close(made as i32) };
    Ok(())
}

/// Enters a new user namespace, unshare(2).
pub fn unshare_user(width: ArgumentWidth) -> io::Result<()> {
    let flags = width.apply_to(libc::CLONE_NEWUSER as u64);
    // SAFETY: unshare reads no memory; CLONE_NEWUSER changes credentials only.
    checked(unsafe { libc::syscall(libc::SYS_unshare, flags) }).map(drop)
}

/// Creates a process in a new user namespace and waits for its end, clone(2). The process exits at
/// once.
pub fn clone_user() -> io::Result<()> {
    let flags = libc::CLONE_NEWUSER | libc::SIGCHLD;
    // SAFETY: without CLONE_VM the child has its own copy of this stack; it calls nothing but
    // _exit.
    match checked(unsafe { libc::syscall(libc::SYS_clone, flags, 0usize, 0usize, 0usize, 0usize) })?
    {
        0 => super::process::exit_now(0),
        child => reap(child),
    }
}

/// Creates a process in a new user namespace and waits for its end, clone3(2). The process exits at
/// once.
pub fn clone3_user() -> io::Result<()> {
    // SAFETY: clone_args is plain integers; all zeroes is a valid value (clone3(2)).
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = libc::CLONE_NEWUSER as u64;
    arguments.exit_signal = libc::SIGCHLD as u64;
    let size = size_of::<libc::clone_args>();
    // SAFETY: clone3 reads `size` bytes of a live value. Without CLONE_VM the child has its own
    // copy of this stack; it calls nothing but _exit.
    match checked(unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size) })? {
        0 => super::process::exit_now(0),
        child => reap(child),
    }
}

fn reap(child: i64) -> io::Result<()> {
    // SAFETY: a null status pointer is allowed (waitpid(2)).
    checked(unsafe { libc::waitpid(child as i32, std::ptr::null_mut(), 0) }.into()).map(drop)
}

/// Changes the execution domain so that readable memory is executable, personality(2).
pub fn make_data_executable() -> io::Result<()> {
    // SAFETY: personality takes an integer and changes later mappings only.
    checked(unsafe { libc::personality(libc::READ_IMPLIES_EXEC as libc::c_ulong) }.into()).map(drop)
}

/// Form of a number that is passed to a system call. Most calls use only the lower 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentWidth {
    /// The number itself.
    Plain,
    /// The number with a bit set in the upper half. Most system calls ignore that bit, but a
    /// careless filter compares it.
    Widened,
}

impl ArgumentWidth {
    fn apply_to(self, number: u64) -> u64 {
        match self {
            ArgumentWidth::Plain => number,
            ArgumentWidth::Widened => number | 1 << 32,
        }
    }
}

/// Inserts a character into the input of a terminal, `TIOCSTI`, ioctl_tty(2).
pub fn type_into(terminal: BorrowedFd<'_>, width: ArgumentWidth) -> io::Result<()> {
    let character: libc::c_char = b'x' as libc::c_char;
    let (fd, request) = (terminal.as_raw_fd(), width.apply_to(libc::TIOCSTI));
    // SAFETY: TIOCSTI reads one byte, which is alive.
    checked(unsafe { libc::syscall(libc::SYS_ioctl, fd, request, &raw const character) }).map(drop)
}

/// Asks a terminal for its shift state, `TIOCLINUX`, ioctl_console(2). The same call can paste the
/// selection.
pub fn query_console(terminal: BorrowedFd<'_>) -> io::Result<()> {
    let mut subcode: libc::c_char = 6; // TIOCL_GETSHIFTSTATE
    // SAFETY: TIOCLINUX reads the subcode, and with this subcode writes one byte back over it.
    checked(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCLINUX, &raw mut subcode) }.into())
        .map(drop)
}

/// Attaches to a process as its tracer without stopping it, ptrace(2) `PTRACE_SEIZE`. The
/// attachment lasts until this process ends.
pub fn trace_process(process: i32) -> io::Result<()> {
    // SAFETY: PTRACE_SEIZE takes a process id; address and options must be null (ptrace(2)).
    checked(unsafe { libc::ptrace(libc::PTRACE_SEIZE, process, 0usize, 0usize) }).map(drop)
}

/// Asks for a byte of another process's memory at an address that is not mapped there,
/// process_vm_readv(2).
pub fn read_memory(process: i32) -> io::Result<i64> {
    let mut byte = 0u8;
    let here = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let there = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 1 };
    // SAFETY: the kernel writes at most one byte to `byte`, which is alive; the other address is
    // not ours.
    checked(unsafe { libc::process_vm_readv(process, &raw const here, 1, &raw const there, 1, 0) }
        as i64)
}

/// Moves this process into a real-time scheduling class, sched_setscheduler(2).
pub fn enter_real_time_class() -> io::Result<()> {
    // SAFETY: sched_param is plain integers; all zeroes is valid.
    let mut parameter: libc::sched_param = unsafe { std::mem::zeroed() };
    parameter.sched_priority = 1;
    // SAFETY: the pointer is to a live sched_param; 0 is the calling thread.
    checked(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameter) }.into())
        .map(drop)
}

/// A System V shared memory segment of one page, removed when dropped.
#[derive(Debug)]
pub struct SharedSegment(i32);

impl SharedSegment {
    /// Creates a segment that only its owner may use, shmget(2).
    pub fn create() -> io::Result<SharedSegment> {
        // SAFETY: shmget takes integers only.
        let made = unsafe { libc::shmget(libc::IPC_PRIVATE, 4096, libc::IPC_CREAT | 0o600) };
        checked(made.into()).map(|_| SharedSegment(made))
    }

    /// Returns the identifier of the segment.
    pub fn id(&self) -> i32 {
        self.0
    }

    /// Attaches the segment with the identifier `id` and detaches it again, shmat(2).
    pub fn attach(id: i32) -> io::Result<()> {
        // SAFETY: a null address lets the kernel choose one that is free.
        let address = unsafe { libc::shmat(id, std::ptr::null(), 0) };
        if address.addr() == usize::MAX {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the address was attached just now, and nothing refers to it.
        unsafe { libc::shmdt(address) };
        Ok(())
    }
}

impl Drop for SharedSegment {
    fn drop(&mut self) {
        // SAFETY: IPC_RMID takes no buffer.
        unsafe { libc::shmctl(self.0, libc::IPC_RMID, std::ptr::null_mut()) };
    }
}

/// A System V message queue, removed when dropped.
#[derive(Debug)]
pub struct MessageQueue(i32);

impl MessageQueue {
    /// Creates a queue that only its owner may use, msgget(2).
    pub fn create() -> io::Result<MessageQueue> {
        // SAFETY: msgget takes integers only.
        let made = unsafe { libc::msgget(libc::IPC_PRIVATE, libc::IPC_CREAT | 0o600) };
        checked(made.into()).map(|_| MessageQueue(made))
    }

    /// Returns the identifier of the queue.
    pub fn id(&self) -> i32 {
        self.0
    }

    /// Sends an empty message to the queue with the identifier `id`, msgsnd(2).
    pub fn send(id: i32) -> io::Result<()> {
        let message: [libc::c_long; 2] = [1, 0]; // a positive message type, then the text
        // SAFETY: msgsnd reads the type and 0 bytes of text, both alive.
        checked(unsafe { libc::msgsnd(id, message.as_ptr().cast(), 0, libc::IPC_NOWAIT) }.into())
            .map(drop)
    }
}

impl Drop for MessageQueue {
    fn drop(&mut self) {
        // SAFETY: IPC_RMID takes no buffer.
        unsafe { libc::msgctl(self.0, libc::IPC_RMID, std::ptr::null_mut()) };
    }
}

/// A POSIX message queue with a name, unlinked when dropped.
#[derive(Debug)]
pub struct NamedMessageQueue(CString);

impl NamedMessageQueue {
    /// Creates a queue that only its owner may use, mq_open(3).
    pub fn create(name: CString) -> io::Result<NamedMessageQueue> {
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR | libc::O_CLOEXEC;
        let attributes = std::ptr::null_mut::<libc::mq_attr>();
        // SAFETY: the name is NUL-terminated; null attributes ask for the defaults.
        let queue =
            unsafe { libc::mq_open(name.as_ptr(), flags, 0o600 as libc::mode_t, attributes) };
        checked(queue.into())?;
        // SAFETY: the queue was opened just now, and nobody else closes it.
        unsafe { libc::mq_close(queue) };
        Ok(NamedMessageQueue(name))
    }

    /// Opens and closes an existing queue.
    pub fn open(name: &CStr) -> io::Result<()> {
        // SAFETY: the name is NUL-terminated; without O_CREAT no further argument is read.
        let queue = unsafe { libc::mq_open(name.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        checked(queue.into())?;
        // SAFETY: the queue was opened just now, and nobody else closes it.
        unsafe { libc::mq_close(queue) };
        Ok(())
    }
}

impl Drop for NamedMessageQueue {
    fn drop(&mut self) {
        // SAFETY: the name is NUL-terminated.
        unsafe { libc::mq_unlink(self.0.as_ptr()) };
    }
}

/// A key in the user's own keyring, revoked when dropped.
#[derive(Debug)]
pub struct UserKey(i64);

impl UserKey {
    /// Adds a key of type `user`, add_key(2).
    pub fn add(description: &CStr, secret: &[u8]) -> io::Result<UserKey> {
        let (kind, keyring) = (c"user".as_ptr(), libc::KEY_SPEC_USER_KEYRING);
        let (secret, length) = (secret.as_ptr(), secret.len());
        // SAFETY: both strings are NUL-terminated, and the kernel reads `length` bytes of the
        // secret, which are alive.
        let added = unsafe {
            libc::syscall(libc::SYS_add_key, kind, description.as_ptr(), secret, length, keyring)
        };
        checked(added).map(UserKey)
    }

    /// Searches for a key by its description, keyctl(2) `KEYCTL_SEARCH`, and returns its serial
    /// number.
    pub fn search(description: &CStr) -> io::Result<i64> {
        let (operation, keyring) = (libc::KEYCTL_SEARCH, libc::KEY_SPEC_USER_KEYRING);
        let kind = c"user".as_ptr();
        // SAFETY: both strings are NUL-terminated; the last argument is no destination keyring.
        checked(unsafe {
            libc::syscall(libc::SYS_keyctl, operation, keyring, kind, description.as_ptr(), 0)
        })
    }
}

impl Drop for UserKey {
    fn drop(&mut self) {
        // SAFETY: KEYCTL_REVOKE takes a key's serial number and no pointer.
        unsafe { libc::syscall(libc::SYS_keyctl, libc::KEYCTL_REVOKE, self.0) };
    }
}

/// Returns the processor time that this process has used, getrusage(2).
pub fn own_processor_time() -> Duration {
    // SAFETY: rusage is plain integers; all zeroes is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live rusage; RUSAGE_SELF cannot fail with a valid pointer.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    Duration::from_micros(super::process::ResourceUsage::from(&usage).cpu_micros)
}

/// Returns the bytes of memory that the kernel holds in a socket's receive and send buffers.
pub fn socket_memory(socket: impl AsFd) -> io::Result<usize> {
    // linux/sock_diag.h: of nine numbers, SK_MEMINFO_RMEM_ALLOC is the first and
    // SK_MEMINFO_WMEM_QUEUED the sixth.
    let mut numbers = [0u32; 9];
    let mut length = size_of_val(&numbers) as libc::socklen_t;
    // SAFETY: getsockopt writes at most `length` bytes to the array, which has that size, and then
    // the number of written bytes to `length`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            numbers.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    checked(result.into()).map(|_| numbers[0] as usize + numbers[5] as usize)
}
