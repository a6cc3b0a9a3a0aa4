//! Watch on what a client says in a tunnel of another protocol than TLS and HTTP.
//!
//! Such a protocol may become TLS (STARTTLS), at a byte that only its server knows.

use crate::hello::Hello;

mod hellos;

use hellos::HelloScanner;

/// Event in a client's stream that is to be judged before the stream goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Finding {
    /// A hello of TLS ends here.
    Hello(Hello),
    /// More hellos than can be followed have begun.
    TooManyHellos,
}

/// Watch on one client's stream.
#[derive(Debug, Default)]
pub(crate) struct StreamWatch {
    hellos: HelloScanner,
    /// Bytes that were read and not passed on.
    withheld: Vec<u8>,
    /// Bytes of the stream before those.
    passed: u64,
    findings: Vec<Finding>,
}

/// Bytes that may be passed on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// All bytes that were read, and no others.
    All,
    /// These bytes, which were read now or before.
    Part(Vec<u8>),
    /// None, until the findings are judged.
    None,
}

impl StreamWatch {
    /// Reads on.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Admission {
        self.hellos.read(bytes, &mut self.findings);
        let holds = !self.findings.is_empty() || self.hellos.held_from().is_some();
        if self.withheld.is_empty() && !holds {
            self.passed += bytes.len() as u64;
            return Admission::All;
        }
        self.withheld.extend_from_slice(bytes);
        if self.findings.is_empty() { Admission::Part(self.release()) } else { Admission::None }
    }

    /// Takes the findings. If none of them ends the stream, [`StreamWatch::release`] goes on with it.
    pub(crate) fn take_findings(&mut self) -> Vec<Finding> {
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

    /// Takes all bytes at the end of the stream: half a hello is none.
    pub(crate) fn take_rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.withheld)
    }
}
