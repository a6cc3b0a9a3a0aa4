//! First bytes of a server's answer, which can show that the proxy misread the client's opening.
//!
//! A server answers in the protocol in which the client spoke. If the opening looked like neither
//! TLS nor HTTP, but the server answers in TLS or HTTP, then the server reads the opening in a way
//! that the proxy does not know. The proxy does not pass such an answer on. The proxy also holds
//! back an answer that is not TLS if the client began with a TLS hello.

use crate::hello::{self, ServerAnswer, ServerAnswerReader};
use crate::opening::OtherNames;

/// Prefix of every HTTP/1 answer.
const HTTP: &[u8] = b"HTTP/";

/// Kind of a server's answer, relative to the client's protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
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

impl Answer {
    /// Returns whether the client may see the answer.
    pub(crate) fn is_passed_on(self) -> bool {
        matches!(self, Answer::Retry | Answer::Hello | Answer::Other)
    }
}

/// Reader of the beginning of an answer, which arrives in pieces.
#[derive(Debug)]
pub(crate) enum AnswerReader {
    /// Reader of an answer to a TLS hello.
    ToHello(OtherNames, ServerAnswerReader),
    /// First bytes of an answer to an opening that is like neither TLS nor HTTP.
    ToOther(Vec<u8>),
}

impl AnswerReader {
    /// Creates a reader of an answer to a TLS hello.
    ///
    /// The answer may be in another protocol only with [`OtherNames::Ignored`], which is for
    /// tunnels to an address.
    pub(crate) fn to_hello(other_names: OtherNames) -> AnswerReader {
        AnswerReader::ToHello(other_names, ServerAnswerReader::default())
    }

    pub(crate) fn to_other() -> AnswerReader {
        AnswerReader::ToOther(Vec::new())
    }

    /// Reads more bytes. Returns `None` until the kind of the answer is known.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Option<Answer> {
        match self {
            AnswerReader::ToHello(other_names, reader) => {
                reader.read(bytes).map(|answer| match answer {
                    ServerAnswer::Retry => Answer::Retry,
                    ServerAnswer::Hello => Answer::Hello,
                    ServerAnswer::NotTls if *other_names == OtherNames::Judged => {
                        Answer::UnexpectedClear
                    }
                    ServerAnswer::Other | ServerAnswer::NotTls => Answer::Other,
                })
            }
            AnswerReader::ToOther(seen) => {
                seen.extend_from_slice(&bytes[..bytes.len().min(HTTP.len())]);
                judge_beginning(seen)
            }
        }
    }
}

fn judge_beginning(seen: &[u8]) -> Option<Answer> {
    let record = [hello::HANDSHAKE, hello::MAJOR_VERSION];
    if seen.starts_with(HTTP) {
        Some(Answer::UnexpectedHttp)
    } else if seen.starts_with(&record) {
        Some(Answer::UnexpectedTls)
    } else if HTTP.starts_with(seen) || record.starts_with(seen) {
        None
    } else {
        Some(Answer::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pieces: &[&[u8]], expected: Option<Answer>) {
        let mut reader = AnswerReader::to_other();
        let answer =
            pieces.iter().fold(None, |answer, piece| answer.or_else(|| reader.read(piece)));
        assert_eq!(answer, expected);
    }

    #[test]
    fn answers_in_tls_and_http_are_recognised_and_others_pass_at_once() {
        check(&[b"HTTP/1.1 200 OK\r\n"], Some(Answer::UnexpectedHttp));
        check(&[b"H", b"TT", b"P/1.0"], Some(Answer::UnexpectedHttp));
        check(&[&[22], &[3, 3]], Some(Answer::UnexpectedTls));
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
            check(&[other], Some(Answer::Other));
        }
    }
}
