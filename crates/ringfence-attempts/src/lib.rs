//! Attempts that hostile code would make, as functions. Each runs inside a sandbox and reports how
//! far it got. This crate must never take part in building a sandbox; only proofs use it. The
//! system calls that need unsafe code are in `ringfence_linux::sys::attempt`.
//!
//! An attempt succeeds if nothing prevents it. Because it succeeds without a sandbox, its denial
//! inside a sandbox is a proof. Each attempt is small, undoes what it did, and does no harm if it
//! succeeds.
//!
//! An error of an attempt is a denial, unless the attempt lists the errors that a sandbox gives.
//! Then any other error comes from the kernel code behind the sandbox, which was *reached*.
//!
//! Reading order: [`AttemptContext`] describes the host to an attempt, [`all`] lists the families,
//! and each family has a module.

mod abuse;
mod context;
mod files;
mod guarded;
mod ipc;
mod kernel;
mod network;
mod privilege;
mod processes;
mod secrets;

use std::io;

use ringfence_core::Clause;
use serde::{Deserialize, Serialize};

pub use abuse::AttemptAmounts;
pub use context::{
    AttemptContext, DirectoryIdentity, HostListeners, HostPaths, NeighbourProcess, SECRET,
};

/// One action that hostile code would try.
#[derive(Debug, Clone, Copy)]
pub struct Attempt {
    /// Name in commands, certificates and documents.
    pub name: &'static str,
    /// Promise that the attempt would break.
    pub clause: Clause,
    /// Description of the attempted action, without a full stop.
    pub what: &'static str,
    /// Errors that only a sandbox gives; empty if every error is a denial.
    refusals: &'static [i32],
    run: fn(&AttemptContext) -> io::Result<String>,
}

/// The result of an attempt: how far it got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttemptOutcome {
    /// The action was carried out.
    Succeeded,
    /// The attempt reached kernel code that a sandbox closes, and failed there for another reason.
    Reached,
    /// The sandbox prevented the action.
    Denied,
}

/// The observed result of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// Stage that the attempt reached.
    pub outcome: AttemptOutcome,
    /// Error number, if the attempt failed with one.
    pub errno: Option<i32>,
    /// Description of the observation, in words.
    pub observed: String,
}

impl Attempt {
    /// Runs the attempt in this process.
    pub fn run(&self, context: &AttemptContext) -> Observation {
        match (self.run)(context) {
            Ok(observed) => {
                Observation { outcome: AttemptOutcome::Succeeded, errno: None, observed }
            }
            Err(error) => {
                let errno = error.raw_os_error();
                let is_refusal = self.refusals.is_empty()
                    || errno.is_none_or(|errno| self.refusals.contains(&errno));
                let outcome =
                    if is_refusal { AttemptOutcome::Denied } else { AttemptOutcome::Reached };
                Observation { outcome, errno, observed: error.to_string() }
            }
        }
    }
}

/// Returns every attempt, family by family.
pub fn all() -> impl Iterator<Item = &'static Attempt> {
    [
        files::READING,
        files::WRITING,
        guarded::HIDDEN,
        guarded::PROTECTED,
        network::ATTEMPTS,
        processes::ATTEMPTS,
        ipc::ATTEMPTS,
        privilege::ATTEMPTS,
        kernel::ATTEMPTS,
        secrets::TERMINAL,
        secrets::ENVIRONMENT,
        abuse::ATTEMPTS,
    ]
    .into_iter()
    .flatten()
}

/// Returns the attempt with the given name.
pub fn find(name: &str) -> Option<&'static Attempt> {
    all().find(|attempt| attempt.name == name)
}

/// Returns an attempt for which every error is a denial.
const fn denied(
    name: &'static str,
    clause: Clause,
    what: &'static str,
    run: fn(&AttemptContext) -> io::Result<String>,
) -> Attempt {
    Attempt { name, clause, what, refusals: &[], run }
}

/// Returns an attempt for which only the errors in `refusals` are denials.
const fn refused(
    name: &'static str,
    clause: Clause,
    what: &'static str,
    refusals: &'static [i32],
    run: fn(&AttemptContext) -> io::Result<String>,
) -> Attempt {
    Attempt { name, clause, what, refusals, run }
}

/// Returns the error of an attempt that is not possible on this host.
fn impossible(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, why.to_owned())
}

/// Returns the error of an attempt that no system call refused but that still did not get its
/// result.
fn no_result(why: impl Into<String>) -> io::Error {
    io::Error::other(why.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attempt_has_a_name_of_its_own_and_says_what_it_tries() {
        let mut names: Vec<&str> = all().map(|attempt| attempt.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(all().all(|attempt| attempt.what.len() > 10 && !attempt.what.ends_with('.')));
        assert!(all().all(|attempt| find(attempt.name).is_some()));
    }

    #[test]
    fn only_the_named_errors_of_an_attempt_are_denials() {
        let context = AttemptContext::default();
        let with = |refusals, run| {
            Attempt { name: "", clause: Clause::Kernel, what: "", refusals, run }.run(&context)
        };
        let faulty = |_: &AttemptContext| Err(io::Error::from_raw_os_error(libc::EFAULT));
        assert_eq!(with(&[libc::EPERM], faulty).outcome, AttemptOutcome::Reached);
        assert_eq!(with(&[libc::EPERM, libc::EFAULT], faulty).outcome, AttemptOutcome::Denied);
        assert_eq!(with(&[], faulty).outcome, AttemptOutcome::Denied);
        assert_eq!(
            with(&[libc::EPERM], |_| Err(impossible("no such thing"))).outcome,
            AttemptOutcome::Denied
        );
        assert_eq!(
            with(&[libc::EPERM], |_| Ok("done".to_owned())).outcome,
            AttemptOutcome::Succeeded
        );
    }
}
