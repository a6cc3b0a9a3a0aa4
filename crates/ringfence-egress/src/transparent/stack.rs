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

use super::packet::TcpFlow;

/// Size of each of the two buffers of a connection, in bytes. A sender inside waits when the buffer
/// is full.
const SOCKET_BUFFER_BYTES: usize = 128 * 1024;
/// Time for which the end of a stream may stay unacknowledged.
const LINGER_TIMEOUT: Duration = Duration::from_secs(30);

/// All connections of a tunnel.
pub(super) struct NetworkStack {
    interface: Interface,
    sockets: SocketSet<'static>,
    wire: PacketSender,
    flows: HashMap<TcpFlow, FlowState>,
    /// Most connections that may exist at once.
    most: usize,
    /// Connections that no task carries any more, each with the time by which it must end.
    left: Vec<(TcpFlow, SocketHandle, Instant)>,
    began: Instant,
}

/// State of a connection.
#[derive(Debug, Clone, Copy)]
enum FlowState {
    /// The rules are being checked, and the target is being connected to.
    Asked,
    Open(SocketHandle),
}

impl NetworkStack {
    /// Returns the far end of the tunnel `device`, with packets of up to `longest` bytes.
    pub(super) fn new(
        device: Arc<AsyncFd<OwnedFd>>,
        address: Ipv4Addr,
        longest: u16,
        most: usize,
    ) -> io::Result<NetworkStack> {
        let mut wire =
            PacketSender { device, longest: longest.into(), space: vec![0; longest.into()] };
        let mut seed = [0; 8];
        getrandom(&mut seed, GetRandomFlags::empty())?;
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = u64::from_ne_bytes(seed);
        let (began, start) = (Instant::now(), smoltcp::time::Instant::ZERO);
        let mut interface =
            Interface::new(config, &mut StackDevice { arrived: None, wire: &mut wire }, start);
        interface.set_any_ip(true);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(address.into(), 32)).expect("the list has room for one");
        });
        let sockets = SocketSet::new(Vec::new());
        Ok(NetworkStack {
            interface,
            sockets,
            wire,
            flows: HashMap::new(),
            most,
            left: Vec::new(),
            began,
        })
    }

    /// Returns whether the first packet of `flow` asks for a new connection. If not, the packet is
    /// already handled.
    pub(super) fn is_new_connection(&mut self, flow: TcpFlow, opening: &[u8]) -> bool {
        match self.flows.get(&flow) {
            Some(FlowState::Asked) => return false, // repeated while the first one waits
            Some(FlowState::Open(_)) => self.handle_segment(flow, opening),
            None if self.flows.len() >= self.most => self.receive_packet(opening),
            None => {
                self.flows.insert(flow, FlowState::Asked);
                return true;
            }
        }
        false
    }

    /// Opens the connection that `opening` asked for.
    pub(super) fn accept(&mut self, flow: TcpFlow, opening: &[u8]) -> Option<SocketHandle> {
        let buffer = || SocketBuffer::new(vec![0; SOCKET_BUFFER_BYTES]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        let listens = socket.listen((*flow.to.ip(), flow.to.port()));
        let handle = self.sockets.add(socket);
        self.flows.insert(flow, FlowState::Open(handle));
        self.receive_packet(opening);
        let is_open = self.socket(handle).state() == State::SynReceived;
        if listens.is_err() || !is_open {
            self.remove(flow, handle);
            return None;
        }
        Some(handle)
    }

    /// Refuses the connection that `opening` asked for. The stack answers a packet that no socket
    /// accepts with a reset.
    pub(super) fn refuse(&mut self, flow: TcpFlow, opening: &[u8]) {
        self.flows.remove(&flow);
        self.receive_packet(opening);
    }

    /// Handles a packet of a connection.
    pub(super) fn handle_segment(&mut self, flow: TcpFlow, packet: &[u8]) {
        self.receive_packet(packet);
        if let Some(FlowState::Open(handle)) = self.flows.get(&flow).copied() {
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
    pub(super) fn release_connection(&mut self, flow: TcpFlow, handle: SocketHandle, ended: bool) {
        if !ended {
            self.socket(handle).abort();
        }
        self.left.push((flow, handle, Instant::now() + LINGER_TIMEOUT));
    }

    /// Sends all packets that are due. Returns the time after which the next call is due if nothing
    /// else happens.
    pub(super) fn send_due_packets(&mut self) -> Option<Duration> {
        let now = self.now();
        let mut passing = StackDevice { arrived: None, wire: &mut self.wire };
        while self.interface.poll_egress(now, &mut passing, &mut self.sockets)
            == PollResult::SocketStateChanged
        {}
        self.remove_ended();
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
    fn remove_ended(&mut self) {
        let now = Instant::now();
        for (flow, handle, until) in std::mem::take(&mut self.left) {
            let socket = self.socket(handle);
            if matches!(socket.state(), State::Closed | State::Listen | State::TimeWait) {
                self.remove(flow, handle);
                continue;
            }
            if until <= now {
                // The next `send_due_packets` sends the reset and removes the socket.
                socket.abort();
            }
            self.left.push((flow, handle, until));
        }
    }

    fn remove(&mut self, flow: TcpFlow, handle: SocketHandle) {
        self.flows.remove(&flow);
        self.sockets.remove(handle);
    }

    fn receive_packet(&mut self, packet: &[u8]) {
        let now = self.now();
        let mut passing = StackDevice { arrived: Some(packet), wire: &mut self.wire };
        self.interface.poll_ingress_single(now, &mut passing, &mut self.sockets);
    }

    fn now(&self) -> smoltcp::time::Instant {
        let micros = i64::try_from(self.began.elapsed().as_micros()).unwrap_or(i64::MAX);
        smoltcp::time::Instant::from_micros(micros)
    }
}

/// Path of packets to the sandbox.
struct PacketSender {
    device: Arc<AsyncFd<OwnedFd>>,
    longest: usize,
    space: Vec<u8>,
}

impl PacketSender {
    fn send(&mut self, packet: &[u8]) {
        // A packet for which the kernel has no room is lost, as on any network.
        let _ = rustix::io::write(self.device.get_ref(), packet);
    }
}

/// A [`PacketSender`], and the packet that just arrived from it.
struct StackDevice<'a> {
    arrived: Option<&'a [u8]>,
    wire: &'a mut PacketSender,
}

struct ArrivedPacket<'a>(&'a [u8]);

struct PacketTransmission<'a>(&'a mut PacketSender);

impl Device for StackDevice<'_> {
    type RxToken<'t>
        = ArrivedPacket<'t>
    where
        Self: 't;
    type TxToken<'t>
        = PacketTransmission<'t>
    where
        Self: 't;

    fn receive(
        &mut self,
        _: smoltcp::time::Instant,
    ) -> Option<(ArrivedPacket<'_>, PacketTransmission<'_>)> {
        Some((ArrivedPacket(self.arrived.take()?), PacketTransmission(self.wire)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<PacketTransmission<'_>> {
        Some(PacketTransmission(self.wire))
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

impl RxToken for ArrivedPacket<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(self.0)
    }
}

impl TxToken for PacketTransmission<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, write: F) -> R {
        let mut space = std::mem::take(&mut self.0.space);
        space.resize(length.max(space.len()), 0);
        let written = write(&mut space[..length]);
        self.0.send(&space[..length]);
        self.0.space = space;
        written
    }
}
