//! The interpreter that waits in a client's sandbox for the code of its next call.
//!
//! It is of the sandbox: code finds there the files and servers that it would find without it. One is started when code
//! has ended, so that a client that runs none has none; and it is given no code when anything else has run or a file was
//! written since, for what that installed it would not find.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ringfence::{CodeError, Spare, chain};

use super::client::Tenancy;

/// The interpreter that waits, if one does.
#[derive(Debug, Default)]
pub(super) struct Spares {
    waiting: Mutex<Option<Waiting>>,
    /// How many other things the client has had run.
    disturbances: AtomicU64,
}

#[derive(Debug)]
struct Waiting {
    language: String,
    /// How many other things had been run when it was started.
    disturbances: u64,
    spare: Spare,
}

/// Something that may install what an interpreter that waits would not find. What was started before it ends is of no use.
#[derive(Debug)]
pub(super) struct Disturbance<'s>(&'s Spares);

impl Drop for Disturbance<'_> {
    fn drop(&mut self) {
        self.0.disturb();
    }
}

impl Spares {
    /// Something is run or written in the sandbox, until that is dropped.
    pub(super) fn disturbed(&self) -> Disturbance<'_> {
        self.disturb();
        Disturbance(self)
    }

    /// Something else is run in the sandbox.
    pub(super) fn disturb(&self) {
        self.disturbances.fetch_add(1, Ordering::Relaxed);
        drop(self.replace(None));
    }

    /// The one that waits, if it can run code of that language now.
    fn take(&self, language: &str) -> Option<Spare> {
        let waiting = self.replace(None)?;
        let is_good = waiting.language == language && waiting.disturbances == self.disturbances();
        is_good.then_some(waiting.spare)
    }

    fn disturbances(&self) -> u64 {
        self.disturbances.load(Ordering::Relaxed)
    }

    fn replace(&self, waiting: Option<Waiting>) -> Option<Waiting> {
        std::mem::replace(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner), waiting)
    }
}

impl Tenancy {
    /// The interpreter that waits for code of a language, if one does and nothing runs that could make it another.
    pub(super) fn spare(&self, language: &str) -> Option<Spare> {
        self.spares.take(language).filter(|_| self.processes.running().is_empty())
    }

    /// Has an interpreter wait for the next code of a language.
    pub(super) fn keep_spare(self: &Arc<Tenancy>, language: String) {
        if !self.keeps_spares || !self.processes.running().is_empty() {
            return;
        }
        let (tenancy, sandbox) = (Arc::downgrade(self), self.sandbox.clone());
        let disturbances = self.spares.disturbances();
        tokio::spawn(async move {
            let spare = match sandbox.spare_interpreter(&language).await {
                Ok(spare) => spare,
                Err(CodeError::NotPython { .. }) => return,
                Err(error) => {
                    tracing::info!(error = chain(&error), "no interpreter waits for code");
                    return;
                }
            };
            for module in spare.not_imported() {
                tracing::warn!(module, "a module could not be imported beforehand");
            }
            if let Some(tenancy) = tenancy.upgrade()
                && tenancy.spares.disturbances() == disturbances
            {
                drop(tenancy.spares.replace(Some(Waiting { language, disturbances, spare })));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_started_while_something_runs_is_of_no_use() {
        let spares = Spares::default();
        let before = spares.disturbances();
        let disturbance = spares.disturbed();
        let meanwhile = spares.disturbances();
        drop(disturbance);
        assert!(before != meanwhile && meanwhile != spares.disturbances());
    }
}
