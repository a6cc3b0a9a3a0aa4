//! One command of a sandbox with the caller's own streams, signals and terminal.

mod descriptor;
mod terminal;

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ringfence_linux::sys::signal::{Mask, pending as waiting};
use ringfence_proto::process::PtySize;
use rustix::fs::{FileType, fstat};
use rustix::process::Signal;
use tokio::io::unix::AsyncFd;

use crate::Stream;
use crate::session::{Ended, Exec, Execution, ExecutionInput, Input, Session, SessionError};
use descriptor::Descriptor;
use terminal::Raw;

/// What is read of the caller's input at once.
const PIECE: usize = 128 << 10;
/// Signals that are the command's business when they are sent to us.
const FORWARDED: [Signal; 6] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];
/// Signals that tell us of our own terminal: it has another size, or is ours again.
const OURS: [Signal; 2] = [Signal::WINCH, Signal::CONT];

/// Where a command's input comes from, and where its output goes to. They are used as they are: nobody who shares them
/// sees a difference.
#[derive(Debug, Clone, Copy)]
pub struct Streams<'a> {
    input: Option<BorrowedFd<'a>>,
    output: BorrowedFd<'a>,
    error: BorrowedFd<'a>,
}

impl Streams<'static> {
    /// Those of this process; the command gets no input from `/dev/null`.
    pub fn of_this_process() -> Streams<'static> {
        let input = rustix::stdio::stdin();
        let input = (!is_null(input)).then_some(input);
        Streams { input, output: rustix::stdio::stdout(), error: rustix::stdio::stderr() }
    }
}

impl<'a> Streams<'a> {
    /// Streams that are given one by one; without an input the command gets none.
    pub fn new(input: Option<BorrowedFd<'a>>, output: BorrowedFd<'a>, error: BorrowedFd<'a>) -> Streams<'a> {
        Streams { input, output, error }
    }

    /// The size of the terminal that both the input and the output are, if they are one: what a command that is to have
    /// a terminal of its own is given.
    pub fn terminal(&self) -> Option<PtySize> {
        terminal::size(self.input?).and(terminal::size(self.output))
    }
}

fn is_null(stream: BorrowedFd<'_>) -> bool {
    let null = rustix::fs::makedev(1, 3); // null(4)
    fstat(stream)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == null)
}

/// Runs a command with streams of the caller's, and returns how it ended.
///
/// Signals to this process are passed on to the command. When it is to have a terminal, and the caller has one, that
/// is in raw mode meanwhile and its size is followed. It must be called on the thread that has the process's signals:
/// the only one, or one that others have blocked them for.
pub async fn attached(session: &Session, mut exec: Exec, streams: Streams<'_>) -> Result<Ended, SessionError> {
    let local = |what: &str| {
        let what = what.to_owned();
        move |source| SessionError::Local { what, source }
    };
    let begun = Instant::now();
    let signals = Signals::take().map_err(local("take over the signals"))?;
    exec.input = if streams.input.is_some() { Input::Piped } else { Input::Nothing };
    let own = exec.terminal.is_some().then(|| streams.terminal()).flatten();
    exec.terminal = own.or(exec.terminal);
    // Before anything is started: then nothing of it can be seen in the wrong mode, and nothing has to be undone.
    let raw = own.and(streams.input).map(Raw::enter).transpose().map_err(local("set the terminal to raw mode"))?;
    let mut execution = session.exec(&exec).await?;
    let input = execution.input();
    let relayed = tokio::select! {
        relayed = relay(&mut execution, streams) => relayed,
        never = feed(streams.input, &input) => match never {},
        lost = signals.forward(&input, raw.as_ref(), streams.output) => Err(Broken::Session(lost)),
    };
    match relayed {
        Ok(()) => execution.wait().await,
        Err(Broken::Session(error)) => Err(error),
        Err(Broken::Output(source)) => {
            // Nobody reads on: a command in the caller's own place would have got SIGPIPE.
            let _ = input.kill().await; // it may have ended by itself
            match source.kind() {
                io::ErrorKind::BrokenPipe => Ok(broken_pipe(begun.elapsed())),
                _ => Err(local("pass on the command's output")(source)),
            }
        }
    }
}

fn broken_pipe(duration: Duration) -> Ended {
    let signal = Some(Signal::PIPE.as_raw());
    Ended { exit_code: None, signal, timed_out: false, duration, usage: Default::default() }
}

/// Why a command's output was not relayed to its end.
enum Broken {
    /// By its own side.
    Session(SessionError),
    /// By ours.
    Output(io::Error),
}

/// Writes the command's output where it belongs, until it ends.
async fn relay(execution: &mut Execution, streams: Streams<'_>) -> Result<(), Broken> {
    let output = Descriptor::to_write(streams.output);
    let error = Descriptor::to_write(streams.error);
    while let Some(chunk) = execution.next().await {
        let chunk = chunk.map_err(Broken::Session)?;
        let to = if chunk.stream == Stream::Stderr { &error } else { &output };
        to.write_all(&chunk.bytes).await.map_err(Broken::Output)?;
    }
    Ok(())
}

/// Reads the caller's input for the command, and tells it of its end.
async fn feed(from: Option<BorrowedFd<'_>>, input: &ExecutionInput) -> Infallible {
    let Some(from) = from.map(Descriptor::to_read) else { return pending().await };
    let mut buffer = vec![0; PIECE];
    loop {
        // Input that cannot be read is over, too.
        let length = from.read(&mut buffer).await.unwrap_or(0);
        let sent = if length == 0 { input.close().await } else { input.write(&buffer[..length]).await };
        if length == 0 || sent.is_err() {
            // The command has ended or reads no more; how it ended is heard by whoever reads its output.
            return pending().await;
        }
    }
}

/// Signals to this process, taken over until this is dropped.
struct Signals {
    descriptor: AsyncFd<OwnedFd>,
    before: Mask,
    /// A mask is a thread's: this cannot go to another one.
    _thread: PhantomData<*const ()>,
}

impl Signals {
    fn take() -> io::Result<Signals> {
        let numbers: Vec<i32> = FORWARDED.iter().chain(&OURS).map(|signal| signal.as_raw()).collect();
        let mask = Mask::of(&numbers);
        let descriptor = crate::readiness::watch(mask.descriptor()?, tokio::io::Interest::READABLE)?;
        Ok(Signals { descriptor, before: mask.block()?, _thread: PhantomData })
    }

    /// Passes signals on, until the guest cannot be told.
    async fn forward(&self, input: &ExecutionInput, raw: Option<&Raw<'_>>, output: BorrowedFd<'_>) -> SessionError {
        loop {
            let Ok(mut ready) = self.descriptor.readable().await else { return pending().await };
            ready.clear_ready();
            for number in waiting(self.descriptor.get_ref()) {
                let told = match raw {
                    Some(raw) if OURS.iter().any(|signal| signal.as_raw() == number) => {
                        raw.again(); // somebody may have set another mode while we were stopped
                        match terminal::size(output) {
                            Some(size) => input.resize(size).await,
                            None => Ok(()),
                        }
                    }
                    None if OURS.iter().any(|signal| signal.as_raw() == number) => Ok(()),
                    _ => input.signal(number).await,
                };
                match told {
                    Ok(()) | Err(SessionError::Refused { .. }) => {} // it may have ended
                    Err(error) => return error,
                }
            }
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        let _ = self.before.set(); // it was this thread's mask before
    }
}
