//! Framing of message streams. A frame is one byte of flags, the length of the message as four
//! big-endian bytes, and the message.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::MAX_MESSAGE_BYTES;

/// Flag that marks the last frame of a stream.
const END_FLAG: u8 = 0x02;
/// Length of a frame's header in bytes: the flags and the length.
const HEADER_BYTES: usize = 5;

/// One frame of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Frame with a message as JSON text.
    Message(Vec<u8>),
    /// Last frame of a stream, whose message is an [`EndOfStream`](crate::code::EndOfStream) as
    /// JSON text.
    End(Vec<u8>),
}

/// Error in the framing of a stream, or in one of its messages.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// A frame announces a message that is longer than [`MAX_MESSAGE_BYTES`].
    #[error("a message of {length} bytes is longer than {MAX_MESSAGE_BYTES}")]
    TooLong {
        /// Length of the message in bytes, as the header announces it.
        length: usize,
    },
    /// A frame has flags other than the end-of-stream flag, such as the one for compression.
    #[error("a frame has the flags {flags:#04x}, which are not understood")]
    Flags {
        /// Flags of the frame.
        flags: u8,
    },
    /// The stream ended before the end of a frame.
    #[error("the stream ended within a frame")]
    Truncated,
    /// A message is not valid JSON, or not of the expected type.
    #[error("a message cannot be understood: {why}")]
    Message {
        /// Description of the mismatch, from the JSON parser.
        why: String,
    },
}

/// Decoder that splits a byte stream into frames. The bytes may arrive in pieces of any size.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    buffer: Vec<u8>,
    /// Number of bytes at the start of `buffer` that were returned as frames already.
    taken: usize,
}

impl FrameDecoder {
    /// Adds bytes that arrived.
    ///
    /// Memory stays bounded if the caller takes every complete frame before it pushes again. The
    /// buffer then keeps less than one frame, and [`FrameDecoder::next_frame`] refuses a frame
    /// whose header announces more than [`MAX_MESSAGE_BYTES`].
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..std::mem::take(&mut self.taken));
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next complete frame, or `None` if more bytes must arrive first.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some((head, rest)) = self.buffer[self.taken..].split_first_chunk::<HEADER_BYTES>()
        else {
            return Ok(None);
        };
        let [flags, length @ ..] = *head;
        if flags & !END_FLAG != 0 {
            return Err(FrameError::Flags { flags });
        }
        let length = u32::from_be_bytes(length) as usize;
        if length > MAX_MESSAGE_BYTES {
            return Err(FrameError::TooLong { length });
        }
        let Some(message) = rest.get(..length) else { return Ok(None) };
        let message = message.to_vec();
        self.taken += HEADER_BYTES + length;
        Ok(Some(if flags & END_FLAG == 0 { Frame::Message(message) } else { Frame::End(message) }))
    }

    /// Checks that the stream did not end in the middle of a frame.
    pub fn finish(&self) -> Result<(), FrameError> {
        if self.taken == self.buffer.len() { Ok(()) } else { Err(FrameError::Truncated) }
    }
}

/// Encodes a message as a frame.
pub fn encode_message<T: Serialize>(message: &T) -> Vec<u8> {
    encode_frame(0, message)
}

/// Encodes the last message of a stream as a frame with the end-of-stream flag.
pub fn encode_end<T: Serialize>(message: &T) -> Vec<u8> {
    encode_frame(END_FLAG, message)
}

/// Parses the JSON text of a message.
pub fn parse<T: DeserializeOwned>(message: &[u8]) -> Result<T, FrameError> {
    serde_json::from_slice(message).map_err(|error| FrameError::Message { why: error.to_string() })
}

fn encode_frame<T: Serialize>(flags: u8, message: &T) -> Vec<u8> {
    build_frame(flags, 0, |bytes| {
        serde_json::to_writer(bytes, message)
            .expect("our messages have text for keys and no failing parts");
    })
}

/// Returns a frame whose message `write` appends as JSON text. `length` is the expected length in
/// bytes.
pub(crate) fn build_message_frame(length: usize, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    build_frame(0, length, write)
}

fn build_frame(flags: u8, length: usize, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + length);
    bytes.extend_from_slice(&[flags, 0, 0, 0, 0]);
    write(&mut bytes);
    let length =
        u32::try_from(bytes.len() - HEADER_BYTES).expect("messages are far smaller than 4 GiB");
    bytes[1..HEADER_BYTES].copy_from_slice(&length.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Returns all frames that a decoder finds in `pieces`.
    fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<Frame>, FrameError> {
        let (mut decoder, mut frames) = (FrameDecoder::default(), Vec::new());
        for piece in pieces {
            decoder.push(piece);
            while let Some(frame) = decoder.next_frame()? {
                frames.push(frame);
            }
        }
        decoder.finish().map(|()| frames)
    }

    #[test]
    fn a_message_is_its_flags_its_length_and_its_json() {
        assert_eq!(encode_message(&json!({"a": 1})), b"\0\0\0\0\x07{\"a\":1}");
        assert_eq!(encode_end(&json!({})), b"\x02\0\0\0\x02{}");
    }

    #[test]
    fn malformed_frames_are_refused() {
        assert_eq!(decode([&b"\x01\0\0\0\0"[..]]), Err(FrameError::Flags { flags: 1 }));
        assert_eq!(decode([&b"\0\0\0\0\x02{"[..]]), Err(FrameError::Truncated));
        assert_eq!(decode([&b"\0\0"[..]]), Err(FrameError::Truncated));
        let length = MAX_MESSAGE_BYTES + 1;
        let head = [&[0][..], &u32::try_from(length).unwrap().to_be_bytes()].concat();
        assert_eq!(decode([&head[..]]), Err(FrameError::TooLong { length }));
    }

    #[test]
    fn a_message_of_another_type_is_an_error() {
        let error = parse::<u32>(b"{}").unwrap_err();
        assert!(error.to_string().starts_with("a message cannot be understood: "), "{error}");
    }

    proptest! {
        #[test]
        fn frames_survive_any_split_of_the_stream(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
            size in 1usize..50,
        ) {
            let mut stream = Vec::new();
            for text in &messages {
                stream.extend(encode_message(&crate::bytes::Base64Bytes(text.clone())));
            }
            stream.extend(encode_end(&json!({})));
            let mut frames = decode(stream.chunks(size)).unwrap();
            prop_assert_eq!(frames.pop(), Some(Frame::End(b"{}".to_vec())));
            let parsed: Vec<Vec<u8>> = frames
                .iter()
                .map(|frame| match frame {
                    Frame::Message(message) => {
                        parse::<crate::bytes::Base64Bytes>(message).unwrap().0
                    }
                    Frame::End(_) => unreachable!(),
                })
                .collect();
            prop_assert_eq!(parsed, messages);
        }

        #[test]
        fn any_bytes_decode_the_same_way_under_any_split(
            bytes in prop::collection::vec(prop_oneof![Just(0u8), Just(2), any::<u8>()], 0..200),
            size in 1usize..50,
        ) {
            prop_assert_eq!(decode(bytes.chunks(size)), decode([&bytes[..]]));
        }
    }
}
