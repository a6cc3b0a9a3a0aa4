//! How long sandboxes stay, changed: their time made longer or shorter, brought to rest, and let go on.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use ringfence::Sandbox;
use tokio::sync::watch;

use super::control::stay;
use super::life::{AtEnd, Life, State, after, left};
use super::registry::{Live, Registry, of_store};
use super::store::Record;
use super::to_its_end;
use crate::report::Failure;

/// Why a sandbox does not go on.
#[derive(Debug)]
pub(super) enum NotResumed {
    /// It has run for as long as it may.
    Spent,
    /// It could not be done.
    Failed(Failure),
}

impl<E: Into<Failure>> From<E> for NotResumed {
    fn from(error: E) -> NotResumed {
        NotResumed::Failed(error.into())
    }
}

/// What came of giving a sandbox another time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Renewed {
    Done,
    /// Nothing changes while it is at rest.
    AtRest,
    /// It was about to end.
    Gone,
}

impl Registry {
    /// Has the time of a sandbox that runs be over at `ends`, whether or not its client waits for that.
    pub(super) async fn renew(self: &Arc<Registry>, live: &Arc<Live>, ends: Timestamp) -> Result<Renewed, Failure> {
        let (registry, live) = (Arc::clone(self), Arc::clone(live));
        to_its_end(async move { registry.renew_in_turn(&live, ends).await }).await
    }

    async fn renew_in_turn(&self, live: &Arc<Live>, ends: Timestamp) -> Result<Renewed, Failure> {
        let _turn = live.changing.lock().await;
        let life = live.life();
        if !self.has(live) {
            return Ok(Renewed::Gone);
        }
        if life.state() == State::Paused {
            return Ok(Renewed::AtRest);
        }
        self.change(live, Life { ends, ..life }).await?;
        // The process that keeps it may have been about to end it.
        Ok(if live.sandbox.is_up() { Renewed::Done } else { Renewed::Gone })
    }

    /// Brings a sandbox to rest, whether or not its client waits for that. False when it is already.
    pub(super) async fn pause(self: &Arc<Registry>, live: &Arc<Live>) -> Result<bool, Failure> {
        let (registry, live) = (Arc::clone(self), Arc::clone(live));
        to_its_end(async move { registry.pause_in_turn(&live).await }).await
    }

    async fn pause_in_turn(&self, live: &Live) -> Result<bool, Failure> {
        let _turn = live.changing.lock().await;
        if live.life().state() == State::Paused {
            return Ok(false);
        }
        self.bring_to_rest(live).await?;
        Ok(true)
    }

    /// Brings a sandbox to rest that runs. Whoever has that done holds its turn to change.
    pub(super) async fn bring_to_rest(&self, live: &Live) -> Result<(), Failure> {
        let life = live.life();
        let resting = life.at_rest(Timestamp::now());
        // One whose time is over is brought to rest even if that cannot be written down: nothing else keeps what it has.
        // It is found to rest by the next server, and its lease leaves a day to free some space.
        let must_rest = live.record.at_end == AtEnd::Pause;
        // Before it rests: its lease is not to be over just then.
        if let Err(error) = live.sandbox.renew(resting.lease(live.record.at_end))
            && !must_rest
        {
            return Err(error.into());
        }
        if let Err(error) = live.sandbox.pause().await {
            let _ = live.sandbox.renew(life.lease(live.record.at_end)); // the first error tells more
            return Err(error.into());
        }
        match self.change(live, resting).await {
            Ok(()) => {}
            Err(failure) if must_rest => {
                let id = &live.record.id;
                tracing::error!(id, error = failure.message(), "that a sandbox is paused cannot be written down");
                live.life.send_replace(resting);
            }
            Err(failure) => {
                let _ = live.sandbox.resume().await; // the first error tells more
                return Err(failure);
            }
        }
        tracing::info!(id = live.record.id, "a sandbox is paused");
        Ok(())
    }

    /// Has something be done while the processes of a sandbox are at rest. Those of one that runs go on afterwards; its time
    /// passes meanwhile.
    pub(super) async fn while_at_rest<T>(&self, live: &Live, done: impl Future<Output = T>) -> Result<T, Failure> {
        let _turn = live.changing.lock().await;
        let life = live.life();
        if life.state() == State::Paused {
            return Ok(done.await);
        }
        live.sandbox.pause().await?;
        let done = done.await;
        if let Err(error) = live.sandbox.resume().await {
            // It is at rest, then: its client is told so, and can try again to let it go on.
            let _ = self.change(live, life.at_rest(Timestamp::now())).await; // the first error tells more
            return Err(error.into());
        }
        Ok(done)
    }

    /// Lets a sandbox go on that is at rest, for `stay`, as far as it may run for `longest` in all. False when it is
    /// not at rest, and nothing changes.
    pub(super) async fn resume(
        self: &Arc<Registry>,
        live: &Arc<Live>,
        stay: Duration,
        longest: Duration,
    ) -> Result<bool, NotResumed> {
        let (registry, live) = (Arc::clone(self), Arc::clone(live));
        to_its_end(async move { registry.resume_in_turn(&live, stay, longest).await }).await
    }

    async fn resume_in_turn(&self, live: &Live, stay: Duration, longest: Duration) -> Result<bool, NotResumed> {
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
        // Before it goes on: it is not to run for as long as it may rest.
        self.change(live, Life { ends, ..awake }).await?;
        if let Err(error) = live.sandbox.resume().await {
            let _ = self.change(live, life).await; // the first error tells more
            return Err(error.into());
        }
        tracing::info!(id = live.record.id, "a sandbox goes on");
        live.take_up_contexts();
        Ok(true)
    }

    /// Writes down how long a sandbox stays: for the process that keeps it, for the next server, and for this one.
    pub(super) async fn change(&self, live: &Live, life: Life) -> Result<(), Failure> {
        live.sandbox.renew(life.lease(live.record.at_end))?;
        if let Err(error) = self.store().put(&Record { life, ..live.record.clone() }).await {
            let _ = live.sandbox.renew(live.life().lease(live.record.at_end)); // the first error tells more
            return Err(of_store(error));
        }
        live.life.send_replace(life);
        Ok(())
    }
}

/// How long a sandbox stays that was found: whether it is at rest, it says itself.
pub(super) fn as_found(life: Life, sandbox: &Sandbox) -> Life {
    match (life.state(), sandbox.is_paused()) {
        (State::Running, true) => life.at_rest(Timestamp::now()),
        (State::Paused, false) => Life { ends: after(Timestamp::now(), stay(None)), ..life.awake(Timestamp::now()) },
        _ => life,
    }
}

/// Waits until a sandbox's time is over.
pub(super) async fn over(life: &mut watch::Receiver<Life>) {
    loop {
        let ends = life.borrow_and_update().ends;
        tokio::select! {
            () = tokio::time::sleep(left(ends, Timestamp::now())) => return,
            _ = life.changed() => {} // its sender lives as long as the sandbox
        }
    }
}
