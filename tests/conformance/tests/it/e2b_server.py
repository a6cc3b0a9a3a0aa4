"""The official `e2b` package against `ringfence serve`.

The first argument is the URL of the server for plain HTTP; TLS uses host names. The second
argument names the part to run. A part prints the values that a later part needs, one word per line,
and the later part gets them as further arguments.
"""

import asyncio
import http.server
import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request

from checks import PATIENCE, eventually, raises, same

URL, ACT, *REST = sys.argv[1:]
if URL.startswith("https:"):
    os.environ["E2B_DOMAIN"] = "sbx.localhost:" + URL.rpartition(":")[2]
else:
    os.environ["E2B_API_URL"] = os.environ["E2B_SANDBOX_URL"] = URL
os.environ.setdefault("E2B_API_KEY", "e2b_" + "0" * 40)
os.environ["NO_PROXY"] = "127.0.0.1,localhost"

from e2b import (  # noqa: E402
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    NotFoundException,
    RateLimitException,
    Sandbox,
    SandboxException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)


def listed(**query):
    paginator = Sandbox.list(query=SandboxQuery(**query) if query else None)
    found = []
    while paginator.has_next:
        found += paginator.next_items()
    return [info.sandbox_id for info in found]


def status(url, method="GET", headers=None, body=None, wants_headers=False):
    request = urllib.request.Request(url, method=method, headers=headers or {}, data=body)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=PATIENCE) as answer:
            return answer.status, answer.headers if wants_headers else answer.read()
    except urllib.error.HTTPError as answer:
        return answer.code, answer.headers if wants_headers else answer.read()


def life():
    """A sandbox from its start to its end."""
    sandbox = Sandbox.create(
        timeout=120, metadata={"of": "life", "a b": "c&d"}, envs={"GREETING": "hello"}
    )
    same(
        sandbox.commands.run('printf "$GREETING $HOME $PWD"').stdout, "hello /home/user /home/user"
    )
    error = raises(CommandExitException, lambda: sandbox.commands.run("echo why >&2; exit 3"))
    same((error.stderr, error.exit_code), ("why\n", 3))
    raises(TimeoutException, lambda: sandbox.commands.run("sleep 60", timeout=1))
    assert len(sandbox.commands.run("head -c 3000000 /dev/zero | tr '\\0' x").stdout) == 3_000_000

    sandbox.files.write("note", "ä\n" * 100_000)
    same(sandbox.files.read("/home/user/note"), "ä\n" * 100_000)
    same([entry.name for entry in sandbox.files.list("/home/user")], ["note"])
    raises(NotFoundException, lambda: sandbox.files.read("missing"))
    handle = sandbox.commands.run("cat", background=True, stdin=True)
    sandbox.commands.send_stdin(handle.pid, "typed\n")
    sandbox.commands.close_stdin(handle.pid)
    same(handle.wait().stdout, "typed\n")

    info = sandbox.get_info()
    same(
        (info.sandbox_id, info.template_id, info.state),
        (sandbox.sandbox_id, "base", SandboxState.RUNNING),
    )
    same(info.metadata, {"of": "life", "a b": "c&d"})
    assert info.cpu_count > 0 and info.memory_mb > 0, info
    metric = sandbox.get_metrics()[-1]
    assert metric.cpu_count > 0 and 0 < metric.mem_used < metric.mem_total, metric

    sandbox.set_timeout(600)
    later = sandbox.get_info().end_at
    assert (later - info.end_at).total_seconds() > 300, (later, info.end_at)
    again = Sandbox.connect(sandbox.sandbox_id, timeout=30)
    same(again.commands.run("cat note | wc -l").stdout, "100000\n")
    assert again.get_info().end_at >= later, "connecting makes no life shorter"

    assert "cannot copy the memory" in str(raises(SandboxException, sandbox.create_snapshot))
    assert sandbox.is_running()
    assert sandbox.kill()
    assert not sandbox.kill()
    assert not sandbox.is_running()
    raises(NotFoundException, lambda: Sandbox.connect(sandbox.sandbox_id))
    raises(SandboxException, lambda: sandbox.commands.run("true"))
    same(listed(metadata={"of": "life"}), [])


def lists():
    """Many sandboxes, in pages and by what they are."""
    made = [
        Sandbox.create(metadata={"of": "lists", "even": str(number % 2 == 0)})
        for number in range(5)
    ]
    ids = [sandbox.sandbox_id for sandbox in made]
    same(listed(metadata={"of": "lists"}), ids[::-1])
    same(listed(metadata={"of": "lists", "even": "True"}), ids[::-2])
    same(listed(metadata={"of": "lists"}, state=[SandboxState.PAUSED]), [])
    paginator = Sandbox.list(query=SandboxQuery(metadata={"of": "lists"}), limit=2)
    pages = []
    while paginator.has_next:
        pages.append([info.sandbox_id for info in paginator.next_items()])
    same(pages, [ids[4:2:-1], ids[2:0:-1], ids[:1]])
    for sandbox in made:
        sandbox.kill()


def expiry():
    """A sandbox whose time is over is gone, and one whose time is made shorter, too."""
    short = Sandbox.create(timeout=2)
    cut = Sandbox.create(timeout=600)
    stays = Sandbox.create(timeout=600)
    stays.set_timeout(5)
    over = time.monotonic() + 5
    stays.set_timeout(600)
    cut.set_timeout(1)
    for sandbox in (short, cut):
        eventually("its time is over", lambda: not sandbox.is_running())
        eventually("nobody lists it", lambda: sandbox.sandbox_id not in listed())
    time.sleep(max(0, over - time.monotonic()))
    assert stays.is_running()
    same(stays.commands.run("echo here").stdout, "here\n")
    stays.kill()


# It counts in its memory, and answers each line that is typed with what it has counted to.
ANSWERS = "import sys\nfor number, _ in enumerate(sys.stdin): print(number, flush=True)"


def ask(sandbox, pid, expected):
    """Makes the process with that id answer once more, which shows that its memory is intact."""
    sandbox.commands.send_stdin(pid, "\n")
    eventually(
        f"it says {expected}", lambda: sandbox.files.read("answers").split()[-1:] == [expected]
    )


def pausing():
    """A sandbox at rest is listed as such, does nothing, and goes on where it was."""
    sandbox = Sandbox.create(timeout=120, metadata={"of": "pausing"})
    sandbox.files.write("answers", "")
    pid = sandbox.commands.run(f"python3 -c '{ANSWERS}' > answers", background=True, stdin=True).pid
    ask(sandbox, pid, "0")
    assert sandbox.pause()
    assert not sandbox.pause(), "it is paused already"
    same(sandbox.get_info().state, SandboxState.PAUSED)
    same(listed(metadata={"of": "pausing"}), [sandbox.sandbox_id])
    same(listed(metadata={"of": "pausing"}, state=[SandboxState.PAUSED]), [sandbox.sandbox_id])
    same(listed(metadata={"of": "pausing"}, state=[SandboxState.RUNNING]), [])
    assert not sandbox.is_running()
    raises(SandboxException, lambda: sandbox.commands.run("true"))
    raises(SandboxException, lambda: sandbox.set_timeout(60))
    raises(SandboxException, lambda: Sandbox.pause(sandbox.sandbox_id, mode="filesystem"))
    again = Sandbox.connect(sandbox.sandbox_id, timeout=60)
    same(again.get_info().state, SandboxState.RUNNING)
    assert again.is_running()
    ask(again, pid, "1")
    key = {"X-API-KEY": "e2b_0"}
    same(status(f"{URL}/sandboxes/{sandbox.sandbox_id}/connect", "POST", key, b"{}")[0], 200)
    assert again.pause(strict=True)
    same(status(f"{URL}/v2/sandboxes/{sandbox.sandbox_id}/connect", "POST", key, b"{}")[0], 201)
    assert again.pause()
    assert again.kill(), "one that is paused can be killed"
    same(listed(metadata={"of": "pausing"}), [])


def resting():
    """A sandbox can be paused instead of killed at its timeout, and its next use resumes it."""
    kept = Sandbox.create(timeout=2, lifecycle={"on_timeout": "pause"})
    woken = Sandbox.create(timeout=2, lifecycle={"on_timeout": "pause", "auto_resume": True})
    same(kept.get_info().lifecycle["on_timeout"], "pause")
    for sandbox in (kept, woken):
        eventually("it is paused", lambda: sandbox.get_info().state == SandboxState.PAUSED)
    assert not woken.is_running(), "asking whether it runs does not make it"
    same(woken.commands.run("echo awake").stdout, "awake\n")
    same(woken.get_info().state, SandboxState.RUNNING)
    raises(SandboxException, lambda: kept.commands.run("true"))
    same(kept.get_info().state, SandboxState.PAUSED)
    for sandbox in (kept, woken):
        assert sandbox.kill()


def rest():
    """A paused sandbox for a server that comes after this one."""
    sandbox = Sandbox.create(timeout=600)
    sandbox.files.write("answers", "")
    pid = sandbox.commands.run(f"python3 -c '{ANSWERS}' > answers", background=True, stdin=True).pid
    ask(sandbox, pid, "0")
    sandbox.set_timeout(8)
    over = time.time() + 8
    assert sandbox.pause()
    print(sandbox.sandbox_id, pid, over, sep="\n")


def rested(sandbox_id, pid, over):
    """That sandbox, as the next server has it: its time did not pass."""
    eventually("its time would be over", lambda: time.time() > float(over) + 1)
    same(Sandbox.get_info(sandbox_id).state, SandboxState.PAUSED)
    sandbox = Sandbox.connect(sandbox_id, timeout=60)
    ask(sandbox, int(pid), "1")
    assert sandbox.kill()


def streams():
    """A sandbox that is killed breaks off what runs in it."""
    sandbox = Sandbox.create()
    handle = sandbox.commands.run("echo started; sleep 600", background=True)
    heard = next(iter(handle))
    same(heard[0], "started\n")
    assert sandbox.kill()
    raises(SandboxException, handle.wait)


def asynchronous():
    """The package's other half, and many at once."""

    async def act():
        sandbox = await AsyncSandbox.create()
        results = await asyncio.gather(
            *(sandbox.commands.run(f"echo {number}") for number in range(20))
        )
        same([result.stdout for result in results], [f"{number}\n" for number in range(20)])
        await sandbox.kill()

    asyncio.run(act())


def signatures():
    """A file by a URL alone, which names no sandbox."""
    sandbox, other = Sandbox.create(), Sandbox.create()
    sandbox.files.write("/home/user/shared", "for you")
    url = sandbox.download_url("/home/user/shared", use_signature_expiration=60)
    same(status(url), (200, b"for you"))
    code, body = status(url.replace("shared", "secret"))
    same((code, json.loads(body)["code"]), (401, 401))
    code, body = status(sandbox.download_url("/home/user/shared", use_signature_expiration=-60))
    same((code, json.loads(body)["message"]), (401, "signature is already expired"))
    code, _ = status(
        sandbox.upload_url("/home/user/up"),
        "POST",
        {"Content-Type": "application/octet-stream"},
        b"sent",
    )
    same((code, sandbox.files.read("up")), (200, "sent"))
    # Another sandbox's token opens nothing here.
    route = {"E2b-Sandbox-Id": sandbox.sandbox_id, "X-Access-Token": other._envd_access_token}
    same(status(f"{URL}/files?path=/home/user/shared", headers=route)[0], 401)
    route["X-Access-Token"] = sandbox._envd_access_token
    same(status(f"{URL}/files?path=/home/user/shared", headers=route), (200, b"for you"))
    # What is between a guest and its host is not for clients.
    for path in ("/init", "/tree?path=/"):
        same(status(URL + path, "POST", route, b"{}")[0], 404)
    sandbox.kill()
    other.kill()


def ports():
    """What listens inside, by host name and by header."""
    sandbox = Sandbox.create()
    sandbox.files.write("page", "hello from inside")
    sandbox.commands.run("python3 -m http.server 8000 --bind 127.0.0.1", background=True)
    host = {"Host": f"8000-{sandbox.sandbox_id}.sbx.localhost"}
    eventually(
        "it listens", lambda: status(f"{URL}/page", headers=host) == (200, b"hello from inside")
    )
    route = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "8000"}
    same(status(f"{URL}/page", headers=route), (200, b"hello from inside"))
    code, body = status(f"{URL}/page", headers={"Host": f"8001-{sandbox.sandbox_id}.sbx.localhost"})
    same(code, 502)
    assert "port is not open" in json.loads(body)["message"], body
    private = Sandbox.create(network={"allow_public_traffic": False})
    route = {"E2b-Sandbox-Id": private.sandbox_id, "E2b-Sandbox-Port": "8000"}
    same(status(f"{URL}/page", headers=route)[0], 403)
    route["E2b-Traffic-Access-Token"] = private.traffic_access_token
    same(status(f"{URL}/page", headers=route)[0], 502)
    sandbox.kill()
    private.kill()


# It listens on some port, tells which, and has the directory's files for whoever asks.
LISTENS = """
import http.server
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
with open("port", "w") as file:
    file.write(f"{server.server_port}\\n")
server.serve_forever()
"""


def shared_ports():
    """Of the host's network, a sandbox has those ports that its own processes listen on."""
    one, other = (
        Sandbox.create("open"),
        Sandbox.create("open", network={"allow_public_traffic": False}),
    )
    other.files.write("page", "with a token alone")
    other.files.write("listens.py", LISTENS)
    other.commands.run("python3 listens.py", background=True)
    eventually(
        "it listens", lambda: other.files.exists("port") and other.files.read("port").endswith("\n")
    )
    port = other.files.read("port").strip()
    ours = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=ours.serve_forever, daemon=True).start()

    def at(sandbox, port, **more):
        return status(
            f"{URL}/page",
            headers={"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": str(port), **more},
        )

    token = {"E2b-Traffic-Access-Token": other.traffic_access_token}
    same(at(other, port, **token), (200, b"with a token alone"))
    same(at(other, port)[0], 403)
    # Both are there for who is inside, and for no visitor.
    for known in (port, ours.server_port):
        reach = f"import socket; socket.create_connection(('127.0.0.1', {known})); print('reached')"
        same(one.commands.run(f'python3 -c "{reach}"').stdout, "reached\n")
        code, body = at(one, known)
        same(code, 502)
        assert "port is not open" in json.loads(body)["message"], body
    ours.shutdown()
    assert one.kill() and other.kill()


def refusals():
    """What is wrong is told in the form that clients read."""
    assert "no template" in str(
        raises(SandboxException, lambda: Sandbox.create(template="no-such-template"))
    )
    raises(SandboxException, lambda: Sandbox.create(timeout=10**6))
    raises(SandboxException, lambda: Sandbox.create(envs={"": "x"}))
    raises(SandboxException, lambda: Sandbox.create(network={"dns_servers": ["192.0.2.1"]}))
    raises(NotFoundException, lambda: Sandbox.connect("nosuchsandbox"))
    key = {"X-API-KEY": "e2b_0"}
    for method, path, body, expected in (
        ("POST", "/sandboxes", b"{", 400),
        ("POST", "/sandboxes", b"[]", 400),
        ("POST", "/sandboxes", b"x" * (2 << 20), 413),
        ("GET", "/sandboxes?limit=x", None, 400),
        ("GET", "/no/such/thing", None, 404),
        ("PATCH", "/sandboxes", b"", 404),
        ("GET", "/sandboxes/../../etc/passwd", None, 404),
    ):
        code, answer = status(URL + path, method, key, body)
        same((code, json.loads(answer)["code"]), (expected, expected))
    same(status(f"{URL}/sandboxes")[0], 401)
    same(status(f"{URL}/sandboxes", headers={**key, "Host": "example.org"})[0], 401)
    same(status(f"{URL}/sandboxes", headers={**key, "X-Forwarded-For": "192.0.2.1"})[0], 401)
    same(status(f"{URL}/sandboxes", headers=key)[0], 200)


def repeats():
    """A request that is sent again with the same key is the same request."""

    def create(key, body):
        headers = {"X-API-KEY": "e2b_0", "Idempotency-Key": key}
        code, answer = status(f"{URL}/v2/sandboxes", "POST", headers, json.dumps(body).encode())
        return code, json.loads(answer).get("sandboxID")

    body = {"templateID": "base", "metadata": {"of": "repeats"}}
    first = create("one", body)
    same(first[0], 201)
    same(create("one", body), first)
    same(create("one", {**body, "timeout": 7})[0], 422)
    other = create("other", body)
    assert other[0] == 201 and other != first, other
    same(set(listed(metadata={"of": "repeats"})), {first[1], other[1]})
    for _, one in (first, other):
        assert Sandbox.kill(one)
    same(create("one", body)[0], 404)
    same(create("wrong", {"templateID": "none"})[0], 404)


def history():
    """What a sandbox used is told with its times, and for several at once."""
    sandbox = Sandbox.create(metadata={"of": "history"})
    sandbox.commands.run("timeout 10 sh -c 'while :; do :; done'", background=True)
    eventually("it is seen to be busy", lambda: sandbox.get_metrics()[-1].cpu_used_pct > 0)
    eventually("it is looked at again", lambda: len(sandbox.get_metrics()) > 2)
    found = sandbox.get_metrics()
    same([metric.timestamp for metric in found], sorted(metric.timestamp for metric in found))
    same(sandbox.get_metrics(end=found[0].timestamp.replace(year=2000)), [])
    code, answer = status(
        f"{URL}/sandboxes/metrics?sandbox_ids={sandbox.sandbox_id},none",
        headers={"X-API-KEY": "e2b_0"},
    )
    same((code, list(json.loads(answer)["sandboxes"])), (200, [sandbox.sandbox_id]))
    sandbox.kill()


def begin():
    """A sandbox for a server that comes after this one."""
    sandbox = Sandbox.create(timeout=600, metadata={"of": "restart"})
    sandbox.files.write("note", "kept")
    gone = Sandbox.create(timeout=2)
    print(sandbox.sandbox_id, gone.sandbox_id, sep="\n")


def found_again(sandbox_id, gone):
    """That sandbox, as the next server has it."""
    same(listed(), [sandbox_id])
    sandbox = Sandbox.connect(sandbox_id)
    same(sandbox.get_info().metadata, {"of": "restart"})
    same(sandbox.files.read("note"), "kept")
    same(sandbox.commands.run("cat note").stdout, "kept")
    raises(NotFoundException, lambda: Sandbox.connect(gone))
    print(sandbox_id)


def vanished(sandbox_id):
    """A sandbox that was ended behind the server's back."""
    same(listed(), [])
    raises(NotFoundException, lambda: Sandbox.connect(sandbox_id))


def tenants(one, other):
    """Each key has its own sandboxes, and no key has none."""
    raises(AuthenticationException, lambda: Sandbox.create(api_key="e2b_" + "0" * 40))
    mine = Sandbox.create(api_key=one)
    yours = Sandbox.create(api_key=other)
    for key, own, foreign in ((one, mine, yours), (other, yours, mine)):
        items = Sandbox.list(api_key=key).next_items()
        same([info.sandbox_id for info in items], [own.sandbox_id])
        raises(NotFoundException, lambda: Sandbox.connect(foreign.sandbox_id, api_key=key))
        assert not Sandbox.kill(foreign.sandbox_id, api_key=key)
        for act in ("timeout", "pause", "connect"):
            code, _ = status(
                f"{URL}/sandboxes/{foreign.sandbox_id}/{act}",
                "POST",
                {"X-API-KEY": key},
                b'{"timeout": 1}',
            )
            same(code, 404)
    same(mine.commands.run("echo still here").stdout, "still here\n")
    mine.kill()
    yours.kill()


def quotas(at_once, per_minute):
    """One key may have two sandboxes at once, and another may start one per minute.

    Each sandbox may live for ten minutes.
    """
    made = [Sandbox.create(api_key=at_once, timeout=300) for _ in range(2)]
    raises(RateLimitException, lambda: Sandbox.create(api_key=at_once))
    assert made[1].pause()
    raises(RateLimitException, lambda: Sandbox.create(api_key=at_once))
    raises(SandboxException, lambda: made[0].set_timeout(601))
    assert made[0].kill()
    made[0] = Sandbox.create(api_key=at_once, timeout=590)
    # The life that is left is enough to connect, whatever the client wants of it.
    Sandbox.connect(made[0].sandbox_id, api_key=at_once, timeout=3600)
    alone = Sandbox.create(api_key=per_minute)
    alone.kill()
    body = b'{"templateID": "base"}'
    code, headers = status(
        f"{URL}/sandboxes", "POST", {"X-API-KEY": per_minute}, body, wants_headers=True
    )
    same(code, 429)
    assert 0 < int(headers["Retry-After"]) <= 61, headers
    for sandbox in made:
        sandbox.kill()


def spent(key):
    """After a key used its second of processor time per day, its sandboxes are paused."""
    sandbox = Sandbox.create(api_key=key)
    sandbox.commands.run("timeout 30 sh -c 'while :; do :; done'", background=True)
    eventually("it is paused", lambda: sandbox.get_info().state == SandboxState.PAUSED)
    for path in ("/v2/sandboxes", f"/sandboxes/{sandbox.sandbox_id}/connect"):
        body = b'{"templateID": "base"}'
        code, headers = status(URL + path, "POST", {"X-API-KEY": key}, body, wants_headers=True)
        same(code, 429)
        assert 0 < int(headers["Retry-After"]) <= 24 * 60 * 60, headers
    assert sandbox.kill()


def counter(name):
    code, text = status(f"{URL}/metrics")
    same(code, 200)
    return next(
        int(line.split()[1])
        for line in text.decode().splitlines()
        if line.startswith(f"ringfence_{name} ")
    )


def warm():
    """Sandboxes that waited for a client, of a server that has two wait."""
    ids = set()
    for number in range(4):
        eventually("some wait", lambda: counter("sandboxes_waiting") > 0)
        sandbox = Sandbox.create(timeout=60, envs={"NUMBER": str(number)}, metadata={"of": "warm"})
        ids.add(sandbox.sandbox_id)
        same(
            sandbox.commands.run('printf "$NUMBER $HOME $PWD"; ls -A').stdout,
            f"{number} /home/user /home/user",
        )
        assert 30 < (sandbox.get_info().end_at - sandbox.get_info().started_at).total_seconds() < 90
        sandbox.files.write("mine", "x")
    same(len(ids), 4)
    same(set(listed(metadata={"of": "warm"})), ids)
    same(counter("sandboxes"), 4)
    short = Sandbox.create(timeout=2)
    eventually("its time is over", lambda: not short.is_running())
    for one in ids:
        assert Sandbox.kill(one)


def interpreter():
    """The code interpreter's package: cells and contexts."""
    from e2b_code_interpreter import Sandbox as Interpreter

    sandbox = Interpreter.create(timeout=120)
    first = sandbox.run_code("x = 41; print('out'); x + 1")
    same(
        (first.text, first.logs.stdout, first.execution_count, first.error),
        ("42", ["out\n"], 1, None),
    )
    same(sandbox.run_code("x").text, "41")
    failed = sandbox.run_code("1 / 0").error
    same((failed.name, failed.value), ("ZeroDivisionError", "division by zero"))
    rich = sandbox.run_code("class A:\n def _repr_html_(self): return '<b>'\nA()").results[0]
    same((rich.html, rich.is_main_result), ("<b>", True))
    same(sandbox.run_code("echo $A", language="bash", envs={"A": "b"}).logs.stdout, ["b\n"])
    context = sandbox.create_code_context(cwd="/tmp")
    same((context.language, context.cwd), ("python", "/tmp"))
    same(sandbox.run_code("import os; y = os.getcwd(); y", context=context).text, "/tmp")
    same([one.language for one in sandbox.list_code_contexts()], ["python", "bash", "python"])
    sandbox.restart_code_context(context)
    same(sandbox.run_code("y", context=context).error.name, "NameError")
    # A client that goes away has its cell interrupted.
    raises(
        TimeoutException,
        lambda: sandbox.run_code("import time; time.sleep(600)", context=context, timeout=1),
    )
    same(sandbox.run_code("1", context=context).text, "1")
    ended = sandbox.run_code("import os; os._exit(3)", context=context).error
    assert ended.value.endswith("has ended: its process exited with 3"), ended
    sandbox.remove_code_context(context)
    raises(NotFoundException, lambda: sandbox.run_code("1", context=context))
    assert sandbox.kill()


# Asks the proxy of a sandbox for a page of the host's own, which the variables would not lead to.
FETCH = """
import os, socket, sys
host, _, port = os.environ["HTTP_PROXY"].removeprefix("http://").partition(":")
with socket.create_connection((host, int(port))) as stream:
    page = f"127.0.0.1:{sys.argv[1]}"
    head = f"GET http://{page}/ HTTP/1.1\\r\\nHost: {page}\\r\\nConnection: close\\r\\n\\r\\n"
    stream.sendall(head.encode())
    print(stream.makefile().readline().split()[1])
"""


def fetched(sandbox, port):
    sandbox.files.write("fetch.py", FETCH)
    return sandbox.commands.run(f"python3 fetch.py {port}").stdout.strip()


def network(port):
    """What a sandbox may reach, changed while it runs; one is left for the next server."""
    page, everything = f"127.0.0.1:{port}", ["0.0.0.0/0"]
    sandbox = Sandbox.create(timeout=600)

    def told():
        info = sandbox.get_info()
        return info.allow_internet_access, info.network["allow_out"], info.network["deny_out"]

    all_of_it = (True, [page, "*.example.org"], everything + ["b.example.org"])
    same((fetched(sandbox, port), told()), ("200", all_of_it))
    sandbox.update_network({"allow_internet_access": False})
    same((fetched(sandbox, port), told()), ("403", (False, [], everything + ["b.example.org"])))
    sandbox.update_network({})
    same((fetched(sandbox, port), told()), ("200", all_of_it))
    sandbox.update_network(
        {"allow_out": ["a.example.org"], "deny_out": lambda context: [context.all_traffic]}
    )
    same(
        (fetched(sandbox, port), told()),
        ("403", (True, ["a.example.org"], everything + ["b.example.org"])),
    )
    sandbox.update_network({"allow_out": [page], "deny_out": everything})
    same(fetched(sandbox, port), "200")
    sandbox.update_network({"deny_out": [page]})
    same(fetched(sandbox, port), "403")
    policy = json.loads(
        status(f"{URL}/ringfence/sandboxes/{sandbox.sandbox_id}", headers={"X-API-KEY": "e2b_0"})[1]
    )
    assert f'deny = ["b.example.org", "{page}"]' in policy["policy"], policy

    # Never beyond the template, and nothing that is not kept.
    for beyond in (
        {"allow_out": ["example.net"], "deny_out": everything},
        {"dns_servers": ["192.0.2.1"]},
        {"egress_proxy": {"address": "proxy.example.org:1080"}},
        {"allow_out": ["not a host"], "deny_out": everything},
    ):
        same(raises(SandboxException, lambda: sandbox.update_network(beyond)).status_code, 400)
    same(fetched(sandbox, port), "403")
    closed = Sandbox.create(allow_internet_access=False)
    closed.update_network({"deny_out": everything})
    assert "cannot be opened" in str(raises(SandboxException, lambda: closed.update_network({})))
    same(closed.get_info().allow_internet_access, False)
    closed.kill()
    raises(NotFoundException, lambda: Sandbox.update_network("nosuchsandbox", {}))
    # Also of one that is at rest.
    sandbox.pause()
    sandbox.update_network({"allow_internet_access": False})
    sandbox = Sandbox.connect(sandbox.sandbox_id)
    same(fetched(sandbox, port), "403")
    print(sandbox.sandbox_id)
    other = Sandbox.create("other", timeout=600)
    other.update_network({"allow_internet_access": False})
    print(other.sandbox_id)


def network_kept(sandbox_id, other_id, port):
    """The same sandboxes at the next server.

    That server does not know the hosts that the template `other` allows.
    """
    sandbox = Sandbox.connect(sandbox_id)
    same((fetched(sandbox, port), sandbox.get_info().allow_internet_access), ("403", False))
    sandbox.update_network({})
    same((fetched(sandbox, port), sandbox.get_info().allow_internet_access), ("200", True))
    sandbox.kill()
    other = Sandbox.connect(other_id)
    page = {"allow_out": [f"127.0.0.1:{port}"], "deny_out": ["0.0.0.0/0"]}
    assert "`other` of the sandbox no longer exists" in str(
        raises(SandboxException, lambda: other.update_network(page))
    )
    same((fetched(other, port), other.get_info().allow_internet_access), ("403", False))
    other.kill()


def refused(key):
    """A key that was revoked."""
    raises(AuthenticationException, Sandbox.list(api_key=key).next_items)


globals()[ACT](*REST)
