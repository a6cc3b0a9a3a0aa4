//! Stand-ins for the parts that serve a gate, in a build without the egress proxy.
//!
//! The types have no values, so the compiler knows that no run of such a build has a gate.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use ringfence_core::Plan;
use ringfence_core::result::Denial;

use crate::RunError;
use crate::engine::Core;
use crate::run::plan::PlannedRun;

/// Credentials whose secrets were read.
#[derive(Debug)]
pub(crate) enum AbsentCredentials {}

impl AbsentCredentials {
    pub(crate) fn bundle(&self) -> Vec<u8> {
        match *self {}
    }

    pub(crate) fn files(&self) -> [(&'static str, Vec<u8>); 2] {
        match *self {}
    }

    pub(crate) fn variables(&self) -> Vec<(String, String)> {
        match *self {}
    }
}

/// Holder of the gate of one sandbox.
#[derive(Debug)]
pub(crate) enum AbsentGateHolder {}

impl AbsentGateHolder {
    pub(crate) fn close(self) -> Vec<Denial> {
        match self {}
    }
}

/// Source of a gate.
#[derive(Debug)]
pub(crate) enum AbsentGateSource {
    /// Socket from which the gate is received.
    Sent(OwnedFd),
}

impl Core {
    pub(crate) fn load_credentials(
        &self,
        _plan: &Plan,
    ) -> Result<Option<AbsentCredentials>, RunError> {
        Ok(None)
    }

    pub(crate) fn hold_gate(
        &self,
        _context: &PlannedRun,
        awaited: AbsentGateSource,
    ) -> Result<AbsentGateHolder, RunError> {
        let AbsentGateSource::Sent(_) = awaited;
        Err(RunError::Setup {
            step: "hold the gate of the sandbox's network".to_owned(),
            source: std::io::Error::other("this program was built without the egress proxy"),
        })
    }
}

/// Returns the path of the log in the directory of a sandbox.
pub(crate) fn log_in(directory: &Path) -> PathBuf {
    directory.join("egress.jsonl")
}

/// Returns no variables, because no program is led to a proxy.
pub(crate) fn variables() -> Vec<(&'static str, String)> {
    Vec::new()
}

/// Returns no denials. A sandbox with a log belongs to a process with a proxy.
pub(crate) fn denials_since(_log: &Path, _start: u64, _sandbox: &str) -> Vec<Denial> {
    Vec::new()
}

/// Returns the number of the last event in a log, which this build cannot read.
pub(crate) fn last_number(_log: &Path) -> u64 {
    0
}

/// Leaves the log of a sandbox that has ended where it is.
pub(crate) fn hand_over(_directory: &Path, _state: &Path) {}
