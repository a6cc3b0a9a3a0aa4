//! Commands that pass through the server. Clients that watch a sandbox ([`crate::page::activity`])
//! and the telemetry collector learn of them. The server reads the messages while it forwards them,
//! and forwarding never waits for that.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Frame;
use hyper::{Method, Request};
use ringfence::{CommandEnd, Observation};
use ringfence_proto::code::{Code, EndOfStream, Failure};
use ringfence_proto::process::{self, EndEvent, EventMessage, ProcessEvent, StartRequest};
use ringfence_service::telemetry::{Caller, ExecSpan, TRACE_PARENT};

use crate::api::reply::{Body, Reply};
use crate::forwarding::frame_scanner::FrameScanner;
use crate::forwarding::route::text;
use crate::lifecycle::registry::ManagedSandbox;
use crate::page::activity::{ExecutionHandle, ExecutionInfo, ExecutionKind};

/// Maximum length of a message that starts a command, in bytes. The words of a longer message are
/// not recorded.
const LONGEST_START: usize = 64 << 10;
/// Maximum length of a message that reports the end of a command, in bytes. All longer messages are
/// output.
const LONGEST_END: usize = 1 << 10;

/// Returns the trace context that a request names.
pub(crate) fn caller<B>(request: &Request<B>) -> Caller {
    Caller::named(text(request.headers(), TRACE_PARENT))
}

/// Command that a request starts.
#[derive(Debug)]
pub(crate) struct FollowedExecution {
    /// Record of the execution for watchers, set once the request body has said what is started.
    begun: Arc<OnceLock<ExecutionHandle>>,
    traced: Option<TracedExecution>,
}

/// Telemetry of an execution.
#[derive(Debug)]
struct TracedExecution {
    span: ExecSpan,
    before: Observation,
    begun: Instant,
}

impl FollowedExecution {
    /// Returns the execution that a request starts, if it starts one. Wraps the body of the request
    /// to read its messages.
    pub(crate) fn from_request(
        managed: &ManagedSandbox,
        request: &mut Request<Body>,
    ) -> Option<FollowedExecution> {
        let method = request.uri().path().strip_prefix('/')?.strip_prefix(process::SERVICE)?;
        if request.method() != Method::POST || method != "/Start" {
            return None;
        }
        let span = managed.span.exec(&caller(request));
        let trace = || TracedExecution {
            span: span.clone(),
            before: managed.sandbox.observe(),
            begun: Instant::now(),
        };
        let execution =
            FollowedExecution { begun: Arc::default(), traced: span.is_recorded().then(trace) };
        let (activity, begun) = (Arc::clone(&managed.activity), Arc::clone(&execution.begun));
        listen(request.body_mut(), LONGEST_START, move |message| {
            let what = match message.and_then(|message| serde_json::from_slice(message).ok()) {
                Some(StartRequest { process, pty, .. }) => {
                    span.program(&process.cmd, process.args.len());
                    let kind = if pty.is_some() {
                        ExecutionKind::Terminal
                    } else {
                        ExecutionKind::Command
                    };
                    ExecutionInfo::command(kind, process)
                }
                None => {
                    span.program("", 0);
                    ExecutionInfo::unread(ExecutionKind::Command)
                }
            };
            begun.get_or_init(|| activity.begin(what)); // a stream has only one such message
        });
        Some(execution)
    }

    /// Follows the answer until the command has ended or the client disconnects.
    pub(crate) fn follow(self, reply: &mut Reply) {
        let FollowedExecution { begun, traced } = self;
        if !reply.status().is_success() {
            begun.get().into_iter().for_each(|begun| begun.ended(false, "not started"));
            traced.into_iter().for_each(|traced| traced.span.fail("the command was not started"));
            return;
        }
        let mut last = None;
        listen(reply.body_mut(), LONGEST_END, move |message| {
            // Only messages about the end are parsed, not output.
            match message {
                Some(message) if message.starts_with(br#"{"event":{"end":"#) => {
                    if let Ok(EventMessage { event: ProcessEvent::End(end) }) =
                        serde_json::from_slice(message)
                    {
                        begun
                            .get()
                            .into_iter()
                            .for_each(|begun| begun.ended(is_well(&end), end.status.as_str()));
                        last = Some(end);
                    }
                }
                Some(message) if !message.starts_with(br#"{"event":"#) => {
                    let failure = serde_json::from_slice(message)
                        .ok()
                        .and_then(|EndOfStream { error }| error);
                    for (begun, failure) in begun.get().into_iter().zip(&failure) {
                        begun.ended(false, failure.message.as_str());
                    }
                    traced.iter().for_each(|traced| traced.end(last.take(), failure.as_ref()));
                }
                _ => {}
            }
        });
    }
}

impl TracedExecution {
    /// Ends the span with the reported end of the command and the end of the stream.
    fn end(&self, last: Option<EndEvent>, failure: Option<&Failure>) {
        let timed_out = failure.is_some_and(|failure| failure.code == Code::DeadlineExceeded);
        let Some(end) = last.or_else(|| timed_out.then(EndEvent::default)) else {
            return self.span.fail("the end of the command is not known");
        };
        self.span.end(&self.before.result(CommandEnd::from_event(
            &end,
            timed_out,
            self.begun.elapsed(),
        )));
    }
}

fn is_well(end: &EndEvent) -> bool {
    end.exited && end.exit_code == 0
}

/// Calls `hear` with each message of a body as it passes through. A message longer than `longest`
/// gives `None`.
fn listen(body: &mut Body, longest: usize, mut hear: impl FnMut(Option<&[u8]>) + Send + 'static) {
    let mut messages = FrameScanner::new(longest);
    let heard = std::mem::take(body).map_frame(move |frame: Frame<Bytes>| {
        if let Some(bytes) = frame.data_ref() {
            messages.push(bytes, &mut hear);
        }
        frame
    });
    *body = heard.boxed_unsync();
}
