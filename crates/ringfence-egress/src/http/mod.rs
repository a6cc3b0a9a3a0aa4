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

use crate::connect::{OriginConnection, TargetConnection};
use crate::copy::{self, CopyDirection};
use crate::maybe_tls::MaybeTlsStream;
use crate::pass::ConnectionPass;
use crate::proxy::Proxy;
use crate::stream::{ByteStream, RewoundStream, linger};
use crate::{
    ConnectionRefusal, Denial, DenialReason, RequestKind, Target, TargetHost, UpstreamError,
    Verdict, tunnel,
};

mod connection;
mod echo;
mod hop_headers;
mod request_heads;

use connection::{HttpConnection, UnsentRequest};
pub use hop_headers::remove_hop_headers;
use request_heads::StrictHeadStream;

type ResponseBody = Either<Incoming, Full<Bytes>>;

/// Serves a client that asks for other hosts, by `CONNECT` or with URIs in absolute form.
pub(crate) async fn serve_client<S: ByteStream>(proxy: &Proxy, client: RewoundStream<S>) {
    let session = HttpSession::new(proxy, SessionScope::Anywhere);
    // Boxed, because a tunnel lasts much longer than the conversation that asks for the tunnel, and
    // would otherwise keep space for the conversation's future.
    if let Some((client, AfterHttp::Tunnel(connection, target))) =
        Box::pin(serve_requests(client, session)).await
    {
        tunnel::carry_tunnel(proxy, client, connection, &target).await;
    }
}

/// Serves a client whose tunnel turns out to carry plain HTTP requests. `server` is the connection
/// to the tunnel's target.
pub(crate) async fn serve_plain_tunnel<S: ByteStream>(
    proxy: &Proxy,
    client: RewoundStream<S>,
    server: TcpStream,
    pass: ConnectionPass,
) {
    let session =
        HttpSession::new(proxy, SessionScope::Within(pass.target.clone(), HttpScheme::Http));
    let origin = OriginConnection { stream: MaybeTlsStream::Clear(server), pass, hop: None };
    // If the exchange cannot begin, the first request connects again, and its client gets the
    // error.
    if let Ok(exchange) = HttpConnection::start(proxy, origin).await {
        session.keep_connection(exchange);
    }
    // The result is always `None`, because a `CONNECT` is refused within a tunnel and
    // `serve_requests` handles upgrades itself.
    let _ = serve_requests(client, session).await;
}

/// Serves a client whose tunnel carries HTTP requests in TLS, to which the proxy adds credentials.
/// `server` is the connection to the tunnel's target.
pub(crate) async fn serve_tls_tunnel<S: ByteStream>(
    proxy: &Proxy,
    client: RewoundStream<S>,
    server: TcpStream,
    pass: ConnectionPass,
) {
    let target = pass.target.clone();
    // A host that the rules have just ceased to allow has no credentials.
    let Some(credentials) = proxy.credentials_for(&target) else { return };
    let accepted = timeout(proxy.settings().limits.greeting, credentials.accept_tls(client)).await;
    // A client that does not trust the certificate reports that in its own errors.
    let Ok(Ok(client)) = accepted else { return };
    let session = HttpSession::new(proxy, SessionScope::Within(target.clone(), HttpScheme::Https));
    // If TLS or the exchange cannot begin, the first request connects again, and its client gets
    // the error.
    if let Ok(origin) = proxy.start_tls(credentials, server, pass).await
        && let Ok(exchange) = HttpConnection::start(proxy, origin).await
    {
        session.keep_connection(exchange);
    }
    let _ = serve_requests(RewoundStream::new(Bytes::new(), client), session).await;
}

/// Answers requests until the connection ends or stops being HTTP. Returns the client's stream if a
/// tunnel follows; copies the bytes of an upgraded connection itself.
async fn serve_requests<S: ByteStream>(
    client: RewoundStream<S>,
    session: HttpSession,
) -> Option<(RewoundStream<S>, AfterHttp)> {
    let session = Arc::new(session);
    let limits = session.proxy.settings().limits;
    let client = TokioIo::new(StrictHeadStream::new(client, limits.head));
    let mut connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.greeting)
        .max_buf_size(limits.head.max(8192))
        .half_close(true)
        .preserve_header_case(true)
        .auto_date_header(false)
        .serve_connection(
            client,
            service_fn(|request| Box::pin(Arc::clone(&session).answer_or_refuse(request))),
        );
    // An error of hyper harms only this client. The code below reports the errors that the owner
    // must know.
    let served = poll_fn(|cx| connection.poll_without_shutdown(cx)).await;
    let is_unread = served.as_ref().is_err_and(|error| error.is_parse());
    if served.is_err_and(|error| error.is_user()) {
        session.report_broken_answer();
    }

    let parts = connection.into_parts();
    let heads = parts.io.into_inner();
    let next = session.next.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(fault) = heads.fault() {
        let said = match &session.scope {
            SessionScope::Anywhere => heads.refused_host(),
            SessionScope::Within(target, _) => target.to_string(),
        };
        let refusal =
            session.proxy.report_denial(Denial::for_malformed(&said, RequestKind::Http, fault));
        let mut client = heads.into_inner(Bytes::new());
        if client.write_all(&refusal.response_bytes()).await.is_ok() {
            linger(client).await;
        }
        return None;
    }
    if is_unread {
        let said = match &session.scope {
            SessionScope::Anywhere => String::new(),
            SessionScope::Within(target, _) => target.to_string(),
        };
        session.proxy.report_denial(Denial::for_malformed(
            &said,
            RequestKind::Http,
            "the request is not valid HTTP",
        ));
    }
    let client = heads.into_inner(parts.read_buf);
    match next {
        Some(AfterHttp::Upgrade(upgrade, pass)) => {
            if let Ok(upgraded) = upgrade.await {
                // The bytes that hyper read past the head come first.
                let Ok(Parts { io, read_buf, .. }) = upgraded.downcast::<TokioIo<MaybeTlsStream>>()
                else {
                    return None;
                };
                let carried = async {
                    match io.into_inner() {
                        MaybeTlsStream::Clear(server) => {
                            copy_upgraded(client, RewoundStream::new(read_buf, server)).await
                        }
                        MaybeTlsStream::Tls(server) => {
                            copy_upgraded(client, RewoundStream::new(read_buf, *server)).await
                        }
                    }
                };
                tokio::select! {
                    biased;
                    denial = session.proxy.wait_until_withdrawn(&pass) => {
                        drop(session.proxy.report_denial(denial));
                    }
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

async fn copy_upgraded<S: ByteStream, T: ByteStream>(
    mut client: RewoundStream<S>,
    mut server: RewoundStream<T>,
) {
    // The result is dropped, because after an error of either side there is nothing left to carry.
    let _ = copy::copy_both_ways(
        &mut client,
        &mut server,
        &mut CopyDirection::default(),
        &mut CopyDirection::default(),
    )
    .await;
}

/// Scope of the requests that a session answers.
enum SessionScope {
    /// Requests of a client that names a host with each request.
    Anywhere,
    /// Requests in a tunnel to this target, and the scheme by which they are carried there.
    Within(Target, HttpScheme),
}

/// Scheme by which requests are carried to their host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HttpScheme {
    Http,
    Https,
}

impl HttpScheme {
    const fn name(self) -> &'static str {
        match self {
            HttpScheme::Http => "http",
            HttpScheme::Https => "https",
        }
    }

    /// Returns the default port of the scheme.
    const fn port(self) -> u16 {
        match self {
            HttpScheme::Http => 80,
            HttpScheme::Https => 443,
        }
    }
}

/// Destination of a request.
struct RequestDestination {
    /// Host to which the request is sent.
    target: Target,
    /// Host that the request names, which may be another host at the same address.
    host: Target,
}

impl From<Target> for RequestDestination {
    fn from(target: Target) -> RequestDestination {
        RequestDestination { host: target.clone(), target }
    }
}

/// Use of a client's connection after HTTP.
enum AfterHttp {
    Tunnel(TargetConnection, Target),
    Upgrade(OnUpgrade, ConnectionPass),
}

/// Requests of one client. The requests come one at a time, so that no code has to wait while it
/// holds a lock.
struct HttpSession {
    proxy: Proxy,
    scope: SessionScope,
    /// Connection of the last request, kept for the next request to the same host.
    exchange: Mutex<Option<HttpConnection>>,
    next: Mutex<Option<AfterHttp>>,
}

impl HttpSession {
    fn new(proxy: &Proxy, scope: SessionScope) -> HttpSession {
        HttpSession {
            proxy: proxy.clone(),
            scope,
            exchange: Mutex::default(),
            next: Mutex::default(),
        }
    }

    /// Answers a request with the host's answer or with a refusal.
    async fn answer_or_refuse(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<ResponseBody>, Infallible> {
        let is_last = request_heads::ends_connection(request.headers());
        let mut response = match self.answer_request(request).await {
            Ok(response) => response,
            Err(refusal) => refusal.response().map(Either::Right),
        };
        if is_last {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response)
    }

    async fn answer_request(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<ResponseBody>, ConnectionRefusal> {
        let RequestDestination { target, host } = self.find_destination(&request)?;
        if request.method() == Method::CONNECT {
            let connection = self.proxy.connect(&target, RequestKind::Connect).await?;
            self.continue_with(AfterHttp::Tunnel(connection, target));
            return Ok(Response::new(Either::Right(Full::default())));
        }
        self.forward_request(request, target, &host).await
    }

    /// Sends a request to its host and returns the answer.
    async fn forward_request(
        &self,
        mut request: Request<Incoming>,
        target: Target,
        host: &Target,
    ) -> Result<Response<ResponseBody>, ConnectionRefusal> {
        // Judge the target even if a kept connection leads there, because that connection was
        // judged only when it was made.
        self.proxy.admit_target(&target, RequestKind::Http)?;
        let credentials = self.proxy.credentials_for(&target);
        if credentials.is_some() {
            self.check_credential_exposure(&request, &target)?;
        }
        let upgrade = hop_headers::prepare_request(&mut request, host, self.scheme());
        if let Some(credentials) = credentials {
            credentials.set_headers(request.headers_mut());
        }
        let kept = self.exchange.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (mut response, pass) = match kept.filter(|exchange| exchange.leads_to(&target)) {
            Some(mut exchange) => match exchange.send(request).await {
                Ok(response) => (response, self.keep_connection(exchange)),
                // The host had closed the kept connection before anything of this request was sent.
                Err(UnsentRequest { request: Some(request), .. }) => {
                    self.send_on_new_connection(request, &target).await?
                }
                Err(UnsentRequest { error, .. }) => {
                    return Err(self.unanswered_refusal(exchange.pass(), error));
                }
            },
            None => self.send_on_new_connection(request, &target).await?,
        };
        match (response.status(), upgrade) {
            (StatusCode::SWITCHING_PROTOCOLS, hop_headers::Upgrade::Asked) => {
                self.continue_with(AfterHttp::Upgrade(hyper::upgrade::on(&mut response), pass));
            }
            (StatusCode::SWITCHING_PROTOCOLS, hop_headers::Upgrade::None) => {
                return Err(ConnectionRefusal::Unasked { target });
            }
            _ => {}
        }
        hop_headers::prepare_response(&mut response);
        Ok(response.map(Either::Left))
    }

    /// Sends a request on a new connection, and keeps the connection. Returns the answer and the
    /// pass of the connection.
    async fn send_on_new_connection(
        &self,
        request: Request<Incoming>,
        target: &Target,
    ) -> Result<(Response<Incoming>, ConnectionPass), ConnectionRefusal> {
        let origin = self.connect_to_host(target).await?;
        let garbled = |source| ConnectionRefusal::Garbled { target: target.clone(), source };
        let mut exchange = HttpConnection::start(&self.proxy, origin).await.map_err(garbled)?;
        let sent = exchange.send(request).await;
        let response =
            sent.map_err(|unsent| self.unanswered_refusal(exchange.pass(), unsent.error))?;
        if exchange.is_through_upstream()
            && response.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED
        {
            // The machine's administrator sets the upstream's password, so the client has none to
            // answer with.
            let source = UpstreamError::Refused(response.status().to_string());
            return Err(ConnectionRefusal::Upstream { target: target.clone(), source });
        }
        Ok((response, self.keep_connection(exchange)))
    }

    /// Returns the refusal for a request that got no answer: a denial if the rules no longer allow
    /// the host, and otherwise [`ConnectionRefusal::Garbled`].
    fn unanswered_refusal(&self, pass: &ConnectionPass, source: hyper::Error) -> ConnectionRefusal {
        match self.proxy.find_denial(pass) {
            Some(denial) => self.proxy.report_denial(denial),
            None => ConnectionRefusal::Garbled { target: pass.target.clone(), source },
        }
    }

    /// Reports an answer that broke off to the owner, if the rules no longer allow the answer's
    /// host.
    fn report_broken_answer(&self) {
        let exchange = self.exchange.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(denial) =
            exchange.as_ref().and_then(|exchange| self.proxy.find_denial(exchange.pass()))
        {
            self.proxy.report_denial(denial);
        }
    }

    /// Connects to the server that takes requests for `target`: by TLS if the session's scheme is
    /// HTTPS and the target has credentials.
    async fn connect_to_host(
        &self,
        target: &Target,
    ) -> Result<OriginConnection, ConnectionRefusal> {
        match self.proxy.credentials_for(target).filter(|_| self.scheme() == HttpScheme::Https) {
            Some(credentials) => {
                let connection = self.proxy.connect(target, RequestKind::Tls).await?;
                let pass = connection.pass(target);
                self.proxy.start_tls(credentials, connection.stream, pass).await
            }
            None => self.proxy.connect_for_http(target).await,
        }
    }

    fn scheme(&self) -> HttpScheme {
        match self.scope {
            SessionScope::Anywhere => HttpScheme::Http,
            SessionScope::Within(_, scheme) => scheme,
        }
    }

    /// Refuses a request that would reveal a credential to anyone other than the credential's host.
    fn check_credential_exposure(
        &self,
        request: &Request<Incoming>,
        target: &Target,
    ) -> Result<(), ConnectionRefusal> {
        let reason = match self.scheme() {
            HttpScheme::Http => DenialReason::Unencrypted,
            HttpScheme::Https if echo::is_echo_request(request) => DenialReason::Malformed {
                fault: "a TRACE or TRACK request would return the credential to the client"
                    .to_owned(),
            },
            HttpScheme::Https => return Ok(()),
        };
        Err(self.proxy.report_denial(Denial::for_target(target, RequestKind::Http, reason)))
    }

    /// Returns the destination of a request. The URI and the `Host` header may both name a host,
    /// and each named host must pass [`HttpSession::check_named_host`] against the target.
    fn find_destination(
        &self,
        request: &Request<Incoming>,
    ) -> Result<RequestDestination, ConnectionRefusal> {
        let uri = request.uri();
        let via = if request.method() == Method::CONNECT {
            RequestKind::Connect
        } else {
            RequestKind::Http
        };
        let malformed = |fault: &str| {
            self.proxy.report_denial(Denial::for_malformed(&stated_host(request), via, fault))
        };
        let read = |text: &str, port: Option<u16>| {
            Target::from_authority(text, port).map_err(|fault| malformed(&fault.to_string()))
        };
        let mut named = None;
        let (target, default_port) = match (&self.scope, uri.scheme_str(), uri.authority()) {
            (SessionScope::Within(..), ..) if request.method() == Method::CONNECT => {
                return Err(malformed("a CONNECT request in a tunnel is not allowed"));
            }
            (SessionScope::Anywhere, None, Some(authority))
                if request.method() == Method::CONNECT =>
            {
                return read(authority.as_str(), None).map(RequestDestination::from);
            }
            (SessionScope::Anywhere, Some("http"), Some(authority)) => {
                (read(authority.as_str(), Some(80))?, 80)
            }
            (SessionScope::Anywhere, Some(_), _) => {
                return Err(malformed(
                    "the proxy forwards only http:// requests; use CONNECT for https://",
                ));
            }
            (SessionScope::Anywhere, ..) => {
                return Err(malformed(
                    "a request to this proxy must name its host, as in GET http://host/",
                ));
            }
            (SessionScope::Within(target, _), None, None) => (target.clone(), target.port),
            (SessionScope::Within(target, scheme), Some(said), Some(authority))
                if said == scheme.name() =>
            {
                named = Some(read(authority.as_str(), Some(target.port))?);
                (target.clone(), target.port)
            }
            (SessionScope::Within(_, scheme), ..) => {
                return Err(malformed(&format!(
                    "only {}:// requests are allowed in this tunnel",
                    scheme.name()
                )));
            }
        };
        if let Some(host) = request.headers().get(HOST) {
            let host = host.to_str().map_err(|_| malformed("the Host header is not text"))?;
            let host = read(host, Some(default_port))?;
            self.check_named_host(&target, &host)?;
            named.get_or_insert(host);
        }
        let host = named.unwrap_or_else(|| target.clone());
        self.check_named_host(&target, &host)?;
        Ok(RequestDestination { target, host })
    }

    /// Refuses a request that is sent to one host and names another. In a tunnel to an address,
    /// refuses only names that a rule denies.
    fn check_named_host(&self, target: &Target, named: &Target) -> Result<(), ConnectionRefusal> {
        if target == named {
            return Ok(());
        }
        let is_at_address = matches!(
            &self.scope,
            SessionScope::Within(Target { host: TargetHost::Address(_), .. }, _)
        );
        let denial = match self.proxy.rules().judge(named) {
            Verdict::Denied(reason @ DenialReason::Listed { .. }) if is_at_address => {
                Denial::for_target(named, RequestKind::Http, reason)
            }
            _ if is_at_address => return Ok(()),
            _ => Denial::for_target(
                target,
                RequestKind::Http,
                DenialReason::OtherName { name: named.to_string() },
            ),
        };
        Err(self.proxy.report_denial(denial))
    }

    /// Keeps a connection for the next request, and returns the pass of the connection.
    fn keep_connection(&self, exchange: HttpConnection) -> ConnectionPass {
        let pass = exchange.pass().clone();
        *self.exchange.lock().unwrap_or_else(PoisonError::into_inner) = Some(exchange);
        pass
    }

    fn continue_with(&self, next: AfterHttp) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(next);
    }
}

/// Returns the destination that the client wrote, for the report of a refusal. Leaves out the path,
/// because it may hold a secret.
fn stated_host(request: &Request<Incoming>) -> String {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let authority = request.uri().authority().map(|authority| authority.as_str());
    // Leave out the user and the password, which stand before the `@`.
    let said = authority.or(host).unwrap_or_default();
    said.rsplit('@').next().unwrap_or_default().to_owned()
}
