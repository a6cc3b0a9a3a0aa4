"""Addresses of the simulated network.

Most addresses look public, so that only a rule can speak against them.
"""

import ipaddress

HOST, HOST6 = "11.22.33.1", "2a0b:c0de::1"
GOOD, GOOD6 = "11.22.33.10", "2a0b:c0de::10"
FILES = "11.22.33.20"
RESOLVER, RESOLVER6 = "11.22.33.53", "2a0b:c0de::53"
EVIL, EVIL6 = "11.22.33.66", "2a0b:c0de::66"
# Public, and in no rule but one of `deny`.
BARRED = "11.22.33.77"
# Public, and out of reach.
VACANT = "11.22.33.99"
METADATA, METADATA6 = "169.254.169.254", "fd00:ec2::254"
PRIVATE = ["10.9.8.7", "172.20.7.7", "192.168.7.7", "100.64.7.7"]
UNIQUE_LOCAL = "fd12:3456::7"

# Where the host listens for the attempts, besides its port 80.
CARELESS_PROXY = ("127.0.0.1", 3128)
ABSTRACT_SOCKET = "\0ringfence-conformance-host"

_SERVICES = {
    "good": [GOOD, GOOD6],
    "files": [FILES],
    "names": [RESOLVER, RESOLVER6],
    "evil": [EVIL, EVIL6, BARRED],
    "private": [METADATA, METADATA6, *PRIVATE, UNIQUE_LOCAL],
}


def of_the_world():
    """Every address of the world's servers."""
    return [address for addresses in _SERVICES.values() for address in addresses]


def service_at(address):
    """Who is there, in one word; whatever the world does not have is the host."""
    address = ipaddress.ip_address(address.partition("%")[0])
    address = str(getattr(address, "ipv4_mapped", None) or address)
    return next(
        (service for service, addresses in _SERVICES.items() if address in addresses), "host"
    )
