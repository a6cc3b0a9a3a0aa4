//! HTTP/1.1: requests for other hosts, and tunnels. Each request is judged on its own.
//!
//! hyper reads and writes both sides, so that bodies pass unchanged and every stated length is
//! hyper's own. Hosts may send interim answers (`1xx`) before an answer. The proxy itself sends
//! `100` when the body is wanted, and drops the other interim answers. Trailers pass if they were
//! announced.
//!
//! A connection to a host carries no further request after a body. The client's connection stays
//! open.

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HOST, HeaderValue};
use hyper::service::service_fn;
use hyper::upgrade::{OnUpgrade, Parts};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::connect::{Connection, Origin};
use crate::copy::{self, Direction};
use crate::pass::Pass;
use crate::proxy::Proxy;
use crate::stream::{Rewound, Stream, linger};
use crate::way::Way;
use crate::{Denial, Reason, Refusal, Target, TargetHost, UpstreamError, Verdict, Via, tunnel};

mod echo;
mod exchange;
mod heads;
mod hops;

use exchange::{Exchange, Unsent};
use heads::StrictHeads;

type Body = Either<Incoming, Full<Bytes>>;

/// Serves a client that asks for other hosts, by `CONNECT` or with URIs in absolute form.
pub(crate) async fn serve<S: Stream>(proxy: &Proxy, client: Rewound<S>) {
    let session = Session::new(proxy, Scope::Anywhere);
    // Boxed, because a tunnel lasts much longer than the conversation that asks for the tunnel, and
    // would otherwise keep space for the conversation's future.
    if let Some((client, Next::Tunnel(connection, target))) =
        Box::pin(converse(client, session)).await
    {
        tunnel::run(proxy, client, connection, &target).await;
    }
}

/// Serves a client whose tunnel turns out to carry plain HTTP requests. `server` is the connection
/// to the tunnel's target.
pub(crate) async fn serve_within<S: Stream>(
    proxy: &Proxy,
    client: Rewound<S>,
    server: TcpStream,
    pass: Pass,
) {
    let session = Session::new(proxy, Scope::Within(pass.target.clone(), Scheme::Http));
    let origin = Origin { stream: Way::Clear(server), pass, hop: None };
    // If the exchange cannot begin, the first request connects again, and its client gets the
    // error.
    if let Ok(exchange) = Exchange::begin(proxy, origin).await {
        session.keep(exchange);
    }
    // The result is always `None`, because a `CONNECT` is refused within a tunnel and `converse`
    // handles upgrades itself.
    let _ = converse(client, session).await;
}

/// Serves a client whose tunnel carries HTTP requests in TLS, to which the proxy adds credentials.
/// `server` is the connection to the tunnel's target.
pub(crate) async fn serve_secured<S: Stream>(
    proxy: &Proxy,
    client: Rewound<S>,
    server: TcpStream,
    pass: Pass,
) {
    let target = pass.target.clone();
    // A host that the rules have just ceased to allow has no credentials.
    let Some(credentials) = proxy.credentials_for(&target) else { return };
    let accepted = timeout(proxy.settings().limits.greeting, credentials.accept(client)).await;
    // A client that does not trust the certificate reports that in its own errors.
    let Ok(Ok(client)) = accepted else { return };
    let session = Session::new(proxy, Scope::Within(target.clone(), Scheme::Https));
    // If TLS or the exchange cannot begin, the first request connects again, and its client gets
    // the error.
    if let Ok(origin) = proxy.secure(credentials, server, pass).await
        && let Ok(exchange) = Exchange::begin(proxy, origin).await
    {
        session.keep(exchange);
    }
    let _ = converse(Rewound::new(Bytes::new(), client), session).await;
}

/// Answers requests until the connection ends or stops being HTTP. Returns the client's stream if a
/// tunnel follows; copies the bytes of an upgraded connection itself.
async fn converse<S: Stream>(client: Rewound<S>, session: Session) -> Option<(Rewound<S>, Next)> {
    let session = Arc::new(session);
    let limits = session.proxy.settings().limits;
    let client = TokioIo::new(StrictHeads::new(client, limits.head));
    let mut connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.greeting)
        .max_buf_size(limits.head.max(8192))
        .half_close(true)
        .preserve_header_case(true)
        .auto_date_header(false)
        .serve_connection(
            client,
            service_fn(|request| Box::pin(Arc::clone(&session).respond(request))),
        );
    // An error of hyper harms only this client. The code below reports the errors that the owner
    // must know.
    let served = poll_fn(|cx| connection.poll_without_shutdown(cx)).await;
    let is_unread = served.as_ref().is_err_and(|error| error.is_parse());
    if served.is_err_and(|error| error.is_user()) {
        session.tell_of_end();
    }

    let parts = connection.into_parts();
    let heads = parts.io.into_inner();
    let next = session.next.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(fault) = heads.fault() {
        let said = match &session.scope {
            Scope::Anywhere => heads.said(),
            Scope::Within(target, _) => target.to_string(),
        };
        let refusal = session.proxy.deny(Denial::malformed(&said, Via::Http, fault));
        let mut client = heads.into_inner(Bytes::new());
        if client.write_all(&refusal.last_words()).await.is_ok() {
            linger(client).await;
        }
        return None;
    }
    if is_unread {
        let said = match &session.scope {
            Scope::Anywhere => String::new(),
            Scope::Within(target, _) => target.to_string(),
        };
        session.proxy.deny(Denial::malformed(&said, Via::Http, "the request cannot be read"));
    }
    let client = heads.into_inner(parts.read_buf);
    match next {
        Some(Next::Upgrade(upgrade, pass)) => {
            if let Ok(upgraded) = upgrade.await {
                // The bytes that hyper read past the head come first.
                let Ok(Parts { io, read_buf, .. }) = upgraded.downcast::<TokioIo<Way>>() else {
                    return None;
                };
                let carried = async {
                    match io.into_inner() {
                        Way::Clear(server) => carry(client, Rewound::new(read_buf, server)).await,
                        Way::Tls(server) => carry(client, Rewound::new(read_buf, *server)).await,
                    }
                };
                tokio::select! {
                    biased;
                    denial = session.proxy.withdrawn(&pass) => drop(session.proxy.deny(denial)),
                    () = carried => {}
                }
            }
            None
        }
        Some(next) => Some((client, next)),
        None => {
            linger(client).await;
            None
        }
    }
}

async fn carry<S: Stream, T: Stream>(mut client: Rewound<S>, mut server: Rewound<T>) {
    // The result is dropped, because after an error of either side there is nothing left to carry.
    let _ =
        copy::both(&mut client, &mut server, &mut Direction::default(), &mut Direction::default())
            .await;
}

/// Scope of the requests that a session answers.
enum Scope {
    /// Requests of a client that names a host with each request.
    Anywhere,
    /// Requests in a tunnel to this target, and the scheme by which they are carried there.
    Within(Target, Scheme),
}

/// Scheme by which requests are carried to their host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

impl Scheme {
    const fn name(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }

    /// Returns the default port of the scheme.
    const fn port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }
}

/// Destination of a request.
struct Destination {
    /// Host to which the request is sent.
    target: Target,
    /// Host that the request names, which may be another host at the same address.
    host: Target,
}

impl From<Target> for Destination {
    fn from(target: Target) -> Destination {
        Destination { host: target.clone(), target }
    }
}

/// Use of a client's connection after HTTP.
enum Next {
    Tunnel(Connection, Target),
    Upgrade(OnUpgrade, Pass),
}

/// Requests of one client. The requests come one at a time, so that no code has to wait while it
/// holds a lock.
struct Session {
    proxy: Proxy,
    scope: Scope,
    /// Connection of the last request, kept for the next request to the same host.
    exchange: Mutex<Option<Exchange>>,
    next: Mutex<Option<Next>>,
}

impl Session {
    fn new(proxy: &Proxy, scope: Scope) -> Session {
        Session { proxy: proxy.clone(), scope, exchange: Mutex::default(), next: Mutex::default() }
    }

    /// Answers a request with the host's answer or with a refusal.
    async fn respond(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        let is_last = heads::ends_connection(request.headers());
        let mut response = match self.answer(request).await {
            Ok(response) => response,
            Err(refusal) => refusal.response().map(Either::Right),
        };
        if is_last {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response)
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        let Destination { target, host } = self.destination(&request)?;
        if request.method() == Method::CONNECT {
            let connection = self.proxy.connect(&target, Via::Connect).await?;
            self.continue_with(Next::Tunnel(connection, target));
            return Ok(Response::new(Either::Right(Full::default())));
        }
        self.forward(request, target, &host).await
    }

    /// Sends a request to its host and returns the answer.
    async fn forward(
        &self,
        mut request: Request<Incoming>,
        target: Target,
        host: &Target,
    ) -> Result<Response<Body>, Refusal> {
        // Judge the target even if a kept connection leads there, because that connection was
        // judged only when it was made.
        self.proxy.admit(&target, Via::Http)?;
        let credentials = self.proxy.credentials_for(&target);
        if credentials.is_some() {
            self.check_for_secret(&request, &target)?;
        }
        let upgrade = hops::prepare_request(&mut request, host, self.scheme());
        if let Some(credentials) = credentials {
            credentials.present(request.headers_mut());
        }
        let kept = self.exchange.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (mut response, pass) = match kept.filter(|exchange| exchange.leads_to(&target)) {
            Some(mut exchange) => match exchange.send(request).await {
                Ok(response) => (response, self.keep(exchange)),
                // The host had closed the kept connection before anything of this request was sent.
                Err(Unsent { request: Some(request), .. }) => {
                    self.send_anew(request, &target).await?
                }
                Err(Unsent { error, .. }) => return Err(self.unanswered(exchange.pass(), error)),
            },
            None => self.send_anew(request, &target).await?,
        };
        match (response.status(), upgrade) {
            (StatusCode::SWITCHING_PROTOCOLS, hops::Upgrade::Asked) => {
                self.continue_with(Next::Upgrade(hyper::upgrade::on(&mut response), pass));
            }
            (StatusCode::SWITCHING_PROTOCOLS, hops::Upgrade::None) => {
                return Err(Refusal::Unasked { target });
            }
            _ => {}
        }
        hops::prepare_response(&mut response);
        Ok(response.map(Either::Left))
    }

    /// Sends a request on a new connection, and keeps the connection. Returns the answer and the
    /// pass of the connection.
    async fn send_anew(
        &self,
        request: Request<Incoming>,
        target: &Target,
    ) -> Result<(Response<Incoming>, Pass), Refusal> {
        let origin = self.open(target).await?;
        let garbled = |source| Refusal::Garbled { target: target.clone(), source };
        let mut exchange = Exchange::begin(&self.proxy, origin).await.map_err(garbled)?;
        let sent = exchange.send(request).await;
        let response = sent.map_err(|unsent| self.unanswered(exchange.pass(), unsent.error))?;
        if exchange.is_through_upstream()
            && response.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED
        {
            // The machine's administrator sets the upstream's password, so the client has none to
            // answer with.
            let source = UpstreamError::Refused(response.status().to_string());
            return Err(Refusal::Upstream { target: target.clone(), source });
        }
        Ok((response, self.keep(exchange)))
    }

    /// Returns the refusal for a request that got no answer: a denial if the rules no longer allow
    /// the host, and otherwise [`Refusal::Garbled`].
    fn unanswered(&self, pass: &Pass, source: hyper::Error) -> Refusal {
        match self.proxy.objection(pass) {
            Some(denial) => self.proxy.deny(denial),
            None => Refusal::Garbled { target: pass.target.clone(), source },
        }
    }

    /// Reports an answer that broke off to the owner, if the rules no longer allow the answer's
    /// host.
    fn tell_of_end(&self) {
        let exchange = self.exchange.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(denial) =
            exchange.as_ref().and_then(|exchange| self.proxy.objection(exchange.pass()))
        {
            self.proxy.deny(denial);
        }
    }

    /// Connects to the server that takes requests for `target`: by TLS if the session's scheme is
    /// HTTPS and the target has credentials.
    async fn open(&self, target: &Target) -> Result<Origin, Refusal> {
        match self.proxy.credentials_for(target).filter(|_| self.scheme() == Scheme::Https) {
            Some(credentials) => {
                let connection = self.proxy.connect(target, Via::Tls).await?;
                let pass = connection.pass(target);
                self.proxy.secure(credentials, connection.stream, pass).await
            }
            None => self.proxy.open(target).await,
        }
    }

    fn scheme(&self) -> Scheme {
        match self.scope {
            Scope::Anywhere => Scheme::Http,
            Scope::Within(_, scheme) => scheme,
        }
    }

    /// Refuses a request that would reveal a credential to anyone other than the credential's host.
    fn check_for_secret(
        &self,
        request: &Request<Incoming>,
        target: &Target,
    ) -> Result<(), Refusal> {
        let reason = match self.scheme() {
            Scheme::Http => Reason::Unencrypted,
            Scheme::Https if echo::is_asked_for(request) => Reason::Malformed {
                fault: "a TRACE or TRACK brings back the credential that was sent".to_owned(),
            },
            Scheme::Https => return Ok(()),
        };
        Err(self.proxy.deny(Denial::of(target, Via::Http, reason)))
    }

    /// Returns the destination of a request. The URI and the `Host` header may both name a host,
    /// and each named host must pass [`Session::check`] against the target.
    fn destination(&self, request: &Request<Incoming>) -> Result<Destination, Refusal> {
        let uri = request.uri();
        let via = if request.method() == Method::CONNECT { Via::Connect } else { Via::Http };
        let malformed =
            |fault: &str| self.proxy.deny(Denial::malformed(&said(request), via, fault));
        let read = |text: &str, port: Option<u16>| {
            Target::from_authority(text, port).map_err(|fault| malformed(&fault.to_string()))
        };
        let mut named = None;
        let (target, default_port) = match (&self.scope, uri.scheme_str(), uri.authority()) {
            (Scope::Within(..), ..) if request.method() == Method::CONNECT => {
                return Err(malformed("a CONNECT within a tunnel"));
            }
            (Scope::Anywhere, None, Some(authority)) if request.method() == Method::CONNECT => {
                return read(authority.as_str(), None).map(Destination::from);
            }
            (Scope::Anywhere, Some("http"), Some(authority)) => {
                (read(authority.as_str(), Some(80))?, 80)
            }
            (Scope::Anywhere, Some(_), _) => {
                return Err(malformed("only http:// is forwarded; https:// goes through CONNECT"));
            }
            (Scope::Anywhere, ..) => {
                return Err(malformed(
                    "this is a proxy: a request names its host, as in GET http://host/",
                ));
            }
            (Scope::Within(target, _), None, None) => (target.clone(), target.port),
            (Scope::Within(target, scheme), Some(said), Some(authority))
                if said == scheme.name() =>
            {
                named = Some(read(authority.as_str(), Some(target.port))?);
                (target.clone(), target.port)
            }
            (Scope::Within(_, scheme), ..) => {
                return Err(malformed(&format!("only {}:// is spoken here", scheme.name())));
            }
        };
        if let Some(host) = request.headers().get(HOST) {
            let host = host.to_str().map_err(|_| malformed("the Host header is not text"))?;
            let host = read(host, Some(default_port))?;
            self.check(&target, &host)?;
            named.get_or_insert(host);
        }
        let host = named.unwrap_or_else(|| target.clone());
        self.check(&target, &host)?;
        Ok(Destination { target, host })
    }

    /// Refuses a request that is sent to one host and names another. In a tunnel to an address,
    /// refuses only names that a rule denies.
    fn check(&self, target: &Target, named: &Target) -> Result<(), Refusal> {
        if target == named {
            return Ok(());
        }
        let is_at_address =
            matches!(&self.scope, Scope::Within(Target { host: TargetHost::Address(_), .. }, _));
        let denial = match self.proxy.rules().judge(named) {
            Verdict::Denied(reason @ Reason::Listed { .. }) if is_at_address => {
                Denial::of(named, Via::Http, reason)
            }
            _ if is_at_address => return Ok(()),
            _ => Denial::of(target, Via::Http, Reason::OtherName { name: named.to_string() }),
        };
        Err(self.proxy.deny(denial))
    }

    /// Keeps a connection for the next request, and returns the pass of the connection.
    fn keep(&self, exchange: Exchange) -> Pass {
        let pass = exchange.pass().clone();
        *self.exchange.lock().unwrap_or_else(PoisonError::into_inner) = Some(exchange);
        pass
    }

    fn continue_with(&self, next: Next) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(next);
    }
}

/// Returns the destination that the client wrote, for the report of a refusal. Leaves out the path,
/// because it may hold a secret.
fn said(request: &Request<Incoming>) -> String {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let authority = request.uri().authority().map(|authority| authority.as_str());
    // Leave out the user and the password, which stand before the `@`.
    let said = authority.or(host).unwrap_or_default();
    said.rsplit('@').next().unwrap_or_default().to_owned()
}
