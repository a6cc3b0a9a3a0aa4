//! Lines of a client's stream that may belong to an HTTP request.
//!
//! Bytes pass as they arrive, with these exceptions. The line feed of a request is held back,
//! because a server does nothing before it. The colon of a header that names a host, and the `://`
//! of a URL, are held back, because the name follows them. The end of the stream ends a line, too,
//! because some servers then act on half a line.

use memchr::memchr;

use crate::opening::{
    LineRule, MAX_LINE_BYTES, PROXY_SIGNATURE, RequestLine, ends_header, has_host_header,
    has_url_target, has_version_word, is_blank, is_lead, may_begin_host_header, names_host,
    read_first_line, read_long_first_line,
};

/// Longest unfinished line, in bytes, that is read again with each new piece. A longer line is read
/// when it ends or grows longer than [`MAX_LINE_BYTES`].
const MAX_UNFINISHED_LINE_BYTES: usize = 1024;

/// Scanner that finds requests in a client's stream.
#[derive(Debug)]
pub(crate) struct LineScanner {
    rule: LineRule,
    /// Current line, as far as it has arrived. The first line continues up to a carriage return
    /// with a line feed, because some servers end a line only at both, and keeps at most one byte
    /// more than [`MAX_LINE_BYTES`]. Of a later line that is too long, `line` keeps the end.
    line: Vec<u8>,
    /// True if the first line contains a line feed without a carriage return.
    has_feed: bool,
    /// Bytes before the first line, at most one byte more than [`PROXY_SIGNATURE`] has.
    lead: Vec<u8>,
    /// True if the current line is longer than the bytes in `line`.
    is_long: bool,
    /// True if a blank is in the part of a long first line that is not kept.
    has_blank_in_rest: bool,
}

impl LineScanner {
    pub(crate) fn new(rule: LineRule) -> LineScanner {
        LineScanner {
            rule,
            line: Vec::new(),
            has_feed: false,
            lead: Vec::new(),
            is_long: false,
            has_blank_in_rest: false,
        }
    }

    /// Ends the search, unless the rule is [`LineRule::Every`]. A server that speaks has read the
    /// first line as another protocol.
    pub(crate) fn note_server_spoke(&mut self) {
        if self.rule != LineRule::Every {
            *self = LineScanner::new(LineRule::None);
        }
    }

    /// Reads the next bytes, and returns whether a line is a request that must not pass.
    pub(crate) fn scan_for_request(&mut self, mut bytes: &[u8]) -> bool {
        while self.rule != LineRule::None {
            let feed = memchr(b'\n', bytes);
            let piece = &bytes[..feed.unwrap_or(bytes.len())];
            let is_found = match self.rule {
                LineRule::First => {
                    self.extend_first_line(piece);
                    false
                }
                _ => self.extend_line(piece),
            };
            let Some(feed) = feed else { return is_found || self.names_host_so_far() };
            bytes = &bytes[feed + 1..];
            if is_found || self.judge_line() {
                return true;
            }
        }
        false
    }

    /// Reads the end of the stream, and returns whether the line that it ends is a request that
    /// must not pass.
    pub(crate) fn scan_end_for_request(&mut self) -> bool {
        match self.rule {
            LineRule::None => false,
            LineRule::First => self.read_first_line() == RequestLine::Whole,
            _ => self.judge_line(),
        }
    }

    /// Returns whether a line has begun and is not judged yet.
    pub(crate) fn has_open_line(&self) -> bool {
        self.rule != LineRule::None && !self.line.is_empty()
    }

    /// Judges a line at its line feed, and returns whether the line is a request.
    fn judge_line(&mut self) -> bool {
        let is_request = match self.rule {
            LineRule::None => false,
            LineRule::First => return self.judge_first_line(),
            _ if self.is_long => has_host_header(&self.line),
            LineRule::NoHostUntilAnswered => names_host(&self.line),
            LineRule::UntilAnswered | LineRule::Every => {
                names_host(&self.line) || has_version_word(&self.line)
            }
        };
        self.line.clear();
        self.is_long = false;
        is_request
    }

    /// Judges the first line at a line feed, and returns whether the line is a request.
    fn judge_first_line(&mut self) -> bool {
        if self.line.is_empty() {
            self.extend_lead(b"\n");
            return false;
        }
        let ends_for_all = self.line.last() == Some(&b'\r') || self.is_long;
        // A server that ends lines at every line feed has read its first line at an earlier one.
        if self.has_feed && !ends_for_all {
            self.line.push(b'\n');
            return false;
        }
        if PROXY_SIGNATURE == [&self.lead[..], &self.line, b"\n"].concat() {
            return true;
        }
        match self.read_first_line() {
            RequestLine::Whole => return true,
            RequestLine::None if !ends_for_all => {
                self.has_feed = true;
                self.line.push(b'\n');
            }
            RequestLine::None => *self = LineScanner::new(LineRule::None),
            RequestLine::Words => *self = LineScanner::new(LineRule::NoHostUntilAnswered),
            _ => *self = LineScanner::new(LineRule::UntilAnswered),
        }
        false
    }

    fn read_first_line(&self) -> RequestLine {
        if self.is_long {
            read_long_first_line(&self.line, self.has_blank_in_rest)
        } else {
            read_first_line(&self.line)
        }
    }

    /// Returns whether an unfinished line already names a host.
    fn names_host_so_far(&self) -> bool {
        let is_read = !self.is_long && self.line.len() <= MAX_UNFINISHED_LINE_BYTES;
        is_read
            && match self.rule {
                LineRule::None => false,
                LineRule::First => !self.has_feed && has_url_target(&self.line),
                _ => names_host(&self.line),
            }
    }

    /// Adds bytes to the first line, without the bytes that servers skip before a request.
    fn extend_first_line(&mut self, mut bytes: &[u8]) {
        if self.line.is_empty() {
            let (lead, rest) =
                bytes.split_at(bytes.iter().take_while(|byte| is_lead(**byte)).count());
            self.extend_lead(lead);
            bytes = rest;
        }
        let room = (MAX_LINE_BYTES + 1).saturating_sub(self.line.len());
        let (kept, rest) = bytes.split_at(bytes.len().min(room));
        self.line.extend_from_slice(kept);
        self.is_long = self.line.len() > MAX_LINE_BYTES;
        // A carriage return at the end belongs to the end of the line.
        let rest = rest.strip_suffix(b"\r").unwrap_or(rest);
        self.has_blank_in_rest |= rest.iter().any(|byte| is_blank(*byte));
    }

    fn extend_lead(&mut self, bytes: &[u8]) {
        let room = (PROXY_SIGNATURE.len() + 1).saturating_sub(self.lead.len());
        self.lead.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// Adds bytes to a later line. Returns whether a line that is too long to be kept names a host,
    /// or may do so.
    fn extend_line(&mut self, mut bytes: &[u8]) -> bool {
        while self.line.len() + bytes.len() > MAX_LINE_BYTES {
            let (part, rest) = bytes.split_at(MAX_LINE_BYTES - self.line.len());
            bytes = rest;
            self.line.extend_from_slice(part);
            let names_host =
                if self.is_long { has_host_header(&self.line) } else { names_host(&self.line) };
            let start =
                self.line.iter().rposition(|byte| ends_header(*byte)).map_or(0, |end| end + 1);
            let is_header_long = self.line.len() - start > MAX_LINE_BYTES / 2;
            if names_host || is_header_long && may_begin_host_header(&self.line[start..]) {
                return true;
            }
            // Read the following bytes as the rest of the last header, which may have just begun.
            self.line = if is_header_long { b"-".to_vec() } else { self.line.split_off(start) };
            self.is_long = true;
        }
        self.line.extend_from_slice(bytes);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(rule: LineRule, bytes: &[u8], expected: bool) {
        let shown = bytes[..bytes.len().min(200)].escape_ascii();
        // Skip small pieces for long streams, because they would take too long.
        for size in [1, 5, 4096, bytes.len()].into_iter().filter(|size| bytes.len() / size < 10_000)
        {
            let mut scanner = LineScanner::new(rule);
            let found = bytes.chunks(size).any(|piece| scanner.scan_for_request(piece));
            assert_eq!(found, expected, "{rule:?} {size} {shown}");
        }
    }

    #[track_caller]
    fn check_end(rule: LineRule, bytes: &[u8], expected: bool) {
        for size in [1, bytes.len().max(1)] {
            let mut scanner = LineScanner::new(rule);
            let found = bytes.chunks(size).any(|piece| scanner.scan_for_request(piece))
                || scanner.scan_end_for_request();
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
        check(LineRule::First, b"PING\r\nGET / HTTP/1.1\r\nHost: front.test\r\n", false);
        check(LineRule::First, b"\r\n\0\r\n\x01\n@GET / HTTP/1.1\r\n", true);
        check(LineRule::First, b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c", true);
        check(LineRule::First, b"\r\n\0\r\nQUIT\n\x21\x11\0\x0c", false);
        check(LineRule::Every, b"get key\r\nGET /a HTTP/1.1\r\n", true);
        check(LineRule::Every, b"get key\r\n\tHost : front.test\r\n", true);
        check(LineRule::Every, b"get key\r\nA: b\rHOST: front.test\r\n", true);
        check(LineRule::Every, b"get key\r\nA: b\x1c\x85host: front.test\n", true);
        check(LineRule::Every, b"get key\r\nget http://front.test/\r\n", true);
        check(LineRule::Every, b"get key\r\nset a 0 0 5\r\nhostname: a\r\n", false);
        let long = [&b"a ".repeat(MAX_LINE_BYTES)[..], b"HTTP/1.1\nget b\n"].concat();
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
            for header in [
                &b"Host: front.test\r\n"[..],
                b"A: b\r\nhost:front.test\r\n",
                b"a b c HTTP/1.1\r\n",
            ] {
                check(LineRule::First, &[line, b"\r\n", header].concat(), true);
            }
            check(LineRule::First, &[line, b"\r\nA: b\r\n\r\nbody"].concat(), false);
        }
        check(LineRule::First, b"\"GET http://front.test/ x\r\n", true);
        check(LineRule::First, b"\"GET\nhttp://front.test/ x\r\n", true);
    }

    #[test]
    fn a_host_behind_a_first_line_of_any_words_is_found() {
        for line in [
            &b"FETCH up x"[..],
            b"FETCH up",
            b"FETCH\0up\0x",
            b"\"POST foo:/up x",
            b"{\"a\":1} ftp:/z x",
            b"@RSYNCD: 31.0",
            b"{\"a\": \"http://front.test/\"}",
            b"1700000000 host GET /index HTTP/1.1 200",
        ] {
            for end in [&b"\n"[..], b"\r\n"] {
                let after = |rest: &[u8]| [line, end, rest].concat();
                check(LineRule::First, &after(b"Host: front.test\r\n"), true);
                check(LineRule::First, &after(b"A: b\r\n\r\nbody\r\nhost\t:"), true);
                check(LineRule::First, &after(b"\r\nFETCH http://front.test/ x\r\n"), true);
                // Lines of a log may contain a version, and other headers may follow.
                check(
                    LineRule::First,
                    &after(b"A: b\n{\"message\":\"GET / HTTP/1.1\"}\nhostname: a\n"),
                    false,
                );
            }
        }
        for line in
            [&b"\"POST foo:///up x\r\n"[..], b"{\"a\":1} ftp://z/up x\r\n", b"FETCH svn+ssh://a/"]
        {
            check(LineRule::First, line, true);
        }
        // STOMP sends a host header after a first line of one word.
        check(LineRule::First, b"CONNECT\naccept-version:1.2\nhost:a.test\n\n\0", false);
        check(LineRule::First, b"STOMP\r\naccept-version:1.2\r\nhost:a.test\r\n\r\n\0", false);
    }

    #[test]
    fn a_host_is_found_before_its_name_arrives() {
        check(LineRule::UntilAnswered, b"A: b\r\nHost:", true);
        check(LineRule::UntilAnswered, b"A: b\r\n \tHOST \t:", true);
        check(LineRule::NoHostUntilAnswered, b"\"a http://", true);
        check(LineRule::First, b"\"a http://", true);
        check(LineRule::UntilAnswered, b"A: b\r\nHost", false);
        check(LineRule::UntilAnswered, b"A: Host: a.test", false);
    }

    #[test]
    fn the_end_of_the_stream_ends_a_line_like_a_line_feed() {
        for bytes in [
            &b"@GET / HTTP/1.1"[..],
            b"\0\x01GET / HTTP/1.1\r",
            b"\"GET\nhttp://front.test/ x",
            b"PROXY a",
        ] {
            check(LineRule::First, bytes, false);
            check_end(LineRule::First, bytes, true);
        }
        for bytes in [&b"GET / HTTP/1.1"[..], b"get key\r\na b c HTTP/1.1"] {
            check_end(LineRule::UntilAnswered, bytes, true);
            check_end(LineRule::Every, bytes, true);
        }
        for bytes in [
            &b""[..],
            b"@RSYNCD: 31.0",
            b"\"POST /up x\r\nA: b",
            b"\"POST /up x\r\nHost",
            b"PING",
            b"\0\0",
        ] {
            check_end(LineRule::First, bytes, false);
        }
    }

    #[test]
    fn a_long_line_is_found_if_it_may_be_a_request() {
        let long = |byte: u8| vec![byte; 2 * MAX_LINE_BYTES];
        let first = |parts: &[&[u8]], expected| check(LineRule::First, &parts.concat(), expected);
        first(&[b"\"POST /up?", &long(b'a'), b" HTTP/1.1\r\n"], true);
        first(&[b"\"POST foo:/up?", &long(b'a'), b"\n"], true);
        first(&[b"\"", &long(b'a'), b" /up x\r\n"], true);
        first(&[b"\"POST", &long(b' '), b"/up x\r\n"], true);
        first(&[b"\x01get ", &long(1), b" x\r\n"], true);
        first(&[&long(0), b"@GET / HTTP/1.1\r\n"], true);
        // A single word, no target, and bytes that no target has.
        first(&[b"{\"a\":\"", &long(b'a'), b"\"}\r\n"], false);
        first(&[b"{\"a\": \"", &long(b'a'), b"\"}\n"], false);
        first(&[b"\x01\x02 /\0\x07", &long(200), b"\n"], false);
        first(&[b"\"POST /up?", &long(b'a')], false);
        for rule in [LineRule::UntilAnswered, LineRule::NoHostUntilAnswered, LineRule::Every] {
            let later = |parts: &[&[u8]], expected| check(rule, &parts.concat(), expected);
            later(&[b"a: b\r\nHost:", &long(b' '), b"front.test\r\n"], true);
            later(&[b"a: b\r\nHost", &long(b' '), b": front.test\r\n"], true);
            later(&[&long(b' '), b"Host: front.test\r\n"], true);
            later(&[b"a: ", &long(b'b'), b"\rHost: front.test\r\n"], true);
            later(&[b"a: ", &long(b'b'), b"\r\nHost: front.test\r\n"], true);
            for length in MAX_LINE_BYTES - 9..MAX_LINE_BYTES + 2 {
                later(&[b"a: ", &vec![b'b'; length], b"\x1cHost: front.test\n"], true);
            }
            later(&[b"a: ", &long(b'b'), b"Host: front.test\r\n"], false);
        }
    }

    #[test]
    fn the_search_ends_when_the_server_speaks() {
        for (rule, expected) in
            [(LineRule::First, false), (LineRule::UntilAnswered, false), (LineRule::Every, true)]
        {
            let mut scanner = LineScanner::new(rule);
            assert!(!scanner.scan_for_request(b"\0\0GET / HT"));
            scanner.note_server_spoke();
            assert_eq!(scanner.scan_for_request(b"TP/1.1\n"), expected);
        }
    }
}
