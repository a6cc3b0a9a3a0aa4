"""The protocols of the attempts. No function here refuses the bytes that it is told to send."""

import socket
import ssl

from attempt import THROUGH, Denied, proxy_address


def to_proxy():
    return socket.create_connection(proxy_address())


def more(stream, received=b""):
    data = stream.recv(65536)
    if not data:
        raise EOFError
    return received + data


def head_of(stream, received=b""):
    """The head of an answer, and what came after it."""
    while b"\r\n\r\n" not in received:
        received = more(stream, received)
    head, _, rest = received.partition(b"\r\n\r\n")
    return head.decode("latin-1"), rest


def summary(head):
    """The status, and the reason that a proxy gave for it."""
    lines = head.split("\r\n")
    headers = {
        name.lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines[1:])
    }
    words = [lines[0].split()[1], headers.get("x-ringfence-denied", "")]
    return " ".join(word for word in words if word), int(headers.get("content-length", 0))


def answers(stream, count):
    """What `count` requests were answered, as far as they were, in order."""
    received, found = b"", []
    try:
        while len(found) < count:
            head, received = head_of(stream, received)
            said, length = summary(head)
            while len(received) < length:
                received = more(stream, received)
            received = received[length:]
            found.append(said)
    except EOFError:
        found.append("closed")
    except TimeoutError:
        found.append("silence")
    except ConnectionError:
        found.append("reset")
    return found


def verdict(found, good=("200", "101")):
    return THROUGH if all(answer in good for answer in found) else ", ".join(found)


def fetch(stream, token, host="good.test"):
    """Gets something from whoever is at the other end."""
    stream.sendall(f"GET /{token} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    return verdict(answers(stream, 1))


def talk(stream, token):
    """Speaks to a server that speaks first."""
    more(stream)
    stream.sendall(f"HELO {token}\r\n".encode())
    more(stream)
    return THROUGH


def secured(stream, name):
    """TLS that believes everybody."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(stream, server_hostname=name)


def tunnel(authority, headers=""):
    """A connection through the proxy to wherever it is asked for."""
    stream = to_proxy()
    stream.sendall(
        b"CONNECT "
        + octets(authority)
        + b" HTTP/1.1\r\nHost: proxy\r\n"
        + octets(headers)
        + b"\r\n"
    )
    head, rest = head_of(stream)
    said, _ = summary(head)
    if said != "200":
        raise Denied(said)
    assert not rest or rest.startswith((b"SSH", b"2")), (
        "nobody but a server that speaks first has said anything"
    )
    return Ahead(stream, rest) if rest else stream


class Ahead:
    """A stream of which something has been read already."""

    def __init__(self, stream, read):
        self.stream, self.read = stream, read

    def recv(self, length):
        read, self.read = self.read, b""
        return read or self.stream.recv(length)

    def sendall(self, data):
        self.stream.sendall(data)


def exchange(request, count=1):
    """Sends bytes to the proxy, and says what it and others made of them."""
    stream = to_proxy()
    try:
        stream.sendall(octets(request))
    except ConnectionError:
        pass  # it has heard enough; what it says is there to be read
    return verdict(answers(stream, count))


def octets(text):
    return text if isinstance(text, bytes) else text.encode("utf-8")
