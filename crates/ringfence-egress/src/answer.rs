//! First bytes of a server's answer, which can show that the proxy misread the client's opening.
//!
//! A server answers in the protocol in which the client spoke. If the opening looked like neither
//! TLS nor HTTP, but the server answers in TLS or HTTP, then the server reads the opening in a way
//! that the proxy does not know. The proxy does not pass such an answer on. The proxy also holds
//! back an answer that is not TLS if the client began with a TLS hello.

use crate::hello::{self, HelloAnswer, HelloAnswerReader};
use crate::opening::OtherNames;

/// Prefix of every HTTP/1 answer.
const HTTP_PREFIX: &[u8] = b"HTTP/";

/// Kind of a server's answer, relative to the client's protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerKind {
    /// The server asks a TLS client for a second hello.
    Retry,
    /// The server answers a TLS client's hello with its own hello.
    Hello,
    /// The server speaks TLS to a client that did not speak TLS.
    UnexpectedTls,
    /// The server speaks HTTP to a client that did not speak HTTP.
    UnexpectedHttp,
    /// The server does not speak TLS to a client that spoke TLS.
    UnexpectedClear,
    /// Any other answer, which the client may see.
    Other,
}

impl AnswerKind {
    /// Returns whether the client may see the answer.
    pub(crate) fn is_passed_on(self) -> bool {
        matches!(self, AnswerKind::Retry | AnswerKind::Hello | AnswerKind::Other)
    }
}

/// Reader of the beginning of an answer, which arrives in pieces.
#[derive(Debug)]
pub(crate) enum AnswerReader {
    /// Reader of an answer to a TLS hello.
    ToHello(OtherNames, HelloAnswerReader),
    /// First bytes of an answer to an opening that is like neither TLS nor HTTP.
    ToOther(Vec<u8>),
}

impl AnswerReader {
    /// Creates a reader of an answer to a TLS hello.
    ///
    /// The answer may be in another protocol only with [`OtherNames::Ignored`], which is for
    /// tunnels to an address.
    pub(crate) fn for_hello(other_names: OtherNames) -> AnswerReader {
        AnswerReader::ToHello(other_names, HelloAnswerReader::default())
    }

    pub(crate) fn for_other_protocol() -> AnswerReader {
        AnswerReader::ToOther(Vec::new())
    }

    /// Reads more bytes. Returns `None` until the kind of the answer is known.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Option<AnswerKind> {
        match self {
            AnswerReader::ToHello(other_names, reader) => {
                reader.read(bytes).map(|answer| match answer {
                    HelloAnswer::Retry => AnswerKind::Retry,
                    HelloAnswer::Hello => AnswerKind::Hello,
                    HelloAnswer::NotTls if *other_names == OtherNames::Judged => {
                        AnswerKind::UnexpectedClear
                    }
                    HelloAnswer::Other | HelloAnswer::NotTls => AnswerKind::Other,
                })
            }
            AnswerReader::ToOther(seen) => {
                seen.extend_from_slice(&bytes[..bytes.len().min(HTTP_PREFIX.len())]);
                judge_beginning(seen)
            }
        }
    }
}

fn judge_beginning(seen: &[u8]) -> Option<AnswerKind> {
    let record = [hello::HANDSHAKE, hello::MAJOR_VERSION];
    if seen.starts_with(HTTP_PREFIX) {
        Some(AnswerKind::UnexpectedHttp)
    } else if seen.starts_with(&record) {
        Some(AnswerKind::UnexpectedTls)
    } else if HTTP_PREFIX.starts_with(seen) || record.starts_with(seen) {
        None
    } else {
        Some(AnswerKind::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pieces: &[&[u8]], expected: Option<AnswerKind>) {
        let mut reader = AnswerReader::for_other_protocol();
        let answer =
            pieces.iter().fold(None, |answer, piece| answer.or_else(|| reader.read(piece)));
        assert_eq!(answer, expected);
    }

    #[test]
    fn answers_in_tls_and_http_are_recognised_and_others_pass_at_once() {
        check(&[b"HTTP/1.1 200 OK\r\n"], Some(AnswerKind::UnexpectedHttp));
        check(&[b"H", b"TT", b"P/1.0"], Some(AnswerKind::UnexpectedHttp));
        check(&[&[22], &[3, 3]], Some(AnswerKind::UnexpectedTls));
        check(&[b"HTT"], None);
        for other in [
            &b"S"[..],
            b"SSH-2.0-x\r\n",
            b"220 mail.test ESMTP\r\n",
            b"HELLO",
            &[22, 4],
            &[21, 3, 3],
            b"+OK",
        ] {
            check(&[other], Some(AnswerKind::Other));
        }
    }
}
