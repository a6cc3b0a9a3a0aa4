//! Bytes from one stream to another, both ways, until both have ended.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::answer::{Answer, AnswerReader};
use crate::opening::LineRule;
use crate::watch::{Admission, Finding, StreamWatch};

mod splice;

use splice::Pipe;

/// How much is read at once. A read of this much is a stream's beginning to be busy.
const CHUNK: usize = 64 * 1024;
/// Moving less than this between two pauses is its end to be so.
const LULL: usize = 16 * 1024;

/// One end of what is carried.
pub(crate) trait End: AsyncRead + AsyncWrite + Unpin {
    /// The connection itself, if it is one of TCP, and nothing that was read from it has to be said first.
    fn tcp(&self) -> Option<&TcpStream>;
}

impl End for TcpStream {
    fn tcp(&self) -> Option<&TcpStream> {
        Some(self)
    }
}

thread_local! {
    /// What every direction on this thread reads into: a connection that waits has no buffer of its own.
    static CHUNK_OF_THREAD: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// One direction: what is on its way, and how far it came.
#[derive(Debug, Default)]
pub(crate) struct Direction {
    /// Bytes that were read and that the writer did not take yet.
    held: Vec<u8>,
    /// How many of those are written.
    written: usize,
    /// What a busy stream takes instead.
    pipe: Option<Pipe>,
    /// How much was moved since the last pause.
    burst: usize,
    stage: Stage,
    /// Whether anything was read.
    has_spoken: bool,
    /// Reads the first bytes before they are passed on.
    reader: Option<Box<AnswerReader>>,
    /// Result of that reading, once there is one.
    answer: Option<Answer>,
    /// There for a protocol that may become TLS.
    watch: Option<Box<StreamWatch>>,
    /// Bytes that were read before the watch began, and that it has not seen.
    unseen: Vec<u8>,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Open,
    /// The reader has ended, the writer is to be told.
    Ending,
    Ended,
}

impl Direction {
    /// A direction that says `bytes` before what it reads.
    pub(crate) fn after(bytes: Vec<u8>) -> Direction {
        Direction { held: bytes, ..Direction::default() }
    }

    /// Says `bytes` after what was read so far.
    pub(crate) fn hold(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// Has a watch look at `bytes`, which were read, and at all that is read from now on. What the
    /// watch finds ends the direction with an error, until [`Direction::release`] goes on with it.
    pub(crate) fn watch(&mut self, bytes: Vec<u8>, rule: LineRule) {
        self.watch = Some(Box::new(StreamWatch::new(rule)));
        self.unseen = bytes;
    }

    /// Findings that ended the direction; none if something else did.
    pub(crate) fn take_findings(&mut self) -> Vec<Finding> {
        self.watch.as_mut().map(|watch| watch.take_findings()).unwrap_or_default()
    }

    /// Whether the end of the stream would end a line that the watch has not judged.
    pub(crate) fn has_open_line(&self) -> bool {
        self.stage == Stage::Open && self.watch.as_ref().is_some_and(|watch| watch.has_open_line())
    }

    /// Goes on with what the watch found.
    pub(crate) fn release(&mut self) {
        if let Some(watch) = &mut self.watch {
            self.held.append(&mut watch.release());
        }
    }

    /// Whether anything was read, or nothing more will be.
    pub(crate) fn has_spoken(&self) -> bool {
        self.has_spoken || self.stage != Stage::Open
    }

    /// Has `reader` read what is read from now on, until it knows the answer. An answer that is not to be passed on ends
    /// the direction with an error.
    pub(crate) fn read_answer(&mut self, reader: AnswerReader) {
        self.reader = Some(Box::new(reader));
    }

    /// Answer that was read; an end without one counts as any other.
    pub(crate) fn answer(&self) -> Option<Answer> {
        self.answer.or_else(|| (self.stage != Stage::Open).then_some(Answer::Other))
    }

    /// Carries on for as long as neither side makes it wait; ready when the reader's end was passed on to the writer.
    pub(crate) fn poll<R: End, W: End>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.write_held(cx, writer))?;
            if !self.unseen.is_empty() {
                let unseen = std::mem::take(&mut self.unseen);
                if self.admit(&unseen)? {
                    self.held = unseen;
                }
                continue;
            }
            match self.stage {
                Stage::Ended => return Poll::Ready(Ok(())),
                Stage::Ending => {
                    self.pipe = None;
                    match ready!(Pin::new(&mut *writer).poll_shutdown(cx)) {
                        // The other side has gone altogether: there is nobody left to tell.
                        Err(error) if error.kind() != io::ErrorKind::NotConnected => return Poll::Ready(Err(error)),
                        _ => self.stage = Stage::Ended,
                    }
                }
                Stage::Open => match ready!(self.poll_move(cx, reader, writer))? {
                    0 => {
                        if let Some(watch) = &mut self.watch {
                            if !watch.admits_end() {
                                return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                            }
                            self.held.append(&mut watch.take_rest());
                        }
                        self.stage = Stage::Ending;
                    }
                    moved => {
                        self.has_spoken = true;
                        self.burst += moved;
                    }
                },
            }
        }
    }

    /// Moves once what there is, by pipe where there is one; zero is the reader's end.
    fn poll_move<R: End, W: End>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
    ) -> Poll<io::Result<usize>> {
        if let (Some(pipe), Some(from), Some(to)) = (&mut self.pipe, reader.tcp(), writer.tcp()) {
            let moved = pipe.poll(cx, from, to);
            if moved.is_pending() && pipe.is_empty() {
                if self.burst < LULL {
                    self.pipe = None;
                }
                self.burst = 0;
            }
            return moved;
        }
        let mut chunk = CHUNK_OF_THREAD.take().unwrap_or_else(|| vec![0; CHUNK].into_boxed_slice());
        let moved = self.poll_copy(cx, reader, writer, &mut chunk);
        CHUNK_OF_THREAD.set(Some(chunk));
        let is_read_here = self.reader.is_some() || self.watch.is_some();
        let may_splice = !is_read_here && reader.tcp().is_some() && writer.tcp().is_some();
        if matches!(moved, Poll::Ready(Ok(CHUNK))) && may_splice {
            self.pipe = Pipe::new();
        }
        moved
    }

    fn poll_copy<R: End, W: End>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        chunk: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut into = ReadBuf::new(chunk);
        if Pin::new(reader).poll_read(cx, &mut into)?.is_pending() {
            // A writer that gathers, such as TLS, must not sit on what was said before the pause.
            let _ = Pin::new(writer).poll_flush(cx)?;
            self.burst = 0;
            return Poll::Pending;
        }
        let read = into.filled();
        if read.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.show(read)?;
        if !self.admit(read)? {
            return Poll::Ready(Ok(read.len()));
        }
        let written = match Pin::new(writer).poll_write(cx, read)? {
            Poll::Ready(written) => written,
            Poll::Pending => 0,
        };
        // None written is no error yet: what is held is written first, and that sees whether the writer is done for.
        self.held.extend_from_slice(&read[written..]);
        Poll::Ready(Ok(read.len()))
    }

    /// Shows the watch what was read, and tells whether all of it may be written as it is. If not,
    /// the bytes that may be written in its place are held. Fails if something was found.
    fn admit(&mut self, read: &[u8]) -> io::Result<bool> {
        let Some(watch) = &mut self.watch else { return Ok(true) };
        match watch.read(read) {
            Admission::All => Ok(true),
            Admission::Part(mut bytes) => {
                self.held.append(&mut bytes);
                Ok(false)
            }
            Admission::None => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Shows the answer's reader what was read, and fails if that is not to be passed on.
    fn show(&mut self, read: &[u8]) -> io::Result<()> {
        let Some(reader) = &mut self.reader else { return Ok(()) };
        let Some(answer) = reader.read(read) else { return Ok(()) };
        self.reader = None;
        self.answer = Some(answer);
        if answer.is_passed_on() { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// Writes what was read before; ready when all of it is written.
    pub(crate) fn write_held<W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        writer: &mut W,
    ) -> Poll<io::Result<()>> {
        while self.written < self.held.len() {
            match ready!(Pin::new(&mut *writer).poll_write(cx, &self.held[self.written..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.written += written,
            }
        }
        self.held = Vec::new();
        self.written = 0;
        Poll::Ready(Ok(()))
    }
}

/// Carries bytes between two streams until both have said their last; the end of one is passed on while the other
/// still speaks. There is no limit on silence.
pub(crate) async fn both<A: End, B: End>(
    a: &mut A,
    b: &mut B,
    a_to_b: &mut Direction,
    b_to_a: &mut Direction,
) -> io::Result<()> {
    poll_fn(|cx| {
        let forth = a_to_b.poll(cx, a, b)?;
        let back = b_to_a.poll(cx, b, a)?;
        // An answer of which it is open whether it is in HTTP is none yet.
        let has_answered = b_to_a.has_spoken && b_to_a.reader.is_none();
        if let Some(watch) = a_to_b.watch.as_mut().filter(|_| has_answered) {
            watch.hear_server();
        }
        if forth.is_ready() && back.is_ready() { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}
