//! HTTP requests to one host, and the answers of that host.

use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::header::PROXY_AUTHORIZATION;
use hyper::http::uri::{Parts, Uri};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::task::JoinSet;

use crate::Target;
use crate::connect::OriginConnection;
use crate::pass::ConnectionPass;
use crate::proxy::Proxy;
use crate::upstream::UpstreamProxy;

/// Longest head of an answer, and most bytes that are read ahead of a slow client.
const MAX_BUFFER_BYTES: usize = 128 * 1024;

/// Connection on which requests are sent to a host.
pub(crate) struct HttpConnection {
    pass: ConnectionPass,
    hop: Option<UpstreamProxy>,
    sender: SendRequest<Incoming>,
    /// Flag that is set once a request with a body was sent. A host that does not read the body
    /// takes its bytes for the next request, so no other request may follow on this connection.
    has_sent_body: bool,
    /// Task that drives the connection, and that ends when the exchange is dropped.
    _driver: JoinSet<()>,
}

/// Request that got no answer.
pub(crate) struct UnsentRequest {
    /// The request itself, if nothing of the request was sent.
    pub(crate) request: Option<Request<Incoming>>,
    pub(crate) error: hyper::Error,
}

impl HttpConnection {
    /// Starts HTTP on a connection to a host, for as long as the rules allow that host.
    pub(crate) async fn start(
        proxy: &Proxy,
        origin: OriginConnection,
    ) -> Result<HttpConnection, hyper::Error> {
        let (sender, connection) = Builder::new()
            .preserve_header_case(true)
            .max_buf_size(MAX_BUFFER_BYTES)
            .handshake(TokioIo::new(origin.stream))
            .await?;
        let mut driver = JoinSet::new();
        let (proxy, pass) = (proxy.clone(), origin.pass.clone());
        driver.spawn(async move {
            // The task that waits for an answer, or reads one, sees the answer break off and
            // reports the reason to the owner, so both results are dropped here.
            tokio::select! {
                biased;
                _ = proxy.wait_until_withdrawn(&pass) => {}
                _ = connection.with_upgrades() => {}
            }
        });
        Ok(HttpConnection {
            pass: origin.pass,
            hop: origin.hop,
            sender,
            has_sent_body: false,
            _driver: driver,
        })
    }

    /// Returns the pass under which the connection was made.
    pub(crate) fn pass(&self) -> &ConnectionPass {
        &self.pass
    }

    /// Returns whether the next request to `target` can be sent on this connection.
    pub(crate) fn leads_to(&self, target: &Target) -> bool {
        self.pass.target == *target && !self.has_sent_body && !self.sender.is_closed()
    }

    /// Returns whether an upstream proxy reads the requests.
    pub(crate) fn is_through_upstream(&self) -> bool {
        self.hop.is_some()
    }

    /// Sends a request whose URI is in origin form. For an upstream proxy, makes the URI absolute
    /// and adds the authorization that the upstream needs.
    pub(crate) async fn send(
        &mut self,
        mut request: Request<Incoming>,
    ) -> Result<Response<Incoming>, UnsentRequest> {
        if let Some(hop) = &self.hop {
            let mut parts = Parts::from(std::mem::take(request.uri_mut()));
            parts.scheme = Some(hyper::http::uri::Scheme::HTTP);
            parts.authority = self.pass.target.to_string().parse().ok();
            *request.uri_mut() =
                Uri::from_parts(parts).expect("a target is an authority, and a path was there");
            if let Some(authorization) = hop.authorization() {
                request.headers_mut().insert(PROXY_AUTHORIZATION, authorization.clone());
            }
        }
        if let Err(error) = self.sender.ready().await {
            return Err(UnsentRequest { request: Some(request), error });
        }
        self.has_sent_body |= !request.body().is_end_stream();
        self.sender.try_send_request(request).await.map_err(|mut failed| UnsentRequest {
            request: failed.take_message(),
            error: failed.into_error(),
        })
    }
}
