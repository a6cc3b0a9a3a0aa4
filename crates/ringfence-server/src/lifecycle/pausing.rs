//! Changes of the expiry of sandboxes: other ends, pause and resume.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use ringfence::Sandbox;
use tokio::sync::watch;

use crate::api::control::lifetime;
use crate::error::ServerError;
use crate::lifecycle::expiry::{Expiry, ExpiryAction, SandboxState, after, left};
use crate::lifecycle::registry::{ManagedSandbox, Registry, store_error};
use crate::run_to_completion;
use crate::storage::store::SandboxRecord;

/// Reason why a sandbox was not resumed.
#[derive(Debug)]
pub(crate) enum ResumeError {
    /// The sandbox has run for its maximum lifetime.
    Spent,
    /// The resume failed on the server.
    Failed(ServerError),
}

impl<E: Into<ServerError>> From<E> for ResumeError {
    fn from(error: E) -> ResumeError {
        ResumeError::Failed(error.into())
    }
}

/// Result of a change of the end of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RenewOutcome {
    Done,
    /// The sandbox is paused, so nothing was changed.
    Paused,
    /// The sandbox has ended or was about to end.
    Gone,
}

impl Registry {
    /// Sets the end of a running sandbox to `ends`, even if the client disconnects.
    pub(crate) async fn renew(
        self: &Arc<Registry>,
        managed: &Arc<ManagedSandbox>,
        ends: Timestamp,
    ) -> Result<RenewOutcome, ServerError> {
        let (registry, managed) = (Arc::clone(self), Arc::clone(managed));
        run_to_completion(async move { registry.renew_in_turn(&managed, ends).await }).await
    }

    async fn renew_in_turn(
        &self,
        managed: &Arc<ManagedSandbox>,
        ends: Timestamp,
    ) -> Result<RenewOutcome, ServerError> {
        let _turn = managed.changing.lock().await;
        let expiry = managed.expiry();
        if !self.has(managed) {
            return Ok(RenewOutcome::Gone);
        }
        if expiry.state() == SandboxState::Paused {
            return Ok(RenewOutcome::Paused);
        }
        self.change(managed, Expiry { ends, ..expiry }).await?;
        // The monitor may have been about to end the sandbox.
        Ok(if managed.sandbox.is_up() { RenewOutcome::Done } else { RenewOutcome::Gone })
    }

    /// Pauses a sandbox, even if the client disconnects. Returns `false` if the sandbox is already
    /// paused.
    pub(crate) async fn pause(
        self: &Arc<Registry>,
        managed: &Arc<ManagedSandbox>,
    ) -> Result<bool, ServerError> {
        let (registry, managed) = (Arc::clone(self), Arc::clone(managed));
        run_to_completion(async move { registry.pause_in_turn(&managed).await }).await
    }

    async fn pause_in_turn(&self, managed: &ManagedSandbox) -> Result<bool, ServerError> {
        let _turn = managed.changing.lock().await;
        if managed.expiry().state() == SandboxState::Paused {
            return Ok(false);
        }
        self.pause_running(managed).await?;
        Ok(true)
    }

    /// Pauses a running sandbox. The caller holds the lock `changing`.
    pub(crate) async fn pause_running(&self, managed: &ManagedSandbox) -> Result<(), ServerError> {
        let expiry = managed.expiry();
        let paused = expiry.paused_at(Timestamp::now());
        // A sandbox that pauses at its end is paused even if its new lifetime cannot be stored,
        // because nothing else preserves its state. The next server sees that the sandbox is
        // paused, and the lease leaves a day to free disk space.
        let must_pause = managed.record.at_end == ExpiryAction::Pause;
        // Renew before the pause, so that the lease does not end during the pause.
        if let Err(error) = managed.sandbox.renew(paused.lease(managed.record.at_end))
            && !must_pause
        {
            return Err(error.into());
        }
        if let Err(error) = managed.sandbox.pause().await {
            // The first error says more.
            let _ = managed.sandbox.renew(expiry.lease(managed.record.at_end));
            return Err(error.into());
        }
        match self.change(managed, paused).await {
            Ok(()) => {}
            Err(failure) if must_pause => {
                let id = &managed.record.id;
                tracing::error!(
                    id,
                    error = failure.message(),
                    "cannot store that a sandbox is paused"
                );
                managed.expiry.send_replace(paused);
            }
            Err(failure) => {
                let _ = managed.sandbox.resume().await; // the first error says more
                return Err(failure);
            }
        }
        tracing::info!(id = managed.record.id, "paused a sandbox");
        Ok(())
    }

    /// Runs `done` while the processes of a sandbox are paused. A running sandbox continues
    /// afterwards, and its time passes meanwhile.
    pub(crate) async fn while_paused<T>(
        &self,
        managed: &ManagedSandbox,
        done: impl Future<Output = T>,
    ) -> Result<T, ServerError> {
        let _turn = managed.changing.lock().await;
        let expiry = managed.expiry();
        if expiry.state() == SandboxState::Paused {
            return Ok(done.await);
        }
        managed.sandbox.pause().await?;
        let done = done.await;
        if let Err(error) = managed.sandbox.resume().await {
            // The sandbox stays paused, so record that: the client sees the state and can try to
            // resume. The first error says more than an error of this call.
            let _ = self.change(managed, expiry.paused_at(Timestamp::now())).await;
            return Err(error.into());
        }
        Ok(done)
    }

    /// Resumes a paused sandbox for `lifetime`, limited by its maximum running time `longest`.
    /// Returns `false` and changes nothing if the sandbox is not paused.
    pub(crate) async fn resume(
        self: &Arc<Registry>,
        managed: &Arc<ManagedSandbox>,
        lifetime: Duration,
        longest: Duration,
    ) -> Result<bool, ResumeError> {
        let (registry, managed) = (Arc::clone(self), Arc::clone(managed));
        run_to_completion(async move { registry.resume_in_turn(&managed, lifetime, longest).await })
            .await
    }

    async fn resume_in_turn(
        &self,
        managed: &ManagedSandbox,
        lifetime: Duration,
        longest: Duration,
    ) -> Result<bool, ResumeError> {
        let _turn = managed.changing.lock().await;
        let (expiry, now) = (managed.expiry(), Timestamp::now());
        if expiry.state() == SandboxState::Running {
            return Ok(false);
        }
        let resumed = expiry.resumed_at(now);
        let ends = after(now, lifetime).min(resumed.latest(managed.record.started, longest));
        if ends <= now {
            return Err(ResumeError::Spent);
        }
        // Set the new end before the resume, so that the sandbox does not run for as long as it may
        // stay paused.
        self.change(managed, Expiry { ends, ..resumed }).await?;
        if let Err(error) = managed.sandbox.resume().await {
            let _ = self.change(managed, expiry).await; // the first error says more
            return Err(error.into());
        }
        tracing::info!(id = managed.record.id, "resumed a sandbox");
        managed.restore_contexts();
        Ok(true)
    }

    /// Stores a new lifetime in three places: the lease of the monitor, the database for the next
    /// server, and `expiry` of this server.
    pub(crate) async fn change(
        &self,
        managed: &ManagedSandbox,
        expiry: Expiry,
    ) -> Result<(), ServerError> {
        managed.sandbox.renew(expiry.lease(managed.record.at_end))?;
        if let Err(error) =
            self.store().put(&SandboxRecord { expiry, ..managed.record.clone() }).await
        {
            // The first error says more.
            let _ = managed.sandbox.renew(managed.expiry().lease(managed.record.at_end));
            return Err(store_error(error));
        }
        managed.expiry.send_replace(expiry);
        Ok(())
    }
}

/// Corrects the stored lifetime of a sandbox that was found again. The sandbox itself knows whether
/// it is paused.
pub(crate) fn as_found(expiry: Expiry, sandbox: &Sandbox) -> Expiry {
    match (expiry.state(), sandbox.is_paused()) {
        (SandboxState::Running, true) => expiry.paused_at(Timestamp::now()),
        (SandboxState::Paused, false) => Expiry {
            ends: after(Timestamp::now(), lifetime(None)),
            ..expiry.resumed_at(Timestamp::now())
        },
        _ => expiry,
    }
}

/// Waits until the time of a sandbox is over.
pub(crate) async fn wait_for_expiry(expiry: &mut watch::Receiver<Expiry>) {
    loop {
        let ends = expiry.borrow_and_update().ends;
        tokio::select! {
            () = tokio::time::sleep(left(ends, Timestamp::now())) => return,
            _ = expiry.changed() => {} // the sender lives as long as the sandbox
        }
    }
}
