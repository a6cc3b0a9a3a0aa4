//! The standard `OTEL_*` variables that the OpenTelemetry libraries do not read themselves.

use std::time::Duration;

use ringfence::Host;

/// Only protocol that this program supports.
const SUPPORTED_PROTOCOL: &str = "http/protobuf";
/// Default time that a collector has for its answer.
const DEFAULT_ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Kind of telemetry data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signal {
    Traces,
    Metrics,
}

impl Signal {
    /// Returns the part of the names of variables that stands for the signal.
    fn name(self) -> &'static str {
        match self {
            Signal::Traces => "TRACES",
            Signal::Metrics => "METRICS",
        }
    }

    /// Returns the name of the signal for messages.
    pub(super) fn plural(self) -> &'static str {
        match self {
            Signal::Traces => "traces",
            Signal::Metrics => "metrics",
        }
    }

    /// Reads a variable of the exporter: the variable for this signal if it is set, else the
    /// variable for all signals.
    pub(super) fn variable(self, host: &Host, what: &str) -> Option<String> {
        let own = host.text(&format!("OTEL_EXPORTER_OTLP_{}_{what}", self.name()));
        own.or_else(|| host.text(&format!("OTEL_EXPORTER_OTLP_{what}"))).map(str::to_owned)
    }

    /// Returns whether the variables name a collector for the signal. Logs a warning if they ask
    /// for a protocol other than [`SUPPORTED_PROTOCOL`].
    pub(super) fn is_asked_for(self, host: &Host) -> bool {
        let is_disabled =
            host.text("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let exporters = host.text(&format!("OTEL_{}_EXPORTER", self.name())).unwrap_or("otlp");
        let is_asked = !is_disabled
            && exporters.split(',').any(|name| name.trim() == "otlp")
            && self.variable(host, "ENDPOINT").is_some();
        if is_asked
            && let Some(protocol) = self.variable(host, "PROTOCOL")
            && protocol != SUPPORTED_PROTOCOL
        {
            let signal = self.plural();
            tracing::warn!(
                signal,
                protocol,
                "OTEL_EXPORTER_OTLP_PROTOCOL names an unsupported protocol; {SUPPORTED_PROTOCOL} \
                 is used, which collectors accept on port 4318"
            );
        }
        is_asked
    }

    /// Returns the time that a collector has for its answer.
    pub(super) fn answer_timeout(self, host: &Host) -> Duration {
        let said = self.variable(host, "TIMEOUT").and_then(|text| text.parse().ok());
        said.map_or(DEFAULT_ANSWER_TIMEOUT, Duration::from_millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(variables: &[(&str, &str)]) -> Host {
        Host::new(
            variables.iter().map(|(name, value)| (name.into(), value.into())).collect(),
            "/".into(),
        )
    }

    #[track_caller]
    fn check(variables: &[(&str, &str)], traces: bool, metrics: bool) {
        let host = host(variables);
        assert_eq!(
            (Signal::Traces.is_asked_for(&host), Signal::Metrics.is_asked_for(&host)),
            (traces, metrics)
        );
    }

    #[test]
    fn nothing_is_exported_unless_a_collector_is_named_and_export_is_not_disabled() {
        let all = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");
        check(&[], false, false);
        check(&[("OTEL_SERVICE_NAME", "x")], false, false);
        check(&[all], true, true);
        check(
            &[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:4318/v1/traces")],
            true,
            false,
        );
        check(
            &[("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://127.0.0.1:4318/v1/metrics")],
            false,
            true,
        );
        check(&[all, ("OTEL_SDK_DISABLED", "True")], false, false);
        check(&[all, ("OTEL_SDK_DISABLED", "false")], true, true);
        check(&[all, ("OTEL_METRICS_EXPORTER", "none")], true, false);
        check(&[all, ("OTEL_TRACES_EXPORTER", "console, otlp")], true, true);
    }

    #[test]
    fn a_signals_own_variable_wins() {
        let host = host(&[
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2000"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "500"),
        ]);
        assert_eq!(Signal::Traces.answer_timeout(&host), Duration::from_millis(500));
        assert_eq!(Signal::Metrics.answer_timeout(&host), Duration::from_secs(2));
        assert_eq!(
            Signal::Metrics.answer_timeout(&self::host(&[("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")])),
            DEFAULT_ANSWER_TIMEOUT
        );
    }
}
