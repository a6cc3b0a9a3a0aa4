//! Expiry of a sandbox: the end of its time, running or paused.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Maximum time for which a sandbox stays paused. A paused sandbox keeps its memory.
const LONGEST_REST: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Time for which a sandbox that should be paused at its end keeps running while no server is there
/// to pause it. The sandbox ends after this time.
const UNATTENDED_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// Action at the end of a sandbox's time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ExpiryAction {
    /// The sandbox ends.
    #[default]
    Kill,
    /// The sandbox is paused.
    Pause,
}

/// State of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SandboxState {
    /// The processes of the sandbox run.
    Running,
    /// The processes of the sandbox are paused.
    Paused,
}

impl SandboxState {
    pub(crate) const ALL: [SandboxState; 2] = [SandboxState::Running, SandboxState::Paused];

    /// Returns the name of the state in the API.
    pub(crate) fn name(self) -> &'static str {
        match self {
            SandboxState::Running => "running",
            SandboxState::Paused => "paused",
        }
    }
}

/// End of a sandbox's time, and its pauses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Expiry {
    /// Time at which the sandbox ends, running or paused.
    pub(crate) ends: Timestamp,
    /// Start of the current pause, if the sandbox is paused.
    #[serde(default)]
    pub(crate) paused: Option<Timestamp>,
    /// Total length of earlier pauses, in seconds.
    #[serde(default)]
    pub(crate) rested: u64,
}

impl Expiry {
    /// Creates the expiry of a sandbox that runs until `ends`.
    pub(crate) fn until(ends: Timestamp) -> Expiry {
        Expiry { ends, paused: None, rested: 0 }
    }

    pub(crate) fn state(&self) -> SandboxState {
        if self.paused.is_some() { SandboxState::Paused } else { SandboxState::Running }
    }

    /// Returns the expiry after a pause that begins at `now`.
    pub(crate) fn paused_at(self, now: Timestamp) -> Expiry {
        Expiry { ends: after(now, LONGEST_REST), paused: Some(now), ..self }
    }

    /// Returns the expiry after a resume at `now`. The caller must set a new end.
    pub(crate) fn resumed_at(self, now: Timestamp) -> Expiry {
        let rest = self.paused.map_or(0, |since| left(now, since).as_secs());
        Expiry { paused: None, rested: self.rested.saturating_add(rest), ..self }
    }

    /// Returns the latest possible end of a sandbox that began at `started` and may run for
    /// `longest`. Pauses do not count as running.
    pub(crate) fn latest(&self, started: Timestamp, longest: Duration) -> Timestamp {
        after(started, longest.saturating_add(Duration::from_secs(self.rested)))
    }

    /// Returns the lease for the monitor of the sandbox. The monitor ends the sandbox after this
    /// time if no server acts before.
    pub(crate) fn lease(&self, at_end: ExpiryAction) -> Duration {
        let left = left(self.ends, Timestamp::now());
        match (at_end, self.paused) {
            (ExpiryAction::Pause, None) => left.saturating_add(UNATTENDED_LIFETIME),
            _ => left,
        }
    }
}

/// Returns the time that lies `span` after `time`, or the maximum on overflow.
pub(crate) fn after(time: Timestamp, span: Duration) -> Timestamp {
    time.checked_add(span).unwrap_or(Timestamp::MAX)
}

/// Returns the time left until `until`, or zero if it has passed.
pub(crate) fn left(until: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(until.duration_since(now)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_does_not_count_as_running_and_is_bounded_itself() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let longest = Duration::from_secs(100);
        let expiry = Expiry::until(at(50));
        assert_eq!(expiry.latest(at(0), longest), at(100));
        let paused = expiry.paused_at(at(40));
        assert_eq!((paused.paused, paused.ends), (Some(at(40)), after(at(40), LONGEST_REST)));
        let again = paused.resumed_at(at(1040));
        assert_eq!((again.paused, again.latest(at(0), longest)), (None, at(1100)));
        assert_eq!(again.paused_at(at(1050)).resumed_at(at(1051)).latest(at(0), longest), at(1101));
    }

    #[test]
    fn a_sandbox_that_will_be_paused_has_a_lease_beyond_its_expiry() {
        let expiry = Expiry::until(after(Timestamp::now(), Duration::from_secs(60)));
        assert!(expiry.lease(ExpiryAction::Kill) <= Duration::from_secs(60));
        assert!(expiry.lease(ExpiryAction::Pause) > UNATTENDED_LIFETIME);
        assert!(expiry.paused_at(Timestamp::now()).lease(ExpiryAction::Pause) <= LONGEST_REST);
        assert_eq!(Expiry::until(Timestamp::UNIX_EPOCH).lease(ExpiryAction::Kill), Duration::ZERO);
    }
}
