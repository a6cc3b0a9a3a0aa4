//! Reader for the short messages of a framed stream while the stream is forwarded.

/// Length of the head of a frame in bytes: flags and length, as in `ringfence_proto::frame`.
const HEAD: usize = 5;

/// Parser that finds the short messages of a stream. Long messages are skipped and not copied.
#[derive(Debug)]
pub(crate) struct FrameScanner {
    longest: usize,
    head: [u8; HEAD],
    /// Number of bytes of the head that have arrived.
    begun: usize,
    /// Number of bytes of the message that are still to come.
    left: usize,
    /// Bytes of the message so far, or `None` if the message is too long.
    message: Option<Vec<u8>>,
}

impl FrameScanner {
    /// Creates a parser for messages of at most `longest` bytes.
    pub(crate) fn new(longest: usize) -> FrameScanner {
        FrameScanner { longest, head: [0; HEAD], begun: 0, left: 0, message: None }
    }

    /// Parses the next bytes, and calls `on_message` for each message that is complete. A message
    /// that is too long gives `None`.
    pub(crate) fn push(&mut self, mut bytes: &[u8], mut on_message: impl FnMut(Option<&[u8]>)) {
        while !bytes.is_empty() {
            if self.begun < HEAD {
                let (piece, rest) = bytes.split_at(bytes.len().min(HEAD - self.begun));
                self.head[self.begun..][..piece.len()].copy_from_slice(piece);
                (self.begun, bytes) = (self.begun + piece.len(), rest);
                let [_flags, length @ ..] = self.head;
                self.left = u32::from_be_bytes(length) as usize;
                self.message = (self.left <= self.longest).then(Vec::new);
            }
            if self.begun == HEAD {
                let (piece, rest) = bytes.split_at(bytes.len().min(self.left));
                if let Some(message) = &mut self.message {
                    message.extend_from_slice(piece);
                }
                (self.left, bytes) = (self.left - piece.len(), rest);
                if self.left == 0 {
                    on_message(self.message.as_deref());
                    self.begun = 0;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ringfence_proto::frame;
    use serde_json::json;

    use super::*;

    #[test]
    fn short_messages_are_found_however_a_stream_is_split_and_long_ones_are_only_counted() {
        let long = "x".repeat(1000);
        let stream: Vec<u8> = [json!("one"), json!(long), json!(""), json!("two")]
            .iter()
            .flat_map(frame::encode_message)
            .collect();
        for size in [1, 2, 3, 5, 7, 64, 1003, 4096] {
            let (mut scanner, mut found) = (FrameScanner::new(16), Vec::new());
            for piece in stream.chunks(size) {
                scanner.push(piece, |message| found.push(message.map(<[u8]>::to_vec)));
            }
            let short = |text: &str| Some(text.as_bytes().to_vec());
            assert_eq!(
                found,
                [short("\"one\""), None, short("\"\""), short("\"two\"")],
                "in pieces of {size}"
            );
        }
    }
}
