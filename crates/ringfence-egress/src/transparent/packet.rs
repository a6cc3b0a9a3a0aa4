//! Classification of the tunnel's packets, and packets that answer without a connection.

use std::net::{Ipv4Addr, SocketAddrV4};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    IPV4_HEADER_LEN, Icmpv4DstUnreachable, Icmpv4Message, Icmpv4Packet, Icmpv4Repr, IpAddress,
    IpProtocol, Ipv4Packet, Ipv4Repr, TcpPacket, UDP_HEADER_LEN, UdpPacket, UdpRepr,
};

/// Port of DNS questions.
pub(super) const DNS_PORT: u16 = 53;

/// Hop limit of an answer. The answer makes no hop.
const HOP_LIMIT: u8 = 64;
/// Number of payload bytes that a refusal repeats after the header, so that the sender can identify
/// the refused packet (RFC 792).
const REPEATED_PAYLOAD_BYTES: usize = 64;
/// Longest first packet of a connection, in bytes: headers with all their options, and no data.
const MAX_OPENING_BYTES: usize = 120;

/// Both ends of a connection, as the sandbox sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct TcpFlow {
    /// Address and port inside the sandbox.
    pub(super) from: SocketAddrV4,
    /// Address and port that the sandbox connects to.
    pub(super) to: SocketAddrV4,
}

/// Kind of a packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PacketKind<'a> {
    /// First packet of a connection.
    Opening(TcpFlow),
    /// Later packet of a connection.
    Segment(TcpFlow),
    /// DNS question to the resolver.
    Question { from: SocketAddrV4, to: SocketAddrV4, message: &'a [u8] },
    /// Packet of a protocol that never passes.
    Unwanted { protocol: &'static str, to: Ipv4Addr, port: Option<u16> },
    /// Packet that needs no answer: background traffic of the kernel, and packets that cannot be
    /// read.
    Noise,
}

/// Classifies a packet, as far as it can be read.
pub(super) fn classify_packet(packet: &[u8], resolver: Ipv4Addr) -> PacketKind<'_> {
    parse_packet(packet, resolver).unwrap_or(PacketKind::Noise)
}

fn parse_packet(bytes: &[u8], resolver: Ipv4Addr) -> Option<PacketKind<'_>> {
    // There is no route for IPv6. Packets of IPv6 come from the kernel, which looks for its
    // neighbours.
    let packet = Ipv4Packet::new_checked(bytes).ok().filter(|packet| packet.version() == 4)?;
    let (from, to) = (packet.src_addr(), packet.dst_addr());
    // A packet in fragments is reported once, by its first fragment, which has the ports.
    if packet.frag_offset() != 0 {
        return None;
    }
    if packet.more_frags() || !is_one_host(from) || !is_one_host(to) {
        return classify_undeliverable(&packet);
    }
    let ends =
        |source, destination| (SocketAddrV4::new(from, source), SocketAddrV4::new(to, destination));
    Some(match packet.next_header() {
        IpProtocol::Tcp => {
            let segment = TcpPacket::new_checked(packet.payload()).ok()?;
            let (from, to) = ends(segment.src_port(), segment.dst_port());
            if from.port() == 0 || to.port() == 0 {
                return None;
            }
            let flow = TcpFlow { from, to };
            let is_opening = segment.syn() && !segment.ack() && !segment.rst() && !segment.fin();
            match is_opening {
                true if bytes.len() > MAX_OPENING_BYTES => return None,
                true => PacketKind::Opening(flow),
                false => PacketKind::Segment(flow),
            }
        }
        IpProtocol::Udp => {
            let datagram = UdpPacket::new_checked(packet.payload()).ok()?;
            let (from, to) = ends(datagram.src_port(), datagram.dst_port());
            if *to.ip() == resolver && to.port() == DNS_PORT {
                PacketKind::Question { from, to, message: datagram.payload() }
            } else {
                PacketKind::Unwanted { protocol: "UDP", to: *to.ip(), port: Some(to.port()) }
            }
        }
        IpProtocol::Icmp => {
            let message = Icmpv4Packet::new_checked(packet.payload()).ok()?;
            // An ICMP error is never answered with an error, RFC 1122, 3.2.2.
            if message.msg_type() != Icmpv4Message::EchoRequest {
                return None;
            }
            PacketKind::Unwanted { protocol: "ICMP", to, port: None }
        }
        _ => PacketKind::Unwanted { protocol: "this protocol", to, port: None },
    })
}

/// Classifies a packet that no socket accepts: a first fragment, or a packet from or to many hosts.
/// Other protocols are ignored, because the kernel itself sends such packets to groups (IGMP).
fn classify_undeliverable<'a>(packet: &Ipv4Packet<&[u8]>) -> Option<PacketKind<'a>> {
    let (protocol, port) = match packet.next_header() {
        IpProtocol::Udp => {
            ("UDP", Some(u16::from_be_bytes(*packet.payload().get(2..)?.first_chunk()?)))
        }
        IpProtocol::Icmp if *packet.payload().first()? == u8::from(Icmpv4Message::EchoRequest) => {
            ("ICMP", None)
        }
        _ => return None,
    };
    Some(PacketKind::Unwanted { protocol, to: packet.dst_addr(), port })
}

fn is_one_host(address: Ipv4Addr) -> bool {
    !(address.is_unspecified() || address.is_broadcast() || address.is_multicast())
}

/// Returns a UDP packet that carries `message`.
pub(super) fn build_datagram(from: SocketAddrV4, to: SocketAddrV4, message: &[u8]) -> Vec<u8> {
    let datagram = UdpRepr { src_port: from.port(), dst_port: to.port() };
    let (source, destination) = (IpAddress::Ipv4(*from.ip()), IpAddress::Ipv4(*to.ip()));
    wrap_in_ipv4(*from.ip(), *to.ip(), IpProtocol::Udp, UDP_HEADER_LEN + message.len(), |payload| {
        let mut packet = UdpPacket::new_unchecked(payload);
        let sums = ChecksumCapabilities::default();
        let write = |payload: &mut [u8]| payload.copy_from_slice(message);
        datagram.emit(&mut packet, &source, &destination, message.len(), write, &sums);
    })
}

/// Returns the ICMP message that tells the sender of a packet that a rule forbids the packet (RFC
/// 1812, 5.2.7.1). With this message the sender fails at once instead of waiting. Returns `None`
/// for a packet from or to many hosts (RFC 1122, 3.2.2), and for a fragment.
pub(super) fn build_forbidden_reply(bytes: &[u8]) -> Option<Vec<u8>> {
    let sums = ChecksumCapabilities::ignored();
    let packet = Ipv4Packet::new_checked(bytes).ok()?;
    if !is_one_host(packet.src_addr()) || !is_one_host(packet.dst_addr()) {
        return None;
    }
    let header = Ipv4Repr::parse(&packet, &sums).ok()?;
    let data = &packet.payload()[..packet.payload().len().min(REPEATED_PAYLOAD_BYTES)];
    let message =
        Icmpv4Repr::DstUnreachable { reason: Icmpv4DstUnreachable::CommProhibited, header, data };
    Some(wrap_in_ipv4(
        header.dst_addr,
        header.src_addr,
        IpProtocol::Icmp,
        message.buffer_len(),
        |payload| {
            message
                .emit(&mut Icmpv4Packet::new_unchecked(payload), &ChecksumCapabilities::default());
        },
    ))
}

fn wrap_in_ipv4(
    from: Ipv4Addr,
    to: Ipv4Addr,
    protocol: IpProtocol,
    length: usize,
    write: impl FnOnce(&mut [u8]),
) -> Vec<u8> {
    let header = Ipv4Repr {
        src_addr: from,
        dst_addr: to,
        next_header: protocol,
        payload_len: length,
        hop_limit: HOP_LIMIT,
    };
    let mut bytes = vec![0; IPV4_HEADER_LEN + length];
    header.emit(&mut Ipv4Packet::new_unchecked(&mut bytes[..]), &ChecksumCapabilities::default());
    write(&mut bytes[IPV4_HEADER_LEN..]);
    bytes
}
