//! TCP as the sandbox's kernel speaks it, ended here.

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

/// How much of a connection is kept, each way. A sender inside that is ahead of us by more waits.
const BUFFER: usize = 128 * 1024;
/// How long an end that was said may stay unanswered.
const LINGER: Duration = Duration::from_secs(30);

/// Every connection of a tunnel.
pub(super) struct Stack {
    interface: Interface,
    sockets: SocketSet<'static>,
    wire: Wire,
    flows: HashMap<Flow, Place>,
    /// How many connections there may be.
    most: usize,
    /// Connections that nobody carries any more, and until when they may take to end.
    left: Vec<(Flow, SocketHandle, Instant)>,
    began: Instant,
}

/// How far a connection is.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// The rules, and the target, are being asked.
    Asked,
    Open(SocketHandle),
}

impl Stack {
    /// The far end of the tunnel that `device` leads to, with packets of up to `longest` bytes.
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
        let mut interface = Interface::new(config, &mut Passing { arrived: None, wire: &mut wire }, start);
        interface.set_any_ip(true);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(address.into(), 32)).expect("the list has room for one");
        });
        let sockets = SocketSet::new(Vec::new());
        Ok(Stack { interface, sockets, wire, flows: HashMap::new(), most, left: Vec::new(), began })
    }

    /// Whether the first packet of `flow` asks for something new. Otherwise it was dealt with.
    pub(super) fn is_new(&mut self, flow: Flow, opening: &[u8]) -> bool {
        match self.flows.get(&flow) {
            Some(Place::Asked) => return false, // said again while it waits
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

    /// Refuses the connection that `opening` asked for: what no socket takes is answered with a reset.
    pub(super) fn refuse(&mut self, flow: Flow, opening: &[u8]) {
        self.flows.remove(&flow);
        self.take_in(opening);
    }

    /// Takes in a packet of a connection.
    pub(super) fn segment(&mut self, flow: Flow, packet: &[u8]) {
        self.take_in(packet);
        if let Some(Place::Open(handle)) = self.flows.get(&flow).copied() {
            let socket = self.socket(handle);
            if socket.is_listening() {
                // A client that breaks off its own opening makes smoltcp listen again, for whoever comes next.
                socket.close();
            }
        }
    }

    /// Sends a packet of no connection.
    pub(super) fn send(&mut self, packet: &[u8]) {
        self.wire.send(packet);
    }

    pub(super) fn socket(&mut self, handle: SocketHandle) -> &mut Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// Leaves a connection to itself: it ends in good order if its end was said, and is broken off if not.
    pub(super) fn leave(&mut self, flow: Flow, handle: SocketHandle, ended: bool) {
        if !ended {
            self.socket(handle).abort();
        }
        self.left.push((flow, handle, Instant::now() + LINGER));
    }

    /// Sends what there is to send; the answer is when to do so again if nothing happens before.
    pub(super) fn pump(&mut self) -> Option<Duration> {
        let now = self.now();
        let mut passing = Passing { arrived: None, wire: &mut self.wire };
        while self.interface.poll_egress(now, &mut passing, &mut self.sockets) == PollResult::SocketStateChanged {}
        self.sweep();
        let delay = self.interface.poll_delay(now, &self.sockets).map(Duration::from);
        // Whoever was left must be looked at again even when nothing comes any more.
        let swept = self.left.iter().map(|(_, _, until)| until.saturating_duration_since(Instant::now())).min();
        delay.into_iter().chain(swept).min()
    }

    /// Forgets the connections that were left and have ended. One that has only to wait in case its last word was lost
    /// need not: nothing is lost on the way to a kernel that the packet is handed to.
    fn sweep(&mut self) {
        let now = Instant::now();
        for (flow, handle, until) in std::mem::take(&mut self.left) {
            let socket = self.socket(handle);
            if matches!(socket.state(), State::Closed | State::Listen | State::TimeWait) {
                self.remove(flow, handle);
                continue;
            }
            if until <= now {
                socket.abort(); // told by the next pump, forgotten after it
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

/// The way of packets to the sandbox.
struct Wire {
    device: Arc<AsyncFd<OwnedFd>>,
    longest: usize,
    space: Vec<u8>,
}

impl Wire {
    fn send(&mut self, packet: &[u8]) {
        // A packet that the kernel has no room for is lost, as packets are.
        let _ = rustix::io::write(self.device.get_ref(), packet);
    }
}

/// A wire, and the packet that just came from it.
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
        // The kernel wrote the sums of what comes. Whoever gets round it to write wrong ones harms its own connection.
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
