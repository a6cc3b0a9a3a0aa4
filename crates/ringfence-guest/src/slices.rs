//! Transfer of bytes between a connection and files, in slices. File I/O blocks, so it runs on the
//! blocking threads of the runtime, not on the runtime's own thread. No thread waits for a slow
//! client, and the memory for a transfer is a few slices, however long the transfer is.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use http_body_util::BodyExt;
use hyper::Request;
use hyper::body::{Body, Frame, Incoming};
use ringfence_proto::code::{Code, Failure};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::connect_protocol::{Reply, ReplyBody};

/// Size of a slice in bytes. The size is large enough that the cost of handing a slice to another
/// thread is small compared with reading or writing the slice.
pub(crate) const SLICE_BYTES: usize = 256 << 10;
/// Time limit for reading the rest of a refused body. The rest is read because a client that is
/// still sending would not see the reply.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// Producer of bytes that are sent to a client.
pub(crate) trait ByteSource: Send + 'static {
    /// Appends about [`SLICE_BYTES`] bytes to `slice`, or nothing at the end.
    fn fill(&mut self, slice: &mut Vec<u8>) -> io::Result<()>;
}

/// Consumer of bytes that a client sends.
pub(crate) trait ByteSink: Send + 'static {
    /// Consumes all bytes of a slice.
    fn take(&mut self, slice: &[u8]) -> Result<(), Failure>;
}

/// Returns a body that sends `first`, which was read from the source already, and then the rest of
/// the source. While one slice is sent, the next slice is read.
pub(crate) fn body_from_source(first: Vec<u8>, source: impl ByteSource) -> ReplyBody {
    let first = (!first.is_empty()).then(|| Bytes::from(first));
    BodyExt::boxed(SourceBody { first, next: Some(read_next(Box::new(source))) })
}

type PendingRead = JoinHandle<(Box<dyn ByteSource>, io::Result<Vec<u8>>)>;

struct SourceBody {
    first: Option<Bytes>,
    next: Option<PendingRead>,
}

fn read_next(mut source: Box<dyn ByteSource>) -> PendingRead {
    spawn_blocking(move || {
        let mut slice = Vec::with_capacity(SLICE_BYTES);
        let filled = source.fill(&mut slice).map(|()| slice);
        (source, filled)
    })
}

impl Body for SourceBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let Some(next) = &mut self.next else { return Poll::Ready(None) };
        let read_slice = ready!(Pin::new(next).poll(context)).map_err(io::Error::other);
        self.next = None;
        let (source, filled) = read_slice?;
        let slice = filled?;
        if slice.is_empty() {
            return Poll::Ready(None);
        }
        self.next = Some(read_next(source));
        Poll::Ready(Some(Ok(Frame::data(slice.into()))))
    }
}

/// Adapter that collects the bytes that arrive into slices for a sink. While the sink consumes one
/// slice, the next slice is collected.
#[derive(Debug)]
pub(crate) struct SinkWriter<S> {
    gathered: Vec<u8>,
    sink: SinkState<S>,
}

#[derive(Debug)]
enum SinkState<S> {
    Hand(S),
    Work(JoinHandle<(S, Result<(), Failure>)>),
    /// The sink failed, or the wait for the sink was cancelled.
    Gone,
}

impl<S: ByteSink> SinkWriter<S> {
    /// Creates an adapter for a sink.
    pub(crate) fn new(sink: S) -> SinkWriter<S> {
        SinkWriter { gathered: Vec::new(), sink: SinkState::Hand(sink) }
    }

    /// Adds bytes that arrived. Waits for the sink if a slice is full and the sink still works on
    /// the previous one.
    pub(crate) async fn push(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.gathered.extend_from_slice(bytes);
        if self.gathered.len() >= SLICE_BYTES {
            let slice = std::mem::replace(&mut self.gathered, Vec::with_capacity(SLICE_BYTES));
            self.hand_over(slice).await?;
        }
        Ok(())
    }

    /// Returns the sink after it has consumed everything.
    pub(crate) async fn finish(mut self) -> Result<S, Failure> {
        let rest = std::mem::take(&mut self.gathered);
        if !rest.is_empty() {
            self.hand_over(rest).await?;
        }
        self.take_sink().await
    }

    async fn hand_over(&mut self, slice: Vec<u8>) -> Result<(), Failure> {
        let mut sink = self.take_sink().await?;
        self.sink = SinkState::Work(spawn_blocking(move || {
            let taken = sink.take(&slice);
            (sink, taken)
        }));
        Ok(())
    }

    async fn take_sink(&mut self) -> Result<S, Failure> {
        match std::mem::replace(&mut self.sink, SinkState::Gone) {
            SinkState::Hand(sink) => Ok(sink),
            SinkState::Work(work) => {
                let (sink, taken) =
                    work.await.map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
                taken.map(|()| sink)
            }
            SinkState::Gone => {
                Err(Failure::new(Code::Internal, "nothing is taken after a failure"))
            }
        }
    }
}

/// Writes a whole stream into a sink.
pub(crate) async fn write_stream<S: ByteSink>(
    stream: &mut (impl Stream<Item = io::Result<Bytes>> + Unpin),
    sink: S,
) -> Result<S, Failure> {
    let mut pouring = SinkWriter::new(sink);
    while let Some(bytes) = stream.next().await {
        pouring.push(&bytes.map_err(|error| interrupted_failure(&error))?).await?;
    }
    pouring.finish().await
}

/// Reads and drops the rest of a stream, for at most [`DISCARD_TIMEOUT`].
pub(crate) async fn discard(mut stream: impl Stream<Item = io::Result<Bytes>> + Unpin) {
    let rest = async { while let Some(Ok(_)) = stream.next().await {} };
    // After the timeout, the connection is closed.
    let _ = tokio::time::timeout(DISCARD_TIMEOUT, rest).await;
}

/// Refuses a request whose body was not read: reads and drops the body, and returns the reply.
pub(crate) async fn refuse_unread(request: Request<Incoming>, refusal: Reply) -> Reply {
    discard(body_stream(request.into_body())).await;
    refusal
}

/// Returns the body of a request as a stream of bytes.
pub(crate) fn body_stream(body: Incoming) -> impl Stream<Item = io::Result<Bytes>> + Send + Unpin {
    body.into_data_stream().map(|bytes| bytes.map_err(io::Error::other))
}

/// Returns the failure of a request whose body ends early or is malformed.
pub(crate) fn interrupted_failure(error: &io::Error) -> Failure {
    Failure::new(Code::InvalidArgument, format!("the request's body cannot be read: {error}"))
}
