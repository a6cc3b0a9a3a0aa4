//! Control plane of the server, which creates, finds and ends sandboxes.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use jiff::Timestamp;
use ringfence_proto::query::UrlQuery;
use ringfence_service::exchange::RequestBody;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::api::messages::{
    Lifecycle, ListedSandbox, LogEntry, LogLine, Logs, Metric, Metrics, SandboxAccess,
    SandboxDetail,
};
use crate::api::network::{NetworkInfo, network_of};
use crate::api::pagination::{ListFilter, Page, parsed};
use crate::api::reply::{Refusal, Reply, bare, json};
use crate::api::requests::{LeaseRequest, PauseRequest};
use crate::lifecycle::expiry::{SandboxState, after};
use crate::lifecycle::pausing::{RenewOutcome, ResumeError};
use crate::lifecycle::registry::ManagedSandbox;
use crate::server::Server;
use crate::tenants::quota::Quota;

/// Default lease of a sandbox, in seconds.
const DEFAULT_LIFETIME_SECONDS: u64 = 300;
/// Maximum length of the body of a request, in bytes.
const LONGEST_BODY: usize = 1 << 20;
/// Maximum time for the body of a request to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Number of bytes at the end of a sandbox's log that the server reads.
const MOST_OF_LOG: u64 = 256 << 10;
/// Maximum number of log lines in an answer.
const MOST_LINES: usize = 1000;

const NEXT_TOKEN: HeaderName = HeaderName::from_static("x-next-token");

/// Owner of sandboxes: the id of an API key, or `None` for requests without a key on a server that
/// needs none.
pub(crate) type Owner = Option<String>;

/// Answers a request of `owner` to the control plane.
pub(crate) async fn answer(
    server: &Arc<Server>,
    owner: Owner,
    quota: Quota,
    request: Request<RequestBody>,
) -> Result<Reply, Refusal> {
    let path = request.uri().path().to_owned();
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    // Both versions of the API mean the same where they have the same call.
    let segments = segments.strip_prefix(&["v2"]).unwrap_or(&segments);
    let calls = OwnerCalls { server, owner, quota };
    match (request.method(), segments) {
        (&Method::POST, ["sandboxes"]) => {
            let managed = calls.create_once(request).await?;
            Ok(json(StatusCode::CREATED, &SandboxAccess::from_sandbox(&managed)))
        }
        (&Method::GET, ["sandboxes"]) => calls.list(&request),
        (&Method::GET, ["sandboxes", "metrics"]) => calls.metrics_of_several(&request).await,
        (&Method::GET, ["sandboxes", id]) => calls.info(id),
        (&Method::DELETE, ["sandboxes", id]) => calls.kill(id).await,
        (&Method::POST, ["sandboxes", id, "timeout"]) => calls.set_timeout(id, request).await,
        (&Method::POST, ["sandboxes", id, "refreshes"]) => calls.refresh(id, request).await,
        (&Method::POST, ["sandboxes", id, "connect" | "resume"]) => {
            calls.connect(id, request).await
        }
        (&Method::GET, ["sandboxes", id, "metrics"]) => calls.metrics(id, &request).await,
        (&Method::GET, ["sandboxes", id, "logs"]) => calls.logs(id).await,
        (&Method::POST, ["sandboxes", id, "pause"]) => calls.pause(id, request).await,
        (&Method::POST, ["sandboxes", id, "snapshots"]) => calls.save(id, request).await,
        (&Method::POST, ["sandboxes", id, "fork"]) => calls.cannot(
            id,
            "forked, because its memory cannot be copied: take a snapshot with \
             create_snapshot(mode=\"filesystem\"), and create a sandbox from the snapshot",
        ),
        (&Method::PUT, ["sandboxes", id, "network"]) => calls.set_network(id, request).await,
        (&Method::GET, ["ringfence", "templates"]) => Ok(calls.templates()),
        (&Method::GET, ["ringfence", "sandboxes", id]) => calls.isolation_info(id),
        (&Method::GET, ["ringfence", "sandboxes", id, "events"]) => calls.events(id),
        (&Method::GET, ["snapshots"]) => calls.snapshots(&request),
        (&Method::DELETE, ["templates", id]) => calls.delete_template(id).await,
        _ => Err(Refusal::new(
            StatusCode::NOT_FOUND,
            format!("the API has no endpoint {} {path}", request.method()),
        )),
    }
}

/// Calls of one owner, with the quota of the owner.
pub(crate) struct OwnerCalls<'a> {
    pub(crate) server: &'a Arc<Server>,
    pub(crate) owner: Owner,
    pub(crate) quota: Quota,
}

impl OwnerCalls<'_> {
    /// Returns the sandbox `id` if it belongs to this owner and is up.
    pub(crate) fn find(&self, id: &str) -> Result<Arc<ManagedSandbox>, Refusal> {
        let managed =
            self.server.registry.find(id).filter(|managed| managed.record.owner == self.owner);
        managed.filter(|managed| managed.sandbox.is_up()).ok_or_else(|| Refusal::no_sandbox(id))
    }

    fn info(&self, id: &str) -> Result<Reply, Refusal> {
        let managed = self.find(id)?;
        let network = NetworkInfo::from_network(&network_of(&managed)?, &managed.record);
        let detail = SandboxDetail {
            listed: self.listed(&managed),
            envd_access_token: &managed.record.token,
            allow_internet_access: network.reaches_something(),
            network,
            lifecycle: Lifecycle::from_record(&managed.record),
        };
        Ok(json(StatusCode::OK, &detail))
    }

    fn listed<'a>(&self, managed: &'a ManagedSandbox) -> ListedSandbox<'a> {
        ListedSandbox::from_sandbox(managed, self.server.templates.get(&managed.record.template))
    }

    fn list(&self, request: &Request<RequestBody>) -> Result<Reply, Refusal> {
        let filter = ListFilter::from_query(&query(request)?)?;
        let all = self.server.registry.list_for_owner(&self.owner);
        let Page { shown, next } =
            filter.page(all, |managed| &managed.record, |managed| managed.expiry().state());
        let listed: Vec<ListedSandbox<'_>> =
            shown.iter().map(|managed| self.listed(managed)).collect();
        Ok(with_next(json(StatusCode::OK, &listed), next))
    }

    async fn kill(&self, id: &str) -> Result<Reply, Refusal> {
        let managed = self.find(id)?;
        self.server.registry.end(&managed).await.map_err(|failure| {
            tracing::error!(id, error = failure.message(), "cannot end a sandbox");
            self.server.registry.failed(&format!("sandbox `{id}` could not be ended"))
        })?;
        Ok(bare(StatusCode::NO_CONTENT))
    }

    async fn set_timeout(&self, id: &str, request: Request<RequestBody>) -> Result<Reply, Refusal> {
        let managed = self.find(id)?;
        let LeaseRequest { timeout, .. } = body(request).await?;
        let seconds = timeout.ok_or_else(|| {
            Refusal::wrong("`timeout` is missing: give the lifetime of the sandbox in seconds")
        })?;
        self.set_lifetime(&managed, seconds).await
    }

    async fn refresh(&self, id: &str, request: Request<RequestBody>) -> Result<Reply, Refusal> {
        let managed = self.find(id)?;
        let LeaseRequest { timeout, .. } = body(request).await?;
        self.set_lifetime(&managed, timeout.unwrap_or(DEFAULT_LIFETIME_SECONDS)).await
    }

    async fn set_lifetime(
        &self,
        managed: &Arc<ManagedSandbox>,
        seconds: u64,
    ) -> Result<Reply, Refusal> {
        let id = &managed.record.id;
        let latest = managed.expiry().latest(managed.record.started, self.quota.longest());
        match self.renew(managed, self.ends(Timestamp::now(), latest, Some(seconds))?).await? {
            RenewOutcome::Done => Ok(bare(StatusCode::NO_CONTENT)),
            RenewOutcome::Gone => Err(Refusal::no_sandbox(id)),
            RenewOutcome::Paused => Err(Refusal::new(
                StatusCode::CONFLICT,
                format!("sandbox `{id}` is paused: connect to it first"),
            )),
        }
    }

    /// Connects to a sandbox, and resumes the sandbox if it is paused. Extends the lease of a
    /// running sandbox where the requested time is longer, and never shortens it.
    async fn connect(&self, id: &str, request: Request<RequestBody>) -> Result<Reply, Refusal> {
        let managed = self.find(id)?;
        let LeaseRequest { timeout, memory } = body(request).await?;
        if memory == Some(false) {
            return Err(Refusal::wrong(
                "this server does not support `memory`: false, because a resumed sandbox keeps its \
                 memory",
            ));
        }
        let (lifetime, longest) = (lifetime(timeout), self.quota.longest());
        if managed.expiry().state() == SandboxState::Paused
            && let Some(refusal) = self.server.key_usages().spent(&self.owner, &self.quota)
        {
            return Err(refusal);
        }
        let resumed = self
            .server
            .registry
            .resume(&managed, lifetime, longest)
            .await
            .map_err(|error| self.not_resumed(id, error))?;
        if resumed {
            return Ok(json(StatusCode::CREATED, &SandboxAccess::from_sandbox(&managed)));
        }
        let expiry = managed.expiry();
        let ends =
            after(Timestamp::now(), lifetime).min(expiry.latest(managed.record.started, longest));
        if ends > expiry.ends && self.renew(&managed, ends).await? == RenewOutcome::Gone {
            return Err(Refusal::no_sandbox(id));
        }
        Ok(json(StatusCode::OK, &SandboxAccess::from_sandbox(&managed)))
    }

    fn not_resumed(&self, id: &str, error: ResumeError) -> Refusal {
        match error {
            ResumeError::Spent => Refusal::wrong(format!(
                "sandbox `{id}` has reached the maximum lifetime of its key: kill it, and create \
                 another"
            )),
            ResumeError::Failed(failure) => {
                tracing::error!(id, error = failure.message(), "cannot resume a sandbox");
                self.server.registry.failed(&format!("sandbox `{id}` could not be resumed"))
            }
        }
    }

    async fn renew(
        &self,
        managed: &Arc<ManagedSandbox>,
        ends: Timestamp,
    ) -> Result<RenewOutcome, Refusal> {
        self.server.registry.renew(managed, ends).await.map_err(|failure| {
            tracing::error!(
                id = managed.record.id,
                error = failure.message(),
                "cannot change the lifetime of a sandbox"
            );
            self.server.registry.failed("the lifetime of the sandbox could not be changed")
        })
    }

    async fn pause(&self, id: &str, request: Request<RequestBody>) -> Result<Reply, Refusal> {
        let managed = self.find(id)?;
        let PauseRequest { memory, require_healthy_guest } = body(request).await?;
        if memory == Some(false) {
            return Err(Refusal::wrong(
                "this server does not support `memory`: false, because a paused sandbox keeps its \
                 memory",
            ));
        }
        if require_healthy_guest
            && managed.expiry().state() == SandboxState::Running
            && managed.sandbox.health().await.is_err()
        {
            let message = format!(
                "the guest of sandbox `{id}` does not answer, so the sandbox was not paused"
            );
            return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, message));
        }
        let paused = self.server.registry.pause(&managed).await.map_err(|failure| {
            tracing::error!(id, error = failure.message(), "cannot pause a sandbox");
            self.server.registry.failed(&format!("sandbox `{id}` could not be paused"))
        })?;
        match paused {
            true => Ok(bare(StatusCode::NO_CONTENT)),
            false => {
                Err(Refusal::new(StatusCode::CONFLICT, format!("sandbox `{id}` is paused already")))
            }
        }
    }

    /// Answers with the metrics of a sandbox between two times, as far as the server keeps them.
    /// Without an end in the request, the newest metrics are included.
    async fn metrics(&self, id: &str, request: &Request<RequestBody>) -> Result<Reply, Refusal> {
        let managed = self.find(id)?;
        let query = query(request)?;
        let second = |name: &str| -> Result<Option<Timestamp>, Refusal> {
            let given = parsed::<i64>(&query, name)?.filter(|second| *second != 0);
            let wrong = |_| Refusal::wrong(format!("the query parameter `{name}` is not valid"));
            given.map(|second| Timestamp::from_second(second).map_err(wrong)).transpose()
        };
        let (from, to) = (second("start")?, second("end")?);
        if to.is_none_or(|to| to >= Timestamp::now()) && !managed.is_known() {
            self.server.registry.measure_usage(vec![Arc::clone(&managed)]).await;
        }
        // Clients give times in whole seconds, so include the whole last second.
        let to = to.map(|to| after(to, Duration::from_secs(1)));
        let samples = managed.samples(from.unwrap_or(Timestamp::MIN), to.unwrap_or(Timestamp::MAX));
        let template = self.server.templates.get(&managed.record.template);
        let metrics: Vec<Metric> = samples.iter().map(|sample| sample.metric(template)).collect();
        Ok(json(StatusCode::OK, &metrics))
    }

    /// Answers with the latest metrics of several sandboxes.
    async fn metrics_of_several(&self, request: &Request<RequestBody>) -> Result<Reply, Refusal> {
        let query = query(request)?;
        let ids: Vec<&str> = query.all("sandbox_ids").flat_map(|ids| ids.split(',')).collect();
        let mut found = self.server.registry.list_for_owner(&self.owner);
        found.retain(|managed| ids.contains(&managed.record.id.as_str()));
        let unseen = |managed: &&Arc<ManagedSandbox>| {
            managed.samples(Timestamp::MIN, Timestamp::MAX).is_empty()
        };
        self.server.registry.measure_usage(found.iter().filter(unseen).cloned().collect()).await;
        let last = |managed: &'_ Arc<ManagedSandbox>| {
            managed.samples(Timestamp::MIN, Timestamp::MAX).pop()
        };
        let template =
            |managed: &ManagedSandbox| self.server.templates.get(&managed.record.template);
        let metrics = found.iter().filter_map(|managed| {
            Some((managed.record.id.as_str(), last(managed)?.metric(template(managed))))
        });
        Ok(json(StatusCode::OK, &Metrics { sandboxes: metrics.collect() }))
    }

    async fn logs(&self, id: &str) -> Result<Reply, Refusal> {
        let managed = self.find(id)?;
        let log = managed.sandbox.log();
        let read = tokio::task::spawn_blocking(move || end_of(&log))
            .await
            .expect("reading does not panic");
        let text = read.unwrap_or_default(); // the log may not exist yet
        let text = String::from_utf8_lossy(&text);
        let mut lines: Vec<&str> = text.lines().rev().take(MOST_LINES).collect();
        lines.reverse();
        let timestamp = managed.record.started;
        let line = |line: &&str| LogLine { timestamp, line: (*line).to_owned() };
        let entry = |line: &&str| LogEntry {
            timestamp,
            message: (*line).to_owned(),
            level: "info",
            fields: Default::default(),
        };
        let logs = Logs {
            logs: lines.iter().map(line).collect(),
            log_entries: lines.iter().map(entry).collect(),
        };
        Ok(json(StatusCode::OK, &logs))
    }

    /// Returns the end of a lease of `seconds` from `now`, or a refusal if that is after `latest`.
    pub(crate) fn ends(
        &self,
        now: Timestamp,
        latest: Timestamp,
        seconds: Option<u64>,
    ) -> Result<Timestamp, Refusal> {
        let ends = after(now, lifetime(seconds));
        if ends > latest {
            let most = self.quota.longest().as_secs();
            return Err(Refusal::wrong(format!(
                "the lifetime of a sandbox is at most {most} seconds from its start"
            )));
        }
        Ok(ends)
    }

    /// Returns the refusal for an operation that no backend supports, on an existing sandbox.
    fn cannot(&self, id: &str, what: &str) -> Result<Reply, Refusal> {
        let managed = self.find(id)?;
        let backend = managed.sandbox.manifest().backend;
        Err(Refusal::unsupported(format!("a sandbox on {backend} cannot be {what}")))
    }
}

/// Returns the lease for `seconds`, or the default lease.
pub(crate) fn lifetime(seconds: Option<u64>) -> Duration {
    Duration::from_secs(seconds.unwrap_or(DEFAULT_LIFETIME_SECONDS))
}

/// Adds the token of the next page to a page of results.
pub(crate) fn with_next(mut page: Reply, next: Option<String>) -> Reply {
    if let Some(next) = next {
        let next = HeaderValue::try_from(next).expect("a time and a name are plain");
        page.headers_mut().insert(NEXT_TOKEN, next);
    }
    page
}

pub(crate) fn query(request: &Request<RequestBody>) -> Result<UrlQuery, Refusal> {
    UrlQuery::parse(request.uri().query().unwrap_or_default())
        .map_err(|failure| Refusal::wrong(failure.message))
}

/// Reads and decodes the JSON body of a request. An empty body means an empty object.
pub(crate) async fn body<T: DeserializeOwned>(request: Request<RequestBody>) -> Result<T, Refusal> {
    decode(&bytes(request).await?)
}

/// Returns the body of a request, if it is not too long and does not take too long to arrive.
pub(crate) async fn bytes(request: Request<RequestBody>) -> Result<Bytes, Refusal> {
    let collected =
        timeout(BODY_TIMEOUT, Limited::new(request.into_body(), LONGEST_BODY).collect()).await;
    let late = |_| {
        Refusal::new(StatusCode::REQUEST_TIMEOUT, "the body of the request did not arrive in time")
    };
    let text = collected.map_err(late)?.map_err(|error| match error
        .is::<http_body_util::LengthLimitError>()
    {
        true => Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body of a request has at most {LONGEST_BODY} bytes"),
        ),
        false => Refusal::wrong("the body of the request is incomplete"),
    })?;
    Ok(text.to_bytes())
}

/// Decodes a JSON body. An empty body means an empty object.
pub(crate) fn decode<T: DeserializeOwned>(text: &[u8]) -> Result<T, Refusal> {
    let text: &[u8] = if text.is_empty() { b"{}" } else { text };
    serde_json::from_slice(text)
        .map_err(|error| Refusal::wrong(format!("the body of the request is not valid: {error}")))
}

/// Reads the last [`MOST_OF_LOG`] bytes of a log.
fn end_of(log: &Path) -> io::Result<Vec<u8>> {
    let mut file = fs_err::File::open(log)?;
    let start = file.metadata()?.len().saturating_sub(MOST_OF_LOG);
    file.seek(SeekFrom::Start(start))?;
    let mut text = Vec::new();
    file.take(MOST_OF_LOG).read_to_end(&mut text)?;
    Ok(text)
}
