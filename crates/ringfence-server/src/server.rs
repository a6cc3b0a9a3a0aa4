//! State of one server, with the authentication and routing of requests.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Once};

use hyper::header::{AUTHORIZATION, HOST};
use hyper::{HeaderMap, Method, Request, StatusCode};
use jiff::Timestamp;
use ringfence_proto::code::{Code, Failure as Denied};
use ringfence_proto::query::UrlQuery;
use ringfence_proto::signature::{self, SignatureClaim, SignaturePurpose, is_same_secret};
use ringfence_proto::{ENVD_PORT, header};
use ringfence_service::exchange::RequestBody;
use ringfence_service::telemetry::Measure;
use tokio::sync::watch;

use crate::api::control::{self, Owner};
use crate::api::idempotency::IdempotencyCache;
use crate::api::reply::{Refusal, Reply, bare, plain};
use crate::forwarding::forward;
use crate::forwarding::interpreter;
use crate::forwarding::route::{Route, is_guests, text};
use crate::lifecycle::expiry::SandboxState;
use crate::lifecycle::pausing::ResumeError;
use crate::lifecycle::pool::WarmPool;
use crate::lifecycle::registry::{ManagedSandbox, Registry};
use crate::lifecycle::template::Template;
use crate::page::counters::{self, Counters};
use crate::page::extensions;
use crate::page::web;
use crate::storage::snapshots::Snapshots;
use crate::storage::store::SandboxRecord;
use crate::tenants::connection_limits::{ConnectionCharge, ConnectionHolder, ConnectionLimits};
use crate::tenants::fair_semaphore::FairSemaphore;
use crate::tenants::keys::{self, Keys};
use crate::tenants::quota::{KeyUsages, Quota};

/// Maximum length of a path of a file in bytes, see path_resolution(7).
const LONGEST_PATH: usize = 4096;

/// Headers that proxies add to forwarded requests.
const FORWARDED: [&str; 5] =
    ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via"];

/// Clients that can reach a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// Only programs on this machine.
    Machine,
    /// Clients on the network, too.
    Network,
}

/// State that requests need.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) keys: Keys,
    pub(crate) registry: Arc<Registry>,
    pub(crate) snapshots: Snapshots,
    pub(crate) templates: BTreeMap<String, Template>,
    pub(crate) audience: Audience,
    /// Sandboxes that wait for a client.
    pub(crate) pool: WarmPool,
    /// Permits for starts of sandboxes.
    pub(crate) starting: FairSemaphore,
    /// Number of connections of each holder.
    pub(crate) connection_limits: Arc<ConnectionLimits>,
    /// Remembered requests for a sandbox, which clients may repeat.
    pub(crate) idempotency_cache: IdempotencyCache,
    /// Counters for metrics.
    pub(crate) counters: Counters,
    /// Set once the warning that any key is accepted was logged.
    pub(crate) warned_open: Once,
    /// Set when the server is about to end.
    pub(crate) ending: watch::Sender<bool>,
}

impl Server {
    /// Answers a request to the server or to a sandbox.
    pub(crate) async fn answer(self: &Arc<Server>, request: Request<RequestBody>) -> Reply {
        if request.method() == Method::CONNECT {
            return Refusal::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "this server is not a proxy, and does not support CONNECT",
            )
            .into();
        }
        // A proxy in front of this server may have routed by another of the values, RFC 9112
        // section 3.2.
        if request.headers().get_all(HOST).iter().count() > 1 {
            return Refusal::wrong("the header `Host` occurs more than once").into();
        }
        match Route::from_request(&request) {
            Route::Port { id, port } => match self.registry.find(id) {
                Some(managed) => self.forward(&managed, port, request).await,
                None => forward::not_found(id),
            },
            Route::Guest => match self.guest(&request) {
                Some(managed) => self.forward(&managed, ENVD_PORT, request).await,
                None => {
                    Refusal::unauthenticated("the token or the signature belongs to no sandbox")
                        .into()
                }
            },
            Route::Control => self.control(request).await.unwrap_or_else(Reply::from),
        }
    }

    async fn control(self: &Arc<Server>, request: Request<RequestBody>) -> Result<Reply, Refusal> {
        match request.uri().path() {
            "/healthz" | "/readyz" | "/health" => return Ok(bare(StatusCode::NO_CONTENT)),
            // The web page asks here whether it needs a key.
            "/ringfence/server" => {
                return Ok(extensions::server(self.owner(request.headers(), "").is_err()));
            }
            _ => {}
        }
        if let Some(reply) = web::answer(&request) {
            return Ok(reply);
        }
        let headers = request.headers();
        if request.uri().path() == "/metrics" {
            // Prometheus sends its key as a bearer token.
            let bearer = text(headers, AUTHORIZATION.as_str())
                .and_then(|value| value.strip_prefix("Bearer "));
            self.owner(headers, text(headers, "x-api-key").or(bearer).unwrap_or_default())?;
            return Ok(plain(counters::text(&self.measures())));
        }
        // The header is required even if any key is accepted: a web page of another origin cannot
        // send it without a preflight request, which this server does not grant.
        let Some(shown) = text(headers, "x-api-key") else {
            return Err(Refusal::unauthenticated("the header `X-API-KEY` is missing"));
        };
        let (owner, quota) = self.owner(headers, shown)?;
        self.charge_connection(owner.clone().map(ConnectionHolder::Key), &request)?;
        control::answer(self, owner, quota, request).await
    }

    /// Returns the metrics of the server.
    pub(crate) fn measures(&self) -> Vec<Measure> {
        self.counters.measures(self.registry.count(), self.pool.count_all())
    }

    /// Returns the owner that the key `shown` belongs to, with the quota of the key.
    fn owner(&self, headers: &HeaderMap, shown: &str) -> Result<(Owner, Quota), Refusal> {
        let keys = self.keys.all();
        if let Some(key) = keys::shown(&keys, shown) {
            return Ok((Some(key.id.clone()), key.quota));
        }
        if self.keys.were_made() || self.audience != Audience::Machine {
            return Err(Refusal::unauthenticated("the API key does not belong to this server"));
        }
        // Protection against DNS rebinding: a web page whose own host name resolves to this machine
        // needs no preflight request, so only local names are accepted.
        if !text(headers, HOST.as_str()).is_some_and(is_local) {
            return Err(Refusal::unauthenticated(
                "as long as no API key exists, the header `Host` must be a local name, such as \
                 localhost; create a key with `ringfence keys create`",
            ));
        }
        // A proxy on this machine forwards requests of other machines.
        if FORWARDED.iter().any(|name| headers.contains_key(*name)) {
            return Err(Refusal::unauthenticated(
                "proxied requests need an API key; create one with `ringfence keys create`",
            ));
        }
        self.warned_open.call_once(|| {
            tracing::warn!(
                "the server accepts any key, because no key exists; create one with `ringfence \
                 keys create`"
            );
        });
        Ok((None, Quota::default()))
    }

    /// Finds the sandbox whose token a request shows or is signed with.
    fn guest(&self, request: &Request<RequestBody>) -> Option<Arc<ManagedSandbox>> {
        if let Some(token) = text(request.headers(), header::TOKEN) {
            return self.registry.first(|managed| is_same_secret(token, &managed.record.token));
        }
        let claim = claim(request).ok()?;
        self.registry.first(|managed| match check(&claim, managed) {
            Ok(()) => true,
            Err(denied) => denied.message == signature::EXPIRED_MESSAGE,
        })
    }

    /// Returns the use of all keys.
    pub(crate) fn key_usages(&self) -> &Arc<KeyUsages> {
        self.registry.key_usages()
    }

    /// Charges the connection of a request to a holder, or refuses if the holder is at its limit.
    fn charge_connection(
        &self,
        holder: Option<ConnectionHolder>,
        request: &Request<RequestBody>,
    ) -> Result<(), Refusal> {
        let Some(charge) = request.extensions().get::<ConnectionCharge>() else { return Ok(()) };
        if !matches!(holder, Some(ConnectionHolder::Visitors(_))) {
            charge.exchanges().mark_known();
        }
        holder.map_or(Ok(()), |holder| charge.charge_to(holder, &self.connection_limits))
    }

    /// Forwards a request to its target in a sandbox, if the caller is allowed to use it.
    async fn forward(
        &self,
        managed: &Arc<ManagedSandbox>,
        port: u16,
        request: Request<RequestBody>,
    ) -> Reply {
        let path = request.uri().path();
        // Credentials are checked first: a request without required credentials uses no connection
        // of the owner and does not resume the sandbox.
        let owner = || managed.record.owner.clone().map(ConnectionHolder::Key);
        let visitors = || Some(ConnectionHolder::Visitors(managed.record.owner.clone()));
        if port == interpreter::PORT && interpreter::is_its(path) {
            let checked = may_visit(&managed.record, request.headers())
                .and_then(|()| interpreter::check_token(&managed.record, path, request.headers()));
            return match checked.and_then(|()| self.charge_connection(owner(), &request)) {
                Err(refusal) => interpreter::refuse(refusal),
                Ok(()) if !self.ensure_running(managed).await => {
                    forward::not_found(&managed.record.id)
                }
                Ok(()) => interpreter::answer(managed, request).await,
            };
        }
        if port != ENVD_PORT {
            let holder = if managed.record.traffic_token.is_some() { owner() } else { visitors() };
            return match may_visit(&managed.record, request.headers())
                .and_then(|()| self.charge_connection(holder, &request))
            {
                Err(refusal) => refusal.into(),
                Ok(()) if !self.ensure_running(managed).await => {
                    forward::not_found(&managed.record.id)
                }
                Ok(()) => forward::to_port(managed, port, request).await,
            };
        }
        if !is_guests(path) {
            return Refusal::new(
                StatusCode::NOT_FOUND,
                format!("the guest has no endpoint `{path}`"),
            )
            .into();
        }
        let holder = if path == "/health" { visitors() } else { owner() };
        match may_talk(managed, &request).and_then(|()| self.charge_connection(holder, &request)) {
            Err(refusal) => refusal.into(),
            // A health check needs no credentials, so it does not resume the sandbox.
            Ok(()) if path == "/health" && managed.expiry().state() == SandboxState::Paused => {
                forward::not_found(&managed.record.id)
            }
            Ok(()) if !self.ensure_running(managed).await => forward::not_found(&managed.record.id),
            Ok(()) => forward::to_guest(managed, request).await,
        }
    }

    /// Returns whether a sandbox runs. Resumes a paused sandbox if its client asked for that, as
    /// long as its key exists and has quota left.
    async fn ensure_running(&self, managed: &Arc<ManagedSandbox>) -> bool {
        if managed.expiry().state() == SandboxState::Running {
            return true;
        }
        let keys = self.keys.all();
        let quota = match &managed.record.owner {
            Some(owner) => keys.iter().find(|key| key.id == *owner).map(|key| key.quota),
            None => Some(Quota::default()),
        };
        let may = |quota: &Quota| {
            managed.record.is_woken
                && self.key_usages().spent(&managed.record.owner, quota).is_none()
        };
        let Some(quota) = quota.filter(may) else { return false };
        match self.registry.resume(managed, control::lifetime(None), quota.longest()).await {
            Ok(_) => true,
            Err(ResumeError::Spent) => false,
            Err(ResumeError::Failed(failure)) => {
                tracing::error!(
                    id = managed.record.id,
                    error = failure.message(),
                    "cannot resume a sandbox"
                );
                false
            }
        }
    }
}

/// Checks that a caller may use the ports of a sandbox. Ports are public unless the client of the
/// sandbox disabled that.
fn may_visit(record: &SandboxRecord, headers: &HeaderMap) -> Result<(), Refusal> {
    let shown = text(headers, header::TRAFFIC).unwrap_or_default();
    match &record.traffic_token {
        Some(token) if !is_same_secret(shown, token) => {
            let message = "the traffic access token is missing, or does not belong to this sandbox";
            Err(Refusal::new(StatusCode::FORBIDDEN, message))
        }
        _ => Ok(()),
    }
}

/// Checks that a caller may talk to a guest.
fn may_talk(managed: &ManagedSandbox, request: &Request<RequestBody>) -> Result<(), Refusal> {
    let path = request.uri().path();
    if path == "/health" {
        return Ok(());
    }
    match text(request.headers(), header::TOKEN) {
        Some(token) if is_same_secret(token, &managed.record.token) => Ok(()),
        None if path == "/files" => {
            claim(request).and_then(|claim| check(&claim, managed)).map_err(|denied| {
                let status =
                    StatusCode::from_u16(denied.code.status()).unwrap_or(StatusCode::UNAUTHORIZED);
                Refusal::new(status, denied.message)
            })
        }
        _ => {
            let message = format!(
                "the header `{}` is missing, or its token does not belong to this sandbox",
                header::TOKEN
            );
            Err(Refusal::unauthenticated(message))
        }
    }
}

/// Parses the signature of a request for a file.
fn claim(request: &Request<RequestBody>) -> Result<SignatureClaim, Denied> {
    let purpose = if request.method() == Method::GET {
        SignaturePurpose::Read
    } else {
        SignaturePurpose::Write
    };
    let query = UrlQuery::parse(request.uri().query().unwrap_or_default())?;
    let length = |name: &str| query.get(name).unwrap_or_default().len();
    // Longer values cannot be valid, so refuse them without comparing them with the tokens of all
    // sandboxes.
    if length("signature") > signature::SIGNATURE_LENGTH
        || length("path") > LONGEST_PATH
        || length("username") > LONGEST_PATH
    {
        return Err(Denied::new(Code::Unauthenticated, "invalid signature"));
    }
    SignatureClaim::from_query(&query, purpose)
}

/// Checks that a request is signed with the token of a sandbox.
fn check(claim: &SignatureClaim, managed: &ManagedSandbox) -> Result<(), Denied> {
    claim.check(
        &managed.record.token,
        u64::try_from(Timestamp::now().as_second()).unwrap_or_default(),
    )
}

/// Returns whether a host name, with or without a port, can only mean this machine. Such a name is
/// `localhost`, a name below it, or an address, because the name of an attacker could resolve to
/// this machine.
fn is_local(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => {
            return rest
                .split(']')
                .next()
                .is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
        }
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost" || name.ends_with(".localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_somebody_else_can_point_here_is_not_local() {
        for local in [
            "localhost",
            "localhost:3000",
            "api.x.localhost",
            "127.0.0.1:3000",
            "[::1]:3000",
            "[::1]",
        ] {
            assert!(is_local(local), "{local}");
        }
        for foreign in [
            "example.org",
            "example.org:3000",
            "localhost.example.org",
            "127.0.0.1.example.org",
            "",
            "[x]",
        ] {
            assert!(!is_local(foreign), "{foreign}");
        }
    }
}
