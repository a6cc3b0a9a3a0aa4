//! Quota of one key: sandboxes at once, starts per minute, lifetime of a sandbox, number of
//! snapshots, and processor time per day.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use ringfence::policy::Span;
use serde::{Deserialize, Serialize};

use crate::api::control::Owner;
use crate::api::reply::Refusal;

/// Time for which a start counts against the limit per minute.
const MINUTE: Duration = Duration::from_secs(60);
/// Number of seconds in a day.
const DAY: i64 = 24 * 60 * 60;
/// Default for the maximum lifetime of a sandbox.
const LONGEST_LIFE: Duration = Duration::from_secs(24 * 60 * 60);
/// Default for the maximum number of snapshots of a key.
const MOST_SNAPSHOTS: u32 = 20;

/// Limits of one key. A limit that is not set has its default, or does not apply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Quota {
    /// Maximum number of sandboxes at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandboxes: Option<u32>,
    /// Maximum number of sandboxes that are started per minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_minute: Option<u32>,
    /// Maximum number of snapshots; 20 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<u32>,
    /// Maximum time that a sandbox runs, such as 30m or 8h; one day by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest: Option<Span>,
    /// Maximum processor time of all sandboxes of the key per day in UTC, such as 30m or 8h.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_per_day: Option<Span>,
}

impl Quota {
    /// Returns the maximum lifetime of a sandbox, from its start.
    pub(crate) fn longest(&self) -> Duration {
        self.longest.map_or(LONGEST_LIFE, |longest| longest.duration())
    }

    /// Returns the maximum number of snapshots.
    pub(crate) fn most_snapshots(&self) -> usize {
        self.snapshots.unwrap_or(MOST_SNAPSHOTS) as usize
    }
}

/// Processor time that the sandboxes of one key have used on one day.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct DayUse {
    /// Day, as the number of days since 1970-01-01.
    day: i64,
    seconds: f64,
}

impl DayUse {
    /// Returns the use on the current day, which is zero if `self` is of another day.
    fn today(self, now: Timestamp) -> DayUse {
        let day = now.as_second().div_euclid(DAY);
        if self.day == day { self } else { DayUse { day, seconds: 0.0 } }
    }
}

/// Use of all keys.
#[derive(Debug, Default)]
pub(crate) struct KeyUsages(Mutex<HashMap<Owner, KeyUsage>>);

/// Use of one key.
#[derive(Debug, Default)]
struct KeyUsage {
    /// Number of sandboxes that are being started.
    starting: usize,
    /// Times of the starts within the last minute.
    asked: VecDeque<Instant>,
    used: DayUse,
    /// Set if `used` has changed since it was last stored.
    is_changed: bool,
}

/// Reservation for a sandbox that is being started.
#[derive(Debug)]
pub(crate) struct StartReservation {
    key_usages: Arc<KeyUsages>,
    owner: Owner,
}

impl KeyUsages {
    /// Creates the usages from the use that an earlier server stored.
    pub(crate) fn from_stored(used: Vec<(String, DayUse)>) -> KeyUsages {
        let usage = |(id, used)| (Some(id), KeyUsage { used, ..KeyUsage::default() });
        KeyUsages(Mutex::new(used.into_iter().map(usage).collect()))
    }

    /// Charges an owner for the processor time that a sandbox has used.
    pub(crate) fn charge(&self, owner: &Owner, used: Duration) {
        if used.is_zero() || owner.is_none() {
            return; // without a key there is no quota
        }
        let mut key_usages = self.locked();
        let usage = key_usages.entry(owner.clone()).or_default();
        usage.used = usage.used.today(Timestamp::now());
        usage.used.seconds += used.as_secs_f64();
        usage.is_changed = true;
    }

    /// Returns the refusal for an owner that has used up its processor time for today, if so.
    pub(crate) fn spent(&self, owner: &Owner, quota: &Quota) -> Option<Refusal> {
        let most = quota.cpu_per_day?.duration();
        let now = Timestamp::now();
        let used = self.locked().get(owner)?.used.today(now);
        (used.seconds >= most.as_secs_f64()).then(|| {
            let left = DAY - now.as_second().rem_euclid(DAY);
            let message = format!(
                "this key has used its processor time for this day, which is {} seconds",
                most.as_secs()
            );
            Refusal::busy(message, left.unsigned_abs())
        })
    }

    /// Returns the use of keys that changed since the last call.
    pub(crate) fn changed(&self) -> Vec<(String, DayUse)> {
        let mut key_usages = self.locked();
        let changed = key_usages.iter_mut().filter_map(|(owner, usage)| {
            let is_changed = std::mem::take(&mut usage.is_changed);
            Some((owner.clone()?, usage.used)).filter(|_| is_changed)
        });
        changed.collect()
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<Owner, KeyUsage>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves a place for one more sandbox of an owner, who has `live` sandboxes. The next of
    /// them ends after `soon`.
    pub(crate) fn reserve(
        self: &Arc<KeyUsages>,
        owner: &Owner,
        quota: &Quota,
        live: usize,
        soon: Duration,
    ) -> Result<StartReservation, Refusal> {
        if let Some(refusal) = self.spent(owner, quota) {
            return Err(refusal);
        }
        let mut key_usages = self.locked();
        let usage = key_usages.entry(owner.clone()).or_default();
        if let Some(most) = quota.sandboxes
            && live + usage.starting >= most as usize
        {
            return Err(Refusal::busy(
                format!("this key has {most} sandboxes, which is the maximum"),
                seconds(soon),
            ));
        }
        let now = Instant::now();
        while usage.asked.front().is_some_and(|asked| now.duration_since(*asked) >= MINUTE) {
            usage.asked.pop_front();
        }
        if let Some(most) = quota.per_minute {
            if usage.asked.len() >= most as usize {
                let wait = usage
                    .asked
                    .front()
                    .map_or(MINUTE, |oldest| MINUTE - now.duration_since(*oldest));
                return Err(Refusal::busy(
                    format!(
                        "this key has started {most} sandboxes within a minute, which is the \
                         maximum"
                    ),
                    seconds(wait),
                ));
            }
            usage.asked.push_back(now);
        }
        usage.starting += 1;
        Ok(StartReservation { key_usages: Arc::clone(self), owner: owner.clone() })
    }
}

impl Drop for StartReservation {
    fn drop(&mut self) {
        let mut key_usages = self.key_usages.locked();
        if let Some(usage) = key_usages.get_mut(&self.owner) {
            usage.starting -= 1;
            if usage.starting == 0 && usage.asked.is_empty() && usage.used == DayUse::default() {
                key_usages.remove(&self.owner);
            }
        }
    }
}

/// Rounds a wait up to whole seconds, at least one.
fn seconds(wait: Duration) -> u64 {
    wait.as_secs().saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(9);

    #[test]
    fn a_key_has_so_many_sandboxes_at_once_and_those_that_start_count() {
        let key_usages = Arc::new(KeyUsages::default());
        let quota = Quota { sandboxes: Some(2), ..Quota::default() };
        let (one, other) = (Some("one".to_owned()), Some("other".to_owned()));
        let reserve = |owner: &Owner, live| key_usages.reserve(owner, &quota, live, SOON);
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
        let key_usages = Arc::new(KeyUsages::default());
        let quota = Quota { per_minute: Some(2), ..Quota::default() };
        drop(key_usages.reserve(&None, &quota, 0, SOON).unwrap());
        drop(key_usages.reserve(&None, &quota, 0, SOON).unwrap());
        let refusal = key_usages.reserve(&None, &quota, 0, SOON).unwrap_err();
        assert!(refusal.retry_after.is_some_and(|wait| (2..=61).contains(&wait)), "{refusal:?}");
        drop(key_usages.reserve(&None, &Quota::default(), 0, SOON).unwrap());
        assert_eq!(Quota::default().longest(), LONGEST_LIFE);
    }
    #[test]
    fn a_key_uses_so_much_of_processors_in_a_day_and_the_next_server_knows() {
        let quota = Quota { cpu_per_day: Some("10s".parse().unwrap()), ..Quota::default() };
        let (one, other) = (Some("one".to_owned()), Some("other".to_owned()));
        let key_usages = Arc::new(KeyUsages::default());
        key_usages.charge(&one, Duration::from_secs(9));
        drop(key_usages.reserve(&one, &quota, 0, SOON).unwrap());
        key_usages.charge(&one, Duration::from_secs(1));
        let refusal = key_usages.reserve(&one, &quota, 0, SOON).unwrap_err();
        assert_eq!(refusal.status.as_u16(), 429);
        assert!(
            refusal.retry_after.is_some_and(|wait| (1..=DAY.unsigned_abs()).contains(&wait)),
            "{refusal:?}"
        );
        drop(key_usages.reserve(&other, &quota, 0, SOON).unwrap());
        drop(key_usages.reserve(&one, &Quota::default(), 0, SOON).unwrap());

        let noted = key_usages.changed();
        assert_eq!(key_usages.changed(), []);
        let next = Arc::new(KeyUsages::from_stored(noted.clone()));
        assert!(next.reserve(&one, &quota, 0, SOON).is_err());
        let yesterday = noted
            .into_iter()
            .map(|(id, used)| (id, DayUse { day: used.day - 1, ..used }))
            .collect();
        drop(Arc::new(KeyUsages::from_stored(yesterday)).reserve(&one, &quota, 0, SOON).unwrap());
    }
}
