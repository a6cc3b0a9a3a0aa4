//! What keeps the session of a client at an address while one of its calls is answered.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;

use super::http::SESSION;

/// The longest between two beats, and how many there are at least in the time after which a session is idle.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const BEATS: u32 = 4;
/// Names no request: their numbers are counted up from 0.
const NO_REQUEST: u64 = u64::MAX;

/// Keeps sessions that would be taken for idle: of a call that is answered, nothing is heard until its end.
#[derive(Debug, Clone)]
pub(super) struct Pulse {
    sessions: Arc<LocalSessionManager>,
    pause: Duration,
}

impl Pulse {
    /// For sessions that are idle after that time.
    pub(super) fn new(sessions: Arc<LocalSessionManager>, idle: Duration) -> Pulse {
        Pulse { sessions, pause: (idle / BEATS).min(LONGEST_PAUSE) }
    }

    /// Keeps the session of a call until this future is dropped.
    pub(super) async fn keep(&self, context: &RequestContext<RoleServer>) -> Infallible {
        let head = context.extensions.get::<hyper::http::request::Parts>();
        let Some(name) = head.and_then(|head| head.headers.get(SESSION)?.to_str().ok()) else {
            return std::future::pending().await;
        };
        loop {
            tokio::time::sleep(self.pause).await;
            let session = self.sessions.sessions.read().await.get(name).cloned();
            if let Some(session) = session {
                // It hears of that and does nothing; when it has ended, its calls are dropped.
                let _ = session.close_request_wise_channel(NO_REQUEST).await;
            }
        }
    }
}
