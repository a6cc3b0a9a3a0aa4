//! The three kinds of calls of the Connect protocol: unary (one message each way), server stream
//! (one message in, a stream out) and client stream (a stream in, one message out).

use std::future::poll_fn;
use std::io;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full, Limited};
use hyper::body::{Body, Frame as BodyFrame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use ringfence_proto::code::{Code, EndOfStream, Failure};
use ringfence_proto::frame::{self, Decoder, Frame, FrameError};
use ringfence_proto::{LONGEST_MESSAGE, content, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep};

use crate::slices::decline;

/// Body of a reply.
pub(crate) type Contents = BoxBody<Bytes, io::Error>;
/// HTTP response to any request.
pub(crate) type Reply = Response<Contents>;

/// Number of messages that wait for a client that reads slowly.
const BACKLOG: usize = 2;
/// Default interval of silence on a stream, after which a keep-alive message is sent.
const KEEPALIVE: Duration = Duration::from_secs(90);
/// Time limit for a client to send the message of its call.
const PATIENCE: Duration = Duration::from_secs(60);

/// Message type of a stream. The type must have a message that means nothing except that the stream
/// is alive.
pub(crate) trait Streamed: Serialize {
    /// Returns the keep-alive message.
    fn keepalive() -> Self;
}

/// Meaning of the `connect-timeout-ms` header for a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deadline {
    /// The stream ends with `deadline_exceeded`, and the future of the method is dropped.
    EndsTheStream,
    /// The method enforces the time limit, and reports `deadline_exceeded` itself.
    IsTheMethods,
}

/// Error of sending to a stream whose client has disconnected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the client has gone")]
pub(crate) struct Closed;

/// Sending half of a stream.
#[derive(Debug)]
pub(crate) struct Sender<Message> {
    messages: mpsc::Sender<Piece>,
    kind: PhantomData<fn(Message)>,
}

impl<Message> Clone for Sender<Message> {
    fn clone(&self) -> Self {
        Sender { messages: self.messages.clone(), kind: PhantomData }
    }
}

impl<Message: Streamed> Sender<Message> {
    /// Sends a message. Waits while [`BACKLOG`] messages are queued for the client.
    pub(crate) async fn send(&self, message: &Message) -> Result<(), Closed> {
        self.send_encoded(encode(message)).await
    }

    /// Sends the first message of a stream. The queue of a new stream is empty, so there is no need
    /// to wait.
    pub(crate) fn send_first(&self, message: &Message) {
        let _ = self.messages.try_send(Piece::Message(encode(message))); // the client may be gone
    }

    /// Returns true if the client has disconnected.
    pub(crate) fn is_closed(&self) -> bool {
        self.messages.is_closed()
    }

    /// Sends a message that [`encode`] has put in its frame already, so that several streams can
    /// share the bytes.
    pub(crate) async fn send_encoded(&self, message: Bytes) -> Result<(), Closed> {
        self.messages.send(Piece::Message(message)).await.map_err(|_| Closed)
    }
}

/// Encodes a message as a frame.
pub(crate) fn encode<Message: Streamed>(message: &Message) -> Bytes {
    frame::message(message).into()
}

/// Answers a unary call: reads one message, and replies with one message.
pub(crate) async fn unary<Message, Answer>(
    request: Request<Incoming>,
    method: impl AsyncFnOnce(Message) -> Result<Answer, Failure>,
) -> Reply
where
    Message: DeserializeOwned,
    Answer: Serialize,
{
    if let Some(reply) = refusal(&request, content::UNARY) {
        return decline(request, reply).await;
    }
    let answer = async {
        let time = timeout(request.headers())?;
        let call = async {
            let body = collect(request.into_body()).await?;
            // The Connect protocol lets a client send an empty body for a message without fields.
            let body = if body.is_empty() { Bytes::from_static(b"{}") } else { body };
            method(frame::parse(&body).map_err(malformed)?).await
        };
        within(time, call).await
    };
    match answer.await {
        Ok(answer) => json(StatusCode::OK, &answer),
        Err(failure) => failed(&failure),
    }
}

/// Answers a server-stream call: reads one message, and replies with a stream of messages. The
/// future of `method` is dropped when the client disconnects.
pub(crate) async fn server_stream<Message, Sent, Work>(
    request: Request<Incoming>,
    deadline: Deadline,
    method: impl FnOnce(Message, Sender<Sent>) -> Work + 'static,
) -> Reply
where
    Message: DeserializeOwned + 'static,
    Sent: Streamed + 'static,
    Work: Future<Output = Result<(), Failure>> + 'static,
{
    if let Some(reply) = refusal(&request, content::STREAM) {
        return decline(request, reply).await;
    }
    let called = async {
        let time = match deadline {
            Deadline::EndsTheStream => timeout(request.headers())?,
            Deadline::IsTheMethods => None,
        };
        let interval = keepalive(request.headers());
        let message = only_message(&collect(request.into_body()).await?)?;
        Ok((time, interval, message))
    };
    let (time, interval, message) = match called.await {
        Ok(called) => called,
        Err(failure) => return ended_stream(failure),
    };
    let (messages, pieces) = mpsc::channel(BACKLOG);
    let sender = Sender { messages: messages.clone(), kind: PhantomData };
    let mut work = Box::pin(within(time, method(message, sender)));
    // Poll the method once before the head of the reply is sent, so that a command starts while the
    // reply is on its way.
    let begun = poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await;
    tokio::task::spawn_local(async move {
        let outcome = match begun {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => tokio::select! {
                outcome = work => outcome,
                () = messages.closed() => return,
            },
        };
        let end = EndOfStream { error: outcome.err() };
        let _ = messages.send(Piece::Last(frame::end(&end).into())).await; // the client may be gone
    });
    let alive = encode(&Sent::keepalive());
    let silence = Box::pin(tokio::time::sleep(interval));
    stream(BodyExt::boxed(Stream { pieces, alive, interval, silence, ended: false }))
}

/// Answers a client-stream call: `method` reads messages until [`Messages::next`] returns `None`,
/// and the reply is one message.
pub(crate) async fn client_stream<Message, Answer>(
    request: Request<Incoming>,
    method: impl AsyncFnOnce(&mut Messages<Message>) -> Result<Answer, Failure>,
) -> Reply
where
    Message: DeserializeOwned,
    Answer: Serialize,
{
    if let Some(reply) = refusal(&request, content::STREAM) {
        return decline(request, reply).await;
    }
    let answer = async {
        let time = timeout(request.headers())?;
        let mut messages =
            Messages { body: request.into_body(), decoder: Decoder::default(), kind: PhantomData };
        within(time, method(&mut messages)).await
    };
    match answer.await {
        Ok(answer) => {
            let mut bytes = frame::message(&answer);
            bytes.extend(frame::end(&EndOfStream::default()));
            stream(full(bytes.into()))
        }
        Err(failure) => ended_stream(failure),
    }
}

/// Messages that a client streams to the guest.
#[derive(Debug)]
pub(crate) struct Messages<Message> {
    body: Incoming,
    decoder: Decoder,
    kind: PhantomData<fn() -> Message>,
}

impl<Message: DeserializeOwned> Messages<Message> {
    /// Returns the next message, or `None` after the client has sent its last message.
    pub(crate) async fn next(&mut self) -> Result<Option<Message>, Failure> {
        loop {
            match self.decoder.next_frame().map_err(malformed)? {
                Some(Frame::Message(message)) => {
                    return frame::parse(&message).map(Some).map_err(malformed);
                }
                Some(Frame::End(_)) => return Ok(None),
                None => {}
            }
            match self.body.frame().await {
                Some(Ok(arrived)) => {
                    if let Some(bytes) = arrived.data_ref() {
                        self.decoder.push(bytes);
                    }
                }
                Some(Err(_)) => return Err(Failure::new(Code::Canceled, "the client has gone")),
                None => {
                    self.decoder.finish().map_err(malformed)?;
                    return Ok(None);
                }
            }
        }
    }
}

/// Returns the time limit that the client sets for a call. `None` means no limit: the header is
/// absent or 0.
pub(crate) fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, Failure> {
    let Some(value) = headers.get(header::TIMEOUT) else { return Ok(None) };
    // The Connect protocol allows at most ten digits.
    let digits = value.to_str().ok().filter(|text| (1..=10).contains(&text.len()));
    let digits = digits.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let milliseconds = digits.and_then(|text| text.parse().ok()).ok_or_else(|| {
        Failure::new(
            Code::InvalidArgument,
            format!("the header `{}` is not a number of milliseconds", header::TIMEOUT),
        )
    })?;
    Ok(Some(Duration::from_millis(milliseconds)).filter(|time| !time.is_zero()))
}

/// Returns the failure of a call that exceeded the time limit of its client.
pub(crate) fn too_late() -> Failure {
    Failure::new(Code::DeadlineExceeded, "the time that the client gave has passed")
}

/// Returns a reply whose body is `answer` as JSON.
pub(crate) fn json<Answer: Serialize>(status: StatusCode, answer: &Answer) -> Reply {
    let bytes =
        serde_json::to_vec(answer).expect("our messages have text for keys and no failing parts");
    let mut reply = Response::new(full(bytes.into()));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content::UNARY));
    reply
}

/// Returns the reply to a unary call that failed.
pub(crate) fn failed(failure: &Failure) -> Reply {
    json(
        StatusCode::from_u16(failure.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        failure,
    )
}

/// Returns the reply that refuses a request outside the Connect protocol. The body has the form
/// that envd uses: the HTTP status as a number, and a message.
pub(crate) fn refused(status: StatusCode, message: impl Into<String>) -> Reply {
    #[derive(Serialize)]
    struct Refusal {
        code: u16,
        message: String,
    }
    json(status, &Refusal { code: status.as_u16(), message: message.into() })
}

/// Returns a reply that has a status and no body.
pub(crate) fn bare(status: StatusCode) -> Reply {
    let mut reply = Response::new(BodyExt::boxed(Empty::new().map_err(|never| match never {})));
    *reply.status_mut() = status;
    reply
}

/// Returns a body whose bytes are all known already.
pub(crate) fn full(bytes: Bytes) -> Contents {
    BodyExt::boxed(Full::new(bytes).map_err(|never| match never {}))
}

fn stream(contents: Contents) -> Reply {
    let mut reply = Response::new(contents);
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content::STREAM));
    reply
}

/// Returns the reply of a stream that fails before its first message. The HTTP status is still 200,
/// because the Connect protocol reports the failure in the last frame.
fn ended_stream(failure: Failure) -> Reply {
    stream(full(frame::end(&EndOfStream { error: Some(failure) }).into()))
}

/// Returns the reply that refuses a request whose HTTP method or content type does not fit the kind
/// of call. `None` means that the request fits.
fn refusal(request: &Request<Incoming>, expected: &'static str) -> Option<Reply> {
    if request.method() != Method::POST {
        return Some(refused(StatusCode::METHOD_NOT_ALLOWED, "a method is called with POST"));
    }
    let given = request
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let essence = given.split(';').next().unwrap_or_default().trim();
    (!essence.eq_ignore_ascii_case(expected)).then(|| {
        let message = format!("this method takes `{expected}`, and was sent `{essence}`");
        refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, message)
    })
}

async fn collect(body: Incoming) -> Result<Bytes, Failure> {
    match tokio::time::timeout(PATIENCE, Limited::new(body, LONGEST_MESSAGE).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(Failure::new(
            Code::ResourceExhausted,
            format!("a message is longer than {LONGEST_MESSAGE} bytes"),
        )),
        Ok(Err(_)) => Err(Failure::new(Code::InvalidArgument, "the request ended early")),
        Err(_) => Err(Failure::new(Code::DeadlineExceeded, "the request did not arrive in time")),
    }
}

/// Parses the body of a server-stream request, which has one message.
fn only_message<Message: DeserializeOwned>(body: &[u8]) -> Result<Message, Failure> {
    let mut decoder = Decoder::default();
    decoder.push(body);
    match decoder.next_frame().map_err(malformed)? {
        Some(Frame::Message(message)) => frame::parse(&message).map_err(malformed),
        Some(Frame::End(_)) => {
            Err(Failure::new(Code::InvalidArgument, "the request has no message"))
        }
        None => {
            decoder.finish().map_err(malformed)?;
            Err(Failure::new(Code::InvalidArgument, "the request has no message"))
        }
    }
}

fn malformed(error: FrameError) -> Failure {
    let code = match error {
        FrameError::TooLong { .. } => Code::ResourceExhausted,
        _ => Code::InvalidArgument,
    };
    Failure::new(code, error.to_string())
}

fn keepalive(headers: &HeaderMap) -> Duration {
    let seconds =
        headers.get(header::KEEPALIVE).and_then(|value| value.to_str().ok()?.parse().ok());
    // Fall back to the default if the header is absent or not usable. An interval of 0 seconds
    // would send nothing but keep-alives.
    seconds.filter(|seconds| (1..=86_400).contains(seconds)).map_or(KEEPALIVE, Duration::from_secs)
}

async fn within<T>(
    time: Option<Duration>,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match time {
        None => work.await,
        Some(time) => tokio::time::timeout(time, work).await.unwrap_or_else(|_| Err(too_late())),
    }
}

/// Item that the task of a stream hands to the task of its connection.
#[derive(Debug)]
enum Piece {
    Message(Bytes),
    Last(Bytes),
}

/// Body of a stream: the messages that were sent, and a keep-alive after each interval without a
/// message.
#[derive(Debug)]
struct Stream {
    pieces: mpsc::Receiver<Piece>,
    alive: Bytes,
    interval: Duration,
    silence: Pin<Box<Sleep>>,
    ended: bool,
}

impl Body for Stream {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyFrame<Bytes>, io::Error>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let bytes = match self.pieces.poll_recv(context) {
            Poll::Ready(Some(Piece::Message(bytes))) => bytes,
            Poll::Ready(Some(Piece::Last(bytes))) => {
                self.ended = true;
                bytes
            }
            // All senders are gone without an end frame, because the guest is ending. Break the
            // connection, so that no client takes the end of the bytes for the end of the stream.
            Poll::Ready(None) => {
                return Poll::Ready(Some(Err(io::ErrorKind::ConnectionAborted.into())));
            }
            Poll::Pending => {
                std::task::ready!(self.silence.as_mut().poll(context));
                self.alive.clone()
            }
        };
        let next = Instant::now() + self.interval;
        self.silence.as_mut().reset(next);
        Poll::Ready(Some(Ok(BodyFrame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}
