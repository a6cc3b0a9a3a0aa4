//! What a command of ours says itself of its end, and when it is taken at its word.
//!
//! The kernel says that a process has ended only after it has taken its memory down, and that of an interpreter takes
//! longer than most code does. A command that has done all it will do says what it would exit with, and waits. Whether it
//! may be believed is found out here: it can claim any exit code, as it can exit with any, but it must be all that is left
//! of its sandbox, and what it used must be known without waiting for its end.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fs_err::File;
use fs_err::os::unix::fs::FileExt;
use ringfence_linux::Ending;
use ringfence_linux::processes::Process;
use ringfence_linux::sys::process::{Usage, cpu_time};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

/// The longest word: an exit code.
const LONGEST: usize = 16;
/// How much is read of what tells of the command's memory: somebody waits for the end meanwhile.
const PIECE: usize = 4096;

/// Where a command says what it is about to exit with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastWord<'a> {
    channel: &'a OwnedFd,
    tree: Option<&'a Tree>,
    was_told: &'a Cell<Option<bool>>,
}

impl<'a> LastWord<'a> {
    /// A command holds the other end of this socket, whose messages are kept apart. Without its tree it is never taken at
    /// its word. `was_told` becomes whether it has read what it was told, as soon as that is known: one that says anything
    /// has, whatever it leaves unread later; one that goes and leaves something unread has not, and a socket says so once.
    pub(crate) fn on(channel: &'a OwnedFd, tree: Option<&'a Tree>, was_told: &'a Cell<Option<bool>>) -> LastWord<'a> {
        LastWord { channel, tree, was_told }
    }

    pub(crate) fn channel(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Hears it. None when there is none, or when the end itself must be waited for; then the command was told to exit.
    pub(crate) fn hear(self) -> Option<Ending> {
        let mut word = [0; LONGEST];
        let received = rustix::net::recv(self.channel, &mut word[..], RecvFlags::DONTWAIT);
        self.was_told.set(match received {
            Ok(_) => Some(true),
            Err(Errno::CONNRESET) => Some(false),
            Err(_) => None,
        });
        let (_, length) = received.ok()?;
        let code = std::str::from_utf8(&word[..length]).ok().and_then(|word| word.parse::<u8>().ok());
        let ending = code.zip(self.tree.and_then(Tree::usage)).map(|(code, usage)| Ending {
            exit_code: Some(code.into()),
            signal: None,
            usage,
            swept: true,
        });
        if ending.is_none() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let _ = rustix::net::send(self.channel, b"exit", flags); // one that is gone has exited
        }
        ending
    }
}

/// A first process and the command, which is its only child while nothing runs that the command has started.
#[derive(Debug)]
pub(crate) struct Tree {
    first: Process,
    command: Process,
    /// Tells how much memory the command has.
    status: File,
}

impl Tree {
    /// Makes the acquaintance of a command that has done nothing yet, below a first process.
    pub(crate) fn of(first: i32) -> Option<Tree> {
        let first = Process::open(first)?;
        let [command] = first.children(&first.stat()?)?[..] else { return None };
        let status = File::open(format!("/proc/{command}/status")).ok()?;
        Some(Tree { first, command: Process::open(command)?, status })
    }

    /// What the command has used; none unless it is alone, and neither of the two has waited for another, whose memory
    /// only its end would tell of.
    pub(crate) fn usage(&self) -> Option<Usage> {
        let has_only = |process: &Process, children: &[i32]| {
            let stat = process.stat()?;
            (!stat.has_waited() && process.children(&stat)? == children).then_some(())
        };
        has_only(&self.first, &[self.command.id()])?;
        has_only(&self.command, &[])?;
        let mut buffer = [0; PIECE];
        let length = self.status.read_at(&mut buffer, 0).ok()?;
        let status = std::str::from_utf8(&buffer[..length]).ok()?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        let peak: u64 = peak.trim().strip_suffix("kB")?.trim().parse().ok()?;
        let time = cpu_time(self.command.id()).ok()?;
        Some(Usage { cpu_micros: time.as_micros().try_into().ok()?, max_rss: peak * 1024 })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A process that does `line`, says so, and waits for its input to end.
    fn process(line: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{line}; echo done; read end")]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "done\n");
        child
    }

    #[test]
    fn what_the_only_process_below_one_used_is_known() {
        // The test's own process has threads, and other tests' children: a shell stands for the first process.
        let mut first = process("sleep 600 > /dev/null & trap 'kill $!' EXIT");
        let usage = Tree::of(first.id().cast_signed()).unwrap().usage();
        first.stdin.take().unwrap().write_all(b"\n").unwrap();
        first.wait().unwrap();
        assert!(usage.is_some_and(|usage| usage.max_rss > 0), "{usage:?}");
    }
}
