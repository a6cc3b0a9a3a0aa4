//! Separation of a harness's messages from the output of code, and of complete characters from
//! incomplete ones.
//!
//! Both come from a sandbox and may hold any bytes. Therefore no more than the longest message is
//! buffered.

use bytes::{Buf, BytesMut};

/// Longest message that is accepted of a harness, in bytes. The harness itself sends none that is
/// longer than half of this.
pub(super) const MAX_MESSAGE_BYTES: usize = 32 << 20;
/// Longest piece of a message: the number of bytes that a pipe takes at once, PIPE_BUF in pipe(7).
const MAX_PIECE_BYTES: usize = 4096;
/// Byte that begins every piece, before the mark.
const PIECE_SEPARATOR: u8 = 0x1e;
/// Length of a piece's head: one byte that says whether more pieces follow, and four digits for the
/// piece's length.
const PIECE_HEAD_BYTES: usize = 5;

/// Next part of a harness's stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StreamPart {
    /// Output of code.
    Text(Vec<u8>),
    /// Message of the harness.
    Message(Vec<u8>),
}

/// One stream of a harness.
#[derive(Debug)]
pub(super) struct StreamSeparator {
    /// Start of a piece, which output does not contain by chance.
    mark: Vec<u8>,
    rest: BytesMut,
    /// Pieces of the current message so far.
    message: Vec<u8>,
}

/// Position of a mark.
enum MarkPosition {
    At(usize),
    /// The bytes from this position on may be the beginning of a mark.
    Begins(usize),
    Nowhere,
}

impl StreamSeparator {
    pub(super) fn new(mark: &str) -> StreamSeparator {
        let mark = [&[PIECE_SEPARATOR], mark.as_bytes()].concat();
        StreamSeparator { mark, rest: BytesMut::new(), message: Vec::new() }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
    }

    /// Returns the next part of the pushed bytes, if it is complete, or an error that says what is
    /// wrong with it.
    pub(super) fn next(&mut self) -> Result<Option<StreamPart>, &'static str> {
        loop {
            let length = match self.find() {
                MarkPosition::At(0) => match self.take_piece()? {
                    None => return Ok(None),
                    Some(false) => continue,
                    Some(true) => {
                        return Ok(Some(StreamPart::Message(std::mem::take(&mut self.message))));
                    }
                },
                MarkPosition::At(start) | MarkPosition::Begins(start) => start,
                MarkPosition::Nowhere => self.rest.len(),
            };
            return Ok((length > 0).then(|| StreamPart::Text(self.rest.split_to(length).to_vec())));
        }
    }

    fn find(&self) -> MarkPosition {
        let bytes = &self.rest[..];
        let mut from = 0;
        while let Some(offset) = bytes[from..].iter().position(|byte| *byte == PIECE_SEPARATOR) {
            let start = from + offset;
            if bytes[start..].starts_with(&self.mark) {
                return MarkPosition::At(start);
            }
            if self.mark.starts_with(&bytes[start..]) {
                return MarkPosition::Begins(start);
            }
            from = start + 1;
        }
        MarkPosition::Nowhere
    }

    /// Takes the piece that `rest` begins with. Returns whether the piece was the last of its
    /// message, or `None` if the piece is incomplete.
    fn take_piece(&mut self) -> Result<Option<bool>, &'static str> {
        let Some(head) = self.rest.get(self.mark.len()..self.mark.len() + PIECE_HEAD_BYTES) else {
            return Ok(None);
        };
        let is_last = match head[0] {
            b'.' => true,
            b'+' => false,
            _ => return Err("a piece of a message is neither its last nor followed by one"),
        };
        let digits = std::str::from_utf8(&head[1..])
            .ok()
            .and_then(|digits| usize::from_str_radix(digits, 16).ok());
        let length = digits
            .filter(|length| *length <= MAX_PIECE_BYTES)
            .ok_or("a piece of a message has an invalid length")?;
        let start = self.mark.len() + PIECE_HEAD_BYTES;
        let Some(piece) = self.rest.get(start..start + length) else { return Ok(None) };
        if self.message.len() + length > MAX_MESSAGE_BYTES {
            return Err("a message has no end");
        }
        self.message.extend_from_slice(piece);
        self.rest.advance(start + length);
        Ok(Some(is_last))
    }
}

/// Decoder of bytes that arrive in parts. Invalid bytes are replaced, but a character that is cut
/// in two is put together again.
#[derive(Debug, Default)]
pub(super) struct TextDecoder {
    half: Vec<u8>,
}

impl TextDecoder {
    /// Takes bytes, and returns the text that is complete.
    pub(super) fn push(&mut self, mut bytes: Vec<u8>) -> String {
        if !self.half.is_empty() {
            bytes.splice(..0, self.half.drain(..));
        }
        self.half = bytes.split_off(bytes.len() - unfinished(&bytes));
        String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// Returns the rest as text, when no bytes follow.
    pub(super) fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.half)).into_owned()
    }
}

/// Returns the number of bytes at the end that are the beginning of a character.
fn unfinished(bytes: &[u8]) -> usize {
    for (index, byte) in bytes.iter().rev().take(3).enumerate() {
        let length = match byte {
            0x80..=0xbf => continue,
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            _ => return 0,
        };
        return if length > index + 1 { index + 1 } else { 0 };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: &str = "0123456789abcdef";

    fn piece(kind: char, text: &str) -> String {
        format!("\x1e{MARK}{kind}{:04x}{text}", text.len())
    }

    /// Returns all parts of a stream that arrives in chunks of `size` bytes. Adjacent texts are
    /// joined.
    fn parts(stream: &str, size: usize) -> Result<Vec<StreamPart>, &'static str> {
        let mut separator = StreamSeparator::new(MARK);
        let mut parts: Vec<StreamPart> = Vec::new();
        for bytes in stream.as_bytes().chunks(size) {
            separator.push(bytes);
            while let Some(part) = separator.next()? {
                match (parts.last_mut(), part) {
                    (Some(StreamPart::Text(text)), StreamPart::Text(more)) => text.extend(more),
                    (_, part) => parts.push(part),
                }
            }
        }
        Ok(parts)
    }

    #[test]
    fn messages_are_told_from_output_however_both_are_cut() {
        let stream = format!(
            "a\x1e{}b\x1e0123{}{}c\n",
            piece('.', "{}"),
            piece('+', "{\"x\""),
            piece('.', ":1}")
        );
        let text = |text: &str| StreamPart::Text(text.into());
        let message = |text: &str| StreamPart::Message(text.into());
        let expected =
            [text("a\x1e"), message("{}"), text("b\x1e0123"), message("{\"x\":1}"), text("c\n")];
        for size in 1..=stream.len() {
            assert_eq!(parts(&stream, size).unwrap(), expected, "in pieces of {size}");
        }
    }

    #[test]
    fn output_between_the_pieces_of_a_message_is_output() {
        let stream = format!("{}from another{}", piece('+', "{"), piece('.', "}"));
        assert_eq!(
            parts(&stream, 7).unwrap(),
            [StreamPart::Text("from another".into()), StreamPart::Message("{}".into())]
        );
    }

    #[test]
    fn an_invalid_piece_of_a_message_is_an_error() {
        for (stream, why) in [
            (
                format!("\x1e{MARK}?0000"),
                "a piece of a message is neither its last nor followed by one",
            ),
            (format!("\x1e{MARK}.zzzz"), "a piece of a message has an invalid length"),
            (format!("\x1e{MARK}.ffff"), "a piece of a message has an invalid length"),
        ] {
            assert_eq!(parts(&stream, 3), Err(why));
        }
        let endless = piece('+', &"x".repeat(MAX_PIECE_BYTES));
        let mut separator = StreamSeparator::new(MARK);
        let ended = (0..=MAX_MESSAGE_BYTES / MAX_PIECE_BYTES).find_map(|_| {
            separator.push(endless.as_bytes());
            separator.next().err()
        });
        assert_eq!(ended, Some("a message has no end"));
    }

    #[test]
    fn a_character_that_is_cut_in_two_is_put_together() {
        let whole = "aé€😀z".as_bytes();
        for cut in 0..=whole.len() {
            let mut text = TextDecoder::default();
            let shown =
                [text.push(whole[..cut].to_vec()), text.push(whole[cut..].to_vec()), text.finish()]
                    .concat();
            assert_eq!(shown, "aé€😀z", "cut at {cut}");
        }
        let mut text = TextDecoder::default();
        assert_eq!(
            [text.push(b"a\xff\xe2\x82".to_vec()), text.finish()].concat(),
            "a\u{fffd}\u{fffd}"
        );
    }
}
