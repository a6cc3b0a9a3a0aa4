//! Lines of a client's stream that may be those of an HTTP request.
//!
//! A server does nothing before the line feed of a line, so bytes pass as they come, and the line
//! feed of a request does not.

use memchr::memchr;

use crate::opening::{LONGEST_LINE, LineRule, RequestLine, names_host, read_first_line};

/// Looks for requests in a client's stream.
#[derive(Debug)]
pub(crate) struct LineScanner {
    rule: LineRule,
    /// Current line, as far as it has come, or one byte more than a server reads. The first line
    /// goes on to a carriage return and a line feed, because some servers end no line before both.
    line: Vec<u8>,
    /// Whether a line feed alone was in the first line.
    has_feed: bool,
}

impl LineScanner {
    pub(crate) fn new(rule: LineRule) -> LineScanner {
        LineScanner { rule, line: Vec::new(), has_feed: false }
    }

    /// Ends the search where a server that speaks has taken the first line for something else.
    pub(crate) fn hear_server(&mut self) {
        if self.rule != LineRule::Every {
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
            let is_found = match self.rule {
                LineRule::First => self.ends_first_line(),
                _ => self.line.len() <= LONGEST_LINE && names_host(&self.line),
            };
            if is_found {
                return true;
            }
            if self.rule != LineRule::First {
                self.line.clear();
            }
        }
        false
    }

    /// Judges the first line at a line feed, and tells whether it is a request.
    fn ends_first_line(&mut self) -> bool {
        let ends_for_all = self.line.last() == Some(&b'\r') || self.line.len() > LONGEST_LINE;
        // A server that ends lines here has read the first one at an earlier line feed.
        if self.has_feed && !ends_for_all {
            self.line.push(b'\n');
            return false;
        }
        if self.line.trim_ascii().is_empty() {
            self.line.clear();
            return false;
        }
        let reading = match self.line.len() {
            ..=LONGEST_LINE => read_first_line(&self.line),
            _ => RequestLine::None,
        };
        match reading {
            RequestLine::Whole => return true,
            RequestLine::None if !ends_for_all => {
                self.has_feed = true;
                self.line.push(b'\n');
            }
            RequestLine::None => *self = LineScanner::new(LineRule::None),
            _ => *self = LineScanner::new(LineRule::UntilAnswered),
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
        check(LineRule::First, b"@RSYNCD: 31.0\r\nGET / HTTP/1.1\r\nHost: front.test\r\n", false);
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
    fn a_host_behind_a_first_line_with_a_target_is_found_with_any_first_word() {
        for line in [
            &b"\"POST /up x"[..],
            b"P@ST /up x",
            b"\xc3POST /up X/1.1",
            b" /up x",
            b"\x01\x02 /up x",
            b"\"PO\tST /up x",
            b"\"P\x1cO\x0bST *",
            b"\"POST\na\n /up x",
            b"GET\nx /up y",
            b"{\"a\":1} /up",
            b"\0\x01GET up",
        ] {
            for header in [&b"Host: front.test\r\n"[..], b"A: b\r\nhost:front.test\r\n", b"a b c HTTP/1.1\r\n"] {
                check(LineRule::First, &[line, b"\r\n", header].concat(), true);
            }
            check(LineRule::First, &[line, b"\r\nA: b\r\n\r\nbody"].concat(), false);
        }
        check(LineRule::First, b"\"GET http://front.test/ x\r\n", true);
        check(LineRule::First, b"{\"a\": \"http://front.test/\"}\nHost: front.test\n", false);
        check(LineRule::First, b"1700000000 host GET /index HTTP/1.1 200\nHost: a\n", false);
    }

    #[test]
    fn a_server_that_speaks_has_read_the_first_line() {
        for (rule, expected) in [(LineRule::First, false), (LineRule::UntilAnswered, false), (LineRule::Every, true)] {
            let mut scanner = LineScanner::new(rule);
            assert!(!scanner.finds_request(b"\0\0GET / HT"));
            scanner.hear_server();
            assert_eq!(scanner.finds_request(b"TP/1.1\n"), expected);
        }
    }
}
