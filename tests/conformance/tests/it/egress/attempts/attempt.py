"""Attempts to get around the rules, and their outcomes.

An attempt sends its own token. The attempt got through if it reports success and the token arrived
at a server. The attempt was denied if it reports the denial and the token arrived at no server that
the rules forbid.
"""

import dataclasses
import errno
import os
import socket
import ssl
import urllib.parse
from typing import Callable

THROUGH = "through"
# Servers of the world, and the host itself.
ANYWHERE = "good evil names private host"


@dataclasses.dataclass(frozen=True)
class Attempt:
    name: str
    what: str
    # Makes it, with a token; says THROUGH, or what stood in its way.
    make: Callable[[str], str]
    # What must stand in its way, as a regular expression.
    denied: str
    # Where the token must not arrive; nowhere, if the attempt is not about a server.
    nowhere: str = ANYWHERE
    # Whether the policy that names everything lets it through: then it is a rule that denied it.
    ruled: bool = False
    needs: str = ""


class Denied(Exception):
    """Something stood in the way, which it says."""


def outcome(attempt, token):
    try:
        return attempt.make(token)
    except Denied as denied:
        return str(denied)
    except TimeoutError:
        return "silence"
    except ssl.SSLError as error:
        return f"TLS {error.reason}"
    except EOFError:
        return "closed"
    except socket.gaierror as error:
        return next(
            name
            for name in dir(socket)
            if name.startswith("EAI_") and getattr(socket, name) == error.errno
        )
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))


def proxy_address():
    """The proxy that programs are told of."""
    address = urllib.parse.urlsplit(os.environ.get("HTTP_PROXY", "http://127.0.0.1:1"))
    return address.hostname, address.port
