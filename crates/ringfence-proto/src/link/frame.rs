//! Frames on a carrier. A frame is one byte for its type, the length of the payload as four
//! big-endian bytes, and the payload.

use super::{LINK_VERSION, LinkError, LinkId};

/// Maximum length of the payload of a frame in bytes.
pub const MAX_PAYLOAD_BYTES: usize = 64 << 10;
/// Maximum length of a token in a greeting in bytes.
pub const MAX_TOKEN_BYTES: usize = 4 << 10;
/// Maximum length of the text of a refusal in bytes.
const MAX_REFUSAL_BYTES: usize = 1 << 10;
/// Length of a frame's header in bytes: the type and the length.
pub(super) const FRAME_HEADER_BYTES: usize = 5;
/// Length of a greeting without its token: the version, the link's identifier and an offset.
const GREETING_BYTES: usize = 1 + 16 + 8;

const DATA: u8 = 1;
const ACK: u8 = 2;
const PING: u8 = 3;
const PONG: u8 = 4;
const HELLO: u8 = 5;
const RESUME: u8 = 6;
const WELCOME: u8 = 7;
const REFUSED: u8 = 8;
const CLOSE: u8 = 9;

/// One frame on a carrier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkFrame<'a> {
    /// Next bytes of the resumable stream.
    Data(&'a [u8]),
    /// Number of bytes of the resumable stream that the sender of this frame has received.
    Ack(u64),
    /// Question whether the carrier works.
    Ping(u64),
    /// Answer to the ping with the same number.
    Pong(u64),
    /// First frame of the host on a carrier: makes a link, or resumes the link if it exists.
    Hello(LinkGreeting<'a>),
    /// First frame of the host on a carrier: resumes a link, which must exist.
    Resume(LinkGreeting<'a>),
    /// First frame of the guest on a carrier: number of bytes that the guest has received.
    Welcome(u64),
    /// First and last frame of a guest that does not accept the carrier.
    Refused(RefusalReason, &'a str),
    /// Last frame of a link, whose streams end with it.
    Close,
}

/// Greeting with which the host begins to use a carrier.
#[derive(Clone, PartialEq, Eq)]
pub struct LinkGreeting<'a> {
    /// Version of the protocol that the host speaks.
    pub version: u8,
    /// Identifier of the link.
    pub id: LinkId,
    /// Number of bytes that the host has received.
    pub received: u64,
    /// Access token of the guest; empty if the guest needs none.
    pub token: &'a str,
}

impl std::fmt::Debug for LinkGreeting<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("LinkGreeting")
            .field("version", &self.version)
            .field("id", &self.id)
            .field("received", &self.received)
            .field("token", &"***")
            .finish()
    }
}

/// Reason why a guest does not accept a carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalReason {
    /// The token is not the guest's.
    Token,
    /// The guest speaks another version of the protocol.
    Version,
    /// The guest does not know the link: the link was lost for too long, or the guest is new.
    UnknownLink,
    /// The guest keeps as many links as it can.
    TooManyLinks,
    /// The greeting contradicts the state of the link.
    Contradiction,
}

impl RefusalReason {
    const ALL: [RefusalReason; 5] = [
        RefusalReason::Token,
        RefusalReason::Version,
        RefusalReason::UnknownLink,
        RefusalReason::TooManyLinks,
        RefusalReason::Contradiction,
    ];

    fn code(self) -> u8 {
        match self {
            RefusalReason::Token => 1,
            RefusalReason::Version => 2,
            RefusalReason::UnknownLink => 3,
            RefusalReason::TooManyLinks => 4,
            RefusalReason::Contradiction => 5,
        }
    }

    fn from_code(code: u8) -> Option<RefusalReason> {
        RefusalReason::ALL.into_iter().find(|reason| reason.code() == code)
    }
}

impl LinkFrame<'_> {
    /// Returns the type of the frame, which errors name.
    pub fn kind(&self) -> u8 {
        match self {
            LinkFrame::Data(_) => DATA,
            LinkFrame::Ack(_) => ACK,
            LinkFrame::Ping(_) => PING,
            LinkFrame::Pong(_) => PONG,
            LinkFrame::Hello(_) => HELLO,
            LinkFrame::Resume(_) => RESUME,
            LinkFrame::Welcome(_) => WELCOME,
            LinkFrame::Refused(..) => REFUSED,
            LinkFrame::Close => CLOSE,
        }
    }

    /// Appends the frame to `bytes`. A text that is longer than its limit is cut.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        bytes.extend_from_slice(&[self.kind(), 0, 0, 0, 0]);
        match self {
            LinkFrame::Data(data) => bytes.extend_from_slice(data),
            LinkFrame::Ack(number)
            | LinkFrame::Ping(number)
            | LinkFrame::Pong(number)
            | LinkFrame::Welcome(number) => bytes.extend_from_slice(&number.to_be_bytes()),
            LinkFrame::Hello(greeting) | LinkFrame::Resume(greeting) => {
                bytes.push(greeting.version);
                bytes.extend_from_slice(&greeting.id.0);
                bytes.extend_from_slice(&greeting.received.to_be_bytes());
                bytes.extend_from_slice(greeting.token.as_bytes());
            }
            LinkFrame::Refused(reason, text) => {
                bytes.push(reason.code());
                let end = text.floor_char_boundary(MAX_REFUSAL_BYTES - 1);
                bytes.extend_from_slice(&text.as_bytes()[..end]);
            }
            LinkFrame::Close => {}
        }
        let length = bytes.len() - start - FRAME_HEADER_BYTES;
        write_length(&mut bytes[start..], length);
    }
}

/// Writes the length of a payload into the header at the start of `frame`.
fn write_length(frame: &mut [u8], length: usize) {
    let length = u32::try_from(length).expect("payloads are far smaller than 4 GiB");
    frame[1..FRAME_HEADER_BYTES].copy_from_slice(&length.to_be_bytes());
}

/// Appends the frame [`LinkFrame::Data`] whose payload lies in two pieces.
pub(super) fn encode_data(pieces: [&[u8]; 2], bytes: &mut Vec<u8>) {
    let start = bytes.len();
    bytes.extend_from_slice(&[DATA, 0, 0, 0, 0]);
    pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
    write_length(&mut bytes[start..], pieces[0].len() + pieces[1].len());
}

impl<'a> LinkGreeting<'a> {
    /// Returns the greeting of this version of the protocol.
    pub fn new(id: LinkId, received: u64, token: &'a str) -> LinkGreeting<'a> {
        LinkGreeting { version: LINK_VERSION, id, received, token }
    }
}

/// Decoder that splits the bytes of a carrier into frames. The bytes may arrive in pieces of any
/// size.
#[derive(Debug, Default)]
pub struct LinkFrameDecoder {
    buffer: Vec<u8>,
    /// Number of bytes at the start of `buffer` that were returned as frames already.
    taken: usize,
}

impl LinkFrameDecoder {
    /// Adds bytes that arrived.
    ///
    /// Memory stays bounded if the caller takes every complete frame before it pushes again,
    /// because [`LinkFrameDecoder::next_frame`] refuses a header that announces a payload longer
    /// than its type allows.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..std::mem::take(&mut self.taken));
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next complete frame, or `None` if more bytes must arrive first.
    pub fn next_frame(&mut self) -> Result<Option<LinkFrame<'_>>, LinkError> {
        let Some((head, rest)) =
            self.buffer[self.taken..].split_first_chunk::<FRAME_HEADER_BYTES>()
        else {
            return Ok(None);
        };
        let [kind, length @ ..] = *head;
        let length = u32::from_be_bytes(length) as usize;
        check_length(kind, length)?;
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        self.taken += FRAME_HEADER_BYTES + length;
        parse_payload(kind, payload).map(Some)
    }
}

fn check_length(kind: u8, length: usize) -> Result<(), LinkError> {
    let allowed = match kind {
        DATA => 1..=MAX_PAYLOAD_BYTES,
        ACK | PING | PONG | WELCOME => 8..=8,
        HELLO | RESUME => GREETING_BYTES..=GREETING_BYTES + MAX_TOKEN_BYTES,
        REFUSED => 1..=MAX_REFUSAL_BYTES,
        CLOSE => 0..=0,
        kind => return Err(LinkError::Kind { kind }),
    };
    if allowed.contains(&length) { Ok(()) } else { Err(LinkError::Length { kind, length }) }
}

fn parse_payload(kind: u8, payload: &[u8]) -> Result<LinkFrame<'_>, LinkError> {
    let invalid = LinkError::Payload { kind };
    let text = |bytes| std::str::from_utf8(bytes).map_err(|_| LinkError::Payload { kind });
    let number = || payload.try_into().map(u64::from_be_bytes).map_err(|_| invalid.clone());
    Ok(match kind {
        DATA => LinkFrame::Data(payload),
        ACK => LinkFrame::Ack(number()?),
        PING => LinkFrame::Ping(number()?),
        PONG => LinkFrame::Pong(number()?),
        WELCOME => LinkFrame::Welcome(number()?),
        HELLO | RESUME => {
            let ([version], rest) = payload.split_first_chunk().ok_or(invalid.clone())?;
            let (id, rest) = rest.split_first_chunk().ok_or(invalid.clone())?;
            let (received, token) = rest.split_first_chunk().ok_or(invalid)?;
            let received = u64::from_be_bytes(*received);
            let greeting =
                LinkGreeting { version: *version, id: LinkId(*id), received, token: text(token)? };
            if kind == HELLO { LinkFrame::Hello(greeting) } else { LinkFrame::Resume(greeting) }
        }
        REFUSED => {
            let (&code, words) = payload.split_first().ok_or(invalid.clone())?;
            LinkFrame::Refused(RefusalReason::from_code(code).ok_or(invalid)?, text(words)?)
        }
        CLOSE => LinkFrame::Close,
        kind => return Err(LinkError::Kind { kind }),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the encoding of all frames that a decoder finds in `pieces`.
    fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<u8>, LinkError> {
        let mut decoder = LinkFrameDecoder::default();
        let mut encoded = Vec::new();
        for piece in pieces {
            decoder.push(piece);
            while let Some(frame) = decoder.next_frame()? {
                frame.encode(&mut encoded);
            }
        }
        Ok(encoded)
    }

    fn every_frame() -> Vec<LinkFrame<'static>> {
        let greeting = LinkGreeting::new(LinkId([7; 16]), 5, "secret");
        let mut frames = vec![
            LinkFrame::Data(b"abc"),
            LinkFrame::Ack(1),
            LinkFrame::Ping(2),
            LinkFrame::Pong(u64::MAX),
            LinkFrame::Hello(greeting.clone()),
            LinkFrame::Resume(greeting),
            LinkFrame::Welcome(9),
            LinkFrame::Close,
        ];
        frames.extend(RefusalReason::ALL.map(|reason| LinkFrame::Refused(reason, "no")));
        frames
    }

    #[test]
    fn every_frame_is_read_as_it_was_written() {
        for frame in every_frame() {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            let mut decoder = LinkFrameDecoder::default();
            decoder.push(&bytes);
            assert_eq!(decoder.next_frame(), Ok(Some(frame)));
            assert_eq!(decoder.next_frame(), Ok(None));
        }
    }

    #[test]
    fn malformed_frames_are_refused_by_their_header() {
        let refused = |bytes: &[u8]| decode([bytes]).unwrap_err();
        assert_eq!(refused(&[0, 0, 0, 0, 0]), LinkError::Kind { kind: 0 });
        assert_eq!(refused(&[DATA, 0, 0, 0, 0]), LinkError::Length { kind: DATA, length: 0 });
        assert_eq!(refused(&[DATA, 0, 1, 0, 1]), LinkError::Length { kind: DATA, length: 65537 });
        assert_eq!(refused(&[CLOSE, 0, 0, 0, 1]), LinkError::Length { kind: CLOSE, length: 1 });
        assert_eq!(refused(&[REFUSED, 0, 0, 0, 1, 99]), LinkError::Payload { kind: REFUSED });
    }

    #[test]
    fn a_greeting_does_not_print_its_token() {
        let greeting = LinkGreeting::new(LinkId([0; 16]), 0, "secret");
        assert!(!format!("{greeting:?}").contains("secret"));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_the_same_way_under_any_split(
            bytes in prop::collection::vec(prop_oneof![Just(0u8), 1u8..10, any::<u8>()], 0..200),
            size in 1usize..50,
        ) {
            prop_assert_eq!(decode(bytes.chunks(size)), decode([&bytes[..]]));
        }
    }
}
