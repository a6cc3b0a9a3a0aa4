"""Programs that know no proxy, and the hosts that they want to reach.

`transparent.py serve` prints a port and serves it with TCP and UDP on every address. Each other
word is one attempt, which prints its outcome on one line.
"""

import fcntl
import hashlib
import os
import socket
import struct
import sys
import threading
import time

BLOCK = bytes(range(256)) * 4096
BLOCKS = 32


def serve_one(client):
    with client:
        wish = client.recv(1)
        if wish == b"?":
            client.sendall(b"hello")
        elif wish == b"<":
            for _ in range(BLOCKS):
                client.sendall(BLOCK)
        elif wish == b">":
            digest = hashlib.sha256()
            while part := client.recv(1 << 18):
                digest.update(part)
            client.sendall(digest.digest())  # the other half is still open


def echo(datagrams):
    while True:
        message, sender = datagrams.recvfrom(2048)
        datagrams.sendto(message, sender)


def serve():
    listener = socket.create_server(("0.0.0.0", 0), backlog=128)
    port = listener.getsockname()[1]
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("0.0.0.0", port))
    threading.Thread(target=echo, args=[datagrams], daemon=True).start()
    print(port, flush=True)
    while True:
        client, _ = listener.accept()
        threading.Thread(target=serve_one, args=[client], daemon=True).start()


def everything(client):
    parts = []
    while part := client.recv(1 << 18):
        parts.append(part)
    return b"".join(parts)


def connect(host, port):
    return socket.create_connection((host, int(port)), timeout=20)


def tcp(host, port):
    with connect(host, port) as client:
        client.sendall(b"?")
        return everything(client).decode()


def name(host):
    family, _, _, _, (address, _) = socket.getaddrinfo(host, 80, type=socket.SOCK_STREAM)[0]
    return address


def udp(host, port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(20)
        client.connect((host, int(port)))
        client.send(b"hello")
        return client.recv(100).decode()


def carry(host, port):
    expected = hashlib.sha256(BLOCK * BLOCKS).digest()
    with connect(host, port) as client:
        client.sendall(b"<")
        down = hashlib.sha256(everything(client)).digest()
    with connect(host, port) as client:
        client.sendall(b">")
        for _ in range(BLOCKS):
            client.sendall(BLOCK)
        client.shutdown(socket.SHUT_WR)
        up = everything(client)
    return f"down {down == expected}, up {up == expected}"


def many(host, port):
    clients = [connect(host, port) for _ in range(100)]
    for client in clients:
        client.sendall(b"?")
    return len([client for client in clients if everything(client) == b"hello"])


def local():
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=lambda: serve_one(listener.accept()[0]), daemon=True).start()
    return tcp("127.0.0.1", listener.getsockname()[1])


def six(address):
    start = time.monotonic()
    try:
        with socket.create_connection((address, 443), timeout=20):
            return "connected"
    except OSError as error:
        return (
            f"{os.strerror(error.errno)}, {'at once' if time.monotonic() - start < 2 else 'late'}"
        )


def tunnel():
    """A device of its own would be a way round whoever holds the other end of the first."""
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(
        device, 0x400454CA, struct.pack("16sH22x", b"tun9", 0x1001)
    )  # TUNSETIFF, IFF_TUN | IFF_NO_PI
    return "made"


def attempt(words):
    what, *arguments = words.split(",")
    start = time.monotonic()
    try:
        came = globals()[what](*arguments)
    except OSError as error:
        came = type(error).__name__
        if time.monotonic() - start > 10:
            came += ", late"
    print(f"{what}: {came}", flush=True)


if sys.argv[1:] == ["serve"]:
    serve()
for words in sys.argv[1:]:
    attempt(words)
