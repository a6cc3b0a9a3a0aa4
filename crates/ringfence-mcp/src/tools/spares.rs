//! Spare interpreter that waits in the sandbox of a client for the code of the next
//! call.
//!
//! The interpreter runs in the sandbox itself, so code finds the same files and servers as without
//! a spare. A spare is started after code has run, so that a client that runs no code has no spare.
//! A spare gets no code if anything else has run or a file was written since its start, because it
//! would not find what was installed since.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ringfence::{CodeError, SpareInterpreter, chain};

use crate::client::ClientSandbox;

/// Holder of the spare interpreter, if one waits.
#[derive(Debug, Default)]
pub(crate) struct SpareHolder {
    waiting: Mutex<Option<WaitingSpare>>,
    /// Number of disturbances so far: other programs that ran and files that were written.
    disturbances: AtomicU64,
}

#[derive(Debug)]
struct WaitingSpare {
    language: String,
    /// Number of disturbances when the spare was started.
    disturbances: u64,
    spare: SpareInterpreter,
}

/// Guard for an activity that may install files that a waiting interpreter would not find. A spare
/// that was started before the guard is dropped is not used.
#[derive(Debug)]
pub(crate) struct Disturbance<'s>(&'s SpareHolder);

impl Drop for Disturbance<'_> {
    fn drop(&mut self) {
        self.0.disturb();
    }
}

impl SpareHolder {
    /// Marks the begin of an activity in the sandbox, which lasts until the returned guard is
    /// dropped.
    pub(crate) fn disturbed(&self) -> Disturbance<'_> {
        self.disturb();
        Disturbance(self)
    }

    /// Counts a disturbance and drops the spare.
    pub(crate) fn disturb(&self) {
        self.disturbances.fetch_add(1, Ordering::Relaxed);
        drop(self.replace(None));
    }

    /// Takes the spare out and returns it if it runs `language` and no disturbance came since its
    /// start.
    fn take(&self, language: &str) -> Option<SpareInterpreter> {
        let waiting = self.replace(None)?;
        let is_good = waiting.language == language && waiting.disturbances == self.disturbances();
        is_good.then_some(waiting.spare)
    }

    fn disturbances(&self) -> u64 {
        self.disturbances.load(Ordering::Relaxed)
    }

    fn replace(&self, waiting: Option<WaitingSpare>) -> Option<WaitingSpare> {
        std::mem::replace(
            &mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner),
            waiting,
        )
    }
}

impl ClientSandbox {
    /// Returns the spare for a language, unless a process of the client runs that could have
    /// changed the sandbox.
    pub(crate) fn spare(&self, language: &str) -> Option<SpareInterpreter> {
        self.spares.take(language).filter(|_| self.processes.running().is_empty())
    }

    /// Starts an interpreter that waits for the next code of a language.
    pub(crate) fn keep_spare(self: &Arc<ClientSandbox>, language: String) {
        if !self.keeps_spares || !self.processes.running().is_empty() {
            return;
        }
        let (client_sandbox, sandbox) = (Arc::downgrade(self), self.sandbox.clone());
        let disturbances = self.spares.disturbances();
        tokio::spawn(async move {
            let spare = match sandbox.spare_interpreter(&language).await {
                Ok(spare) => spare,
                Err(CodeError::NotPython { .. }) => return,
                Err(error) => {
                    tracing::info!(error = chain(&error), "cannot start a spare interpreter");
                    return;
                }
            };
            for module in spare.not_imported() {
                tracing::warn!(module, "a spare interpreter cannot import a module");
            }
            if let Some(client_sandbox) = client_sandbox.upgrade()
                && client_sandbox.spares.disturbances() == disturbances
            {
                drop(client_sandbox.spares.replace(Some(WaitingSpare {
                    language,
                    disturbances,
                    spare,
                })));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interpreter_started_during_a_disturbance_is_not_used() {
        let spares = SpareHolder::default();
        let before = spares.disturbances();
        let disturbance = spares.disturbed();
        let meanwhile = spares.disturbances();
        drop(disturbance);
        assert!(before != meanwhile && meanwhile != spares.disturbances());
    }
}
