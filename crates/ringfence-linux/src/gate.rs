//! The gate: the only way out of a sandbox's network. A gate is created inside, where the network
//! is, and held outside, where the rules are.
//!
//! A socket belongs to the network namespace in which it was created, whichever process holds it
//! (network_namespaces(7)). So before the command runs, a process inside listens on the loopback
//! interface and sends the listening socket to the host. The host accepts connections from that
//! socket and decides about each. No process inside copies data, no socket of the host can be
//! reached, and when the holder outside ends, the socket no longer listens.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use serde::{Deserialize, Serialize};

use crate::fd_passing;
use crate::sys::network::{self, Tunnel};

/// Address of the proxy inside the sandbox. The port lies above the range from which the kernel
/// assigns ports (ip(7)).
pub const PROXY_ADDRESS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 61080);
/// Address of the sandbox's end of its tunnel.
///
/// The range is reserved for tests of network devices (RFC 2544), so no host that a program wants
/// to reach has an address in it.
pub const TUNNEL_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// Address of the other end of the tunnel, which answers DNS queries.
pub const RESOLVER_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// Prefix length of the tunnel's network, in bits.
pub const TUNNEL_PREFIX_BITS: u8 = 15;
/// Size limit of a packet in the tunnel, in bytes. Large packets cost less, and no physical link
/// limits their size.
pub const TUNNEL_PACKET_BYTES: u16 = 32 * 1024;

/// Path of the device with which tunnels are created.
pub const TUNNEL_DEVICE: &str = "/dev/net/tun";

/// Number of connections that may wait to be accepted.
const LISTEN_BACKLOG: i32 = 1024;

/// The kind of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum GateKind {
    /// A proxy that programs use explicitly, because their settings name it.
    Proxy,
    /// The proxy, and a tunnel for the traffic of programs that do not use the proxy.
    Transparent,
}

/// The gate of a sandbox, as its holder has it.
#[derive(Debug)]
pub struct Gate {
    /// Socket that listens at [`PROXY_ADDRESS`] inside the sandbox.
    pub proxy: OwnedFd,
    /// Tunnel descriptor, from which packets are read and to which they are written.
    pub tunnel: Option<OwnedFd>,
}

impl Gate {
    /// Waits for a gate on `socket`. Returns `None` if the sending process has ended.
    pub fn receive(socket: impl AsFd) -> io::Result<Option<Gate>> {
        let mut word = [0; 1];
        let (word, descriptors) = fd_passing::receive(socket, &mut word)?;
        if word.is_empty() {
            return Ok(None);
        }
        let mut descriptors = descriptors.into_iter();
        let proxy = descriptors
            .next()
            .ok_or_else(|| io::Error::other("a gate came without its descriptors"))?;
        let is_listening = sockopt::socket_acceptconn(&proxy)?
            && sockopt::socket_domain(&proxy)? == AddressFamily::INET;
        if !is_listening {
            return Err(io::Error::other(
                "the descriptor that was sent as a gate is not a \
                                         listening socket",
            ));
        }
        Ok(Some(Gate { proxy, tunnel: descriptors.next() }))
    }
}

/// Creates a gate in the network namespace of this process, and sends it to the peer of `holder`.
pub fn open(kind: GateKind, holder: impl AsFd) -> io::Result<()> {
    open_with(kind, holder, TUNNEL_DEVICE.as_ref())
}

/// Creates and sends a gate like [`open`], with a tunnel device at another path than
/// [`TUNNEL_DEVICE`].
pub(crate) fn open_with(kind: GateKind, holder: impl AsFd, device: &Path) -> io::Result<()> {
    let proxy = rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    sockopt::set_socket_reuseaddr(&proxy, true)?;
    rustix::net::bind(&proxy, &PROXY_ADDRESS)?;
    rustix::net::listen(&proxy, LISTEN_BACKLOG)?;
    let tunnel = match kind {
        GateKind::Proxy => None,
        GateKind::Transparent => {
            let tunnel = Tunnel {
                address: TUNNEL_ADDRESS,
                prefix: TUNNEL_PREFIX_BITS,
                packet: TUNNEL_PACKET_BYTES,
            };
            Some(network::create_tunnel(device, &tunnel)?)
        }
    };
    let descriptors: Vec<_> =
        [Some(proxy.as_fd()), tunnel.as_ref().map(AsFd::as_fd)].into_iter().flatten().collect();
    fd_passing::send(holder, &[0], &descriptors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control;

    #[test]
    fn a_holder_learns_that_the_sender_of_its_gate_is_gone() {
        let (ours, theirs) = control::socket_pair().unwrap();
        drop(theirs);
        assert!(Gate::receive(ours).unwrap().is_none());
    }

    #[test]
    fn a_socket_that_does_not_listen_is_no_gate() {
        let (ours, theirs) = control::socket_pair().unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        fd_passing::send(theirs, &[0], &[socket.as_fd()]).unwrap();
        assert!(Gate::receive(ours).is_err());
    }
}
