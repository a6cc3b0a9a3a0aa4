//! TLS hellos at any byte of a client's stream.
//!
//! Each byte at which a record with a hello may begin opens a candidate, so that no bytes before a
//! hello can hide it. A candidate follows the records as the most lenient server would: in any
//! version, in any number of pieces, with other records between them. No server acts on a hello
//! before its last byte. For this reason, bytes pass while a candidate is open, and only the piece
//! that completes a hello is held back.
//!
//! A candidate is dropped when no server would read it as a hello that names a server. Some servers
//! read lists of any length, and extensions that do not fill their list. A candidate that is very
//! unlikely to occur by chance is held back from its first byte.

use memchr::memchr_iter;

use super::StreamFinding;
use crate::hello::{
    self, CLIENT_HELLO, ClientHello, HANDSHAKE, MAX_RECORD_BYTES, MESSAGE_HEADER_BYTES,
    RECORD_HEADER_BYTES, SERVER_NAME_EXTENSION,
};

/// Most bytes that encryption adds to a record, RFC 5246, 6.2.3.
const MAX_RECORD_EXPANSION_BYTES: usize = 2048;
/// Highest major version that some server accepts in the first record: the limit of Go.
const MAX_MAJOR_VERSION: u8 = 0x0f;
/// Longest hello that some server reads, in bytes: the limit of OpenSSL.
const MAX_MESSAGE_BYTES: usize = 131_396;
/// Number of bytes before the lists of a hello: message header, version and random.
const FIXED_FIELDS_BYTES: usize = MESSAGE_HEADER_BYTES + 2 + 32;
/// Number of bytes before the first name in an extension: length of the list, type and length of
/// the name.
const SERVER_NAME_HEADER_BYTES: usize = 5;
/// Most candidates that may be open at once. [`MAX_KEPT_BYTES`] limits the bytes that they keep. In
/// ordinary data, hardly one candidate is open by chance.
const MAX_CANDIDATES: usize = 32;
const MAX_KEPT_BYTES: usize = 256 * 1024;

/// Scanner that finds hellos in a client's stream.
#[derive(Debug, Default)]
pub(crate) struct HelloScanner {
    /// Number of bytes of the stream that were read.
    offset: u64,
    candidates: Vec<HelloCandidate>,
}

impl HelloScanner {
    /// Reads the next bytes of the stream, and adds each result to `findings`.
    pub(crate) fn read(&mut self, bytes: &[u8], findings: &mut Vec<StreamFinding>) {
        self.candidates.retain_mut(|candidate| candidate.read_more(bytes, findings));
        for at in memchr_iter(HANDSHAKE, bytes) {
            if !may_begin_hello(&bytes[at..]) {
                continue;
            }
            let mut candidate = HelloCandidate::new(self.offset + at as u64);
            if candidate.read_more(&bytes[at..], findings) {
                self.candidates.push(candidate);
            }
            let kept: usize = self.candidates.iter().map(|candidate| candidate.message.len()).sum();
            if self.candidates.len() > MAX_CANDIDATES || kept > MAX_KEPT_BYTES {
                findings.push(StreamFinding::TooManyHellos);
                break;
            }
        }
        self.offset += bytes.len() as u64;
    }

    /// Returns the position in the stream from which bytes are held back, if any are.
    pub(crate) fn held_from(&self) -> Option<u64> {
        let held = self.candidates.iter().filter(|candidate| candidate.is_likely());
        held.map(|candidate| candidate.start).min()
    }
}

/// Returns whether bytes, which may be incomplete, are the header of a record and the type of a
/// hello. An empty record does not count, because the next record opens a candidate of its own.
fn may_begin_hello(bytes: &[u8]) -> bool {
    let has = |at: usize, test: fn(u8) -> bool| bytes.get(at).is_none_or(|byte| test(*byte));
    has(1, |major| major <= MAX_MAJOR_VERSION)
        && has(RECORD_HEADER_BYTES, |kind| kind == CLIENT_HELLO)
        && bytes.get(3..RECORD_HEADER_BYTES) != Some(&[0, 0])
}

/// Returns whether a list of names has a part that a server could compare with its own name. In a
/// hello in small records, some bytes begin another message by chance, and other bytes stand in the
/// place of a name.
fn may_be_name(names: &[u8]) -> bool {
    let is_part =
        |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':');
    names.windows(3).any(|part| part.iter().all(is_part))
}

/// Possible hello that begins at some byte of a stream.
#[derive(Debug)]
struct HelloCandidate {
    start: u64,
    /// Header of the current record, as far as it has arrived.
    header: Vec<u8>,
    /// Number of bytes of the current record that have not arrived.
    rest: usize,
    /// Length of the first record.
    first_length: Option<usize>,
    message: Vec<u8>,
    /// Position in the message of the next extension to read, once the position is known.
    extension: Option<usize>,
    /// True if an extension names a server and its list of names is incomplete.
    begins_name: bool,
    /// True if an extension names a server and its list of names is complete.
    has_name: bool,
}

impl HelloCandidate {
    fn new(start: u64) -> HelloCandidate {
        HelloCandidate {
            start,
            header: Vec::new(),
            rest: 0,
            first_length: None,
            message: Vec::new(),
            extension: None,
            begins_name: false,
            has_name: false,
        }
    }

    /// Reads the next bytes, and returns whether the candidate stays open.
    fn read_more(&mut self, mut bytes: &[u8], findings: &mut Vec<StreamFinding>) -> bool {
        while !bytes.is_empty() {
            if self.rest == 0 {
                let (part, others) =
                    bytes.split_at(bytes.len().min(RECORD_HEADER_BYTES - self.header.len()));
                self.header.extend_from_slice(part);
                bytes = others;
                if !self.is_record() {
                    return false;
                }
                continue;
            }
            let (part, others) = bytes.split_at(bytes.len().min(self.rest));
            self.rest -= part.len();
            bytes = others;
            if self.header[0] == HANDSHAKE {
                self.message.extend_from_slice(part);
                let may_be_named = self.read_lists();
                if let Some(hello) = self.complete_hello() {
                    findings.extend(hello.map(StreamFinding::Hello));
                    return false;
                }
                if !may_be_named && !self.is_one_record() {
                    return false;
                }
            }
            if self.rest == 0 {
                self.header.clear();
            }
        }
        true
    }

    /// Returns whether the header, which may be incomplete, may belong to a record. A complete
    /// header begins the record.
    fn is_record(&mut self) -> bool {
        // Servers ignore the version of every record but the first.
        if self.first_length.is_none() && !may_begin_hello(&self.header) {
            return false;
        }
        if let [_, _, _, high, low] = self.header[..] {
            self.rest = usize::from(u16::from_be_bytes([high, low]));
            if self.rest == 0 {
                self.header.clear();
            }
            self.first_length.get_or_insert(self.rest);
            return self.rest <= MAX_RECORD_BYTES + MAX_RECORD_EXPANSION_BYTES;
        }
        true
    }

    /// Returns `None` until the hello is complete. Returns `Some(None)` for a complete hello that
    /// names no server and is there by chance.
    fn complete_hello(&self) -> Option<Option<ClientHello>> {
        let total = self.message_bytes().filter(|total| *total <= self.message.len())?;
        if !self.is_likely() {
            return Some(None);
        }
        let is_alone = self.message.len() == total && self.rest == 0;
        let fault = "another message follows in the last TLS record of the client's hello";
        let hello = if is_alone {
            hello::read_hello(&self.message)
        } else {
            ClientHello::Unreadable(fault.to_owned())
        };
        Some(Some(hello))
    }

    /// Returns the length of the whole message, as its header states it.
    fn message_bytes(&self) -> Option<usize> {
        hello::message_length(&self.message).map(|length| MESSAGE_HEADER_BYTES + length)
    }

    /// Returns whether the candidate is unlikely to occur by chance: less than once in 10^13 bytes.
    fn is_likely(&self) -> bool {
        self.is_one_record() || self.begins_name || self.has_name
    }

    /// Returns whether the message has the length of the first record.
    fn is_one_record(&self) -> bool {
        self.message_bytes().is_some_and(|total| self.first_length == Some(total))
    }

    /// Reads the lists of the hello, as far as they have arrived, up to the extension that names a
    /// server. Returns whether there may be such an extension.
    fn read_lists(&mut self) -> bool {
        if self.message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return false;
        }
        let Some(total) = self.message_bytes() else { return true };
        if total > MAX_MESSAGE_BYTES {
            return false;
        }
        if self.extension.is_none() {
            let mut at = FIXED_FIELDS_BYTES;
            // Session, ciphers and compression, each preceded by its length.
            for width in [1, 2, 1] {
                let Some(length) = self.read_number(at, width) else { return at + width <= total };
                at += width + length;
            }
            self.extension = Some(at + 2);
        }
        // Read on without the length of the extension list, because some servers ignore that length
        // and stop at an extension that is cut off.
        while let Some(at) = self.extension.filter(|_| !self.has_name) {
            let (Some(kind), Some(length)) = (self.read_number(at, 2), self.read_number(at + 2, 2))
            else {
                return at + 4 <= total;
            };
            let end = at + 4 + length;
            if end > total {
                return false;
            }
            if kind == usize::from(SERVER_NAME_EXTENSION) && length > SERVER_NAME_HEADER_BYTES {
                let name_at = at + 4 + SERVER_NAME_HEADER_BYTES;
                let Some(name_length) = self.read_number(name_at - 2, 2) else { return true };
                let list_end = at + 6 + self.read_number(at + 4, 2).unwrap_or_default();
                let fits = name_at + name_length <= list_end && list_end <= end;
                let names = self.message.get(name_at..list_end);
                self.begins_name = fits && names.is_none();
                self.has_name = fits && names.is_some_and(may_be_name);
                if self.begins_name {
                    return true;
                }
            }
            self.extension = Some(end);
        }
        true
    }

    /// Returns the number of `width` bytes at a position of the message, or `None` if the bytes
    /// have not arrived.
    fn read_number(&self, at: usize, width: usize) -> Option<usize> {
        let bytes = self.message.get(at..at + width)?;
        Some(bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }
}

#[cfg(test)]
mod tests;
