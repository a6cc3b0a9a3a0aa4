//! Measured times and their percentiles.

use std::time::Duration;

/// The times that one contender took.
#[derive(Debug, Default, Clone)]
pub(super) struct TimeSamples(Vec<Duration>);

impl TimeSamples {
    pub(super) fn extend(&mut self, times: impl IntoIterator<Item = Duration>) {
        self.0.extend(times);
    }

    /// Returns the time that `percentage` percent of the runs did not exceed (nearest rank), or
    /// `None` without runs.
    pub(super) fn percentile(&self, percentage: usize) -> Option<Duration> {
        let mut sorted = self.0.clone();
        sorted.sort();
        let rank = (percentage * sorted.len()).div_ceil(100);
        sorted.get(rank.saturating_sub(1)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(milliseconds: &[u64], percentage: usize, expected: Option<u64>) {
        let mut samples = TimeSamples::default();
        samples.extend(milliseconds.iter().copied().map(Duration::from_millis));
        assert_eq!(samples.percentile(percentage), expected.map(Duration::from_millis));
    }

    #[test]
    fn a_percentile_is_a_time_that_was_measured() {
        check(&[5, 1, 4, 2, 3], 50, Some(3));
        check(&[4, 1, 3, 2], 50, Some(2));
        check(&[5, 1, 4, 2, 3], 95, Some(5));
        check(&(1..=100).collect::<Vec<_>>(), 95, Some(95));
        check(&[7], 50, Some(7));
    }

    #[test]
    fn a_percentile_without_runs_is_none() {
        check(&[], 50, None);
    }
}
