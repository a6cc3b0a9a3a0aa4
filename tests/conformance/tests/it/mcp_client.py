"""The official `mcp` package against `ringfence mcp`.

The arguments are the part to run, the program `ringfence`, and the flags of every sandbox. The
working directory is the workspace.
"""

import asyncio
import contextlib
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import anyio
import mcp.client.stdio
from mcp import Client, StdioServerParameters

PATIENCE = 60.0
# A server whose client has left ends its sandbox first: it is not to be killed meanwhile.
mcp.client.stdio.PROCESS_TERMINATION_TIMEOUT = PATIENCE
# Where the workspace is inside: in a container of an image's, elsewhere.
INSIDE = "/workspace" if "--image" in sys.argv else os.getcwd()
TOOLS = {
    "run_command",
    "run_code",
    "run_python_code",
    "read_file",
    "write_file",
    "edit_file",
    "list_files",
    "search_files",
    "start_process",
    "read_process_output",
    "stop_process",
    "forward_port",
    "sandbox_info",
}


class Server:
    """What is started, and with which flags."""

    def __init__(self, program, flags):
        self.program, self.flags = program, flags

    def on_streams(self, *flags, mode="auto"):
        parameters = StdioServerParameters(
            command=self.program,
            args=["mcp", *self.flags, *flags],
            cwd=os.getcwd(),
            env=dict(os.environ),
        )
        return Client(parameters, mode=mode, read_timeout_seconds=PATIENCE)

    @contextlib.contextmanager
    def listening(self, *flags, sandbox=(), variables=None):
        """A server at an address, which is given. It must end with 0 when it is asked to end."""
        sandbox = sandbox or self.flags
        server = subprocess.Popen(
            [self.program, "mcp", "--listen", "127.0.0.1:0", *flags, *sandbox],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, **(variables or {})},
        )
        try:
            url = server.stdout.readline().decode().strip()
            assert url.startswith("http://127.0.0.1:"), url
            yield url
            server.terminate()
            assert server.wait(PATIENCE) == 0, server.returncode
        finally:
            server.kill()
            server.wait()


async def call(client, tool, expect_error=False, progress=None, **arguments):
    """What a tool answers: its words and its structure."""
    result = await client.call_tool(tool, arguments, progress_callback=progress)
    words = "".join(part.text for part in result.content)
    assert bool(result.is_error) == expect_error, f"{tool} {arguments}: {words}"
    return words, result.structured_content


async def every_tool(client):
    """Uses each tool as a model would. The client validates each answer with the tool's schema."""
    listed = await client.list_tools()
    assert {tool.name for tool in listed.tools} == TOOLS, [tool.name for tool in listed.tools]
    assert all(
        tool.output_schema and tool.description and tool.annotations for tool in listed.tools
    )
    await commands(client)
    await code(client)
    await files(client)
    await searching(client)
    await processes(client)
    await ports(client)
    words, info = await call(client, "sandbox_info")
    assert info["network"] == "closed" and info["workspace"] == INSIDE, info
    assert "closed: no host can be reached" in words and info["held"]["filesystem"], words


async def commands(client):
    words, result = await call(client, "run_command", command="echo out; echo err >&2; exit 3")
    assert (result["exit_code"], result["stdout"], result["stderr"]) == (3, "out\n", "err\n"), (
        result
    )
    assert words.startswith("out\n[standard error]\nerr\n[exit code 3, "), words
    os.makedirs("below", exist_ok=True)
    _, result = await call(client, "run_command", command="pwd", directory="below")
    assert result["stdout"] == os.path.join(INSIDE, "below") + "\n", result
    words, result = await call(client, "run_command", command="sleep 60", timeout=1)
    assert result["timed_out"] and result["seconds"] < 30, result
    assert "set a larger `timeout`, at most 600 s" in words, words
    words, result = await call(client, "run_command", command="yes | head -c 5000000; echo end")
    assert result["left_out"] > 4_900_000 and result["stdout"].endswith("end\n"), result["left_out"]
    assert len(words) < 70_000 and "bytes in the middle of the output were left out" in words, len(
        words
    )
    words, _ = await call(client, "run_command", expect_error=True, comand="true")
    assert (
        "unknown field `comand`" in words
        and "hint: correct the parameters by the input schema" in words
    ), words
    for tool, arguments in (
        ("run_command", {"command": "true"}),
        ("run_python_code", {"code": "1"}),
    ):
        words, _ = await call(client, tool, expect_error=True, timeout=0, **arguments)
        assert (
            "a `timeout` of 0 seconds" in words
            and "hint: set `timeout` to 1 to 600 seconds" in words
        ), words
    words, _ = await call(client, "run_command", command="echo secret > /etc/planted")
    assert "exit code" in words and not os.path.exists("/etc/planted"), words
    words, result = await call(
        client, "run_command", command="echo 'Network is unreachable' >&2; exit 1"
    )
    assert "the network of this sandbox is closed" in words, words


async def code(client):
    words, result = await call(
        client, "run_python_code", code="import sys; print(6 * 7); sys.exit(3)"
    )
    assert (result["exit_code"], result["stdout"]) == (3, "42\n") and words.startswith(
        "42\n[exit code 3, "
    ), result
    # In a directory of its own, with nothing of what ran before.
    look = "import os; print(os.listdir('.')); open('left', 'w')"
    for _ in range(2):
        _, result = await call(client, "run_python_code", code=look)
        assert result["stdout"] == "[]\n", result
    words, result = await call(client, "run_python_code", code="while True: pass", timeout=1)
    assert result["timed_out"] and "set a larger `timeout`" in words, words
    _, result = await call(client, "run_code", language="bash", code="echo $((6 * 7)); exit 4")
    assert (result["exit_code"], result["stdout"]) == (4, "42\n"), result
    words, _ = await call(client, "run_code", True, language="cobol", code="STOP RUN.")
    assert "unknown language `cobol`: it is one of bash, javascript, python" in words, words


async def files(client):
    words, result = await call(
        client, "write_file", path="made/by.txt", content="one\ntwo\nthree\n"
    )
    assert result["created"] and open("made/by.txt").read() == "one\ntwo\nthree\n", result
    words, result = await call(client, "read_file", path="made/by.txt")
    assert words == "one\ntwo\nthree\n" and result["all_lines"] == 3, words
    words, result = await call(client, "read_file", path="made/by.txt", first_line=2, lines=1)
    assert result["content"] == "two\n" and "continue with first_line 3" in words, words
    words, _ = await call(client, "read_file", True, path="made")
    assert (
        "is a directory" in words and "a file in this directory; list_files lists them" in words
    ), words
    words, _ = await call(client, "list_files", True, path="made/missing")
    assert (
        f"hint: call list_files with the path `{INSIDE}/made` to see which entries exist" in words
    ), words
    words, _ = await call(client, "list_files", True, path="made/by.txt")
    assert "hint: call read_file to read a file" in words, words
    await call(client, "edit_file", path="made/by.txt", old_text="two", new_text="2")
    assert open("made/by.txt").read() == "one\n2\nthree\n"
    words, _ = await call(client, "edit_file", True, path="made/by.txt", old_text="e", new_text="E")
    assert "it occurs 3 times" in words, words
    words, _ = await call(
        client, "edit_file", True, path="made/by.txt", old_text="four", new_text="4"
    )
    assert "`old_text` occurs 0 times" in words, words
    _, result = await call(
        client, "edit_file", path="made/by.txt", old_text="e", new_text="E", replace_all=True
    )
    assert result["replaced"] == 3 and open("made/by.txt").read() == "onE\n2\nthrEE\n", result
    # Those that come at the same time are made one after the other.
    numbers = [f"<{number}>" for number in range(12)]
    await call(client, "write_file", path="made/many.txt", content="".join(numbers))
    edits = [
        call(client, "edit_file", path="made/many.txt", old_text=old, new_text="x")
        for old in numbers
    ]
    await asyncio.gather(*edits)
    assert open("made/many.txt").read() == "x" * 12, open("made/many.txt").read()
    os.remove("made/many.txt")
    with open("picture", "wb") as picture:
        picture.write(bytes(range(256)))
    words, result = await call(client, "read_file", path="picture")
    assert result["binary"] and "the file is binary and has 256 bytes" in words, words
    with open("long", "wb") as long:
        long.truncate(9 << 20)
    words, _ = await call(client, "read_file", True, path="long")
    assert "longer than" in words and "sed -n" in words, words
    os.remove("long")
    words, _ = await call(client, "read_file", True, path="missing")
    assert "does not exist" in words and "list_files" in words, words
    words, _ = await call(client, "write_file", True, path="/usr/planted", content="x")
    assert "hint: the policy may deny access to this path" in words, words
    words, _ = await call(client, "write_file", True, path="large", content="x" * (2 << 20 | 1))
    assert "the maximum for one call is 2097152" in words and not os.path.exists("large"), words[
        :200
    ]
    # What a link leads to is what it leads to inside.
    os.symlink("/etc/shadow", "link")
    await call(client, "read_file", True, path="link")
    os.remove("link")
    words, result = await call(client, "list_files", depth=2)
    assert {"path": "made/by.txt", "kind": "file", "size": 12} in result["entries"], result
    assert "made/\n" in words, words


async def searching(client):
    os.makedirs("src/deep", exist_ok=True)
    with open("src/deep/a.rs", "w") as file:
        file.write("fn one() {}\nfn two() {}\n")
    with open("src/b.py", "w") as file:
        file.write("def one(): pass\n")
    with open("src/.gitignore", "w") as file:
        file.write("*.log\n")
    with open("src/c.log", "w") as file:
        file.write("fn logged() {}\n")
    words, result = await call(client, "search_files", pattern=r"fn \w+", path="src")
    found = [(match["path"], match["line"]) for match in result["matches"]]
    assert found == [("deep/a.rs", 1), ("deep/a.rs", 2)] and not result["incomplete"], result
    assert "deep/a.rs:2: fn two() {}" in words, words
    _, result = await call(client, "search_files", pattern="ONE", ignore_case=True, glob="*.py")
    assert [match["path"] for match in result["matches"]] == ["src/b.py"], result
    _, result = await call(client, "search_files", pattern="fn logged", include_ignored=True)
    assert [match["path"] for match in result["matches"]] == ["src/c.log"], result
    words, result = await call(client, "search_files", pattern="fn", path="src", most=1)
    assert result["incomplete"] and "the search ended after 1 lines" in words, words
    await call(client, "search_files", True, pattern="(")
    # A malformed glob or file, which code in the sandbox can plant, fails only its own call.
    nested = "{" * 100_000 + "}" * 100_000
    words, _ = await call(client, "search_files", True, pattern="x", glob=nested)
    assert "the glob is not valid" in words, words[:200]
    with open("src/.gitignore", "a") as file:
        file.write(nested + "\n")
    _, result = await call(client, "search_files", pattern="fn logged", path="src")
    assert result["matches"] == [] and not result["incomplete"], result
    os.remove("src/.gitignore")


async def first_line(client, started):
    """What a process has written, up to the end of a line."""
    text = started["stdout"]
    while not text.endswith("\n"):
        _, read = await call(
            client, "read_process_output", process_id=started["process_id"], wait=30
        )
        assert read["running"], read
        text += read["stdout"]
    return text


async def processes(client):
    line = "trap 'echo asked; exit 0' TERM; echo begun; while :; do sleep 0.05; done"
    words, started = await call(client, "start_process", command=line)
    assert started["running"], started
    pid = started["process_id"]
    assert await first_line(client, started) == "begun\n"
    _, info = await call(client, "sandbox_info")
    assert [process["process_id"] for process in info["processes"]] == [pid], info
    _, read = await call(client, "read_process_output", process_id=pid)
    assert read["running"] and read["stdout"] == "", read
    words, stopped = await call(client, "stop_process", process_id=pid)
    assert (
        not stopped["running"] and stopped["exit_code"] == 0 and stopped["stdout"] == "asked\n"
    ), stopped
    await call(client, "read_process_output", True, process_id=pid)
    # It is over when all that it started is.
    slow = "(trap '' TERM; while :; do sleep 0.05; done) & echo $!; sleep 600"
    _, started = await call(client, "start_process", command=slow)
    left = f"kill -0 {(await first_line(client, started)).strip()} 2>&1; true"
    await call(client, "stop_process", process_id=started["process_id"])
    _, result = await call(client, "run_command", command=left)
    assert "No such process" in result["stdout"], result
    # One whose call is cancelled before it was answered is nobody's.
    with anyio.move_on_after(0.3) as scope:
        await call(client, "start_process", command="sleep 600")
    assert scope.cancelled_caught
    deadline = time.monotonic() + PATIENCE
    while (await call(client, "sandbox_info"))[1]["processes"]:
        assert time.monotonic() < deadline, "it runs on"
    _, started = await call(client, "start_process", command="echo early; exit 7")
    _, read = await call(client, "read_process_output", process_id=started["process_id"], wait=30)
    assert (read["running"], read["exit_code"]) == (False, 7) and "early" in started[
        "stdout"
    ] + read["stdout"], read


async def ports(client):
    server = (
        "python3 -c 'import http.server as h; "
        's = h.HTTPServer(("127.0.0.1", 0), h.SimpleHTTPRequestHandler); '
        "print(s.server_port, flush=True); s.serve_forever()'"
    )
    _, started = await call(client, "start_process", command=server, directory="made")
    words, forwarded = await call(
        client, "forward_port", port=int(await first_line(client, started))
    )
    assert forwarded["listening"] and forwarded["url"] in words, words
    fetched = await asyncio.to_thread(
        lambda: urllib.request.urlopen(forwarded["url"] + "by.txt", timeout=PATIENCE).read()
    )
    assert fetched == b"onE\n2\nthrEE\n", fetched
    await call(client, "stop_process", process_id=started["process_id"])
    for port in (0, -1, 65536, 99999):
        words, _ = await call(client, "forward_port", True, port=port)
        assert f"{port} is not a port: a port is a number from 1 to 65535" in words, words
        assert "hint: set `port` to the port" in words, words


async def cancelled_and_told(client):
    """A long command is told of, and really ended when its caller gives up."""
    told = []

    async def heard(progress, total, message):
        told.append((progress, message))
        if len(told) >= 2 and "working" in message:
            scope.cancel()

    line = "echo working; for i in $(seq 600); do date +%s > beat; sleep 0.1; done"
    with anyio.move_on_after(PATIENCE) as scope:
        await call(client, "run_command", progress=heard, command=line, timeout=120)
    assert scope.cancelled_caught
    assert len(told) >= 2 and told[0][0] < told[1][0] and "working" in told[-1][1], told
    deadline = time.monotonic() + PATIENCE
    while True:
        _, result = await call(
            client, "run_command", command="pgrep -f 'seq 60[0]' || cat /proc/[0-9]*/cmdline"
        )
        if "do date" not in result["stdout"].replace("\0", " "):
            break
        assert time.monotonic() < deadline, result
    assert os.path.exists("beat")
    os.remove("beat")


@contextlib.contextmanager
def page():
    """A server of the host, on its loopback."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"reached")

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()


# Asks the proxy itself: for an address of loopback no client would.
FETCH = """
import http.client, os, sys, urllib.parse
proxy = urllib.parse.urlsplit(os.environ["HTTP_PROXY"])
connection = http.client.HTTPConnection(proxy.hostname, proxy.port, timeout=30)
connection.request("GET", sys.argv[1])
answer = connection.getresponse()
print(answer.status, answer.read().decode())
"""


async def denied(server):
    """A host is reached where a rule allows it; where none does, the model hears which would."""
    with page() as port:
        with open("fetch.py", "w") as script:
            script.write(FETCH)
        line = f"python3 fetch.py http://127.0.0.1:{port}/"
        async with server.on_streams("--allow", f"127.0.0.1:{port}") as client:
            words, result = await call(client, "run_command", command=line)
            assert result["stdout"] == "200 reached\n" and result["denials"] == [], words
        async with server.on_streams("--allow", "example.org") as client:
            words, result = await call(client, "run_command", command=line)
            assert result["stdout"].startswith("403 ") and result["denials"], words
            assert f'only the user can allow this, with `allow = ["127.0.0.1:{port}"]`' in words, (
                words
            )


async def on_streams(server):
    async with server.on_streams() as client:
        assert client.protocol_version == "2026-07-28", client.protocol_version
        assert "The network is closed" in client.instructions, client.instructions
        await every_tool(client)
        await cancelled_and_told(client)
        await ended_from_inside(client)
    async with server.on_streams(mode="legacy") as client:
        assert client.protocol_version == "2025-11-25", client.protocol_version
        await call(client, "run_command", command="true")
        # Its own sandbox, not the one before.
        words, _ = await call(client, "run_command", command="ls /tmp/mark 2>&1; touch /tmp/mark")
        assert "No such file" in words, words


async def ended_from_inside(client):
    """Whoever ends the sandbox from inside is told so, once, and goes on in a new one."""
    _, before = await call(client, "sandbox_info")
    for tool, way in (
        ("run_command", {"command": "kill -9 -1"}),
        ("run_python_code", {"code": "import os; os.kill(-1, 9)"}),
    ):
        words, _ = await call(client, tool, expect_error=True, **way)
        assert (
            "the sandbox has ended" in words
            and "call the tool again to start a new sandbox" in words
        ), words
        _, after = await call(client, "sandbox_info")
        assert after["name"] != before["name"], after
        before = after


async def at_an_address(server):
    with server.listening() as url:
        async with Client(url, read_timeout_seconds=PATIENCE) as client:
            assert client.protocol_version == "2025-11-25", client.protocol_version
            await every_tool(client)
            await cancelled_and_told(client)
            # Each client has a sandbox of its own.
            await call(client, "run_command", command="touch /tmp/mark")
            _, mine = await call(client, "sandbox_info")
            async with Client(url, read_timeout_seconds=PATIENCE) as other:
                _, result = await call(other, "run_command", command="test ! -e /tmp/mark")
                assert result["ok"], result
                _, theirs = await call(other, "sandbox_info")
                assert mine["name"] != theirs["name"]
            gone(theirs["name"])
            assert os.path.isdir(room(mine["name"]))
        gone(mine["name"])
        ends_its_session(url)
    with server.listening("--idle", "10s", "--clients", "1") as url:
        idle = raw(url, INITIALIZE)
        session = idle.headers["mcp-session-id"]
        refused(url, 503)
        raw(url, {"jsonrpc": "2.0", "method": "notifications/initialized"}, session=session)
        called = raw(url, tool_call("sandbox_info"), session=session).read().decode()
        name = json.loads(called.split("data: ")[-1].splitlines()[0])["result"][
            "structuredContent"
        ]["name"]
        gone(name)
        deadline = time.monotonic() + PATIENCE
        while not answers(url):
            assert time.monotonic() < deadline, "its place is not free"
    with server.listening("--idle", "2s") as url:
        async with Client(url, read_timeout_seconds=PATIENCE) as client:
            # While a call is answered its client is not idle, however long that takes.
            _, result = await call(
                client,
                "run_python_code",
                code="import time; time.sleep(5); print('slept')",
                timeout=20,
            )
            assert result["stdout"] == "slept\n" and not result["timed_out"], result
            _, stubborn = await call(
                client,
                "start_process",
                command="trap '' TERM; echo deaf; while :; do sleep 1; done",
            )
            _, stopped = await call(client, "stop_process", process_id=stubborn["process_id"])
            assert stopped["signal"] == 9, stopped
    with server.listening() as url:
        left = Client(url, read_timeout_seconds=PATIENCE)
        async with left:
            _, info = await call(left, "sandbox_info")
            # The server is told to end while the client is there.
            for process in processes_named("mcp", "--listen"):
                os.kill(process, 15)
            gone(info["name"])
            with contextlib.suppress(Exception):
                await left.__aexit__(None, None, None)


def ends_its_session(url):
    """A session that is ended is over, and its client is told so."""
    session = raw(url, INITIALIZE).headers["mcp-session-id"]
    with urllib.request.urlopen(
        request_to(url, None, "DELETE", session), timeout=PATIENCE
    ) as ended:
        assert ended.status == 204 and ended.read() == b"", ended.status
    refused(url, 404, tool_call("sandbox_info"), session=session)


def processes_named(*words):
    """The children of this process with these words in their command lines."""
    with open(f"/proc/self/task/{os.getpid()}/children") as children:
        for child in children.read().split():
            with contextlib.suppress(OSError):
                line = open(f"/proc/{child}/cmdline").read().split("\0")
                if all(word in line for word in words):
                    yield int(child)


def room(name):
    return os.path.expanduser(f"~/.local/state/ringfence/sandboxes/{name}")


def gone(name):
    """Waits until a sandbox is gone."""
    deadline = time.monotonic() + PATIENCE
    while os.path.exists(room(name)):
        assert time.monotonic() < deadline, f"{name} is still there"
        time.sleep(0.01)


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    },
}


def tool_call(name, **arguments):
    return {
        "jsonrpc": "2.0",
        "id": 2,
        "method": "tools/call",
        "params": {"name": name, "arguments": arguments},
    }


def request_to(url, body, method, session):
    request = urllib.request.Request(url, body, method=method)
    request.add_header("content-type", "application/json")
    request.add_header("accept", "application/json, text/event-stream")
    if session:
        request.add_header("mcp-session-id", session)
    return request


def raw(url, message, session=None, **headers):
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    request = request_to(url, body, "POST", session)
    for name, value in headers.items():
        request.add_header(name, value)
    return urllib.request.urlopen(request, timeout=PATIENCE)


def answers(url, **headers):
    try:
        with raw(url, INITIALIZE, **headers) as answer:
            assert answer.status == 200
            return True
    except urllib.error.HTTPError:
        return False


def refused(url, status, message=INITIALIZE, **headers):
    try:
        answer = raw(url, message, **headers)
    except urllib.error.HTTPError as error:
        assert error.code == status, f"{error.code}, not {status}: {error.read()}"
    else:
        raise AssertionError(f"it was let in with {headers}: {answer.status}")


async def hostile(server):
    token = "0123456789abcdef0123456789abcdef"
    with server.listening() as url:
        port = url.split(":")[2].split("/")[0]
        assert answers(url)
        assert answers(url, origin=f"http://127.0.0.1:{port}") and answers(
            url, host=f"localhost:{port}"
        )
        for origin in (
            "http://evil.test",
            "null",
            f"http://evil.test:{port}",
            "http://127.0.0.1:1",
            "nonsense",
        ):
            refused(url, 403, origin=origin)
        for host in ("evil.test", f"evil.test:{port}", "127.0.0.1.evil.test", "0.0.0.0"):
            refused(url, 403, host=host)
        refused(url, 413, b'"' + b"x" * (5 << 20) + b'"')
        refused(url, 404, tool_call("run_command", command="true"), session="made-up")
        refused(url.replace("/mcp", "/"), 404)
        for nonsense in (b"", b"{", b"[]", b'{"jsonrpc": "2.0"}', b"\xff" * 100):
            with contextlib.suppress(urllib.error.HTTPError):
                raw(url, nonsense).read()
        # No stateless version of the protocol is spoken: every request would be another client.
        with contextlib.suppress(urllib.error.HTTPError):
            meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
            meta |= {"io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"}}
            meta |= {"io.modelcontextprotocol/clientCapabilities": {}}
            stateless = tool_call("run_command", command="touch stateless")
            stateless["params"]["_meta"] = meta
            headers = {
                "mcp-protocol-version": "2026-07-28",
                "mcp-method": "tools/call",
                "mcp-name": "run_command",
            }
            answer = raw(url, stateless, **headers).read().decode()
            assert '"error"' in answer, answer
        assert not os.path.exists("stateless")
        # A head and a body that never come to an end do not keep others out.
        slow = socket.create_connection(("127.0.0.1", int(port)))
        slow.sendall(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n")
        assert answers(url)
        slow.close()
        # Nor is a refusal lost on who sends its body late, and the connection is of use after it.
        with socket.create_connection(("127.0.0.1", int(port)), timeout=PATIENCE) as late:
            for path, host, status in (("/", "localhost", b"404"), ("/mcp", "evil.test", b"403")):
                late.sendall(
                    f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2\r\n\r\n".encode()
                )
                time.sleep(0.05)
                late.sendall(b"{}")
                told = late.recv(4096)
                assert told.startswith(b"HTTP/1.1 " + status), told
    with server.listening(variables={"RINGFENCE_MCP_TOKEN": token}) as url:
        assert answers(url, authorization=f"Bearer {token}")
        refused(url, 401)
        for wrong in (
            f"Bearer {token}0",
            f"Bearer {token[:-1]}",
            f"Basic {token}",
            "Bearer",
            token,
        ):
            refused(url, 401, authorization=wrong)
        # Not even with the token.
        refused(url, 403, authorization=f"Bearer {token}", origin="http://evil.test")
    with open("token", "w") as file:
        file.write(token + "\n")
    with server.listening("--token-file", "token") as url:
        assert answers(url, authorization=f"Bearer {token}")
        refused(url, 401)
    os.remove("token")


async def attached(server):
    """A sandbox that is up is used, and left up without what was started in it."""
    for listening in (False, True):
        started = (
            server.listening(sandbox=("--sandbox", "kept"))
            if listening
            else contextlib.nullcontext()
        )
        with started as url:
            other = Server(server.program, ["--sandbox", "kept"])
            async with (
                Client(url, read_timeout_seconds=PATIENCE)
                if listening
                else other.on_streams() as client
            ):
                _, info = await call(client, "sandbox_info")
                assert info["name"] == "kept", info
                await call(client, "start_process", command="sleep 9876")
                await call(client, "run_command", command="sleep 9876 > /dev/null 2>&1 &")
        deadline = time.monotonic() + PATIENCE
        inspect = [server.program, "inspect", "--json", "kept"]
        while json.loads(subprocess.run(inspect, check=True, capture_output=True).stdout)[
            "processes"
        ]:
            assert time.monotonic() < deadline, "what the client started still runs"


async def left_alone(server):
    """Starts all that a client can start, and waits to be killed."""
    async with server.on_streams() as client:
        _, info = await call(client, "sandbox_info")
        _, started = await call(
            client, "start_process", command="setsid sleep 9876 & exec sleep 9875"
        )
        await call(client, "forward_port", port=80)
        print("ready", flush=True)
        await call(client, "run_command", command="sleep 600", timeout=600)


WHAT = {
    "on_streams": on_streams,
    "at_an_address": at_an_address,
    "hostile": hostile,
    "denied": denied,
    "attached": attached,
    "left_alone": left_alone,
}

if __name__ == "__main__":
    what, program, *flags = sys.argv[1:]
    asyncio.run(WHAT[what](Server(program, flags)))
