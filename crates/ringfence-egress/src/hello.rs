//! First messages of a TLS connection: the client's hello, and the server's answer, which may ask
//! for a second hello.
//!
//! This module reads the records itself, because a server may read them differently from rustls. To
//! leave only one reading, a hello must be alone in its records, and its server name must be alone
//! in its list.

use rustls::server::Acceptor;

/// Content types of TLS records (RFC 8446, section 5.1).
const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
pub(crate) const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
/// Highest content type that is assigned: `ACK` (RFC 9147).
pub(crate) const LAST_CONTENT_TYPE: u8 = 26;
/// Major version of every record since SSL 3.0.
pub(crate) const MAJOR_VERSION: u8 = 3;

/// Number of bytes in a record before its content.
pub(crate) const RECORD_HEADER_BYTES: usize = 5;
/// Longest content of an unencrypted record, in bytes.
pub(crate) const MAX_RECORD_BYTES: usize = 1 << 14;
/// Number of bytes in a handshake message before its body.
pub(crate) const MESSAGE_HEADER_BYTES: usize = 4;
/// Longest client hello that is read, in bytes with its header.
const MAX_HELLO_BYTES: usize = 64 * 1024;

/// Level of an alert that ends a connection (RFC 8446, section 6).
const FATAL_ALERT_LEVEL: u8 = 2;
/// Types of handshake messages (RFC 8446, section 4).
pub(crate) const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
/// Type of the extension that names the server (RFC 6066, section 3).
pub(crate) const SERVER_NAME_EXTENSION: u16 = 0;
/// Value of the random field that makes a server hello a HelloRetryRequest (RFC 8446, section
/// 4.1.3).
const RETRY_RANDOM: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
    0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// Result of reading a client's hello.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ClientHello {
    /// The hello asks for the server of this name.
    Named(String),
    /// The hello names no server.
    Unnamed,
    /// The bytes are not a hello, or a server may read them differently. The text describes the
    /// fault.
    Unreadable(String),
}

impl ClientHello {
    fn unreadable(fault: &str) -> ClientHello {
        ClientHello::Unreadable(fault.to_owned())
    }
}

/// Position of a hello in its connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum HelloPosition {
    /// The hello is the first message of the client.
    #[default]
    First,
    /// The hello answers a HelloRetryRequest. A change of cipher spec, early data and alerts may
    /// precede such a hello.
    AfterRetry,
}

/// Reader of a client's hello, which may arrive in any number of pieces and records.
#[derive(Debug, Default)]
pub(crate) struct HelloReader {
    position: HelloPosition,
    /// Number of bytes in the whole records that were read.
    consumed: usize,
    message: Vec<u8>,
}

impl HelloReader {
    pub(crate) fn new(position: HelloPosition) -> HelloReader {
        HelloReader { position, ..HelloReader::default() }
    }

    /// Returns the number of bytes up to the end of the hello's last record, once the hello was
    /// read.
    pub(crate) fn length(&self) -> usize {
        self.consumed
    }

    /// Continues to read in `bytes`, which must hold all bytes that have arrived so far. Returns
    /// `None` until the hello is complete or a fault is found.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Option<ClientHello> {
        loop {
            let rest = &bytes[self.consumed..];
            match self.check_record_header(rest) {
                Ok(()) => {}
                Err(fault) => return Some(ClientHello::unreadable(fault)),
            }
            let content = record_content(rest)?;
            self.consumed += RECORD_HEADER_BYTES + content.len();
            if rest[0] != HANDSHAKE {
                continue; // `check_record_header` allowed the record at this position
            }
            self.message.extend_from_slice(content);
            if let Some(hello) = self.read_message() {
                return Some(hello);
            }
        }
    }

    /// Checks as much of a record's header as has arrived, so that a fault is found as early as
    /// possible.
    fn check_record_header(&self, record: &[u8]) -> Result<(), &'static str> {
        let Some(content_type) = record.first() else { return Ok(()) };
        let may_precede = self.position == HelloPosition::AfterRetry && self.message.is_empty();
        match *content_type {
            HANDSHAKE => {}
            CHANGE_CIPHER_SPEC | ALERT | APPLICATION_DATA if may_precede => {}
            _ => {
                return Err(
                    "a TLS record of another type stands where the client's hello must begin",
                );
            }
        }
        if record.get(1).is_some_and(|major| *major != MAJOR_VERSION) {
            return Err("a TLS record of the client's hello has an unknown version");
        }
        match (record.get(3), record.get(4)) {
            (Some(high), Some(low)) => match usize::from(u16::from_be_bytes([*high, *low])) {
                0 => Err("a TLS record of the client's hello is empty"),
                length if length > MAX_RECORD_BYTES && *content_type == HANDSHAKE => {
                    Err("a TLS record of the client's hello is too long")
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn read_message(&self) -> Option<ClientHello> {
        if self.message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Some(ClientHello::unreadable(
                "the first TLS message is not a hello of the client",
            ));
        }
        let total = MESSAGE_HEADER_BYTES + message_length(&self.message)?;
        if total > MAX_HELLO_BYTES {
            return Some(ClientHello::unreadable("the client's hello is too long"));
        }
        if self.message.len() < total {
            return None;
        }
        if self.message.len() > total {
            return Some(ClientHello::unreadable(
                "another message follows in the last TLS record of the client's hello",
            ));
        }
        Some(read_hello(&self.message))
    }
}

/// Returns the content of the record at the start of `bytes`, if the whole record is there.
fn record_content(bytes: &[u8]) -> Option<&[u8]> {
    let length = u16::from_be_bytes([*bytes.get(3)?, *bytes.get(4)?]);
    bytes.get(RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + usize::from(length))
}

/// Returns the length of a handshake message's body, as the message's header states. Returns `None`
/// if the header is incomplete.
pub(crate) fn message_length(message: &[u8]) -> Option<usize> {
    let [_, high, middle, low, ..] = *message else { return None };
    Some(usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low))
}

/// Reads a whole client hello twice: by this module's own rules, which leave only one reading, and
/// by rustls. The two results must agree.
pub(crate) fn read_hello(message: &[u8]) -> ClientHello {
    let Some(named) = read_server_name(&message[MESSAGE_HEADER_BYTES..]) else {
        return ClientHello::unreadable(
            "the client's hello is malformed, or names more than one server",
        );
    };
    let mut acceptor = Acceptor::default();
    for content in message.chunks(MAX_RECORD_BYTES) {
        let length = u16::try_from(content.len()).expect("a chunk fits into a record");
        let record = [&[HANDSHAKE, MAJOR_VERSION, 1], &length.to_be_bytes()[..], content].concat();
        let mut rest = &record[..];
        while !rest.is_empty() {
            if let Err(error) = acceptor.read_tls(&mut rest) {
                return ClientHello::Unreadable(error.to_string());
            }
            match acceptor.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => {
                    return match (accepted.client_hello().server_name(), named) {
                        (Some(name), Some(own)) if own.eq_ignore_ascii_case(name.as_bytes()) => {
                            ClientHello::Named(name.to_owned())
                        }
                        (None, None) => ClientHello::Unnamed,
                        (None, Some(own)) => read_address(own),
                        (Some(_), _) => ClientHello::unreadable(
                            "the client's hello names its server in two ways",
                        ),
                    };
                }
                Err((error, _)) => return ClientHello::Unreadable(error.to_string()),
            }
        }
    }
    ClientHello::unreadable("the client's hello is incomplete")
}

/// Reads a server name that rustls does not accept. An address is not a valid server name (RFC
/// 6066, section 3), but servers accept addresses.
fn read_address(name: &[u8]) -> ClientHello {
    let text =
        std::str::from_utf8(name).ok().filter(|text| text.parse::<std::net::IpAddr>().is_ok());
    match text {
        Some(address) => ClientHello::Named(address.to_owned()),
        None => ClientHello::unreadable(
            "the client's hello names its server with a text that is not a host name",
        ),
    }
}

/// Returns the server name in the body of a client hello, or `Some(None)` if the hello has no name.
/// Returns `None` if the body is malformed or names more than one server.
fn read_server_name(body: &[u8]) -> Option<Option<&[u8]>> {
    let mut body = FieldReader(body);
    body.take(2 + 32)?; // version and random
    body.take_list(1)?; // session
    body.take_list(2)?; // ciphers
    body.take_list(1)?; // compression
    if body.0.is_empty() {
        return Some(None); // TLS 1.0 is older than extensions
    }
    let mut extensions = FieldReader(body.take_list(2)?);
    body.expect_end()?;
    let mut found = None;
    while !extensions.0.is_empty() {
        let kind = extensions.take_u16()?;
        let mut content = FieldReader(extensions.take_list(2)?);
        if kind != SERVER_NAME_EXTENSION {
            continue;
        }
        let mut names = FieldReader(content.take_list(2)?);
        content.expect_end()?;
        let kind = names.take(1)?;
        let name = names.take_list(2)?;
        names.expect_end()?;
        let is_first = found.replace(name).is_none();
        if !is_first || kind != [0] || name.is_empty() {
            return None;
        }
    }
    Some(found)
}

/// Part of a message whose fields were not read yet.
struct FieldReader<'a>(&'a [u8]);

impl<'a> FieldReader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn take_u16(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// Takes a list that follows its own length, which is a number of `width` bytes.
    fn take_list(&mut self, width: usize) -> Option<&'a [u8]> {
        let length =
            self.take(width)?.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        self.take(length)
    }

    fn expect_end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// Answer of a server to a hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HelloAnswer {
    /// A HelloRetryRequest, after which the client sends a second hello in the clear.
    Retry,
    /// A server hello, after which everything is encrypted.
    Hello,
    /// Any other answer in TLS.
    Other,
    /// Bytes that are no TLS record, or a record that may not come before the server's hello.
    NotTls,
}

/// Reader of a server's answer to a hello, which may arrive in any number of pieces and records.
#[derive(Debug, Default)]
pub(crate) struct HelloAnswerReader {
    bytes: Vec<u8>,
    consumed: usize,
    message: Vec<u8>,
}

impl HelloAnswerReader {
    /// Reads more bytes. Returns `None` until the kind of the answer is known.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Option<HelloAnswer> {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > MAX_HELLO_BYTES {
            return Some(HelloAnswer::Other); // no server asks again after that many bytes
        }
        loop {
            let rest = &self.bytes[self.consumed..];
            let is_tls = rest.get(1).is_none_or(|major| *major == MAJOR_VERSION);
            let is_handshake = match rest.first()? {
                &HANDSHAKE if is_tls => true,
                // A warning may precede the answer (RFC 6066, section 3).
                &ALERT | &CHANGE_CIPHER_SPEC if is_tls => false,
                _ => return Some(HelloAnswer::NotTls),
            };
            let [_, _, _, high, low, ..] = *rest else { return None };
            let length = usize::from(u16::from_be_bytes([high, low]));
            let content = &rest[RECORD_HEADER_BYTES..rest.len().min(RECORD_HEADER_BYTES + length)];
            let is_whole = content.len() == length;
            if is_handshake {
                // The random is at the beginning, so there is no need to wait for the rest of a
                // long record.
                let answer = judge_answer(&[&self.message, content].concat());
                if answer.is_some() {
                    return answer;
                }
            }
            if !is_whole {
                return None;
            }
            if rest[0] == ALERT && content.first() == Some(&FATAL_ALERT_LEVEL) {
                return Some(HelloAnswer::Other);
            }
            if is_handshake {
                self.message.extend_from_slice(content);
            }
            self.consumed += RECORD_HEADER_BYTES + length;
        }
    }
}

/// Judges the beginning of a server's first handshake message. Returns `None` if more bytes are
/// needed.
fn judge_answer(message: &[u8]) -> Option<HelloAnswer> {
    let kind = message.first()?;
    if *kind != SERVER_HELLO {
        return Some(HelloAnswer::Other);
    }
    let start = MESSAGE_HEADER_BYTES + 2;
    let random = message.get(start..start + RETRY_RANDOM.len())?;
    Some(if random == RETRY_RANDOM { HelloAnswer::Retry } else { HelloAnswer::Hello })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server_hello(random: [u8; 32]) -> Vec<u8> {
        [&[SERVER_HELLO, 0, 0, 40, 3, 3][..], &random, &[0, 0x13, 1, 0, 0, 0]].concat()
    }

    fn in_records(message: &[u8], size: usize) -> Vec<u8> {
        let record = |content: &[u8]| {
            let length = u16::try_from(content.len()).unwrap();
            [&[HANDSHAKE, 3, 3], &length.to_be_bytes()[..], content].concat()
        };
        message.chunks(size).flat_map(record).collect()
    }

    #[track_caller]
    fn check(bytes: &[u8], expected: Option<HelloAnswer>) {
        assert_eq!(HelloAnswerReader::default().read(bytes), expected);
        let mut reader = HelloAnswerReader::default();
        let mut answer = None;
        for byte in bytes {
            answer = answer.or_else(|| reader.read(&[*byte]));
        }
        assert_eq!(answer, expected, "one byte at a time");
    }

    #[test]
    fn a_retry_is_recognised_in_any_number_of_records_and_after_a_warning() {
        let retry = server_hello(RETRY_RANDOM);
        for size in [1, 7, 40, 100] {
            check(&in_records(&retry, size), Some(HelloAnswer::Retry));
        }
        let warned = [&[ALERT, 3, 3, 0, 2, 1, 112][..], &in_records(&retry, 50)].concat();
        check(&warned, Some(HelloAnswer::Retry));
        check(&in_records(&server_hello([7; 32]), 11), Some(HelloAnswer::Hello));
        check(&in_records(&retry[..30], 100), None);
        check(&[ALERT, 3, 3, 0, 2, FATAL_ALERT_LEVEL, 40], Some(HelloAnswer::Other));
        check(b"HTTP/1.1 400 Bad Request\r\n", Some(HelloAnswer::NotTls));
        check(&[CLIENT_HELLO; 60], Some(HelloAnswer::NotTls));
        check(&[HANDSHAKE, 9], Some(HelloAnswer::NotTls));
        check(&[APPLICATION_DATA, 3, 3, 0, 1, 0], Some(HelloAnswer::NotTls));
    }
}
