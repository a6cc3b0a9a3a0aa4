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
use ringfence_proto::frame::{self, Frame, FrameDecoder, FrameError};
use ringfence_proto::{MAX_MESSAGE_BYTES, content, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep};

use crate::slices::refuse_unread;

/// Body of a reply.
pub(crate) type ReplyBody = BoxBody<Bytes, io::Error>;
/// HTTP response to any request.
pub(crate) type Reply = Response<ReplyBody>;

/// Number of messages that wait for a client that reads slowly.
const MAX_QUEUED_MESSAGES: usize = 2;
/// Default interval of silence on a stream, after which a keep-alive message is sent.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(90);
/// Time limit for a client to send the message of its call.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Message type of a stream. The type must have a message that means nothing except that the stream
/// is alive.
pub(crate) trait StreamMessage: Serialize {
    /// Returns the keep-alive message.
    fn keepalive() -> Self;
}

/// Meaning of the `connect-timeout-ms` header for a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamDeadline {
    /// The stream ends with `deadline_exceeded`, and the future of the method is dropped.
    EndsTheStream,
    /// The method enforces the time limit, and reports `deadline_exceeded` itself.
    IsTheMethods,
}

/// Error of sending to a stream whose client has disconnected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the client has gone")]
pub(crate) struct StreamClosed;

/// Sending half of a stream.
#[derive(Debug)]
pub(crate) struct StreamSender<Message> {
    messages: mpsc::Sender<StreamPiece>,
    kind: PhantomData<fn(Message)>,
}

impl<Message> Clone for StreamSender<Message> {
    fn clone(&self) -> Self {
        StreamSender { messages: self.messages.clone(), kind: PhantomData }
    }
}

impl<Message: StreamMessage> StreamSender<Message> {
    /// Sends a message. Waits while [`MAX_QUEUED_MESSAGES`] messages are queued for the client.
    pub(crate) async fn send(&self, message: &Message) -> Result<(), StreamClosed> {
        self.send_encoded(encode(message)).await
    }

    /// Sends the first message of a stream. The queue of a new stream is empty, so there is no need
    /// to wait.
    pub(crate) fn send_first(&self, message: &Message) {
        // Ignore a failure, because the client may be gone.
        let _ = self.messages.try_send(StreamPiece::Message(encode(message)));
    }

    /// Returns true if the client has disconnected.
    pub(crate) fn is_closed(&self) -> bool {
        self.messages.is_closed()
    }

    /// Sends a message that [`encode`] has put in its frame already, so that several streams can
    /// share the bytes.
    pub(crate) async fn send_encoded(&self, message: Bytes) -> Result<(), StreamClosed> {
        self.messages.send(StreamPiece::Message(message)).await.map_err(|_| StreamClosed)
    }
}

/// Encodes a message as a frame.
pub(crate) fn encode<Message: StreamMessage>(message: &Message) -> Bytes {
    frame::encode_message(message).into()
}

/// Answers a unary call: reads one message, and replies with one message.
pub(crate) async fn answer_unary<Message, Answer>(
    request: Request<Incoming>,
    method: impl AsyncFnOnce(Message) -> Result<Answer, Failure>,
) -> Reply
where
    Message: DeserializeOwned,
    Answer: Serialize,
{
    if let Some(reply) = check_request(&request, content::UNARY) {
        return refuse_unread(request, reply).await;
    }
    let answer = async {
        let time = call_timeout(request.headers())?;
        let call = async {
            let body = collect_body(request.into_body()).await?;
            // The Connect protocol lets a client send an empty body for a message without fields.
            let body = if body.is_empty() { Bytes::from_static(b"{}") } else { body };
            method(frame::parse(&body).map_err(malformed_failure)?).await
        };
        with_timeout(time, call).await
    };
    match answer.await {
        Ok(answer) => json_reply(StatusCode::OK, &answer),
        Err(failure) => failure_reply(&failure),
    }
}

/// Answers a server-stream call: reads one message, and replies with a stream of messages. The
/// future of `method` is dropped when the client disconnects.
pub(crate) async fn answer_server_stream<Message, Sent, Work>(
    request: Request<Incoming>,
    deadline: StreamDeadline,
    method: impl FnOnce(Message, StreamSender<Sent>) -> Work + 'static,
) -> Reply
where
    Message: DeserializeOwned + 'static,
    Sent: StreamMessage + 'static,
    Work: Future<Output = Result<(), Failure>> + 'static,
{
    if let Some(reply) = check_request(&request, content::STREAM) {
        return refuse_unread(request, reply).await;
    }
    let called = async {
        let time = match deadline {
            StreamDeadline::EndsTheStream => call_timeout(request.headers())?,
            StreamDeadline::IsTheMethods => None,
        };
        let interval = keepalive_interval(request.headers());
        let message = parse_only_message(&collect_body(request.into_body()).await?)?;
        Ok((time, interval, message))
    };
    let (time, interval, message) = match called.await {
        Ok(called) => called,
        Err(failure) => return failed_stream_reply(failure),
    };
    let (messages, pieces) = mpsc::channel(MAX_QUEUED_MESSAGES);
    let sender = StreamSender { messages: messages.clone(), kind: PhantomData };
    let mut work = Box::pin(with_timeout(time, method(message, sender)));
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
        // Ignore a failure, because the client may be gone.
        let _ = messages.send(StreamPiece::Last(frame::encode_end(&end).into())).await;
    });
    let alive = encode(&Sent::keepalive());
    let silence = Box::pin(tokio::time::sleep(interval));
    stream_reply(BodyExt::boxed(StreamBody { pieces, alive, interval, silence, ended: false }))
}

/// Answers a client-stream call: `method` reads messages until [`ClientMessages::next`] returns
/// `None`, and the reply is one message.
pub(crate) async fn answer_client_stream<Message, Answer>(
    request: Request<Incoming>,
    method: impl AsyncFnOnce(&mut ClientMessages<Message>) -> Result<Answer, Failure>,
) -> Reply
where
    Message: DeserializeOwned,
    Answer: Serialize,
{
    if let Some(reply) = check_request(&request, content::STREAM) {
        return refuse_unread(request, reply).await;
    }
    let answer = async {
        let time = call_timeout(request.headers())?;
        let mut messages = ClientMessages {
            body: request.into_body(),
            decoder: FrameDecoder::default(),
            kind: PhantomData,
        };
        with_timeout(time, method(&mut messages)).await
    };
    match answer.await {
        Ok(answer) => {
            let mut bytes = frame::encode_message(&answer);
            bytes.extend(frame::encode_end(&EndOfStream::default()));
            stream_reply(full_body(bytes.into()))
        }
        Err(failure) => failed_stream_reply(failure),
    }
}

/// Messages that a client streams to the guest.
#[derive(Debug)]
pub(crate) struct ClientMessages<Message> {
    body: Incoming,
    decoder: FrameDecoder,
    kind: PhantomData<fn() -> Message>,
}

impl<Message: DeserializeOwned> ClientMessages<Message> {
    /// Returns the next message, or `None` after the client has sent its last message.
    pub(crate) async fn next(&mut self) -> Result<Option<Message>, Failure> {
        loop {
            match self.decoder.next_frame().map_err(malformed_failure)? {
                Some(Frame::Message(message)) => {
                    return frame::parse(&message).map(Some).map_err(malformed_failure);
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
                    self.decoder.finish().map_err(malformed_failure)?;
                    return Ok(None);
                }
            }
        }
    }
}

/// Returns the time limit that the client sets for a call. `None` means no limit: the header is
/// absent or 0.
pub(crate) fn call_timeout(headers: &HeaderMap) -> Result<Option<Duration>, Failure> {
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
pub(crate) fn deadline_failure() -> Failure {
    Failure::new(Code::DeadlineExceeded, "the time that the client gave has passed")
}

/// Returns a reply whose body is `answer` as JSON.
pub(crate) fn json_reply<Answer: Serialize>(status: StatusCode, answer: &Answer) -> Reply {
    let bytes =
        serde_json::to_vec(answer).expect("our messages have text for keys and no failing parts");
    let mut reply = Response::new(full_body(bytes.into()));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content::UNARY));
    reply
}

/// Returns the reply to a unary call that failed.
pub(crate) fn failure_reply(failure: &Failure) -> Reply {
    json_reply(
        StatusCode::from_u16(failure.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        failure,
    )
}

/// Returns the reply that refuses a request outside the Connect protocol. The body has the form
/// that envd uses: the HTTP status as a number, and a message.
pub(crate) fn refusal_reply(status: StatusCode, message: impl Into<String>) -> Reply {
    #[derive(Serialize)]
    struct RefusalBody {
        code: u16,
        message: String,
    }
    json_reply(status, &RefusalBody { code: status.as_u16(), message: message.into() })
}

/// Returns a reply that has a status and no body.
pub(crate) fn status_reply(status: StatusCode) -> Reply {
    let mut reply = Response::new(BodyExt::boxed(Empty::new().map_err(|never| match never {})));
    *reply.status_mut() = status;
    reply
}

/// Returns a body whose bytes are all known already.
pub(crate) fn full_body(bytes: Bytes) -> ReplyBody {
    BodyExt::boxed(Full::new(bytes).map_err(|never| match never {}))
}

fn stream_reply(contents: ReplyBody) -> Reply {
    let mut reply = Response::new(contents);
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content::STREAM));
    reply
}

/// Returns the reply of a stream that fails before its first message. The HTTP status is still 200,
/// because the Connect protocol reports the failure in the last frame.
fn failed_stream_reply(failure: Failure) -> Reply {
    stream_reply(full_body(frame::encode_end(&EndOfStream { error: Some(failure) }).into()))
}

/// Returns the reply that refuses a request whose HTTP method or content type does not fit the kind
/// of call. `None` means that the request fits.
fn check_request(request: &Request<Incoming>, expected: &'static str) -> Option<Reply> {
    if request.method() != Method::POST {
        return Some(refusal_reply(StatusCode::METHOD_NOT_ALLOWED, "a method is called with POST"));
    }
    let given = request
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let essence = given.split(';').next().unwrap_or_default().trim();
    (!essence.eq_ignore_ascii_case(expected)).then(|| {
        let message = format!("this method takes `{expected}`, and was sent `{essence}`");
        refusal_reply(StatusCode::UNSUPPORTED_MEDIA_TYPE, message)
    })
}

/// Reads the whole body of a request, within a time limit and a limit of its length.
pub(crate) async fn collect_body(body: Incoming) -> Result<Bytes, Failure> {
    match tokio::time::timeout(REQUEST_TIMEOUT, Limited::new(body, MAX_MESSAGE_BYTES).collect())
        .await
    {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(Failure::new(
            Code::ResourceExhausted,
            format!("a message is longer than {MAX_MESSAGE_BYTES} bytes"),
        )),
        Ok(Err(_)) => Err(Failure::new(Code::InvalidArgument, "the request ended early")),
        Err(_) => Err(Failure::new(Code::DeadlineExceeded, "the request did not arrive in time")),
    }
}

/// Parses the body of a server-stream request, which has one message.
fn parse_only_message<Message: DeserializeOwned>(body: &[u8]) -> Result<Message, Failure> {
    let mut decoder = FrameDecoder::default();
    decoder.push(body);
    match decoder.next_frame().map_err(malformed_failure)? {
        Some(Frame::Message(message)) => frame::parse(&message).map_err(malformed_failure),
        Some(Frame::End(_)) => {
            Err(Failure::new(Code::InvalidArgument, "the request has no message"))
        }
        None => {
            decoder.finish().map_err(malformed_failure)?;
            Err(Failure::new(Code::InvalidArgument, "the request has no message"))
        }
    }
}

fn malformed_failure(error: FrameError) -> Failure {
    let code = match error {
        FrameError::TooLong { .. } => Code::ResourceExhausted,
        _ => Code::InvalidArgument,
    };
    Failure::new(code, error.to_string())
}

fn keepalive_interval(headers: &HeaderMap) -> Duration {
    let seconds =
        headers.get(header::KEEPALIVE).and_then(|value| value.to_str().ok()?.parse().ok());
    // Fall back to the default if the header is absent or not usable. An interval of 0 seconds
    // would send nothing but keep-alives.
    seconds
        .filter(|seconds| (1..=86_400).contains(seconds))
        .map_or(KEEPALIVE_INTERVAL, Duration::from_secs)
}

async fn with_timeout<T>(
    time: Option<Duration>,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match time {
        None => work.await,
        Some(time) => {
            tokio::time::timeout(time, work).await.unwrap_or_else(|_| Err(deadline_failure()))
        }
    }
}

/// Item that the task of a stream hands to the task of its connection.
#[derive(Debug)]
enum StreamPiece {
    Message(Bytes),
    Last(Bytes),
}

/// Body of a stream: the messages that were sent, and a keep-alive after each interval without a
/// message.
#[derive(Debug)]
struct StreamBody {
    pieces: mpsc::Receiver<StreamPiece>,
    alive: Bytes,
    interval: Duration,
    silence: Pin<Box<Sleep>>,
    ended: bool,
}

impl Body for StreamBody {
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
            Poll::Ready(Some(StreamPiece::Message(bytes))) => bytes,
            Poll::Ready(Some(StreamPiece::Last(bytes))) => {
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
