//! A collector of traces and metrics on loopback, which decodes the requests that it receives.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::{Metric, NumberDataPoint, metric, number_data_point};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

/// Behaviour of a collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CollectorBehaviour {
    Takes,
    /// The collector accepts connections and never answers.
    Silent,
}

/// A collector that listens until the end of the test.
#[derive(Debug)]
pub(crate) struct Collector {
    pub(crate) url: String,
    received: Arc<Mutex<ReceivedTelemetry>>,
}

/// Requests that a collector received.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReceivedTelemetry {
    pub(crate) connections: usize,
    /// Heads of all requests, joined.
    pub(crate) heads: String,
    /// Bodies of all requests, joined.
    bytes: Vec<u8>,
    pub(crate) resources: Vec<Resource>,
    pub(crate) spans: Vec<Span>,
    metrics: Vec<Metric>,
}

impl Collector {
    pub(crate) fn new(manner: CollectorBehaviour) -> Collector {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a port");
        let url = format!("http://{}", listener.local_addr().expect("it listens"));
        let received = Arc::new(Mutex::new(ReceivedTelemetry::default()));
        let hearing = Arc::clone(&received);
        // The thread ends with the process of the test.
        std::thread::spawn(move || {
            let mut silent = Vec::new();
            for stream in listener.incoming().flatten() {
                hearing.lock().unwrap_or_else(PoisonError::into_inner).connections += 1;
                match manner {
                    CollectorBehaviour::Takes => hear(stream, &hearing),
                    CollectorBehaviour::Silent => silent.push(stream),
                }
            }
        });
        Collector { url, received }
    }

    /// Returns a copy of everything that was received so far.
    pub(crate) fn received(&self) -> ReceivedTelemetry {
        self.received.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Reads and answers the only request of a connection.
fn hear(stream: TcpStream, received: &Mutex<ReceivedTelemetry>) {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).is_ok_and(|length| length > 0)
    {
    }
    let length = head
        .lines()
        .find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    if reader.read_exact(&mut body).is_err() {
        return;
    }
    {
        let mut received = received.lock().unwrap_or_else(PoisonError::into_inner);
        received.take(&head, &body);
    }
    // The sender may be gone.
    let _ = reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
}

impl ReceivedTelemetry {
    fn take(&mut self, head: &str, body: &[u8]) {
        self.heads.push_str(head);
        self.bytes.extend_from_slice(body);
        if head.starts_with("POST /v1/traces ") {
            for group in
                ExportTraceServiceRequest::decode(body).expect("it is a trace").resource_spans
            {
                self.resources.extend(group.resource);
                self.spans.extend(group.scope_spans.into_iter().flat_map(|scope| scope.spans));
            }
        } else if head.starts_with("POST /v1/metrics ") {
            for group in ExportMetricsServiceRequest::decode(body)
                .expect("they are metrics")
                .resource_metrics
            {
                self.resources.extend(group.resource);
                self.metrics
                    .extend(group.scope_metrics.into_iter().flat_map(|scope| scope.metrics));
            }
        } else {
            panic!("nothing is sent elsewhere: {head}");
        }
    }

    /// Returns true if the text occurs in any head or body.
    pub(crate) fn has(&self, text: &str) -> bool {
        self.bytes.windows(text.len()).any(|window| window == text.as_bytes())
            || self.heads.contains(text)
    }

    /// Returns the last value of a metric, summed over all its labels.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let last = self.metrics.iter().rfind(|metric| metric.name == name)?;
        let points: &[NumberDataPoint] = match last.data.as_ref()? {
            metric::Data::Gauge(gauge) => &gauge.data_points,
            metric::Data::Sum(sum) => &sum.data_points,
            _ => return None,
        };
        let number = |point: &NumberDataPoint| match point.value {
            Some(number_data_point::Value::AsDouble(value)) => value,
            Some(number_data_point::Value::AsInt(value)) => value as f64,
            None => 0.0,
        };
        Some(points.iter().map(number).sum())
    }
}

/// Returns an attribute as text.
pub(crate) fn attribute(attributes: &[KeyValue], name: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == name)?;
    match found.value.as_ref().and_then(|AnyValue { value }| value.as_ref())? {
        Value::StringValue(text) => Some(text.clone()),
        Value::BoolValue(is_so) => Some(is_so.to_string()),
        Value::IntValue(number) => Some(number.to_string()),
        Value::DoubleValue(number) => Some(number.to_string()),
        _ => None,
    }
}
