//! Keeps the session of an HTTP client alive while a call of the client is answered.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;

use crate::transport::http::SESSION;

/// Maximum time between two keep-alive messages.
const MAX_INTERVAL: Duration = Duration::from_secs(5);
/// Minimum number of keep-alive messages within the idle timeout of a session.
const MESSAGES_PER_TIMEOUT: u32 = 4;
/// Number that names no request, because requests are numbered from 0 upwards.
const NO_REQUEST: u64 = u64::MAX;

/// Keeps sessions alive that would count as idle, because a session receives nothing while a call
/// is answered.
#[derive(Debug, Clone)]
pub(crate) struct SessionKeepalive {
    sessions: Arc<LocalSessionManager>,
    interval: Duration,
}

impl SessionKeepalive {
    /// Creates the keep-alive for sessions with the idle timeout `idle`.
    pub(crate) fn new(sessions: Arc<LocalSessionManager>, idle: Duration) -> SessionKeepalive {
        SessionKeepalive { sessions, interval: (idle / MESSAGES_PER_TIMEOUT).min(MAX_INTERVAL) }
    }

    /// Keeps the session of a call alive until this future is dropped.
    pub(crate) async fn keep(&self, context: &RequestContext<RoleServer>) -> Infallible {
        let head = context.extensions.get::<hyper::http::request::Parts>();
        let Some(name) = head.and_then(|head| head.headers.get(SESSION)?.to_str().ok()) else {
            return std::future::pending().await;
        };
        loop {
            tokio::time::sleep(self.interval).await;
            let session = self.sessions.sessions.read().await.get(name).cloned();
            if let Some(session) = session {
                // The session ignores this message, but the message resets its idle timer. If the
                // session has ended, its calls are dropped anyway.
                let _ = session.close_request_wise_channel(NO_REQUEST).await;
            }
        }
    }
}
