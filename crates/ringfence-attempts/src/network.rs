//! Attempts to leave the sandbox over a network.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixStream};
use std::time::Duration;

use ringfence_core::Clause::{Ipc, Network};

use super::{Attempt, denied, impossible};

/// Timeout for a connection over the loopback interface.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for the refusal of a datagram over the loopback interface.
const REFUSAL_TIMEOUT: Duration = Duration::from_millis(200);
/// Address that belongs to nobody (RFC 5737). The attempt only tests if a route leads there.
const UNASSIGNED_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

pub(super) const ATTEMPTS: &[Attempt] = &[
    denied("connect-ipv4", Network, "connect to a server on the host over IPv4", |context| {
        connect((Ipv4Addr::LOCALHOST, context.network.tcp).into())
    }),
    denied("connect-ipv6", Network, "connect to a server on the host over IPv6", |context| {
        let port = context.network.tcp_v6.ok_or_else(|| impossible("the host has no IPv6"))?;
        connect((Ipv6Addr::LOCALHOST, port).into())
    }),
    denied("send-datagram", Network, "send a datagram to a server on the host", |context| {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect((Ipv4Addr::LOCALHOST, context.network.udp))?;
        socket.send(b"x")?;
        // If no process listens, the refusal arrives at once. A datagram that is accepted gets no
        // answer.
        socket.set_read_timeout(Some(REFUSAL_TIMEOUT))?;
        match socket.recv(&mut [0]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Ok("it was taken".to_owned())
            }
            Err(error) => Err(error),
            Ok(_) => Ok("it was answered".to_owned()),
        }
    }),
    denied("route-elsewhere", Network, "find a way to an address that is not the host's", |_| {
        try_route(UNASSIGNED_ADDRESS)
    }),
    denied("route-to-name-server", Network, "find a way to the host's name server", |context| {
        try_route(
            context.network.name_server.ok_or_else(|| impossible("the host has no name server"))?,
        )
    }),
    denied("connect-abstract", Ipc, "connect to an abstract Unix socket of the host", |context| {
        let address = UnixAddress::from_abstract_name(&context.network.abstract_name)?;
        UnixStream::connect_addr(&address).map(|_| "connected".to_owned())
    }),
    denied(
        "connect-socket-file",
        Ipc,
        "connect to a Unix socket of the host by its path",
        |context| {
            UnixStream::connect(context.paths.outside.join("socket"))
                .map(|_| "connected".to_owned())
        },
    ),
];

fn connect(address: SocketAddr) -> io::Result<String> {
    TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).map(|_| "connected".to_owned())
}

/// Connects a datagram socket. The call sends nothing, and fails if no route leads to the address.
fn try_route(address: IpAddr) -> io::Result<String> {
    let any: IpAddr =
        if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    UdpSocket::bind((any, 0))?.connect((address, 53)).map(|()| "there is a route".to_owned())
}
