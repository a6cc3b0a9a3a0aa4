//! Process creation with clone(2), and process attributes that `rustix` does not cover.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Resets signal handlers in the child. libc's constant has a type that is too narrow.
const CLONE_CLEAR_SIGHAND: u64 = 1 << 32;
/// Creates the child in the cgroup v2 of a directory descriptor. libc's constant has a type that is
/// too narrow.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// The two sides of a clone: the calling process and the new process.
#[derive(Debug)]
pub enum CloneSide {
    /// The caller, with a descriptor for the new process and its id.
    Parent {
        /// Pidfd, which becomes readable when the new process ends.
        pidfd: OwnedFd,
        /// Process id of the new process, as the caller sees it.
        pid: i32,
    },
    /// The new process.
    Child,
}

/// Forks with new namespaces, clone3(2).
///
/// `flags` are `CLONE_NEW*` flags. `cgroup` is the directory of the cgroup v2 in which the child is
/// created. Fails if this process has more than one thread, because the child has only the calling
/// thread and locks that the other threads held would stay locked forever.
pub fn clone3(flags: u64, cgroup: Option<BorrowedFd<'_>>) -> io::Result<CloneSide> {
    require_single_thread()?;
    let mut pidfd: libc::c_int = -1;
    // SAFETY: clone_args is plain integers; all zeroes is a valid value (clone3(2)).
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = flags | (libc::CLONE_PIDFD as u64) | CLONE_CLEAR_SIGHAND;
    args.pidfd = (&raw mut pidfd) as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    let size = size_of::<libc::clone_args>();
    // SAFETY: clone3 reads `size` bytes of `args` and writes one int to `args.pidfd`, both alive
    // here. Without CLONE_VM the child runs on its own copy of this stack; this process has one
    // thread, so no lock is lost.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(CloneSide::Child),
        pid => {
            // SAFETY: on success the kernel stored a new descriptor that nobody else owns
            // (CLONE_PIDFD).
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(CloneSide::Parent { pidfd, pid: pid as i32 })
        }
    }
}

/// Forks with clone(2), like [`clone3`] without namespaces and cgroup. Unlike `clone3`, this works
/// under a seccomp filter that refuses clone3(2).
pub fn fork() -> io::Result<CloneSide> {
    require_single_thread()?;
    let mut pidfd: libc::c_int = -1;
    let flags = libc::CLONE_PIDFD | libc::SIGCHLD;
    // SAFETY: with a null stack the child runs on its own copy of this one, as after fork(2); the
    // kernel writes one int to `pidfd`, which is alive here. This process has one thread, so no
    // lock is lost.
    let pid =
        unsafe { libc::syscall(libc::SYS_clone, flags, 0usize, &raw mut pidfd, 0usize, 0usize) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(CloneSide::Child),
        pid => {
            // SAFETY: on success the kernel stored a new descriptor that nobody else owns
            // (CLONE_PIDFD).
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(CloneSide::Parent { pidfd, pid: pid as i32 })
        }
    }
}

/// Starts a child that runs `child` in the memory of this process, clone(2) with `CLONE_VM |
/// CLONE_VFORK`.
///
/// This process waits until the child executes another program or exits. If `child` returns, its
/// result is the exit code. Sharing the memory saves copying it and a second fault for each page.
/// The seccomp filter of a sandbox refuses clone3(2), because it cannot see the flags of that call,
/// but it permits this call.
pub fn vfork(child: &mut dyn FnMut() -> i32) -> io::Result<rustix::process::Pid> {
    const STACK_BYTES: usize = 256 * 1024;
    extern "C" fn enter(child: *mut libc::c_void) -> libc::c_int {
        let child = child.cast::<&mut dyn FnMut() -> i32>();
        // SAFETY: the pointer is to the reference below. The reference outlives the call, because
        // its frame is suspended until the child has executed another program or exited
        // (CLONE_VFORK).
        let child = unsafe { &mut *child };
        child()
    }
    require_single_thread()?;
    let mut stack = vec![0u8; STACK_BYTES];
    let mut child = child;
    let argument = (&raw mut child).cast();
    let top = stack.as_mut_ptr_range().end;
    // The stack grows down and must be aligned to 16 bytes (System V ABI).
    let top = top.wrapping_sub(top.addr() % 16).cast();
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack is ours, writable, and alive until the child has left it (CLONE_VFORK).
    // This process has one thread and is suspended meanwhile, so the child alone uses the shared
    // memory.
    match unsafe { libc::clone(enter, top, flags, argument) } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(rustix::process::Pid::from_raw(pid).expect("a child's id is positive")),
    }
}

/// Fails unless the calling process has exactly one thread.
fn require_single_thread() -> io::Result<()> {
    // A joined thread is still counted for a short time: pthread_join(3) returns when the thread
    // announces its end, and the kernel removes the thread after that.
    const MAX_CHECKS: u32 = 100;
    const CHECK_INTERVAL: Duration = Duration::from_micros(100);
    let mut looks = 0;
    loop {
        // The link count of a directory is 2 plus its subdirectories, and each thread has one
        // (proc(5)).
        let threads = rustix::fs::stat("/proc/self/task")?.st_nlink.saturating_sub(2);
        match threads {
            1 => return Ok(()),
            count if looks == MAX_CHECKS => {
                return Err(io::Error::other(format!(
                    "cannot fork a process that has {count} threads"
                )));
            }
            _ => looks += 1,
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
}

/// Replaces the program of this process, execve(2). Returns only on failure, with the error.
pub fn execve(path: &CStr, argv: &[CString], env: &[CString]) -> io::Error {
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (argv, env) = (pointers(argv), pointers(env));
    // SAFETY: path is NUL-terminated; both arrays end with a null pointer and their strings outlive
    // the call.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    io::Error::last_os_error()
}

/// Joins a new, empty session keyring, keyctl(2) `KEYCTL_JOIN_SESSION_KEYRING`.
pub fn join_new_session_keyring() -> io::Result<()> {
    // SAFETY: a null name asks for an anonymous keyring; no memory is read.
    let result =
        unsafe { libc::syscall(libc::SYS_keyctl, libc::KEYCTL_JOIN_SESSION_KEYRING, 0usize) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Enters a new user namespace, user_namespaces(7). The process must have one thread.
pub fn enter_new_user_namespace() -> io::Result<()> {
    // SAFETY: unshare reads no memory; CLONE_NEWUSER changes neither memory nor the descriptor
    // table.
    match unsafe { libc::unshare(libc::CLONE_NEWUSER) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Enters a new cgroup namespace, whose root is the current cgroup of this process,
/// cgroup_namespaces(7).
pub fn enter_new_cgroup_namespace() -> io::Result<()> {
    // SAFETY: unshare reads no memory; CLONE_NEWCGROUP changes neither memory nor the descriptor
    // table.
    match unsafe { libc::unshare(libc::CLONE_NEWCGROUP) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Closes every descriptor from `first` to `last`, close_range(2).
///
/// The range must not contain a descriptor to which an `OwnedFd` that this process still uses
/// refers.
pub fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: close_range takes integers only, but it can close a descriptor that an `OwnedFd`
    // refers to. The caller guarantees, as the contract above demands, that no such owner is used
    // again.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Waits for one child without blocking, wait4(2).
///
/// Returns `None` if no child has changed state. Fails with `ECHILD` if there is no child.
pub fn wait_any() -> io::Result<Option<WaitedChild>> {
    let mut status = 0;
    // SAFETY: rusage is plain integers; all zeroes is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let options = libc::WNOHANG | libc::WUNTRACED;
    // SAFETY: both pointers are to live, writable values of the types that wait4 fills.
    let pid = unsafe { libc::wait4(-1, &raw mut status, options, &raw mut usage) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Some(WaitedChild { pid, status, usage: ResourceUsage::from(&usage) })),
    }
}

/// A child that changed state.
#[derive(Debug, Clone, Copy)]
pub struct WaitedChild {
    /// Process id of the child.
    pub pid: i32,
    /// Wait status of the child, as wait(2) encodes it.
    pub status: i32,
    /// Resources that the child and its waited-for children used.
    pub usage: ResourceUsage,
}

/// Resources that a process and its waited-for children used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ResourceUsage {
    /// Processor time, in microseconds.
    pub cpu_micros: u64,
    /// Largest resident set, in bytes.
    pub max_rss: u64,
}

impl From<&libc::rusage> for ResourceUsage {
    fn from(usage: &libc::rusage) -> Self {
        let micros = |time: libc::timeval| (time.tv_sec as u64) * 1_000_000 + time.tv_usec as u64;
        ResourceUsage {
            cpu_micros: micros(usage.ru_utime) + micros(usage.ru_stime),
            max_rss: usage.ru_maxrss as u64 * 1024,
        }
    }
}

/// Kills every process that this process may signal, except itself, kill(2) with -1.
///
/// For the first process of a pid namespace, these are all other processes of the namespace.
pub fn kill_all_others() -> io::Result<()> {
    // Any other process would also kill processes that are not its own.
    if rustix::process::getpid() != rustix::process::Pid::INIT {
        return Err(io::Error::other("only the first process of a pid namespace may end it"));
    }
    // SAFETY: kill takes integers only.
    match unsafe { libc::kill(-1, libc::SIGKILL) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the process group of this process, getpgrp(2), or `None` if the group leader is outside
/// the pid namespace.
pub fn own_group() -> Option<rustix::process::Pid> {
    // SAFETY: getpgrp takes nothing, reads no memory and cannot fail.
    rustix::process::Pid::from_raw(unsafe { libc::getpgrp() })
}

/// Returns the resources that all waited-for children of this process used together, getrusage(2).
pub fn children_usage() -> ResourceUsage {
    // SAFETY: rusage is plain integers; all zeroes is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live rusage; RUSAGE_CHILDREN cannot fail with a valid pointer.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    ResourceUsage::from(&usage)
}

/// Returns the processor time that all threads of another process have used so far,
/// clock_getcpuclockid(3).
pub fn cpu_time(pid: i32) -> io::Result<Duration> {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: the pointer is to a live clockid_t, and nothing else is written; a process that is
    // gone is an error.
    let errno = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
    if errno != 0 {
        return Err(io::Error::from_raw_os_error(errno));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec, and nothing else is written; a clock whose process
    // is gone is an error.
    match unsafe { libc::clock_gettime(clock, &raw mut time) } {
        0 => Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Exits this process immediately, without running exit handlers that belong to the process from
/// which it was forked.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit never returns and reads no memory.
    unsafe { libc::_exit(code) }
}

/// Duplicates a descriptor to a given number, dup2(2). The duplicate stays open across exec.
pub fn duplicate_to(fd: &OwnedFd, number: i32) -> io::Result<()> {
    // SAFETY: dup2 takes integers only, and closes the previous descriptor of that number. The only
    // caller is a child about to exec, whose own descriptors are all above the numbers that it
    // assigns.
    match unsafe { libc::dup2(fd.as_raw_fd(), number) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Duplicates an open descriptor by its number, fcntl(2). Fails with `EBADF` if it is not open.
pub fn duplicate(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: F_DUPFD_CLOEXEC takes an integer; a number that is not open is refused with EBADF.
    match unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the kernel returned a new descriptor that nobody else owns.
        copy => Ok(unsafe { OwnedFd::from_raw_fd(copy) }),
    }
}

/// Returns freed memory of this process to the system, as far as its allocator can.
pub fn release_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) takes any number, and takes the locks that it needs.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Raises the soft limit of open descriptors to the hard limit. The default soft limit is low for
/// the sake of programs that still use select(2).
pub fn raise_descriptor_limit() -> io::Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}
