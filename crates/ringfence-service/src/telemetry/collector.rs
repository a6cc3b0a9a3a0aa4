//! HTTP client for a telemetry collector. Sends one request at a time, on the thread of the caller.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use opentelemetry_http::{HttpClient, HttpError};
use ringfence::{Host, chain};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::variables::Signal;

/// Maximum length of an answer from a collector, in bytes.
const LONGEST_ANSWER: usize = 1 << 20;

/// Collector for one signal, as the `OTEL_*` variables configure it.
#[derive(Debug)]
pub(super) struct Collector {
    signal: Signal,
    answer_timeout: Duration,
    /// TLS configuration, present if the endpoint is an `https:` address.
    tls: Option<Arc<ClientConfig>>,
    /// Set if the last request to the collector failed.
    is_away: AtomicBool,
}

/// Error of a request that the collector did not accept.
#[derive(Debug, thiserror::Error)]
enum CollectorError {
    #[error("cannot create a runtime for the request")]
    Here(#[source] io::Error),
    #[error("the URL `{0}` names no host")]
    Nowhere(Uri),
    #[error("cannot reach `{address}`")]
    Unreachable { address: String, source: io::Error },
    #[error("the connection to `{address}` failed")]
    Broken { address: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("`{0}` did not answer in time")]
    Slow(Uri),
}

impl Collector {
    /// Creates the collector for `signal`. Logs a warning and returns `None` if the TLS
    /// configuration is not usable.
    pub(super) fn new(host: &Host, signal: Signal) -> Option<Collector> {
        let speaks_tls = signal
            .variable(host, "ENDPOINT")
            .is_some_and(|endpoint| endpoint.starts_with("https:"));
        let tls = speaks_tls.then(|| tls(host, signal)).transpose();
        let tls = tls.inspect_err(|error| {
            tracing::warn!(
                %error,
                signal = signal.plural(),
                "cannot configure TLS for a collector; nothing is exported"
            );
        });
        Some(Collector {
            signal,
            answer_timeout: signal.answer_timeout(host),
            tls: tls.ok()?,
            is_away: AtomicBool::new(false),
        })
    }

    /// Sends a request and waits for the answer on this thread.
    fn send_here(&self, request: Request<Bytes>) -> Result<Response<Bytes>, CollectorError> {
        let uri = request.uri().clone();
        let runtime =
            Builder::new_current_thread().enable_all().build().map_err(CollectorError::Here)?;
        let sent = async {
            timeout(self.answer_timeout, self.send(request))
                .await
                .unwrap_or(Err(CollectorError::Slow(uri)))
        };
        let outcome = runtime.block_on(sent);
        runtime.shutdown_background(); // the result of a name lookup that still runs is not needed
        outcome
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, CollectorError> {
        let uri = request.uri().clone();
        let Some(host) = uri.host() else { return Err(CollectorError::Nowhere(uri)) };
        // Square brackets around an IPv6 address belong to the URI, not to the address.
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let address = format!("{host}:{port}");
        let unreachable = |source| CollectorError::Unreachable { address: address.clone(), source };
        let stream = TcpStream::connect((host, port)).await.map_err(unreachable)?;
        match self.tls.clone().filter(|_| is_tls) {
            None => exchange(stream, request, address).await,
            Some(tls) => {
                let name = ServerName::try_from(host.to_owned())
                    .map_err(io::Error::other)
                    .map_err(unreachable)?;
                let stream =
                    TlsConnector::from(tls).connect(name, stream).await.map_err(unreachable)?;
                exchange(stream, request, address).await
            }
        }
    }

    /// Logs once when requests begin to fail, and once when they succeed again.
    fn judge(&self, outcome: &Result<Response<Bytes>, CollectorError>) {
        let why = match outcome {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("the collector answered {}", answer.status())),
            Err(error) => Some(chain(error)),
        };
        let signal = self.signal.plural();
        match (why, self.is_away.load(Ordering::Relaxed)) {
            (Some(why), false) => {
                tracing::warn!(signal, why, "a collector does not accept data; the data is lost")
            }
            (None, true) => tracing::info!(signal, "a collector accepts data again"),
            _ => return,
        }
        self.is_away.fetch_not(Ordering::Relaxed);
    }
}

impl HttpClient for Collector {
    fn send_bytes<'a, 'b>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            // Blocking is safe here, because the caller is a thread that does nothing else and has
            // no runtime.
            let outcome = self.send_here(request);
            self.judge(&outcome);
            Ok(outcome?)
        })
    }
}

/// Sends a request on a new connection and reads the answer.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    request: Request<Bytes>,
    address: String,
) -> Result<Response<Bytes>, CollectorError> {
    let broken = |source| CollectorError::Broken { address: address.clone(), source };
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| broken(error.into()))?;
    let mut request = request.map(Full::new);
    let host = HeaderValue::from_str(
        request.uri().authority().map_or(address.as_str(), |authority| authority.as_str()),
    );
    request.headers_mut().insert(HOST, host.map_err(|error| broken(error.into()))?);
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = path.map(Uri::from).unwrap_or_default();
    let asked = async {
        let response = sender.send_request(request).await.map_err(|error| broken(error.into()))?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, LONGEST_ANSWER).collect().await.map_err(broken)?;
        drop(sender); // the drop ends the connection
        Ok(Response::from_parts(head, body.to_bytes()))
    };
    // The answer also contains the error that ended the connection.
    let (answer, _) = join(asked, connection).await;
    answer
}

/// Creates the TLS configuration for a collector. The client trusts the certificates in the file
/// that the `CERTIFICATE` variable of the signal names, or else the certificates that the host
/// trusts.
fn tls(host: &Host, signal: Signal) -> io::Result<Arc<ClientConfig>> {
    let trusted = match signal.variable(host, "CERTIFICATE") {
        Some(path) => fs_err::read(path)?,
        None => host.trusted_certificates()?,
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&trusted).flatten());
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let config = config.with_safe_default_protocol_versions().map_err(io::Error::other)?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}
