//! Live events of a sandbox. The stream has one line of JSON for each execution, for each change of
//! an execution and for each denial.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use http_body_util::{BodyExt, StreamBody};
use hyper::StatusCode;
use hyper::body::Frame;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use ringfence::egress::{EgressEvent, EgressLogFollower, LogEntry};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::api::control::{Owner, OwnerCalls};
use crate::api::reply::{Refusal, Reply, bare};
use crate::lifecycle::registry::ManagedSandbox;
use crate::page::activity::ExecutionRecord;
use crate::server::Server;

/// Interval at which the server looks for denials. Polling is necessary because another process
/// writes them.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Number of looks without an event after which an empty line shows whether the client still
/// listens.
const KEEPALIVE_POLLS: u32 = 15;

/// Line of the event stream.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
enum EventLine {
    Execution(ExecutionRecord),
    Denial(DenialEvent),
}

/// Network request that the policy denied.
#[derive(Debug, Serialize)]
struct DenialEvent {
    at: String,
    target: String,
    reason: String,
    /// Line of a policy that would allow the request, if there is one.
    allow: Option<String>,
}

impl OwnerCalls<'_> {
    /// Streams the events of a sandbox until the sandbox or the server ends.
    pub(crate) fn events(&self, id: &str) -> Result<Reply, Refusal> {
        let managed = self.find(id)?;
        let permit = Arc::clone(&managed.activity.watchers).try_acquire_owned();
        let permit = permit.map_err(|_| {
            Refusal::busy("too many clients watch this sandbox", KEEPALIVE_POLLS.into())
        })?;
        let stream_end = stream_end(&managed, Arc::clone(self.server));
        let follower = EgressLogFollower::for_sandbox(self.server.registry.host(), id);
        let watch = EventStream::new(managed, follower, Box::pin(stream_end), permit);
        let pieces = stream::unfold(watch, |mut watch| async {
            let text = watch.next().await?;
            Some((Ok(Frame::data(Bytes::from(text))), watch))
        });
        let mut reply = bare(StatusCode::OK);
        reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
        *reply.body_mut() = StreamBody::new(pieces.boxed()).boxed_unsync();
        Ok(reply)
    }
}

/// Waits until the event stream must end: the sandbox has ended, the key of its owner is revoked,
/// or the server is about to end.
fn stream_end(
    managed: &ManagedSandbox,
    server: Arc<Server>,
) -> impl Future<Output = ()> + Send + use<> {
    let (sandbox, owner) = (managed.sandbox.clone(), managed.record.owner.clone());
    async move {
        let mut ending = server.ending.subscribe();
        tokio::select! {
            () = sandbox.ended() => {}
            () = revoked(&server, owner) => {}
            _ = ending.wait_for(|ending| *ending) => {} // an error means that the server is gone
        }
    }
}

/// Waits until the key of the owner is revoked.
async fn revoked(server: &Server, owner: Owner) {
    let Some(id) = owner else { return std::future::pending().await };
    while server.keys.all().iter().any(|key| key.id == id) {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Event stream of one client.
struct EventStream {
    managed: Arc<ManagedSandbox>,
    stream_end: Pin<Box<dyn Future<Output = ()> + Send>>,
    changes: watch::Receiver<u64>,
    /// Number of the last change that was sent.
    sent: u64,
    poll: Interval,
    /// Reader of the egress log; absent while it reads on another thread.
    follower: Option<EgressLogFollower>,
    /// Number of looks in a row without an event.
    quiet: u32,
    _permit: OwnedSemaphorePermit,
}

impl EventStream {
    fn new(
        managed: Arc<ManagedSandbox>,
        follower: EgressLogFollower,
        stream_end: Pin<Box<dyn Future<Output = ()> + Send>>,
        permit: OwnedSemaphorePermit,
    ) -> EventStream {
        let mut poll = interval(POLL_INTERVAL);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        EventStream {
            stream_end,
            changes: managed.activity.changes(),
            sent: 0,
            poll,
            follower: Some(follower),
            quiet: 0,
            managed,
            _permit: permit,
        }
    }

    /// Returns the next lines, or `None` when the stream is over.
    async fn next(&mut self) -> Option<String> {
        loop {
            let lines = tokio::select! {
                () = &mut self.stream_end => return None,
                changed = self.changes.changed() => {
                    changed.ok()?;
                    self.executions()
                }
                _ = self.poll.tick() => self.denials().await,
            };
            self.quiet = if lines.is_empty() { self.quiet + 1 } else { 0 };
            if !lines.is_empty() {
                let text = |line: &EventLine| {
                    serde_json::to_string(line).expect("a line has text for keys") + "\n"
                };
                return Some(lines.iter().map(text).collect());
            }
            if self.quiet >= KEEPALIVE_POLLS {
                self.quiet = 0;
                return Some("\n".to_owned());
            }
        }
    }

    fn executions(&mut self) -> Vec<EventLine> {
        let (changed, sent) = self.managed.activity.after(self.sent);
        self.sent = sent;
        changed.into_iter().map(EventLine::Execution).collect()
    }

    /// Returns the denials since the last look, or nothing if the log cannot be read.
    async fn denials(&mut self) -> Vec<EventLine> {
        let Some(mut follower) = self.follower.take() else { return Vec::new() };
        let read = tokio::task::spawn_blocking(move || (follower.read_on(), follower));
        let Ok((entries, follower)) = read.await else { return Vec::new() };
        self.follower = Some(follower);
        let entries =
            entries.inspect_err(|error| tracing::warn!(%error, "cannot read the egress log"));
        entries.into_iter().flatten().filter_map(denied).map(EventLine::Denial).collect()
    }
}

fn denied(entry: LogEntry) -> Option<DenialEvent> {
    let at = entry.time;
    match entry.event {
        EgressEvent::Denied(denial) => {
            let reason = denial.reason.to_string();
            Some(DenialEvent { at, target: denial.target, reason, allow: denial.policy })
        }
        EgressEvent::Omitted { denials } => {
            let reason = "counted, without details".to_owned();
            Some(DenialEvent { at, target: format!("{denials} more denials"), reason, allow: None })
        }
        _ => None,
    }
}
