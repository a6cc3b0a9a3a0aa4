//! Tests of the far end of a tunnel with handmade packets. The tests of `ringfence run
//! --transparent` make whole connections with a real kernel.

use std::net::{IpAddr, SocketAddr};

use hickory_resolver::proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    IPV4_HEADER_LEN, Icmpv4DstUnreachable, Icmpv4Packet, IpProtocol, Ipv4Packet, Ipv4Repr,
    TcpControl, TcpPacket, TcpRepr, TcpSeqNumber, UdpPacket,
};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::*;
use crate::{ClientLimits, EgressEvent, ProxyMode, ProxySettings, Resolver, Rules};

const RESOLVER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
const SANDBOX_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const DEADLINE: Duration = Duration::from_secs(20);

/// Sandbox end of a tunnel.
struct Sandbox {
    device: AsyncFd<OwnedFd>,
    proxy: Proxy,
    events: Arc<Mutex<Vec<EgressEvent>>>,
    carried: JoinHandle<io::Result<()>>,
}

impl Sandbox {
    fn new(allow: &[&str]) -> Sandbox {
        Sandbox::with_limits(allow, ClientLimits::default())
    }

    fn with_limits(allow: &[&str], limits: ClientLimits) -> Sandbox {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .unwrap();
        let allow: Vec<_> = allow.iter().map(|rule| rule.parse().unwrap()).collect();
        let nobody: SocketAddr = ([127, 0, 0, 1], 9).into();
        let rules = Rules::new(&allow, &[]);
        let settings = ProxySettings {
            mode: ProxyMode::Enforce,
            upstream: None,
            limits,
            resolver: Resolver::for_server(nobody).unwrap(),
            credentials: None,
        };
        let events: Arc<Mutex<Vec<EgressEvent>>> = Arc::default();
        let told = Arc::clone(&events);
        let proxy = Proxy::new(rules, settings, move |event| told.lock().unwrap().push(event));
        let tunnel = Tunnel { device: theirs, resolver: RESOLVER, packet: 32 * 1024 };
        let carrier = proxy.clone();
        let carried = tokio::spawn(async move { carrier.carry_packets(tunnel).await });
        Sandbox { device: register_device(ours).unwrap(), proxy, events, carried }
    }

    async fn send(&self, packet: &[u8]) {
        while let Err(error) = rustix::io::write(self.device.get_ref(), packet) {
            assert_eq!(error, Errno::AGAIN, "the tunnel has ended: {:?}", self.carried);
            yield_now().await;
        }
    }

    /// Returns the next packet of a protocol to a port inside. Other packets may arrive meanwhile,
    /// because the test does not acknowledge them and they are sent again.
    async fn receive_for(&self, protocol: IpProtocol, port: u16) -> Vec<u8> {
        loop {
            let bytes = self.receive().await;
            let packet = Ipv4Packet::new_checked(&bytes[..]).unwrap();
            // UDP and TCP headers both begin with the source port and the destination port.
            if packet.next_header() == protocol && packet.payload()[2..4] == port.to_be_bytes() {
                return bytes;
            }
        }
    }

    /// Returns the next packet.
    async fn receive(&self) -> Vec<u8> {
        let mut space = vec![0; 64 * 1024];
        let wait = async {
            loop {
                let mut ready = self.device.readable().await.unwrap();
                let read =
                    ready.try_io(|device| Ok(rustix::io::read(device.get_ref(), &mut space[..])?));
                if let Ok(length) = read {
                    return length.unwrap();
                }
            }
        };
        let length = timeout(DEADLINE, wait).await.expect("a packet comes in time");
        assert_ne!(length, 0, "the tunnel has ended: {:?}", self.carried);
        space.truncate(length);
        space
    }

    /// Asks for a name, and returns the response code and the records of the answer.
    async fn ask(&self, name: &str, kind: RecordType) -> (ResponseCode, Vec<RData>) {
        let mut question = Message::new(7, MessageType::Query, OpCode::Query);
        question.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        let (from, to) = (
            SocketAddrV4::new(SANDBOX_ADDRESS, 40000),
            SocketAddrV4::new(RESOLVER, packet::DNS_PORT),
        );
        self.send(&packet::build_datagram(from, to, &question.to_vec().unwrap())).await;
        let bytes = self.receive_for(IpProtocol::Udp, from.port()).await;
        let bytes = Ipv4Packet::new_checked(&bytes[..]).unwrap();
        let datagram = UdpPacket::new_checked(bytes.payload()).unwrap();
        assert!(datagram.verify_checksum(&RESOLVER.into(), &SANDBOX_ADDRESS.into()));
        let answer = Message::from_vec(datagram.payload()).unwrap();
        assert_eq!((answer.metadata.id, answer.metadata.message_type), (7, MessageType::Response));
        (
            answer.metadata.response_code,
            answer.answers.into_iter().map(|record| record.data).collect(),
        )
    }

    /// Asks for a connection, and returns the control flag and the sequence number of the answer.
    async fn knock(&self, from: u16, to: SocketAddrV4) -> (TcpControl, TcpSeqNumber) {
        self.send(&segment(from, to, TcpControl::Syn, None)).await;
        self.hear(from, to).await
    }

    /// Returns the next segment of the connection from `from` to `to`.
    async fn hear(&self, from: u16, to: SocketAddrV4) -> (TcpControl, TcpSeqNumber) {
        let bytes = self.receive_for(IpProtocol::Tcp, from).await;
        let bytes = Ipv4Packet::new_checked(&bytes[..]).unwrap();
        assert_eq!((bytes.src_addr(), bytes.dst_addr()), (*to.ip(), SANDBOX_ADDRESS));
        let answer = TcpPacket::new_checked(bytes.payload()).unwrap();
        assert_eq!(answer.src_port(), to.port());
        let (source, destination) = ((*to.ip()).into(), SANDBOX_ADDRESS.into());
        let answer =
            TcpRepr::parse(&answer, &source, &destination, &ChecksumCapabilities::default())
                .unwrap();
        (answer.control, answer.seq_number)
    }

    /// Returns the target, the reason and the origin of each denial that the owner was told about.
    fn denied(&self) -> Vec<(String, &'static str, RequestKind)> {
        let events = self.events.lock().unwrap();
        let denials = events.iter().filter_map(|event| match event {
            EgressEvent::Denied(denial) => {
                Some((denial.target.clone(), denial.reason.code(), denial.via))
            }
            _ => None,
        });
        denials.collect()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.carried.abort();
    }
}

fn segment(
    from: u16,
    to: SocketAddrV4,
    control: TcpControl,
    ack_number: Option<TcpSeqNumber>,
) -> Vec<u8> {
    let segment = TcpRepr {
        src_port: from,
        dst_port: to.port(),
        control,
        seq_number: TcpSeqNumber(1000 + i32::from(ack_number.is_some())),
        ack_number,
        window_len: 64000,
        window_scale: (control == TcpControl::Syn).then_some(7),
        max_seg_size: (control == TcpControl::Syn).then_some(32000),
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[],
    };
    let length = segment.buffer_len();
    let header = Ipv4Repr {
        src_addr: SANDBOX_ADDRESS,
        dst_addr: *to.ip(),
        next_header: IpProtocol::Tcp,
        payload_len: length,
        hop_limit: 64,
    };
    let mut bytes = vec![0; IPV4_HEADER_LEN + length];
    let sums = ChecksumCapabilities::default();
    header.emit(&mut Ipv4Packet::new_unchecked(&mut bytes[..]), &sums);
    let mut packet = TcpPacket::new_unchecked(&mut bytes[IPV4_HEADER_LEN..]);
    segment.emit(&mut packet, &SANDBOX_ADDRESS.into(), &(*to.ip()).into(), &sums);
    bytes
}

async fn server() -> (TcpListener, SocketAddrV4) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let SocketAddr::V4(address) = listener.local_addr().unwrap() else {
        panic!("an address of IPv4 was asked for")
    };
    (listener, address)
}

#[tokio::test]
async fn an_allowed_name_has_one_address_and_others_do_not_exist() {
    let sandbox = Sandbox::new(&["*.a.org", "b.org:22"]);
    let (code, found) = sandbox.ask("X.a.org.", RecordType::A).await;
    assert_eq!(code, ResponseCode::NoError);
    let [RData::A(address)] = found[..] else { panic!("one address: {found:?}") };
    assert_eq!(address.octets()[..2], [198, 18]);
    assert_eq!(sandbox.ask("x.A.org.", RecordType::A).await.1, found);
    assert_ne!(sandbox.ask("b.org.", RecordType::A).await.1, found);
    assert_eq!(
        sandbox.ask("x.a.org.", RecordType::AAAA).await,
        (ResponseCode::NoError, Vec::new())
    );
    let backwards = Name::from(IpAddr::V4(address.0)).to_ascii();
    assert!(matches!(&sandbox.ask(&backwards, RecordType::PTR).await.1[..], [RData::PTR(name)] if
        name.0.to_ascii() == "x.a.org."));
    assert_eq!(sandbox.denied(), []);

    for kind in [RecordType::A, RecordType::AAAA, RecordType::TXT] {
        assert_eq!(sandbox.ask("a.org.", kind).await, (ResponseCode::NXDomain, Vec::new()));
    }
    assert_eq!(sandbox.denied(), [("a.org".to_owned(), "unlisted", RequestKind::Dns)]);
}

#[tokio::test]
async fn a_connection_that_no_rule_allows_is_reset_and_one_that_a_rule_allows_is_made() {
    let (listener, address) = server().await;
    let denied = Sandbox::new(&["a.org"]);
    assert_eq!(denied.knock(40000, address).await.0, TcpControl::Rst);
    assert_eq!(denied.denied(), [(address.to_string(), "internal", RequestKind::Transparent)]);

    let allowed = Sandbox::new(&[&address.to_string()]);
    let (control, number) = allowed.knock(40000, address).await;
    assert_eq!(control, TcpControl::Syn);
    assert_eq!(allowed.denied(), []);
    let (server, _) = timeout(DEADLINE, listener.accept()).await.unwrap().unwrap();
    // If the client resets its connection, the connection outside ends as well.
    allowed.send(&segment(40000, address, TcpControl::None, Some(number + 1))).await;
    allowed.send(&segment(40000, address, TcpControl::Rst, Some(number + 1))).await;
    let gone = async {
        while server
            .try_read(&mut [0])
            .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        {
            server.readable().await.unwrap();
        }
    };
    timeout(DEADLINE, gone).await.expect("the connection outside ends");
}

#[tokio::test]
async fn new_rules_apply_to_names_and_connections_and_end_open_ones() {
    let (listener, address) = server().await;
    let sandbox = Sandbox::new(&["a.org", &address.to_string()]);
    let (code, found) = sandbox.ask("a.org.", RecordType::A).await;
    let [RData::A(name)] = found[..] else { panic!("one address: {code} {found:?}") };
    let (control, number) = sandbox.knock(40000, address).await;
    assert_eq!(control, TcpControl::Syn);
    sandbox.send(&segment(40000, address, TcpControl::None, Some(number + 1))).await;
    let (server, _) = timeout(DEADLINE, listener.accept()).await.unwrap().unwrap();

    sandbox.proxy.set_rules(Rules::new(&["b.org".parse().unwrap()], &[]));
    assert!(matches!(sandbox.hear(40000, address).await.0, TcpControl::Fin | TcpControl::Rst));
    timeout(DEADLINE, server.readable()).await.expect("the connection outside ends").unwrap();
    assert_eq!(server.try_read(&mut [0]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(sandbox.ask("a.org.", RecordType::A).await.0, ResponseCode::NXDomain);
    assert_eq!(sandbox.ask("b.org.", RecordType::A).await.0, ResponseCode::NoError);
    // An address that was given out before still stands for its name, and connections to it are
    // reset.
    assert_eq!(sandbox.knock(40001, SocketAddrV4::new(name.0, 443)).await.0, TcpControl::Rst);
    assert_eq!(sandbox.knock(40002, address).await.0, TcpControl::Rst);
    let denied = sandbox.denied();
    let targets: Vec<&str> = denied.iter().map(|(target, ..)| target.as_str()).collect();
    let address = address.to_string();
    assert_eq!(targets, [address.as_str(), "a.org", "a.org:443", &address]);
}

#[tokio::test]
async fn connections_to_an_unassigned_address_are_denied() {
    let sandbox = Sandbox::new(&["a.org"]);
    let address = SocketAddrV4::new(Ipv4Addr::new(198, 18, 77, 7), 443);
    assert_eq!(sandbox.knock(40000, address).await.0, TcpControl::Rst);
    assert_eq!(sandbox.denied(), [(address.to_string(), "internal", RequestKind::Transparent)]);
}

#[tokio::test]
async fn datagrams_are_refused_at_once_and_reported_once() {
    let sandbox = Sandbox::new(&["1.1.1.1", "1.1.1.1:53"]);
    let (from, to) = (
        SocketAddrV4::new(SANDBOX_ADDRESS, 40000),
        SocketAddrV4::new(Ipv4Addr::new(1, 1, 1, 1), 53),
    );
    for _ in 0..3 {
        sandbox.send(&packet::build_datagram(from, to, b"who is it")).await;
        let bytes = sandbox.receive().await;
        let bytes = Ipv4Packet::new_checked(&bytes[..]).unwrap();
        assert_eq!((bytes.next_header(), bytes.dst_addr()), (IpProtocol::Icmp, SANDBOX_ADDRESS));
        let refusal = Icmpv4Packet::new_checked(bytes.payload()).unwrap();
        assert_eq!(
            Icmpv4DstUnreachable::from(refusal.msg_code()),
            Icmpv4DstUnreachable::CommProhibited
        );
    }
    assert_eq!(sandbox.denied(), [("1.1.1.1:53".to_owned(), "protocol", RequestKind::Transparent)]);
}

#[tokio::test]
async fn fragments_and_multicast_datagrams_are_reported() {
    let sandbox = Sandbox::new(&["1.1.1.1"]);
    let from = SocketAddrV4::new(SANDBOX_ADDRESS, 40000);
    let datagram = |to: [u8; 4], port: u16| {
        packet::build_datagram(from, SocketAddrV4::new(to.into(), port), &[0; 3000])
    };
    let fragment = |packet: &[u8], offset: u16, has_more: bool| {
        let start = IPV4_HEADER_LEN + usize::from(offset);
        let mut bytes = [&packet[..IPV4_HEADER_LEN], &packet[start..start + 1000]].concat();
        let mut header = Ipv4Packet::new_unchecked(&mut bytes[..]);
        header.set_total_len((IPV4_HEADER_LEN + 1000).try_into().unwrap());
        header.set_dont_frag(false);
        header.set_more_frags(has_more);
        header.set_frag_offset(offset);
        bytes
    };
    let whole = datagram([9, 9, 9, 2], 53);
    for (offset, has_more) in [(0, true), (1000, true), (2000, false)] {
        sandbox.send(&fragment(&whole, offset, has_more)).await;
    }
    sandbox.send(&datagram([239, 1, 2, 3], 1900)).await;
    sandbox.send(&datagram([255, 255, 255, 255], 67)).await;
    // Reports of the kernel itself to groups (IGMP) are not denials.
    let mut report = datagram([224, 0, 0, 22], 1);
    Ipv4Packet::new_unchecked(&mut report[..]).set_next_header(IpProtocol::Igmp);
    sandbox.send(&report).await;
    // No earlier packet is answered, so the only answer belongs to this packet.
    sandbox.send(&datagram([9, 9, 9, 9], 9)).await;
    let answer = sandbox.receive().await;
    assert_eq!(Ipv4Packet::new_checked(&answer[..]).unwrap().src_addr(), Ipv4Addr::new(9, 9, 9, 9));
    let targets: Vec<String> = sandbox.denied().into_iter().map(|(target, ..)| target).collect();
    assert_eq!(targets, ["9.9.9.2:53", "239.1.2.3:1900", "255.255.255.255:67", "9.9.9.9:9"]);
}

#[tokio::test]
async fn waiting_packets_are_handled_before_a_tunnel_ends() {
    let mut sandbox = Sandbox::new(&[]);
    let from = SocketAddrV4::new(SANDBOX_ADDRESS, 40000);
    for last in 1..=20 {
        let to = SocketAddrV4::new(Ipv4Addr::new(9, 9, 9, last), 53);
        sandbox.send(&packet::build_datagram(from, to, b"who is it")).await;
        sandbox.send(&segment(40000, to, TcpControl::Syn, None)).await;
    }
    sandbox.proxy.drain();
    let carried = timeout(DEADLINE, &mut sandbox.carried).await.expect("the tunnel ends");
    carried.unwrap().unwrap();
    assert_eq!(sandbox.denied().len(), 40);
}

#[tokio::test]
async fn connections_over_the_limit_are_refused() {
    let (_listener, address) = server().await;
    let limits = ClientLimits { connections: 8, ..ClientLimits::default() };
    let sandbox = Sandbox::with_limits(&[&address.to_string()], limits);
    let mut open = 0;
    for port in 40000..40100 {
        match sandbox.knock(port, address).await.0 {
            TcpControl::Syn => open += 1,
            TcpControl::Rst => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(open, 8);
}

#[tokio::test]
async fn no_packet_breaks_the_tunnel() {
    let (_listener, address) = server().await;
    let sandbox = Sandbox::new(&["a.org", &address.to_string()]);
    let from = SocketAddrV4::new(SANDBOX_ADDRESS, 40000);
    let question =
        packet::build_datagram(from, SocketAddrV4::new(RESOLVER, packet::DNS_PORT), &[0; 40]);
    let controls =
        [TcpControl::Syn, TcpControl::None, TcpControl::Psh, TcpControl::Fin, TcpControl::Rst];
    let seeds: Vec<Vec<u8>> = controls
        .iter()
        .flat_map(|control| {
            [None, Some(TcpSeqNumber(1))].map(|number| segment(40000, address, *control, number))
        })
        .chain([question, vec![0x60; 60], vec![0x45; 40], Vec::from([0x45])])
        .collect();
    // xorshift64 generates the same packets in each run.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).unwrap()
    };
    for round in 0..20_000 {
        let mut packet = seeds[random(seeds.len())].clone();
        for _ in 0..random(6) {
            let place = random(packet.len());
            packet[place] = random(256) as u8;
        }
        if random(8) == 0 {
            packet.truncate(1 + random(packet.len()));
        }
        sandbox.send(&packet).await;
        if round % 64 == 0 {
            // Drain the answers unread, so that they do not fill the socket.
            while rustix::io::read(sandbox.device.get_ref(), &mut [0; 1024][..]).is_ok() {}
            yield_now().await;
        }
    }
    let answered = async {
        let mut question = Message::new(9, MessageType::Query, OpCode::Query);
        question.add_query(Query::query(Name::from_ascii("a.org.").unwrap(), RecordType::A));
        let to = SocketAddrV4::new(RESOLVER, packet::DNS_PORT);
        sandbox
            .send(&packet::build_datagram(
                SocketAddrV4::new(SANDBOX_ADDRESS, 50000),
                to,
                &question.to_vec().unwrap(),
            ))
            .await;
        loop {
            let bytes = sandbox.receive().await;
            let Ok(bytes) = Ipv4Packet::new_checked(&bytes[..]) else { continue };
            let Ok(datagram) = UdpPacket::new_checked(bytes.payload()) else { continue };
            if bytes.next_header() == IpProtocol::Udp && datagram.dst_port() == 50000 {
                return Message::from_vec(datagram.payload()).unwrap().answers.len();
            }
        }
    };
    assert_eq!(timeout(DEADLINE, answered).await.expect("it still answers"), 1);
    assert!(!sandbox.carried.is_finished());
}
