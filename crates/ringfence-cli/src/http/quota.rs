//! How much one key may use: sandboxes at once, how often it may ask for one, and how long one may stay.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use ringfence::policy::Span;
use serde::{Deserialize, Serialize};

use super::control::Owner;
use super::reply::Refusal;

/// How long what was asked for counts.
const MINUTE: Duration = Duration::from_secs(60);
/// How long a sandbox can stay when its key says nothing.
const LONGEST_LIFE: Duration = Duration::from_secs(24 * 60 * 60);

/// What a key may use; what is not said is not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Quota {
    /// Sandboxes at once.
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    sandboxes: Option<u32>,
    /// Sandboxes that it may start in a minute.
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    per_minute: Option<u32>,
    /// How long a sandbox may stay at most, from its start: 30m, 8h; a day when nothing is said.
    #[arg(long, value_name = "TIME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    longest: Option<Span>,
}

impl Quota {
    /// How long a sandbox may stay at most, from its start.
    pub(super) fn longest(&self) -> Duration {
        self.longest.map_or(LONGEST_LIFE, |longest| longest.duration())
    }
}

/// What all keys have used.
#[derive(Debug, Default)]
pub(super) struct Tallies(Mutex<HashMap<Owner, Tally>>);

/// What one key has used.
#[derive(Debug, Default)]
struct Tally {
    /// Sandboxes that are being started.
    starting: usize,
    /// When it asked for one in the last minute.
    asked: VecDeque<Instant>,
}

/// The place of a sandbox that is being started.
#[derive(Debug)]
pub(super) struct Reserved {
    tallies: Arc<Tallies>,
    owner: Owner,
}

impl Tallies {
    /// Reserves a place for one more sandbox of an owner, who has `live` of them; the next one ends after `soon`.
    pub(super) fn reserve(
        self: &Arc<Tallies>,
        owner: &Owner,
        quota: &Quota,
        live: usize,
        soon: Duration,
    ) -> Result<Reserved, Refusal> {
        let mut tallies = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let tally = tallies.entry(owner.clone()).or_default();
        if let Some(most) = quota.sandboxes
            && live + tally.starting >= most as usize
        {
            return Err(Refusal::busy(format!("this key has {most} sandboxes at once and no more"), seconds(soon)));
        }
        let now = Instant::now();
        while tally.asked.front().is_some_and(|asked| now.duration_since(*asked) >= MINUTE) {
            tally.asked.pop_front();
        }
        if let Some(most) = quota.per_minute {
            if tally.asked.len() >= most as usize {
                let wait = tally.asked.front().map_or(MINUTE, |oldest| MINUTE - now.duration_since(*oldest));
                return Err(Refusal::busy(
                    format!("this key starts {most} sandboxes in a minute and no more"),
                    seconds(wait),
                ));
            }
            tally.asked.push_back(now);
        }
        tally.starting += 1;
        Ok(Reserved { tallies: Arc::clone(self), owner: owner.clone() })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut tallies = self.tallies.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tally) = tallies.get_mut(&self.owner) {
            tally.starting -= 1;
            if tally.starting == 0 && tally.asked.is_empty() {
                tallies.remove(&self.owner);
            }
        }
    }
}

/// Whole seconds to wait, and at least one.
fn seconds(wait: Duration) -> u64 {
    wait.as_secs().saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(9);

    #[test]
    fn a_key_has_so_many_sandboxes_at_once_and_those_that_start_count() {
        let tallies = Arc::new(Tallies::default());
        let quota = Quota { sandboxes: Some(2), ..Quota::default() };
        let (one, other) = (Some("one".to_owned()), Some("other".to_owned()));
        let reserve = |owner: &Owner, live| tallies.reserve(owner, &quota, live, SOON);
        let starting = reserve(&one, 1).unwrap();
        let refusal = reserve(&one, 1).unwrap_err();
        assert_eq!((refusal.status.as_u16(), refusal.retry_after), (429, Some(10)));
        drop(reserve(&other, 1).unwrap());
        drop(starting);
        drop(reserve(&one, 1).unwrap());
        assert!(reserve(&one, 2).is_err());
    }

    #[test]
    fn a_key_starts_so_many_sandboxes_in_a_minute() {
        let tallies = Arc::new(Tallies::default());
        let quota = Quota { per_minute: Some(2), ..Quota::default() };
        drop(tallies.reserve(&None, &quota, 0, SOON).unwrap());
        drop(tallies.reserve(&None, &quota, 0, SOON).unwrap());
        let refusal = tallies.reserve(&None, &quota, 0, SOON).unwrap_err();
        assert!(refusal.retry_after.is_some_and(|wait| (2..=61).contains(&wait)), "{refusal:?}");
        drop(tallies.reserve(&None, &Quota::default(), 0, SOON).unwrap());
        assert_eq!(Quota::default().longest(), LONGEST_LIFE);
    }
}
