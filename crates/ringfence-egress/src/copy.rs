//! Bytes from one stream to another, both ways, until both have ended.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much is read at once.
const CHUNK: usize = 64 * 1024;

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
    pub(crate) fn poll<R, W>(&mut self, cx: &mut Context<'_>, reader: &mut R, writer: &mut W) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        loop {
            ready!(self.write_held(cx, writer))?;
            match self.stage {
                Stage::Ended => return Poll::Ready(Ok(())),
                Stage::Ending => {
                    match ready!(Pin::new(&mut *writer).poll_shutdown(cx)) {
                        // The other side has gone altogether: there is nobody left to tell.
                        Err(error) if error.kind() != io::ErrorKind::NotConnected => return Poll::Ready(Err(error)),
                        _ => self.stage = Stage::Ended,
                    }
                }
                Stage::Open => {
                    let mut chunk = CHUNK_OF_THREAD.take().unwrap_or_else(|| vec![0; CHUNK].into_boxed_slice());
                    let moved = self.read_and_write(cx, reader, writer, &mut chunk);
                    CHUNK_OF_THREAD.set(Some(chunk));
                    ready!(moved)?;
                }
            }
        }
    }

    fn read_and_write<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        chunk: &mut [u8],
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let mut into = ReadBuf::new(chunk);
        if Pin::new(reader).poll_read(cx, &mut into)?.is_pending() {
            // A writer that gathers, such as TLS, must not sit on what was said before the pause.
            let _ = Pin::new(writer).poll_flush(cx)?;
            return Poll::Pending;
        }
        let read = into.filled();
        if read.is_empty() {
            self.stage = Stage::Ending;
            return Poll::Ready(Ok(()));
        }
        let written = match Pin::new(writer).poll_write(cx, read)? {
            Poll::Ready(written) => written,
            Poll::Pending => 0,
        };
        // Zero is no error yet: the loop writes what is held, and sees there whether the writer is done for good.
        self.held.extend_from_slice(&read[written..]);
        Poll::Ready(Ok(()))
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
pub(crate) async fn both<A, B>(a: &mut A, b: &mut B, mut a_to_b: Direction, mut b_to_a: Direction) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    poll_fn(|cx| {
        let forth = a_to_b.poll(cx, a, b)?;
        let back = b_to_a.poll(cx, b, a)?;
        if forth.is_ready() && back.is_ready() { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}
