//! A stream of messages from a guest.

use std::sync::Arc;
use std::time::Duration;

use hyper::{Method, header};
use ringfence_proto::code::EndOfStream;
use ringfence_proto::frame::{self, Frame, FrameDecoder};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::SessionError;
use super::error::Operation;
use super::transport::{HttpExchange, RequestBody, Transport};

/// Interval, in seconds, at which a guest without other messages sends a keepalive.
const KEEPALIVE_SECONDS: &str = "20";
/// Longest time that the protocol can express, in milliseconds: ten digits.
const MAX_TIMEOUT_MILLIS: u128 = 9_999_999_999;

/// Messages of a guest, up to its message that ends the stream.
#[derive(Debug)]
pub(super) struct MessageStream {
    transport: Arc<Transport>,
    /// Connection of the stream; `None` once the stream is over.
    exchange: Option<HttpExchange>,
    decoder: FrameDecoder,
}

impl MessageStream {
    /// Opens a stream. After `time`, the guest ends the subject of the stream.
    pub(super) async fn open<RequestMessage: Serialize>(
        transport: Arc<Transport>,
        operation: Operation<'_>,
        target: &str,
        message: &RequestMessage,
        time: Option<Duration>,
    ) -> Result<MessageStream, SessionError> {
        let mut request = transport
            .request(Method::POST, target)
            .header(header::CONTENT_TYPE, ringfence_proto::content::STREAM)
            .header(ringfence_proto::header::PROTOCOL, "1")
            .header(ringfence_proto::header::KEEPALIVE, KEEPALIVE_SECONDS);
        if let Some(time) = time {
            let time = time.as_millis().clamp(1, MAX_TIMEOUT_MILLIS).to_string();
            request = request.header(ringfence_proto::header::TIMEOUT, time);
        }
        let request = request
            .body(RequestBody::Whole(frame::encode_message(message).into()))
            .expect("the target and the headers are fixed text and digits");
        let exchange = transport.send(operation, request).await?.into_body();
        Ok(MessageStream { transport, exchange: Some(exchange), decoder: FrameDecoder::default() })
    }

    /// Returns the next message, or `None` when the guest has ended the stream. Dropping the future
    /// loses no message.
    pub(super) async fn next<Message: DeserializeOwned>(
        &mut self,
        operation: Operation<'_>,
    ) -> Result<Option<Message>, SessionError> {
        let outcome = self.read(operation).await;
        if !matches!(outcome, Ok(Some(_))) {
            // A stream that ended regularly has already given its connection back. Drop any other
            // connection.
            self.exchange = None;
        }
        outcome
    }

    async fn read<Message: DeserializeOwned>(
        &mut self,
        operation: Operation<'_>,
    ) -> Result<Option<Message>, SessionError> {
        loop {
            match self.decoder.next_frame().map_err(|error| operation.frame(error))? {
                Some(Frame::Message(message)) => {
                    return frame::parse(&message)
                        .map(Some)
                        .map_err(|error| operation.frame(error));
                }
                Some(Frame::End(end)) => {
                    let end: EndOfStream =
                        frame::parse(&end).map_err(|error| operation.frame(error))?;
                    self.finish();
                    return match end.error {
                        Some(failure) => Err(operation.refused(failure.code, &failure.message)),
                        None => Ok(None),
                    };
                }
                None => {}
            }
            let Some(exchange) = &mut self.exchange else { return Ok(None) };
            let answer_timeout = self.transport.answer_timeout;
            match timeout(answer_timeout, exchange.piece()).await {
                Err(_) => return Err(operation.no_answer(answer_timeout)),
                Ok(Err(error)) => return Err(operation.lost(error)),
                Ok(Ok(None)) => return Err(operation.lost("the stream ended too early")),
                Ok(Ok(Some(bytes))) => self.decoder.push(&bytes),
            }
        }
    }

    /// Returns the connection to the pool, when no further message matters.
    pub(super) fn finish(&mut self) {
        if let Some(exchange) = self.exchange.take() {
            self.transport.return_to_pool(exchange);
        }
    }
}
