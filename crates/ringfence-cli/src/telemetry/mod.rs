//! Traces and metrics, where the standard `OTEL_*` variables name a collector: a span for each sandbox and each command.
//!
//! Without them nothing is made here and no thread started. With them, what is told waits in queues that are bounded, and
//! threads of their own send it: nobody waits for a collector, and one that is away costs what it would have been told.
//! Never told are the text of a command or of code, the value of a variable, and a key.
//!
//! Reading order: [`variables`] is what is asked for, [`spans`] and [`measures`] what is told, [`collector`] the way there.

mod collector;
mod measures;
mod spans;
mod variables;

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::metrics::{Meter, MeterProvider as _};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry::{InstrumentationScope, Key, KeyValue};
use opentelemetry_otlp::{
    ExporterBuildError, MetricExporter, Protocol, SpanExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use ringfence::{Host, chain};

use collector::Collector;
pub(crate) use measures::{Kind, Measure};
pub(crate) use spans::{Caller, ExecSpan, SandboxSpan, TRACE_PARENT};
use variables::Signal;

/// What we are called in traces when nobody says otherwise, and what makes our spans.
const NAME: &str = "ringfence";
/// How long the last of what is to be told may take when the process ends.
const LAST_PATIENCE: Duration = Duration::from_secs(3);

/// Whoever is told of sandboxes; by default nobody.
#[derive(Debug, Clone, Default)]
pub(crate) struct Telemetry {
    told: Option<Arc<Told>>,
}

#[derive(Debug)]
struct Told {
    traces: Option<(SdkTracerProvider, SdkTracer)>,
    metrics: Option<SdkMeterProvider>,
}

impl Telemetry {
    /// What the standard variables ask for. It starts threads, so nothing may be forked after it.
    ///
    /// What they say wrong is a warning: no sandbox depends on it.
    pub(crate) fn from_variables(host: &Host) -> Telemetry {
        let asked = |signal: Signal| match signal.is_asked_for(host) {
            true => Collector::new(host, signal).map(|collector| (collector, resource())),
            false => None,
        };
        let traces = asked(Signal::Traces).and_then(|(collector, resource)| {
            let exporter = SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary);
            let exporter = usable(Signal::Traces, exporter.with_http_client(collector).build())?;
            let provider = SdkTracerProvider::builder().with_resource(resource).with_batch_exporter(exporter).build();
            let tracer = provider.tracer_with_scope(scope());
            Some((provider, tracer))
        });
        let metrics = asked(Signal::Metrics).and_then(|(collector, resource)| {
            let exporter = MetricExporter::builder().with_http().with_protocol(Protocol::HttpBinary);
            let exporter = usable(Signal::Metrics, exporter.with_http_client(collector).build())?;
            Some(SdkMeterProvider::builder().with_resource(resource).with_periodic_exporter(exporter).build())
        });
        let is_asked = traces.is_some() || metrics.is_some();
        Telemetry { told: is_asked.then(|| Arc::new(Told { traces, metrics })) }
    }

    fn tracer(&self) -> Option<&SdkTracer> {
        Some(&self.told.as_ref()?.traces.as_ref()?.1)
    }

    fn meter(&self) -> Option<Meter> {
        Some(self.told.as_ref()?.metrics.as_ref()?.meter_with_scope(scope()))
    }

    /// Sends what is still to be told, and waits for that a moment.
    pub(crate) async fn close(self) {
        let Some(told) = self.told else { return };
        let (done, over) = tokio::sync::oneshot::channel();
        // Not a thread of the runtime's, which could be waited for.
        std::thread::spawn(move || {
            if let Some((provider, _)) = &told.traces {
                let _ = provider.shutdown_with_timeout(LAST_PATIENCE); // the collector has told of its failure
            }
            if let Some(provider) = &told.metrics {
                let _ = provider.shutdown_with_timeout(LAST_PATIENCE); // see above
            }
            let _ = done.send(()); // nobody waits so long
        });
        let _ = tokio::time::timeout(LAST_PATIENCE, over).await; // what is not told by now is lost
    }
}

/// An exporter, if the variables let one be made.
fn usable<T>(signal: Signal, built: Result<T, ExporterBuildError>) -> Option<T> {
    built
        .inspect_err(|error| {
            tracing::warn!(
                error = chain(error),
                "the OTEL_* variables are not usable: no {} are told",
                signal.plural()
            );
        })
        .ok()
}

/// What all that is told comes from: as the variables say.
fn resource() -> Resource {
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let said = Resource::builder().with_attribute(version.clone()).build();
    match said.get(&Key::from_static_str("service.name")) {
        Some(name) if !name.as_str().starts_with("unknown_service") => said,
        _ => Resource::builder().with_attribute(version).with_service_name(NAME).build(),
    }
}

fn scope() -> InstrumentationScope {
    InstrumentationScope::builder(NAME).with_version(env!("CARGO_PKG_VERSION")).build()
}
