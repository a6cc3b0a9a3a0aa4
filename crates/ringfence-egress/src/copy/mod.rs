//! Bytes from one stream to another, both ways, until both have ended.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

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

    /// Carries on for as long as neither side makes it wait; ready when the reader's end was passed on to the writer.
    pub(crate) fn poll<R: End, W: End>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.write_held(cx, writer))?;
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
                    0 => self.stage = Stage::Ending,
                    moved => self.burst += moved,
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
        if matches!(moved, Poll::Ready(Ok(CHUNK))) && reader.tcp().is_some() && writer.tcp().is_some() {
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
        let written = match Pin::new(writer).poll_write(cx, read)? {
            Poll::Ready(written) => written,
            Poll::Pending => 0,
        };
        // None written is no error yet: what is held is written first, and that sees whether the writer is done for.
        self.held.extend_from_slice(&read[written..]);
        Poll::Ready(Ok(read.len()))
    }

    fn write_held<W: AsyncWrite + Unpin>(&mut self, cx: &mut Context<'_>, writer: &mut W) -> Poll<io::Result<()>> {
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
    mut a_to_b: Direction,
    mut b_to_a: Direction,
) -> io::Result<()> {
    poll_fn(|cx| {
        let forth = a_to_b.poll(cx, a, b)?;
        let back = b_to_a.poll(cx, b, a)?;
        if forth.is_ready() && back.is_ready() { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}
