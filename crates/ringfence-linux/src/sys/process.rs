//! Processes: clone, and the attributes that `rustix` does not reach.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Resets signal handlers in the child; too wide for the type that libc gives it.
const CLONE_CLEAR_SIGHAND: u64 = 1 << 32;
/// Starts the child in the cgroup v2 of a directory descriptor; too wide for the type that libc gives it.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// Which side of a clone this is.
#[derive(Debug)]
pub enum Side {
    /// The caller, with a descriptor for the new process and its id.
    Parent {
        /// Becomes readable when the new process ends.
        pidfd: OwnedFd,
        /// Its process id, as the caller sees it.
        pid: i32,
    },
    /// The new process.
    Child,
}

/// Forks with namespaces, clone3(2): `flags` are `CLONE_NEW*`; `cgroup` is a cgroup v2 directory to be born in.
///
/// A process with more than one thread is refused: the child of a fork has only the calling thread, and locks
/// that the others held stay locked for ever.
pub fn clone3(flags: u64, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Side> {
    single_threaded()?;
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
    // SAFETY: clone3 reads `size` bytes of `args` and writes one int to `args.pidfd`, both alive here. Without
    // CLONE_VM the child runs on its own copy of this stack; this process has one thread, so no lock is lost.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Side::Child),
        pid => {
            // SAFETY: on success the kernel stored a new descriptor that nobody else owns (CLONE_PIDFD).
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Side::Parent { pidfd, pid: pid as i32 })
        }
    }
}

/// Forks, clone(2): what [`clone3`] does without namespaces and cgroup, where a filter refuses clone3(2).
pub fn fork() -> io::Result<Side> {
    single_threaded()?;
    let mut pidfd: libc::c_int = -1;
    let flags = libc::CLONE_PIDFD | libc::SIGCHLD;
    // SAFETY: with a null stack the child runs on its own copy of this one, as after fork(2); the kernel writes one int
    // to `pidfd`, which is alive here. This process has one thread, so no lock is lost.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0usize, &raw mut pidfd, 0usize, 0usize) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Side::Child),
        pid => {
            // SAFETY: on success the kernel stored a new descriptor that nobody else owns (CLONE_PIDFD).
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Side::Parent { pidfd, pid: pid as i32 })
        }
    }
}

/// Starts a child that runs `child`, and exits with what it returns, in this process's own memory while this process waits for it to execute
/// another program or to end, clone(2) with `CLONE_VM | CLONE_VFORK`: nothing is copied, and no page is touched
/// twice. The filter that a sandbox is confined by refuses clone3(2), whose flags it cannot see, and this works
/// under it.
pub fn vfork(child: &mut dyn FnMut() -> i32) -> io::Result<rustix::process::Pid> {
    const STACK: usize = 256 * 1024;
    extern "C" fn enter(child: *mut libc::c_void) -> libc::c_int {
        let child = child.cast::<&mut dyn FnMut() -> i32>();
        // SAFETY: the pointer is to the reference below, which outlives the call: its frame is suspended until
        // this process has gone its own way.
        let child = unsafe { &mut *child };
        child()
    }
    single_threaded()?;
    let mut stack = vec![0u8; STACK];
    let mut child = child;
    let argument = (&raw mut child).cast();
    let top = stack.as_mut_ptr_range().end;
    // The stack grows down and must be aligned to 16 bytes (System V ABI).
    let top = top.wrapping_sub(top.addr() % 16).cast();
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack is ours, writable, and alive until the child has left it (CLONE_VFORK). This process has
    // one thread and is suspended meanwhile, so the child alone uses the shared memory.
    match unsafe { libc::clone(enter, top, flags, argument) } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(rustix::process::Pid::from_raw(pid).expect("a child's id is positive")),
    }
}

/// Fails unless the calling process has exactly one thread.
fn single_threaded() -> io::Result<()> {
    // A thread that was joined is counted for a moment more: a join waits for it to say that it ends, and the kernel
    // lets go of it after that.
    const LOOKS: u32 = 100;
    const MOMENT: Duration = Duration::from_micros(100);
    let mut looks = 0;
    loop {
        // A directory's link count is 2 plus its subdirectories, and each thread is one (proc(5)).
        let threads = rustix::fs::stat("/proc/self/task")?.st_nlink.saturating_sub(2);
        match threads {
            1 => return Ok(()),
            count if looks == LOOKS => {
                return Err(io::Error::other(format!("cannot fork a process that has {count} threads")));
            }
            _ => looks += 1,
        }
        std::thread::sleep(MOMENT);
    }
}

/// Replaces this process image, execve(2). Returns only to say why it could not.
pub fn execve(path: &CStr, argv: &[CString], env: &[CString]) -> io::Error {
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (argv, env) = (pointers(argv), pointers(env));
    // SAFETY: path is NUL-terminated; both arrays end with a null pointer and their strings outlive the call.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    io::Error::last_os_error()
}

/// Makes a new, empty session keyring, keyctl(2) `KEYCTL_JOIN_SESSION_KEYRING`.
pub fn join_new_session_keyring() -> io::Result<()> {
    // SAFETY: a null name asks for an anonymous keyring; no memory is read.
    let result = unsafe { libc::syscall(libc::SYS_keyctl, libc::KEYCTL_JOIN_SESSION_KEYRING, 0usize) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Enters a new user namespace, user_namespaces(7); the process must have one thread.
pub fn enter_new_user_namespace() -> io::Result<()> {
    // SAFETY: unshare reads no memory; CLONE_NEWUSER changes neither memory nor the descriptor table.
    match unsafe { libc::unshare(libc::CLONE_NEWUSER) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes the cgroup that this process is in the root of what it sees of cgroups, cgroup_namespaces(7).
pub fn enter_new_cgroup_namespace() -> io::Result<()> {
    // SAFETY: unshare reads no memory; CLONE_NEWCGROUP changes neither memory nor the descriptor table.
    match unsafe { libc::unshare(libc::CLONE_NEWCGROUP) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Closes every descriptor from `first` to `last`, close_range(2), for a process that owns nothing there.
///
/// Descriptors that an `OwnedFd` of this process still refers to must not be in the range.
pub fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: close_range takes integers only. The caller vouches that no owner is left for the range; this is
    // called once, in a child that is about to exec or that has moved what it needs below `first`.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Waits for one child without blocking, wait4(2): its id, raw status and resource usage; `None` when none
/// has changed. `ECHILD` when there is none at all.
pub fn wait_any() -> io::Result<Option<Waited>> {
    let mut status = 0;
    // SAFETY: rusage is plain integers; all zeroes is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let options = libc::WNOHANG | libc::WUNTRACED;
    // SAFETY: both pointers are to live, writable values of the types wait4 fills.
    let pid = unsafe { libc::wait4(-1, &raw mut status, options, &raw mut usage) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Some(Waited { pid, status, usage: Usage::from(&usage) })),
    }
}

/// A child that changed state.
#[derive(Debug, Clone, Copy)]
pub struct Waited {
    /// Which.
    pub pid: i32,
    /// Its wait status, as wait(2) encodes it.
    pub status: i32,
    /// What it and its waited-for children used.
    pub usage: Usage,
}

/// What a process and its waited-for children used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Usage {
    /// Processor time, in microseconds.
    pub cpu_micros: u64,
    /// Largest resident set, in bytes.
    pub max_rss: u64,
}

impl From<&libc::rusage> for Usage {
    fn from(usage: &libc::rusage) -> Self {
        let micros = |time: libc::timeval| (time.tv_sec as u64) * 1_000_000 + time.tv_usec as u64;
        Usage { cpu_micros: micros(usage.ru_utime) + micros(usage.ru_stime), max_rss: usage.ru_maxrss as u64 * 1024 }
    }
}

/// Kills every process that this one may signal but itself, kill(2) with -1: for the first process of a pid namespace
/// that is everybody in it.
pub fn kill_everyone() -> io::Result<()> {
    // The one process that must not call this is one that sees others than its own.
    if rustix::process::getpid() != rustix::process::Pid::INIT {
        return Err(io::Error::other("only the first process of a pid namespace may end it"));
    }
    // SAFETY: kill takes integers only.
    match unsafe { libc::kill(-1, libc::SIGKILL) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The process group of this process, getpgrp(2); none when its leader is outside the pid namespace.
pub fn own_group() -> Option<rustix::process::Pid> {
    // SAFETY: getpgrp takes nothing, reads no memory and cannot fail.
    rustix::process::Pid::from_raw(unsafe { libc::getpgrp() })
}

/// What every waited-for child of this process used together, getrusage(2).
pub fn children_usage() -> Usage {
    // SAFETY: rusage is plain integers; all zeroes is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live rusage; RUSAGE_CHILDREN cannot fail with a valid pointer.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    Usage::from(&usage)
}

/// The processor time that all threads of another process have used so far, clock_getcpuclockid(3).
pub fn cpu_time(pid: i32) -> io::Result<Duration> {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: the pointer is to a live clockid_t, which is all that is written; a process that is gone is an error.
    let errno = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
    if errno != 0 {
        return Err(io::Error::from_raw_os_error(errno));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec, which is all that is written; a clock whose process is gone is an error.
    match unsafe { libc::clock_gettime(clock, &raw mut time) } {
        0 => Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends this process now, without running exit handlers that belong to the process it was forked from.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit never returns and reads no memory.
    unsafe { libc::_exit(code) }
}

/// Duplicates a descriptor to a given number, which the next exec keeps, dup2(2).
pub fn place(fd: &OwnedFd, number: i32) -> io::Result<()> {
    // SAFETY: dup2 takes integers only. What had the number is closed; this is called in a child about to exec,
    // whose own descriptors are all above the numbers that are given away.
    match unsafe { libc::dup2(fd.as_raw_fd(), number) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Duplicates a descriptor that this process has open by number, fcntl(2); `EBADF` when it has none.
pub fn duplicate(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: F_DUPFD_CLOEXEC takes an integer; a number that is not open is refused with EBADF.
    match unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the kernel returned a new descriptor that nobody else owns.
        copy => Ok(unsafe { OwnedFd::from_raw_fd(copy) }),
    }
}

/// Gives memory back to the system that this process has freed and no longer needs, as far as its allocator can.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) takes any number, and locks what it looks at.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Lets this process have as many descriptors open as it may: the usual limit is for programs that still use select(2).
pub fn raise_descriptor_limit() -> io::Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}
