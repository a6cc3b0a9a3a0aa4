//! Learns the end of a command from the command itself, and decides whether to believe the command.
//!
//! The kernel reports the end of a process only after it has freed the memory of the process. For
//! an interpreter, that takes longer than most code does. So a command of ours that has done all
//! its work tells its exit code, and waits. This module decides whether that is enough. The command
//! may claim any exit code, because it could exit with any. But it must be the only process that is
//! left in its sandbox, and its resource usage must be known without waiting for its end.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fs_err::File;
use fs_err::os::unix::fs::FileExt;
use ringfence_linux::CommandEnding;
use ringfence_linux::processes::ProcProcess;
use ringfence_linux::sys::process::{ResourceUsage, cpu_time};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

/// Longest message, in bytes. A message is an exit code.
const MAX_MESSAGE_BYTES: usize = 16;
/// Number of bytes of `/proc/PID/status` that are read. The number is small, because the caller
/// waits for the end meanwhile.
const STATUS_BYTES: usize = 4096;

/// Socket on which a command tells its exit code before it exits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EndReport<'a> {
    channel: &'a OwnedFd,
    tree: Option<&'a CommandTree>,
    was_told: &'a Cell<Option<bool>>,
}

impl<'a> EndReport<'a> {
    /// Returns a receiver for `channel`, a socket that keeps messages apart and whose other end the
    /// command holds. Without `tree` the command is never believed.
    ///
    /// `was_told` is set to whether the command has read what it was told, as soon as that is
    /// known. A command that sends anything has read that, whatever it leaves unread later. A
    /// command that exits and leaves a message unread has not, and the socket reports that only
    /// once.
    pub(crate) fn on(
        channel: &'a OwnedFd,
        tree: Option<&'a CommandTree>,
        was_told: &'a Cell<Option<bool>>,
    ) -> EndReport<'a> {
        EndReport { channel, tree, was_told }
    }

    pub(crate) fn channel(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Receives the exit code. Returns `None` if there is none, or if the end of the process must
    /// be awaited; in the second case the command was told to exit.
    pub(crate) fn hear(self) -> Option<CommandEnding> {
        let mut word = [0; MAX_MESSAGE_BYTES];
        let received = rustix::net::recv(self.channel, &mut word[..], RecvFlags::DONTWAIT);
        self.was_told.set(match received {
            Ok(_) => Some(true),
            Err(Errno::CONNRESET) => Some(false),
            Err(_) => None,
        });
        let (_, length) = received.ok()?;
        let code =
            std::str::from_utf8(&word[..length]).ok().and_then(|word| word.parse::<u8>().ok());
        let ending = code.zip(self.tree.and_then(CommandTree::usage)).map(|(code, usage)| {
            CommandEnding { exit_code: Some(code.into()), signal: None, usage, swept: true }
        });
        if ending.is_none() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let _ = rustix::net::send(self.channel, b"exit", flags); // the command may have exited
        }
        ending
    }
}

/// A first process and the command. The command is the only child of the first process as long as
/// nothing runs that the command has started.
#[derive(Debug)]
pub(crate) struct CommandTree {
    first: ProcProcess,
    command: ProcProcess,
    /// `/proc/PID/status` of the command, which contains its memory usage.
    status: File,
}

impl CommandTree {
    /// Finds a command that has done nothing yet, as the child of a first process.
    pub(crate) fn find(first: i32) -> Option<CommandTree> {
        let first = ProcProcess::open(first)?;
        let [command] = first.children(&first.stat()?)?[..] else { return None };
        let status = File::open(format!("/proc/{command}/status")).ok()?;
        Some(CommandTree { first, command: ProcProcess::open(command)?, status })
    }

    /// Returns the resource usage of the command. Returns `None` if the command is not alone, or if
    /// one of the two processes has waited for another process, because only the end of the command
    /// would tell the memory usage of that process.
    pub(crate) fn usage(&self) -> Option<ResourceUsage> {
        let has_only = |process: &ProcProcess, children: &[i32]| {
            let stat = process.stat()?;
            (!stat.has_waited() && process.children(&stat)? == children).then_some(())
        };
        has_only(&self.first, &[self.command.id()])?;
        has_only(&self.command, &[])?;
        let mut buffer = [0; STATUS_BYTES];
        let length = self.status.read_at(&mut buffer, 0).ok()?;
        let status = std::str::from_utf8(&buffer[..length]).ok()?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        let peak: u64 = peak.trim().strip_suffix("kB")?.trim().parse().ok()?;
        let time = cpu_time(self.command.id()).ok()?;
        Some(ResourceUsage { cpu_micros: time.as_micros().try_into().ok()?, max_rss: peak * 1024 })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Starts a process that runs `line`, prints a line, and waits for the end of its input.
    fn process(line: &str) -> Child {
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("{line}; echo done; read end")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "done\n");
        child
    }

    #[test]
    fn the_usage_of_an_only_child_is_known() {
        // The process of the test has threads, and children of other tests. So a shell takes the
        // role of the first process.
        let mut first = process("sleep 600 > /dev/null & trap 'kill $!' EXIT");
        let usage = CommandTree::find(first.id().cast_signed()).unwrap().usage();
        first.stdin.take().unwrap().write_all(b"\n").unwrap();
        first.wait().unwrap();
        assert!(usage.is_some_and(|usage| usage.max_rss > 0), "{usage:?}");
    }
}
