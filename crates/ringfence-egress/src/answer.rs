//! First bytes of a server, where they show that the client's were not what they seemed to be.
//!
//! A server answers in the protocol that it was spoken to in. So an answer in TLS or HTTP to an opening that is like
//! neither shows a reading of the opening that we do not know, and the answer is not passed on. Nor is an answer to a
//! hello of TLS that is not in TLS.

use crate::hello::{self, ServerAnswer, ServerAnswerReader};
use crate::opening::OtherNames;

/// Beginning of each answer in HTTP/1.
const HTTP: &[u8] = b"HTTP/";

/// Answer of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The server asks a TLS client for another hello.
    Retry,
    /// The server answers a TLS client's hello with its own.
    Hello,
    /// The server speaks TLS to a client that did not.
    UnexpectedTls,
    /// The server speaks HTTP to a client that did not.
    UnexpectedHttp,
    /// The server does not speak TLS to a client that did.
    UnexpectedClear,
    /// Any other.
    Other,
}

impl Answer {
    /// Whether the client is to see the answer.
    pub(crate) fn is_passed_on(self) -> bool {
        matches!(self, Answer::Retry | Answer::Hello | Answer::Other)
    }
}

/// Reads the beginning of an answer as it comes in.
#[derive(Debug)]
pub(crate) enum AnswerReader {
    /// To a hello of TLS.
    ToHello(OtherNames, ServerAnswerReader),
    /// To an opening that is like neither TLS nor HTTP: its first bytes.
    ToOther(Vec<u8>),
}

impl AnswerReader {
    /// Reader of an answer to a hello. Only at an address may that be in another protocol.
    pub(crate) fn to_hello(other_names: OtherNames) -> AnswerReader {
        AnswerReader::ToHello(other_names, ServerAnswerReader::default())
    }

    pub(crate) fn to_other() -> AnswerReader {
        AnswerReader::ToOther(Vec::new())
    }

    /// Reads on; nothing while there is more to come.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Option<Answer> {
        match self {
            AnswerReader::ToHello(other_names, reader) => reader.read(bytes).map(|answer| match answer {
                ServerAnswer::Retry => Answer::Retry,
                ServerAnswer::Hello => Answer::Hello,
                ServerAnswer::NotTls if *other_names == OtherNames::Judged => Answer::UnexpectedClear,
                ServerAnswer::Other | ServerAnswer::NotTls => Answer::Other,
            }),
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
        let answer = pieces.iter().fold(None, |answer, piece| answer.or_else(|| reader.read(piece)));
        assert_eq!(answer, expected);
    }

    #[test]
    fn answers_in_tls_and_http_are_recognised_and_others_pass_at_once() {
        check(&[b"HTTP/1.1 200 OK\r\n"], Some(Answer::UnexpectedHttp));
        check(&[b"H", b"TT", b"P/1.0"], Some(Answer::UnexpectedHttp));
        check(&[&[22], &[3, 3]], Some(Answer::UnexpectedTls));
        check(&[b"HTT"], None);
        for other in [&b"S"[..], b"SSH-2.0-x\r\n", b"220 mail.test ESMTP\r\n", b"HELLO", &[22, 4], &[21, 3, 3], b"+OK"]
        {
            check(&[other], Some(Answer::Other));
        }
    }
}
