//! Spans for sandboxes and for the commands in them.

use std::collections::HashMap;
use std::time::SystemTime;

use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{
    SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt as _, Tracer as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracer;
use ringfence::{ExecutionResult, Manifest};

use super::Telemetry;

/// Header in which a caller names its current span, as in the W3C Trace Context specification.
pub const TRACE_PARENT: &str = "traceparent";

/// Span of the caller, if the caller names its span.
#[derive(Debug, Clone, Default)]
pub struct Caller {
    span: Option<SpanContext>,
}

impl Caller {
    /// Parses a `traceparent` header. A missing or malformed header gives a caller without a span.
    pub fn named(trace_parent: Option<&str>) -> Caller {
        let carrier =
            trace_parent.map(|text| HashMap::from([(TRACE_PARENT.to_owned(), text.to_owned())]));
        let context = carrier.map(|carrier| {
            TraceContextPropagator::new().extract_with_context(&Context::new(), &carrier)
        });
        let span = context.map(|context| context.span().span_context().clone());
        Caller { span: span.filter(SpanContext::is_valid) }
    }

    /// Returns the `traceparent` header of the span.
    pub fn text(&self) -> Option<String> {
        let span = self.span.as_ref()?;
        Some(format!(
            "00-{}-{}-{:02x}",
            span.trace_id(),
            span.span_id(),
            span.trace_flags().to_u8()
        ))
    }

    fn context(&self) -> Option<Context> {
        self.span.clone().map(|span| Context::new().with_remote_span_context(span))
    }
}

impl Telemetry {
    /// Begins the span of a sandbox that `caller` asked for. `started` may lie in the past.
    pub fn sandbox(
        &self,
        manifest: &Manifest,
        caller: &Caller,
        started: SystemTime,
    ) -> SandboxSpan {
        let begun = self.tracer().map(|tracer| {
            let attributes = sandbox_attributes(manifest)
                .into_iter()
                .chain([KeyValue::new("sandbox.chosen_because", manifest.chosen_because.clone())]);
            let span = SpanBuilder::from_name("sandbox")
                .with_kind(SpanKind::Internal)
                .with_start_time(started)
                .with_attributes(attributes);
            let context = caller.context().unwrap_or_default();
            let span = tracer.build_with_context(span, &context);
            StartedSpan {
                tracer: tracer.clone(),
                context: context.with_span(span),
                attributes: sandbox_attributes(manifest).into(),
            }
        });
        SandboxSpan { begun }
    }

    /// Records a span for a sandbox that could not be started.
    pub fn no_sandbox(&self, template: &str, caller: &Caller, asked: SystemTime, why: &str) {
        let Some(tracer) = self.tracer() else { return };
        let span = SpanBuilder::from_name("sandbox")
            .with_start_time(asked)
            .with_attributes([KeyValue::new("sandbox.template", template.to_owned())]);
        let context = caller.context().unwrap_or_default();
        let context = context.with_span(tracer.build_with_context(span, &context));
        context.span().set_status(Status::error(why.to_owned()));
    }
}

/// Returns the attributes that every span about a sandbox has.
fn sandbox_attributes(manifest: &Manifest) -> [KeyValue; 2] {
    [
        KeyValue::new("sandbox.id", manifest.name.to_string()),
        KeyValue::new("sandbox.select", manifest.backend.name()),
    ]
}

/// Span of the life of a sandbox. The span ends with [`SandboxSpan::end`], or when the last clone
/// is dropped.
#[derive(Debug, Clone, Default)]
pub struct SandboxSpan {
    begun: Option<StartedSpan>,
}

#[derive(Debug, Clone)]
struct StartedSpan {
    tracer: SdkTracer,
    context: Context,
    attributes: Vec<KeyValue>,
}

impl SandboxSpan {
    /// Adds an attribute to the span.
    pub fn set_attribute(&self, name: &'static str, value: impl Into<opentelemetry::Value>) {
        if let Some(begun) = &self.begun {
            begun.context.span().set_attribute(KeyValue::new(name, value));
        }
    }

    /// Ends the span, because the sandbox has ended or the program no longer observes it.
    pub fn end(&self) {
        if let Some(begun) = &self.begun {
            begun.context.span().end();
        }
    }

    /// Begins the span of an execution that `caller` asks for. The span belongs to the trace of the
    /// caller, with a link to the span of the sandbox. If the caller has no span, the execution
    /// belongs to the trace of the sandbox.
    pub fn exec(&self, caller: &Caller) -> ExecSpan {
        let context = self.begun.as_ref().map(|StartedSpan { tracer, context, attributes }| {
            let span = SpanBuilder::from_name("exec")
                .with_kind(SpanKind::Internal)
                .with_attributes(attributes.clone());
            match caller.context() {
                None => context.with_span(tracer.build_with_context(span, context)),
                Some(asked_from) => {
                    let span = tracer.build_with_context(span, &asked_from);
                    let own = context.span().span_context().clone();
                    let context = asked_from.with_span(span);
                    context.span().add_link(own, Vec::new());
                    context
                }
            }
        });
        ExecSpan { context }
    }
}

/// Span of an execution. The span ends with [`ExecSpan::end`], or when the last clone is dropped.
#[derive(Debug, Clone, Default)]
pub struct ExecSpan {
    context: Option<Context>,
}

impl ExecSpan {
    /// Returns whether the span is recorded.
    pub fn is_recorded(&self) -> bool {
        self.context.as_ref().is_some_and(|context| context.span().is_recording())
    }

    /// Records that the execution runs a program. Only the number of arguments is recorded, because
    /// the arguments may contain secrets.
    pub fn program(&self, program: &str, arguments: usize) {
        self.set_attribute("process.executable.name", program.to_owned());
        self.set_attribute(
            "process.args_count",
            i64::try_from(arguments.saturating_add(1)).unwrap_or(i64::MAX),
        );
    }

    /// Records that the execution runs code in `language`.
    pub fn code(&self, language: &str) {
        self.set_attribute("exec.language", language.to_owned());
    }

    /// Records the result of the execution and ends the span.
    pub fn end(&self, result: &ExecutionResult) {
        let Some(context) = &self.context else { return };
        if let Some(code) = result.exit_code {
            self.set_attribute("process.exit.code", i64::from(code));
        }
        if let Some(signal) = result.signal {
            self.set_attribute("exec.signal", i64::from(signal));
        }
        self.set_attribute("exec.timed_out", result.timed_out);
        self.set_attribute("exec.oom_killed", result.oom_killed);
        self.set_attribute(
            "exec.denials",
            i64::try_from(result.meta.denials.len()).unwrap_or(i64::MAX),
        );
        self.set_attribute("exec.warm", result.meta.warm);
        if !result.ok {
            context.span().set_status(Status::error(""));
        }
        context.span().end();
    }

    /// Ends the span of an execution that succeeded and has no detailed result.
    pub fn succeed(&self) {
        if let Some(context) = &self.context {
            context.span().end();
        }
    }

    /// Ends the span with an error, because the execution could not begin or its result is unknown.
    pub fn fail(&self, why: &str) {
        if let Some(context) = &self.context {
            context.span().set_status(Status::error(why.to_owned()));
            context.span().end();
        }
    }

    fn set_attribute(&self, name: &'static str, value: impl Into<opentelemetry::Value>) {
        if let Some(context) = &self.context {
            context.span().set_attribute(KeyValue::new(name, value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_whom_a_well_formed_header_names() {
        let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(Caller::named(Some(text)).text().as_deref(), Some(text));
        for wrong in
            ["", "00-0-0-01", "00-00000000000000000000000000000000-b7ad6b7169203331-01", "\u{e4}"]
        {
            assert_eq!(Caller::named(Some(wrong)).text(), None, "{wrong}");
        }
        assert_eq!(Caller::named(None).text(), None);
    }
}
