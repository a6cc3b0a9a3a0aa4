//! Starting the process that keeps a sandbox, and hearing of it: `ringfence up`, called by this program.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use ringfence::Manifest;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit, setrlimit};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Take};
use tokio::net::unix::pipe;

use crate::report::{Failure, Told};

/// The longest answer of a monitor.
const LONGEST_ANSWER: u64 = 4 << 20;

/// How many descriptors this process could have open before it let itself have more.
static DESCRIPTORS: OnceLock<Rlimit> = OnceLock::new();

/// Lets this process have as many descriptors open as it may. The monitors that it starts, and so all sandboxes, keep
/// the limit that it had: programs that use select(2) fail with more.
pub(crate) fn raise_descriptor_limit() {
    let before = DESCRIPTORS.get_or_init(|| getrlimit(Resource::Nofile));
    let raised = Rlimit { current: before.maximum, maximum: before.maximum };
    let _ = setrlimit(Resource::Nofile, raised); // then fewer sandboxes fit
}

/// What a monitor tells its caller.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// The sandbox is up.
    Ready {
        /// What is written down of it.
        manifest: Box<Manifest>,
        /// Whether it was not before.
        is_new: bool,
    },
    /// It is not.
    Failed(Told),
}

/// A monitor that was started.
#[derive(Debug)]
pub(crate) struct Keeper {
    process: Child,
    answers: BufReader<Take<pipe::Receiver>>,
}

impl Keeper {
    /// Starts one that obeys `words`: a whole command line of `ringfence up`.
    pub(crate) fn start(words: &[OsString]) -> Result<Keeper, Failure> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("ringfence").args(["up", "--monitor"]).args(words.iter().filter(|word| is_verbose(word)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| failed("start", error))?;
        if let Some(limit) = DESCRIPTORS.get() {
            let _ = prlimit(Some(Pid::from_child(&process)), Resource::Nofile, *limit); // it may have ended already
        }
        // Not as its arguments: it lives long, and everybody on the host can read those.
        let mut input = process.stdin.take().expect("it was asked for");
        words::send(words, &mut input).map_err(|error| failed("tell", error))?;
        let answers = OwnedFd::from(process.stdout.take().expect("it was asked for"));
        let answers = pipe::Receiver::from_owned_fd(answers).map_err(|error| failed("hear of", error))?;
        Ok(Keeper { process, answers: BufReader::new(answers.take(LONGEST_ANSWER)) })
    }

    /// Waits for its answer.
    pub(crate) async fn answer(&mut self) -> Result<Answer, Failure> {
        let mut line = String::new();
        self.answers.read_line(&mut line).await.map_err(|error| failed("hear of", error))?;
        if let Ok(answer) = serde_json::from_str(&line) {
            return Ok(answer);
        }
        let status = self.process.wait().map_err(|error| failed("wait for", error))?;
        Err(Failure::failed(
            format!("the process that keeps the sandbox ended before it was up: {status}"),
            "`ringfence -vv up` tells more; `ringfence doctor` shows what works here",
        ))
    }

    /// Asks it to end, whether or not it has answered.
    pub(crate) fn ask_to_end(&self) {
        let _ = rustix::process::kill_process(Pid::from_child(&self.process), Signal::TERM); // it may have ended by itself
    }

    /// Waits for its end on this thread. After [`Keeper::ask_to_end`] that is bounded: it undoes what it has begun.
    pub(crate) fn wait(mut self) {
        let _ = self.process.wait(); // nobody else waits for it
    }
}

fn failed(what: &str, error: io::Error) -> Failure {
    Failure::failed(format!("cannot {what} the process that keeps the sandbox: {error}"), "ringfence doctor")
}

/// Whether a word asks to be told more, which is heard before any other.
fn is_verbose(word: &OsStr) -> bool {
    word == "--verbose"
        || word
            .to_str()
            .and_then(|word| word.strip_prefix('-'))
            .is_some_and(|flags| !flags.is_empty() && flags.bytes().all(|flag| flag == b'v'))
}

/// The command line that the caller of this monitor was called with, or has made.
pub(crate) fn called() -> io::Result<Vec<OsString>> {
    words::receive(&mut io::stdin().lock())
}

/// Tells the caller of this monitor.
pub(crate) fn tell(answer: &Answer) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, answer)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Words on their way through a pipe: their number, then each, all ended by NUL.
mod words {
    use std::ffi::OsString;
    use std::io::{self, BufRead, Write};
    use std::os::unix::ffi::{OsStrExt, OsStringExt};

    pub(super) fn send(words: &[OsString], to: &mut impl Write) -> io::Result<()> {
        let mut bytes = format!("{}\0", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(word.as_bytes());
            bytes.push(0);
        }
        to.write_all(&bytes)
    }

    pub(super) fn receive(from: &mut impl BufRead) -> io::Result<Vec<OsString>> {
        let count = String::from_utf8(one(from)?).ok().and_then(|count| count.parse::<usize>().ok());
        let count = count.ok_or(io::ErrorKind::InvalidData)?;
        (0..count).map(|_| one(from).map(OsString::from_vec)).collect()
    }

    fn one(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
        let mut word = Vec::new();
        from.read_until(0, &mut word)?;
        match word.pop() {
            Some(0) => Ok(word),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn words_arrive_as_they_were_sent_or_not_at_all() {
        let sent = [OsString::from("up"), OsString::new(), OsString::from_vec(vec![0xff, b'x'])];
        let mut bytes = Vec::new();
        words::send(&sent, &mut bytes).unwrap();
        assert_eq!(words::receive(&mut bytes.as_slice()).unwrap(), sent);
        bytes.pop();
        assert!(words::receive(&mut bytes.as_slice()).is_err());
        assert!(words::receive(&mut b"".as_slice()).is_err());
    }

    #[test]
    fn a_monitor_says_as_much_as_its_caller() {
        for (word, expected) in
            [("-v", true), ("-vv", true), ("--verbose", true), ("-", false), ("-C", false), ("v", false)]
        {
            assert_eq!(is_verbose(OsStr::new(word)), expected, "{word}");
        }
    }
}
