//! Connections of programs that do not know the proxy, taken as packets from a tunnel.
//!
//! A DNS question for a name is answered with an address that stands for the name. A connection to
//! that address is a connection to the name, and is judged, made and inspected like a connection
//! through the proxy. The proxy accepts the connection only after the target has accepted its own,
//! so that a program inside sees a refused connection instead of one that opens and breaks. Only
//! TCP passes.

mod dns;
mod name_table;
mod packet;
mod recent_denials;
mod stack;
mod stack_connection;

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

use self::name_table::NameTable;
use self::packet::{PacketKind, TcpFlow};
use self::recent_denials::{DenialReport, RecentDenials};
use self::stack::NetworkStack;
use self::stack_connection::{SharedStack, StackConnection};
use crate::stream::RewoundStream;
use crate::{Denial, EgressEvent, Proxy, RequestKind, Target, TargetError, tunnel};

/// Most connections that a tunnel carries at once. Each connection may fill two buffers in the
/// memory of the host.
const MAX_CONNECTIONS: usize = 1024;
/// Number of packets that are read before other tasks run.
const PACKETS_PER_BATCH: usize = 64;
/// Shortest pause between two runs of the stack, so that a timer that is always overdue does not
/// keep a processor busy.
const MIN_RUN_INTERVAL: Duration = Duration::from_millis(1);

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
        let device = Arc::new(register_device(device)?);
        let most = self.settings().limits.connections.min(MAX_CONNECTIONS);
        let shared =
            SharedStack::new(NetworkStack::new(Arc::clone(&device), resolver, longest, most)?);
        let carrier = Arc::new(PacketRelay {
            proxy: self.clone(),
            shared: Arc::clone(&shared),
            resolver,
            names: Mutex::default(),
            reported: Mutex::default(),
        });
        let mut connections = JoinSet::new();
        let mut space = vec![0; longest.into()];
        loop {
            let due = shared.stack().send_due_packets();
            let due = async {
                match due {
                    Some(due) => sleep(due.max(MIN_RUN_INTERVAL)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                ready = device.readable() => {
                    let mut ready = ready?;
                    for _ in 0..PACKETS_PER_BATCH {
                        let read = ready.try_io(|device| {
                            Ok(rustix::io::read(device.get_ref(), &mut space[..])?)
                        });
                        match read {
                            Ok(Ok(0)) => return Ok(()),
                            Ok(Ok(length)) => {
                                carrier.handle_packet(&space[..length], &mut connections);
                            }
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
                () = self.wait_until_drained(), if connections.is_empty() => return Ok(()),
            }
        }
    }
}

#[expect(
    deprecated,
    reason = "its successor is unsafe, for types that lie about their descriptor: `OwnedFd` does \
              not"
)]
fn register_device(device: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
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
struct PacketRelay {
    proxy: Proxy,
    shared: Arc<SharedStack>,
    resolver: Ipv4Addr,
    names: Mutex<NameTable>,
    reported: Mutex<ReportedDenials>,
}

/// Denials that were reported a short time ago. Names and packets are counted separately, so that a
/// flood of names leaves room for reports of packets.
#[derive(Debug, Default)]
struct ReportedDenials {
    names: RecentDenials,
    packets: RecentDenials,
}

impl PacketRelay {
    fn names(&self) -> MutexGuard<'_, NameTable> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles one packet from the sandbox.
    fn handle_packet(self: &Arc<Self>, bytes: &[u8], connections: &mut JoinSet<()>) {
        match packet::classify_packet(bytes, self.resolver) {
            PacketKind::Segment(flow) => self.shared.stack().handle_segment(flow, bytes),
            PacketKind::Opening(flow) => {
                if self.shared.stack().is_new_connection(flow, bytes) {
                    connections.spawn(Arc::clone(self).carry_connection(flow, bytes.into()));
                }
            }
            PacketKind::Question { from, to, message } => {
                if let Some(answer) = self.answer_question(message) {
                    self.shared.stack().send(&packet::build_datagram(to, from, &answer));
                }
            }
            PacketKind::Unwanted { protocol, to, port } => {
                self.report_denial_once(Denial::for_packet(protocol, to, port));
                if let Some(answer) = packet::build_forbidden_reply(bytes) {
                    self.shared.stack().send(&answer);
                }
            }
            PacketKind::Noise => {}
        }
    }

    /// Carries the connection that the packet `opening` asks for.
    async fn carry_connection(self: Arc<Self>, flow: TcpFlow, opening: Box<[u8]>) {
        if *flow.to.ip() == self.resolver && flow.to.port() == packet::DNS_PORT {
            if let Some(client) = self.accept(flow, &opening).await {
                self.answer_tcp_questions(client).await;
            }
            return;
        }
        let asked = match self.target_at(flow.to) {
            Ok(target) => self
                .proxy
                .connect(&target, RequestKind::Transparent)
                .await
                .ok()
                .map(|made| (target, made)),
            Err(_) => None,
        };
        let Some((target, connection)) = asked else {
            self.shared.stack().refuse(flow, &opening);
            return;
        };
        if let Some(client) = self.accept(flow, &opening).await {
            tunnel::carry_tunnel(
                &self.proxy,
                RewoundStream::new(Bytes::new(), client),
                connection,
                &target,
            )
            .await;
        }
    }

    async fn accept(&self, flow: TcpFlow, opening: &[u8]) -> Option<StackConnection> {
        let mut client = StackConnection::accept(&self.shared, flow, opening)?;
        let agreed =
            timeout(self.proxy.settings().limits.greeting, client.wait_until_established()).await;
        matches!(agreed, Ok(Ok(()))).then_some(client)
    }

    /// Returns the target of a connection to the address `to`.
    fn target_at(&self, to: SocketAddrV4) -> Result<Target, TargetError> {
        match self.names().name_at(*to.ip()) {
            Some(name) => Target::from_parts(name.as_str(), to.port()),
            None => Target::from_address((*to.ip()).into(), to.port()),
        }
    }

    /// Reports a denial to the owner, unless the same denial was reported a moment ago.
    fn report_denial_once(&self, denial: Denial) {
        let telling = {
            let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
            let recent = if denial.via == RequestKind::Dns {
                &mut reported.names
            } else {
                &mut reported.packets
            };
            recent.add(&denial.target)
        };
        match telling {
            DenialReport::Denial => drop(self.proxy.report_denial(denial)),
            DenialReport::Omitted(denials) => {
                self.proxy.report_event(EgressEvent::Omitted { denials })
            }
            DenialReport::Nothing => {}
        }
    }
}

impl Drop for PacketRelay {
    fn drop(&mut self) {
        let reported = self.reported.get_mut().unwrap_or_else(PoisonError::into_inner);
        let denials = reported.names.take_omitted() + reported.packets.take_omitted();
        if denials > 0 {
            self.proxy.report_event(EgressEvent::Omitted { denials });
        }
    }
}

#[cfg(test)]
mod tests;
