//! The control plane: sandboxes are made, found and ended here.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::header::{HOST, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use jiff::Timestamp;
use ringfence_proto::query::Query;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::executions::caller;
use super::messages::{Access, Detail, Lifecycle, Listed, LogEntry, LogLine, Logs, Metric, Stay, Used};
use super::page::{Filter, Page};
use super::quota::Quota;
use super::registry::Live;
use super::reply::{Refusal, Reply, bare, json};
use super::server::Server;

/// How long a sandbox stays when its client does not say, in seconds.
const DEFAULT_STAY: u64 = 300;
/// The longest body of a request, and how long it may take to arrive.
const LONGEST_BODY: usize = 1 << 20;
const BODY_PATIENCE: Duration = Duration::from_secs(30);
/// How long a guest may take to say what its sandbox uses.
const METRICS_PATIENCE: Duration = Duration::from_secs(10);
/// How much of a sandbox's log is told.
const MOST_LINES: usize = 1000;

const NEXT_TOKEN: HeaderName = HeaderName::from_static("x-next-token");

/// Whose sandboxes a request is about: those of a key, or where none was needed, those of nobody.
pub(super) type Owner = Option<String>;

/// Answers a request of `owner`.
pub(super) async fn answer(
    server: &Arc<Server>,
    owner: Owner,
    quota: Quota,
    request: Request<Incoming>,
) -> Result<Reply, Refusal> {
    let path = request.uri().path().to_owned();
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    // The two versions of the API say the same, where they say it at all.
    let segments = segments.strip_prefix(&["v2"]).unwrap_or(&segments);
    let calls = Calls { server, owner, quota };
    match (request.method(), segments) {
        (&Method::POST, ["sandboxes"]) => {
            let caller = caller(&request);
            let live = calls.create(body(request).await?, caller).await?;
            Ok(json(StatusCode::CREATED, &Access::of(&live)))
        }
        (&Method::GET, ["sandboxes"]) => calls.list(&request),
        (&Method::GET, ["sandboxes", id]) => calls.info(id),
        (&Method::DELETE, ["sandboxes", id]) => calls.kill(id).await,
        (&Method::POST, ["sandboxes", id, "timeout" | "refreshes"]) => calls.set_timeout(id, request).await,
        (&Method::POST, ["sandboxes", id, "connect" | "resume"]) => calls.connect(id, request).await,
        (&Method::GET, ["sandboxes", id, "metrics"]) => calls.metrics(id).await,
        (&Method::GET, ["sandboxes", id, "logs"]) => calls.logs(id),
        (&Method::POST, ["sandboxes", id, "pause"]) => calls.cannot(id, "paused"),
        (&Method::POST, ["sandboxes", id, "snapshots"]) => calls.cannot(id, "saved"),
        (&Method::POST, ["sandboxes", id, "fork"]) => calls.cannot(id, "forked"),
        (&Method::PUT, ["sandboxes", id, "network"]) => {
            calls.cannot(id, "given another network: it is fixed at the start")
        }
        (&Method::GET, ["snapshots"]) => Ok(json(StatusCode::OK, &[(); 0])),
        _ => Err(Refusal::new(StatusCode::NOT_FOUND, format!("there is nothing at {} {path}", request.method()))),
    }
}

/// The calls of one owner.
pub(super) struct Calls<'a> {
    pub(super) server: &'a Arc<Server>,
    pub(super) owner: Owner,
    pub(super) quota: Quota,
}

impl Calls<'_> {
    /// The sandbox of that name, if it is this owner's and is up.
    fn find(&self, id: &str) -> Result<Arc<Live>, Refusal> {
        let live = self.server.registry.find(id).filter(|live| live.record.owner == self.owner);
        live.filter(|live| live.sandbox.is_up()).ok_or_else(|| Refusal::no_sandbox(id))
    }

    fn info(&self, id: &str) -> Result<Reply, Refusal> {
        let live = self.find(id)?;
        let detail = Detail {
            listed: self.listed(&live),
            envd_access_token: &live.record.token,
            allow_internet_access: live.record.has_internet,
            lifecycle: Lifecycle::ENDS,
        };
        Ok(json(StatusCode::OK, &detail))
    }

    fn listed<'a>(&self, live: &'a Live) -> Listed<'a> {
        Listed::of(live, self.server.templates.get(&live.record.template))
    }

    fn list(&self, request: &Request<Incoming>) -> Result<Reply, Refusal> {
        let query = Query::of(request.uri().query().unwrap_or_default());
        let filter = Filter::of(&query.map_err(|failure| Refusal::wrong(failure.message))?)?;
        let all = self.server.registry.of(&self.owner);
        let Page { shown, next } = filter.page(all, |live| &live.record);
        let listed: Vec<Listed<'_>> = shown.iter().map(|live| self.listed(live)).collect();
        let mut reply = json(StatusCode::OK, &listed);
        if let Some(next) = next {
            let next = HeaderValue::try_from(next).expect("a time and a name are plain");
            reply.headers_mut().insert(NEXT_TOKEN, next);
        }
        Ok(reply)
    }

    async fn kill(&self, id: &str) -> Result<Reply, Refusal> {
        let live = self.find(id)?;
        self.server.registry.end(&live).await;
        Ok(bare(StatusCode::NO_CONTENT))
    }

    async fn set_timeout(&self, id: &str, request: Request<Incoming>) -> Result<Reply, Refusal> {
        let live = self.find(id)?;
        let Stay { timeout } = body(request).await?;
        self.renew(&live, self.after(live.record.started, timeout)?).await?;
        Ok(bare(StatusCode::NO_CONTENT))
    }

    /// Reaches a sandbox that is up. Its time is made longer where it would be over sooner, and never shorter.
    async fn connect(&self, id: &str, request: Request<Incoming>) -> Result<Reply, Refusal> {
        let live = self.find(id)?;
        let Stay { timeout } = body(request).await?;
        let ends = from_now(timeout).min(self.latest(live.record.started));
        if ends > live.ends() {
            self.renew(&live, ends).await?;
        }
        Ok(json(StatusCode::OK, &Access::of(&live)))
    }

    async fn renew(&self, live: &Live, ends: Timestamp) -> Result<(), Refusal> {
        self.server.registry.renew(live, ends).await.map_err(|failure| {
            tracing::error!(id = live.record.id, error = failure.message(), "a sandbox's time is not changed");
            Refusal::failed("the sandbox's time could not be changed; the server's log tells why")
        })
    }

    async fn metrics(&self, id: &str) -> Result<Reply, Refusal> {
        let live = self.find(id)?;
        let silent = || Refusal::failed(format!("the guest of sandbox `{id}` does not say what is used"));
        let empty = Empty::<Bytes>::new().map_err(|never| match never {}).boxed_unsync();
        let request = Request::get("/metrics").header(HOST, "guest").body(empty).expect("it is fixed text");
        let asked = async {
            let response = live.ways.send(live.sandbox.session(), request).await.map_err(|_| silent())?;
            let text = Limited::new(response.into_body(), LONGEST_BODY).collect().await.map_err(|_| silent())?;
            serde_json::from_slice::<Used>(&text.to_bytes()).map_err(|_| silent())
        };
        let used = timeout(METRICS_PATIENCE, asked).await.map_err(|_| silent())??;
        Ok(json(StatusCode::OK, &[Metric::from(used)]))
    }

    fn logs(&self, id: &str) -> Result<Reply, Refusal> {
        let live = self.find(id)?;
        let text = fs_err::read(live.sandbox.log()).unwrap_or_default(); // there may be none yet
        let text = String::from_utf8_lossy(&text);
        let mut lines: Vec<&str> = text.lines().rev().take(MOST_LINES).collect();
        lines.reverse();
        let timestamp = live.record.started;
        let line = |line: &&str| LogLine { timestamp, line: (*line).to_owned() };
        let entry = |line: &&str| LogEntry {
            timestamp,
            message: (*line).to_owned(),
            level: "info",
            fields: Default::default(),
        };
        let logs = Logs { logs: lines.iter().map(line).collect(), log_entries: lines.iter().map(entry).collect() };
        Ok(json(StatusCode::OK, &logs))
    }

    /// The end of so many seconds from now, of a sandbox that began at `started`; none where it may not stay that long.
    pub(super) fn after(&self, started: Timestamp, seconds: Option<u64>) -> Result<Timestamp, Refusal> {
        let ends = from_now(seconds);
        if ends > self.latest(started) {
            let most = self.quota.longest().as_secs();
            return Err(Refusal::wrong(format!("a sandbox may stay for {most} seconds at most, from its start")));
        }
        Ok(ends)
    }

    /// When a sandbox that began at `started` ends at the latest.
    fn latest(&self, started: Timestamp) -> Timestamp {
        started.checked_add(self.quota.longest()).unwrap_or(Timestamp::MAX)
    }

    /// What no backend can do, of a sandbox that is there.
    fn cannot(&self, id: &str, what: &str) -> Result<Reply, Refusal> {
        let live = self.find(id)?;
        let backend = live.sandbox.manifest().backend;
        Err(Refusal::unsupported(format!("a sandbox on {backend} cannot be {what}")))
    }
}

/// So many seconds from now.
fn from_now(seconds: Option<u64>) -> Timestamp {
    let stay = Duration::from_secs(seconds.unwrap_or(DEFAULT_STAY));
    Timestamp::now().checked_add(stay).unwrap_or(Timestamp::MAX)
}

/// Reads what a request says. Nothing at all says nothing.
pub(super) async fn body<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T, Refusal> {
    let collected = timeout(BODY_PATIENCE, Limited::new(request.into_body(), LONGEST_BODY).collect()).await;
    let late = |_| Refusal::new(StatusCode::REQUEST_TIMEOUT, "the request's body takes too long");
    let text = collected.map_err(late)?.map_err(|error| match error.is::<http_body_util::LengthLimitError>() {
        true => Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, format!("a request has {LONGEST_BODY} bytes at most")),
        false => Refusal::wrong("the request's body broke off"),
    })?;
    let text = text.to_bytes();
    let text: &[u8] = if text.is_empty() { b"{}" } else { &text };
    serde_json::from_slice(text).map_err(|error| Refusal::wrong(format!("the request cannot be read: {error}")))
}
