"""Times what E2B's own package does with a server, whose URL is the argument: a line of nanoseconds for each line.

`exec RUNS COMMAND` times a command in a sandbox that is up, each of so many runs on its own; `start TEMPLATE COMMAND` a
sandbox, from the call that makes it to the end of its first command.
"""

import os
import sys
import time
import urllib.request

URL = sys.argv[1]
os.environ.update(E2B_API_URL=URL, E2B_SANDBOX_URL=URL, E2B_API_KEY="e2b_0", NO_PROXY="127.0.0.1")

from e2b import Sandbox  # noqa: E402

STAY = 3 * 3600
WAITING = 2


def fill_up():
    """Waits until as many sandboxes wait as are to: whoever runs next does not share the machine with their start."""
    waiting = 0
    while waiting < WAITING:
        with urllib.request.urlopen(f"{URL}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        waiting = next(int(line.split()[1]) for line in lines if line.startswith("ringfence_sandboxes_waiting "))
        time.sleep(0.002)


def execute(runs, command):
    for _ in range(int(runs)):
        begun = time.perf_counter_ns()
        sandbox.commands.run(command)
        yield time.perf_counter_ns() - begun


def start(template, command):
    begun = time.perf_counter_ns()
    started = Sandbox.create(template=template, timeout=STAY)
    started.commands.run(command)
    yield time.perf_counter_ns() - begun
    started.kill()
    fill_up()


sandbox = Sandbox.create(template="base", timeout=STAY)
for line in sys.stdin:
    what, first, command = line.split(maxsplit=2)
    print(*{"exec": execute, "start": start}[what](first, command.strip()), flush=True)
sandbox.kill()
