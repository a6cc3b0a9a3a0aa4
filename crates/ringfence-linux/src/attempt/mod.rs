//! What hostile code would try, as functions: each is run inside a sandbox and says how far it got.
//!
//! An attempt succeeds where nothing stands in its way; that it does so without a sandbox is what makes its denial
//! inside one a proof. Each is small, undoes what it did, and does no harm where it succeeds.
//!
//! An attempt's error is a denial, unless the attempt names the errors that a sandbox gives: then any other
//! error comes from the kernel code behind the sandbox, which was *reached*.

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

pub use abuse::Appetite;
pub use context::{Context, Directory, Neighbour, Network, Paths, SECRET};

/// One thing that hostile code would try.
#[derive(Debug, Clone, Copy)]
pub struct Attempt {
    /// Names it in commands, certificates and documents.
    pub name: &'static str,
    /// The promise that it would break.
    pub clause: Clause,
    /// What is tried, as a sentence.
    pub what: &'static str,
    /// The errors that only a sandbox gives; none when every error is a denial.
    refusals: &'static [i32],
    run: fn(&Context) -> io::Result<String>,
}

/// How far an attempt got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It did what it tried.
    Succeeded,
    /// Kernel code that a sandbox closes was reached, and failed it for reasons of its own.
    Reached,
    /// It was kept from it.
    Denied,
}

/// What became of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// How far it got.
    pub outcome: Outcome,
    /// The error number, when it failed with one.
    pub errno: Option<i32>,
    /// What was seen, in words.
    pub observed: String,
}

impl Attempt {
    /// Tries it, here and now.
    pub fn run(&self, context: &Context) -> Observation {
        match (self.run)(context) {
            Ok(observed) => Observation { outcome: Outcome::Succeeded, errno: None, observed },
            Err(error) => {
                let errno = error.raw_os_error();
                let is_refusal = self.refusals.is_empty() || errno.is_none_or(|errno| self.refusals.contains(&errno));
                let outcome = if is_refusal { Outcome::Denied } else { Outcome::Reached };
                Observation { outcome, errno, observed: error.to_string() }
            }
        }
    }
}

/// Every attempt, family by family.
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

/// The attempt of that name.
pub fn find(name: &str) -> Option<&'static Attempt> {
    all().find(|attempt| attempt.name == name)
}

/// An attempt that any error denies.
const fn denied(
    name: &'static str,
    clause: Clause,
    what: &'static str,
    run: fn(&Context) -> io::Result<String>,
) -> Attempt {
    Attempt { name, clause, what, refusals: &[], run }
}

/// An attempt that only these errors deny.
const fn refused(
    name: &'static str,
    clause: Clause,
    what: &'static str,
    refusals: &'static [i32],
    run: fn(&Context) -> io::Result<String>,
) -> Attempt {
    Attempt { name, clause, what, refusals, run }
}

/// What an attempt says that cannot be tried on this host at all.
fn impossible(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, why.to_owned())
}

/// What an attempt says that nothing refused, and that still did not get what it wanted.
fn empty_handed(why: impl Into<String>) -> io::Error {
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
    fn only_the_errors_of_a_sandbox_are_denials_where_they_are_named() {
        let context = Context::default();
        let with = |refusals, run| Attempt { name: "", clause: Clause::Kernel, what: "", refusals, run }.run(&context);
        let faulty = |_: &Context| Err(io::Error::from_raw_os_error(libc::EFAULT));
        assert_eq!(with(&[libc::EPERM], faulty).outcome, Outcome::Reached);
        assert_eq!(with(&[libc::EPERM, libc::EFAULT], faulty).outcome, Outcome::Denied);
        assert_eq!(with(&[], faulty).outcome, Outcome::Denied);
        assert_eq!(with(&[libc::EPERM], |_| Err(impossible("no such thing"))).outcome, Outcome::Denied);
        assert_eq!(with(&[libc::EPERM], |_| Ok("done".to_owned())).outcome, Outcome::Succeeded);
    }
}
