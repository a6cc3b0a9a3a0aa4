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
use ringfence_linux::sys::process::{Usage, cpu_time};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

/// The longest word: an exit code.
const LONGEST: usize = 16;
/// How much of a file below `/proc` is read: this is done while somebody waits for the end, and each reading takes its time.
const PIECE: usize = 4096;

/// Where a command says what it is about to exit with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastWord<'a> {
    channel: &'a OwnedFd,
    tree: Option<&'a Tree>,
    is_unread: &'a Cell<bool>,
}

impl<'a> LastWord<'a> {
    /// A command holds the other end of this socket, whose messages are kept apart. Without its tree it is never taken at
    /// its word. `is_unread` becomes true if it went and left unread what it was told, which a socket says but once.
    pub(crate) fn on(channel: &'a OwnedFd, tree: Option<&'a Tree>, is_unread: &'a Cell<bool>) -> LastWord<'a> {
        LastWord { channel, tree, is_unread }
    }

    pub(crate) fn channel(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Hears it. None when there is none, or when the end itself must be waited for; then the command was told to exit.
    pub(crate) fn hear(self) -> Option<Ending> {
        let mut word = [0; LONGEST];
        let received = rustix::net::recv(self.channel, &mut word[..], RecvFlags::DONTWAIT);
        self.is_unread.set(received == Err(Errno::CONNRESET));
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
}

impl Tree {
    /// Makes the acquaintance of a command that has done nothing yet, below a first process.
    pub(crate) fn of(first: i32) -> Option<Tree> {
        let first = Process::open(first)?;
        let [command] = first.standing()?.children[..] else { return None };
        Some(Tree { first, command: Process::open(command)? })
    }

    /// What the command has used; none unless it is alone, and neither of the two has waited for another, whose memory
    /// only its end would tell of.
    pub(crate) fn usage(&self) -> Option<Usage> {
        let alone = |children| Standing { children, has_waited: false };
        if self.first.standing()? != alone(vec![self.command.id]) || self.command.standing()? != alone(Vec::new()) {
            return None;
        }
        let mut buffer = [0; PIECE];
        let status = read(&self.command.status, &mut buffer)?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        let peak: u64 = peak.trim().strip_suffix("kB")?.trim().parse().ok()?;
        let time = cpu_time(self.command.id).ok()?;
        Some(Usage { cpu_micros: time.as_micros().try_into().ok()?, max_rss: peak * 1024 })
    }
}

/// What the kernel tells of a process, opened before somebody waits for it.
#[derive(Debug)]
struct Process {
    id: i32,
    stat: File,
    status: File,
    /// The children of its main thread.
    children: File,
}

/// How a process stands to others.
#[derive(Debug, PartialEq, Eq)]
struct Standing {
    children: Vec<i32>,
    /// Whether it has waited for a child: any child has had page faults, and they are its parent's from then on.
    has_waited: bool,
}

impl Process {
    fn open(id: i32) -> Option<Process> {
        let file = |name: &str| File::open(format!("/proc/{id}/{name}")).ok();
        let children = file(&format!("task/{id}/children"))?;
        Some(Process { id, stat: file("stat")?, status: file("status")?, children })
    }

    fn standing(&self) -> Option<Standing> {
        // Counted from the state on, which follows the name (proc_pid_stat(5)).
        const FAULTS_OF_CHILDREN: usize = 8;
        const THREADS: usize = 17;
        let mut buffer = [0; PIECE];
        let (_, fields) = read(&self.stat, &mut buffer)?.rsplit_once(") ")?;
        let field = |index| fields.split(' ').nth(index);
        let has_waited = field(FAULTS_OF_CHILDREN)? != "0";
        let has_one_thread = field(THREADS)? == "1";
        let mut children = children_in(&self.children)?;
        if !has_one_thread {
            // A process has the children of all its threads (proc_pid_task(5)).
            let main = self.id.to_string();
            for thread in fs_err::read_dir(format!("/proc/{main}/task")).ok()? {
                let thread = thread.ok()?;
                if thread.file_name() != *main {
                    children.extend(children_in(&File::open(thread.path().join("children")).ok()?)?);
                }
            }
        }
        Some(Standing { children, has_waited })
    }
}

fn children_in(file: &File) -> Option<Vec<i32>> {
    let mut buffer = [0; PIECE];
    read(file, &mut buffer)?.split_ascii_whitespace().map(|child| child.parse().ok()).collect()
}

/// As much of such a file as one reading gives: all of it, or enough to see that there is too much.
fn read<'a>(file: &File, buffer: &'a mut [u8; PIECE]) -> Option<&'a str> {
    let length = file.read_at(buffer, 0).ok()?;
    std::str::from_utf8(&buffer[..length]).ok()
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

    #[track_caller]
    fn check(line: &str, children_expected: usize, waited: bool) {
        let mut child = process(line);
        let pid = child.id().cast_signed();
        let Standing { children, has_waited } = Process::open(pid).unwrap().standing().unwrap();
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        child.wait().unwrap();
        assert_eq!((children.len(), has_waited), (children_expected, waited), "{line}");
    }

    #[test]
    fn children_and_whether_one_was_waited_for_are_seen() {
        check(":", 0, false);
        check("/bin/true", 0, true);
        check("exec 3>&1; { read x; } > /dev/null < /dev/null & wait", 0, true);
        check("sleep 600 > /dev/null & trap 'kill $!' EXIT", 1, false);
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
