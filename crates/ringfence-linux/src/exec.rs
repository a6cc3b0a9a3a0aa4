//! The command's own process, from its fork to its exec.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::confine;
use crate::control::{self, ControlReport};
use crate::init::{KeptDescriptors, SetupError, StepContext};
use crate::launch::{Confinement, Exec, Launch, TerminalMode};
use crate::sys::process;
use crate::sys::signal::{SignalMask, restore_default};

/// Executes the command in this process, or reports the error and exits.
pub(crate) fn run(launch: &Launch, held: &KeptDescriptors, first: Pid) -> ! {
    let report = match prepare(launch, held, first) {
        Ok(()) => ControlReport::ExecFailed { errno: exec(&launch.exec) },
        Err(error) => error.report(),
    };
    let _ = control::send(&held.control, &report); // no other reader could receive the report
    process::exit_now(127)
}

fn prepare(launch: &Launch, held: &KeptDescriptors, first: Pid) -> Result<(), SetupError> {
    if !matches!(launch.confinement, Confinement::Namespaces { .. }) {
        // Outside a pid namespace the first process is not process 1, so another process could kill
        // it. The command would then outlive the first process.
        set_parent_process_death_signal(Some(Signal::KILL))
            .step("tie the command to its first process")?;
        if getppid() != Some(first) {
            process::exit_now(125);
        }
    }
    match launch.terminal {
        TerminalMode::Detached => {
            rustix::process::setsid().step("make a session")?;
        }
        TerminalMode::Own => {
            rustix::process::setsid().step("make a session")?;
            rustix::process::ioctl_tiocsctty(rustix::stdio::stdin()).step("take the terminal")?;
        }
        TerminalMode::Background => {
            rustix::process::setpgid(None, None).step("make a process group")?
        }
        TerminalMode::Foreground => {
            rustix::process::setpgid(None, None).step("make a process group")?;
            if let Some(terminal) = &held.terminal {
                // SIGTTOU is blocked like every signal, so a background group may call tcsetpgrp
                // (termios(3)).
                // The caller may have lost its terminal, so the error is ignored.
                let _ = rustix::termios::tcsetpgrp(terminal, rustix::process::getpid());
            }
        }
    }
    rustix::process::chdir(&launch.exec.directory)
        .step(format_args!("enter the directory `{}`", launch.exec.directory.display()))?;
    match &launch.confinement {
        Confinement::Landlock { rules, sockets } => {
            confine::confine_in_place(rules, *sockets, &held.passed)?
        }
        Confinement::Delegated => confine::forbid_core_dumps()?,
        Confinement::Namespaces { .. } | Confinement::Bare => {}
    }
    for (number, fd) in &held.passed {
        process::duplicate_to(fd, *number).step(format_args!("pass descriptor {number}"))?;
    }
    restore_default(libc::SIGPIPE);
    SignalMask::empty().set().step("unblock signals")?;
    Ok(())
}

/// Executes the program, and looks it up in `PATH` as execvp(3) does.
///
/// Returns the most informative errno: EACCES of one candidate wins over ENOENT of the others.
pub(crate) fn exec(exec: &Exec) -> i32 {
    let try_one = |path: &CStr| {
        process::execve(path, &exec.argv, &exec.env).raw_os_error().unwrap_or(libc::EIO)
    };
    if exec.program.is_empty() {
        return libc::ENOENT; // joined with the empty name, every directory of PATH would match
    }
    if exec.program.as_bytes().contains(&b'/') {
        return try_one(&exec.program);
    }
    let path = exec.env.iter().find_map(|variable| variable.as_bytes().strip_prefix(b"PATH="));
    let mut error = libc::ENOENT;
    for directory in path.unwrap_or(b"/usr/local/bin:/usr/bin:/bin").split(|byte| *byte == b':') {
        let directory = if directory.is_empty() { b"." } else { directory };
        let candidate = std::path::Path::new(std::ffi::OsStr::from_bytes(directory))
            .join(std::ffi::OsStr::from_bytes(exec.program.as_bytes()));
        let Ok(candidate) = CString::new(candidate.as_os_str().as_bytes()) else { continue };
        match try_one(&candidate) {
            libc::ENOENT | libc::ENOTDIR => {}
            libc::EACCES => error = libc::EACCES,
            errno => return errno,
        }
    }
    error
}
