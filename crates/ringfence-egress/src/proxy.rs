//! The proxy: one listener for HTTP and SOCKS5, one policy.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rustix::net::sockopt::set_tcp_congestion;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::stream::{ByteStream, RewoundStream, linger};
use crate::{
    ConnectionRefusal, Credentials, EgressEvent, RequestKind, Resolver, Rules, Target,
    UpstreamProxies, http, socks, tunnel,
};

/// Most clients over the connection limit that are sent a refusal at the same time. Further clients
/// find their connection closed without an answer.
const MAX_REFUSALS_AT_ONCE: usize = 64;
/// Pause before the next accept when the host has no descriptor left.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Silence after which no connection waits to be accepted. During this time the runtime checks for
/// new connections.
const DRAIN_QUIET_PERIOD: Duration = Duration::from_millis(2);

/// Settings of a proxy, besides its rules.
pub struct ProxySettings {
    /// Treatment of targets that no rule allows.
    pub mode: ProxyMode,
    /// Proxy that this host itself must use to reach the outside.
    pub upstream: Option<UpstreamProxies>,
    /// Limits on each client and on all clients together.
    pub limits: ClientLimits,
    /// Resolver that finds the addresses of host names.
    pub resolver: Resolver,
    /// Secrets that the proxy sends to hosts outside and that no client sees.
    pub credentials: Option<Credentials>,
}

/// Treatment of targets that no rule allows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ProxyMode {
    /// The proxy denies targets that no rule allows.
    #[default]
    Enforce,
    /// The proxy allows and reports targets that no rule allows. Targets that a rule denies, and
    /// addresses that need a rule of their own, stay denied.
    Observe,
}

/// Limits on clients. An established connection may be silent for any length of time.
#[derive(Debug, Clone, Copy)]
pub struct ClientLimits {
    /// Most connections that are open at once. Each connection takes two descriptors, and all busy
    /// connections together take up to 128 more for pipes. The descriptor limit of the owner must
    /// leave room for all of them.
    pub connections: usize,
    /// Longest head of a request, in bytes.
    pub head: usize,
    /// Time that a client may take for its first byte, for a head, and for the opening of its
    /// tunnel.
    pub greeting: Duration,
    /// Time that the lookup of a name may take.
    pub lookup: Duration,
    /// Time that a connection to a target may take.
    pub connect: Duration,
}

impl Default for ClientLimits {
    fn default() -> ClientLimits {
        ClientLimits {
            connections: 2048,
            head: 64 * 1024,
            greeting: Duration::from_secs(30),
            lookup: Duration::from_secs(10),
            connect: Duration::from_secs(20),
        }
    }
}

/// Listening socket that clients connect to.
#[derive(Debug)]
pub enum ProxyListener {
    /// Listener on a TCP port.
    Tcp(TcpListener),
    /// Listener on a Unix socket.
    Unix(UnixListener),
}

impl From<TcpListener> for ProxyListener {
    fn from(listener: TcpListener) -> ProxyListener {
        if listener.local_addr().is_ok_and(|address| address.ip().is_loopback()) {
            // Use Reno on loopback, where nothing is congested: pacing the data to clients, as BBR
            // does, would only cost timers. Accepted connections inherit the setting.
            let _ = set_tcp_congestion(&listener, "reno"); // a failure only makes transfers slower
        }
        ProxyListener::Tcp(listener)
    }
}

impl From<UnixListener> for ProxyListener {
    fn from(listener: UnixListener) -> ProxyListener {
        ProxyListener::Unix(listener)
    }
}

/// Proxy server. A clone is a handle to the same proxy.
#[derive(Clone)]
pub struct Proxy {
    inner: Arc<ProxyState>,
}

struct ProxyState {
    settings: ProxySettings,
    rules: watch::Sender<Arc<Rules>>,
    is_draining: watch::Sender<bool>,
    events: Box<dyn Fn(EgressEvent) + Send + Sync>,
}

impl Proxy {
    /// Returns a proxy that applies `rules` and reports each decision to `events`. The proxy calls
    /// `events` from within connections, so `events` must not block.
    pub fn new(
        rules: Rules,
        settings: ProxySettings,
        events: impl Fn(EgressEvent) + Send + Sync + 'static,
    ) -> Proxy {
        let rules = watch::Sender::new(Arc::new(rules));
        let is_draining = watch::Sender::new(false);
        Proxy {
            inner: Arc::new(ProxyState { settings, rules, is_draining, events: Box::new(events) }),
        }
    }

    /// Replaces the rules. The new rules apply to every new connection and request, and to open
    /// connections. A connection that the new rules no longer allow is cut before another byte
    /// passes.
    pub fn set_rules(&self, rules: Rules) {
        self.inner.rules.send_replace(Arc::new(rules));
    }

    /// Makes [`Proxy::serve`] and [`Proxy::carry_packets`] return once every connection that has
    /// arrived is finished. A command that ends at once leaves connections that the proxy has not
    /// accepted yet. The proxy still judges them and reports their denials. The caller sets the
    /// deadline.
    pub fn drain(&self) {
        self.inner.is_draining.send_replace(true);
    }

    /// Waits until the proxy drains and no connection has arrived for a moment.
    pub async fn wait_until_drained(&self) {
        let mut is_draining = self.inner.is_draining.subscribe();
        // The wait never fails, because `self` holds the sender.
        let _ = is_draining.wait_for(|is_draining| *is_draining).await;
        sleep(DRAIN_QUIET_PERIOD).await;
    }

    /// Returns the current rules.
    pub(crate) fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.inner.rules.borrow())
    }

    /// Returns a receiver that reports each replacement of the rules.
    pub(crate) fn rule_changes(&self) -> watch::Receiver<Arc<Rules>> {
        self.inner.rules.subscribe()
    }

    pub(crate) fn settings(&self) -> &ProxySettings {
        &self.inner.settings
    }

    pub(crate) fn report_event(&self, event: EgressEvent) {
        (self.inner.events)(event);
    }

    /// Serves clients until the future is dropped, or until the proxy drains and no client is left.
    /// Every connection ends with the future.
    pub async fn serve(&self, listener: impl Into<ProxyListener>) -> io::Result<()> {
        let listener = listener.into();
        let most = self.settings().limits.connections;
        let connection_permits = Arc::new(Semaphore::new(most));
        let refusal_permits = Arc::new(Semaphore::new(MAX_REFUSALS_AT_ONCE));
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                biased;
                accepted = listener.accept() => accepted,
                Some(_) = connections.join_next() => continue,
                () = self.wait_until_drained(), if connections.is_empty() => return Ok(()),
            };
            let client = match accepted {
                Ok(client) => client,
                // accept(2): errors of the new connection, and errors from a lack of descriptors,
                // are temporary.
                Err(error) if is_transient(&error) => {
                    sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            if let Ok(permit) = Arc::clone(&connection_permits).try_acquire_owned() {
                let proxy = self.clone();
                connections.spawn(async move {
                    match client {
                        AcceptedClient::Tcp(client) => proxy.carry(client).await,
                        AcceptedClient::Unix(client) => proxy.carry(client).await,
                    }
                    drop(permit);
                });
            } else if let Ok(permit) = Arc::clone(&refusal_permits).try_acquire_owned() {
                connections.spawn(async move {
                    match client {
                        AcceptedClient::Tcp(client) => refuse_client(client, most).await,
                        AcceptedClient::Unix(client) => refuse_client(client, most).await,
                    }
                    drop(permit);
                });
            }
        }
    }

    /// Carries the connection of a client that does not know the proxy to `target`. The proxy
    /// connects to `target` and inspects the stream as for any tunnel.
    pub async fn carry_to<S: ByteStream>(
        &self,
        client: S,
        target: &Target,
        via: RequestKind,
    ) -> Result<(), ConnectionRefusal> {
        let connection = self.connect(target, via).await?;
        tunnel::carry_tunnel(self, RewoundStream::new(Bytes::new(), client), connection, target)
            .await;
        Ok(())
    }

    /// Carries one connection, in HTTP or SOCKS5, until the connection ends.
    pub async fn carry<S: ByteStream>(&self, mut client: S) {
        let mut first = BytesMut::with_capacity(1024);
        // Ignore errors from here on: the client is gone, or its connection ends when the stream is
        // dropped.
        match timeout(self.settings().limits.greeting, client.read_buf(&mut first)).await {
            Ok(Ok(read)) if read > 0 => {}
            _ => return,
        }
        let version = first[0];
        let client = RewoundStream::new(Bytes::copy_from_slice(&first), client);
        drop(first);
        if version == socks::SOCKS_VERSION {
            socks::serve_client(self, client).await;
        } else {
            http::serve_client(self, client).await;
        }
    }
}

async fn refuse_client<S: ByteStream>(mut client: S, most: usize) {
    let words = ConnectionRefusal::Full(most).response_bytes();
    if client.write_all(&words).await.is_ok() {
        linger(client).await;
    }
}

enum AcceptedClient {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl ProxyListener {
    async fn accept(&self) -> io::Result<AcceptedClient> {
        match self {
            ProxyListener::Tcp(listener) => {
                let (client, _) = listener.accept().await?;
                let _ = client.set_nodelay(true); // a failure only makes transfers slower
                Ok(AcceptedClient::Tcp(client))
            }
            ProxyListener::Unix(listener) => Ok(AcceptedClient::Unix(listener.accept().await?.0)),
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let passing = [
        Errno::CONNABORTED,
        Errno::INTR,
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOBUFS,
        Errno::NOMEM,
        Errno::NETDOWN,
        Errno::PROTO,
        Errno::HOSTUNREACH,
        Errno::NETUNREACH,
    ];
    passing.into_iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}
