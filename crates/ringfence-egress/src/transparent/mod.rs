//! Programs that know no proxy: their packets, taken from a tunnel.
//!
//! A name is answered with an address that stands for it; a connection to that address is one to the name, and is
//! judged, made and looked into as one through the proxy is. It is answered only once the target has: a program inside
//! sees a connection that is refused, not one that opens and breaks. Nothing but TCP goes through.

mod conversation;
mod dns;
mod names;
mod packet;
mod recent;
mod stack;

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};

use self::conversation::{Conversation, Shared};
use self::names::Names;
use self::packet::{Flow, Packet};
use self::recent::{RecentDenials, Telling};
use self::stack::Stack;
use crate::stream::Rewound;
use crate::{Denial, Event, Proxy, Target, TargetError, Via, tunnel};

/// How many connections a tunnel carries at once: each may fill two buffers, which are memory of the host's.
const MOST_CONNECTIONS: usize = 1024;
/// How many packets are taken before everybody else has a turn.
const BATCH: usize = 64;
/// The shortest pause: a clock that is always late must not keep a processor busy.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// A tunnel, whose other end is a sandbox's only interface.
#[derive(Debug)]
pub struct Tunnel {
    /// Each read takes one packet of IP, each write hands one over; it does not block.
    pub device: OwnedFd,
    /// Where the sandbox asks for names.
    pub resolver: Ipv4Addr,
    /// The largest packet, in bytes.
    pub packet: u16,
}

impl Proxy {
    /// Carries what comes through a tunnel, until the future is dropped, or the proxy drains and
    /// nothing is left: every connection ends with it.
    pub async fn carry_packets(&self, tunnel: Tunnel) -> io::Result<()> {
        let Tunnel { device, resolver, packet: longest } = tunnel;
        let device = Arc::new(watch(device)?);
        let most = self.settings().limits.connections.min(MOST_CONNECTIONS);
        let shared = Shared::new(Stack::new(Arc::clone(&device), resolver, longest, most)?);
        let carrier = Arc::new(Carrier {
            proxy: self.clone(),
            shared: Arc::clone(&shared),
            resolver,
            names: Mutex::default(),
            told: Mutex::default(),
        });
        let mut connections = JoinSet::new();
        let mut space = vec![0; longest.into()];
        loop {
            let due = shared.stack().pump();
            let due = async {
                match due {
                    Some(due) => sleep(due.max(SHORTEST_PAUSE)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                ready = device.readable() => {
                    let mut ready = ready?;
                    for _ in 0..BATCH {
                        match ready.try_io(|device| Ok(rustix::io::read(device.get_ref(), &mut space[..])?)) {
                            Ok(Ok(0)) => return Ok(()),
                            Ok(Ok(length)) => carrier.take(&space[..length], &mut connections),
                            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                            Ok(Err(error)) if is_gone(&error) => return Ok(()),
                            Ok(Err(error)) => return Err(error),
                            Err(_) => break,
                        }
                    }
                    yield_now().await;
                }
                () = shared.moved.notified() => {}
                () = due => {}
                Some(_) = connections.join_next() => {}
                () = self.drained(), if connections.is_empty() => return Ok(()),
            }
        }
    }
}

#[expect(deprecated, reason = "its successor is unsafe, for types that lie about their descriptor: `OwnedFd` does not")]
fn watch(device: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(device, Interest::READABLE)
}

/// Whether there is no device any more: its network has gone, and the sandbox with it.
fn is_gone(error: &io::Error) -> bool {
    [Errno::BADFD, Errno::IO, Errno::NODEV].into_iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// What every connection of one tunnel knows.
struct Carrier {
    proxy: Proxy,
    shared: Arc<Shared>,
    resolver: Ipv4Addr,
    names: Mutex<Names>,
    told: Mutex<ToldDenials>,
}

/// Denials that the owner was told of a short time ago. A flood of names leaves room for packets.
#[derive(Debug, Default)]
struct ToldDenials {
    names: RecentDenials,
    packets: RecentDenials,
}

impl Carrier {
    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one packet of the sandbox's.
    fn take(self: &Arc<Self>, bytes: &[u8], connections: &mut JoinSet<()>) {
        match packet::read(bytes, self.resolver) {
            Packet::Segment(flow) => self.shared.stack().segment(flow, bytes),
            Packet::Opening(flow) => {
                if self.shared.stack().is_new(flow, bytes) {
                    connections.spawn(Arc::clone(self).carry(flow, bytes.into()));
                }
            }
            Packet::Question { from, to, message } => {
                if let Some(answer) = self.answer(message) {
                    self.shared.stack().send(&packet::datagram(to, from, &answer));
                }
            }
            Packet::Unwanted { protocol, to, port } => {
                self.deny_seldom(Denial::of_protocol(protocol, to, port));
                if let Some(answer) = packet::forbidden(bytes) {
                    self.shared.stack().send(&answer);
                }
            }
            Packet::Noise => {}
        }
    }

    /// Carries the connection that the packet `opening` asks for.
    async fn carry(self: Arc<Self>, flow: Flow, opening: Box<[u8]>) {
        if *flow.to.ip() == self.resolver && flow.to.port() == packet::DNS {
            if let Some(client) = self.accept(flow, &opening).await {
                self.answer_all(client).await;
            }
            return;
        }
        let asked = match self.target(flow.to) {
            Ok(target) => self.proxy.connect(&target, Via::Transparent).await.ok().map(|made| (target, made)),
            Err(_) => None,
        };
        let Some((target, connection)) = asked else {
            self.shared.stack().refuse(flow, &opening);
            return;
        };
        if let Some(client) = self.accept(flow, &opening).await {
            tunnel::run(&self.proxy, Rewound::new(Bytes::new(), client), connection, &target).await;
        }
    }

    async fn accept(&self, flow: Flow, opening: &[u8]) -> Option<Conversation> {
        let mut client = Conversation::accept(&self.shared, flow, opening)?;
        let agreed = timeout(self.proxy.settings().limits.greeting, client.established()).await;
        matches!(agreed, Ok(Ok(()))).then_some(client)
    }

    /// Where a connection to `to` is to go.
    fn target(&self, to: SocketAddrV4) -> Result<Target, TargetError> {
        match self.names().name(*to.ip()) {
            Some(name) => Target::from_parts(name.as_str(), to.port()),
            None => Target::from_address((*to.ip()).into(), to.port()),
        }
    }

    /// Tells the owner of a denial, unless it was told of it a moment ago.
    fn deny_seldom(&self, denial: Denial) {
        let telling = {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            let recent = if denial.via == Via::Dns { &mut told.names } else { &mut told.packets };
            recent.add(&denial.target)
        };
        match telling {
            Telling::Denial => drop(self.proxy.deny(denial)),
            Telling::Omitted(denials) => self.proxy.tell(Event::Omitted { denials }),
            Telling::Nothing => {}
        }
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        let told = self.told.get_mut().unwrap_or_else(PoisonError::into_inner);
        let denials = told.names.take_omitted() + told.packets.take_omitted();
        if denials > 0 {
            self.proxy.tell(Event::Omitted { denials });
        }
    }
}

#[cfg(test)]
mod tests;
