//! Counters of the work of a server, exported to Prometheus and to a collector.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::StatusCode;
use ringfence_service::telemetry::{Measure, MeasureKind};

/// Range of the first digits of HTTP statuses.
const CLASSES: std::ops::Range<usize> = 1..6;

/// Counters since the start of the server.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Number of answers, by the first digit of their status.
    answers: [AtomicU64; CLASSES.end],
    started: AtomicU64,
    not_started: AtomicU64,
    /// Total time of all starts, in microseconds.
    starting: AtomicU64,
}

impl Counters {
    /// Counts an answered request.
    pub(crate) fn answered(&self, status: StatusCode) {
        if let Some(count) = self.answers.get(usize::from(status.as_u16() / 100)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a started sandbox and the time that its start took.
    pub(crate) fn started(&self, took: Duration) {
        self.started.fetch_add(1, Ordering::Relaxed);
        self.starting
            .fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Counts a sandbox that could not be started.
    pub(crate) fn not_started(&self) {
        self.not_started.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns all counters as metrics, with the number of sandboxes and the number of waiting
    /// sandboxes.
    pub(crate) fn measures(&self, sandboxes: usize, waiting: usize) -> Vec<Measure> {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
        let by_status =
            |class: usize| (Some(("status", format!("{class}xx"))), load(&self.answers[class]));
        vec![
            Measure::with_value(
                "sandboxes",
                MeasureKind::Gauge,
                "",
                "Sandboxes that are up.",
                sandboxes as f64,
            ),
            Measure::with_value(
                "sandboxes_waiting",
                MeasureKind::Gauge,
                "",
                "Sandboxes that wait for a client.",
                waiting as f64,
            ),
            Measure {
                name: "requests",
                kind: MeasureKind::Counter,
                unit: "",
                help: "Requests that the server answered.",
                samples: CLASSES.map(by_status).collect(),
            },
            Measure::with_value(
                "starts",
                MeasureKind::Counter,
                "",
                "Sandboxes that were started.",
                load(&self.started),
            ),
            Measure::with_value(
                "starts_failed",
                MeasureKind::Counter,
                "",
                "Sandboxes that could not be started.",
                load(&self.not_started),
            ),
            Measure::with_value(
                "start_time",
                MeasureKind::Counter,
                "s",
                "Total time that clients waited for the start of their sandboxes.",
                load(&self.starting) / 1e6,
            ),
        ]
    }
}

/// Formats metrics in the text format of Prometheus.
pub(crate) fn text(measures: &[Measure]) -> String {
    let mut text = String::new();
    for Measure { name, kind, unit, help, samples } in measures {
        let unit = if *unit == "s" { "_seconds" } else { "" };
        let (kind, suffix) = match kind {
            MeasureKind::Gauge => ("gauge", ""),
            MeasureKind::Counter => ("counter", "_total"),
        };
        let name = format!("ringfence_{name}{unit}{suffix}");
        // Writing to a string cannot fail.
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for (label, value) in samples {
            let _ = match label {
                None => writeln!(text, "{name} {value}"), // writing to a string cannot fail
                Some((label, said)) => writeln!(text, "{name}{{{label}=\"{said}\"}} {value}"),
            };
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_reported() {
        let counters = Counters::default();
        counters.answered(StatusCode::CREATED);
        counters.answered(StatusCode::NOT_FOUND);
        counters.answered(StatusCode::OK);
        counters.started(Duration::from_millis(1500));
        counters.not_started();
        let text = text(&counters.measures(7, 2));
        for line in [
            "ringfence_sandboxes 7",
            "ringfence_sandboxes_waiting 2",
            "# TYPE ringfence_requests_total counter",
            "ringfence_requests_total{status=\"2xx\"} 2",
            "ringfence_requests_total{status=\"4xx\"} 1",
            "ringfence_starts_failed_total 1",
            "ringfence_starts_total 1",
            "ringfence_start_time_seconds_total 1.5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }
}
