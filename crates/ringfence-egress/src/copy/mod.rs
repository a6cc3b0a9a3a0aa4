//! Copying of bytes between two streams, in both directions, until both streams have ended.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::answer::{AnswerKind, AnswerReader};
use crate::opening::LineRule;
use crate::watch::{AdmittedBytes, StreamFinding, StreamWatch};

mod splice;

use splice::SplicePipe;

/// Most bytes that are read at once. A stream becomes busy when a read returns this many bytes.
const CHUNK_BYTES: usize = 64 * 1024;
/// Fewest bytes that a busy stream must move between two pauses to stay busy.
const MIN_BUSY_BYTES: usize = 16 * 1024;

/// One of the two streams between which bytes are copied.
pub(crate) trait CopyEnd: AsyncRead + AsyncWrite + Unpin {
    /// Returns the TCP connection under this stream.
    ///
    /// Returns `None` if the stream is not TCP, or if bytes that were read from the connection
    /// earlier must be delivered first.
    fn tcp(&self) -> Option<&TcpStream>;
}

impl CopyEnd for TcpStream {
    fn tcp(&self) -> Option<&TcpStream> {
        Some(self)
    }
}

thread_local! {
    /// Buffer into which every direction on this thread reads, so that an idle connection needs no
    /// buffer of its own.
    static THREAD_CHUNK: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// State of one direction of the copy, with the bytes that are in transit.
#[derive(Debug, Default)]
pub(crate) struct CopyDirection {
    /// Bytes that were read and that the writer has not taken yet.
    held: Vec<u8>,
    /// Number of bytes at the start of `held` that are already written.
    written: usize,
    /// Pipe through which a busy stream moves its bytes instead.
    pipe: Option<SplicePipe>,
    /// Number of bytes that were moved since the last pause.
    burst: usize,
    stage: CopyStage,
    /// Flag that is set once anything was read.
    has_spoken: bool,
    /// Reader that sees the first bytes before they are passed on.
    reader: Option<Box<AnswerReader>>,
    /// Answer that `reader` recognised, once there is one.
    answer: Option<AnswerKind>,
    /// Watch on the bytes, if their protocol is neither TLS nor HTTP but may become TLS.
    watch: Option<Box<StreamWatch>>,
    /// Bytes that were read before the watch began, and that the watch has not seen.
    unseen: Vec<u8>,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum CopyStage {
    #[default]
    Open,
    /// The reader has ended, and the writer must still be shut down.
    Ending,
    Ended,
}

impl CopyDirection {
    /// Creates a direction that writes `bytes` before anything that it reads.
    pub(crate) fn with_pending(bytes: Vec<u8>) -> CopyDirection {
        CopyDirection { held: bytes, ..CopyDirection::default() }
    }

    /// Queues `bytes`, to be written after the bytes that were read so far.
    pub(crate) fn queue_bytes(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// Starts a watch on `bytes`, which were read before, and on all bytes that are read from now
    /// on.
    ///
    /// A finding of the watch ends the direction with an error. [`CopyDirection::release`] lets the
    /// direction continue.
    pub(crate) fn start_watch(&mut self, bytes: Vec<u8>, rule: LineRule) {
        self.watch = Some(Box::new(StreamWatch::new(rule)));
        self.unseen = bytes;
    }

    /// Takes the findings that ended the direction. Returns no findings if something else ended the
    /// direction.
    pub(crate) fn take_findings(&mut self) -> Vec<StreamFinding> {
        self.watch.as_mut().map(|watch| watch.take_findings()).unwrap_or_default()
    }

    /// Returns whether the end of the stream would end a line that the watch has not judged.
    pub(crate) fn has_open_line(&self) -> bool {
        self.stage == CopyStage::Open
            && self.watch.as_ref().is_some_and(|watch| watch.has_open_line())
    }

    /// Queues the bytes that the watch now lets pass, so that the direction continues after a
    /// finding.
    pub(crate) fn release(&mut self) {
        if let Some(watch) = &mut self.watch {
            self.held.append(&mut watch.release());
        }
    }

    /// Returns whether anything was read, or nothing more will be read.
    pub(crate) fn has_spoken(&self) -> bool {
        self.has_spoken || self.stage != CopyStage::Open
    }

    /// Shows the bytes from now on to `reader`, until `reader` knows the answer.
    ///
    /// An answer that must not be passed on ends the direction with an error.
    pub(crate) fn read_answer(&mut self, reader: AnswerReader) {
        self.reader = Some(Box::new(reader));
    }

    /// Returns the answer that was recognised. If the stream ended without an answer, returns
    /// [`AnswerKind::Other`].
    pub(crate) fn answer(&self) -> Option<AnswerKind> {
        self.answer.or_else(|| (self.stage != CopyStage::Open).then_some(AnswerKind::Other))
    }

    /// Copies bytes until the reader or the writer must be waited for. Returns `Ready` once the
    /// reader's end was passed on to the writer.
    pub(crate) fn poll<R: CopyEnd, W: CopyEnd>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.write_held(cx, writer))?;
            if !self.unseen.is_empty() {
                let unseen = std::mem::take(&mut self.unseen);
                if self.admit_read(&unseen)? {
                    self.held = unseen;
                }
                continue;
            }
            match self.stage {
                CopyStage::Ended => return Poll::Ready(Ok(())),
                CopyStage::Ending => {
                    self.pipe = None;
                    match ready!(Pin::new(&mut *writer).poll_shutdown(cx)) {
                        // `NotConnected` means that the other side is gone, so nobody needs to
                        // learn of the end.
                        Err(error) if error.kind() != io::ErrorKind::NotConnected => {
                            return Poll::Ready(Err(error));
                        }
                        _ => self.stage = CopyStage::Ended,
                    }
                }
                CopyStage::Open => match ready!(self.poll_move(cx, reader, writer))? {
                    0 => {
                        if let Some(watch) = &mut self.watch {
                            if !watch.admits_end() {
                                return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                            }
                            self.held.append(&mut watch.take_rest());
                        }
                        self.stage = CopyStage::Ending;
                    }
                    moved => {
                        self.has_spoken = true;
                        self.burst += moved;
                    }
                },
            }
        }
    }

    /// Moves the available bytes once, through the pipe if there is one. Returns zero at the
    /// reader's end.
    fn poll_move<R: CopyEnd, W: CopyEnd>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
    ) -> Poll<io::Result<usize>> {
        if let (Some(pipe), Some(from), Some(to)) = (&mut self.pipe, reader.tcp(), writer.tcp()) {
            let moved = pipe.poll(cx, from, to);
            if moved.is_pending() && pipe.is_empty() {
                if self.burst < MIN_BUSY_BYTES {
                    self.pipe = None;
                }
                self.burst = 0;
            }
            return moved;
        }
        let mut chunk =
            THREAD_CHUNK.take().unwrap_or_else(|| vec![0; CHUNK_BYTES].into_boxed_slice());
        let moved = self.poll_copy(cx, reader, writer, &mut chunk);
        THREAD_CHUNK.set(Some(chunk));
        let is_read_here = self.reader.is_some() || self.watch.is_some();
        let may_splice = !is_read_here && reader.tcp().is_some() && writer.tcp().is_some();
        if matches!(moved, Poll::Ready(Ok(CHUNK_BYTES))) && may_splice {
            self.pipe = SplicePipe::new();
        }
        moved
    }

    fn poll_copy<R: CopyEnd, W: CopyEnd>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        chunk: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut into = ReadBuf::new(chunk);
        if Pin::new(reader).poll_read(cx, &mut into)?.is_pending() {
            // A writer that buffers, such as TLS, must send what was written before the pause.
            let _ = Pin::new(writer).poll_flush(cx)?;
            self.burst = 0;
            return Poll::Pending;
        }
        let read = into.filled();
        if read.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.show_to_answer_reader(read)?;
        if !self.admit_read(read)? {
            return Poll::Ready(Ok(read.len()));
        }
        let written = match Pin::new(writer).poll_write(cx, read)? {
            Poll::Ready(written) => written,
            Poll::Pending => 0,
        };
        // A write of zero bytes is no error yet: `write_held` tries again and sees whether the
        // writer has failed.
        self.held.extend_from_slice(&read[written..]);
        Poll::Ready(Ok(read.len()))
    }

    /// Shows the bytes that were read to the watch, and returns whether all of them may be written
    /// unchanged.
    ///
    /// If not, the bytes that may be written instead are held. Fails if the watch found something.
    fn admit_read(&mut self, read: &[u8]) -> io::Result<bool> {
        let Some(watch) = &mut self.watch else { return Ok(true) };
        match watch.read(read) {
            AdmittedBytes::All => Ok(true),
            AdmittedBytes::Part(mut bytes) => {
                self.held.append(&mut bytes);
                Ok(false)
            }
            AdmittedBytes::None => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Shows the bytes that were read to the answer's reader. Fails if the answer must not be
    /// passed on.
    fn show_to_answer_reader(&mut self, read: &[u8]) -> io::Result<()> {
        let Some(reader) = &mut self.reader else { return Ok(()) };
        let Some(answer) = reader.read(read) else { return Ok(()) };
        self.reader = None;
        self.answer = Some(answer);
        if answer.is_passed_on() { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// Writes the held bytes. Returns `Ready` once all held bytes are written.
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

/// Copies bytes between two streams until both streams have ended.
///
/// The end of one stream is passed on while the other stream still sends. There is no limit on
/// silence.
pub(crate) async fn copy_both_ways<A: CopyEnd, B: CopyEnd>(
    a: &mut A,
    b: &mut B,
    a_to_b: &mut CopyDirection,
    b_to_a: &mut CopyDirection,
) -> io::Result<()> {
    poll_fn(|cx| {
        let forth = a_to_b.poll(cx, a, b)?;
        let back = b_to_a.poll(cx, b, a)?;
        // The answer does not count while its reader does not know yet whether the answer is HTTP.
        let has_answered = b_to_a.has_spoken && b_to_a.reader.is_none();
        if let Some(watch) = a_to_b.watch.as_mut().filter(|_| has_answered) {
            watch.note_server_spoke();
        }
        if forth.is_ready() && back.is_ready() { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}
