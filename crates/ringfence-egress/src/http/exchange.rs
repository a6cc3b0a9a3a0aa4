//! Requests to one host, and its answers.

use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::header::PROXY_AUTHORIZATION;
use hyper::http::uri::{Parts, Uri};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::task::JoinSet;

use crate::Target;
use crate::connect::Origin;
use crate::pass::Pass;
use crate::proxy::Proxy;
use crate::upstream::Hop;

/// The longest head of an answer, and the most that is read ahead of a slow client.
const BUFFER: usize = 128 * 1024;

/// A connection to a host that takes requests.
pub(crate) struct Exchange {
    pass: Pass,
    hop: Option<Hop>,
    sender: SendRequest<Incoming>,
    /// Set once a request with a body was sent. A host that does not read a body takes its bytes
    /// for the next request, so that no other request may follow them here.
    has_sent_body: bool,
    /// The connection's own work, which ends with it.
    _driver: JoinSet<()>,
}

/// A request that got no answer.
pub(crate) struct Unsent {
    /// The request, if nothing of it was sent.
    pub(crate) request: Option<Request<Incoming>>,
    pub(crate) error: hyper::Error,
}

impl Exchange {
    /// Speaks HTTP on the way to a host, for as long as the rules allow that host.
    pub(crate) async fn begin(proxy: &Proxy, origin: Origin) -> Result<Exchange, hyper::Error> {
        let (sender, connection) = Builder::new()
            .preserve_header_case(true)
            .max_buf_size(BUFFER)
            .handshake(TokioIo::new(origin.stream))
            .await?;
        let mut driver = JoinSet::new();
        let (proxy, pass) = (proxy.clone(), origin.pass.clone());
        driver.spawn(async move {
            // Whoever waits for an answer, or reads one, is told that it broke off, and tells the owner why.
            tokio::select! {
                biased;
                _ = proxy.withdrawn(&pass) => {}
                _ = connection.with_upgrades() => {}
            }
        });
        Ok(Exchange { pass: origin.pass, hop: origin.hop, sender, has_sent_body: false, _driver: driver })
    }

    /// What was let through to make it.
    pub(crate) fn pass(&self) -> &Pass {
        &self.pass
    }

    /// Whether the next request to `target` can be sent here.
    pub(crate) fn leads_to(&self, target: &Target) -> bool {
        self.pass.target == *target && !self.has_sent_body && !self.sender.is_closed()
    }

    /// Whether an upstream proxy reads the requests.
    pub(crate) fn is_through_upstream(&self) -> bool {
        self.hop.is_some()
    }

    /// Sends a request that is in origin form.
    pub(crate) async fn send(&mut self, mut request: Request<Incoming>) -> Result<Response<Incoming>, Unsent> {
        if let Some(hop) = &self.hop {
            let mut parts = Parts::from(std::mem::take(request.uri_mut()));
            parts.scheme = Some(hyper::http::uri::Scheme::HTTP);
            parts.authority = self.pass.target.to_string().parse().ok();
            *request.uri_mut() = Uri::from_parts(parts).expect("a target is an authority, and a path was there");
            if let Some(authorization) = hop.authorization() {
                request.headers_mut().insert(PROXY_AUTHORIZATION, authorization.clone());
            }
        }
        if let Err(error) = self.sender.ready().await {
            return Err(Unsent { request: Some(request), error });
        }
        self.has_sent_body |= !request.body().is_end_stream();
        self.sender
            .try_send_request(request)
            .await
            .map_err(|mut failed| Unsent { request: failed.take_message(), error: failed.into_error() })
    }
}
