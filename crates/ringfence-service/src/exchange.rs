//! Requests and answers on one HTTP connection.
//!
//! A client must finish the head of a request within a timeout. After a refusal, the server reads
//! the rest of the request body, so that the next request on the connection is parsed correctly.
//! The server gives up a peer that does not read its answer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, EXPECT, HeaderValue};
use hyper::{Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Sleep, sleep, timeout};

/// Maximum number of bytes that the server reads and discards of an unwanted request body.
const MOST_UNWANTED: u64 = 32 << 20;
/// Maximum time that the server spends on reading an unwanted request body.
const UNWANTED_BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time in which a peer may read nothing of the data that the server sends.
const SEND_TIMEOUT: Duration = Duration::from_secs(330);

/// Counter of activity on all connections. The connection with the smallest last value has been
/// idle for longest.
static ACTIVITY_CLOCK: AtomicU64 = AtomicU64::new(0);

/// Time limits for the head of a request.
#[derive(Debug, Clone, Copy)]
pub struct HeadTimeouts {
    /// Limit for the complete first head, from the time of the connection.
    pub first: Duration,
    /// Limit for each later head, from its first byte.
    pub later: Duration,
}

/// Shared record of the exchanges, that is of the requests and answers, on one connection.
#[derive(Debug, Clone, Default)]
pub struct Exchanges(Arc<ExchangeCounts>);

#[derive(Debug, Default)]
struct ExchangeCounts {
    /// Number of requests so far.
    begun: AtomicUsize,
    /// Number of request and answer bodies that have not ended. While the number is zero, the bytes
    /// that arrive belong to the head of a request.
    active: AtomicUsize,
    /// Number of requests whose remaining body the server reads only so that the answer arrives.
    unwanted: AtomicUsize,
    /// Value of [`ACTIVITY_CLOCK`] at the last activity.
    last: AtomicU64,
    /// Set once the client has authenticated.
    is_known: AtomicBool,
    /// Notified when the connection must close because another client needs its place.
    closed: Notify,
    /// Task to notify when the connection becomes idle.
    listener: Option<Arc<Notify>>,
}

/// Idleness of a connection. The connection with the smaller value is closed first, so an
/// unauthenticated client is closed before an authenticated client.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Idleness {
    is_known: bool,
    since: u64,
}

/// Guard that counts one body that has not ended.
#[derive(Debug)]
pub struct BodyGuard(Exchanges);

impl Exchanges {
    /// Creates the record of a new connection, which notifies `listener` when the connection
    /// becomes idle.
    pub fn with_listener(listener: Arc<Notify>) -> Exchanges {
        let exchanges = Exchanges(Arc::new(ExchangeCounts {
            listener: Some(listener),
            ..ExchangeCounts::default()
        }));
        exchanges.touch();
        exchanges
    }

    /// Records activity on the connection.
    pub fn touch(&self) {
        self.0.last.store(ACTIVITY_CLOCK.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Records that the client has authenticated.
    pub fn mark_known(&self) {
        self.0.is_known.store(true, Ordering::Relaxed);
    }

    /// Returns the idleness of the connection, or `None` while the server answers a request on the
    /// connection.
    pub fn idleness(&self) -> Option<Idleness> {
        let counts = &self.0;
        let is_busy = counts.active.load(Ordering::Relaxed) > 0
            && counts.unwanted.load(Ordering::Relaxed) == 0;
        let is_known = counts.is_known.load(Ordering::Relaxed);
        (!is_busy).then(|| Idleness { is_known, since: counts.last.load(Ordering::Relaxed) })
    }

    /// Returns whether the connection has had a request.
    pub fn has_begun(&self) -> bool {
        self.0.begun.load(Ordering::Relaxed) > 0
    }

    /// Requests that the connection closes.
    pub fn close(&self) {
        self.0.closed.notify_one();
    }

    /// Waits until [`Exchanges::close`] requests that the connection closes.
    pub async fn closed(&self) {
        self.0.closed.notified().await;
    }

    /// Wraps `stream` so that reads fail when the head of a request takes longer than `timeouts`
    /// allow.
    pub fn watch<Stream>(&self, stream: Stream, timeouts: HeadTimeouts) -> WatchedStream<Stream> {
        let deadline = Some(Box::pin(sleep(timeouts.first)));
        let head_timeout = timeouts.later;
        WatchedStream {
            stream,
            exchanges: self.clone(),
            head_timeout,
            seen: 0,
            deadline,
            taken_by: None,
        }
    }

    /// Begins an exchange. When the returned request is dropped, the rest of its body goes to the
    /// [`Exchange`].
    pub fn begin(&self, request: Request<Incoming>) -> (Request<RequestBody>, Exchange) {
        self.touch();
        self.0.begun.fetch_add(1, Ordering::Relaxed);
        let (back, left) = oneshot::channel();
        let is_withheld = request.headers().contains_key(EXPECT);
        let lend = |body| {
            let left = Some(UnreadBody { body, is_withheld });
            RequestBody { left, back: Some(back), _active: self.one_more() }
        };
        (request.map(lend), Exchange { left, active: self.one_more() })
    }

    /// Counts one more body, until the returned guard is dropped.
    pub fn one_more(&self) -> BodyGuard {
        self.0.active.fetch_add(1, Ordering::Relaxed);
        BodyGuard(self.clone())
    }
}

impl Exchanges {
    fn became_idle(&self) {
        self.touch();
        self.0.listener.iter().for_each(|listener| listener.notify_one());
    }
}

impl BodyGuard {
    /// Keeps the connection busy for the rest of its life.
    fn stay(&self) {
        self.0.0.active.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for BodyGuard {
    fn drop(&mut self) {
        if self.0.0.active.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.became_idle();
        }
    }
}

/// Request that the server is answering.
#[derive(Debug)]
pub struct Exchange {
    left: oneshot::Receiver<UnreadBody>,
    active: BodyGuard,
}

impl Exchange {
    /// Makes an answer ready to be sent, after it has read the rest of the request body.
    ///
    /// hyper closes a connection whose request body was not read to its end. The close can discard
    /// the answer, and a client that reuses the connection learns too late that it is closed.
    pub async fn end<Body>(mut self, mut reply: Response<Body>) -> Response<ReplyBody<Body>> {
        let is_refusal = reply.status().is_client_error() || reply.status().is_server_error();
        let left = self.left.try_recv();
        // The connection counts as idle while the client sends an unwanted body, so that the server
        // can close the connection when other clients wait for a place.
        let is_open = |left: &UnreadBody| !left.body.is_end_stream();
        let is_unwanted = is_refusal || left.as_ref().is_ok_and(is_open);
        let _unwanted = is_unwanted.then(|| UnwantedBody::new(self.active.0.clone()));
        let is_read = match left {
            // After an accepted request, both sides may stay in conversation for a long time.
            Err(_) if !is_refusal => true,
            Err(_) => {
                soon(async {
                    self.left.await.expect("it comes back when it is dropped").read().await
                })
                .await
            }
            Ok(left) => soon(left.read()).await,
        };
        if !is_read {
            reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if reply.status() == StatusCode::SWITCHING_PROTOCOLS {
            self.active.stay(); // no head of a request follows after the switch of protocols
        }
        reply.map(|body| ReplyBody { body, _active: self.active })
    }
}

/// Guard that counts one request whose unwanted body is read to its end.
#[derive(Debug)]
struct UnwantedBody(Exchanges);

impl UnwantedBody {
    fn new(exchanges: Exchanges) -> UnwantedBody {
        exchanges.0.unwanted.fetch_add(1, Ordering::Relaxed);
        exchanges.became_idle();
        UnwantedBody(exchanges)
    }
}

impl Drop for UnwantedBody {
    fn drop(&mut self) {
        self.0.0.unwanted.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn soon(reading: impl Future<Output = bool>) -> bool {
    timeout(UNWANTED_BODY_TIMEOUT, reading).await.unwrap_or(false)
}

/// Body of a request. When the body is dropped, its unread rest goes to the [`Exchange`].
#[derive(Debug)]
pub struct RequestBody {
    left: Option<UnreadBody>,
    back: Option<oneshot::Sender<UnreadBody>>,
    _active: BodyGuard,
}

/// Unread rest of a request body.
#[derive(Debug)]
struct UnreadBody {
    body: Incoming,
    /// Set while the client holds the body back until the server asks for it, as in RFC 9110,
    /// 10.1.1.
    is_withheld: bool,
}

impl UnreadBody {
    /// Reads the body to its end and returns whether the end was reached. Does not ask the client
    /// for a body that it holds back.
    async fn read(mut self) -> bool {
        if self.body.is_end_stream() {
            return true;
        }
        let mut left = MOST_UNWANTED;
        if self.is_withheld || self.body.size_hint().lower() > left {
            return false;
        }
        while let Some(frame) = self.body.frame().await {
            let length = frame.ok().map(|frame| frame.data_ref().map_or(0, Bytes::len) as u64);
            match length.and_then(|length| left.checked_sub(length)) {
                Some(less) => left = less,
                None => return false,
            }
        }
        true
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(left) = &mut self.left else { return Poll::Ready(None) };
        left.is_withheld = false;
        Pin::new(&mut left.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.left.as_ref().is_none_or(|left| left.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.left.as_ref().map(|left| left.body.size_hint()).unwrap_or_default()
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let (Some(left), Some(back)) = (self.left.take(), self.back.take()) {
            let _ = back.send(left); // the exchange may have ended before the body was dropped
        }
    }
}

/// Body of an answer.
#[derive(Debug)]
pub struct ReplyBody<Body> {
    body: Body,
    _active: BodyGuard,
}

impl<Body: HttpBody + Unpin> HttpBody for ReplyBody<Body> {
    type Data = Body::Data;
    type Error = Body::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Body::Data>, Body::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Stream that fails reads when the head of a request is late, and writes when the peer does not
/// read.
#[derive(Debug)]
pub struct WatchedStream<Stream> {
    stream: Stream,
    exchanges: Exchanges,
    head_timeout: Duration,
    /// Number of requests at the time of the last read.
    seen: usize,
    /// Timer for the head of a request that has begun.
    deadline: Option<Pin<Box<Sleep>>>,
    /// Timer for the peer to read some of the sent data.
    taken_by: Option<Pin<Box<Sleep>>>,
}

impl<Stream> WatchedStream<Stream> {
    /// Passes on the result of a write, or returns a timeout error if the peer has read nothing for
    /// too long.
    fn sent<T>(&mut self, cx: &mut Context<'_>, sent: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if sent.is_ready() {
            self.taken_by = None;
            self.exchanges.touch();
            return sent;
        }
        let taken_by = self.taken_by.get_or_insert_with(|| Box::pin(sleep(SEND_TIMEOUT)));
        taken_by.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<Stream: AsyncRead + Unpin> AsyncRead for WatchedStream<Stream> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let begun = self.exchanges.0.begun.load(Ordering::Relaxed);
        let is_busy = self.exchanges.0.active.load(Ordering::Relaxed) > 0;
        if is_busy || begun != self.seen {
            (self.seen, self.deadline) = (begun, None); // the head arrived in time
        }
        if !is_busy && self.deadline.is_none() && buffer.filled().len() > before {
            self.deadline = Some(Box::pin(sleep(self.head_timeout)));
        }
        match &mut self.deadline {
            Some(deadline) if read.is_pending() => {
                deadline.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
            }
            _ => read,
        }
    }
}

impl<Stream: AsyncWrite + Unpin> AsyncWrite for WatchedStream<Stream> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.sent(cx, sent)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.sent(cx, sent)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use http_body_util::Empty;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);
    const SHORT: Duration = Duration::from_millis(200);

    /// Returns a client of a server that refuses requests to `/no` without reading them, and
    /// accepts all other requests.
    fn client(head_timeout: Duration) -> DuplexStream {
        client_with(HeadTimeouts { first: LONG, later: head_timeout }).0
    }

    fn client_with(timeouts: HeadTimeouts) -> (DuplexStream, Exchanges) {
        let (client, stream) = tokio::io::duplex(64 << 10);
        let exchanges = Exchanges::default();
        let watched = exchanges.clone();
        let stream = exchanges.watch(stream, timeouts);
        let service = service_fn(move |request| {
            let (request, exchange) = exchanges.begin(request);
            async move {
                let mut reply = Response::new(Empty::<Bytes>::new());
                *reply.status_mut() = match request.uri().path() {
                    "/no" => StatusCode::BAD_REQUEST,
                    _ => StatusCode::NO_CONTENT,
                };
                drop(request);
                Ok::<_, Infallible>(exchange.end(reply).await)
            }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        (client, watched)
    }

    fn on_one_thread(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async { timeout(LONG, test).await.unwrap() });
    }

    /// Returns the head of the next answer. The bodies of these answers are short and arrive in the
    /// same read.
    async fn head(client: &mut DuplexStream) -> String {
        let mut bytes = vec![0; 1000];
        let length = client.read(&mut bytes).await.unwrap();
        let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
        text.split("\r\n\r\n").next().unwrap().to_lowercase()
    }

    const PLAIN: &str = "GET / HTTP/1.1\r\n\r\n";

    fn post(length: usize) -> String {
        format!("POST /no HTTP/1.1\r\nContent-Length: {length}\r\n\r\n")
    }

    #[test]
    fn a_connection_is_idle_while_a_body_that_nobody_wants_is_awaited() {
        on_one_thread(async {
            for path in ["/", "/no"] {
                let timeouts = HeadTimeouts { first: LONG, later: LONG };
                let (mut client, exchanges) = client_with(timeouts);
                let request = format!("GET {path} HTTP/1.1\r\nContent-Length: 10\r\n\r\n");
                client.write_all(request.as_bytes()).await.unwrap();
                while !exchanges.has_begun() {
                    tokio::task::yield_now().await;
                }
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                }
                assert!(exchanges.idleness().is_some(), "{path}");
            }
        });
    }

    #[test]
    fn a_refusal_leaves_a_connection_of_use_and_its_body_is_read() {
        on_one_thread(async {
            let mut client = client(LONG);
            for length in [0, 1, 1 << 10, 1 << 20] {
                client.write_all(post(length).as_bytes()).await.unwrap();
                client.write_all(&vec![b'x'; length]).await.unwrap();
                let refused = head(&mut client).await;
                assert!(
                    refused.starts_with("http/1.1 400") && !refused.contains("connection"),
                    "{length}: {refused}"
                );
            }
            client
                .write_all(b"POST /no HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
                .await
                .unwrap();
            client.write_all(b"0\r\n\r\n").await.unwrap();
            assert!(head(&mut client).await.starts_with("http/1.1 400"));
            client.write_all(PLAIN.as_bytes()).await.unwrap();
            assert!(head(&mut client).await.starts_with("http/1.1 204"));
        });
    }

    #[test]
    fn a_body_that_is_too_long_or_not_sent_unasked_ends_its_connection_at_once() {
        on_one_thread(async {
            let withheld = post(5).replace("\r\n\r\n", "\r\nExpect: 100-continue\r\n\r\n");
            for head_of_request in [post(1 << 30), withheld] {
                let mut client = client(LONG);
                client.write_all(head_of_request.as_bytes()).await.unwrap();
                let refused = head(&mut client).await;
                assert!(
                    refused.starts_with("http/1.1 400") && refused.contains("connection: close"),
                    "{refused}"
                );
                assert_eq!(client.read(&mut [0; 10]).await.unwrap(), 0);
            }
        });
    }

    /// Sends the head of a request one byte at a time. Returns `false` if the server stops reading
    /// before `time` is over.
    async fn trickle(client: &mut DuplexStream, time: Duration) -> bool {
        let written = async {
            client.write_all(b"GET / HTTP/1.1\r\nX: ").await?;
            loop {
                client.write_all(b"x").await?;
                sleep(SHORT / 20).await;
            }
        };
        let written: Result<io::Result<()>, _> = timeout(time, written).await;
        written.is_err()
    }

    #[test]
    fn a_head_that_trickles_in_is_not_waited_for() {
        on_one_thread(async {
            assert!(trickle(&mut client(LONG), 2 * SHORT).await, "it has time");
            let timeouts = HeadTimeouts { first: SHORT, later: LONG };
            assert!(!trickle(&mut client_with(timeouts).0, LONG).await);
            // The same limit holds for a client that had an answer before, and for a client that
            // stops in the middle of a head.
            let mut client = client(SHORT);
            client.write_all(PLAIN.as_bytes()).await.unwrap();
            assert!(head(&mut client).await.starts_with("http/1.1 204"));
            client.write_all(b"G").await.unwrap();
            assert_eq!(client.read(&mut [0; 10]).await.unwrap(), 0);
        });
    }

    #[test]
    fn a_connection_that_never_spoke_has_less_time_than_one_that_rests() {
        on_one_thread(async {
            let timeouts = HeadTimeouts { first: SHORT, later: LONG };
            let (mut silent, _) = client_with(timeouts);
            assert_eq!(silent.read(&mut [0; 10]).await.unwrap(), 0);
            // A client that sends half a head is treated like a silent client.
            let (mut half, _) = client_with(timeouts);
            half.write_all(b"GET / HTTP/1.1\r\nHost").await.unwrap();
            assert_eq!(half.read(&mut [0; 10]).await.unwrap(), 0);
            let (mut client, _) = client_with(timeouts);
            for _ in 0..3 {
                client.write_all(PLAIN.as_bytes()).await.unwrap();
                assert!(head(&mut client).await.starts_with("http/1.1 204"));
                sleep(3 * SHORT).await;
            }
        });
    }

    #[test]
    fn a_connection_is_idle_unless_a_request_is_answered_on_it() {
        on_one_thread(async {
            let (mut client, exchanges) = client_with(HeadTimeouts { first: LONG, later: LONG });
            let before = exchanges.idleness().unwrap();
            client.write_all(PLAIN.as_bytes()).await.unwrap();
            assert!(head(&mut client).await.starts_with("http/1.1 204"));
            assert!(exchanges.idleness().unwrap() > before, "it was of use since");
            // A refused client that does not send its body does not use a place that another client
            // needs.
            client.write_all(post(5).as_bytes()).await.unwrap();
            sleep(UNWANTED_BODY_TIMEOUT / 2).await;
            assert!(exchanges.0.active.load(Ordering::Relaxed) > 0, "it is read");
            assert!(exchanges.idleness().is_some());
            let _busy = exchanges.one_more();
            drop(client);
            sleep(UNWANTED_BODY_TIMEOUT).await;
            assert!(exchanges.idleness().is_none());
        });
    }

    #[test]
    fn a_connection_may_rest_and_a_body_take_longer_than_a_head() {
        on_one_thread(async {
            let mut client = client(SHORT);
            for _ in 0..2 {
                sleep(2 * SHORT).await;
                client.write_all(PLAIN.as_bytes()).await.unwrap();
                assert!(head(&mut client).await.starts_with("http/1.1 204"));
            }
            client.write_all(post(1).as_bytes()).await.unwrap();
            sleep(2 * SHORT).await;
            client.write_all(b"x").await.unwrap();
            assert!(head(&mut client).await.starts_with("http/1.1 400"));
        });
    }
}
