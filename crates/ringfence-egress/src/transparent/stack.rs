//! TCP stack of the proxy, the peer of the TCP stack in the sandbox's kernel.

use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::rand::{GetRandomFlags, getrandom};
use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::wire::{HardwareAddress, IpCidr};
use tokio::io::unix::AsyncFd;

use super::packet::Flow;

/// Size of each of the two buffers of a connection, in bytes. A sender inside waits when the buffer
/// is full.
const BUFFER: usize = 128 * 1024;
/// Time for which the end of a stream may stay unacknowledged.
const LINGER: Duration = Duration::from_secs(30);

/// All connections of a tunnel.
pub(super) struct Stack {
    interface: Interface,
    sockets: SocketSet<'static>,
    wire: Wire,
    flows: HashMap<Flow, Place>,
    /// Most connections that may exist at once.
    most: usize,
    /// Connections that no task carries any more, each with the time by which it must end.
    left: Vec<(Flow, SocketHandle, Instant)>,
    began: Instant,
}

/// State of a connection.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// The rules are being checked, and the target is being connected to.
    Asked,
    Open(SocketHandle),
}

impl Stack {
    /// Returns the far end of the tunnel `device`, with packets of up to `longest` bytes.
    pub(super) fn new(
        device: Arc<AsyncFd<OwnedFd>>,
        address: Ipv4Addr,
        longest: u16,
        most: usize,
    ) -> io::Result<Stack> {
        let mut wire = Wire { device, longest: longest.into(), space: vec![0; longest.into()] };
        let mut seed = [0; 8];
        getrandom(&mut seed, GetRandomFlags::empty())?;
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = u64::from_ne_bytes(seed);
        let (began, start) = (Instant::now(), smoltcp::time::Instant::ZERO);
        let mut interface =
            Interface::new(config, &mut Passing { arrived: None, wire: &mut wire }, start);
        interface.set_any_ip(true);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(address.into(), 32)).expect("the list has room for one");
        });
        let sockets = SocketSet::new(Vec::new());
        Ok(Stack { interface, sockets, wire, flows: HashMap::new(), most, left: Vec::new(), began })
    }

    /// Returns whether the first packet of `flow` asks for a new connection. If not, the packet is
    /// already handled.
    pub(super) fn is_new(&mut self, flow: Flow, opening: &[u8]) -> bool {
        match self.flows.get(&flow) {
            Some(Place::Asked) => return false, // repeated while the first one waits
            Some(Place::Open(_)) => self.segment(flow, opening),
            None if self.flows.len() >= self.most => self.take_in(opening),
            None => {
                self.flows.insert(flow, Place::Asked);
                return true;
            }
        }
        false
    }

    /// Opens the connection that `opening` asked for.
    pub(super) fn accept(&mut self, flow: Flow, opening: &[u8]) -> Option<SocketHandle> {
        let buffer = || SocketBuffer::new(vec![0; BUFFER]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        let listens = socket.listen((*flow.to.ip(), flow.to.port()));
        let handle = self.sockets.add(socket);
        self.flows.insert(flow, Place::Open(handle));
        self.take_in(opening);
        let is_open = self.socket(handle).state() == State::SynReceived;
        if listens.is_err() || !is_open {
            self.remove(flow, handle);
            return None;
        }
        Some(handle)
    }

    /// Refuses the connection that `opening` asked for. The stack answers a packet that no socket
    /// accepts with a reset.
    pub(super) fn refuse(&mut self, flow: Flow, opening: &[u8]) {
        self.flows.remove(&flow);
        self.take_in(opening);
    }

    /// Handles a packet of a connection.
    pub(super) fn segment(&mut self, flow: Flow, packet: &[u8]) {
        self.take_in(packet);
        if let Some(Place::Open(handle)) = self.flows.get(&flow).copied() {
            let socket = self.socket(handle);
            if socket.is_listening() {
                // If a client resets its own opening, smoltcp listens again and would accept any
                // next client.
                socket.close();
            }
        }
    }

    /// Sends a packet that belongs to no connection.
    pub(super) fn send(&mut self, packet: &[u8]) {
        self.wire.send(packet);
    }

    pub(super) fn socket(&mut self, handle: SocketHandle) -> &mut Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// Releases a connection that no task carries any more. The connection ends in order if its end
    /// was sent, and is aborted if not.
    pub(super) fn leave(&mut self, flow: Flow, handle: SocketHandle, ended: bool) {
        if !ended {
            self.socket(handle).abort();
        }
        self.left.push((flow, handle, Instant::now() + LINGER));
    }

    /// Sends all packets that are due. Returns the time after which the next call is due if nothing
    /// else happens.
    pub(super) fn pump(&mut self) -> Option<Duration> {
        let now = self.now();
        let mut passing = Passing { arrived: None, wire: &mut self.wire };
        while self.interface.poll_egress(now, &mut passing, &mut self.sockets)
            == PollResult::SocketStateChanged
        {}
        self.sweep();
        let delay = self.interface.poll_delay(now, &self.sockets).map(Duration::from);
        // Released connections must be checked again even if no packet arrives any more.
        let swept = self
            .left
            .iter()
            .map(|(_, _, until)| until.saturating_duration_since(Instant::now()))
            .min();
        delay.into_iter().chain(swept).min()
    }

    /// Removes the released connections that have ended. A connection in TIME-WAIT is removed at
    /// once, because a packet that is handed to a local kernel cannot be lost.
    fn sweep(&mut self) {
        let now = Instant::now();
        for (flow, handle, until) in std::mem::take(&mut self.left) {
            let socket = self.socket(handle);
            if matches!(socket.state(), State::Closed | State::Listen | State::TimeWait) {
                self.remove(flow, handle);
                continue;
            }
            if until <= now {
                socket.abort(); // the next `pump` sends the reset and removes the socket
            }
            self.left.push((flow, handle, until));
        }
    }

    fn remove(&mut self, flow: Flow, handle: SocketHandle) {
        self.flows.remove(&flow);
        self.sockets.remove(handle);
    }

    fn take_in(&mut self, packet: &[u8]) {
        let now = self.now();
        let mut passing = Passing { arrived: Some(packet), wire: &mut self.wire };
        self.interface.poll_ingress_single(now, &mut passing, &mut self.sockets);
    }

    fn now(&self) -> smoltcp::time::Instant {
        let micros = i64::try_from(self.began.elapsed().as_micros()).unwrap_or(i64::MAX);
        smoltcp::time::Instant::from_micros(micros)
    }
}

/// Path of packets to the sandbox.
struct Wire {
    device: Arc<AsyncFd<OwnedFd>>,
    longest: usize,
    space: Vec<u8>,
}

impl Wire {
    fn send(&mut self, packet: &[u8]) {
        // A packet for which the kernel has no room is lost, as on any network.
        let _ = rustix::io::write(self.device.get_ref(), packet);
    }
}

/// A [`Wire`], and the packet that just arrived from it.
struct Passing<'a> {
    arrived: Option<&'a [u8]>,
    wire: &'a mut Wire,
}

struct Arrived<'a>(&'a [u8]);

struct Leaving<'a>(&'a mut Wire);

impl Device for Passing<'_> {
    type RxToken<'t>
        = Arrived<'t>
    where
        Self: 't;
    type TxToken<'t>
        = Leaving<'t>
    where
        Self: 't;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Arrived<'_>, Leaving<'_>)> {
        Some((Arrived(self.arrived.take()?), Leaving(self.wire)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Leaving<'_>> {
        Some(Leaving(self.wire))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.wire.longest;
        // Do not verify the checksums of incoming packets, because the kernel wrote them. A program
        // that writes packets with wrong checksums harms only its own connection.
        capabilities.checksum.ipv4 = Checksum::Tx;
        capabilities.checksum.tcp = Checksum::Tx;
        capabilities
    }
}

impl RxToken for Arrived<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(self.0)
    }
}

impl TxToken for Leaving<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, write: F) -> R {
        let mut space = std::mem::take(&mut self.0.space);
        space.resize(length.max(space.len()), 0);
        let written = write(&mut space[..length]);
        self.0.send(&space[..length]);
        self.0.space = space;
        written
    }
}
