//! Lines of a client's stream that may be those of an HTTP request.
//!
//! A server does nothing before the line feed of a line, so bytes pass as they come, and the line
//! feed of a request does not.

use memchr::memchr;

use crate::opening::{LONGEST_LINE, LineRule, has_version_word, names_host};

/// Looks for requests in a client's stream.
#[derive(Debug)]
pub(crate) struct LineScanner {
    rule: LineRule,
    /// Current line, as far as it has come, or one byte more than a server reads.
    line: Vec<u8>,
}

impl LineScanner {
    pub(crate) fn new(rule: LineRule) -> LineScanner {
        LineScanner { rule, line: Vec::new() }
    }

    /// Ends the search in the first line: a server that speaks has taken the line for something
    /// else.
    pub(crate) fn pass_first(&mut self) {
        if self.rule == LineRule::First {
            *self = LineScanner::new(LineRule::None);
        }
    }

    /// Reads on, and tells whether a line was a request that is not let through.
    pub(crate) fn finds_request(&mut self, mut bytes: &[u8]) -> bool {
        while self.rule != LineRule::None {
            let Some(feed) = memchr(b'\n', bytes) else {
                self.extend(bytes);
                return false;
            };
            self.extend(&bytes[..feed]);
            bytes = &bytes[feed + 1..];
            let line = std::mem::take(&mut self.line);
            let is_empty = line.trim_ascii().is_empty();
            let is_read = line.len() <= LONGEST_LINE;
            match self.rule {
                LineRule::First if is_read && has_version_word(&line) => return true,
                LineRule::Every if is_read && names_host(&line) => return true,
                LineRule::First if !is_empty => self.pass_first(),
                _ => {}
            }
        }
        false
    }

    fn extend(&mut self, bytes: &[u8]) {
        let room = (LONGEST_LINE + 1).saturating_sub(self.line.len());
        self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(rule: LineRule, bytes: &[u8], expected: bool) {
        for size in [1, 5, bytes.len()] {
            let mut scanner = LineScanner::new(rule);
            let found = bytes.chunks(size).any(|piece| scanner.finds_request(piece));
            assert_eq!(found, expected, "{rule:?} {size} {}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_request_is_found_at_the_end_of_its_line() {
        for bytes in [
            &b"@GET / HTTP/1.1\r\n"[..],
            b"\xc2\xc3\xc4 /a http/1.0\n",
            b"\x01\x02\x03GET / HTTP/1.1\r\n",
            b"\r\n\n\"POST /a HTTP/1.1 \r\n",
            b"X1 /a\x01 HTTP/1.1\n",
            b"{ a HTTP/1.1 b\n",
        ] {
            check(LineRule::First, bytes, true);
            check(LineRule::Every, bytes, true);
            check(LineRule::None, bytes, false);
        }
        check(LineRule::First, b"@GET / HTTP/1.1\r", false);
        check(LineRule::First, b"<14>1 web: \"GET / HTTP/1.1\" 200\n", false);
        check(LineRule::First, b"@RSYNCD: 31.0\nGET / HTTP/1.1\n", false);
        check(LineRule::Every, b"get key\r\nGET /a HTTP/1.1\r\n", true);
        check(LineRule::Every, b"get key\r\n\tHost : front.test\r\n", true);
        check(LineRule::Every, b"get key\r\nA: b\rHOST: front.test\r\n", true);
        check(LineRule::Every, b"get key\r\nA: b\x1c\x85host: front.test\n", true);
        check(LineRule::Every, b"get key\r\nget http://front.test/\r\n", true);
        check(LineRule::Every, b"get key\r\nset a 0 0 5\r\nhostname: a\r\n", false);
        let long = [&b"a ".repeat(LONGEST_LINE)[..], b"HTTP/1.1\nget b\n"].concat();
        check(LineRule::Every, &long, false);
    }

    #[test]
    fn a_server_that_speaks_has_read_the_first_line() {
        for (rule, expected) in [(LineRule::First, false), (LineRule::Every, true)] {
            let mut scanner = LineScanner::new(rule);
            assert!(!scanner.finds_request(b"\0\0GET / HT"));
            scanner.pass_first();
            assert_eq!(scanner.finds_request(b"TP/1.1\n"), expected);
        }
    }
}
