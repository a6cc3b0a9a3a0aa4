"""Through the proxy by CONNECT, to where no rule leads, and under another's name."""

import socket
import ssl
import struct

import addresses
import wire
from around import ask_over_https
from attempt import THROUGH, Attempt, proxy_address

# Where the token of an allowed name may be seen: by the name server, and by whoever is allowed.
NOT_INSIDE = "private host evil"
UNLISTED = "403 unlisted"
OTHER_NAME = "403 other_name"
ALERT = "TLS .*ACCESS_DENIED"
# A tunnel that has carried something else is told by an alert, or just ends.
STARTTLS_ENDS = f"{ALERT}|closed|ECONNRESET"
# Records of TLS (RFC 8446, 5.1 and 6).
CHANGE_CIPHER_SPEC = bytes([20, 3, 3, 0, 1, 1])
WARNING = bytes([21, 3, 1, 0, 2, 1, 112])
EMPTY = bytes([22, 3, 1, 0, 0])


def plain(authority, host=None, use=wire.fetch):
    """A tunnel, and a plain request in it."""

    def make(token):
        stream = wire.tunnel(authority.format(token=token))
        return (
            use(stream, token)
            if use is not wire.fetch
            else use(stream, token, host_of(host or authority, token))
        )

    return make


def host_of(authority, token):
    authority = authority.format(token=token)
    return authority.removesuffix(":80").removesuffix(":443")


def talking(authority):
    return plain(authority, use=wire.talk)


def secure(authority, name):
    """A tunnel, and TLS in it that asks for a name."""

    def make(token):
        stream = wire.secured(
            wire.tunnel(authority.format(token=token)), name and name.format(token=token)
        )
        return wire.fetch(stream, "x", host_of(name or authority, token))

    return make


def hello(name):
    """The first message of a TLS client that asks for a name."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def records(stream):
    """Returns the type of each TLS record from the other side, without change_cipher_spec."""
    received = b""
    while True:
        while len(received) < 5 or len(received) < 5 + int.from_bytes(received[3:5], "big"):
            received = wire.more(stream, received)
        if received[0] != CHANGE_CIPHER_SPEC[0]:
            yield received[0]
        received = received[5 + int.from_bytes(received[3:5], "big") :]


def answered(told):
    """Whether TLS goes on: the next record is a handshake's, and no alert."""
    return THROUGH if next(told) == 22 else "TLS ACCESS_DENIED"


def in_pieces(token):
    """The name in a message that comes a byte at a time, where the name stands."""
    stream = wire.tunnel("good.test:443")
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    message = hello(f"{token}.evil.test")
    at = message.index(token.encode())
    for piece in [
        message[:at],
        *(message[at + index : at + index + 1] for index in range(10)),
        message[at + 10 :],
    ]:
        stream.sendall(piece)
    return answered(records(stream))


def in_records(token):
    """The name in a message that is cut into two records, in the middle of the name."""
    message = hello(f"{token}.evil.test")
    head, body = message[:3], message[5:]
    cut = body.index(token.encode()) + 4
    stream = wire.tunnel("good.test:443")
    for part in (body[:cut], body[cut:]):
        stream.sendall(head + struct.pack("!H", len(part)) + part)
    return answered(records(stream))


def without_key(message):
    """Returns the same hello without a key of the client.

    A server then asks for another hello (RFC 8446, 4.1.4).
    """
    at = 5 + 4 + 2 + 32
    at += 1 + message[at]
    at += 2 + struct.unpack_from("!H", message, at)[0]
    at += 1 + message[at]
    front, extensions, at = message[9:at], b"", at + 2
    while at < len(message):
        kind, length = struct.unpack_from("!HH", message, at)
        content = b"\0\0" if kind == 51 else message[at + 4 : at + 4 + length]
        extensions += struct.pack("!HH", kind, len(content)) + content
        at += 4 + length
    body = front + struct.pack("!H", len(extensions)) + extensions
    return message[:3] + struct.pack("!HI", len(body) + 4, len(body) | 1 << 24) + body


def behind(record):
    """The name in a hello that follows a record which TLS libraries skip."""

    def make(token):
        stream = wire.tunnel("good.test:443")
        stream.sendall(record + hello(f"{token}.evil.test"))
        return answered(records(stream))

    return make


def after_a_retry(waits):
    """The name is in the second hello, which the server requests after an allowed first one."""

    def make(token):
        stream = wire.tunnel("good.test:443")
        told = records(stream)
        first, second = (
            without_key(hello("good.test")),
            CHANGE_CIPHER_SPEC + hello(f"{token}.evil.test"),
        )
        stream.sendall(first if waits else first + second)
        assert next(told) == 22, "the server asks for another hello"
        if waits:
            stream.sendall(second)
        return answered(told)

    return make


def after_starttls(before=b"", waits=True):
    """The name in a hello that follows the STARTTLS of a mail client, and other bytes."""

    def make(token):
        stream = wire.tunnel("good.test:587")
        stream.recv(100)
        late = before + hello(f"{token}.evil.test")
        stream.sendall(b"STARTTLS\r\n" if waits else b"STARTTLS\r\n" + late)
        told = wire.more(stream)
        if not told.startswith(b"250 ok\r\n"):
            return "TLS ACCESS_DENIED"
        if waits:
            stream.sendall(late)
        return answered(records(wire.Ahead(stream, told.removeprefix(b"250 ok\r\n"))))

    return make


def opened_by(start):
    """A plain request for another host, in a tunnel that begins with `start`."""

    def make(token):
        stream = wire.tunnel("good.test:80")
        stream.sendall(f"{start} HTTP/1.1\r\nHost: {token}.evil.test\r\n\r\n".encode())
        return wire.verdict(wire.answers(stream, 1))

    return make


def behind_old_request(target, token):
    """A request for another host, behind one of HTTP/0.9 for the tunnel's own."""
    stream = wire.tunnel("good.test:80")
    stream.sendall(f"GET {target}\r\nHost: good.test\r\n\r\n".encode())
    stream.sendall(f"GET /x HTTP/1.1\r\nHost: {token}.evil.test\r\n\r\n".encode())
    return wire.verdict(wire.answers(stream, 1))


def first_words(token):
    """The name of a host to which the same tunnel led before: TLS to one, and then to another."""
    stream = wire.tunnel("good.test:80")
    return wire.verdict(
        sent(stream, "GET /x HTTP/1.1\r\nHost: good.test\r\n\r\n", f"{token}.evil.test")
    )


def sent(stream, first, host):
    stream.sendall(first.encode())
    found = wire.answers(stream, 1)
    stream.sendall(f"GET /x HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    return found + wire.answers(stream, 1)


def http2(token):
    """HTTP/2 at once, with another host in its first request: HPACK (RFC 7541), no compression."""
    literal = lambda index, value: bytes([index, len(value)]) + value
    headers = bytes([0x82, 0x86, 0x84]) + literal(0x41, f"{token}.evil.test".encode())
    frame = struct.pack("!I", len(headers))[1:] + bytes([1, 5]) + struct.pack("!I", 1) + headers
    stream = wire.tunnel("good.test:80")
    stream.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]) + frame)
    return THROUGH if wire.more(stream)[3] == 4 else "400 malformed"


def second_connect(token):
    """A CONNECT in a tunnel to the proxy itself."""
    stream = wire.tunnel("{}:{}".format(*proxy_address()))
    stream.sendall(f"CONNECT {addresses.EVIL}:80 HTTP/1.1\r\nHost: proxy\r\n\r\n".encode())
    head, _ = wire.head_of(stream)
    return wire.fetch(stream, token) if " 200 " in head else wire.summary(head)[0]


def after_a_refusal(token):
    """A connection that asks again after it was refused."""
    stream = wire.to_proxy()
    for _ in range(2):
        stream.sendall(f"CONNECT {token}.evil.test:80 HTTP/1.1\r\nHost: proxy\r\n\r\n".encode())
        head, rest = wire.head_of(stream)
        said, length = wire.summary(head)
        if said == "200":
            return wire.fetch(stream, token, f"{token}.evil.test")
        while len(rest) < length:
            rest = wire.more(stream, rest)
    return said


def before_the_answer(token):
    """Words for a host, sent along with the request for a tunnel to it."""
    host = f"{token}.evil.test"
    stream = wire.to_proxy()
    stream.sendall(
        f"CONNECT {host}:80 HTTP/1.1\r\nHost: proxy\r\n\r\n"
        f"GET /x HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    )
    head, rest = wire.head_of(stream)
    said, _ = wire.summary(head)
    return wire.verdict(wire.answers(wire.Ahead(stream, rest), 1)) if said == "200" else said


def rebound(token):
    """A name whose address changes after the first look."""
    for _ in range(3):
        said = wire.fetch(wire.tunnel(f"{token}.rebind.test:80"), token, f"{token}.rebind.test")
    return said


def named(answer):
    return f"{{token}}.{answer}.named.test:80"


ATTEMPTS = [
    Attempt(
        "connect-unlisted",
        "CONNECT to a name that no rule lists",
        plain("{token}.evil.test:80"),
        UNLISTED,
        ruled=True,
    ),
    Attempt(
        "connect-unlisted-tls",
        "CONNECT to such a name, for TLS",
        secure("{token}.evil.test:443", "{token}.evil.test"),
        UNLISTED,
        ruled=True,
    ),
    Attempt(
        "connect-address",
        "CONNECT to an address",
        plain(f"{addresses.EVIL}:80"),
        UNLISTED,
        ruled=True,
    ),
    Attempt(
        "connect-address-of-allowed",
        "CONNECT to the address of an allowed name",
        plain(f"{addresses.GOOD}:80"),
        UNLISTED,
        ruled=True,
    ),
    Attempt(
        "connect-address-ipv6",
        "CONNECT to an IPv6 address",
        plain(f"[{addresses.EVIL6}]:80"),
        UNLISTED,
        ruled=True,
        needs="ipv6",
    ),
    Attempt(
        "connect-mapped",
        "CONNECT to an IPv4 address in the clothes of IPv6",
        plain(f"[::ffff:{addresses.EVIL}]:80"),
        UNLISTED,
        ruled=True,
        needs="ipv6",
    ),
    Attempt(
        "connect-ssh",
        "CONNECT to port 22 of an allowed host",
        talking("good.test:22"),
        UNLISTED,
        ruled=True,
    ),
    Attempt(
        "connect-smtp",
        "CONNECT to port 25 of an allowed host",
        talking("good.test:25"),
        UNLISTED,
        ruled=True,
    ),
    Attempt(
        "connect-ftp",
        "CONNECT to port 21 of an allowed host",
        talking("good.test:21"),
        UNLISTED,
        ruled=True,
    ),
    Attempt(
        "connect-port",
        "CONNECT to another port of an allowed host",
        plain("good.test:8080"),
        UNLISTED,
        ruled=True,
    ),
    Attempt(
        "connect-dns",
        "CONNECT to a name server",
        plain(f"{addresses.RESOLVER}:443", use=ask_over_https),
        UNLISTED,
        ruled=True,
    ),
    Attempt(
        "connect-private",
        "CONNECT to a private address",
        plain(f"{addresses.PRIVATE[0]}:80"),
        "403 internal",
        ruled=True,
    ),
    Attempt(
        "connect-carrier",
        "CONNECT to a carrier's shared address",
        plain(f"{addresses.PRIVATE[3]}:80"),
        "403 internal",
        ruled=True,
    ),
    Attempt(
        "connect-unique-local",
        "CONNECT to a unique local address",
        plain(f"[{addresses.UNIQUE_LOCAL}]:80"),
        "403 internal",
        ruled=True,
        needs="ipv6",
    ),
    Attempt(
        "connect-metadata",
        "CONNECT to the metadata service",
        plain(f"{addresses.METADATA}:80"),
        "403 internal",
        ruled=True,
    ),
    Attempt(
        "connect-metadata-ipv6",
        "CONNECT to the metadata service's IPv6 address",
        plain(f"[{addresses.METADATA6}]:80"),
        "403 internal",
        ruled=True,
        needs="ipv6",
    ),
    Attempt(
        "connect-gateway",
        "CONNECT to the host at its own address",
        plain(f"{addresses.HOST}:80"),
        UNLISTED,
        ruled=True,
    ),
    Attempt(
        "connect-loopback",
        "CONNECT to the host's loopback address",
        plain("127.0.0.1:80"),
        "403 internal",
        ruled=True,
    ),
    Attempt(
        "connect-loopback-ipv6",
        "CONNECT to the host's IPv6 loopback address",
        plain("[::1]:80"),
        "403 internal",
        ruled=True,
        needs="ipv6",
    ),
    Attempt(
        "connect-localhost",
        "CONNECT to the host by the name localhost",
        plain("localhost:80"),
        "403 (internal|unlisted)",
    ),
    Attempt(
        "connect-unspecified",
        "CONNECT to no address, which is the host's own",
        plain("0.0.0.0:80"),
        "403 internal",
    ),
    Attempt(
        "connect-unspecified-ipv6",
        "CONNECT to no IPv6 address",
        plain("[::]:80"),
        "403 internal",
        needs="ipv6",
    ),
    Attempt(
        "connect-proxy",
        "CONNECT to the proxy itself, and from there on",
        second_connect,
        "403 internal",
    ),
    Attempt(
        "named-private",
        "CONNECT to an allowed name that has a private address",
        plain(named("a-10-9-8-7")),
        "403 internal",
        NOT_INSIDE,
        ruled=True,
    ),
    Attempt(
        "named-metadata",
        "CONNECT to an allowed name that has the metadata service's address",
        plain(named("a-169-254-169-254")),
        "403 internal",
        NOT_INSIDE,
        ruled=True,
    ),
    Attempt(
        "named-metadata-ipv6",
        "CONNECT to an allowed name that has its IPv6 address",
        plain(named("aaaa-fd00-ec2--254")),
        "403 internal",
        NOT_INSIDE,
        ruled=True,
        needs="ipv6",
    ),
    Attempt(
        "named-unique-local",
        "CONNECT to an allowed name that has a unique local address",
        plain(named("aaaa-fd12-3456--7")),
        "403 internal",
        NOT_INSIDE,
        ruled=True,
        needs="ipv6",
    ),
    Attempt(
        "named-loopback",
        "CONNECT to an allowed name that has the host's loopback address",
        plain(named("a-127-0-0-1")),
        "403 internal",
        NOT_INSIDE,
        ruled=True,
    ),
    Attempt(
        "named-mapped",
        "CONNECT to an allowed name whose IPv6 address is a private one of IPv4",
        plain(named("aaaa---ffff-a09-807")),
        "403 internal",
        NOT_INSIDE,
        needs="ipv6",
    ),
    Attempt(
        "named-unspecified",
        "CONNECT to an allowed name that has no address of anybody's",
        plain(named("a-0-0-0-0")),
        "403 internal",
        NOT_INSIDE,
    ),
    Attempt(
        "named-in-hosts",
        "CONNECT to an allowed name that is private in the host's own list",
        plain("intranet.named.test:80"),
        "403 internal",
        NOT_INSIDE,
        ruled=True,
    ),
    Attempt(
        "named-alias",
        "CONNECT to an allowed name that is another's alias, which is private",
        plain("{token}.a-10-9-8-7.alias.test:80"),
        "403 internal",
        NOT_INSIDE,
        ruled=True,
    ),
    Attempt(
        "named-barred",
        "CONNECT to an allowed name that has a denied address",
        plain(named("a-11-22-33-77")),
        "403 listed",
        NOT_INSIDE,
        ruled=True,
    ),
    Attempt(
        "named-fallback",
        "CONNECT to a name whose public address is unreachable and whose other is private",
        plain("{token}.a-11-22-33-99.a-10-9-8-7.named.test:80"),
        "502",
        NOT_INSIDE,
        ruled=True,
    ),
    Attempt(
        "named-fallback-ipv6",
        "CONNECT to a name whose public address is unreachable, with a unique local one",
        plain("{token}.a-11-22-33-99.aaaa-fd12-3456--7.named.test:80"),
        "502",
        NOT_INSIDE,
        ruled=True,
        needs="ipv6",
    ),
    Attempt(
        "rebinding",
        "CONNECT to a name that is public at first and private later",
        rebound,
        "403 internal",
        NOT_INSIDE,
        ruled=True,
    ),
    Attempt(
        "sni-other",
        "ask for another host in the TLS of a tunnel",
        secure("good.test:443", "{token}.evil.test"),
        ALERT,
    ),
    Attempt("sni-in-pieces", "ask for another host, a byte at a time", in_pieces, ALERT),
    Attempt("sni-in-records", "ask for another host, in two records", in_records, ALERT),
    Attempt(
        "sni-after-alert",
        "ask for another host in a hello that follows a warning alert",
        behind(WARNING),
        ALERT,
    ),
    Attempt(
        "sni-after-alerts",
        "ask for another host in a hello that follows four warning alerts",
        behind(WARNING * 4),
        ALERT,
    ),
    Attempt(
        "sni-after-empty-record",
        "ask for another host in a hello that follows an empty record",
        behind(EMPTY),
        ALERT,
    ),
    Attempt(
        "sni-after-retry",
        "ask for another host in the second hello of a TLS handshake",
        after_a_retry(waits=True),
        ALERT,
    ),
    Attempt(
        "sni-after-retry-early",
        "ask for another host in a second hello that is sent with the first",
        after_a_retry(waits=False),
        ALERT,
    ),
    Attempt(
        "sni-after-starttls",
        "ask for another host in a hello after STARTTLS",
        after_starttls(),
        STARTTLS_ENDS,
    ),
    Attempt(
        "sni-after-starttls-empty-record",
        "ask for another host after STARTTLS and an empty record",
        after_starttls(EMPTY),
        STARTTLS_ENDS,
    ),
    Attempt(
        "sni-with-starttls",
        "ask for another host in a hello that is sent with STARTTLS",
        after_starttls(waits=False),
        STARTTLS_ENDS,
    ),
    Attempt(
        "sni-none",
        "ask for no host in the TLS of a tunnel",
        secure("{token}.wild.test:443", None),
        ALERT,
        "good evil",
    ),
    Attempt(
        "host-in-tunnel",
        "ask for another host in a plain request in a tunnel",
        plain("good.test:80", "{token}.evil.test"),
        OTHER_NAME,
    ),
    Attempt(
        "host-in-tunnel-later",
        "ask for another host in a tunnel's second request",
        first_words,
        f"200, {OTHER_NAME}",
    ),
    Attempt(
        "host-in-long-line",
        "ask for another host in a tunnel, behind a first line of 9 KiB",
        opened_by("GET /" + "x" * 9216),
        OTHER_NAME,
    ),
    Attempt(
        "host-after-blank-line",
        "ask for another host in a tunnel that begins with a blank line",
        opened_by("\r\nGET /"),
        OTHER_NAME,
    ),
    Attempt(
        "host-after-space",
        "ask for another host in a tunnel that begins with a space",
        opened_by(" GET /"),
        "400 malformed",
    ),
    Attempt(
        "host-after-control",
        "ask for another host in a tunnel that begins with a control byte",
        opened_by("\x0bGET /"),
        "400 malformed",
    ),
    Attempt(
        "host-after-nul",
        "ask for another host in a tunnel that begins with a NUL",
        opened_by("\0GET /"),
        "400 malformed",
    ),
    Attempt(
        "host-after-sign",
        "ask for another host in a tunnel, with a method that begins with a sign",
        opened_by("@GET /"),
        "400 malformed",
    ),
    Attempt(
        "host-after-old-request",
        "ask for another host in a tunnel, behind a request without a version",
        lambda token: behind_old_request("x", token),
        "400 malformed",
    ),
    Attempt(
        "host-lower-case",
        "ask for another host in a tunnel, with a method in lower case",
        opened_by("get /"),
        OTHER_NAME,
    ),
    Attempt(
        "http2-in-tunnel", "ask for another host in HTTP/2 in a tunnel", http2, "400 malformed"
    ),
    Attempt(
        "dns-over-allowed",
        "ask for a name in the TLS of a tunnel to a host that is no name server",
        lambda token: wire.fetch(
            wire.secured(wire.tunnel("good.test:443"), f"{token}.dns.test"), "dns-query"
        ),
        ALERT,
    ),
    Attempt(
        "connect-after-refusal",
        "ask again on a connection that was refused",
        after_a_refusal,
        UNLISTED,
        ruled=True,
    ),
    Attempt(
        "connect-early-words",
        "say something before a tunnel is there",
        before_the_answer,
        UNLISTED,
        ruled=True,
    ),
    Attempt(
        "connect-body",
        "CONNECT with a body",
        lambda token: wire.exchange(
            f"CONNECT good.test:80 HTTP/1.1\r\nHost: proxy\r\nContent-Length: 30\r\n\r\n"
            f"GET /{token} HTTP/1.1\r\nHost: good.test\r\n\r\n",
            2,
        ),
        "400 malformed, closed",
    ),
]
