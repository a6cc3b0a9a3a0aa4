//! Frames: how a stream of messages is cut into pieces. One byte of flags, four of length, then the message.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::LONGEST_MESSAGE;

/// The flag of the last frame of a stream.
const END: u8 = 0x02;
/// Flags and length.
const HEAD: usize = 5;

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// A message.
    Message(Vec<u8>),
    /// The last one: [`EndOfStream`](crate::code::EndOfStream).
    End(Vec<u8>),
}

/// A stream cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// A message is longer than is accepted.
    #[error("a message of {length} bytes is longer than {LONGEST_MESSAGE}")]
    TooLong {
        /// How long it says it is.
        length: usize,
    },
    /// Flags that have no meaning here.
    #[error("a frame has the flags {flags:#04x}, which are not understood")]
    Flags {
        /// Which.
        flags: u8,
    },
    /// The stream ended within a frame.
    #[error("the stream ended within a frame")]
    Truncated,
    /// A message is not what was expected.
    #[error("a message cannot be understood: {why}")]
    Message {
        /// Why.
        why: String,
    },
}

/// Cuts what arrives into frames, however it is split on the way.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// How much of the buffer was handed out.
    taken: usize,
}

impl Decoder {
    /// Takes what arrived.
    ///
    /// Memory stays bounded for a caller that takes every whole frame before it pushes again: what is kept is less than
    /// one frame, and a frame that says it is longer than the longest is refused by its head.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..std::mem::take(&mut self.taken));
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame; `None` when more must arrive first.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some((head, rest)) = self.buffer[self.taken..].split_first_chunk::<HEAD>() else { return Ok(None) };
        let [flags, length @ ..] = *head;
        if flags & !END != 0 {
            return Err(FrameError::Flags { flags });
        }
        let length = u32::from_be_bytes(length) as usize;
        if length > LONGEST_MESSAGE {
            return Err(FrameError::TooLong { length });
        }
        let Some(message) = rest.get(..length) else { return Ok(None) };
        let message = message.to_vec();
        self.taken += HEAD + length;
        Ok(Some(if flags & END == 0 { Frame::Message(message) } else { Frame::End(message) }))
    }

    /// Checks that nothing is left of a frame when the stream has ended.
    pub fn finish(&self) -> Result<(), FrameError> {
        if self.taken == self.buffer.len() { Ok(()) } else { Err(FrameError::Truncated) }
    }
}

/// A message in its frame.
pub fn message<T: Serialize>(message: &T) -> Vec<u8> {
    framed(0, message)
}

/// The last message of a stream in its frame.
pub fn end<T: Serialize>(message: &T) -> Vec<u8> {
    framed(END, message)
}

/// Reads a message.
pub fn parse<T: DeserializeOwned>(message: &[u8]) -> Result<T, FrameError> {
    serde_json::from_slice(message).map_err(|error| FrameError::Message { why: error.to_string() })
}

fn framed<T: Serialize>(flags: u8, message: &T) -> Vec<u8> {
    around(flags, 0, |bytes| {
        serde_json::to_writer(bytes, message).expect("our messages have text for keys and no failing parts");
    })
}

/// A message whose text was made elsewhere, of about `length` bytes.
pub(crate) fn message_of(length: usize, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    around(0, length, write)
}

fn around(flags: u8, length: usize, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD + length);
    bytes.extend_from_slice(&[flags, 0, 0, 0, 0]);
    write(&mut bytes);
    let length = u32::try_from(bytes.len() - HEAD).expect("messages are far smaller than 4 GiB");
    bytes[1..HEAD].copy_from_slice(&length.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Everything that a decoder makes of `pieces`.
    fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<Frame>, FrameError> {
        let (mut decoder, mut frames) = (Decoder::default(), Vec::new());
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
        assert_eq!(message(&json!({"a": 1})), b"\0\0\0\0\x07{\"a\":1}");
        assert_eq!(end(&json!({})), b"\x02\0\0\0\x02{}");
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        assert_eq!(decode([&b"\x01\0\0\0\0"[..]]), Err(FrameError::Flags { flags: 1 }));
        assert_eq!(decode([&b"\0\0\0\0\x02{"[..]]), Err(FrameError::Truncated));
        assert_eq!(decode([&b"\0\0"[..]]), Err(FrameError::Truncated));
        let length = LONGEST_MESSAGE + 1;
        let head = [&[0][..], &u32::try_from(length).unwrap().to_be_bytes()].concat();
        assert_eq!(decode([&head[..]]), Err(FrameError::TooLong { length }));
    }

    #[test]
    fn a_message_of_another_kind_says_so() {
        let error = parse::<u32>(b"{}").unwrap_err();
        assert!(error.to_string().starts_with("a message cannot be understood: "), "{error}");
    }

    proptest! {
        #[test]
        fn frames_survive_however_they_are_split(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
            size in 1usize..50,
        ) {
            let mut stream = Vec::new();
            for text in &messages {
                stream.extend(message(&crate::bytes::Bytes(text.clone())));
            }
            stream.extend(end(&json!({})));
            let mut frames = decode(stream.chunks(size)).unwrap();
            prop_assert_eq!(frames.pop(), Some(Frame::End(b"{}".to_vec())));
            let parsed: Vec<Vec<u8>> = frames
                .iter()
                .map(|frame| match frame {
                    Frame::Message(message) => parse::<crate::bytes::Bytes>(message).unwrap().0,
                    Frame::End(_) => unreachable!(),
                })
                .collect();
            prop_assert_eq!(parsed, messages);
        }

        #[test]
        fn any_bytes_are_frames_or_an_error_and_the_split_does_not_matter(
            bytes in prop::collection::vec(prop_oneof![Just(0u8), Just(2), any::<u8>()], 0..200),
            size in 1usize..50,
        ) {
            prop_assert_eq!(decode(bytes.chunks(size)), decode([&bytes[..]]));
        }
    }
}
