//! Opening of a tunnel: the client's first bytes, and the protocol that they begin.
//!
//! To a host that is named by name the classification denies by default. Bytes that begin like TLS, SSL or HTTP in any
//! server's reading are of that kind, also where we cannot read the rest of them; bytes of which that is open are held back;
//! and an opening that stays open to the end, or grows too long, is refused. Everything else passes unread.
//!
//! Lenient servers decide what is like HTTP: RFC 9112, 3 lets them separate words by any blank, some skip blanks and
//! control characters before the method, and old ones take any third word for a version.

use crate::hello::{self, Hello, HelloReader};

/// Longest opening of TLS: a hello has at most 64 KiB, and its records have headers.
const LONGEST_HELLO_RECORDS: usize = 80 * 1024;
/// Longest first line that is held back.
const LONGEST_LINE: usize = 64 * 1024;
/// Longest word behind a control character that may be a method.
const LONGEST_METHOD: usize = 64;
/// Shortest word that is like a method.
const SHORTEST_METHOD: usize = 3;
/// Control characters alone that are held back, in case that a request follows.
const LONGEST_CONTROL_LEAD: usize = 3;
/// Longest service and path of git's own protocol.
const LONGEST_GIT_PATH: usize = 8 * 1024;
/// Beginning of the PROXY protocol's second version, which names a client for whatever follows.
const PROXY_SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Mark of UTF-8 at the beginning of a text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Methods that servers know: IANA's registry, and what else is in use.
const METHODS: &[&str] = &[
    "ACL",
    "BASELINE-CONTROL",
    "BIND",
    "CHECKIN",
    "CHECKOUT",
    "CONNECT",
    "COPY",
    "DEBUG",
    "DELETE",
    "GET",
    "HEAD",
    "LABEL",
    "LINK",
    "LOCK",
    "M-SEARCH",
    "MERGE",
    "MKACTIVITY",
    "MKCALENDAR",
    "MKCOL",
    "MKREDIRECTREF",
    "MKWORKSPACE",
    "MOVE",
    "NOTIFY",
    "OPTIONS",
    "ORDERPATCH",
    "PATCH",
    "POST",
    "PRI",
    "PROPFIND",
    "PROPPATCH",
    "PURGE",
    "PUT",
    "QUERY",
    "REBIND",
    "REPORT",
    "SEARCH",
    "SOURCE",
    "SUBSCRIBE",
    "TRACE",
    "TRACK",
    "UNBIND",
    "UNCHECKOUT",
    "UNLINK",
    "UNLOCK",
    "UNSUBSCRIBE",
    "UPDATE",
    "UPDATEREDIRECTREF",
    "VERSION-CONTROL",
];

/// Protocol of an opening.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OpeningKind {
    /// TLS, or something that begins like it.
    Tls(Hello),
    /// HTTP, or something that a lenient server may read as HTTP.
    Http,
    /// Neither of the two can begin so.
    Other,
    /// The protocol was open until the opening ended or grew too long, for this reason.
    Undecided(&'static str),
}

/// Naming of the host that a tunnel leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostNaming {
    /// The host was named by name, which other names must not pass as.
    Name,
    /// The host was named by address: whatever is served there may be spoken to, in any protocol.
    Address,
}

/// Reads an opening as it comes in.
#[derive(Debug)]
pub(crate) struct Opening {
    naming: HostNaming,
    pub(crate) bytes: Vec<u8>,
    /// There as soon as the opening turns out to be TLS.
    hello: Option<Box<HelloReader>>,
    /// Blanks and control characters before the first word.
    lead: usize,
    /// Whether one of them is no blank.
    has_control_lead: bool,
    /// Bytes in which neither a line feed nor, at first, the end of the first word was found.
    searched: usize,
    /// Whether the first word has ended.
    is_past_word: bool,
}

impl Opening {
    pub(crate) fn new(naming: HostNaming) -> Opening {
        Opening {
            naming,
            bytes: Vec::new(),
            hello: None,
            lead: 0,
            has_control_lead: false,
            searched: 0,
            is_past_word: false,
        }
    }

    /// Bytes of the hello's own records, once a hello was read.
    pub(crate) fn hello_length(&self) -> usize {
        self.hello.as_ref().map_or(0, |hello| hello.length())
    }

    /// Kind of the opening; nothing while it is open.
    pub(crate) fn kind(&mut self) -> Option<OpeningKind> {
        if self.bytes.is_empty() {
            return None;
        }
        if self.hello.is_some() || begins_like_tls(&self.bytes, self.naming)? {
            if is_ssl2(&self.bytes) == Some(true) {
                let fault = "a hello of SSL 2 does not say which name it wants";
                return Some(OpeningKind::Tls(Hello::Unreadable(fault.to_owned())));
            }
            if let Some(hello) = self.hello.get_or_insert_default().read(&self.bytes) {
                return Some(OpeningKind::Tls(hello));
            }
            let fault = "the client's hello is too long";
            return (self.bytes.len() > LONGEST_HELLO_RECORDS)
                .then(|| OpeningKind::Tls(Hello::Unreadable(fault.to_owned())));
        }
        match self.naming {
            HostNaming::Name => self.text_kind(),
            HostNaming::Address => Some(OpeningKind::Other),
        }
    }

    /// Kind of an opening that was open when the client ended.
    pub(crate) fn kind_at_end(&mut self) -> OpeningKind {
        if let Some(kind) = self.kind() {
            return kind;
        }
        let begins_tls = begins_like_tls(&self.bytes, self.naming) == Some(true);
        let is_request = self.naming == HostNaming::Name && is_request_line(&self.bytes[self.lead..]);
        match (begins_tls, is_request) {
            (true, _) => OpeningKind::Tls(Hello::Unreadable("the client ended within its hello".to_owned())),
            (_, true) => OpeningKind::Undecided("the client ended within a line that may begin a request"),
            _ => OpeningKind::Other,
        }
    }

    /// Tells HTTP from protocols that are not TLS, by the first line.
    ///
    /// Protocols that begin with words differ early: `SSH-2.0-…`, `EHLO host`, `PING`, `*1`. Binary ones have a byte that no
    /// first word has.
    fn text_kind(&mut self) -> Option<OpeningKind> {
        if self.bytes.starts_with(PROXY_SIGNATURE) {
            return Some(OpeningKind::Http);
        }
        if PROXY_SIGNATURE.starts_with(&self.bytes) {
            return None;
        }
        let is_too_long = self.bytes.len() > LONGEST_LINE;
        let is_at_word = self.skip_lead();
        let rest = &self.bytes[self.lead..];
        if !is_at_word {
            // A binary protocol may wait for an answer here, and no server that we know skips control characters. If one
            // did, its answer would give it away.
            if self.has_control_lead && self.lead >= LONGEST_CONTROL_LEAD {
                return Some(OpeningKind::Other);
            }
            return is_too_long.then_some(OpeningKind::Undecided("no protocol begins with so many blanks"));
        }
        if !is_token_byte(rest[0]) || is_git_request(rest) {
            return Some(OpeningKind::Other);
        }
        let fresh = self.searched.max(self.lead);
        if !self.is_past_word {
            let end = self.bytes[fresh..].iter().position(|byte| !byte.is_ascii_graphic());
            let word = &rest[..end.map_or(rest.len(), |end| fresh + end - self.lead)];
            // What stands behind a control character is text by chance, unless it is like a method.
            if self.has_control_lead {
                if !may_begin_method(&word[..word.len().min(LONGEST_METHOD)]) {
                    return Some(OpeningKind::Other);
                }
                if word.len() > LONGEST_METHOD {
                    return Some(OpeningKind::Undecided("no method is so long, and no other protocol begins so"));
                }
            }
            if let Some(byte) = rest.get(word.len()) {
                if *byte != b'\n' && !is_blank(*byte) && !is_method(word) {
                    return Some(OpeningKind::Other);
                }
                self.is_past_word = true;
            }
        }
        if self.has_control_in_line(fresh) {
            return Some(OpeningKind::Other);
        }
        let Some(feed) = self.bytes[fresh..].iter().position(|byte| *byte == b'\n') else {
            self.searched = self.bytes.len();
            // Requests are read where their heads are, and refused there for their length.
            return is_too_long.then_some(OpeningKind::Http);
        };
        let is_request = is_request_line(&self.bytes[self.lead..fresh + feed]);
        Some(if is_request { OpeningKind::Http } else { OpeningKind::Other })
    }

    /// Whether the first line has a control character, from `fresh` on, behind a word that is no method: servers that take
    /// such characters in a target know their methods.
    fn has_control_in_line(&self, fresh: usize) -> bool {
        let is_name_byte = |byte: &u8| byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'_');
        let rest = &self.bytes[self.lead..];
        let letters = rest.iter().take(LONGEST_METHOD).take_while(|byte| is_name_byte(byte)).count();
        let is_method = letters >= SHORTEST_METHOD && rest.get(letters).is_none_or(|byte| !byte.is_ascii_graphic());
        let line = self.bytes[fresh..].iter().take_while(|byte| **byte != b'\n');
        !is_method && line.into_iter().any(|byte| byte.is_ascii_control() && !is_blank(*byte))
    }

    /// Skips what a lenient server skips before a request; whether the first word is reached.
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

/// Tells whether bytes begin like a TLS record or a hello of SSL; nothing while that is open.
///
/// Servers ignore the minor version of a first record. Some skip a record of a type that they do not know, so that to a
/// name each type counts.
fn begins_like_tls(bytes: &[u8], naming: HostNaming) -> Option<bool> {
    let first = *bytes.first()?;
    let is_assigned = (20..=hello::LAST_CONTENT_TYPE).contains(&first);
    if first == hello::HANDSHAKE {
        return Some(true);
    }
    if naming == HostNaming::Address && !is_assigned {
        return Some(false);
    }
    // One printable character may be all that a client says before it waits. If a server skipped it as the type of a
    // record, its answer in TLS would be cut.
    if bytes.len() == 1 && matches!(first, b' '..=b'~') {
        return Some(false);
    }
    if *bytes.get(1)? == hello::MAJOR_VERSION && (is_assigned || *bytes.get(2)? <= 4) {
        return Some(true);
    }
    if naming == HostNaming::Name { is_ssl2(bytes) } else { Some(false) }
}

/// Tells whether bytes begin like a hello in the form of SSL 2, which servers of TLS 1.2 still read, RFC 5246, E.2.
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

/// Tells whether a lenient server may read a line, without its line feed, as the first of a request.
fn is_request_line(line: &[u8]) -> bool {
    if line.windows(5).any(|part| part.eq_ignore_ascii_case(b"HTTP/")) {
        return true;
    }
    // Not every server takes the separators of ASCII for blanks, so both readings count.
    let is_space = |byte: u8| is_blank(byte) && !matches!(byte, 0x1c..=0x1f);
    [is_blank, is_space].into_iter().any(|separates: fn(u8) -> bool| {
        let mut words = line.split(|byte| separates(*byte)).filter(|word| !word.is_empty());
        let (Some(first), Some(second)) = (words.next(), words.next()) else { return false };
        // HTTP/0.9 has no version; the PROXY protocol says for whom the real first line is.
        first == b"PROXY" || second[0] == b'/' || second == b"*" || second.windows(3).any(|part| part == b"://")
    })
}

/// Tells whether bytes are a request of git's own protocol: a length, a service, a path up to a NUL, and no line.
fn is_git_request(bytes: &[u8]) -> bool {
    let Some((length, rest)) = bytes.split_at_checked(4) else { return false };
    let services: [&[u8]; 3] = [b"git-upload-pack ", b"git-receive-pack ", b"git-upload-archive "];
    length.iter().all(u8::is_ascii_hexdigit)
        && services.iter().any(|service| rest.starts_with(service))
        && rest.iter().take(LONGEST_GIT_PATH).find(|byte| matches!(byte, b'\n' | 0)) == Some(&0)
}

fn is_method(word: &[u8]) -> bool {
    METHODS.iter().any(|method| method.as_bytes().eq_ignore_ascii_case(word))
}

/// Tells whether a word, of which more may come, is like a method: known, or in capitals.
fn may_begin_method(word: &[u8]) -> bool {
    let begins = |method: &&str| method.as_bytes().get(..word.len()).is_some_and(|own| own.eq_ignore_ascii_case(word));
    let is_capital = |byte: &u8| byte.is_ascii_uppercase() || matches!(byte, b'-' | b'_');
    word.iter().all(is_capital) || METHODS.iter().any(begins)
}

/// Tells whether a byte separates words for some server: RFC 9112, 3, and the blanks of Unicode's first 256 characters.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | 0x0b | 0x0c | 0x1c..=0x1f | 0x85 | 0xa0)
}

/// Tells whether a byte is one of a token, which methods and names of headers are, RFC 9110, 5.6.2.
pub(crate) fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests;
