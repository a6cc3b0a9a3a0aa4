"""Servers of the world: they listen on every address, log all that they receive, and answer."""

import contextlib
import http.server
import pathlib
import re
import socket
import ssl
import struct
import subprocess
import sys
import threading

import addresses
from arrival_log import Journal
from name_server import Names

PLAIN, SECURE = (80, 8080), (443, 853)
TALKING = {21: b"220 ftp\r\n", 22: b"SSH-2.0-test\r\n", 25: b"220 smtp\r\n", 587: b"220 smtp\r\n"}
# A request wherever one may begin: no reading of what was sent is too careless for this server.
REQUEST = re.compile(rb"[A-Za-z]+ (\S+) HTTP/1\.[01]\r?\n((?:[^\r\n]+\r?\n)*)\r?\n")
HTTP2, SETTINGS = b"PRI * HTTP/2.0", bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
PATIENCE = 30


def listener(port):
    try:
        return socket.create_server(
            ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=256
        )
    except OSError:  # a machine without IPv6
        return socket.create_server(("", port), backlog=256)


def in_a_thread(function, *arguments):
    threading.Thread(target=function, args=arguments, daemon=True).start()


def accept_all(port, serve):
    server = listener(port)

    def loop():
        while True:
            connection, _ = server.accept()
            connection.settimeout(PATIENCE)
            address = connection.getsockname()[0]
            in_a_thread(attended, serve, connection, addresses.service_at(address), port)

    in_a_thread(loop)


def attended(serve, connection, service, port):
    # Clients of this world break off as they like.
    with contextlib.suppress(OSError, ValueError), connection:
        serve(connection, service, port)


def answer_requests(stream, record):
    """Answers every request that can be found in what comes."""
    received, answered = b"", 0
    while data := stream.recv(65536):
        # With the end of what came before: nothing is missed because it came in two pieces.
        record(received[-64:] + data)
        received += data
        if received.startswith(HTTP2):
            stream.sendall(SETTINGS)
            continue
        for path, headers in REQUEST.findall(received)[answered:]:
            answered += 1
            stream.sendall(response(path, headers.lower()))


def response(path, headers):
    if b"upgrade: websocket" in headers:
        return (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n"
        )
    _, redirects, target = path.partition(b"/to/")
    if redirects:
        location = bytes.fromhex(target.decode())
        return b"HTTP/1.1 302 Found\r\nLocation: " + location + b"\r\nContent-Length: 0\r\n\r\n"
    return b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def read_line(stream):
    line = b""
    while not line.endswith(b"\n") and (byte := stream.recv(1)):
        line += byte
    return line


def skip_alerts(connection):
    """Reads the alerts before a TLS handshake, which some libraries skip and others refuse."""
    while connection.recv(1, socket.MSG_PEEK) == b"\x15":
        head = connection.recv(5, socket.MSG_WAITALL)
        connection.recv(int.from_bytes(head[3:], "big"), socket.MSG_WAITALL)


class Files(http.server.SimpleHTTPRequestHandler):
    """Serves files to real clients; `@ORIGIN@` in one is where it came from."""

    protocol_version = "HTTP/1.1"

    def __init__(self, stream, scheme, record, directory):
        self.scheme, self.record = scheme, record
        super().__init__(stream, None, None, directory=directory)

    def do_GET(self):
        host = self.headers.get("Host", "")
        self.record(f"{self.requestline} {host}")
        path = pathlib.Path(self.translate_path(self.path))
        if path.is_dir():
            path = path / "index.html"
        if not path.is_file():
            return self.send_error(404)
        content = path.read_bytes().replace(b"@ORIGIN@", f"{self.scheme}://{host}".encode())
        self.send_response(200)
        self.send_header("Content-Type", self.guess_type(str(path)))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_HEAD = do_GET

    def address_string(self):
        return "a client"

    def log_message(self, *_):
        pass


class World:
    def __init__(self, directory):
        self.directory = directory
        self.journal = Journal(directory / "arrivals")
        self.names = Names()
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(directory / "world.pem", directory / "world.key")
        self.tls.sni_callback = lambda _stream, name, _context: self.handshake.record(name or "")
        self.handshake = threading.local()

    def serve(self, connection, service, port):
        record = lambda data: self.journal.record(service, port, data)
        if port in TALKING:
            connection.sendall(TALKING[port])
            # One line at a time: whatever follows STARTTLS is the beginning of TLS.
            while line := read_line(connection):
                record(line)
                connection.sendall(b"250 ok\r\n")
                if line.upper() == b"STARTTLS\r\n":
                    self.handshake.record = record
                    connection = self.tls.wrap_socket(connection, server_side=True)
            return
        if port in SECURE:
            # The name that a client wants is looked for in its first message, and told of by TLS.
            record(connection.recv(65536, socket.MSG_PEEK))
            skip_alerts(connection)
            self.handshake.record = record
            connection = self.tls.wrap_socket(connection, server_side=True)
        if service == "files":
            scheme = "https" if port in SECURE else "http"
            Files(connection, scheme, record, self.directory / "files")
        elif port in (53, 853):
            self.answer_queries(connection, record)
        else:
            answer_requests(connection, record)

    def answer_queries(self, stream, record):
        received = b""
        while data := stream.recv(65536):
            received += data
            while len(received) >= 2 and len(received) >= 2 + (
                length := struct.unpack("!H", received[:2])[0]
            ):
                answer, name = self.names.answer(received[2 : 2 + length])
                received = received[2 + length :]
                record(name)
                stream.sendall(struct.pack("!H", len(answer)) + answer)

    def answer_datagrams(self, address, port):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        socket_ = socket.socket(family, socket.SOCK_DGRAM)
        socket_.bind((address, port))
        service = addresses.service_at(address)

        def loop():
            while True:
                data, sender = socket_.recvfrom(65536)
                answer, said = (self.names.answer(data)) if port == 53 else (data, data)
                self.journal.record(service, port, said)
                socket_.sendto(answer, sender)

        in_a_thread(loop)


def configure(has_ipv6):
    lines = ["link set lo up", "link set world up"]
    for address in addresses.of_the_world():
        prefix = f"{address}/64 dev world nodad" if ":" in address else f"{address}/24 dev world"
        lines.append(f"addr add {prefix}")
    lines = [line for line in lines if has_ipv6 or "nodad" not in line]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)


if __name__ == "__main__":
    print("here", flush=True)
    sys.stdin.readline()  # the link to the host is there
    has_ipv6 = pathlib.Path("/proc/net/if_inet6").exists()
    configure(has_ipv6)
    world = World(pathlib.Path(sys.argv[1]))
    for port in (53, *PLAIN, *SECURE, *TALKING):
        accept_all(port, world.serve)
    sixes = [(addresses.RESOLVER6, 53), (addresses.EVIL6, 443)] if has_ipv6 else []
    for address, port in [
        (addresses.RESOLVER, 53),
        (addresses.EVIL, 443),
        (addresses.EVIL, 53),
        *sixes,
    ]:
        world.answer_datagrams(address, port)
    print("ready", flush=True)
    sys.stdin.read()  # until the host ends
