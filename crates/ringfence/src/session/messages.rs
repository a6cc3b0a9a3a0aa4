//! A stream of messages from a guest.

use std::sync::Arc;
use std::time::Duration;

use hyper::{Method, header};
use ringfence_proto::code::EndOfStream;
use ringfence_proto::frame::{self, Decoder, Frame};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::SessionError;
use super::error::What;
use super::transport::{Exchange, Outgoing, Transport};

/// How often a guest with nothing to say says so, in seconds.
const HEARTBEAT: &str = "20";
/// The longest time that the protocol can express, in milliseconds: ten digits.
const LONGEST_TIME: u128 = 9_999_999_999;

/// What a guest says until it says that this was all.
#[derive(Debug)]
pub(super) struct Messages {
    transport: Arc<Transport>,
    /// Nothing once the stream is over.
    exchange: Option<Exchange>,
    decoder: Decoder,
}

impl Messages {
    /// Asks for a stream. What it is about is ended by the guest after `time`.
    pub(super) async fn open<Question: Serialize>(
        transport: Arc<Transport>,
        what: What<'_>,
        target: &str,
        question: &Question,
        time: Option<Duration>,
    ) -> Result<Messages, SessionError> {
        let mut request = transport
            .request(Method::POST, target)
            .header(header::CONTENT_TYPE, ringfence_proto::content::STREAM)
            .header(ringfence_proto::header::PROTOCOL, "1")
            .header(ringfence_proto::header::KEEPALIVE, HEARTBEAT);
        if let Some(time) = time {
            let time = time.as_millis().clamp(1, LONGEST_TIME).to_string();
            request = request.header(ringfence_proto::header::TIMEOUT, time);
        }
        let request = request
            .body(Outgoing::Whole(frame::message(question).into()))
            .expect("the target and the headers are fixed text and digits");
        let exchange = transport.send(what, request).await?.into_body();
        Ok(Messages { transport, exchange: Some(exchange), decoder: Decoder::default() })
    }

    /// The next message; none when the guest said that this was all. Nothing is lost when the future is dropped.
    pub(super) async fn next<Message: DeserializeOwned>(
        &mut self,
        what: What<'_>,
    ) -> Result<Option<Message>, SessionError> {
        let outcome = self.read(what).await;
        if !matches!(outcome, Ok(Some(_))) {
            // Only a stream that ended as it should has given its connection back.
            self.exchange = None;
        }
        outcome
    }

    async fn read<Message: DeserializeOwned>(&mut self, what: What<'_>) -> Result<Option<Message>, SessionError> {
        loop {
            match self.decoder.next_frame().map_err(|error| what.frame(error))? {
                Some(Frame::Message(message)) => {
                    return frame::parse(&message).map(Some).map_err(|error| what.frame(error));
                }
                Some(Frame::End(end)) => {
                    let end: EndOfStream = frame::parse(&end).map_err(|error| what.frame(error))?;
                    self.finish();
                    return match end.error {
                        Some(failure) => Err(what.refused(failure.code, &failure.message)),
                        None => Ok(None),
                    };
                }
                None => {}
            }
            let Some(exchange) = &mut self.exchange else { return Ok(None) };
            let patience = self.transport.patience;
            match timeout(patience, exchange.piece()).await {
                Err(_) => return Err(what.silent(patience)),
                Ok(Err(error)) => return Err(what.lost(error)),
                Ok(Ok(None)) => return Err(what.lost("the stream ended too early")),
                Ok(Ok(Some(bytes))) => self.decoder.push(&bytes),
            }
        }
    }

    /// Gives the connection back, when nothing that matters will follow.
    pub(super) fn finish(&mut self) {
        if let Some(exchange) = self.exchange.take() {
            self.transport.keep(exchange);
        }
    }
}
