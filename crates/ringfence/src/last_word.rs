//! What a command of ours says itself of its end, and when it is taken at its word.
//!
//! The kernel says that a process has ended only after it has taken its memory down, and that of an interpreter takes
//! longer than most code does. A command that has done all it will do says what it would exit with, and waits. Whether it
//! may be believed is found out here: it can claim any exit code, as it can exit with any, but it must be all that is left
//! of its sandbox, and what it used must be known without waiting for its end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringfence_linux::Ending;
use ringfence_linux::sys::process::{Usage, cpu_time};
use rustix::net::{RecvFlags, SendFlags};

/// The longest word: an exit code.
const LONGEST: usize = 16;

/// Where a command says what it is about to exit with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastWord<'a> {
    channel: &'a OwnedFd,
}

impl<'a> LastWord<'a> {
    /// A command holds the other end of this socket, whose messages are kept apart.
    pub(crate) fn on(channel: &'a OwnedFd) -> LastWord<'a> {
        LastWord { channel }
    }

    pub(crate) fn channel(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Hears it. None when there is none, or when the end itself must be waited for; then the command was told to exit.
    pub(crate) fn hear(self, first: i32) -> Option<Ending> {
        let mut word = [0; LONGEST];
        let (_, length) = rustix::net::recv(self.channel, &mut word[..], RecvFlags::DONTWAIT).ok()?;
        let code = std::str::from_utf8(&word[..length]).ok().and_then(|word| word.parse::<u8>().ok());
        let ending = code.zip(usage_of_the_last(first)).map(|(code, usage)| Ending {
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

/// What the only process below a first one has used; none unless there is exactly one, and neither of the two has waited
/// for another, whose memory only its end would tell of.
fn usage_of_the_last(first: i32) -> Option<Usage> {
    let [command] = children(first)?[..] else { return None };
    if !children(command)?.is_empty() || has_waited(first)? || has_waited(command)? {
        return None;
    }
    let status = fs_err::read_to_string(format!("/proc/{command}/status")).ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let peak: u64 = peak.trim().strip_suffix("kB")?.trim().parse().ok()?;
    let time = cpu_time(command).ok()?;
    Some(Usage { cpu_micros: time.as_micros().try_into().ok()?, max_rss: peak * 1024 })
}

/// The children of every thread of a process, proc_pid_task(5).
fn children(process: i32) -> Option<Vec<i32>> {
    let mut found = Vec::new();
    for thread in fs_err::read_dir(format!("/proc/{process}/task")).ok()? {
        let listed = fs_err::read_to_string(thread.ok()?.path().join("children")).ok()?;
        for child in listed.split_ascii_whitespace() {
            found.push(child.parse().ok()?);
        }
    }
    Some(found)
}

/// Whether a process has waited for a child: any child has had page faults, and they are its parent's from then on.
fn has_waited(process: i32) -> Option<bool> {
    const FAULTS_OF_CHILDREN: usize = 8; // counted from the state on, which follows the name (proc_pid_stat(5))
    let stat = fs_err::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    Some(fields.split(' ').nth(FAULTS_OF_CHILDREN)? != "0")
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
        let (found, has_waited) = (children(pid).unwrap().len(), has_waited(pid).unwrap());
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        child.wait().unwrap();
        assert_eq!((found, has_waited), (children_expected, waited), "{line}");
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
        let usage = usage_of_the_last(first.id().cast_signed());
        first.stdin.take().unwrap().write_all(b"\n").unwrap();
        first.wait().unwrap();
        assert!(usage.is_some_and(|usage| usage.max_rss > 0), "{usage:?}");
    }
}
