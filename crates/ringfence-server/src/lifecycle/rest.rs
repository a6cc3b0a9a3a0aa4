//! Changes of the lifetime of sandboxes: other ends, pause and resume.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use ringfence::Sandbox;
use tokio::sync::watch;

use crate::api::control::stay;
use crate::error::ServerError;
use crate::lifecycle::life::{AtEnd, Life, State, after, left};
use crate::lifecycle::registry::{Live, Registry, of_store};
use crate::storage::store::Record;
use crate::to_its_end;

/// Reason why a sandbox was not resumed.
#[derive(Debug)]
pub(crate) enum NotResumed {
    /// The sandbox has run for its maximum lifetime.
    Spent,
    /// The resume failed on the server.
    Failed(ServerError),
}

impl<E: Into<ServerError>> From<E> for NotResumed {
    fn from(error: E) -> NotResumed {
        NotResumed::Failed(error.into())
    }
}

/// Result of a change of the end of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Renewed {
    Done,
    /// The sandbox is paused, so nothing was changed.
    AtRest,
    /// The sandbox has ended or was about to end.
    Gone,
}

impl Registry {
    /// Sets the end of a running sandbox to `ends`, even if the client disconnects.
    pub(crate) async fn renew(
        self: &Arc<Registry>,
        live: &Arc<Live>,
        ends: Timestamp,
    ) -> Result<Renewed, ServerError> {
        let (registry, live) = (Arc::clone(self), Arc::clone(live));
        to_its_end(async move { registry.renew_in_turn(&live, ends).await }).await
    }

    async fn renew_in_turn(
        &self,
        live: &Arc<Live>,
        ends: Timestamp,
    ) -> Result<Renewed, ServerError> {
        let _turn = live.changing.lock().await;
        let life = live.life();
        if !self.has(live) {
            return Ok(Renewed::Gone);
        }
        if life.state() == State::Paused {
            return Ok(Renewed::AtRest);
        }
        self.change(live, Life { ends, ..life }).await?;
        // The monitor may have been about to end the sandbox.
        Ok(if live.sandbox.is_up() { Renewed::Done } else { Renewed::Gone })
    }

    /// Pauses a sandbox, even if the client disconnects. Returns `false` if the sandbox is already
    /// paused.
    pub(crate) async fn pause(self: &Arc<Registry>, live: &Arc<Live>) -> Result<bool, ServerError> {
        let (registry, live) = (Arc::clone(self), Arc::clone(live));
        to_its_end(async move { registry.pause_in_turn(&live).await }).await
    }

    async fn pause_in_turn(&self, live: &Live) -> Result<bool, ServerError> {
        let _turn = live.changing.lock().await;
        if live.life().state() == State::Paused {
            return Ok(false);
        }
        self.bring_to_rest(live).await?;
        Ok(true)
    }

    /// Pauses a running sandbox. The caller holds the lock `changing`.
    pub(crate) async fn bring_to_rest(&self, live: &Live) -> Result<(), ServerError> {
        let life = live.life();
        let resting = life.at_rest(Timestamp::now());
        // A sandbox that pauses at its end is paused even if its new lifetime cannot be stored,
        // because nothing else preserves its state. The next server sees that the sandbox is
        // paused, and the lease leaves a day to free disk space.
        let must_rest = live.record.at_end == AtEnd::Pause;
        // Renew before the pause, so that the lease does not end during the pause.
        if let Err(error) = live.sandbox.renew(resting.lease(live.record.at_end))
            && !must_rest
        {
            return Err(error.into());
        }
        if let Err(error) = live.sandbox.pause().await {
            let _ = live.sandbox.renew(life.lease(live.record.at_end)); // the first error says more
            return Err(error.into());
        }
        match self.change(live, resting).await {
            Ok(()) => {}
            Err(failure) if must_rest => {
                let id = &live.record.id;
                tracing::error!(
                    id,
                    error = failure.message(),
                    "that a sandbox is paused cannot be written down"
                );
                live.life.send_replace(resting);
            }
            Err(failure) => {
                let _ = live.sandbox.resume().await; // the first error says more
                return Err(failure);
            }
        }
        tracing::info!(id = live.record.id, "a sandbox is paused");
        Ok(())
    }

    /// Runs `done` while the processes of a sandbox are paused. A running sandbox continues
    /// afterwards, and its time passes meanwhile.
    pub(crate) async fn while_at_rest<T>(
        &self,
        live: &Live,
        done: impl Future<Output = T>,
    ) -> Result<T, ServerError> {
        let _turn = live.changing.lock().await;
        let life = live.life();
        if life.state() == State::Paused {
            return Ok(done.await);
        }
        live.sandbox.pause().await?;
        let done = done.await;
        if let Err(error) = live.sandbox.resume().await {
            // The sandbox stays paused, so record that: the client sees the state and can try to
            // resume. The first error says more than an error of this call.
            let _ = self.change(live, life.at_rest(Timestamp::now())).await;
            return Err(error.into());
        }
        Ok(done)
    }

    /// Resumes a paused sandbox for `stay`, limited by its maximum running time `longest`. Returns
    /// `false` and changes nothing if the sandbox is not paused.
    pub(crate) async fn resume(
        self: &Arc<Registry>,
        live: &Arc<Live>,
        stay: Duration,
        longest: Duration,
    ) -> Result<bool, NotResumed> {
        let (registry, live) = (Arc::clone(self), Arc::clone(live));
        to_its_end(async move { registry.resume_in_turn(&live, stay, longest).await }).await
    }

    async fn resume_in_turn(
        &self,
        live: &Live,
        stay: Duration,
        longest: Duration,
    ) -> Result<bool, NotResumed> {
        let _turn = live.changing.lock().await;
        let (life, now) = (live.life(), Timestamp::now());
        if life.state() == State::Running {
            return Ok(false);
        }
        let awake = life.awake(now);
        let ends = after(now, stay).min(awake.latest(live.record.started, longest));
        if ends <= now {
            return Err(NotResumed::Spent);
        }
        // Set the new end before the resume, so that the sandbox does not run for as long as it may
        // stay paused.
        self.change(live, Life { ends, ..awake }).await?;
        if let Err(error) = live.sandbox.resume().await {
            let _ = self.change(live, life).await; // the first error says more
            return Err(error.into());
        }
        tracing::info!(id = live.record.id, "a sandbox goes on");
        live.take_up_contexts();
        Ok(true)
    }

    /// Stores a new lifetime in three places: the lease of the monitor, the database for the next
    /// server, and `life` of this server.
    pub(crate) async fn change(&self, live: &Live, life: Life) -> Result<(), ServerError> {
        live.sandbox.renew(life.lease(live.record.at_end))?;
        if let Err(error) = self.store().put(&Record { life, ..live.record.clone() }).await {
            // The first error says more.
            let _ = live.sandbox.renew(live.life().lease(live.record.at_end));
            return Err(of_store(error));
        }
        live.life.send_replace(life);
        Ok(())
    }
}

/// Corrects the stored lifetime of a sandbox that was found again. The sandbox itself knows whether
/// it is paused.
pub(crate) fn as_found(life: Life, sandbox: &Sandbox) -> Life {
    match (life.state(), sandbox.is_paused()) {
        (State::Running, true) => life.at_rest(Timestamp::now()),
        (State::Paused, false) => {
            Life { ends: after(Timestamp::now(), stay(None)), ..life.awake(Timestamp::now()) }
        }
        _ => life,
    }
}

/// Waits until the time of a sandbox is over.
pub(crate) async fn over(life: &mut watch::Receiver<Life>) {
    loop {
        let ends = life.borrow_and_update().ends;
        tokio::select! {
            () = tokio::time::sleep(left(ends, Timestamp::now())) => return,
            _ = life.changed() => {} // the sender lives as long as the sandbox
        }
    }
}
