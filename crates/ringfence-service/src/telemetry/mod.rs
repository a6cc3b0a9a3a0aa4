//! Traces and metrics for the collector that the standard `OTEL_*` variables name, with a span for
//! each sandbox and each command.
//!
//! Without these variables, this module creates nothing and starts no thread. With them, spans and
//! metrics wait in bounded queues, and separate threads send them. No sandbox waits for a
//! collector; data for a collector that is away is lost. Telemetry never contains the text of a
//! command or of code, the value of a variable, or a key.
//!
//! Reading order: `variables` reads the configuration, `spans` and `measures` create the
//! data, `collector` sends it.

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
pub use measures::{Measure, MeasureKind};
pub use spans::{Caller, ExecSpan, SandboxSpan, TRACE_PARENT};
use variables::Signal;

/// Default service name in traces, and name of the instrumentation scope.
const NAME: &str = "ringfence";
/// Maximum time for the last export when the process ends.
const LAST_EXPORT_TIMEOUT: Duration = Duration::from_secs(3);

/// Trace and metric providers; the default has none and exports nothing.
#[derive(Debug, Clone, Default)]
pub struct Telemetry {
    providers: Option<Arc<Providers>>,
}

#[derive(Debug)]
struct Providers {
    traces: Option<(SdkTracerProvider, SdkTracer)>,
    metrics: Option<SdkMeterProvider>,
}

impl Telemetry {
    /// Creates the providers that the standard variables ask for. This function starts threads, so
    /// the process must not fork after the call.
    ///
    /// Invalid variables cause a warning and not an error, because no sandbox depends on telemetry.
    pub fn from_variables(host: &Host) -> Telemetry {
        let asked = |signal: Signal| match signal.is_asked_for(host) {
            true => Collector::new(host, signal).map(|collector| (collector, resource())),
            false => None,
        };
        let traces = asked(Signal::Traces).and_then(|(collector, resource)| {
            let exporter = SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary);
            let exporter = usable(Signal::Traces, exporter.with_http_client(collector).build())?;
            let provider = SdkTracerProvider::builder()
                .with_resource(resource)
                .with_batch_exporter(exporter)
                .build();
            let tracer = provider.tracer_with_scope(scope());
            Some((provider, tracer))
        });
        let metrics = asked(Signal::Metrics).and_then(|(collector, resource)| {
            let exporter =
                MetricExporter::builder().with_http().with_protocol(Protocol::HttpBinary);
            let exporter = usable(Signal::Metrics, exporter.with_http_client(collector).build())?;
            Some(
                SdkMeterProvider::builder()
                    .with_resource(resource)
                    .with_periodic_exporter(exporter)
                    .build(),
            )
        });
        let is_asked = traces.is_some() || metrics.is_some();
        Telemetry { providers: is_asked.then(|| Arc::new(Providers { traces, metrics })) }
    }

    fn tracer(&self) -> Option<&SdkTracer> {
        Some(&self.providers.as_ref()?.traces.as_ref()?.1)
    }

    fn meter(&self) -> Option<Meter> {
        Some(self.providers.as_ref()?.metrics.as_ref()?.meter_with_scope(scope()))
    }

    /// Exports the remaining data and waits up to `LAST_EXPORT_TIMEOUT` for the export.
    pub async fn close(self) {
        let Some(providers) = self.providers else { return };
        let (done, over) = tokio::sync::oneshot::channel();
        // A separate thread, because the end of the runtime could wait for a thread of its own.
        std::thread::spawn(move || {
            if let Some((provider, _)) = &providers.traces {
                // The collector has logged its failure.
                let _ = provider.shutdown_with_timeout(LAST_EXPORT_TIMEOUT);
            }
            if let Some(provider) = &providers.metrics {
                // The collector has logged its failure.
                let _ = provider.shutdown_with_timeout(LAST_EXPORT_TIMEOUT);
            }
            let _ = done.send(()); // the receiver is gone if the wait timed out
        });
        // Data that is not sent by now is lost.
        let _ = tokio::time::timeout(LAST_EXPORT_TIMEOUT, over).await;
    }
}

/// Returns the exporter, or logs a warning and returns `None` if the variables are invalid.
fn usable<T>(signal: Signal, built: Result<T, ExporterBuildError>) -> Option<T> {
    built
        .inspect_err(|error| {
            tracing::warn!(
                error = chain(error),
                signal = signal.plural(),
                "the OTEL_* variables are not valid; nothing is exported"
            );
        })
        .ok()
}

/// Creates the resource that describes this process in telemetry: the attributes of the `OTEL_*`
/// variables and the version. The service name is [`NAME`] unless the variables set it.
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
