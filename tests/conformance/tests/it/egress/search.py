"""Looks for a secret, which it is told backwards, in all that can be read here."""

import contextlib
import os
import sys

NEEDLE = sys.argv[1][::-1].encode()
MOST = 1 << 24
PLACES = ["/etc", "/run", "/tmp", "/dev/shm", os.environ["HOME"], os.getcwd()]


def contents(path):
    try:
        # A pipe or a terminal would be waited for.
        if not os.path.isfile(path):
            return b""
        with open(path, "rb") as file:
            return file.read(MOST)
    except OSError:
        return b""


def processes():
    return filter(str.isdigit, os.listdir("/proc"))


def files():
    for place in PLACES:
        for directory, _, names in os.walk(place):
            yield from (os.path.join(directory, name) for name in names)
    for process in processes():
        yield from (f"/proc/{process}/{name}" for name in ("environ", "cmdline"))


def memory(process):
    """What can be read of another process, mapping by mapping."""
    try:
        with (
            open(f"/proc/{process}/maps") as maps,
            open(f"/proc/{process}/mem", "rb", buffering=0) as file,
        ):
            for line in maps:
                begin, end = (int(number, 16) for number in line.split()[0].split("-"))
                with contextlib.suppress(
                    OSError, OverflowError, ValueError
                ):  # not all that is mapped can be read
                    file.seek(begin)
                    yield file.read(min(end - begin, MOST))
    except OSError:
        pass  # it is closed, or has ended


looked = 0
for path in files():
    looked += 1
    if NEEDLE in contents(path):
        print("found in", path)
for process in set(processes()) - {str(os.getpid())}:
    if any(NEEDLE in part for part in memory(process)):
        print(f"found in /proc/{process}/mem")
print("looked at many" if looked > 50 else f"looked at {looked} only")
