//! Buffer of output that the client has not read yet.

use std::collections::VecDeque;

use crate::tools::outcome::LONGEST_OUTPUT;

/// Last part of a stream that the client has not read yet, up to [`LONGEST_OUTPUT`] bytes.
#[derive(Debug, Default)]
pub(crate) struct UnreadOutput {
    bytes: VecDeque<u8>,
    lost: u64,
}

impl UnreadOutput {
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        let surplus = self.bytes.len().saturating_sub(LONGEST_OUTPUT);
        self.bytes.drain(..surplus);
        self.lost += surplus as u64;
    }

    /// Returns the unread text and keeps it unread.
    pub(crate) fn shown(&mut self) -> String {
        String::from_utf8_lossy(self.bytes.make_contiguous()).into_owned()
    }

    /// Takes the unread text, and returns it with the number of bytes that were lost before it.
    /// Keeps an incomplete character at the end for the next call, unless the stream is over.
    pub(crate) fn take(&mut self, is_over: bool) -> (String, u64) {
        let bytes = self.bytes.make_contiguous();
        let whole = match std::str::from_utf8(bytes) {
            Err(error) if error.error_len().is_none() && !is_over => error.valid_up_to(),
            _ => bytes.len(),
        };
        let text = String::from_utf8_lossy(&bytes[..whole]).into_owned();
        self.bytes.drain(..whole);
        (text, std::mem::take(&mut self.lost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_returned_once_and_in_whole_characters() {
        let mut unread = UnreadOutput::default();
        unread.push(b"a\xc3");
        assert_eq!(unread.take(false), ("a".to_owned(), 0));
        unread.push(b"\xa9b");
        assert_eq!(unread.take(false), ("éb".to_owned(), 0));
        unread.push(b"\xc3");
        assert_eq!(unread.take(true), ("\u{fffd}".to_owned(), 0));
        assert_eq!(unread.take(true), (String::new(), 0));
    }

    #[test]
    fn output_that_is_not_read_in_time_is_counted() {
        let mut unread = UnreadOutput::default();
        unread.push(&vec![b'x'; LONGEST_OUTPUT]);
        unread.push(b"end");
        let (text, lost) = unread.take(false);
        assert!(text.ends_with("xend"));
        assert_eq!((text.len(), lost), (LONGEST_OUTPUT, 3));
    }
}
