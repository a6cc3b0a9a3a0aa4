//! Metrics that other modules count. The meter reads them each time an export is due.

use opentelemetry::KeyValue;

use super::Telemetry;

/// Way in which the value of a metric changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MeasureKind {
    /// The value goes up and down.
    Gauge,
    /// The value only goes up.
    Counter,
}

/// Metric with a single value, or with one value for each value of a label.
#[derive(Debug, Clone, PartialEq)]
pub struct Measure {
    /// Name of the metric: words joined by `_`, without the prefix `ringfence.`.
    pub name: &'static str,
    /// Way in which the value changes.
    pub kind: MeasureKind,
    /// Unit of the value, such as `s`; empty for a count.
    pub unit: &'static str,
    /// Description of the metric, as one sentence.
    pub help: &'static str,
    /// Current values, each with its label if the metric has a label.
    pub samples: Vec<(Option<(&'static str, String)>, f64)>,
}

impl Measure {
    /// Creates a metric with a single value and no label.
    pub fn with_value(
        name: &'static str,
        kind: MeasureKind,
        unit: &'static str,
        help: &'static str,
        value: f64,
    ) -> Measure {
        Measure { name, kind, unit, help, samples: vec![(None, value)] }
    }
}

impl Telemetry {
    /// Exports the metrics that `read` returns, each time an export is due. `read` must return the
    /// same metrics in the same order each time.
    pub fn measure(&self, read: impl Fn() -> Vec<Measure> + Clone + Send + Sync + 'static) {
        let Some(meter) = self.meter() else { return };
        for (index, Measure { name, kind, unit, help, .. }) in read().into_iter().enumerate() {
            let read = read.clone();
            let observe = move |observer: &dyn opentelemetry::metrics::AsyncInstrument<f64>| {
                for (label, value) in
                    read().into_iter().nth(index).into_iter().flat_map(|measure| measure.samples)
                {
                    let label = label.map(|(name, value)| KeyValue::new(name, value));
                    observer.observe(value, label.as_slice());
                }
            };
            let name = format!("ringfence.{name}");
            match kind {
                MeasureKind::Gauge => {
                    let gauge =
                        meter.f64_observable_gauge(name).with_unit(unit).with_description(help);
                    // The meter keeps the callback, so the handle is not needed.
                    let _ = gauge.with_callback(observe).build();
                }
                MeasureKind::Counter => {
                    let counter =
                        meter.f64_observable_counter(name).with_unit(unit).with_description(help);
                    // The meter keeps the callback, so the handle is not needed.
                    let _ = counter.with_callback(observe).build();
                }
            }
        }
    }
}
