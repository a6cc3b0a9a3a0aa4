//! What a packet of the tunnel is, and the packets that are answered without a connection.

use std::net::{Ipv4Addr, SocketAddrV4};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    IPV4_HEADER_LEN, Icmpv4DstUnreachable, Icmpv4Message, Icmpv4Packet, Icmpv4Repr, IpAddress, IpProtocol, Ipv4Packet,
    Ipv4Repr, TcpPacket, UDP_HEADER_LEN, UdpPacket, UdpRepr,
};

/// The port that names are asked for on.
pub(super) const DNS: u16 = 53;

/// How many hops an answer may make; it makes none.
const HOPS: u8 = 64;
/// How much of a packet its refusal repeats, after the header: what tells its sender which one it was (RFC 792).
const REPEATED: usize = 64;
/// The longest first packet of a connection: headers with all their options, and no data.
const LONGEST_OPENING: usize = 120;

/// The two ends of a connection, as the sandbox sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Flow {
    /// Inside.
    pub(super) from: SocketAddrV4,
    /// Where it wants to go.
    pub(super) to: SocketAddrV4,
}

/// What a packet is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Packet<'a> {
    /// The first of a connection.
    Opening(Flow),
    /// Another one of a connection.
    Segment(Flow),
    /// Asks the resolver for a name.
    Question { from: SocketAddrV4, to: SocketAddrV4, message: &'a [u8] },
    /// Something that is never let through.
    Unwanted { protocol: &'static str, to: Ipv4Addr, port: Option<u16> },
    /// Nothing that anybody waits for an answer to: chatter of the kernel's, and what cannot be read.
    Noise,
}

/// Says what a packet is, as far as it can be read.
pub(super) fn read(packet: &[u8], resolver: Ipv4Addr) -> Packet<'_> {
    recognise(packet, resolver).unwrap_or(Packet::Noise)
}

fn recognise(bytes: &[u8], resolver: Ipv4Addr) -> Option<Packet<'_>> {
    // There is no way for IPv6: its packets are those by which a kernel looks for its neighbours.
    let packet = Ipv4Packet::new_checked(bytes).ok().filter(|packet| packet.version() == 4)?;
    let (from, to) = (packet.src_addr(), packet.dst_addr());
    // A packet in fragments is told of by its first one, which has the ports.
    if packet.frag_offset() != 0 {
        return None;
    }
    if packet.more_frags() || !is_one_host(from) || !is_one_host(to) {
        return undeliverable(&packet);
    }
    let ends = |source, destination| (SocketAddrV4::new(from, source), SocketAddrV4::new(to, destination));
    Some(match packet.next_header() {
        IpProtocol::Tcp => {
            let segment = TcpPacket::new_checked(packet.payload()).ok()?;
            let (from, to) = ends(segment.src_port(), segment.dst_port());
            if from.port() == 0 || to.port() == 0 {
                return None;
            }
            let flow = Flow { from, to };
            let is_opening = segment.syn() && !segment.ack() && !segment.rst() && !segment.fin();
            match is_opening {
                true if bytes.len() > LONGEST_OPENING => return None,
                true => Packet::Opening(flow),
                false => Packet::Segment(flow),
            }
        }
        IpProtocol::Udp => {
            let datagram = UdpPacket::new_checked(packet.payload()).ok()?;
            let (from, to) = ends(datagram.src_port(), datagram.dst_port());
            if *to.ip() == resolver && to.port() == DNS {
                Packet::Question { from, to, message: datagram.payload() }
            } else {
                Packet::Unwanted { protocol: "UDP", to: *to.ip(), port: Some(to.port()) }
            }
        }
        IpProtocol::Icmp => {
            let message = Icmpv4Packet::new_checked(packet.payload()).ok()?;
            // An error is never answered with an error, RFC 1122, 3.2.2.
            if message.msg_type() != Icmpv4Message::EchoRequest {
                return None;
            }
            Packet::Unwanted { protocol: "ICMP", to, port: None }
        }
        _ => Packet::Unwanted { protocol: "this protocol", to, port: None },
    })
}

/// Says what a packet is that no socket takes: a first fragment, or one from or to many hosts. The
/// kernel itself sends packets of other protocols to groups (IGMP).
fn undeliverable<'a>(packet: &Ipv4Packet<&[u8]>) -> Option<Packet<'a>> {
    let (protocol, port) = match packet.next_header() {
        IpProtocol::Udp => ("UDP", Some(u16::from_be_bytes(*packet.payload().get(2..)?.first_chunk()?))),
        IpProtocol::Icmp if *packet.payload().first()? == u8::from(Icmpv4Message::EchoRequest) => ("ICMP", None),
        _ => return None,
    };
    Some(Packet::Unwanted { protocol, to: packet.dst_addr(), port })
}

fn is_one_host(address: Ipv4Addr) -> bool {
    !(address.is_unspecified() || address.is_broadcast() || address.is_multicast())
}

/// The datagram that carries `message`.
pub(super) fn datagram(from: SocketAddrV4, to: SocketAddrV4, message: &[u8]) -> Vec<u8> {
    let datagram = UdpRepr { src_port: from.port(), dst_port: to.port() };
    let (source, destination) = (IpAddress::Ipv4(*from.ip()), IpAddress::Ipv4(*to.ip()));
    around(*from.ip(), *to.ip(), IpProtocol::Udp, UDP_HEADER_LEN + message.len(), |payload| {
        let mut packet = UdpPacket::new_unchecked(payload);
        let sums = ChecksumCapabilities::default();
        let write = |payload: &mut [u8]| payload.copy_from_slice(message);
        datagram.emit(&mut packet, &source, &destination, message.len(), write, &sums);
    })
}

/// Tells the sender of a packet that a rule forbids it, RFC 1812, 5.2.7.1: at once, where silence would have it wait.
/// A packet from or to many hosts is not answered, RFC 1122, 3.2.2, and neither is a fragment.
pub(super) fn forbidden(bytes: &[u8]) -> Option<Vec<u8>> {
    let sums = ChecksumCapabilities::ignored();
    let packet = Ipv4Packet::new_checked(bytes).ok()?;
    if !is_one_host(packet.src_addr()) || !is_one_host(packet.dst_addr()) {
        return None;
    }
    let header = Ipv4Repr::parse(&packet, &sums).ok()?;
    let data = &packet.payload()[..packet.payload().len().min(REPEATED)];
    let message = Icmpv4Repr::DstUnreachable { reason: Icmpv4DstUnreachable::CommProhibited, header, data };
    Some(around(header.dst_addr, header.src_addr, IpProtocol::Icmp, message.buffer_len(), |payload| {
        message.emit(&mut Icmpv4Packet::new_unchecked(payload), &ChecksumCapabilities::default());
    }))
}

fn around(from: Ipv4Addr, to: Ipv4Addr, protocol: IpProtocol, length: usize, write: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let header = Ipv4Repr { src_addr: from, dst_addr: to, next_header: protocol, payload_len: length, hop_limit: HOPS };
    let mut bytes = vec![0; IPV4_HEADER_LEN + length];
    header.emit(&mut Ipv4Packet::new_unchecked(&mut bytes[..]), &ChecksumCapabilities::default());
    write(&mut bytes[IPV4_HEADER_LEN..]);
    bytes
}
