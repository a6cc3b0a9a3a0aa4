//! Attempts on shared memory, message queues and keys of the host.

use std::ffi::CString;
use std::io;

use ringfence_core::Clause::Ipc;
use ringfence_linux::sys::attempt::{MessageQueue, NamedMessageQueue, SharedSegment, UserKey};

use super::{Attempt, AttemptContext, denied, impossible, no_result};

pub(super) const ATTEMPTS: &[Attempt] = &[
    denied(
        "attach-shared-memory",
        Ipc,
        "attach a System V shared memory segment of the host",
        |context| {
            SharedSegment::attach(
                context
                    .segment
                    .ok_or_else(|| impossible("the host has no System V shared memory"))?,
            )?;
            Ok("it was attached".to_owned())
        },
    ),
    denied("send-message", Ipc, "send to a System V message queue of the host", |context| {
        MessageQueue::send(
            context.queue.ok_or_else(|| impossible("the host has no System V message queues"))?,
        )?;
        Ok("it was sent".to_owned())
    }),
    denied("open-message-queue", Ipc, "open a POSIX message queue of the host", |context| {
        NamedMessageQueue::open(&queue_name(context)?).map(|()| "it was opened".to_owned())
    }),
    denied("open-shared-memory", Ipc, "open a POSIX shared memory object of the host", |context| {
        let path = std::path::Path::new("/dev/shm").join(&context.name);
        fs_err::File::open(path).map(|_| "it was opened".to_owned())
    }),
    denied("find-key", Ipc, "find a key in the user's keyring", |context| {
        UserKey::search(&key_name(context)?).map(|_| "it was found".to_owned())
    }),
    denied("list-keys", Ipc, "list the keys of the user in /proc/keys", |_| {
        match fs_err::read_to_string("/proc/keys")?.lines().count() {
            0 => Err(no_result("none are listed")),
            count => Ok(format!("{count} are listed")),
        }
    }),
];

fn queue_name(context: &AttemptContext) -> io::Result<CString> {
    CString::new(format!("/{}", context.name))
        .map_err(|_| impossible("the name has a NUL byte in it"))
}

fn key_name(context: &AttemptContext) -> io::Result<CString> {
    CString::new(context.name.as_str()).map_err(|_| impossible("the name has a NUL byte in it"))
}
