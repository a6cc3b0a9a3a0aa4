//! Connections of programs that do not know the proxy, taken as packets from a tunnel.
//!
//! A DNS question for a name is answered with an address that stands for the name. A connection to
//! that address is a connection to the name, and is judged, made and inspected like a connection
//! through the proxy. The proxy accepts the connection only after the target has accepted its own,
//! so that a program inside sees a refused connection instead of one that opens and breaks. Only
//! TCP passes.

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

/// Most connections that a tunnel carries at once. Each connection may fill two buffers in the
/// memory of the host.
const MOST_CONNECTIONS: usize = 1024;
/// Number of packets that are read before other tasks run.
const BATCH: usize = 64;
/// Shortest pause between two runs of the stack, so that a timer that is always overdue does not
/// keep a processor busy.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// Tunnel whose other end is the only network interface of a sandbox.
#[derive(Debug)]
pub struct Tunnel {
    /// Descriptor of the tunnel, in non-blocking mode. Each read takes one IP packet, and each
    /// write delivers one.
    pub device: OwnedFd,
    /// Address at which the sandbox sends its DNS questions.
    pub resolver: Ipv4Addr,
    /// Size of the largest packet, in bytes.
    pub packet: u16,
}

impl Proxy {
    /// Carries the packets of a tunnel until the future is dropped, or until the proxy drains and
    /// no connection is left. Every connection ends with the future.
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

#[expect(
    deprecated,
    reason = "its successor is unsafe, for types that lie about their descriptor: `OwnedFd` does not"
)]
fn watch(device: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(device, Interest::READABLE)
}

/// Returns whether the device no longer exists, because its network is gone together with the
/// sandbox.
fn is_gone(error: &io::Error) -> bool {
    [Errno::BADFD, Errno::IO, Errno::NODEV]
        .into_iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// State that all connections of one tunnel share.
struct Carrier {
    proxy: Proxy,
    shared: Arc<Shared>,
    resolver: Ipv4Addr,
    names: Mutex<Names>,
    told: Mutex<ToldDenials>,
}

/// Denials that were reported a short time ago. Names and packets are counted separately, so that a
/// flood of names leaves room for reports of packets.
#[derive(Debug, Default)]
struct ToldDenials {
    names: RecentDenials,
    packets: RecentDenials,
}

impl Carrier {
    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles one packet from the sandbox.
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
            Ok(target) => {
                self.proxy.connect(&target, Via::Transparent).await.ok().map(|made| (target, made))
            }
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

    /// Returns the target of a connection to the address `to`.
    fn target(&self, to: SocketAddrV4) -> Result<Target, TargetError> {
        match self.names().name(*to.ip()) {
            Some(name) => Target::from_parts(name.as_str(), to.port()),
            None => Target::from_address((*to.ip()).into(), to.port()),
        }
    }

    /// Reports a denial to the owner, unless the same denial was reported a moment ago.
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
