"""Makes every attempt, and says on a line each what came of it."""

import json
import pathlib
import re
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

import around
import plain
import socks
import spellings
import tunnels
from attempt import outcome

ATTEMPTS = [
    *around.ATTEMPTS,
    *tunnels.ATTEMPTS,
    *spellings.ATTEMPTS,
    *plain.ATTEMPTS,
    *socks.ATTEMPTS,
]
AT_ONCE = 16
PATIENCE = 10


def made(pair):
    attempt, token = pair
    has_ipv6 = pathlib.Path("/proc/net/if_inet6").exists()
    return outcome(attempt, token) if has_ipv6 or attempt.needs != "ipv6" else "not made"


def main(prefix, *words):
    assert len({attempt.name for attempt in ATTEMPTS}) == len(ATTEMPTS), (
        "two attempts have one name"
    )
    socket.setdefaulttimeout(PATIENCE)
    numbered = [(attempt, f"{prefix}{number:03}") for number, attempt in enumerate(ATTEMPTS)]
    pairs = [
        (attempt, token) for attempt, token in numbered if attempt.ruled or "ruled" not in words
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for (attempt, token), observed in zip(pairs, pool.map(made, pairs)):
            print(
                json.dumps(
                    {
                        "name": attempt.name,
                        "what": attempt.what,
                        "token": token,
                        "nowhere": attempt.nowhere.split(),
                        "expected": attempt.denied,
                        "observed": observed,
                        "is_expected": bool(re.fullmatch(attempt.denied, observed)),
                    }
                )
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
