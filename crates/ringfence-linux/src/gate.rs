//! The one way out of a sandbox's network: made inside, where the network is, and held outside, where the rules are.
//!
//! A socket belongs to the network namespace that it was made in, whoever holds it (network_namespaces(7)). So a process
//! inside, before the command runs, listens on the loopback interface and hands the listening socket to the host, which
//! accepts from it and decides. Nothing inside copies a byte, no socket of the host can be reached, and when the holder
//! outside ends nobody listens any more.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use serde::{Deserialize, Serialize};

use crate::passing;
use crate::sys::network::{self, Tunnel};

/// Where the proxy is, inside: beyond the ports that the kernel hands out by itself (ip(7)).
pub const PROXY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 61080);
/// The address of the sandbox's end of its tunnel. The range is set aside for tests of devices (RFC 2544), so that no
/// host anybody wants to reach has an address in it.
pub const TUNNEL: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The address of the other end, which answers for names.
pub const RESOLVER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// How many bits of an address of the tunnel's network are the same.
pub const TUNNEL_PREFIX: u8 = 15;
/// The largest packet in the tunnel, in bytes: fewer and larger ones cost less, as no wire limits them.
pub const TUNNEL_PACKET: u16 = 32 * 1024;

/// What tunnels are made with.
pub const DEVICE: &str = "/dev/net/tun";

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 1024;

/// What kind of way out there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A proxy that programs are told of.
    Proxy,
    /// The proxy, and a tunnel that takes what programs send that know of none.
    Transparent,
}

/// The way out of a sandbox, as its holder has it.
#[derive(Debug)]
pub struct Gate {
    /// Listens at [`PROXY`], inside.
    pub proxy: OwnedFd,
    /// Packets come from here and go here.
    pub tunnel: Option<OwnedFd>,
}

impl Gate {
    /// Waits for a gate that is sent to `socket`; none when whoever was to send it has ended.
    pub fn receive(socket: impl AsFd) -> io::Result<Option<Gate>> {
        let mut word = [0; 1];
        let (word, descriptors) = passing::receive(socket, &mut word)?;
        if word.is_empty() {
            return Ok(None);
        }
        let mut descriptors = descriptors.into_iter();
        let proxy = descriptors.next().ok_or_else(|| io::Error::other("a gate came without its descriptors"))?;
        let is_listening =
            sockopt::socket_acceptconn(&proxy)? && sockopt::socket_domain(&proxy)? == AddressFamily::INET;
        if !is_listening {
            return Err(io::Error::other("what was sent as a gate does not listen"));
        }
        Ok(Some(Gate { proxy, tunnel: descriptors.next() }))
    }
}

/// Makes a gate in the network namespace of this process, and sends it to the peer of `holder`.
pub fn open(kind: Kind, holder: impl AsFd) -> io::Result<()> {
    open_with(kind, holder, DEVICE.as_ref())
}

/// The same, where [`DEVICE`] has another name.
pub(crate) fn open_with(kind: Kind, holder: impl AsFd, device: &Path) -> io::Result<()> {
    let proxy = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&proxy, true)?;
    rustix::net::bind(&proxy, &PROXY)?;
    rustix::net::listen(&proxy, BACKLOG)?;
    let tunnel = match kind {
        Kind::Proxy => None,
        Kind::Transparent => {
            let tunnel = Tunnel { address: TUNNEL, prefix: TUNNEL_PREFIX, packet: TUNNEL_PACKET };
            Some(network::tunnel(device, &tunnel)?)
        }
    };
    let descriptors: Vec<_> = [Some(proxy.as_fd()), tunnel.as_ref().map(AsFd::as_fd)].into_iter().flatten().collect();
    passing::send(holder, &[0], &descriptors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control;

    #[test]
    fn a_holder_that_waits_in_vain_is_told() {
        let (ours, theirs) = control::pair().unwrap();
        drop(theirs);
        assert!(Gate::receive(ours).unwrap().is_none());
    }

    #[test]
    fn what_does_not_listen_is_no_gate() {
        let (ours, theirs) = control::pair().unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        passing::send(theirs, &[0], &[socket.as_fd()]).unwrap();
        assert!(Gate::receive(ours).is_err());
    }
}
