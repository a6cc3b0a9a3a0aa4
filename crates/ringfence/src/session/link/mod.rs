//! Connector to a guest that is reached through something unreliable, such as an executed process
//! in a cluster.
//!
//! All streams to the guest share one link. The link has one carrier at a time, which is checked by
//! pings and dialled again when it is lost. The streams go on where they were, so a lost carrier
//! breaks none of them unless no carrier can be dialled for too long.
//!
//! Reading order: [`LinkConnector`] is the connector, [`keeper`] dials carriers, and [`relay`] lets
//! other processes of the host use the link.

mod keeper;
mod relay;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use ringfence_link::{Link, LinkFailure};
use ringfence_proto::link::{LinkId, LinkSide};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::connector::{GuestConnector, GuestStream};
use keeper::LinkKeeper;
pub(crate) use relay::LinkRelay;

/// Longest time without a carrier if the backend sets no other.
pub(crate) const DEFAULT_OUTAGE_LIMIT: Duration = Duration::from_secs(300);

/// A way to reach the socket for links of a guest, such as an executed process whose standard
/// streams `ringfence-guest --carry` joins to that socket.
pub(crate) trait Carrier: Send + Sync + Debug {
    /// Opens one stream to the socket for links of the guest. The caller sets the deadline. An
    /// error that contains a [`LinkFailure`] ends the link.
    fn dial(&self) -> BoxFuture<'_, io::Result<Box<dyn GuestStream>>>;
}

/// Time limits of a link.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinkTimeouts {
    /// Time between two pings.
    pub(crate) ping_interval: Duration,
    /// Longest time until the guest answers a ping.
    pub(crate) ping_answer: Duration,
    /// Longest time that one carrier may take to be dialled and greeted.
    pub(crate) dial: Duration,
    /// Longest time without a carrier. Then all streams fail.
    pub(crate) outage: Duration,
}

impl Default for LinkTimeouts {
    fn default() -> LinkTimeouts {
        LinkTimeouts {
            ping_interval: Duration::from_secs(20),
            ping_answer: Duration::from_secs(10),
            dial: Duration::from_secs(30),
            outage: DEFAULT_OUTAGE_LIMIT,
        }
    }
}

/// State of a link, for those who watch it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LinkState {
    /// The guest has welcomed a carrier.
    Connected,
    /// There has been no carrier since this time. Streams wait.
    Reconnecting {
        /// Time at which the last carrier was lost, or the link was made.
        since: Instant,
    },
    /// The link and its streams have ended.
    Ended(LinkFailure),
}

/// Connector whose streams share one link. Dropping the connector ends the link.
#[derive(Debug)]
pub(crate) struct LinkConnector {
    link: Link,
    state: watch::Receiver<LinkState>,
    keeper: AbortHandle,
    outage_limit: Duration,
}

impl LinkConnector {
    /// Makes a link and starts the task that keeps its carrier, on the current tokio runtime. The
    /// first carrier is dialled at once, and again until the guest answers. `token` is the access
    /// token of the guest; empty if the guest needs none. Requests on the link need no token.
    pub(crate) fn start(
        carrier: Arc<dyn Carrier>,
        token: &str,
        timeouts: LinkTimeouts,
    ) -> io::Result<LinkConnector> {
        let mut id = [0; 16];
        rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty())?;
        LinkConnector::with_id(LinkId(id), carrier, token, timeouts)
    }

    fn with_id(
        id: LinkId,
        carrier: Arc<dyn Carrier>,
        token: &str,
        timeouts: LinkTimeouts,
    ) -> io::Result<LinkConnector> {
        let runtime = tokio::runtime::Handle::try_current().map_err(io::Error::other)?;
        let link = Link::new(LinkSide::Host);
        let (sender, state) = watch::channel(LinkState::Reconnecting { since: Instant::now() });
        let token = token.to_owned();
        let keeper = LinkKeeper { id, token, carrier, link: link.clone(), timeouts, state: sender };
        let keeper = runtime.spawn(keeper.keep()).abort_handle();
        Ok(LinkConnector { link, state, keeper, outage_limit: timeouts.outage })
    }

    /// Returns the state of the link, which can be watched.
    pub(crate) fn state(&self) -> watch::Receiver<LinkState> {
        self.state.clone()
    }

    /// Listens on the guest's socket in the channel directory at `directory`, and joins each
    /// connection to a stream of the link, until the relay is dropped or the link ends. Other
    /// processes connect with [`UnixConnector`](super::UnixConnector). Only this user may have
    /// access to the directory.
    pub(crate) fn relay_on(&self, directory: &Path) -> io::Result<LinkRelay> {
        LinkRelay::start(self.link.clone(), self.state(), directory)
    }
}

impl GuestConnector for LinkConnector {
    fn connect(&self) -> BoxFuture<'_, io::Result<Box<dyn GuestStream>>> {
        Box::pin(async { Ok(Box::new(self.link.open().await?) as Box<dyn GuestStream>) })
    }

    fn outage_limit(&self) -> Duration {
        self.outage_limit
    }
}

impl Drop for LinkConnector {
    fn drop(&mut self) {
        // When the keeper ends, it tells the guest that the link is closed.
        self.link.fail(LinkFailure::Closed);
        self.keeper.abort();
    }
}
