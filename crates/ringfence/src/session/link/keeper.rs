//! The task that keeps the carrier of a link: dials, greets, and dials again.

use std::sync::Arc;
use std::time::Duration;

use ringfence_link::greeting::{GreetingError, LinkStage, greet};
use ringfence_link::{CarrierEnd, CarrierTimeouts, CarrierTurn, Link, LinkFailure, run_carrier};
use ringfence_proto::link::LinkId;
use ringfence_proto::link::frame::{LinkFrameDecoder, LinkGreeting};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::super::connector::GuestStream;
use super::{Carrier, LinkState, LinkTimeouts};

/// First pause before a carrier is dialled again. The pause doubles each time that a carrier moves
/// no byte.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// Longest pause before a carrier is dialled again.
const MAX_DELAY: Duration = Duration::from_secs(5);

/// State of the task that keeps the carrier of a link.
pub(super) struct LinkKeeper {
    pub(super) id: LinkId,
    pub(super) token: String,
    pub(super) carrier: Arc<dyn Carrier>,
    pub(super) link: Link,
    pub(super) timeouts: LinkTimeouts,
    pub(super) state: watch::Sender<LinkState>,
}

/// A carrier that the guest has welcomed.
struct GreetedCarrier {
    stream: Box<dyn GuestStream>,
    turn: CarrierTurn,
    decoder: LinkFrameDecoder,
}

/// Reason why one carrier cannot be used.
enum DialError {
    /// The next carrier may work.
    Temporary(std::io::Error),
    /// No carrier of this link can work.
    Permanent(LinkFailure),
}

/// Ends the link when its task ends, for whatever reason.
struct FailureGuard(Link);

impl Drop for FailureGuard {
    fn drop(&mut self) {
        self.0.fail(LinkFailure::Closed);
    }
}

impl LinkKeeper {
    /// Keeps the carrier of the link until the link ends.
    pub(super) async fn keep(self) {
        let _guard = FailureGuard(self.link.clone());
        let failure = self.keep_carrier().await;
        tracing::info!(error = crate::chain(&failure), "a link to a guest has ended");
        self.link.fail(failure.clone());
        self.state.send_replace(LinkState::Ended(failure));
    }

    async fn keep_carrier(&self) -> LinkFailure {
        let mut lost_at = Instant::now();
        let mut delay = FIRST_DELAY;
        let mut stage = LinkStage::New;
        loop {
            let give_up = lost_at + self.timeouts.outage;
            match timeout_at(give_up, self.dial(stage)).await {
                Ok(Ok(GreetedCarrier { stream, turn, decoder })) => {
                    stage = LinkStage::Known;
                    self.state.send_replace(LinkState::Connected);
                    let progress = self.link.progress();
                    let limits = CarrierTimeouts::Ask {
                        interval: self.timeouts.ping_interval,
                        answer: self.timeouts.ping_answer,
                    };
                    match run_carrier(&self.link, turn, stream, decoder, limits).await {
                        CarrierEnd::Failed(failure) => return failure,
                        end => tracing::info!(?end, "the carrier of a link was lost"),
                    }
                    lost_at = Instant::now();
                    self.state.send_replace(LinkState::Reconnecting { since: lost_at });
                    if self.link.progress() != progress {
                        delay = FIRST_DELAY;
                    }
                }
                Ok(Err(DialError::Permanent(failure))) => return failure,
                Ok(Err(DialError::Temporary(error))) => {
                    tracing::debug!(%error, "cannot dial a carrier");
                }
                Err(_) => return LinkFailure::Lost { time: self.timeouts.outage },
            }
            let give_up = lost_at + self.timeouts.outage;
            sleep_until(give_up.min(Instant::now() + with_jitter(delay))).await;
            if Instant::now() >= give_up {
                return LinkFailure::Lost { time: self.timeouts.outage };
            }
            if let Some(failure) = self.link.failure() {
                return failure;
            }
            delay = (delay * 2).min(MAX_DELAY);
        }
    }

    async fn dial(&self, stage: LinkStage) -> Result<GreetedCarrier, DialError> {
        let temporary = |error| DialError::Temporary(std::io::Error::other(error));
        let greeting = async {
            let mut stream = self.carrier.dial().await.map_err(|error| {
                match LinkFailure::from_io_error(&error) {
                    Some(failure) => DialError::Permanent(failure.clone()),
                    None => DialError::Temporary(error),
                }
            })?;
            let greeting = LinkGreeting::new(self.id, self.link.received(), &self.token);
            match greet(&mut *stream, stage, greeting).await {
                Ok((received, decoder)) => Ok((stream, received, decoder)),
                Err(GreetingError::Refused(reason)) => {
                    Err(DialError::Permanent(LinkFailure::Refused { reason }))
                }
                // A process that carries may print an error of its own instead of frames.
                Err(error) => Err(temporary(error)),
            }
        };
        let (stream, received, decoder) = match timeout(self.timeouts.dial, greeting).await {
            Ok(greeted) => greeted?,
            Err(_) => return Err(DialError::Temporary(std::io::ErrorKind::TimedOut.into())),
        };
        let turn = self.link.begin_carrier(received);
        let turn = turn.map_err(|error| DialError::Permanent(LinkFailure::Violation(error)))?;
        Ok(GreetedCarrier { stream, turn, decoder })
    }
}

/// Returns a random time from half of `delay` to one and a half, so that many links do not dial at
/// the same time.
fn with_jitter(delay: Duration) -> Duration {
    let mut random = [128];
    // Without random bytes the delay is as given.
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    delay.mul_f64(0.5 + f64::from(random[0]) / 255.0)
}
