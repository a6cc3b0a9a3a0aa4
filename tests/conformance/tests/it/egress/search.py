"""Looks for a secret, which it is told backwards, in all that can be read here."""

import os
import sys

NEEDLE = sys.argv[1][::-1].encode()
OWN = str(os.getpid())
PLACES = ["/etc", "/run", "/tmp", "/dev/shm", os.environ["HOME"], os.getcwd()]


def contents(path, most=1 << 24):
    try:
        # A pipe or a terminal would be waited for.
        if not os.path.isfile(path):
            return b""
        with open(path, "rb") as file:
            return file.read(most)
    except OSError:
        return b""


def files():
    for place in PLACES:
        for directory, _, names in os.walk(place):
            yield from (os.path.join(directory, name) for name in names)
    for process in filter(str.isdigit, os.listdir("/proc")):
        yield from (f"/proc/{process}/{name}" for name in ("environ", "cmdline"))


looked = 0
for path in files():
    looked += 1
    if NEEDLE in contents(path):
        print("found in", path)
try:
    open("/proc/1/mem", "rb").close()
    print("found the memory of the first process open")
except OSError:
    pass
print("looked at many" if looked > 50 else f"looked at {looked} only")
