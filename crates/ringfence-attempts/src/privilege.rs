//! Attempts to hold privileges, to regain them, or to gain them through a privileged program.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use ringfence_core::Clause::Privilege;
use ringfence_linux::sys::attempt;
use rustix::process::{Gid, Pid, Resource, Rlimit, Uid, WaitId, WaitIdOptions};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::{Attempt, denied, impossible, no_result};

/// User id that is not the caller's.
const OTHER_USER_ID: u32 = 54_321;

pub(super) const ATTEMPTS: &[Attempt] = &[
    denied("hold-capability", Privilege, "hold any capability", |_| {
        read_capabilities(Path::new("/proc/self/status"))
    }),
    denied("regain-capability", Privilege, "put a capability back into one's own set", |_| {
        let wanted = CapabilitySet::SYS_ADMIN;
        let sets = CapabilitySets {
            effective: wanted,
            permitted: wanted,
            inheritable: CapabilitySet::empty(),
        };
        rustix::thread::set_capabilities(None, sets)?;
        Ok("it is back".to_owned())
    }),
    denied(
        "run-setuid-program",
        Privilege,
        "gain capabilities by a program with the set-user-id bit",
        |context| {
            let program = context
                .paths
                .setuid
                .as_deref()
                .ok_or_else(|| impossible("no such program was found"))?;
            program_capabilities(program)
        },
    ),
    denied(
        "execute-as-root",
        Privilege,
        "gain capabilities by executing a program as user 0",
        |_| program_capabilities(Path::new("/bin/true")),
    ),
    denied(
        "gain-privileges-later",
        Privilege,
        "leave the way open for privileges to be gained",
        |_| {
            let status = fs_err::read_to_string("/proc/self/status")?;
            match field(&status, "NoNewPrivs") {
                Some("0") => Ok("no_new_privs is not set".to_owned()),
                _ => Err(no_result("no_new_privs is set")),
            }
        },
    ),
    denied("change-user", Privilege, "become another user", |_| {
        rustix::thread::set_thread_uid(Uid::from_raw(OTHER_USER_ID))?;
        Ok("it is another user".to_owned())
    }),
    denied("change-groups", Privilege, "join another group", |_| {
        rustix::thread::set_thread_groups(&[Gid::from_raw(OTHER_USER_ID)])?;
        Ok("it is in another group".to_owned())
    }),
    denied("change-owner", Privilege, "give a file of the workspace to another user", |context| {
        let path = context.paths.workspace.join("given-away");
        fs_err::write(&path, "x")?;
        rustix::fs::chown(&path, Some(Uid::from_raw(OTHER_USER_ID)), None)?;
        Ok("it has another owner".to_owned())
    }),
    denied("raise-priority", Privilege, "raise one's own priority", |_| {
        rustix::process::setpriority_process(None, -5)?;
        Ok("it was raised".to_owned())
    }),
    denied("raise-limit", Privilege, "raise a hard resource limit", |_| {
        let now = rustix::process::getrlimit(Resource::Nofile);
        let more = now.maximum.ok_or_else(|| impossible("there is no limit to raise"))? + 1;
        rustix::process::setrlimit(
            Resource::Nofile,
            Rlimit { current: now.current, maximum: Some(more) },
        )?;
        Ok("it was raised".to_owned())
    }),
    denied("real-time", Privilege, "run in a real-time class, before everything else", |_| {
        attempt::enter_real_time_class().map(|()| "it runs in one".to_owned())
    }),
    denied("escape-memory-killer", Privilege, "be spared when memory runs out", |_| {
        fs_err::write("/proc/self/oom_score_adj", "-1000").map(|()| "it will be spared".to_owned())
    }),
];

/// Returns the capabilities of a program that has ended but has not been waited for.
fn program_capabilities(program: &Path) -> io::Result<String> {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let id = Pid::from_child(&child);
    rustix::process::waitid(WaitId::Pid(id), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
    let found = read_capabilities(Path::new(&format!("/proc/{}/status", child.id())));
    child.wait()?;
    found
}

fn read_capabilities(status: &Path) -> io::Result<String> {
    let status = fs_err::read_to_string(status)?;
    match field(&status, "CapEff") {
        Some(none) if none.bytes().all(|byte| byte == b'0') => Err(no_result("there is none")),
        Some(some) => Ok(format!("the set is {some}")),
        None => Err(impossible("/proc does not say")),
    }
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let after_name =
        |line: &'a str| line.strip_prefix(name).and_then(|rest| rest.strip_prefix(':'));
    status.lines().find_map(after_name).map(str::trim)
}
