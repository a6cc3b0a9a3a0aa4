//! How long a sandbox stays: running until its time is over, or at rest.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// How long a sandbox is kept at rest: what it has in memory it keeps.
const LONGEST_REST: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// How long one that is to be brought to rest runs on while there is no server to do that, before it ends.
const UNATTENDED: Duration = Duration::from_secs(24 * 60 * 60);

/// What becomes of a sandbox whose time is over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AtEnd {
    /// It ends.
    #[default]
    Kill,
    /// It is brought to rest.
    Pause,
}

/// What a sandbox does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Its processes run.
    Running,
    /// They are at rest.
    Paused,
}

impl State {
    pub(super) const ALL: [State; 2] = [State::Running, State::Paused];

    /// As clients call it.
    pub(super) fn name(self) -> &'static str {
        match self {
            State::Running => "running",
            State::Paused => "paused",
        }
    }
}

/// How long a sandbox stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Life {
    /// When its time is over, at rest or not.
    pub(super) ends: Timestamp,
    /// Since when it is at rest.
    #[serde(default)]
    pub(super) paused: Option<Timestamp>,
    /// For how many seconds it was at rest before.
    #[serde(default)]
    pub(super) rested: u64,
}

impl Life {
    /// The life of one that runs until then.
    pub(super) fn until(ends: Timestamp) -> Life {
        Life { ends, paused: None, rested: 0 }
    }

    pub(super) fn state(&self) -> State {
        if self.paused.is_some() { State::Paused } else { State::Running }
    }

    /// At rest from `now` on.
    pub(super) fn at_rest(self, now: Timestamp) -> Life {
        Life { ends: after(now, LONGEST_REST), paused: Some(now), ..self }
    }

    /// Running again from `now` on. When its time is over is still to be said.
    pub(super) fn awake(self, now: Timestamp) -> Life {
        let rest = self.paused.map_or(0, |since| left(now, since).as_secs());
        Life { paused: None, rested: self.rested.saturating_add(rest), ..self }
    }

    /// When it ends at the latest, if it began at `started` and may run for so long.
    pub(super) fn latest(&self, started: Timestamp, longest: Duration) -> Timestamp {
        after(started, longest.saturating_add(Duration::from_secs(self.rested)))
    }

    /// How long the process that keeps it waits for a server before it ends it.
    pub(super) fn lease(&self, at_end: AtEnd) -> Duration {
        let left = left(self.ends, Timestamp::now());
        match (at_end, self.paused) {
            (AtEnd::Pause, None) => left.saturating_add(UNATTENDED),
            _ => left,
        }
    }
}

/// So long after a time.
pub(super) fn after(time: Timestamp, span: Duration) -> Timestamp {
    time.checked_add(span).unwrap_or(Timestamp::MAX)
}

/// How long it is until a time; nothing when that is over.
pub(super) fn left(until: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(until.duration_since(now)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_does_not_count_as_running_and_is_bounded_itself() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let longest = Duration::from_secs(100);
        let life = Life::until(at(50));
        assert_eq!(life.latest(at(0), longest), at(100));
        let resting = life.at_rest(at(40));
        assert_eq!((resting.paused, resting.ends), (Some(at(40)), after(at(40), LONGEST_REST)));
        let again = resting.awake(at(1040));
        assert_eq!((again.paused, again.latest(at(0), longest)), (None, at(1100)));
        assert_eq!(again.at_rest(at(1050)).awake(at(1051)).latest(at(0), longest), at(1101));
    }

    #[test]
    fn one_that_is_to_be_brought_to_rest_has_a_lease_beyond_its_time() {
        let life = Life::until(after(Timestamp::now(), Duration::from_secs(60)));
        assert!(life.lease(AtEnd::Kill) <= Duration::from_secs(60));
        assert!(life.lease(AtEnd::Pause) > UNATTENDED);
        assert!(life.at_rest(Timestamp::now()).lease(AtEnd::Pause) <= LONGEST_REST);
        assert_eq!(Life::until(Timestamp::UNIX_EPOCH).lease(AtEnd::Kill), Duration::ZERO);
    }
}
