//! One server: whose a request is, what it is for, and where it goes.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Once};

use hyper::header::{AUTHORIZATION, HOST};
use hyper::{HeaderMap, Method, Request, StatusCode};
use jiff::Timestamp;
use ringfence_proto::code::{Code, Failure as Denied};
use ringfence_proto::query::Query;
use ringfence_proto::signature::{self, Claim, Purpose, agree};
use ringfence_proto::{ENVD_PORT, header};
use tokio::sync::watch;

use super::carry;
use super::control::{self, Owner};
use super::counters::{self, Counters};
use super::facts;
use super::idempotency::Repeats;
use super::interpreter;
use super::keys::{self, Keys};
use super::life::State;
use super::place::{Place, is_guests, text};
use super::pool::Pool;
use super::quota::{Quota, Tallies};
use super::registry::{Live, Registry};
use super::reply::{Refusal, Reply, bare, plain};
use super::rest::NotResumed;
use super::seats::{Holder, Seats, Taken};
use super::snapshots::Snapshots;
use super::store::Record;
use super::template::Template;
use super::turns::Turns;
use super::web;
use crate::exchange::RequestBody;
use crate::telemetry::Measure;

/// The longest path of a file, path_resolution(7).
const LONGEST_PATH: usize = 4096;

/// What proxies tell of whom they bring.
const FORWARDED: [&str; 5] = ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via"];

/// Who can reach a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Audience {
    /// Programs on this machine.
    Machine,
    /// Others, too.
    Network,
}

/// Everything that requests need.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) keys: Keys,
    pub(super) registry: Arc<Registry>,
    pub(super) snapshots: Snapshots,
    pub(super) templates: BTreeMap<String, Template>,
    pub(super) audience: Audience,
    /// Sandboxes that wait for a client.
    pub(super) pool: Pool,
    /// Whose sandboxes are being started.
    pub(super) starting: Turns,
    /// Who has how many connections.
    pub(super) seats: Arc<Seats>,
    /// Requests for a sandbox that may be repeated.
    pub(super) repeats: Repeats,
    /// What it has done.
    pub(super) counters: Counters,
    /// Whether it was said that any key will do.
    pub(super) said_open: Once,
    /// Whether it is about to end.
    pub(super) ending: watch::Sender<bool>,
}

impl Server {
    /// Answers a request.
    pub(super) async fn answer(self: &Arc<Server>, request: Request<RequestBody>) -> Reply {
        if request.method() == Method::CONNECT {
            return Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "this is no proxy").into();
        }
        // A proxy before this one may have gone by another of them, RFC 9112 section 3.2.
        if request.headers().get_all(HOST).iter().count() > 1 {
            return Refusal::wrong("the header `Host` is there more than once").into();
        }
        match Place::of(&request) {
            Place::Port { id, port } => match self.registry.find(id) {
                Some(live) => self.carry(&live, port, request).await,
                None => carry::not_found(id),
            },
            Place::Guest => match self.guest(&request) {
                Some(live) => self.carry(&live, ENVD_PORT, request).await,
                None => Refusal::unauthenticated("no sandbox has this token or made this signature").into(),
            },
            Place::Control => self.control(request).await.unwrap_or_else(Reply::from),
        }
    }

    async fn control(self: &Arc<Server>, request: Request<RequestBody>) -> Result<Reply, Refusal> {
        match request.uri().path() {
            "/healthz" | "/readyz" | "/health" => return Ok(bare(StatusCode::NO_CONTENT)),
            // Where a page learns whether to ask for a key.
            "/ringfence/server" => return Ok(facts::server(self.owner(request.headers(), "").is_err())),
            _ => {}
        }
        if let Some(reply) = web::answer(&request) {
            return Ok(reply);
        }
        let headers = request.headers();
        if request.uri().path() == "/metrics" {
            // What scrapes it shows its key as programs of its kind do.
            let bearer = text(headers, AUTHORIZATION.as_str()).and_then(|value| value.strip_prefix("Bearer "));
            self.owner(headers, text(headers, "x-api-key").or(bearer).unwrap_or_default())?;
            return Ok(plain(counters::text(&self.measures())));
        }
        // Needed even where any will do: no page that a browser shows can send it without asking first.
        let Some(shown) = text(headers, "x-api-key") else {
            return Err(Refusal::unauthenticated("the header `X-API-KEY` is missing"));
        };
        let (owner, quota) = self.owner(headers, shown)?;
        self.seat(owner.clone().map(Holder::Key), &request)?;
        control::answer(self, owner, quota, request).await
    }

    /// What it has done, and what there is.
    pub(super) fn measures(&self) -> Vec<Measure> {
        self.counters.measures(self.registry.count(), self.pool.count_all())
    }

    /// Whose a request is that shows a key, and what they may use.
    fn owner(&self, headers: &HeaderMap, shown: &str) -> Result<(Owner, Quota), Refusal> {
        let keys = self.keys.all();
        if let Some(key) = keys::shown(&keys, shown) {
            return Ok((Some(key.id.clone()), key.quota));
        }
        if self.keys.were_made() || self.audience != Audience::Machine {
            return Err(Refusal::unauthenticated("the API key is not one of this server's"));
        }
        // A page whose own name was made to lead here is not asked for anything, either.
        if !text(headers, HOST.as_str()).is_some_and(is_local) {
            return Err(Refusal::unauthenticated("without keys, this server is called by a local name alone"));
        }
        // A proxy of this machine brings others.
        if FORWARDED.iter().any(|name| headers.contains_key(*name)) {
            return Err(Refusal::unauthenticated("without keys, this server is not for who comes through a proxy"));
        }
        self.said_open.call_once(|| {
            tracing::warn!("no key was created yet, so any key is accepted; `ringfence keys create` makes the first");
        });
        Ok((None, Quota::default()))
    }

    /// The sandbox that a request shows the token of, or is signed with it.
    fn guest(&self, request: &Request<RequestBody>) -> Option<Arc<Live>> {
        if let Some(token) = text(request.headers(), header::TOKEN) {
            return self.registry.first(|live| agree(token, &live.record.token));
        }
        let claim = claim(request).ok()?;
        self.registry.first(|live| match check(&claim, live) {
            Ok(()) => true,
            Err(denied) => denied.message == signature::EXPIRED,
        })
    }

    /// What keys have used.
    pub(super) fn tallies(&self) -> &Arc<Tallies> {
        self.registry.tallies()
    }

    /// Has the connection that a request came by be one of a holder's, who may have too many.
    fn seat(&self, holder: Option<Holder>, request: &Request<RequestBody>) -> Result<(), Refusal> {
        let Some(taken) = request.extensions().get::<Taken>() else { return Ok(()) };
        if !matches!(holder, Some(Holder::Visitors(_))) {
            taken.exchanges().mark_known();
        }
        holder.map_or(Ok(()), |holder| taken.be_of(holder, &self.seats))
    }

    /// Carries a request to where it belongs in a sandbox, if its caller may go there.
    async fn carry(&self, live: &Arc<Live>, port: u16, request: Request<RequestBody>) -> Reply {
        let path = request.uri().path();
        // Of those who need to show something, who has not takes none of the owner's places, and wakes nothing.
        let owner = || live.record.owner.clone().map(Holder::Key);
        let visitors = || Some(Holder::Visitors(live.record.owner.clone()));
        if port == interpreter::PORT && interpreter::is_its(path) {
            let checked = may_visit(&live.record, request.headers())
                .and_then(|()| interpreter::check_token(&live.record, path, request.headers()));
            return match checked.and_then(|()| self.seat(owner(), &request)) {
                Err(refusal) => interpreter::refuse(refusal),
                Ok(()) if !self.is_awake(live).await => carry::not_found(&live.record.id),
                Ok(()) => interpreter::answer(live, request).await,
            };
        }
        if port != ENVD_PORT {
            let holder = if live.record.traffic_token.is_some() { owner() } else { visitors() };
            return match may_visit(&live.record, request.headers()).and_then(|()| self.seat(holder, &request)) {
                Err(refusal) => refusal.into(),
                Ok(()) if !self.is_awake(live).await => carry::not_found(&live.record.id),
                Ok(()) => carry::to_port(live, port, request).await,
            };
        }
        if !is_guests(path) {
            return Refusal::new(StatusCode::NOT_FOUND, format!("there is nothing at `{path}`")).into();
        }
        let holder = if path == "/health" { visitors() } else { owner() };
        match may_talk(live, &request).and_then(|()| self.seat(holder, &request)) {
            Err(refusal) => refusal.into(),
            // Whoever asks whether it runs, without showing anything, does not make it.
            Ok(()) if path == "/health" && live.life().state() == State::Paused => carry::not_found(&live.record.id),
            Ok(()) if !self.is_awake(live).await => carry::not_found(&live.record.id),
            Ok(()) => carry::to_guest(live, request).await,
        }
    }

    /// Whether a sandbox runs. One at rest whose client wants it goes on, as long as its key is there.
    async fn is_awake(&self, live: &Arc<Live>) -> bool {
        if live.life().state() == State::Running {
            return true;
        }
        let keys = self.keys.all();
        let quota = match &live.record.owner {
            Some(owner) => keys.iter().find(|key| key.id == *owner).map(|key| key.quota),
            None => Some(Quota::default()),
        };
        let may = |quota: &Quota| live.record.is_woken && self.tallies().spent(&live.record.owner, quota).is_none();
        let Some(quota) = quota.filter(may) else { return false };
        match self.registry.resume(live, control::stay(None), quota.longest()).await {
            Ok(_) => true,
            Err(NotResumed::Spent) => false,
            Err(NotResumed::Failed(failure)) => {
                tracing::error!(id = live.record.id, error = failure.message(), "a sandbox does not go on");
                false
            }
        }
    }
}

/// Checks that a caller may use the ports of a sandbox: everybody may, unless its client said otherwise.
fn may_visit(record: &Record, headers: &HeaderMap) -> Result<(), Refusal> {
    let shown = text(headers, header::TRAFFIC).unwrap_or_default();
    match &record.traffic_token {
        Some(token) if !agree(shown, token) => {
            let message = "the traffic access token is missing or not this sandbox's";
            Err(Refusal::new(StatusCode::FORBIDDEN, message))
        }
        _ => Ok(()),
    }
}

/// Checks that a caller may talk to a guest.
fn may_talk(live: &Live, request: &Request<RequestBody>) -> Result<(), Refusal> {
    let path = request.uri().path();
    if path == "/health" {
        return Ok(());
    }
    match text(request.headers(), header::TOKEN) {
        Some(token) if agree(token, &live.record.token) => Ok(()),
        None if path == "/files" => claim(request).and_then(|claim| check(&claim, live)).map_err(|denied| {
            let status = StatusCode::from_u16(denied.code.status()).unwrap_or(StatusCode::UNAUTHORIZED);
            Refusal::new(status, denied.message)
        }),
        _ => {
            let message = format!("the header `{}` is missing or not this sandbox's", header::TOKEN);
            Err(Refusal::unauthenticated(message))
        }
    }
}

/// The signature of a request for a file.
fn claim(request: &Request<RequestBody>) -> Result<Claim, Denied> {
    let purpose = if request.method() == Method::GET { Purpose::Read } else { Purpose::Write };
    let query = Query::of(request.uri().query().unwrap_or_default())?;
    let length = |name: &str| query.get(name).unwrap_or_default().len();
    // No token has made another, nor needs to be asked about it.
    if length("signature") > signature::LENGTH || length("path") > LONGEST_PATH || length("username") > LONGEST_PATH {
        return Err(Denied::new(Code::Unauthenticated, "invalid signature"));
    }
    Claim::of(&query, purpose)
}

/// Checks that a request is signed with a sandbox's token.
fn check(claim: &Claim, live: &Live) -> Result<(), Denied> {
    claim.check(&live.record.token, u64::try_from(Timestamp::now().as_second()).unwrap_or_default())
}

/// Whether a host's name, with or without a port, can lead nowhere but to this machine: no other name is looked up.
fn is_local(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => return rest.split(']').next().is_some_and(|address| address.parse::<Ipv6Addr>().is_ok()),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost" || name.ends_with(".localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_somebody_else_can_point_here_is_not_local() {
        for local in ["localhost", "localhost:3000", "api.x.localhost", "127.0.0.1:3000", "[::1]:3000", "[::1]"] {
            assert!(is_local(local), "{local}");
        }
        for foreign in ["example.org", "example.org:3000", "localhost.example.org", "127.0.0.1.example.org", "", "[x]"]
        {
            assert!(!is_local(foreign), "{foreign}");
        }
    }
}
