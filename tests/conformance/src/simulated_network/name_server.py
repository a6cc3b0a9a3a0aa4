"""The world's name server: it says what a name asks it to say."""

import ipaddress
import struct
import threading

from addresses import EVIL, FILES, GOOD, GOOD6, PRIVATE

A, CNAME, AAAA = 1, 5, 28
NAME = b"\xc0\x0c"


class Names:
    """Answers queries.

    An unknown name leads to `EVIL`, so that only a rule keeps a client from connecting there.
    """

    def __init__(self):
        self.lock = threading.Lock()
        self.asked = {}

    def answer(self, query):
        """The answer to a query, and the name in it."""
        name, kind, end = question(query)
        records = self.records(name, kind)
        flags = 0x8180
        head = query[:2] + struct.pack("!5H", flags, 1, len(records), 0, 0)
        return head + query[12:end] + b"".join(records), name

    def records(self, name, kind):
        labels = name.split(".")
        if labels[-2:] == ["alias", "test"] and kind in (A, AAAA):
            target = ".".join([*labels[:-2], "named", "test"])
            return [record(CNAME, encoded(target))] + self.records_of(encoded(target), target, kind)
        return self.records_of(NAME, name, kind)

    def records_of(self, owner, name, kind):
        found = [ipaddress.ip_address(address) for address in self.addresses(name, kind)]
        version = {A: 4, AAAA: 6}.get(kind)
        return [
            record(kind, address.packed, owner) for address in found if address.version == version
        ]

    def addresses(self, name, kind):
        labels = name.split(".")
        match labels[-2:]:
            case ["good", "test"]:
                return [GOOD6] if labels[0] == "six" else [GOOD] if len(labels) == 2 else [EVIL]
            case ["wild", "test"]:
                return [GOOD] if len(labels) > 2 else [EVIL]
            case ["client", "test"]:
                return [FILES]
            case ["named", "test"]:
                # x.a-10-9-8-7.aaaa-fd12-3456--7.named.test: the addresses stand in the name.
                spelled = [label.split("-", 1) for label in labels[:-2]]
                separators = {"a": ".", "aaaa": ":"}
                return [
                    part[1].replace("-", separators[part[0]])
                    for part in spelled
                    if part[0] in separators
                ]
            case ["rebind", "test"]:
                return [GOOD if self.is_first(name, kind) else PRIVATE[0]]
        return [EVIL]

    def is_first(self, name, kind):
        with self.lock:
            self.asked[name, kind] = self.asked.get((name, kind), 0) + 1
            return self.asked[name, kind] == 1


def question(query):
    """The name and the kind that a query asks for, and where it ends."""
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode("latin-1").lower())
        at += 1 + query[at]
    return ".".join(labels), struct.unpack_from("!H", query, at + 1)[0], at + 5


def encoded(name):
    return (
        b"".join(bytes([len(label)]) + label.encode("latin-1") for label in name.split(".")) + b"\0"
    )


def record(kind, data, owner=NAME):
    # Not to be kept: the next question is a question again.
    return owner + struct.pack("!HHIH", kind, 1, 0, len(data)) + data
