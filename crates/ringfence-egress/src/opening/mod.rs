//! Opening of a tunnel: the first bytes of the client, and the protocol that they begin.
//!
//! For a tunnel to a host name, the classification denies by default:
//!
//! - Bytes that some server would read as the start of TLS, SSL or HTTP count as that protocol,
//!   even if we cannot read the bytes that follow.
//! - Bytes that do not yet show their protocol are held back.
//! - An opening that may begin TLS or a request when the stream ends, or that stays undecided for
//!   too long or over too many bytes, is refused.
//! - Everything else passes, under a watch with the rule of [`OpeningReader::line_rule`].
//!
//! Lenient servers define what counts as HTTP. The module `line` reads lines as they do. Some of
//! them also skip blanks and control characters before the method.
//!
//! A server does nothing before the line feed of a request's first line. For this reason, bytes
//! that do not begin a text pass at once, and the watch ends the tunnel if their line becomes a
//! request.

use crate::hello::{self, ClientHello, HelloReader};

mod request_line;

pub(crate) use request_line::{
    RequestLine, ends_header, has_host_header, has_url_target, has_version_word, is_blank, is_lead,
    may_begin_host_header, names_host, read_first_line, read_long_first_line,
};
use request_line::{begins_header, hides_request, is_method, may_begin_method, read_line};

/// Longest opening of TLS, in bytes: a hello has at most 64 KiB, and its records have headers.
const MAX_HELLO_RECORDS_BYTES: usize = 80 * 1024;
/// Longest first line, in bytes, that is held back.
pub(crate) const MAX_LINE_BYTES: usize = 64 * 1024;
/// Longest word after a control character that may be a method, in bytes.
const MAX_METHOD_BYTES: usize = 64;
/// Shortest word that may be a method, in bytes.
const MIN_METHOD_BYTES: usize = 3;
/// Number of control characters without other bytes that are held back in case a request follows.
const MAX_CONTROL_LEAD_BYTES: usize = 3;
/// First bytes of version 2 of the PROXY protocol, which states a client address for the bytes that
/// follow.
pub(crate) const PROXY_SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Byte order mark of UTF-8, which may stand at the start of a text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Protocol of an opening.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OpeningKind {
    /// TLS, or bytes that begin like TLS or SSL.
    Tls(ClientHello),
    /// HTTP, or bytes that a lenient server may read as HTTP.
    Http,
    /// A protocol that is neither TLS nor HTTP.
    Other,
    /// Unknown protocol: the opening ended, grew too long or took too long before its protocol was
    /// clear. The text states the reason.
    Undecided(&'static str),
}

/// Treatment of host names that a client uses inside a tunnel and that differ from the target of
/// the tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OtherNames {
    /// Other names are checked, because the client asked for a host name, which other names must
    /// not replace, or because the policy denies names.
    Judged,
    /// Other names are not checked, because the client asked for an address and the policy denies
    /// no name. The client may use every service at that address, in any protocol.
    Ignored,
}

/// Lines of a client that must not be requests, in a tunnel whose opening was neither TLS nor HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineRule {
    /// The first line must not be a request. The rule ends when the server speaks, because the
    /// server has then read the line as another protocol.
    First,
    /// The first line may have begun a request, so no line may be a request or name a host. The
    /// rule ends when the server speaks, because the server has then read the line as another
    /// protocol.
    UntilAnswered,
    /// The first line has words that some servers take for a request, so no line may name a host.
    /// The rule ends when the server speaks, because the server has then read the line as another
    /// protocol.
    NoHostUntilAnswered,
    /// The first line was a request of a protocol that HTTP servers may speak as well, so no line
    /// may be a request or name a host, even after the server has spoken.
    Every,
    /// No line is checked, because the first line begins no request, the protocol has no lines, or
    /// the server has spoken.
    None,
}

/// Incremental reader of an opening.
#[derive(Debug)]
pub(crate) struct OpeningReader {
    other_names: OtherNames,
    pub(crate) bytes: Vec<u8>,
    /// Reader of the hello, present as soon as the opening is known to begin like TLS.
    hello: Option<Box<HelloReader>>,
    /// Number of bytes before the first word: blanks, control characters and byte order marks.
    lead: usize,
    /// True if a byte before the first word is a control character that is neither a blank nor a
    /// line feed.
    has_control_lead: bool,
    /// Number of bytes already searched for a line feed and for the end of the first word.
    searched: usize,
    /// True if the end of the first word was found.
    is_past_word: bool,
    /// Position of the line feed of a first line that may be an HTTP request without a version.
    versionless_end: Option<usize>,
    /// Classification of the line that ends at `versionless_end`.
    versionless_line: RequestLine,
}

impl OpeningReader {
    pub(crate) fn new(other_names: OtherNames) -> OpeningReader {
        OpeningReader {
            other_names,
            bytes: Vec::new(),
            hello: None,
            lead: 0,
            has_control_lead: false,
            searched: 0,
            is_past_word: false,
            versionless_end: None,
            versionless_line: RequestLine::None,
        }
    }

    /// Returns the number of bytes of the records that hold the hello, or 0 before a hello was
    /// read.
    pub(crate) fn hello_length(&self) -> usize {
        self.hello.as_ref().map_or(0, |hello| hello.length())
    }

    /// Returns the kind of the opening, or `None` while the kind is not clear.
    pub(crate) fn kind(&mut self) -> Option<OpeningKind> {
        if self.bytes.is_empty() {
            return None;
        }
        if self.hello.is_some() || begins_like_tls(&self.bytes, self.other_names)? {
            if is_ssl2(&self.bytes) == Some(true) {
                let fault = "the client's hello is SSL 2, which names no server";
                return Some(OpeningKind::Tls(ClientHello::Unreadable(fault.to_owned())));
            }
            let reader = self.hello.get_or_insert_default();
            if let Some(hello) = reader.read(&self.bytes) {
                let is_request = self.other_names == OtherNames::Judged
                    && hides_request(&self.bytes[..reader.length()]);
                let fault = "the client's hello can also be read as an HTTP request";
                let hello =
                    if is_request { ClientHello::Unreadable(fault.to_owned()) } else { hello };
                return Some(OpeningKind::Tls(hello));
            }
            let fault = "the client's hello is too long";
            return (self.bytes.len() > MAX_HELLO_RECORDS_BYTES)
                .then(|| OpeningKind::Tls(ClientHello::Unreadable(fault.to_owned())));
        }
        match self.other_names {
            OtherNames::Judged => self.text_kind(),
            OtherNames::Ignored => Some(OpeningKind::Other),
        }
    }

    /// Returns the kind of an opening that was not clear when the client ended its stream.
    pub(crate) fn kind_at_end(&mut self) -> OpeningKind {
        if let Some(kind) = self.kind() {
            return kind;
        }
        let begins_tls = begins_like_tls(&self.bytes, self.other_names) == Some(true);
        let is_request = self.other_names == OtherNames::Judged
            && self.versionless_end.is_none()
            && read_line(&self.bytes[self.lead..]) != RequestLine::None;
        match (begins_tls, is_request) {
            (true, _) => OpeningKind::Tls(ClientHello::Unreadable(
                "the client closed the connection in the middle of its hello".to_owned(),
            )),
            (_, true) => OpeningKind::Undecided(
                "the client closed the connection in the middle of a line that may begin a request",
            ),
            _ => OpeningKind::Other,
        }
    }

    /// Returns the kind of an opening after which the client waits, or `None` if the opening stays
    /// held back.
    ///
    /// The following openings pass: a command such as `get /key`, a single byte, control characters
    /// alone, line ends alone, and a word that begins no method. If such an opening begins a
    /// request or TLS after all, the watch ends the tunnel. Bytes that may begin a hello of SSL 2,
    /// such as `IAC DO ECHO` of telnet, pass as well, because such a hello names no host and an
    /// answer in TLS is cut.
    pub(crate) fn kind_after_pause(&self) -> Option<OpeningKind> {
        let is_line_end = self.bytes.ends_with(b"\n")
            && self.bytes.iter().all(|byte| matches!(byte, b'\r' | b'\n'));
        let begins_text = BYTE_ORDER_MARK.starts_with(&self.bytes)
            || self.bytes.first().is_some_and(|first| is_blank(*first));
        let may_be_record = self.bytes.get(1).is_none_or(|second| *second == hello::MAJOR_VERSION);
        let may_be_ssl2 = !begins_text && !may_be_record && is_ssl2(&self.bytes).is_none();
        let is_lead = self.has_control_lead && self.lead == self.bytes.len();
        let is_binary = |byte: u8| {
            byte != hello::HANDSHAKE && byte != b'\n' && !is_blank(byte) && !is_token_byte(byte)
        };
        let is_byte = matches!(self.bytes[..], [byte] if is_binary(byte));
        let word = &self.bytes[self.lead..];
        let is_word = self.lead == 0
            && word.len() >= MIN_METHOD_BYTES
            && word.iter().all(u8::is_ascii_alphanumeric)
            && !may_begin_method(word);
        let is_released = self.versionless_end.is_some()
            || is_lead
            || is_line_end
            || is_byte
            || is_word
            || may_be_ssl2;
        is_released.then_some(OpeningKind::Other)
    }

    /// Returns the rule for the lines of a tunnel whose opening is neither TLS nor HTTP.
    pub(crate) fn line_rule(&self) -> LineRule {
        match self.versionless_line {
            RequestLine::None => LineRule::First,
            RequestLine::Sip => LineRule::Every,
            _ => LineRule::UntilAnswered,
        }
    }

    /// Distinguishes HTTP from other protocols that are not TLS, by the first line.
    ///
    /// Protocols that begin with words differ early: `SSH-2.0-…`, `EHLO host`, `PING`, `*1`. Binary
    /// protocols have a byte that no first word has.
    fn text_kind(&mut self) -> Option<OpeningKind> {
        if self.bytes.starts_with(PROXY_SIGNATURE) {
            return Some(OpeningKind::Http);
        }
        if PROXY_SIGNATURE.starts_with(&self.bytes) {
            return None;
        }
        let is_too_long = self.bytes.len() > MAX_LINE_BYTES;
        if let Some(end) = self.versionless_end {
            return self.kind_by_next_line(end);
        }
        if !self.skip_lead() {
            // Stop holding back, because a binary protocol may wait for an answer here.
            if self.has_control_lead && self.lead >= MAX_CONTROL_LEAD_BYTES {
                return Some(OpeningKind::Other);
            }
            return is_too_long.then_some(OpeningKind::Undecided(
                "the connection begins with too many blanks for any known protocol",
            ));
        }
        let fresh = self.searched.max(self.lead);
        let feed =
            self.bytes[fresh..].iter().position(|byte| *byte == b'\n').map(|feed| fresh + feed);
        let is_text = self.is_text(fresh, feed.unwrap_or(self.bytes.len()));
        let Some(end) = feed else {
            self.searched = self.bytes.len();
            // Classify a long line as HTTP, because the code that reads request heads refuses the
            // request for its length.
            return if is_text {
                is_too_long.then_some(OpeningKind::Http)
            } else {
                Some(OpeningKind::Other)
            };
        };
        let line = &self.bytes[self.lead..end];
        if !is_text {
            return Some(if has_version_word(line) {
                OpeningKind::Http
            } else {
                OpeningKind::Other
            });
        }
        let reading = read_line(line);
        match reading {
            RequestLine::Whole => return Some(OpeningKind::Http),
            RequestLine::None => return Some(OpeningKind::Other),
            _ => self.versionless_line = reading,
        }
        self.versionless_end = Some(end);
        if reading == RequestLine::Versionless {
            self.kind_by_next_line(end)
        } else {
            Some(OpeningKind::Other)
        }
    }

    /// Distinguishes an HTTP/0.9 request from a command by the line after it. HTTP/0.9 has no
    /// headers, but servers read them.
    fn kind_by_next_line(&self, end: usize) -> Option<OpeningKind> {
        match begins_header(&self.bytes[end + 1..]) {
            Some(false) => Some(OpeningKind::Other),
            Some(true) => Some(OpeningKind::Http),
            None => (self.bytes.len() > MAX_LINE_BYTES).then_some(OpeningKind::Http),
        }
    }

    /// Returns whether the first line is text up to `end` and its first word may be a method. Bytes
    /// before `fresh` were checked by earlier calls.
    fn is_text(&mut self, fresh: usize, end: usize) -> bool {
        let rest = &self.bytes[self.lead..end];
        if !rest.first().is_some_and(|first| is_token_byte(*first)) {
            return false;
        }
        if !self.is_past_word {
            let word_end = self.bytes[fresh..end].iter().position(|byte| !byte.is_ascii_graphic());
            let word = &rest[..word_end.map_or(rest.len(), |end| fresh + end - self.lead)];
            // Bytes after a control character are text by chance, unless they look like a method.
            if self.has_control_lead && (word.len() > MAX_METHOD_BYTES || !may_begin_method(word)) {
                return false;
            }
            if let Some(byte) = rest.get(word.len()) {
                if !is_blank(*byte) && !is_method(word) {
                    return false;
                }
                self.is_past_word = true;
            }
        }
        !self.has_control_in_line(fresh)
    }

    /// Returns whether the first line has a control character at or after `fresh` and its first
    /// word is not a method. Servers that accept control characters in a target accept only methods
    /// that they know.
    fn has_control_in_line(&self, fresh: usize) -> bool {
        let is_name_byte = |byte: &u8| byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'_');
        let rest = &self.bytes[self.lead..];
        let letters =
            rest.iter().take(MAX_METHOD_BYTES).take_while(|byte| is_name_byte(byte)).count();
        let is_method = letters >= MIN_METHOD_BYTES
            && may_begin_method(&rest[..letters])
            && rest.get(letters).is_none_or(|byte| !byte.is_ascii_graphic());
        let line = self.bytes[fresh..].iter().take_while(|byte| **byte != b'\n');
        !is_method && line.into_iter().any(|byte| byte.is_ascii_control() && !is_blank(*byte))
    }

    /// Skips the bytes that a lenient server skips before a request. Returns whether the first word
    /// is reached.
    fn skip_lead(&mut self) -> bool {
        while let Some(byte) = self.bytes.get(self.lead) {
            let rest = &self.bytes[self.lead..];
            if rest.starts_with(BYTE_ORDER_MARK) {
                self.lead += BYTE_ORDER_MARK.len();
            } else if is_blank(*byte) || byte.is_ascii_control() {
                self.has_control_lead |= !is_blank(*byte) && *byte != b'\n';
                self.lead += 1;
            } else {
                return !BYTE_ORDER_MARK.starts_with(rest);
            }
        }
        false
    }
}

/// Returns whether bytes begin like a TLS record or a hello of SSL, or `None` until enough bytes
/// are there to decide.
///
/// Servers ignore the minor version of a first record. Some servers skip a record of a type that
/// they do not know. For this reason, every type counts as TLS in a tunnel to a host name.
fn begins_like_tls(bytes: &[u8], other_names: OtherNames) -> Option<bool> {
    let first = *bytes.first()?;
    let is_assigned = (20..=hello::LAST_CONTENT_TYPE).contains(&first);
    if first == hello::HANDSHAKE {
        return Some(true);
    }
    if other_names == OtherNames::Ignored && !is_assigned {
        return Some(false);
    }
    // Release a single printable character, because a client may send no more before it waits. If a
    // server skipped the character as the type of a record, the server's answer in TLS would be
    // cut.
    if bytes.len() == 1 && matches!(first, b' '..=b'~') {
        return Some(false);
    }
    if *bytes.get(1)? == hello::MAJOR_VERSION && (is_assigned || *bytes.get(2)? <= 4) {
        return Some(true);
    }
    if other_names == OtherNames::Judged { is_ssl2(bytes) } else { Some(false) }
}

/// Returns whether bytes begin like a hello in the format of SSL 2, which servers of TLS 1.2 still
/// read (RFC 5246, E.2). Returns `None` until enough bytes are there to decide.
fn is_ssl2(bytes: &[u8]) -> Option<bool> {
    if *bytes.first()? & 0x80 == 0 || *bytes.get(2).unwrap_or(&1) != 1 {
        return Some(false);
    }
    bytes.get(2)?;
    match *bytes.get(3)? {
        hello::MAJOR_VERSION => Some(true),
        0 => Some(*bytes.get(4)? == 2),
        _ => Some(false),
    }
}

/// Returns whether a byte may stand in a token (RFC 9110, 5.6.2). Methods and header names are
/// tokens.
pub(crate) fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests;
