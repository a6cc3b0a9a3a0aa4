//! Metrics: what somebody else counts, told when a collector is due to hear of it.

use opentelemetry::KeyValue;

use super::Telemetry;

/// How a number goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Up and down.
    Gauge,
    /// Only up.
    Counter,
}

/// A number that is told, or several of one kind that a label tells apart.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Measure {
    /// What it is called, in words with `_` between.
    pub(crate) name: &'static str,
    /// How it goes on.
    pub(crate) kind: Kind,
    /// What it is in: `s`; nothing where it counts.
    pub(crate) unit: &'static str,
    /// What it says, in a sentence.
    pub(crate) help: &'static str,
    /// What it is now, for each label that it has.
    pub(crate) samples: Vec<(Option<(&'static str, String)>, f64)>,
}

impl Measure {
    /// One that is a single number.
    pub(crate) fn of(name: &'static str, kind: Kind, unit: &'static str, help: &'static str, value: f64) -> Measure {
        Measure { name, kind, unit, help, samples: vec![(None, value)] }
    }
}

impl Telemetry {
    /// Tells of all that `read` answers with, whenever it is due. The same measures must come each time.
    pub(crate) fn measure(&self, read: impl Fn() -> Vec<Measure> + Clone + Send + Sync + 'static) {
        let Some(meter) = self.meter() else { return };
        for (index, Measure { name, kind, unit, help, .. }) in read().into_iter().enumerate() {
            let read = read.clone();
            let observe = move |observer: &dyn opentelemetry::metrics::AsyncInstrument<f64>| {
                for (label, value) in read().into_iter().nth(index).into_iter().flat_map(|measure| measure.samples) {
                    let label = label.map(|(name, value)| KeyValue::new(name, value));
                    observer.observe(value, label.as_slice());
                }
            };
            let name = format!("ringfence.{name}");
            match kind {
                Kind::Gauge => {
                    let gauge = meter.f64_observable_gauge(name).with_unit(unit).with_description(help);
                    let _ = gauge.with_callback(observe).build(); // it is the callback that is asked
                }
                Kind::Counter => {
                    let counter = meter.f64_observable_counter(name).with_unit(unit).with_description(help);
                    let _ = counter.with_callback(observe).build(); // see above
                }
            }
        }
    }
}
