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

use crate::stream::{Rewound, Stream, linger};
use crate::{Credentials, Event, Refusal, Resolver, Rules, Target, Upstream, Via, http, socks, tunnel};

/// How many of those who are turned away are told so at once; the rest find a closed door.
const TURNED_AWAY_AT_ONCE: usize = 64;
/// How long accepting pauses when the host has no descriptor left.
const PAUSE: Duration = Duration::from_millis(50);

/// Silence after which nobody waits to be accepted. The runtime looks for new connections in it.
const DRAIN_QUIET: Duration = Duration::from_millis(2);

/// What a proxy is made of, besides its rules.
pub struct Settings {
    /// Whether the rules hold.
    pub mode: Mode,
    /// The proxy that this host itself goes through.
    pub upstream: Option<Upstream>,
    /// What a client may take.
    pub limits: Limits,
    /// Who knows the addresses of names.
    pub resolver: Resolver,
    /// What hosts outside are shown and no client is.
    pub credentials: Option<Credentials>,
}

/// Whether the rules hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// What no rule allows is denied.
    #[default]
    Enforce,
    /// What no rule allows is let through and told of. What a rule denies, and addresses that need a rule of their own,
    /// stay denied.
    Observe,
}

/// What a client may take. An established connection may be silent for as long as it likes.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How many connections are open at once. Each has two descriptors, and all busy ones together a hundred more: the
    /// owner's own limit must leave room for them.
    pub connections: usize,
    /// The longest head of a request, in bytes.
    pub head: usize,
    /// How long a client may take for its first byte, for a head, and for what its tunnel begins with.
    pub greeting: Duration,
    /// How long a name may take to resolve.
    pub lookup: Duration,
    /// How long a target may take to answer.
    pub connect: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 2048,
            head: 64 * 1024,
            greeting: Duration::from_secs(30),
            lookup: Duration::from_secs(10),
            connect: Duration::from_secs(20),
        }
    }
}

/// Where clients come from.
#[derive(Debug)]
pub enum Listener {
    /// A port.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Listener {
        if listener.local_addr().is_ok_and(|address| address.ip().is_loopback()) {
            // Nothing is congested there: pacing what clients are sent, as BBR does, would only cost timers. Accepted
            // connections inherit it.
            let _ = set_tcp_congestion(&listener, "reno"); // only slower without
        }
        Listener::Tcp(listener)
    }
}

impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Listener {
        Listener::Unix(listener)
    }
}

/// A proxy; a copy is the same proxy.
#[derive(Clone)]
pub struct Proxy {
    inner: Arc<Inner>,
}

struct Inner {
    settings: Settings,
    rules: watch::Sender<Arc<Rules>>,
    is_draining: watch::Sender<bool>,
    events: Box<dyn Fn(Event) + Send + Sync>,
}

impl Proxy {
    /// A proxy that goes by `rules`, and tells `events` of each decision, from within connections: it must not block.
    pub fn new(rules: Rules, settings: Settings, events: impl Fn(Event) + Send + Sync + 'static) -> Proxy {
        let rules = watch::Sender::new(Arc::new(rules));
        let is_draining = watch::Sender::new(false);
        Proxy { inner: Arc::new(Inner { settings, rules, is_draining, events: Box::new(events) }) }
    }

    /// Has it go by other rules from now on: for every connection and request that comes, and for what is open. What
    /// they no longer allow is cut before another byte of it is carried.
    pub fn set_rules(&self, rules: Rules) {
        self.inner.rules.send_replace(Arc::new(rules));
    }

    /// Has [`Proxy::serve`] and [`Proxy::carry_packets`] return once all that has come is dealt with.
    /// A command that ends at once leaves connections that nobody has accepted, and their denials are
    /// told, too. The caller sets the deadline.
    pub fn drain(&self) {
        self.inner.is_draining.send_replace(true);
    }

    /// Waits until the proxy drains and nothing has come for a moment.
    pub async fn drained(&self) {
        let mut is_draining = self.inner.is_draining.subscribe();
        let _ = is_draining.wait_for(|is_draining| *is_draining).await; // the sender is in `self`
        sleep(DRAIN_QUIET).await;
    }

    /// The rules that hold now.
    pub(crate) fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.inner.rules.borrow())
    }

    /// Tells of rules that replace those that hold now.
    pub(crate) fn rule_changes(&self) -> watch::Receiver<Arc<Rules>> {
        self.inner.rules.subscribe()
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    pub(crate) fn tell(&self, event: Event) {
        (self.inner.events)(event);
    }

    /// Serves those who come, until the future is dropped, or the proxy drains and nobody is left:
    /// every connection ends with it.
    pub async fn serve(&self, listener: impl Into<Listener>) -> io::Result<()> {
        let listener = listener.into();
        let most = self.settings().limits.connections;
        let (places, told) = (Arc::new(Semaphore::new(most)), Arc::new(Semaphore::new(TURNED_AWAY_AT_ONCE)));
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                biased;
                accepted = listener.accept() => accepted,
                Some(_) = connections.join_next() => continue,
                () = self.drained(), if connections.is_empty() => return Ok(()),
            };
            let client = match accepted {
                Ok(client) => client,
                // accept(2): errors of the connection that was to be, and of descriptors that run out, pass.
                Err(error) if is_passing(&error) => {
                    sleep(PAUSE).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
                let proxy = self.clone();
                connections.spawn(async move {
                    match client {
                        Client::Tcp(client) => proxy.carry(client).await,
                        Client::Unix(client) => proxy.carry(client).await,
                    }
                    drop(place);
                });
            } else if let Ok(place) = Arc::clone(&told).try_acquire_owned() {
                connections.spawn(async move {
                    match client {
                        Client::Tcp(client) => turn_away(client, most).await,
                        Client::Unix(client) => turn_away(client, most).await,
                    }
                    drop(place);
                });
            }
        }
    }

    /// Carries the connection of a client that knows no proxy to `target`: connected and looked into like any tunnel.
    pub async fn carry_to<S: Stream>(&self, client: S, target: &Target, via: Via) -> Result<(), Refusal> {
        let connection = self.connect(target, via).await?;
        tunnel::run(self, Rewound::new(Bytes::new(), client), connection, target).await;
        Ok(())
    }

    /// Carries one connection, whichever protocol it speaks, until it ends.
    pub async fn carry<S: Stream>(&self, mut client: S) {
        let mut first = BytesMut::with_capacity(1024);
        // Errors from here on are the client's own: it has gone, or goes when the stream is dropped.
        match timeout(self.settings().limits.greeting, client.read_buf(&mut first)).await {
            Ok(Ok(read)) if read > 0 => {}
            _ => return,
        }
        let version = first[0];
        let client = Rewound::new(Bytes::copy_from_slice(&first), client);
        drop(first);
        if version == socks::VERSION {
            socks::serve(self, client).await;
        } else {
            http::serve(self, client).await;
        }
    }
}

async fn turn_away<S: Stream>(mut client: S, most: usize) {
    let words = Refusal::Full(most).last_words();
    if client.write_all(&words).await.is_ok() {
        linger(client).await;
    }
}

enum Client {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    async fn accept(&self) -> io::Result<Client> {
        match self {
            Listener::Tcp(listener) => {
                let (client, _) = listener.accept().await?;
                let _ = client.set_nodelay(true); // only slower without
                Ok(Client::Tcp(client))
            }
            Listener::Unix(listener) => Ok(Client::Unix(listener.accept().await?.0)),
        }
    }
}

fn is_passing(error: &io::Error) -> bool {
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
