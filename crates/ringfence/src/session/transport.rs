//! Connections to a guest: HTTP/1.1 over the streams of a connector, kept in a pool and used again.
//!
//! A connection has no task of its own: the caller that waits for something on a connection drives
//! it forward ([`drive`]). Therefore a call costs no switch between tasks, a reader that does not
//! read slows the guest down, and a dropped call leaves nothing behind.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use ringfence_proto::code::{Code, Failure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::connector::{GuestConnector, GuestStream};
use super::error::Operation;
use super::idle_connections::{IdleConnectionState, IdleConnections};
use super::{PortStream, SessionError};

/// Longest time that the opening of a stream may take.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time that a guest may be silent when an answer is expected: three of its heartbeats.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Time after a command's deadline within which the guest must report its end.
const END_GRACE_PERIOD: Duration = Duration::from_secs(10);
/// Longest time that a used connection may take to be ready again; then a new one is opened
/// instead.
const READY_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest head of an answer, in bytes.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// Longest body of a failure, in bytes.
const MAX_FAILURE_BYTES: usize = 64 << 10;

/// Body of a request.
pub(super) enum RequestBody {
    /// A body that is sent at once.
    Whole(Bytes),
    /// A body that is sent piece by piece, and is over when its sender is dropped.
    Pieces(mpsc::Receiver<Bytes>),
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            RequestBody::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            RequestBody::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            RequestBody::Pieces(pieces) => {
                pieces.poll_recv(context).map(|piece| piece.map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, RequestBody::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RequestBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            RequestBody::Pieces(_) => SizeHint::default(),
        }
    }
}

type HttpConnection = http1::Connection<TokioIo<Box<dyn GuestStream>>, RequestBody>;

/// One connection to the guest.
struct GuestConnection {
    sender: http1::SendRequest<RequestBody>,
    /// Connection to be driven; `None` once it is closed.
    http: Option<HttpConnection>,
    /// Runtime whose reactor reports events of the stream.
    runtime: runtime::Id,
}

/// Waits for a future on a connection, and drives the connection forward meanwhile.
async fn drive<T>(connection: &mut Option<HttpConnection>, awaited: impl Future<Output = T>) -> T {
    let mut awaited = pin!(awaited);
    poll_fn(|context| {
        if let Poll::Ready(value) = awaited.as_mut().poll(context) {
            return Poll::Ready(value);
        }
        if connection.as_mut().is_some_and(|open| Pin::new(open).poll(context).is_ready()) {
            // This drop tells the future that the connection has ended.
            *connection = None;
        }
        awaited.as_mut().poll(context)
    })
    .await
}

/// A connection whose request was answered, and the body of the answer.
pub(super) struct HttpExchange {
    connection: GuestConnection,
    body: Incoming,
}

impl HttpExchange {
    /// Returns the next bytes of the body, or `None` at its end.
    pub(super) async fn piece(&mut self) -> Result<Option<Bytes>, hyper::Error> {
        loop {
            match drive(&mut self.connection.http, self.body.frame()).await {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => return Ok(Some(bytes)),
                    Err(_trailers) => {}
                },
                Some(Err(error)) => return Err(error),
                None => return Ok(None),
            }
        }
    }

    /// Returns the whole body, or `None` if it is longer than `limit` bytes.
    async fn whole(&mut self, limit: usize) -> Result<Option<Vec<u8>>, hyper::Error> {
        let mut whole = Vec::new();
        while let Some(piece) = self.piece().await? {
            if whole.len() + piece.len() > limit {
                return Ok(None);
            }
            whole.extend_from_slice(&piece);
        }
        Ok(Some(whole))
    }

    /// Returns the connection if it can carry another request: the last body is over, and the guest
    /// has not closed the connection.
    async fn into_idle(mut self) -> Option<GuestConnection> {
        let readying = async {
            match self.piece().await {
                Ok(None) => {
                    drive(&mut self.connection.http, self.connection.sender.ready()).await.ok()
                }
                Ok(Some(_)) | Err(_) => None,
            }
        };
        timeout(READY_TIMEOUT, readying).await.ok()??;
        self.connection.http.is_some().then_some(self.connection)
    }
}

/// All connections to one guest.
#[derive(Debug)]
pub(super) struct Transport {
    connector: Arc<dyn GuestConnector>,
    /// Longest time that the opening of a stream may take.
    open_timeout: Duration,
    /// Longest time that the guest may be silent when an answer is expected.
    pub(super) answer_timeout: Duration,
    /// Time after a command's deadline within which the guest must report its end.
    pub(super) grace_period: Duration,
    /// Connections for other requests, each with the rest of its last answer.
    pub(super) idle: IdleConnections<HttpExchange>,
}

impl std::fmt::Debug for HttpExchange {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("HttpExchange").finish_non_exhaustive()
    }
}

impl Transport {
    pub(super) fn new(connector: Arc<dyn GuestConnector>) -> Transport {
        let outage_limit = connector.outage_limit();
        Transport {
            connector,
            open_timeout: OPEN_TIMEOUT + outage_limit,
            answer_timeout: ANSWER_TIMEOUT + outage_limit,
            grace_period: END_GRACE_PERIOD + outage_limit,
            idle: IdleConnections::default(),
        }
    }

    /// Returns a request with the headers that every request has.
    pub(super) fn request(&self, method: Method, target: &str) -> hyper::http::request::Builder {
        let request = Request::builder().method(method).uri(target);
        let request = request.header(header::HOST, self.connector.host());
        match self.connector.token() {
            Some(token) => request.header(ringfence_proto::header::TOKEN, token),
            None => request,
        }
    }

    /// Keeps a connection for another request. Its last body must have been read up to its end, or
    /// up to a message that says that nothing follows.
    pub(super) fn return_to_pool(&self, exchange: HttpExchange) {
        if exchange.connection.http.is_some() {
            self.idle.keep(exchange);
        }
    }

    fn take_idle(&self) -> Option<HttpExchange> {
        let here = runtime::Handle::current().id();
        // Take only connections of this runtime, because another runtime's reactor may be stopped
        // or gone.
        self.idle.take(|exchange| match exchange.connection.runtime == here {
            true => IdleConnectionState::Ready,
            false => IdleConnectionState::Reserved,
        })
    }

    /// Opens a stream to the guest.
    pub(super) async fn open(&self) -> Result<Box<dyn GuestStream>, SessionError> {
        let opened = timeout(self.open_timeout, self.connector.connect())
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        opened.map_err(|source| SessionError::Unreachable { source })
    }

    async fn connect(&self) -> Result<GuestConnection, SessionError> {
        let stream = TokioIo::new(self.open().await?);
        let handshake =
            http1::Builder::new().max_header_size(MAX_HEAD_BYTES).handshake(stream).await;
        let (sender, connection) = handshake
            .map_err(|error| SessionError::Unreachable { source: io::Error::other(error) })?;
        Ok(GuestConnection {
            sender,
            http: Some(connection),
            runtime: runtime::Handle::current().id(),
        })
    }

    /// Sends a request and waits for the head of its answer, without a deadline.
    async fn send_request(
        &self,
        operation: Operation<'_>,
        mut request: Request<RequestBody>,
    ) -> Result<Response<HttpExchange>, SessionError> {
        loop {
            let used = match self.take_idle() {
                Some(exchange) => match exchange.into_idle().await {
                    Some(connection) => Some(connection),
                    None => continue,
                },
                None => None,
            };
            let is_new = used.is_none();
            let mut connection = match used {
                Some(connection) => connection,
                None => self.connect().await?,
            };
            let sent = connection.sender.try_send_request(request);
            match drive(&mut connection.http, sent).await {
                Ok(response) => return Ok(response.map(|body| HttpExchange { connection, body })),
                // The guest closed a kept connection before anything was sent on it: try another
                // connection.
                Err(mut error) => match error.take_message() {
                    Some(unsent) if !is_new => request = unsent,
                    _ => return Err(operation.lost(error.into_error())),
                },
            }
        }
    }

    /// Sends a request and waits for the head of its answer. An answer that reports a failure
    /// becomes an error.
    pub(super) async fn send(
        &self,
        operation: Operation<'_>,
        request: Request<RequestBody>,
    ) -> Result<Response<HttpExchange>, SessionError> {
        let answer = async {
            let response = self.send_request(operation, request).await?;
            if response.status().is_success() {
                Ok(response)
            } else {
                Err(self.read_failure(operation, response).await)
            }
        };
        timeout(self.answer_timeout, answer)
            .await
            .unwrap_or_else(|_| Err(operation.no_answer(self.answer_timeout)))
    }

    /// Sends a request while `feeding` supplies its body, and waits for the answer that confirms
    /// the whole body.
    pub(super) async fn send_with_body<T>(
        &self,
        operation: Operation<'_>,
        request: Request<RequestBody>,
        feeding: impl Future<Output = Result<T, SessionError>>,
    ) -> Result<T, SessionError> {
        let mut answer = pin!(self.send_request(operation, request));
        let fed = tokio::select! {
            biased;
            early = &mut answer => {
                let response = early?;
                return Err(match response.status().is_success() {
                    true => operation.invalid_answer("the answer came before the whole request \
                                                      was sent"),
                    false => self.read_failure_in_time(operation, response).await,
                });
            }
            fed = feeding => fed?,
        };
        let response = timeout(self.answer_timeout, answer)
            .await
            .unwrap_or_else(|_| Err(operation.no_answer(self.answer_timeout)))?;
        if !response.status().is_success() {
            return Err(self.read_failure_in_time(operation, response).await);
        }
        let mut exchange = response.into_body();
        let read = timeout(self.answer_timeout, exchange.whole(MAX_FAILURE_BYTES)).await;
        if let Ok(Ok(Some(_))) = read {
            self.return_to_pool(exchange);
        }
        Ok(fed)
    }

    /// Reads the error from an answer that reports a failure, within the time limit.
    async fn read_failure_in_time(
        &self,
        operation: Operation<'_>,
        response: Response<HttpExchange>,
    ) -> SessionError {
        timeout(self.answer_timeout, self.read_failure(operation, response))
            .await
            .unwrap_or_else(|_| operation.no_answer(self.answer_timeout))
    }

    /// Reads the error from an answer that reports a failure.
    pub(super) async fn read_failure(
        &self,
        operation: Operation<'_>,
        response: Response<HttpExchange>,
    ) -> SessionError {
        let status = response.status();
        let mut exchange = response.into_body();
        let body = match exchange.whole(MAX_FAILURE_BYTES).await {
            Ok(Some(body)) => body,
            Ok(None) => return operation.invalid_answer("its failure message is too long"),
            Err(error) => return operation.lost(error),
        };
        self.return_to_pool(exchange);
        failure(operation, status, &body)
    }

    /// Asks the guest to connect a stream to one of the sandbox's ports.
    pub(super) async fn tunnel(
        &self,
        operation: Operation<'_>,
        port: u16,
    ) -> Result<PortStream, SessionError> {
        let opening = async {
            let GuestConnection { mut sender, http, .. } = self.connect().await?;
            let mut connection = http.expect("it is new");
            let request = self
                .request(Method::CONNECT, &format!("127.0.0.1:{port}"))
                .body(RequestBody::Whole(Bytes::new()))
                .expect("the target is an address");
            let mut asked = pin!(sender.send_request(request));
            // If the guest agrees, both the connection and the answer are complete. If it refuses,
            // only the answer is.
            let mut is_open = true;
            let response = poll_fn(|context| {
                if is_open && connection.poll_without_shutdown(context).is_ready() {
                    is_open = false;
                }
                asked.as_mut().poll(context)
            })
            .await
            .map_err(|error| operation.lost(error))?;
            if response.status() == StatusCode::BAD_GATEWAY {
                return Err(SessionError::PortClosed { port });
            }
            if !response.status().is_success() {
                return Err(failure(operation, response.status(), b""));
            }
            if is_open {
                poll_fn(|context| connection.poll_without_shutdown(context))
                    .await
                    .map_err(|error| operation.lost(error))?;
            }
            let parts = connection.into_parts();
            Ok(PortStream::new(parts.read_buf, parts.io.into_inner()))
        };
        timeout(self.answer_timeout, opening)
            .await
            .unwrap_or_else(|_| Err(operation.no_answer(self.answer_timeout)))
    }

    /// Sends one request message and returns the answer message.
    pub(super) async fn unary<RequestMessage: Serialize, Answer: DeserializeOwned>(
        &self,
        operation: Operation<'_>,
        target: &str,
        message: &RequestMessage,
    ) -> Result<Answer, SessionError> {
        timeout(self.answer_timeout, self.unary_without_deadline(operation, target, message))
            .await
            .unwrap_or_else(|_| Err(operation.no_answer(self.answer_timeout)))
    }

    /// Does the same as [`Transport::unary`], but without a time limit for the answer.
    pub(super) async fn unary_without_deadline<
        RequestMessage: Serialize,
        Answer: DeserializeOwned,
    >(
        &self,
        operation: Operation<'_>,
        target: &str,
        message: &RequestMessage,
    ) -> Result<Answer, SessionError> {
        let message = serde_json::to_vec(message)
            .expect("our messages have text for keys and no failing parts");
        let request = self
            .request(Method::POST, target)
            .header(header::CONTENT_TYPE, ringfence_proto::content::UNARY)
            .header(ringfence_proto::header::PROTOCOL, "1")
            .body(RequestBody::Whole(message.into()))
            .expect("the headers and the target are fixed text");
        let response = self.send_request(operation, request).await?;
        if !response.status().is_success() {
            return Err(self.read_failure(operation, response).await);
        }
        let mut exchange = response.into_body();
        let limit = ringfence_proto::MAX_MESSAGE_BYTES;
        let answer = exchange.whole(limit).await.map_err(|error| operation.lost(error))?;
        let answer = answer.ok_or_else(|| SessionError::TooLong {
            what: operation.to_string(),
            limit: limit as u64,
        })?;
        self.return_to_pool(exchange);
        serde_json::from_slice(&answer).map_err(|error| operation.invalid_answer(error))
    }
}

/// Reads a failure. Its code is a name, or, outside the two services, the HTTP status again.
fn failure(operation: Operation<'_>, status: StatusCode, body: &[u8]) -> SessionError {
    if let Ok(failure) = serde_json::from_slice::<Failure>(body) {
        return operation.refused(failure.code, &failure.message);
    }
    #[derive(serde::Deserialize)]
    struct FailureBody {
        message: String,
    }
    let code = match status.as_u16() {
        400 | 405 | 413 | 415 => Code::InvalidArgument,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::NotFound,
        409 => Code::AlreadyExists,
        429 | 507 => Code::ResourceExhausted,
        501 => Code::Unimplemented,
        502 | 503 => Code::Unavailable,
        504 => Code::DeadlineExceeded,
        _ => Code::Unknown,
    };
    match serde_json::from_slice::<FailureBody>(body) {
        Ok(FailureBody { message }) => operation.refused(code, &message),
        Err(_) => {
            operation.refused(code, &format!("the guest answers with status {}", status.as_u16()))
        }
    }
}
