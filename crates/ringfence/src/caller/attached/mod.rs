//! Runs one command of a sandbox with the caller's own streams, signals and terminal.

mod descriptor;
mod terminal;

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ringfence_linux::sys::signal::{SignalMask, read_pending as waiting};
use ringfence_proto::process::PtySize;
use rustix::fs::{FileType, fstat};
use rustix::process::Signal;
use tokio::io::unix::AsyncFd;

use crate::Stream;
use crate::session::{
    CommandEnd, CommandInput, Exec, Execution, ExecutionInput, Session, SessionError,
};
use descriptor::CallerDescriptor;
use terminal::RawMode;

/// Number of bytes of the caller's input that are read at once.
const READ_BYTES: usize = 128 << 10;
/// Signals that are forwarded to the command when this process receives them.
const FORWARDED_SIGNALS: [Signal; 6] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];
/// Signals about this process's own terminal: its size changed, or this process was continued and
/// has the terminal again.
const TERMINAL_SIGNALS: [Signal; 2] = [Signal::WINCH, Signal::CONT];

/// Source of a command's input and destinations of its output. Their flags are not changed, so
/// other processes that share these descriptors see no difference.
#[derive(Debug, Clone, Copy)]
pub struct AttachedStreams<'a> {
    input: Option<BorrowedFd<'a>>,
    output: BorrowedFd<'a>,
    error: BorrowedFd<'a>,
}

impl AttachedStreams<'static> {
    /// Returns the standard streams of this process. If its standard input is `/dev/null`, the
    /// command gets no input.
    pub fn for_this_process() -> AttachedStreams<'static> {
        let input = rustix::stdio::stdin();
        let input = (!is_null(input)).then_some(input);
        AttachedStreams { input, output: rustix::stdio::stdout(), error: rustix::stdio::stderr() }
    }
}

impl<'a> AttachedStreams<'a> {
    /// Returns streams made of the given descriptors. Without `input` the command gets no input.
    pub fn new(
        input: Option<BorrowedFd<'a>>,
        output: BorrowedFd<'a>,
        error: BorrowedFd<'a>,
    ) -> AttachedStreams<'a> {
        AttachedStreams { input, output, error }
    }

    /// Returns the size of the terminal if both the input and the output are a terminal. A command
    /// that gets a terminal of its own gets this size.
    pub fn terminal(&self) -> Option<PtySize> {
        terminal::size(self.input?).and(terminal::size(self.output))
    }
}

fn is_null(stream: BorrowedFd<'_>) -> bool {
    let null = rustix::fs::makedev(1, 3); // null(4)
    fstat(stream).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == null
    })
}

/// Runs a command with streams of the caller, and returns how the command ended.
///
/// Forwards signals that this process receives to the command. If the command is to have a terminal
/// and the caller has one, the caller's terminal is in raw mode while the command runs, and the
/// command's terminal follows changes of its size. Call this function on the thread that receives
/// the process's signals: the only thread, or one while all others have these signals blocked.
pub async fn exec_attached(
    session: &Session,
    mut exec: Exec,
    streams: AttachedStreams<'_>,
) -> Result<CommandEnd, SessionError> {
    let stream_error = |what: &str| {
        let what = what.to_owned();
        move |source| SessionError::HostStream { what, source }
    };
    let started_at = Instant::now();
    let signals = BlockedSignals::block().map_err(stream_error("take over the signals"))?;
    exec.input = if streams.input.is_some() { CommandInput::Piped } else { CommandInput::Nothing };
    let own = exec.terminal.is_some().then(|| streams.terminal()).flatten();
    exec.terminal = own.or(exec.terminal);
    // Set raw mode before anything starts. Then no output of the command appears in the wrong mode,
    // and nothing has to be undone on failure.
    let raw = own
        .and(streams.input)
        .map(RawMode::enter)
        .transpose()
        .map_err(stream_error("set the terminal to raw mode"))?;
    let mut execution = session.exec(&exec).await?;
    let input = execution.input();
    let relayed = tokio::select! {
        relayed = relay(&mut execution, streams) => relayed,
        never = feed(streams.input, &input) => match never {},
        lost = signals.forward(&input, raw.as_ref(), streams.output) => {
            Err(RelayError::Session(lost))
        }
    };
    match relayed {
        Ok(()) => execution.wait().await,
        Err(RelayError::Session(error)) => Err(error),
        Err(RelayError::Output(source)) => {
            // Nobody reads the output any more. A command that wrote to the caller's output itself
            // would have received SIGPIPE.
            let _ = input.kill().await; // the command may have ended by itself
            match source.kind() {
                io::ErrorKind::BrokenPipe => Ok(broken_pipe(started_at.elapsed())),
                _ => Err(stream_error("pass on the command's output")(source)),
            }
        }
    }
}

fn broken_pipe(duration: Duration) -> CommandEnd {
    let signal = Some(Signal::PIPE.as_raw());
    CommandEnd { exit_code: None, signal, timed_out: false, duration, usage: Default::default() }
}

/// Reason why a command's output was not relayed to its end.
enum RelayError {
    /// The session to the guest failed.
    Session(SessionError),
    /// The caller's output could not be written.
    Output(io::Error),
}

/// Writes the command's output to the streams of the caller, until the command ends.
async fn relay(execution: &mut Execution, streams: AttachedStreams<'_>) -> Result<(), RelayError> {
    let output = CallerDescriptor::to_write(streams.output);
    let error = CallerDescriptor::to_write(streams.error);
    while let Some(chunk) = execution.next().await {
        let chunk = chunk.map_err(RelayError::Session)?;
        let to = if chunk.stream == Stream::Stderr { &error } else { &output };
        to.write_all(&chunk.bytes).await.map_err(RelayError::Output)?;
    }
    Ok(())
}

/// Passes the caller's input to the command, and closes the command's input at its end.
async fn feed(from: Option<BorrowedFd<'_>>, input: &ExecutionInput) -> Infallible {
    let Some(from) = from.map(CallerDescriptor::to_read) else { return pending().await };
    let mut buffer = vec![0; READ_BYTES];
    loop {
        // Treat input that cannot be read as ended.
        let length = from.read(&mut buffer).await.unwrap_or(0);
        let sent =
            if length == 0 { input.close().await } else { input.write(&buffer[..length]).await };
        if length == 0 || sent.is_err() {
            // The command has ended or reads no more. `relay` learns how the command ended.
            return pending().await;
        }
    }
}

/// Signals to this process, blocked and read from a descriptor until this value is dropped.
struct BlockedSignals {
    descriptor: AsyncFd<OwnedFd>,
    before: SignalMask,
    /// Marker that keeps this value on one thread, because a signal mask belongs to a thread.
    _thread: PhantomData<*const ()>,
}

impl BlockedSignals {
    fn block() -> io::Result<BlockedSignals> {
        let numbers: Vec<i32> = FORWARDED_SIGNALS
            .iter()
            .chain(&TERMINAL_SIGNALS)
            .map(|signal| signal.as_raw())
            .collect();
        let mask = SignalMask::with_signals(&numbers);
        let descriptor =
            crate::run::readiness::watch(mask.descriptor()?, tokio::io::Interest::READABLE)?;
        Ok(BlockedSignals { descriptor, before: mask.block()?, _thread: PhantomData })
    }

    /// Forwards signals to the command, and returns when the guest can no longer be told of them.
    async fn forward(
        &self,
        input: &ExecutionInput,
        raw: Option<&RawMode<'_>>,
        output: BorrowedFd<'_>,
    ) -> SessionError {
        loop {
            let Ok(mut ready) = self.descriptor.readable().await else { return pending().await };
            ready.clear_ready();
            for number in waiting(self.descriptor.get_ref()) {
                let forwarded = match raw {
                    Some(raw)
                        if TERMINAL_SIGNALS.iter().any(|signal| signal.as_raw() == number) =>
                    {
                        raw.enter_again(); // the mode may have been changed while we were stopped
                        match terminal::size(output) {
                            Some(size) => input.resize(size).await,
                            None => Ok(()),
                        }
                    }
                    None if TERMINAL_SIGNALS.iter().any(|signal| signal.as_raw() == number) => {
                        Ok(())
                    }
                    _ => input.signal(number).await,
                };
                match forwarded {
                    Ok(()) | Err(SessionError::Refused { .. }) => {} // the command may have ended
                    Err(error) => return error,
                }
            }
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        let _ = self.before.set(); // this was the thread's mask before
    }
}
