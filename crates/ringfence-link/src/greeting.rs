//! The first frames on a carrier: the host greets, and the guest welcomes or refuses.

use std::io;

use ringfence_proto::link::frame::{LinkFrame, LinkFrameDecoder, LinkGreeting, RefusalReason};
use ringfence_proto::link::{LinkError, LinkId};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes that are read at once before the greetings are over.
const READ_BYTES: usize = 8 << 10;

/// Reason why a carrier cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GreetingError {
    /// The carrier was lost.
    #[error("the carrier was lost during the greeting")]
    Carrier(#[from] io::Error),
    /// The guest does not accept the carrier.
    #[error("the guest refused the carrier")]
    Refused(RefusalReason),
    /// The peer does not keep to the protocol.
    #[error("the greeting of the other end is invalid")]
    Violation(#[from] LinkError),
}

/// Existence of the link at the guest, as far as the host knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkStage {
    /// No carrier of the link was welcomed yet.
    New,
    /// The guest knows the link.
    Known,
}

/// Greeting of a host, as a guest received it.
#[derive(Debug)]
pub struct ReceivedGreeting {
    /// Version of the protocol that the host speaks.
    pub version: u8,
    /// Identifier of the link.
    pub id: LinkId,
    /// Number of bytes that the host has received.
    pub received: u64,
    /// Token that the host presents.
    pub token: String,
    /// Existence of the link, as far as the host knows.
    pub stage: LinkStage,
}

/// Greets a guest on a new carrier. Returns the number of bytes that the guest has received, and
/// the decoder with the bytes that followed.
pub async fn greet(
    carrier: &mut (impl AsyncRead + AsyncWrite + Unpin + ?Sized),
    stage: LinkStage,
    greeting: LinkGreeting<'_>,
) -> Result<(u64, LinkFrameDecoder), GreetingError> {
    let mut bytes = Vec::new();
    match stage {
        LinkStage::New => LinkFrame::Hello(greeting).encode(&mut bytes),
        LinkStage::Known => LinkFrame::Resume(greeting).encode(&mut bytes),
    }
    carrier.write_all(&bytes).await?;
    carrier.flush().await?;
    let mut decoder = LinkFrameDecoder::default();
    loop {
        match decoder.next_frame()? {
            Some(LinkFrame::Welcome(received)) => return Ok((received, decoder)),
            Some(LinkFrame::Refused(reason, _)) => return Err(GreetingError::Refused(reason)),
            Some(other) => return Err(LinkError::Unexpected { kind: other.kind() }.into()),
            None => read_more(carrier, &mut decoder).await?,
        }
    }
}

/// Receives the greeting of a host on a new carrier.
pub async fn receive_greeting(
    carrier: &mut (impl AsyncRead + Unpin + ?Sized),
) -> Result<(ReceivedGreeting, LinkFrameDecoder), GreetingError> {
    let mut decoder = LinkFrameDecoder::default();
    loop {
        let (stage, greeting) = match decoder.next_frame()? {
            Some(LinkFrame::Hello(greeting)) => (LinkStage::New, greeting),
            Some(LinkFrame::Resume(greeting)) => (LinkStage::Known, greeting),
            Some(other) => return Err(LinkError::Unexpected { kind: other.kind() }.into()),
            None => {
                read_more(carrier, &mut decoder).await?;
                continue;
            }
        };
        let LinkGreeting { version, id, received, token } = greeting;
        let token = token.to_owned();
        return Ok((ReceivedGreeting { version, id, received, token, stage }, decoder));
    }
}

/// Welcomes the host on a new carrier, with the number of bytes that the guest has received.
pub async fn welcome(
    carrier: &mut (impl AsyncWrite + Unpin + ?Sized),
    received: u64,
) -> io::Result<()> {
    send(carrier, &LinkFrame::Welcome(received)).await
}

/// Refuses a carrier.
pub async fn refuse(
    carrier: &mut (impl AsyncWrite + Unpin + ?Sized),
    reason: RefusalReason,
) -> io::Result<()> {
    send(carrier, &LinkFrame::Refused(reason, "")).await?;
    carrier.shutdown().await
}

async fn send(
    carrier: &mut (impl AsyncWrite + Unpin + ?Sized),
    frame: &LinkFrame<'_>,
) -> io::Result<()> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    carrier.write_all(&bytes).await?;
    carrier.flush().await
}

async fn read_more(
    carrier: &mut (impl AsyncRead + Unpin + ?Sized),
    decoder: &mut LinkFrameDecoder,
) -> io::Result<()> {
    let mut buffer = [0; READ_BYTES];
    match carrier.read(&mut buffer).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => {
            decoder.push(&buffer[..count]);
            Ok(())
        }
    }
}
