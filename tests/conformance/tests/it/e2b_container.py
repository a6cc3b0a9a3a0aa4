"""The official packages of E2B against a template of `ringfence serve` that is a container.

The argument is the directory of the server.
"""

import os
import sys

from checks import eventually, raises, same

from e2b import CommandExitException, NotFoundException, Sandbox, SandboxState
from e2b_code_interpreter import Sandbox as Interpreter

(SERVER,) = sys.argv[1:]

# It counts in its memory, and answers each line that is typed with what it has counted to.
ANSWERS = "import sys\nfor number, _ in enumerate(sys.stdin): print(number, flush=True)"

sandbox = Sandbox.create(timeout=600, envs={"GREETING": "hello"}, metadata={"of": "container"})
same(sandbox.commands.run('printf "$GREETING $HOME $PWD"').stdout, "hello /home/user /home/user")
error = raises(CommandExitException, lambda: sandbox.commands.run("echo why >&2; exit 3"))
same((error.stderr, error.exit_code), ("why\n", 3))
typed = sandbox.commands.run("cat", background=True, stdin=True)
sandbox.commands.send_stdin(typed.pid, "typed\n")
sandbox.commands.close_stdin(typed.pid)
same(typed.wait().stdout, "typed\n")

# Directories that code can write, and directories that it cannot write. A snapshot keeps all
# writable directories that are on a disk.
sandbox.commands.run("touch /home/user/made /tmp/made /var/tmp/made /dev/shm/made")
for closed in ("/usr/made", "/etc/made", "/made", "/opt/made"):
    error = raises(CommandExitException, lambda: sandbox.commands.run(f"touch {closed}"))
    assert "Read-only file system" in error.stderr, error.stderr
virtual = "tmpfs|proc|sysfs|devpts|mqueue|cgroup2?|shm"
writable = f"awk '$4 ~ /^rw/ && $3 !~ /^({virtual})$/ {{print $2}}' /proc/mounts"
same(sandbox.commands.run(writable).stdout, "/home/user\n")
assert sandbox.commands.run("id -u").stdout != "0\n"

sandbox.files.write("below/note", "ä\n" * 1000)
same(sandbox.files.read("/home/user/below/note"), "ä\n" * 1000)
same(sorted(entry.name for entry in sandbox.files.list("/home/user")), ["below", "made"])
raises(NotFoundException, lambda: sandbox.files.read("missing"))
sandbox.files.write("answers.py", ANSWERS)
sandbox.files.write("answers", "")
counting = sandbox.commands.run("python3 answers.py > answers", background=True, stdin=True)
sandbox.commands.send_stdin(counting.pid, "\n")
eventually("it counts", lambda: sandbox.files.read("answers") == "0\n")

assert sandbox.pause()
same((sandbox.get_info().state, sandbox.is_running()), (SandboxState.PAUSED, False))
sandbox = Sandbox.connect(sandbox.sandbox_id, timeout=600)
sandbox.commands.send_stdin(counting.pid, "\n")
eventually("it goes on", lambda: sandbox.files.read("answers") == "0\n1\n")

sandbox.commands.run("ln -s /etc/hostname link; ln answers.py same; mkfifo pipe; chmod 640 made")
snapshot = sandbox.create_snapshot(mode="filesystem", name="container")
sandbox.commands.send_stdin(counting.pid, "\n")
eventually("it goes on after its snapshot", lambda: sandbox.files.read("answers") == "0\n1\n2\n")
child = Sandbox.create(snapshot.snapshot_id, timeout=600)
same(child.files.read("answers"), "0\n1\n")
look = (
    "readlink link; stat -c '%a %U' made; stat -c %h same; ls /tmp /var/tmp; "
    "echo more >> below/note; tail -1 below/note"
)
same(child.commands.run(look).stdout, "/etc/hostname\n640 sandbox\n2\n/tmp:\n\n/var/tmp:\nmore\n")
assert child.kill()
assert Sandbox.delete_snapshot("container")
eventually("the files are gone", lambda: os.listdir(os.path.join(SERVER, "snapshots")) == [])
assert sandbox.kill()
assert not sandbox.is_running()
raises(NotFoundException, lambda: Sandbox.connect(sandbox.sandbox_id))

interpreter = Interpreter.create(timeout=600)
same(interpreter.run_code("x = 41; x + 1").text, "42")
same(interpreter.run_code("x").text, "41")
same(interpreter.run_code("import os; os.getcwd()").text, "/home/user")
failed = interpreter.run_code("1 / 0").error
same((failed.name, failed.value), ("ZeroDivisionError", "division by zero"))
assert interpreter.kill()
