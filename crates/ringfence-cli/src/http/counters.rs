//! What a server has done, for Prometheus.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::StatusCode;

/// The first digits that statuses have.
const CLASSES: std::ops::Range<usize> = 1..6;

/// What a server has done since it started.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Answers, by the first digit of their status.
    answers: [AtomicU64; CLASSES.end],
    started: AtomicU64,
    not_started: AtomicU64,
    /// How long all starts took together, in microseconds.
    starting: AtomicU64,
}

impl Counters {
    /// A request was answered.
    pub(super) fn answered(&self, status: StatusCode) {
        if let Some(count) = self.answers.get(usize::from(status.as_u16() / 100)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A sandbox was started.
    pub(super) fn started(&self, took: Duration) {
        self.started.fetch_add(1, Ordering::Relaxed);
        self.starting.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// A sandbox could not be started.
    pub(super) fn not_started(&self) {
        self.not_started.fetch_add(1, Ordering::Relaxed);
    }

    /// All of it in Prometheus's text format, with how many sandboxes there are and how many wait for a client.
    pub(super) fn text(&self, sandboxes: usize, waiting: usize) -> String {
        let mut text = String::new();
        let mut family = |name: &str, kind: &str, help: &str, samples: &[(String, String)]| {
            let _ = write!(text, "# HELP ringfence_{name} {help}\n# TYPE ringfence_{name} {kind}\n"); // text has room
            for (labels, value) in samples {
                let _ = writeln!(text, "ringfence_{name}{labels} {value}"); // see above
            }
        };
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed).to_string();
        let plain = |value: String| [(String::new(), value)];
        let answers = CLASSES.map(|class| (format!("{{status=\"{class}xx\"}}"), load(&self.answers[class])));
        let seconds = self.starting.load(Ordering::Relaxed) as f64 / 1e6;
        family("sandboxes", "gauge", "Sandboxes that are up.", &plain(sandboxes.to_string()));
        family("sandboxes_waiting", "gauge", "Sandboxes that wait for a client.", &plain(waiting.to_string()));
        family("requests_total", "counter", "Requests that were answered.", &answers.collect::<Vec<_>>());
        family(
            "starts_failed_total",
            "counter",
            "Sandboxes that could not be started.",
            &plain(load(&self.not_started)),
        );
        let starts = [("_sum".to_owned(), seconds.to_string()), ("_count".to_owned(), load(&self.started))];
        family("start_seconds", "summary", "How long clients waited for a sandbox.", &starts);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_told() {
        let counters = Counters::default();
        counters.answered(StatusCode::CREATED);
        counters.answered(StatusCode::NOT_FOUND);
        counters.answered(StatusCode::OK);
        counters.started(Duration::from_millis(1500));
        counters.not_started();
        let text = counters.text(7, 2);
        for line in [
            "ringfence_sandboxes 7",
            "ringfence_sandboxes_waiting 2",
            "# TYPE ringfence_requests_total counter",
            "ringfence_requests_total{status=\"2xx\"} 2",
            "ringfence_requests_total{status=\"4xx\"} 1",
            "ringfence_starts_failed_total 1",
            "ringfence_start_seconds_sum 1.5",
            "ringfence_start_seconds_count 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }
}
