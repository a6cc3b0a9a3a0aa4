//! Streamable HTTP transport of the protocol, for many clients at one address, at `/mcp`.
//!
//! A client is one session of the protocol. The session begins with `initialize` and ends with
//! DELETE or after an idle timeout. This server does not support protocol versions without
//! sessions, because nothing in them says which sandbox belongs to which client.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use ringfence_service::connections::{Admission, ConnectionLimit};
use ringfence_service::exchange::{Exchanges, HeadTimeouts, RequestBody};
use ringfence_service::telemetry::Telemetry;
use rmcp::model::ProtocolVersion;
use rmcp::transport::streamable_http_server::session::SessionManager as _;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::client::{Client, SandboxReaper, ServerContext};
use crate::sandbox_source::SandboxSource;
use crate::transport::keepalive::SessionKeepalive;
use crate::transport::token::Token;

/// Path at which the server speaks the protocol.
pub const PATH: &str = "/mcp";
/// Header in which a client names its session.
pub(crate) const SESSION: &str = "mcp-session-id";
/// Header in which a client names its protocol version.
pub(crate) const VERSION: &str = "mcp-protocol-version";
/// Maximum length of a request, in bytes.
const LONGEST_REQUEST: usize = 4 << 20;
/// Maximum time from the head of a request until the server has an answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of open connections. For a further connection, the server closes the connection
/// that has been idle for longest.
const MOST_CONNECTIONS: usize = 256;

type Body = BoxBody<Bytes, Infallible>;

/// Listener for clients, with the rules that admit them.
#[derive(Debug)]
pub struct HttpOptions {
    /// Listener that accepts connections of clients.
    pub listener: TcpListener,
    /// Token that clients must show, if any.
    pub token: Option<Token>,
    /// Host names that clients may use in `Host`, besides the address of the listener.
    pub hosts: Vec<String>,
    /// Time after which the server drops a client that is silent and waits for no answer.
    pub idle: Duration,
    /// Maximum number of clients at once.
    pub most: usize,
}

impl HttpOptions {
    /// Returns the host names that a client may use in `Host`.
    fn names(&self, address: SocketAddr) -> Vec<String> {
        let mut names = self.hosts.clone();
        if address.ip().is_loopback() {
            names.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
        } else if !address.ip().is_unspecified() {
            names.push(address.ip().to_string());
        }
        names
    }
}

/// HTTP service that checks the token and the number of clients.
struct HttpFrontend {
    sessions: StreamableHttpService<Client, LocalSessionManager>,
    token: Option<Token>,
    /// Permits for clients, one per client.
    client_permits: Arc<Semaphore>,
}

/// Serves clients until `ends` completes, then ends their sandboxes.
pub async fn serve(
    source: SandboxSource,
    telemetry: Telemetry,
    options: HttpOptions,
    ends: impl Future,
) -> io::Result<()> {
    let address = options.listener.local_addr()?;
    let names = options.names(address);
    let mut manager = LocalSessionManager::default();
    manager.session_config.keep_alive = Some(options.idle);
    let manager = Arc::new(manager);
    let keepalive = Some(SessionKeepalive::new(Arc::clone(&manager), options.idle));
    let versions = ProtocolVersion::known_up_to(&ProtocolVersion::LATEST_WITH_INITIALIZE);
    let server_context = ServerContext { source: Arc::new(source), keepalive, versions, telemetry };
    let reaper = SandboxReaper::new();
    let client_permits = Arc::new(Semaphore::new(options.most));
    let origins = names.iter().map(|name| {
        let name = if name.contains(':') { format!("[{name}]") } else { name.clone() };
        format!("http://{name}:{}", address.port())
    });
    let config = StreamableHttpServerConfig::default()
        .with_allowed_origins(origins)
        .with_allowed_hosts(names.clone())
        .enforce_origin_validation()
        .with_max_request_body_bytes(LONGEST_REQUEST);
    let over = config.cancellation_token.clone();
    let (reaper_sender, free) = (reaper.sender(), Arc::clone(&client_permits));
    let new = move || {
        let permit = Arc::clone(&free).try_acquire_owned().map_err(io::Error::other)?;
        Ok(Client::new(server_context.clone(), reaper_sender.clone(), Some(permit)))
    };
    let sessions = StreamableHttpService::new(new, Arc::clone(&manager), config);
    let frontend = HttpFrontend { sessions, token: options.token, client_permits };
    tokio::select! {
        never = accept(options.listener, frontend) => match never {},
        _ = ends => {}
    }
    over.cancel();
    let left: Vec<_> = manager.sessions.read().await.keys().cloned().collect();
    for session in left {
        let _ = manager.close_session(&session).await; // the session may have ended meanwhile
    }
    reaper.finish().await;
    Ok(())
}

async fn accept(listener: TcpListener, frontend: HttpFrontend) -> Infallible {
    let frontend = Arc::new(frontend);
    let limit = ConnectionLimit::new(MOST_CONNECTIONS);
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let conversation = converse(stream, limit.admit().await, Arc::clone(&frontend));
                connections.spawn(conversation);
            }
            Err(error) => limit.recover_from(&error, &mut connections).await,
        }
    }
}

async fn converse(stream: TcpStream, admission: Admission, frontend: Arc<HttpFrontend>) {
    let exchanges = admission.exchanges();
    let stream = exchanges.watch(stream, HeadTimeouts { first: HEAD_TIMEOUT, later: HEAD_TIMEOUT });
    let answers = service_fn(|mut request| {
        let frontend = Arc::clone(&frontend);
        request.extensions_mut().insert(exchanges.clone());
        let (request, exchange) = exchanges.begin(request);
        async move { Ok::<_, Infallible>(exchange.end(frontend.answer(request).await).await) }
    });
    let mut connection = http1::Builder::new();
    connection.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    tokio::select! {
        ended = connection.serve_connection(TokioIo::new(stream), answers) => {
            if let Err(error) = ended {
                let error = ringfence::chain(&error);
                tracing::debug!(error, "a connection ended with an error");
            }
        }
        () = exchanges.closed() => {} // another client needs the place of this connection
    }
}

impl HttpFrontend {
    async fn answer(&self, request: Request<RequestBody>) -> Response<Body> {
        if request.uri().path() != PATH {
            return refuse(StatusCode::NOT_FOUND, "not found: the path of the MCP server is /mcp");
        }
        let shown = request.headers().get(AUTHORIZATION).map_or(&b""[..], |shown| shown.as_bytes());
        if self.token.as_ref().is_some_and(|token| !token.is_shown_by(shown)) {
            let mut refusal = refuse(
                StatusCode::UNAUTHORIZED,
                "unauthorized: send the token in the header `Authorization: Bearer TOKEN`",
            );
            refusal.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return refusal;
        }
        request.extensions().get::<Exchanges>().into_iter().for_each(Exchanges::mark_known);
        if !request.headers().contains_key(SESSION) && self.client_permits.available_permits() == 0
        {
            return refuse(
                StatusCode::SERVICE_UNAVAILABLE,
                "the maximum number of clients is reached: try again later",
            );
        }
        let ends_session = request.method() == Method::DELETE;
        match timeout(REQUEST_TIMEOUT, self.sessions.handle(request)).await {
            // The session has ended here. Clients take "accepted" to mean that they could not end
            // the session, so the status becomes "no content".
            Ok(mut response) if ends_session && response.status() == StatusCode::ACCEPTED => {
                *response.status_mut() = StatusCode::NO_CONTENT;
                response
            }
            Ok(response) => response,
            Err(_) => refuse(StatusCode::REQUEST_TIMEOUT, "the request did not arrive in time"),
        }
    }
}

fn refuse(status: StatusCode, message: &'static str) -> Response<Body> {
    let mut response = Response::new(Full::from(message).boxed());
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
