//! Proxy for requests to a sandbox: to its guest, which speaks envd's protocol itself, or to a port
//! in the sandbox.

use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, DATE,
    HOST, HeaderMap, HeaderName, HeaderValue, TRAILER, TRANSFER_ENCODING, UPGRADE, VARY,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::http::uri::PathAndQuery;
use hyper::{Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::TokioIo;
use ringfence::{IdleConnectionState, IdleConnections, Session, SessionError};
use ringfence_egress::remove_hop_headers;
use ringfence_proto::{content, header};
use ringfence_service::exchange::RequestBody;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::api::reply::{Body, Reply, json};
use crate::forwarding::executions::FollowedExecution;
use crate::lifecycle::registry::ManagedSandbox;
use crate::tenants::connection_limits::ConnectionCharge;

/// Maximum time that one side of an upgraded connection may be silent after the other side has
/// ended.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);
/// Size of the buffer for bytes of an upgraded connection, in each direction.
const BUFFER_SIZE: usize = 16 << 10;
/// Headers that pass from an answer of a guest to the client, besides those that describe the
/// transfer.
const GUEST_HEADERS: [HeaderName; 5] = [CONTENT_TYPE, CONTENT_LENGTH, CONTENT_ENCODING, DATE, VARY];
/// Media types that an answer of a guest may have.
const DATA_TYPES: [&str; 4] = [content::UNARY, content::STREAM, content::OCTETS, "text/plain"];
/// Maximum length of the head of an answer, in bytes.
const LONGEST_HEAD: usize = 64 << 10;

/// Headers that only this server reads. They are removed from forwarded requests, because
/// credentials of the caller must not reach a sandbox.
const SERVER_HEADERS: [&str; 5] =
    ["x-api-key", header::TRAFFIC, header::TOKEN, header::SANDBOX, header::PORT];

/// Connection pool of one guest.
#[derive(Debug, Default)]
pub(crate) struct GuestConnections {
    idle: IdleConnections<SendRequest<Body>>,
}

/// Error of a request that got no answer from the sandbox.
#[derive(Debug)]
pub(crate) enum ForwardError {
    /// The connection could not be opened.
    Unreachable(SessionError),
    /// The connection broke before the answer began.
    Broken(hyper::Error),
}

impl GuestConnections {
    /// Sends a request to the guest and waits for the head of the answer.
    pub(crate) async fn send(
        &self,
        session: &Session,
        mut request: Request<Body>,
    ) -> Result<Response<Incoming>, ForwardError> {
        loop {
            let used = self.take();
            let is_new = used.is_none();
            let mut sender = match used {
                Some(sender) => sender,
                None => open(session.stream().await.map_err(ForwardError::Unreachable)?).await?,
            };
            match sender.try_send_request(request).await {
                Ok(response) => {
                    self.idle.keep(sender);
                    return Ok(response);
                }
                // The guest closed an idle connection before the request was sent, so try another
                // connection.
                Err(mut error) => match error.take_message() {
                    Some(unsent) if !is_new => request = unsent,
                    _ => return Err(ForwardError::Broken(error.into_error())),
                },
            }
        }
    }

    /// Takes a connection whose last answer has ended.
    fn take(&self) -> Option<SendRequest<Body>> {
        self.idle.take(|sender| match (sender.is_closed(), sender.is_ready()) {
            (true, _) => IdleConnectionState::Closed,
            (false, true) => IdleConnectionState::Ready,
            (false, false) => IdleConnectionState::Reserved,
        })
    }
}

async fn open(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<SendRequest<Body>, ForwardError> {
    let handshake =
        http1::Builder::new().max_header_size(LONGEST_HEAD).handshake(TokioIo::new(stream)).await;
    let (sender, connection) = handshake.map_err(ForwardError::Broken)?;
    // The task ends when the sender and its last answer are dropped, or when the sandbox ends.
    tokio::spawn(async move {
        // The code that waits for the answer gets the error.
        let _ = connection.with_upgrades().await;
    });
    Ok(sender)
}

/// Forwards a request to the guest of a sandbox and returns the answer.
pub(crate) async fn to_guest(managed: &ManagedSandbox, request: Request<RequestBody>) -> Reply {
    let mut request = request.map(BodyExt::boxed_unsync);
    let execution = FollowedExecution::from_request(managed, &mut request);
    prepare(&mut request);
    request.headers_mut().insert(HOST, HeaderValue::from_static("guest"));
    let mut reply = match managed.connections.send(managed.sandbox.session(), request).await {
        Ok(response) => guest_answer(managed, response),
        Err(lost) => gone(managed, &lost),
    };
    if let Some(execution) = execution {
        execution.follow(&mut reply);
    }
    // Answers of a guest are data for programs. A browser that follows a link to such an answer
    // must not run it as a page of this server.
    reply
        .headers_mut()
        .insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
    reply.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    reply
}

/// Forwards a request to a port of a sandbox and returns the answer. Also forwards an upgrade to
/// another protocol if both sides agree on it.
pub(crate) async fn to_port(
    managed: &ManagedSandbox,
    port: u16,
    mut request: Request<RequestBody>,
) -> Reply {
    let here = hyper::upgrade::on(&mut request);
    let charge = request.extensions().get::<ConnectionCharge>().cloned();
    let protocol = request.headers().get(UPGRADE).cloned();
    let mut request = request.map(BodyExt::boxed_unsync);
    prepare(&mut request);
    if let Some(protocol) = protocol {
        request.headers_mut().insert(UPGRADE, protocol);
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
    let sent = async {
        let stream =
            managed.sandbox.connect_own_port(port).await.map_err(ForwardError::Unreachable)?;
        open(stream).await?.send_request(request).await.map_err(ForwardError::Broken)
    };
    let mut response = match sent.await {
        Ok(response) => response,
        Err(ForwardError::Unreachable(SessionError::PortClosed { .. })) => {
            return closed(managed, port);
        }
        Err(lost) => return gone(managed, &lost),
    };
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return answer(response);
    }
    let there = hyper::upgrade::on(&mut response);
    tokio::spawn(async move {
        if let (Ok(here), Ok(there)) = (here.await, there.await) {
            copy_both_ways(TokioIo::new(here), TokioIo::new(there), SILENCE_TIMEOUT).await;
        }
        drop(charge); // the upgraded connection counts against the limit until here
    });
    response.map(BodyExt::boxed_unsync)
}

/// Copies bytes in both directions until both sides have ended, or until one side has ended and the
/// other side is silent for `silence`.
async fn copy_both_ways(
    here: impl AsyncRead + AsyncWrite,
    there: impl AsyncRead + AsyncWrite,
    silence: Duration,
) {
    let ((from_here, to_here), (from_there, to_there)) =
        (tokio::io::split(here), tokio::io::split(there));
    let other = OppositeDirection { is_over: AtomicBool::new(false), silence };
    tokio::join!(
        copy_one_way(from_here, to_there, &other),
        copy_one_way(from_there, to_here, &other)
    );
}

/// Copies bytes in one direction.
async fn copy_one_way(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    other: &OppositeDirection,
) {
    let mut buffer = vec![0; BUFFER_SIZE];
    let copying = async {
        loop {
            let length = other.or_silence(from.read(&mut buffer)).await?;
            if length == 0 {
                return other.or_silence(to.shutdown()).await;
            }
            other.or_silence(to.write_all(&buffer[..length])).await?;
            other.or_silence(to.flush()).await?;
        }
    };
    let _ = copying.await; // either side may close the connection at any time
    other.is_over.store(true, Ordering::Relaxed);
}

/// State of the opposite direction.
struct OppositeDirection {
    is_over: AtomicBool,
    silence: Duration,
}

impl OppositeDirection {
    /// Waits for a step of this direction. Once the opposite direction is over, waits at most
    /// `silence`.
    async fn or_silence<T>(&self, step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let mut step = pin!(step);
        loop {
            let was_over = self.is_over.load(Ordering::Relaxed);
            match timeout(self.silence, step.as_mut()).await {
                Ok(done) => return done,
                Err(_) if was_over => return Err(io::ErrorKind::TimedOut.into()),
                Err(_) => {}
            }
        }
    }
}

/// Turns the request of a client into the request that the sandbox gets.
fn prepare(request: &mut Request<Body>) {
    let path =
        request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from(path);
    *request.version_mut() = Version::HTTP_11;
    prepare_headers(request.headers_mut());
    for name in SERVER_HEADERS {
        request.headers_mut().remove(name);
    }
}

/// Turns an answer of a sandbox into the answer that the client gets.
fn answer(mut response: Response<Incoming>) -> Reply {
    prepare_headers(response.headers_mut());
    *response.version_mut() = Version::HTTP_11;
    response.map(BodyExt::boxed_unsync)
}

/// Turns an answer of a guest into the answer that the client gets. Code in a sandbox can replace
/// its guest. An answer must therefore not redirect a client, nor make a browser store or run
/// anything in the name of this server.
fn guest_answer(managed: &ManagedSandbox, response: Response<Incoming>) -> Reply {
    if response.status().is_redirection() || response.status().is_informational() {
        tracing::info!(
            id = managed.record.id,
            status = response.status().as_u16(),
            "dropped an answer of a guest, because no guest sends this status"
        );
        return unreachable(&managed.record.id, "The sandbox does not answer", None);
    }
    let mut reply = answer(response);
    let passed_on = guest_headers(reply.headers());
    *reply.headers_mut() = passed_on;
    reply
}

/// Returns the headers of a guest's answer that are passed on. A media type that is not in
/// [`DATA_TYPES`] becomes plain bytes.
fn guest_headers(headers: &HeaderMap) -> HeaderMap {
    let mut passed_on: HeaderMap = GUEST_HEADERS
        .into_iter()
        .filter_map(|name| Some((name.clone(), headers.get(&name)?.clone())))
        .collect();
    if let Some(kind) = passed_on.get_mut(CONTENT_TYPE) {
        let essence = kind.to_str().unwrap_or_default().split(';').next().unwrap_or_default();
        if !DATA_TYPES.contains(&essence.trim()) {
            *kind = HeaderValue::from_static(content::OCTETS);
        }
    }
    passed_on
}

/// Removes `Content-Length` from a message with `Transfer-Encoding`, RFC 9112, 6.3. Two statements
/// about the length of a body can disagree, and the chunks decide.
fn drop_ambiguous_length(headers: &mut HeaderMap) {
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
}

/// Removes headers that are meant for the next hop only, RFC 9110, 7.6. The next hop has a transfer
/// coding of its own, and no trailers are announced.
fn prepare_headers(headers: &mut HeaderMap) {
    drop_ambiguous_length(headers);
    remove_hop_headers(headers);
    headers.remove(TRAILER);
    headers.remove(TRANSFER_ENCODING);
}

/// Error body that E2B clients know for a sandbox that cannot be reached.
#[derive(serde::Serialize)]
struct UnreachableBody<'a> {
    #[serde(rename = "sandboxId")]
    sandbox_id: &'a str,
    message: &'a str,
    code: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
}

/// Returns the answer for a sandbox that does not exist. Clients recognize the text of its message.
pub(crate) fn not_found(id: &str) -> Reply {
    unreachable(id, "The sandbox was not found", None)
}

fn closed(managed: &ManagedSandbox, port: u16) -> Reply {
    unreachable(&managed.record.id, "The sandbox is running but port is not open", Some(port))
}

fn gone(managed: &ManagedSandbox, lost: &ForwardError) -> Reply {
    let id = managed.record.id.as_str();
    if !managed.sandbox.is_up() {
        return not_found(id);
    }
    match lost {
        ForwardError::Unreachable(error) => {
            tracing::warn!(id, error = ringfence::chain(error), "cannot reach a guest")
        }
        ForwardError::Broken(error) => {
            tracing::info!(id, error = ringfence::chain(error), "the connection to a guest broke")
        }
    }
    unreachable(id, "The sandbox does not answer", None)
}

fn unreachable(sandbox_id: &str, message: &str, port: Option<u16>) -> Reply {
    json(StatusCode::BAD_GATEWAY, &UnreachableBody { sandbox_id, message, code: 502, port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_tells_what_its_data_is_and_nothing_else() {
        let said = [
            ("content-type", "text/javascript"),
            ("content-length", "5"),
            ("set-cookie", "a=b"),
            ("set-cookie", "c=d"),
            ("location", "https://example.org"),
            ("clear-site-data", "*"),
        ];
        let mut headers = HeaderMap::new();
        for (name, value) in said {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let told = guest_headers(&headers);
        assert_eq!(told.len(), 2);
        assert_eq!(
            (&told[CONTENT_TYPE], &told[CONTENT_LENGTH]),
            (&content::OCTETS.parse().unwrap(), &5.into())
        );
        for kind in ["application/json", "application/connect+json", "text/plain; charset=utf-8"] {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
            assert_eq!(guest_headers(&headers)[CONTENT_TYPE], kind);
        }
    }

    /// Returns two ends of a conversation that goes through [`copy_both_ways`], and the task that
    /// copies its bytes.
    fn through(
        silence: Duration,
    ) -> (tokio::io::DuplexStream, tokio::io::DuplexStream, tokio::task::JoinHandle<()>) {
        let ((client, here), (there, program)) = (tokio::io::duplex(64), tokio::io::duplex(64));
        (client, program, tokio::spawn(copy_both_ways(here, there, silence)))
    }

    #[test]
    fn a_side_that_has_ended_is_waited_for_no_longer_than_the_other_speaks() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let silence = Duration::from_secs(1);
            let (mut client, mut program, copying) = through(silence);
            tokio::time::sleep(3 * silence).await;
            client.write_all(b"ask").await.unwrap(); // silence alone does not end the conversation
            client.shutdown().await.unwrap();
            let mut asked = Vec::new();
            program.read_to_end(&mut asked).await.unwrap();
            assert_eq!(asked, b"ask");
            for _ in 0..5 {
                tokio::time::sleep(silence / 2).await;
                program.write_all(b"more").await.unwrap();
                client.read_exact(&mut [0; 4]).await.unwrap();
            }
            copying.await.unwrap();
            assert_eq!(program.read(&mut [0]).await.unwrap(), 0);
            assert!(program.write_all(b"late").await.is_err());
        });
    }
}
