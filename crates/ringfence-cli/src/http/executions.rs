//! Commands on their way through the server: what is told of them is read as it goes by, and nothing waits for that.

use std::time::Instant;

use http_body_util::BodyExt;
use hyper::Request;
use ringfence::{Ended, Observation};
use ringfence_proto::code::{Code, EndOfStream};
use ringfence_proto::frame::{Decoder, Frame, parse};
use ringfence_proto::process::{EventMessage, ProcessEvent, StartRequest};

use super::place::text;
use super::registry::Live;
use super::reply::{Body, Reply};
use crate::telemetry::{Caller, ExecSpan, TRACE_PARENT};

/// Where clients have a command started.
const START: &str = "/process.Process/Start";

/// Who asks for something, as far as their trace tells.
pub(super) fn caller<B>(request: &Request<B>) -> Caller {
    Caller::named(text(request.headers(), TRACE_PARENT))
}

/// A command that somebody is told of.
#[derive(Debug)]
pub(super) struct Execution {
    span: ExecSpan,
    before: Observation,
    begun: Instant,
}

impl Execution {
    /// The command that a request starts, if it starts one and somebody is told of it. The request is listened to.
    pub(super) fn of(live: &Live, request: &mut Request<Body>) -> Option<Execution> {
        if request.uri().path() != START {
            return None;
        }
        let span = live.span.exec(&caller(request));
        if !span.is_told() {
            return None;
        }
        let execution = Execution { span: span.clone(), before: live.sandbox.observe(), begun: Instant::now() };
        let mut messages = Messages::default();
        listen(request.body_mut(), move |bytes| {
            if let Some(Frame::Message(message)) = messages.next(bytes)
                && let Ok(StartRequest { process, .. }) = parse(&message)
            {
                span.program(&process.cmd, process.args.len());
            }
        });
        Some(execution)
    }

    /// Listens to the answer until the command has ended. A client that goes away before has it end there.
    pub(super) fn follow(self, reply: &mut Reply) {
        if !reply.status().is_success() {
            return self.span.fail("it was not started");
        }
        let (mut messages, mut last) = (Messages::default(), Vec::new());
        listen(reply.body_mut(), move |bytes| {
            let mut next = messages.next(bytes);
            while let Some(frame) = next {
                match frame {
                    Frame::Message(message) => last = message,
                    Frame::End(message) => self.end(&last, &message),
                }
                next = messages.next(&[]);
            }
        });
    }

    /// Tells how it ended: by the last message of its stream, and by how the stream itself did.
    fn end(&self, last: &[u8], end: &[u8]) {
        let failure = parse::<EndOfStream>(end).ok().and_then(|end| end.error);
        let timed_out = failure.as_ref().is_some_and(|failure| failure.code == Code::DeadlineExceeded);
        let ended = match parse(last) {
            Ok(EventMessage { event: ProcessEvent::End(end) }) => end,
            _ if timed_out => Default::default(),
            _ => return self.span.fail("it was lost sight of"),
        };
        self.span.end(&self.before.result(Ended::of(&ended, timed_out, self.begun.elapsed())));
    }
}

/// The messages of a stream; none any more when it cannot be understood.
#[derive(Debug, Default)]
struct Messages {
    decoder: Decoder,
    is_lost: bool,
}

impl Messages {
    /// The next one, after `bytes` more of the stream.
    fn next(&mut self, bytes: &[u8]) -> Option<Frame> {
        if self.is_lost {
            return None;
        }
        self.decoder.push(bytes);
        self.decoder.next_frame().unwrap_or_else(|_| {
            self.is_lost = true;
            None
        })
    }
}

/// Has `hear` hear what a body brings, as it goes by.
fn listen(body: &mut Body, mut hear: impl FnMut(&[u8]) + Send + 'static) {
    let heard = std::mem::take(body).map_frame(move |frame| {
        if let Some(bytes) = frame.data_ref() {
            hear(bytes);
        }
        frame
    });
    *body = heard.boxed_unsync();
}
