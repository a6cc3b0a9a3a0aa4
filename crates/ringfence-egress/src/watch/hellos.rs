//! Hellos of TLS at any byte of a client's stream.
//!
//! Each byte at which a record with a hello may begin opens a candidate, so that no bytes in front
//! of a hello hide it. A candidate follows the records as the most lenient server would: in any
//! version, in any number of pieces, with other records between them. No server acts on a hello
//! before its last byte, so bytes pass while a candidate is open, and the piece that completes a
//! hello does not.
//!
//! A candidate that is hardly there by chance is held back from its first byte on.

use memchr::memmem::Finder;

use super::Finding;
use crate::hello::{
    self, CLIENT_HELLO, HANDSHAKE, Hello, LONGEST_RECORD, MAJOR_VERSION, MESSAGE_HEADER, RECORD_HEADER,
};

/// Bytes that encryption adds to a record at most, RFC 5246, 6.2.3.
const LONGEST_RECORD_EXPANSION: usize = 2048;
/// Longest hello that some server reads: OpenSSL's limit.
const LONGEST_MESSAGE: usize = 131_396;
/// Version and random, which precede the lists of a hello.
const FIXED_FIELDS: usize = MESSAGE_HEADER + 2 + 32;
/// Longest list of a hello that names its session.
const LONGEST_SESSION: usize = 32;
/// Candidates that may be open at once, and bytes that they may keep. By chance there is hardly
/// one.
const MOST_CANDIDATES: usize = 32;
const MOST_KEPT: usize = 256 * 1024;

/// Looks for hellos in a client's stream.
#[derive(Debug)]
pub(crate) struct HelloScanner {
    finder: Finder<'static>,
    /// Bytes of the stream so far.
    offset: u64,
    candidates: Vec<Candidate>,
}

impl Default for HelloScanner {
    fn default() -> HelloScanner {
        let finder = Finder::new(&[HANDSHAKE, MAJOR_VERSION]);
        HelloScanner { finder, offset: 0, candidates: Vec::new() }
    }
}

impl HelloScanner {
    /// Reads on, and adds what is found to `findings`.
    pub(crate) fn read(&mut self, bytes: &[u8], findings: &mut Vec<Finding>) {
        self.candidates.retain_mut(|candidate| candidate.goes_on(bytes, findings));
        let last = bytes.len().wrapping_sub(1);
        let ends_open = bytes.last() == Some(&HANDSHAKE);
        for at in self.finder.find_iter(bytes).chain(ends_open.then_some(last)) {
            let mut candidate = Candidate::new(self.offset + at as u64);
            if candidate.goes_on(&bytes[at..], findings) {
                self.candidates.push(candidate);
            }
            let kept: usize = self.candidates.iter().map(|candidate| candidate.message.len()).sum();
            if self.candidates.len() > MOST_CANDIDATES || kept > MOST_KEPT {
                findings.push(Finding::TooManyHellos);
                break;
            }
        }
        self.offset += bytes.len() as u64;
    }

    /// Position in the stream from which on bytes are held back, if some are.
    pub(crate) fn held_from(&self) -> Option<u64> {
        let held = self.candidates.iter().filter(|candidate| candidate.is_likely());
        held.map(|candidate| candidate.start).min()
    }
}

/// Hello that may begin at some byte of a stream.
#[derive(Debug)]
struct Candidate {
    start: u64,
    /// Header of the current record, as far as it has come.
    header: Vec<u8>,
    /// Bytes of the current record that are still to come.
    rest: usize,
    /// Length of the first record.
    first_length: Option<usize>,
    message: Vec<u8>,
}

impl Candidate {
    fn new(start: u64) -> Candidate {
        Candidate { start, header: Vec::new(), rest: 0, first_length: None, message: Vec::new() }
    }

    /// Reads on, and tells whether a hello is still to come.
    fn goes_on(&mut self, mut bytes: &[u8], findings: &mut Vec<Finding>) -> bool {
        while !bytes.is_empty() {
            if self.rest == 0 {
                let (part, others) = bytes.split_at(bytes.len().min(RECORD_HEADER - self.header.len()));
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
                if let Some(hello) = self.whole_hello() {
                    findings.extend(hello.map(Finding::Hello));
                    return false;
                }
                if self.lists() == Lists::Impossible {
                    return false;
                }
            }
            if self.rest == 0 {
                self.header.clear();
            }
        }
        true
    }

    /// Tells whether the header, as far as it has come, is that of a record; a whole one is begun.
    fn is_record(&mut self) -> bool {
        let is_first = self.first_length.is_none();
        if is_first && self.header[0] != HANDSHAKE || self.header.get(1).is_some_and(|byte| *byte != MAJOR_VERSION) {
            return false;
        }
        if let [_, _, _, high, low] = self.header[..] {
            self.rest = usize::from(u16::from_be_bytes([high, low]));
            if self.rest == 0 {
                self.header.clear();
            }
            let length = *self.first_length.get_or_insert(self.rest);
            return self.rest <= LONGEST_RECORD + LONGEST_RECORD_EXPANSION && length > 0;
        }
        true
    }

    /// The hello, once all of it is there; nothing in place of it if its lists do not fit.
    fn whole_hello(&self) -> Option<Option<Hello>> {
        let total = self.total().filter(|total| *total <= self.message.len())?;
        // A hello in small records has bytes in it that begin another message by chance.
        if !self.is_likely() {
            return Some(None);
        }
        let is_alone = self.message.len() == total && self.rest == 0;
        let fault = "another message follows in the last TLS record of the client's hello";
        let hello = if is_alone { hello::read_hello(&self.message) } else { Hello::Unreadable(fault.to_owned()) };
        Some(Some(hello))
    }

    /// Length of the whole message, by its header.
    fn total(&self) -> Option<usize> {
        hello::message_length(&self.message).map(|length| MESSAGE_HEADER + length)
    }

    /// Tells whether the candidate is there by chance in less than one of a thousand million
    /// million bytes.
    fn is_likely(&self) -> bool {
        let is_one_record = self.total().is_some_and(|total| self.first_length == Some(total));
        is_one_record || self.lists() == Lists::Fit
    }

    /// Fit of the lists into the message, as far as they have come.
    fn lists(&self) -> Lists {
        let message = &self.message[..];
        if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Lists::Impossible;
        }
        let Some(total) = self.total() else { return Lists::Open };
        if total > LONGEST_MESSAGE {
            return Lists::Impossible;
        }
        if self.first_length == Some(total) {
            return Lists::Open; // the length of the record says more
        }
        let number = |at: usize| Some(usize::from(u16::from_be_bytes([*message.get(at)?, *message.get(at + 1)?])));
        let Some(session) = message.get(FIXED_FIELDS).map(|length| usize::from(*length)) else { return Lists::Open };
        let at = FIXED_FIELDS + 1 + session;
        if session > LONGEST_SESSION || at > total {
            return Lists::Impossible;
        }
        let Some(ciphers) = number(at) else { return Lists::Open };
        let at = at + 2 + ciphers;
        if ciphers % 2 != 0 || at > total {
            return Lists::Impossible;
        }
        let Some(compressions) = message.get(at).map(|length| usize::from(*length)) else { return Lists::Open };
        let at = at + 1 + compressions;
        match number(at) {
            Some(extensions) if at + 2 + extensions == total => Lists::Fit,
            None if at + 2 <= total || at == total => Lists::Open,
            _ => Lists::Impossible,
        }
    }
}

/// Fit of a hello's lists into the length of the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lists {
    Open,
    Fit,
    Impossible,
}

#[cfg(test)]
mod tests;
