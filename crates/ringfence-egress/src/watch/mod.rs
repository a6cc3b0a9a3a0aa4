//! Watch on the client's bytes in a tunnel whose protocol is neither TLS nor HTTP.
//!
//! Such a protocol may change to TLS (STARTTLS), at a byte that only its server knows. In addition,
//! the bytes of the opening, which have already passed, may begin a line that a server reads as a
//! request.

use crate::hello::ClientHello;
use crate::opening::LineRule;

mod hellos;
mod lines;

use hellos::HelloScanner;
use lines::LineScanner;

/// Event in a client's stream that must be judged before the stream continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StreamFinding {
    /// A TLS hello ends here.
    Hello(ClientHello),
    /// More hellos have begun than can be followed.
    TooManyHellos,
    /// A line ends here that a server may read as a request.
    Request,
}

/// Watch on the stream of one client.
#[derive(Debug)]
pub(crate) struct StreamWatch {
    hellos: HelloScanner,
    lines: LineScanner,
    /// Bytes that were read and not passed on.
    withheld: Vec<u8>,
    /// Number of bytes of the stream before `withheld`.
    passed: u64,
    findings: Vec<StreamFinding>,
}

/// Bytes that may be passed on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AdmittedBytes {
    /// Exactly the bytes that were read now.
    All,
    /// These bytes, which were read now or before.
    Part(Vec<u8>),
    /// No bytes, until the findings are judged.
    None,
}

impl StreamWatch {
    pub(crate) fn new(rule: LineRule) -> StreamWatch {
        StreamWatch {
            hellos: HelloScanner::default(),
            lines: LineScanner::new(rule),
            withheld: Vec::new(),
            passed: 0,
            findings: Vec::new(),
        }
    }

    /// Records that the server has spoken.
    pub(crate) fn note_server_spoke(&mut self) {
        self.lines.note_server_spoke();
    }

    /// Reads the next bytes of the stream, and returns the bytes that may be passed on.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> AdmittedBytes {
        if self.lines.scan_for_request(bytes) {
            self.findings.push(StreamFinding::Request);
        }
        self.hellos.read(bytes, &mut self.findings);
        let holds = !self.findings.is_empty() || self.hellos.held_from().is_some();
        if self.withheld.is_empty() && !holds {
            self.passed += bytes.len() as u64;
            return AdmittedBytes::All;
        }
        self.withheld.extend_from_slice(bytes);
        if self.findings.is_empty() {
            AdmittedBytes::Part(self.release())
        } else {
            AdmittedBytes::None
        }
    }

    /// Takes the findings. If none of the findings ends the stream, the caller continues with
    /// [`StreamWatch::release`].
    pub(crate) fn take_findings(&mut self) -> Vec<StreamFinding> {
        std::mem::take(&mut self.findings)
    }

    /// Takes the bytes that may be passed on now.
    pub(crate) fn release(&mut self) -> Vec<u8> {
        let end = self.passed + self.withheld.len() as u64;
        let free = self.hellos.held_from().unwrap_or(end).clamp(self.passed, end);
        let kept = self.withheld.split_off((free - self.passed) as usize);
        self.passed = free;
        std::mem::replace(&mut self.withheld, kept)
    }

    /// Reads the end of the stream, which ends a line as a line feed does for some servers. Returns
    /// whether the end may be passed on. If not, there is a finding.
    pub(crate) fn admits_end(&mut self) -> bool {
        if self.lines.scan_end_for_request() {
            self.findings.push(StreamFinding::Request);
        }
        self.findings.is_empty()
    }

    /// Returns whether a line that was not judged is open. A server that takes the end of the
    /// stream for the end of a line would read such a line.
    pub(crate) fn has_open_line(&self) -> bool {
        self.lines.has_open_line()
    }

    /// Takes all bytes at the end of the stream, because half a hello is not a hello.
    pub(crate) fn take_rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.withheld)
    }
}
