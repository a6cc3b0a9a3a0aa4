//! Output that is kept: the head and the tail of a stream, whatever it writes between them.

use std::io;
use std::os::fd::AsFd;

/// The head and the tail of a stream. Memory stays within the limit, and is not touched before it is needed.
#[derive(Debug)]
pub(crate) struct Kept {
    head: Vec<u8>,
    head_limit: usize,
    /// A ring: byte `n` of what came after the head is at `n % len`.
    tail: Vec<u8>,
    after_head: u64,
}

impl Kept {
    /// Keeps up to `limit` bytes.
    pub(crate) fn new(limit: u64) -> Kept {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let head_limit = limit / 2 + limit % 2;
        Kept { head: Vec::new(), head_limit, tail: vec![0; limit - head_limit], after_head: 0 }
    }

    /// Reads once from a pipe; returns what was read, empty at its end.
    pub(crate) fn read(&mut self, pipe: impl AsFd, scratch: &mut [u8]) -> io::Result<usize> {
        let length = rustix::io::read(pipe, &mut *scratch)?;
        self.push(&scratch[..length]);
        Ok(length)
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let to_head = bytes.len().min(self.head_limit - self.head.len());
        self.head.extend_from_slice(&bytes[..to_head]);
        let rest = &bytes[to_head..];
        self.after_head += rest.len() as u64;
        if self.tail.is_empty() || rest.is_empty() {
            return;
        }
        // Only the last `tail.len()` bytes can matter.
        let matters = &rest[rest.len().saturating_sub(self.tail.len())..];
        let size = self.tail.len() as u64;
        let at = ((self.after_head - matters.len() as u64) % size) as usize;
        let (to_end, from_start) = matters.split_at(matters.len().min(self.tail.len() - at));
        self.tail[at..at + to_end.len()].copy_from_slice(to_end);
        self.tail[..from_start.len()].copy_from_slice(from_start);
    }

    /// What was kept, with a line that counts what was dropped, and that count.
    pub(crate) fn finish(self) -> (String, u64) {
        let size = self.tail.len() as u64;
        let dropped = self.after_head.saturating_sub(size);
        let mut bytes = self.head;
        if dropped > 0 {
            bytes.extend_from_slice(format!("\n[{dropped} bytes dropped]\n").as_bytes());
        }
        if self.after_head <= size {
            bytes.extend_from_slice(&self.tail[..self.after_head as usize]);
        } else {
            let oldest = (self.after_head % size.max(1)) as usize;
            bytes.extend_from_slice(&self.tail[oldest..]);
            bytes.extend_from_slice(&self.tail[..oldest]);
        }
        let text =
            String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        (text, dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(limit: u64, chunks: &[&str], text: &str, dropped: u64) {
        let mut kept = Kept::new(limit);
        chunks.iter().for_each(|chunk| kept.push(chunk.as_bytes()));
        assert_eq!(kept.finish(), (text.to_owned(), dropped));
    }

    #[test]
    fn output_within_the_limit_is_whole() {
        check(10, &[], "", 0);
        check(10, &["hello"], "hello", 0);
        check(10, &["hello", "world"], "helloworld", 0);
        check(10, &["helloworld"], "helloworld", 0);
    }

    #[test]
    fn output_beyond_the_limit_keeps_head_and_tail() {
        check(10, &["0123456789ABCDEF"], "01234\n[6 bytes dropped]\nBCDEF", 6);
        check(10, &["01", "23", "45", "67", "89", "AB", "CD", "EF"], "01234\n[6 bytes dropped]\nBCDEF", 6);
        check(10, &["0123456", "789ABCDEFGH"], "01234\n[8 bytes dropped]\nDEFGH", 8);
    }

    #[test]
    fn a_limit_of_nothing_keeps_nothing_but_the_count() {
        check(0, &["abc"], "\n[3 bytes dropped]\n", 3);
        check(1, &["abc"], "a\n[2 bytes dropped]\n", 2);
    }

    #[test]
    fn bytes_that_are_not_text_are_replaced() {
        let mut kept = Kept::new(10);
        kept.push(b"a\xffb");
        assert_eq!(kept.finish(), ("a\u{fffd}b".to_owned(), 0));
    }
}
