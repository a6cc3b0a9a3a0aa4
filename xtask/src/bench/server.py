"""Times E2B's own package against a server, whose URL is the argument.

The program answers each line with a line of nanoseconds. `exec RUNS COMMAND` times a command in a
running sandbox, each of the runs on its own. `start TEMPLATE COMMAND` times a sandbox, from the
call that creates it to the end of its first command.
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
    """Waits until the pool is full, so that no sandbox starts during the next run."""
    waiting = 0
    while waiting < WAITING:
        with urllib.request.urlopen(f"{URL}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        metric = "ringfence_sandboxes_waiting "
        waiting = next(int(line.split()[1]) for line in lines if line.startswith(metric))
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
