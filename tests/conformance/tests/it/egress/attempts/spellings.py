"""The same hosts, spelled so that a check and a connection may read them differently."""

import addresses
from attempt import Attempt
from tunnels import UNLISTED, plain

MALFORMED = "400 malformed"
# What is refused in whichever way: it cannot be read, or it is read for what it is.
EITHER = "400 malformed|403 (unlisted|internal)"
SECRET = "{token}.secret.mixed.test:80"
LISTED = "403 listed"


def spelled(name, what, authority, denied, **rest):
    return Attempt(name, what, plain(authority), denied, **rest)


def metadata(name, what, spelling, **rest):
    return spelled(
        f"metadata-{name}",
        f"the metadata service's address, {what}",
        f"{spelling}:80",
        f"403 internal|{MALFORMED}",
        **rest,
    )


ATTEMPTS = [
    metadata("integer", "as one number", "2852039166"),
    metadata("hexadecimal", "as one hexadecimal number", "0xA9FEA9FE"),
    metadata("octal", "in octal", "0251.0376.0251.0376"),
    metadata("hexadecimal-parts", "in hexadecimal parts", "0xa9.0xfe.0xa9.0xfe"),
    metadata("short", "in two parts", "169.16689662"),
    metadata("three-parts", "in three parts", "169.254.43518"),
    metadata("mixed", "in parts of every kind", "0xa9.254.0251.254"),
    metadata("mapped", "in IPv6's clothes", f"[::ffff:{addresses.METADATA}]", needs="ipv6"),
    metadata(
        "mapped-hexadecimal",
        "in IPv6's clothes and hexadecimal",
        "[::ffff:a9fe:a9fe]",
        needs="ipv6",
    ),
    metadata("translated", "for a NAT64", "[64:ff9b::a9fe:a9fe]"),
    metadata("escaped", "with percent signs", "%31%36%39.254.169.254"),
    spelled(
        "loopback-integer",
        "the host's loopback address as one number",
        "2130706433:80",
        f"403 internal|{MALFORMED}",
    ),
    spelled(
        "loopback-short",
        "the host's loopback address in two parts",
        "127.1:80",
        f"403 internal|{MALFORMED}",
    ),
    spelled(
        "private-octal",
        "a private address in octal",
        "012.011.010.07:80",
        f"403 internal|{MALFORMED}",
    ),
    spelled(
        "address-integer",
        "a public address as one number",
        "185999682:80",
        f"{UNLISTED}|{MALFORMED}",
    ),
    spelled(
        "trailing-dot",
        "an unlisted name with a dot at its end",
        "{token}.evil.test.:80",
        UNLISTED,
        ruled=True,
    ),
    spelled("deny-over-allow", "a name that both lists name", SECRET, LISTED, ruled=True),
    spelled(
        "deny-trailing-dot",
        "a denied name with a dot at its end",
        "{token}.secret.mixed.test.:80",
        LISTED,
        ruled=True,
    ),
    spelled(
        "deny-case", "a denied name in capitals", "{token}.SECRET.Mixed.TEST:80", LISTED, ruled=True
    ),
    spelled(
        "deny-full-width",
        "a denied name in full-width letters",
        "{token}.ｓｅｃｒｅｔ.mixed.test:80",
        f"{LISTED}|{EITHER}",
    ),
    spelled(
        "deny-ideographic-dot",
        "a denied name with ideographic dots",
        "{token}。secret。mixed。test:80",
        f"{LISTED}|{EITHER}",
    ),
    spelled(
        "deny-soft-hyphen",
        "a denied name with a letter that nobody sees",
        "{token}.sec\u00adret.mixed.test:80",
        f"{LISTED}|{EITHER}",
    ),
    spelled(
        "homograph",
        "an allowed name with a letter of another alphabet",
        "g\u043eod.test:80",
        EITHER,
    ),
    spelled(
        "homograph-encoded",
        "the same, as it is encoded",
        "xn--god-fdd.test:80",
        UNLISTED,
        ruled=True,
    ),
    spelled(
        "subdomain", "a name below an allowed one", "{token}.good.test:80", UNLISTED, ruled=True
    ),
    spelled(
        "wildcard-parent", "the name that a wildcard is below", "wild.test:80", UNLISTED, ruled=True
    ),
    spelled(
        "wildcard-ending",
        "a name that ends like a wildcard's, without a dot",
        "evilwild.test:80",
        UNLISTED,
        ruled=True,
    ),
    spelled(
        "wildcard-beginning",
        "a wildcard's name with more after it",
        "{token}.wild.test.evil.test:80",
        UNLISTED,
        ruled=True,
    ),
    spelled(
        "allowed-beginning",
        "an allowed name with more after it",
        "good.test.{token}.evil.test:80",
        UNLISTED,
        ruled=True,
    ),
    spelled(
        "allowed-ending",
        "a name that ends like an allowed one",
        "evilgood.test:80",
        UNLISTED,
        ruled=True,
    ),
    spelled(
        "allowed-hyphen",
        "a name that ends like an allowed one after a hyphen",
        "evil-good.test:80",
        UNLISTED,
        ruled=True,
    ),
    spelled(
        "userinfo",
        "an allowed name as the user of another host",
        "good.test@{token}.evil.test:80",
        MALFORMED,
    ),
    spelled(
        "userinfo-port",
        "an allowed name and a port as the user of another host",
        "good.test:443@{token}.evil.test:80",
        MALFORMED,
    ),
    spelled("escaped-dot", "a name with an escaped dot", "{token}%2eevil.test:80", EITHER),
    spelled(
        "escaped-nul",
        "an unlisted name that ends at an escaped NUL, in front of an allowed one",
        "{token}.evil.test%00.wild.test:80",
        EITHER,
    ),
]
