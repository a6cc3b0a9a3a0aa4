"""A proxy with every known mistake, as the control for attempts to get around our proxy.

The proxy believes the last of several statements, reads addresses as libc does, ends names at a
NUL, resolves a name once to check it and once more to connect, and forwards all bytes after the
first request without a check.
"""

import contextlib
import re
import socket
import struct
import threading
import urllib.parse

PATIENCE = 30


def in_a_thread(function, *arguments):
    threading.Thread(target=function, args=arguments, daemon=True).start()


def connect(host, port):
    host = urllib.parse.unquote(host).partition("\0")[0].rpartition("@")[2].strip("[]")
    if not host:
        return socket.create_connection(("0.0.0.0", port), PATIENCE)
    # NAT64: somebody on the way translates.
    if host.startswith("64:ff9b::"):
        host = socket.inet_ntoa(socket.inet_pton(socket.AF_INET6, host)[-4:])
    with contextlib.suppress(OSError):
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)  # here it would be checked
    with contextlib.suppress(UnicodeError):
        host = host.encode("ascii").decode()
        return socket.create_connection((host, port), PATIENCE)
    return socket.create_connection((host.encode("idna").decode(), port), PATIENCE)


def splice(one, other):
    def carry(source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    in_a_thread(carry, one, other)
    carry(other, one)


def exactly(stream, length):
    data = b""
    while len(data) < length:
        more = stream.recv(length - len(data))
        if not more:
            raise OSError("closed")
        data += more
    return data


def serve_http(client):
    head = b""
    while not re.search(rb"\n\r?\n", head):
        more = client.recv(65536)
        if not more:
            return
        head += more
    method, target = head.split(b" ", 2)[:2]
    target = target.decode("utf-8", "surrogateescape")
    if method.upper() == b"CONNECT":
        host, _, port = target.rpartition("@")[2].rpartition(":")
        server = connect(host, int(port))
        client.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
        server.sendall(re.split(rb"\n\r?\n", head, maxsplit=1)[1])
    else:
        scheme, _, rest = target.rpartition("://")
        told = re.search(rb"(?i)\nx-forwarded-host: (\S+)", head) or (
            not scheme and re.search(rb"(?i)\nhost: (\S+)", head)
        )
        rest = told[1].decode() if told else rest
        host, _, port = re.split("[/?#]", rest)[0].rpartition("@")[2].partition(":")
        server = connect(host, int(port or {"ftp": 21}.get(scheme, 80)))
        server.sendall(head)
    with server:
        splice(client, server)


def serve_socks5(client):
    exactly(client, exactly(client, 1)[0])
    client.sendall(b"\5\0")
    _, command, _, kind = exactly(client, 4)
    match kind:
        case 1:
            host = socket.inet_ntoa(exactly(client, 4))
        case 4:
            host = socket.inet_ntop(socket.AF_INET6, exactly(client, 16))
        case _:
            host = exactly(client, exactly(client, 1)[0]).decode("utf-8", "surrogateescape")
    port = struct.unpack("!H", exactly(client, 2))[0]
    reply = lambda port: client.sendall(
        b"\5\0\0\1" + socket.inet_aton("127.0.0.1") + struct.pack("!H", port)
    )
    match command:
        case 1:
            with connect(host, port) as server:
                reply(0)
                splice(client, server)
        case 2:
            with socket.create_server(("127.0.0.1", 0)) as waiting:
                reply(waiting.getsockname()[1])
                client.recv(1)
        case 3:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as relay:
                relay.bind(("", 0))
                relay.settimeout(PATIENCE)
                reply(relay.getsockname()[1])
                data, sender = relay.recvfrom(65536)
                target = (socket.inet_ntoa(data[4:8]), struct.unpack("!H", data[8:10])[0])
                relay.sendto(data[10:], target)
                relay.sendto(data[:10] + relay.recv(65536), sender)


def serve_socks4(client):
    command, port, address = struct.unpack("!BH4s", exactly(client, 7))
    strings = []
    for _ in range(2 if address[:3] == b"\0\0\0" else 1):
        text = b""
        while (byte := exactly(client, 1)) != b"\0":
            text += byte
        strings.append(text.decode())
    host = strings[1] if len(strings) == 2 else socket.inet_ntoa(address)
    with connect(host, port) as server:
        client.sendall(b"\0\x5a" + bytes(6))
        splice(client, server)


def serve(client):
    with contextlib.suppress(OSError, ValueError, TypeError), client:
        client.settimeout(PATIENCE)
        first = client.recv(1, socket.MSG_PEEK)
        if first in (b"\5", b"\4"):
            client.recv(1)
            return serve_socks5(client) if first == b"\5" else serve_socks4(client)
        serve_http(client)


def listen(address):
    server = socket.create_server(address, backlog=256)

    def loop():
        while True:
            in_a_thread(serve, server.accept()[0])

    in_a_thread(loop)
