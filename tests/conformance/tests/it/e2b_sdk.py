"""The official `e2b` package against the guest of a sandbox.

The debug mode of the package talks to http://localhost:49983. Therefore this program runs in its
own network namespace, and forwards connections to that port to the guest's socket, the first
argument. The second argument is the path of the workspace inside the sandbox.
"""

import array
import asyncio
import contextlib
import fcntl
import os
import socket
import struct
import sys
import threading
import time

from checks import PATIENCE, eventually, raises, same

os.environ["E2B_DEBUG"] = "true"
os.environ.setdefault("E2B_API_KEY", "e2b_" + "0" * 40)

from e2b import (  # noqa: E402
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    FileType,
    NotFoundException,
    PtySize,
    Sandbox,
    SandboxException,
    TimeoutException,
)
from e2b.sandbox.filesystem.watch_handle import FilesystemEventType  # noqa: E402

PORT = 49983


def bring_loopback_up():
    """A new network namespace has it, but down: netdevice(7)."""
    get_flags, set_flags, up = 0x8913, 0x8914, 0x1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = array.array("b", struct.pack("16sh14x", b"lo", 0))
        fcntl.ioctl(control, get_flags, request)
        (flags,) = struct.unpack_from("16xh", request)
        fcntl.ioctl(control, set_flags, struct.pack("16sh14x", b"lo", flags | up))


@contextlib.contextmanager
def carried_to(guest):
    """Carries what comes to the port to the guest's socket, on a thread of its own."""
    listening, ended = threading.Event(), asyncio.Event()

    async def copy(reader, writer):
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def accept(reader, writer):
        there_reader, there_writer = await asyncio.open_unix_connection(guest)
        await asyncio.gather(copy(reader, there_writer), copy(there_reader, writer))

    async def serve():
        for host in ("127.0.0.1", "::1"):
            try:
                await asyncio.start_server(accept, host, PORT)
            except OSError:
                assert host == "::1", "127.0.0.1 is always there"
        listening.set()
        await ended.wait()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert listening.wait(PATIENCE)
    yield
    # An interpreter that ends while a thread of it still runs can end with a crash.
    loop.call_soon_threadsafe(ended.set)
    thread.join(PATIENCE)


def commands(sandbox, workspace):
    assert sandbox.is_running()
    result = sandbox.commands.run("echo out; echo err >&2")
    same((result.stdout, result.stderr, result.exit_code), ("out\n", "err\n", 0))

    error = raises(
        CommandExitException, lambda: sandbox.commands.run("echo out; echo why >&2; exit 3")
    )
    same((error.stdout, error.stderr, error.exit_code), ("out\n", "why\n", 3))

    heard = {"out": [], "err": []}
    sandbox.commands.run(
        "printf 1; printf 2 >&2; printf ä",
        on_stdout=heard["out"].append,
        on_stderr=heard["err"].append,
    )
    same(("".join(heard["out"]), "".join(heard["err"])), ("1ä", "2"))

    result = sandbox.commands.run('printf "$GREETING $PWD"', envs={"GREETING": "hello"}, cwd="/usr")
    same(result.stdout, "hello /usr")
    raises(SandboxException, lambda: sandbox.commands.run("true", cwd="/no/such/directory"))

    name = sandbox.commands.run("id -un").stdout.strip()
    for user in (name, "user"):
        same(sandbox.commands.run("id -un", user=user).stdout.strip(), name)
    error = raises(
        AuthenticationException, lambda: sandbox.commands.run("true", user="somebody-else")
    )
    assert "somebody-else" in str(error), error

    # More than a pipe holds, and more than a frame does.
    assert len(sandbox.commands.run("head -c 3000000 /dev/zero | tr '\\0' x").stdout) == 3_000_000


def timeouts(sandbox, workspace):
    begun = time.monotonic()
    error = raises(TimeoutException, lambda: sandbox.commands.run("exec sleep 61", timeout=1))
    assert 0.9 < time.monotonic() - begun < PATIENCE, error
    # A command ends with the time that its caller gave it.
    eventually(
        "it has ended",
        lambda: not [it for it in sandbox.commands.list() if "exec sleep 61" in it.args],
    )


def background(sandbox, workspace):
    handle = sandbox.commands.run(
        "echo first; read line; echo got $line; exit 7", background=True, stdin=True
    )
    listed = [it for it in sandbox.commands.list() if it.pid == handle.pid]
    assert len(listed) == 1 and listed[0].cmd == "/bin/bash", listed
    handle.disconnect()

    # A client that goes does not take the command along, and another can take its place.
    again = sandbox.commands.connect(handle.pid)
    sandbox.commands.send_stdin(handle.pid, "word\n")
    error = raises(CommandExitException, again.wait)
    same((error.exit_code, error.stdout.endswith("got word\n")), (7, True))
    raises(NotFoundException, lambda: sandbox.commands.connect(handle.pid))

    handle = sandbox.commands.run("sleep 62 & sleep 62; wait", background=True)
    assert handle.kill()
    error = raises(CommandExitException, handle.wait)
    assert error.exit_code != 0
    assert not sandbox.commands.kill(handle.pid), "it has ended"
    # What the command started goes with it.
    same(raises(CommandExitException, lambda: sandbox.commands.run("pgrep -x sleep")).exit_code, 1)
    same(sandbox.commands.list(), [])


def standard_input(sandbox, workspace):
    handle = sandbox.commands.run("cat; echo end", background=True, stdin=True)
    handle.send_stdin("one ")
    sandbox.commands.send_stdin(handle.pid, b"two ")
    sandbox.commands.stream_input(handle.pid, iter(["three ", b"four\n"]))
    handle.close_stdin()
    same(handle.wait().stdout, "one two three four\nend\n")
    # Without being asked for, there is none.
    same(sandbox.commands.run("cat; echo end").stdout, "end\n")


def terminal(sandbox, workspace):
    handle = sandbox.pty.create(
        size=PtySize(rows=30, cols=100), cwd=workspace, envs={"PS1": "", "WORD": "from outside"}
    )
    shown = bytearray()
    reader = threading.Thread(
        target=lambda: raises(CommandExitException, lambda: handle.wait(on_pty=shown.extend))
    )
    reader.start()

    def type_and_see(line, expected):
        sandbox.pty.send_stdin(handle.pid, line.encode() + b"\n")
        eventually(f"{expected!r} is shown", lambda: expected in shown)

    type_and_see("stty size; tty", b"30 100\r\n")
    assert b"/dev/pts/" in eventually(
        "its name is shown", lambda: bytes(shown) if b"/dev/pts/" in shown else b""
    )
    type_and_see('echo "$PWD:$WORD"', f"{workspace}:from outside\r\n".encode())
    sandbox.pty.resize(handle.pid, PtySize(rows=33, cols=111))
    type_and_see("stty size", b"33 111\r\n")
    type_and_see("sleep 63 & echo $((40 + 2))", b"42\r\n")
    assert sandbox.pty.kill(handle.pid)
    reader.join(PATIENCE)
    assert not reader.is_alive()
    assert not sandbox.pty.kill(handle.pid), "it has ended"
    same(raises(CommandExitException, lambda: sandbox.commands.run("pgrep -x sleep")).exit_code, 1)


def files(sandbox, workspace):
    root = f"{workspace}/files"
    assert sandbox.files.make_dir(f"{root}/deep/down")
    assert not sandbox.files.make_dir(f"{root}/deep"), "it is there"

    written = sandbox.files.write(f"{root}/deep/text", "ünïcode\n")
    same((written.name, written.path), ("text", f"{root}/deep/text"))
    same(sandbox.files.read(f"{root}/deep/text"), "ünïcode\n")
    blob = bytes(range(256)) * 4096
    sandbox.files.write(f"{root}/new/blob", blob)
    same(bytes(sandbox.files.read(f"{root}/new/blob", format="bytes")), blob)
    same(b"".join(sandbox.files.read(f"{root}/new/blob", format="stream")), blob)
    sandbox.files.write(f"{root}/zipped", blob, gzip=True)
    same(bytes(sandbox.files.read(f"{root}/zipped", format="bytes", gzip=True)), blob)
    sandbox.files.write(f"{root}/form", blob, use_octet_stream=False)
    same(bytes(sandbox.files.read(f"{root}/form", format="bytes")), blob)
    same(sandbox.commands.run(f"wc -c < {root}/zipped").stdout.strip(), str(len(blob)))

    many = [{"path": f"{root}/many/{name}", "data": name * 3} for name in ("a", "b", "c")]
    same([it.path for it in sandbox.files.write_files(many)], [it["path"] for it in many])
    same(sandbox.files.read(f"{root}/many/c"), "ccc")

    names = lambda path, depth=1: sorted(
        it.path.removeprefix(root) for it in sandbox.files.list(path, depth=depth)
    )  # noqa: E731
    same(names(f"{root}/many"), ["/many/a", "/many/b", "/many/c"])
    same(names(f"{root}/deep", 2), ["/deep/down", "/deep/text"])
    kinds = {it.name: it.type for it in sandbox.files.list(f"{root}/deep")}
    same(kinds, {"down": FileType.DIR, "text": FileType.FILE})

    sandbox.commands.run(f"ln -s text {root}/deep/link; chmod 640 {root}/deep/text")
    entry = sandbox.files.get_info(f"{root}/deep/text")
    same(
        (entry.name, entry.type, entry.size, entry.mode & 0o777), ("text", FileType.FILE, 10, 0o640)
    )
    same(entry.owner, sandbox.commands.run("id -un").stdout.strip())
    same(sandbox.files.get_info(f"{root}/deep/link").symlink_target, f"{root}/deep/text")

    moved = sandbox.files.rename(f"{root}/deep/text", f"{root}/deep/moved")
    same((moved.name, sandbox.files.exists(f"{root}/deep/text")), ("moved", False))
    assert sandbox.files.exists(f"{root}/deep/moved")
    sandbox.files.remove(f"{root}/deep/moved")
    raises(NotFoundException, lambda: sandbox.files.read(f"{root}/deep/moved"))
    raises(NotFoundException, lambda: sandbox.files.list(f"{root}/nowhere"))
    raises(SandboxException, lambda: sandbox.files.write("/proc/version", "no"))

    sandbox.files.write(f"{root}/labelled", "x", metadata={"author": "somebody"})
    same(sandbox.files.get_info(f"{root}/labelled").metadata, {"author": "somebody"})
    sandbox.files.remove(root)
    assert not sandbox.files.exists(root)


def watched(sandbox, workspace):
    root = f"{workspace}/watched"
    sandbox.files.make_dir(f"{root}/below")
    handle = sandbox.files.watch_dir(root, recursive=True)
    sandbox.commands.run(
        f"cd {root} && echo 1 > new && chmod 600 new && mv new old && echo 2 > below/deep && rm old"
    )
    seen = set()
    wanted = {
        ("new", FilesystemEventType.CREATE),
        ("new", FilesystemEventType.WRITE),
        ("new", FilesystemEventType.CHMOD),
        ("new", FilesystemEventType.RENAME),
        ("below/deep", FilesystemEventType.CREATE),
        ("old", FilesystemEventType.REMOVE),
    }

    def all_seen():
        seen.update((event.name, event.type) for event in handle.get_new_events())
        return wanted <= seen

    eventually(f"all of {wanted} are seen, not only {seen}", all_seen)
    handle.stop()
    raises(SandboxException, handle.get_new_events)
    raises(NotFoundException, lambda: sandbox.files.watch_dir(f"{workspace}/nowhere"))


async def at_once(workspace):
    sandbox = await AsyncSandbox.create()
    # Each ends only when all have begun.
    here = f"{workspace}/here"
    await sandbox.files.make_dir(here)
    meet = (
        f"cd {here} && touch $WHO && until [ $(ls | wc -l) = 16 ]; do sleep 0.05; done; echo $WHO"
    )
    runs = (sandbox.commands.run(meet, envs={"WHO": str(it)}, timeout=PATIENCE) for it in range(16))
    same([it.stdout for it in await asyncio.gather(*runs)], [f"{it}\n" for it in range(16)])

    root, events, seen = f"{workspace}/streamed", [], asyncio.Event()

    def on_event(event):
        events.append((event.name, event.type))
        if event.name == "b":
            seen.set()

    await sandbox.files.make_dir(root)
    handle = await sandbox.files.watch_dir(root, on_event)
    await sandbox.files.write(f"{root}/a", "1")
    await sandbox.files.write(f"{root}/b", "2")
    await asyncio.wait_for(seen.wait(), PATIENCE)
    assert ("a", FilesystemEventType.CREATE) in events, events
    await handle.stop()

    handle = await sandbox.commands.run("read line; echo got $line", background=True, stdin=True)
    await sandbox.commands.send_stdin(handle.pid, "word\n")
    same((await handle.wait()).stdout, "got word\n")


def main():
    guest, workspace = sys.argv[1:]
    bring_loopback_up()
    with carried_to(guest):
        sandbox = Sandbox.create()
        for step in (commands, timeouts, background, standard_input, terminal, files, watched):
            begun = time.monotonic()
            step(sandbox, workspace)
            print(f"{step.__name__}: {time.monotonic() - begun:.2f} s", flush=True)
        asyncio.run(at_once(workspace))
        print("at_once", flush=True)


main()
