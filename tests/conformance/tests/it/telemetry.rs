//! Traces and metrics of `ringfence serve` and `ringfence mcp`, if the standard variables request
//! them.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::trace::v1::Span;
use ringfence::Backend;
use ringfence_test_ledger::require;
use rustix::net::{AddressFamily, SocketType};
use serde_json::json;

use crate::asks::{McpClient, RawClient};
use crate::collector::{Collector, CollectorBehaviour, ReceivedTelemetry, attribute};
use crate::keeper::{SandboxKeeper, WAIT_TIMEOUT};
use crate::served::{RunningServer, expect_nothing_left, log_of};

/// Trace of a caller, and the span in the trace from which the caller sends its request.
const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT_SPAN_ID: &str = "b7ad6b7169203331";
/// Text in a command that must be nowhere else.
const SECRET: &str = "hunter2-in-an-argument";

fn trace_parent() -> String {
    format!("00-{TRACE_ID}-{PARENT_SPAN_ID}-01")
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the first span with a name for which `is_it` returns true.
#[track_caller]
fn span<'a>(
    received: &'a ReceivedTelemetry,
    name: &str,
    is_it: impl Fn(&Span) -> bool,
) -> &'a Span {
    let found = received.spans.iter().find(|span| span.name == name && is_it(span));
    found.unwrap_or_else(|| panic!("there is no such span: {:#?}", received.spans))
}

#[track_caller]
fn expect_attributes(span: &Span, expected: &[(&str, &str)]) {
    for (name, value) in expected {
        assert_eq!(
            attribute(&span.attributes, name).as_deref(),
            Some(*value),
            "{name} of {span:#?}"
        );
    }
}

#[test]
fn a_server_sends_telemetry_to_the_configured_collector() {
    require!(root, binary, user_namespaces);
    let collector = Collector::new(CollectorBehaviour::Takes);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let server = RunningServer::told(
        &keeper,
        &[],
        &[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=of-the-test"),
            ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test"),
            ("OTEL_SERVICE_NAME", "sandboxes"),
        ],
    );
    let client = RawClient::for_url(&server.url);
    let asked = [("traceparent", trace_parent())];
    let asked: Vec<(&str, &str)> =
        asked.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let sandbox = client.create(&asked);
    // The host's telemetry variables are not inside. The command exits with 3 if there are none.
    client.shell(&sandbox, &format!("env | grep -q OTEL_ && exit 9; : {SECRET}; exit 3"), &[]);
    client.shell(&sandbox, "exit 0", &asked);
    client.shell(&sandbox, "sleep 60", &[("connect-timeout-ms", "300")]);
    client.shell(&sandbox, "kill -TERM $$", &[]);
    client.kill(&sandbox);
    server.end();

    let received = collector.received();
    let life = span(&received, "sandbox", |_| true);
    assert_eq!(
        (hexadecimal(&life.trace_id), hexadecimal(&life.parent_span_id)),
        (TRACE_ID.into(), PARENT_SPAN_ID.into())
    );
    expect_attributes(
        life,
        &[("sandbox.id", &sandbox.0), ("sandbox.select", "native"), ("sandbox.template", "base")],
    );
    assert!(
        attribute(&life.attributes, "sandbox.chosen_because").is_some_and(|why| !why.is_empty())
    );

    // Without a caller's trace, a command belongs to the trace of its sandbox. With one, it belongs
    // to the caller's trace and links to the sandbox's span.
    let exited = |code: &'static str| {
        move |span: &Span| attribute(&span.attributes, "process.exit.code").as_deref() == Some(code)
    };
    let own = span(&received, "exec", exited("3"));
    assert_eq!((&own.trace_id, &own.parent_span_id), (&life.trace_id, &life.span_id));
    expect_attributes(
        own,
        &[
            ("sandbox.id", &sandbox.0),
            ("sandbox.select", "native"),
            ("process.executable.name", "/bin/sh"),
            ("process.args_count", "3"),
            ("exec.timed_out", "false"),
            ("exec.denials", "0"),
        ],
    );
    assert!(own.start_time_unix_nano < own.end_time_unix_nano);
    let asked_for = span(&received, "exec", exited("0"));
    assert_eq!(hexadecimal(&asked_for.parent_span_id), PARENT_SPAN_ID);
    assert_eq!(
        asked_for.links.iter().map(|link| &link.span_id).collect::<Vec<_>>(),
        [&life.span_id]
    );
    let timed_out =
        |span: &Span| attribute(&span.attributes, "exec.timed_out").as_deref() == Some("true");
    expect_attributes(span(&received, "exec", timed_out), &[("exec.signal", "9")]);
    span(&received, "exec", |span| {
        attribute(&span.attributes, "exec.signal").as_deref() == Some("15")
    });
    assert_eq!(received.spans.len(), 5, "{:#?}", received.spans);

    assert_eq!(received.metric("ringfence.starts"), Some(1.0));
    assert_eq!(received.metric("ringfence.requests"), Some(6.0));
    assert_eq!(received.metric("ringfence.sandboxes"), Some(0.0));
    for resource in &received.resources {
        let told = |name: &str| attribute(&resource.attributes, name);
        assert_eq!(told("service.name").as_deref(), Some("sandboxes"));
        assert_eq!(told("deployment.environment.name").as_deref(), Some("test"));
    }
    assert!(received.heads.to_lowercase().contains("x-tenant: of-the-test"), "{}", received.heads);
    for secret in [SECRET, "e2b_0", &sandbox.1, "OTEL_"] {
        assert!(!received.has(secret), "{secret} was told");
    }
    expect_nothing_left(&keeper);
}

#[test]
fn no_telemetry_is_sent_without_configuration() {
    require!(root, binary, user_namespaces);
    let collector = Collector::new(CollectorBehaviour::Takes);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url.as_str());
    let use_a_server = |variables: &[(&str, &str)]| {
        let server = RunningServer::told(&keeper, &[], variables);
        let client = RawClient::for_url(&server.url);
        let sandbox = client.create(&[("traceparent", &trace_parent())]);
        client.shell(&sandbox, "exit 0", &[]);
        client.kill(&sandbox);
        server.end();
        collector.received().connections
    };
    assert_eq!(use_a_server(&[]), 0);
    assert_eq!(use_a_server(&[endpoint, ("OTEL_SDK_DISABLED", "true")]), 0);
    assert_ne!(use_a_server(&[endpoint]), 0);
    expect_nothing_left(&keeper);
}

#[test]
fn a_silent_collector_delays_no_request() {
    require!(root, binary, user_namespaces);
    let collector = Collector::new(CollectorBehaviour::Silent);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let server = RunningServer::told(
        &keeper,
        &[],
        &[
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &format!("{}/v1/traces", collector.url)),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "600000"),
            ("OTEL_BSP_SCHEDULE_DELAY", "10"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "4"),
        ],
    );
    let client = RawClient::for_url(&server.url);
    let sandbox = client.create(&[]);
    client.shell(&sandbox, "exit 0", &[]);
    let begun = Instant::now();
    while collector.received().connections == 0 {
        assert!(begun.elapsed() < WAIT_TIMEOUT, "it is not even tried");
        std::thread::sleep(Duration::from_millis(5));
    }
    // While the exporter waits for an answer, more spans occur than its queue holds.
    for _ in 0..20 {
        client.shell(&sandbox, "exit 0", &[]);
    }
    client.kill(&sandbox);
    let begun = Instant::now();
    server.end();
    assert!(begun.elapsed() < Duration::from_secs(30), "the collector's time was waited for");
    let log = log_of(&keeper);
    assert!(log.contains("http/protobuf is used, which collectors accept on port 4318"), "{log}");
    expect_nothing_left(&keeper);
}

#[test]
fn an_unreachable_collector_is_reported_once() {
    require!(root, binary, user_namespaces);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    // The socket is bound, so that no other program has the port, but does not listen.
    let deaf = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)
        .expect("there are sockets");
    rustix::net::bind(&deaf, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))
        .expect("loopback has a port");
    let deaf = std::net::TcpListener::from(deaf);
    let nobody = format!("http://{}/v1/traces", deaf.local_addr().expect("it is bound"));
    let server = RunningServer::told(
        &keeper,
        &[],
        &[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &nobody), ("OTEL_BSP_SCHEDULE_DELAY", "10")],
    );
    let client = RawClient::for_url(&server.url);
    let sandbox = client.create(&[]);
    let said = || log_of(&keeper).matches("a collector does not accept data").count();
    let begun = Instant::now();
    while said() == 0 {
        client.shell(&sandbox, "exit 0", &[]);
        assert!(begun.elapsed() < WAIT_TIMEOUT, "it is not said");
    }
    for _ in 0..20 {
        client.shell(&sandbox, "exit 0", &[]);
    }
    client.kill(&sandbox);
    server.end();
    assert_eq!(said(), 1, "{}", log_of(&keeper));
    expect_nothing_left(&keeper);
}

#[test]
fn mcp_tool_calls_are_reported_as_telemetry() {
    require!(binary, user_namespaces, python3);
    let collector = Collector::new(CollectorBehaviour::Takes);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let mut client = McpClient::start(&keeper, &[("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url)]);
    let line = format!("env | grep -q OTEL_ && exit 9; : {SECRET}; exit 4");
    client.call("run_command", json!({ "command": line }), json!({}));
    let code = format!("print('{SECRET}')");
    let meta = json!({ "traceparent": trace_parent() });
    let answer = client.call("run_python_code", json!({ "code": code }), meta);
    assert!(answer.contains(SECRET), "{answer}");
    client.leave();

    let received = collector.received();
    let life = span(&received, "sandbox", |_| true);
    expect_attributes(life, &[("sandbox.select", "native")]);
    let own = span(&received, "exec", |span| span.parent_span_id == life.span_id);
    expect_attributes(own, &[("process.exit.code", "4"), ("process.executable.name", "sh")]);
    let asked_for =
        span(&received, "exec", |span| hexadecimal(&span.parent_span_id) == PARENT_SPAN_ID);
    expect_attributes(asked_for, &[("exec.language", "python"), ("process.exit.code", "0")]);
    assert!(!received.has(SECRET));
    fs_err::remove_dir_all(keeper.workspace()).expect("it is ours");
    keeper.expect_nothing_left();
}
