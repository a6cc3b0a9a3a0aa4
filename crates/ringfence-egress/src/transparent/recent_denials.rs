//! Denials that repeat for every packet or question, and are reported once.

use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Time during which the same denial is reported only once.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of denials that are reported individually per `REPEAT_INTERVAL`.
const MAX_REPORTED_DENIALS: usize = 256;

/// Denials of one kind that were reported a short time ago.
#[derive(Debug)]
pub(super) struct RecentDenials {
    since: Instant,
    targets: HashSet<String>,
    /// Number of denials that were neither reported nor counted in a report.
    omitted: u64,
    /// Value of `omitted` at which the owner gets the next report of omitted denials.
    told_at: u64,
}

/// Report to the owner of a tunnel.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DenialReport {
    Denial,
    /// Report of the number of denials that have no report of their own.
    Omitted(u64),
    Nothing,
}

impl Default for RecentDenials {
    fn default() -> RecentDenials {
        RecentDenials { since: Instant::now(), targets: HashSet::new(), omitted: 0, told_at: 1 }
    }
}

impl RecentDenials {
    /// Adds the denial of a target, and returns the report to make. The interval between two
    /// reports of omitted denials doubles each time, so that a flood causes few reports.
    pub(super) fn add(&mut self, target: &str) -> DenialReport {
        if self.since.elapsed() > REPEAT_INTERVAL {
            self.since = Instant::now();
            self.targets.clear();
        }
        if self.targets.contains(target) {
            return DenialReport::Nothing;
        }
        if self.targets.len() < MAX_REPORTED_DENIALS {
            self.targets.insert(target.to_owned());
            return DenialReport::Denial;
        }
        self.omitted += 1;
        if self.omitted < self.told_at {
            return DenialReport::Nothing;
        }
        self.told_at = self.told_at.saturating_mul(2);
        DenialReport::Omitted(self.take_omitted())
    }

    /// Takes the number of denials that the owner has not been told about.
    pub(super) fn take_omitted(&mut self) -> u64 {
        std::mem::take(&mut self.omitted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_denial_is_reported_once_or_counted() {
        let mut recent = RecentDenials::default();
        for index in 0..MAX_REPORTED_DENIALS {
            assert_eq!(recent.add(&index.to_string()), DenialReport::Denial);
            assert_eq!(recent.add(&index.to_string()), DenialReport::Nothing);
        }
        let mut messages = 0;
        let mut counted = 0;
        for index in 0..10_000 {
            match recent.add(&format!("more {index}")) {
                DenialReport::Omitted(denials) => {
                    messages += 1;
                    counted += denials;
                }
                telling => assert_eq!(telling, DenialReport::Nothing),
            }
        }
        assert!(messages < 20 && counted > 5000, "{messages} {counted}");
        assert_eq!(counted + recent.take_omitted(), 10_000);
        assert_eq!(recent.take_omitted(), 0);
    }

    #[test]
    fn denials_are_reported_again_after_the_repeat_interval() {
        let mut recent = RecentDenials::default();
        assert_eq!(recent.add("a"), DenialReport::Denial);
        recent.since =
            recent.since.checked_sub(REPEAT_INTERVAL * 2).expect("the clock has run for that long");
        assert_eq!(recent.add("a"), DenialReport::Denial);
    }
}
