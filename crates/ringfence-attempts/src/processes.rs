//! Attempts on processes outside the sandbox.

use std::io;

use ringfence_core::Clause::Processes;
use ringfence_linux::sys::attempt;
use rustix::process::{Pid, PidfdFlags, Resource, Signal};

use super::{Attempt, AttemptContext, denied, impossible, refused};

pub(super) const ATTEMPTS: &[Attempt] = &[
    denied("see-process", Processes, "see a process of the host in /proc", |context| {
        let path = format!("/proc/{}/stat", context.neighbour.process);
        fs_err::read_to_string(path).map(|_| "it is there".to_owned())
    }),
    denied(
        "read-process-arguments",
        Processes,
        "read the arguments of a process of the host",
        |context| {
            fs_err::read(format!("/proc/{}/cmdline", context.neighbour.process))
                .map(|_| "they were read".to_owned())
        },
    ),
    denied(
        "read-process-environment",
        Processes,
        "read the environment of a process of the host",
        |context| {
            fs_err::read(format!("/proc/{}/environ", context.neighbour.process))
                .map(|_| "it was read".to_owned())
        },
    ),
    denied(
        "open-process-memory",
        Processes,
        "open the memory of a process of the host",
        |context| {
            fs_err::File::open(format!("/proc/{}/mem", context.neighbour.process))
                .map(|_| "it was opened".to_owned())
        },
    ),
    refused(
        "read-process-memory",
        Processes,
        "read the memory of a process of the host by process_vm_readv",
        &[libc::EPERM, libc::ESRCH],
        |context| attempt::read_memory(context.neighbour.process).map(|_| "it was read".to_owned()),
    ),
    denied("trace-process", Processes, "trace a process of the host", |context| {
        attempt::trace_process(context.neighbour.process).map(|()| "it was traced".to_owned())
    }),
    denied("signal-process", Processes, "send a signal to a process of the host", |context| {
        rustix::process::kill_process(neighbour(context)?, Signal::CONT)?;
        Ok("it was sent".to_owned())
    }),
    denied("hold-process", Processes, "get a descriptor of a process of the host", |context| {
        rustix::process::pidfd_open(neighbour(context)?, PidfdFlags::empty())?;
        Ok("a descriptor was had".to_owned())
    }),
    denied("slow-process", Processes, "lower the priority of a process of the host", |context| {
        rustix::process::setpriority_process(Some(neighbour(context)?), 1)?;
        Ok("it was lowered".to_owned())
    }),
    denied(
        "limit-process",
        Processes,
        "change a resource limit of a process of the host",
        |context| {
            let limit = rustix::process::getrlimit(Resource::Core);
            rustix::process::prlimit(Some(neighbour(context)?), Resource::Core, limit)?;
            Ok("it was changed".to_owned())
        },
    ),
    denied("pin-process", Processes, "move a process of the host to other processors", |context| {
        let own = rustix::thread::sched_getaffinity(None)?;
        rustix::thread::sched_setaffinity(Some(neighbour(context)?), &own)?;
        Ok("it was moved".to_owned())
    }),
];

fn neighbour(context: &AttemptContext) -> io::Result<Pid> {
    Pid::from_raw(context.neighbour.process)
        .ok_or_else(|| impossible("there is no process to reach"))
}
