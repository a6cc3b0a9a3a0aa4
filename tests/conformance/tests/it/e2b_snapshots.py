"""Snapshots, as the official `e2b` package takes them of sandboxes of `ringfence serve`.

The first argument is the directory of the server, the second names the part to run. A part prints
the values that a later part needs, one word per line, and the later part gets them as further
arguments.
"""

import os
import sys
import threading

from checks import eventually, raises, same

from e2b import NotFoundException, RateLimitException, Sandbox, SandboxException, SandboxState

SERVER, ACT, *REST = sys.argv[1:]


def save(sandbox, **more):
    return sandbox.create_snapshot(mode="filesystem", **more)


def listed(**query):
    paginator = Sandbox.list_snapshots(**query)
    found = []
    while paginator.has_next:
        found += paginator.next_items()
    return [info.snapshot_id for info in found]


def on_disk():
    return os.listdir(os.path.join(SERVER, "snapshots"))


# It counts in its memory, and answers each line that is typed with what it has counted to.
ANSWERS = "import sys\nfor number, _ in enumerate(sys.stdin): print(number, flush=True)"


def files():
    """A sandbox made from a snapshot has the saved files, and nothing else of the old sandbox."""
    sandbox = Sandbox.create(timeout=600, envs={"GREETING": "hello"}, metadata={"of": "files"})
    refused = str(raises(SandboxException, sandbox.create_snapshot))
    assert "501" in refused and 'mode="filesystem"' in refused, refused
    refused = str(raises(SandboxException, sandbox.fork))
    assert 'create_snapshot(mode="filesystem")' in refused, refused
    same((listed(), on_disk()), ([], []))

    sandbox.files.write("note", "kept", metadata={"by": "ada"})
    sandbox.files.write("answers.py", ANSWERS)
    sandbox.commands.run(
        "mkdir -p deep/er && echo x > deep/er/file && chmod 500 deep && "
        "touch -d 2001-02-03 deep/er/file"
    )
    sandbox.commands.run("echo gone > /tmp/scratch")
    sandbox.files.write("answers", "")
    counting = sandbox.commands.run("python3 answers.py > answers", background=True, stdin=True)
    sandbox.commands.send_stdin(counting.pid, "\n")
    eventually("it counts", lambda: sandbox.files.read("answers") == "0\n")
    before = sandbox.get_info()
    snapshot = save(sandbox)
    same(snapshot.names, [])
    after = sandbox.get_info()
    same((after.state, after.end_at), (SandboxState.RUNNING, before.end_at))
    # What ran goes on, with what it had in memory.
    sandbox.commands.send_stdin(counting.pid, "\n")
    eventually("it goes on", lambda: sandbox.files.read("answers") == "0\n1\n")
    sandbox.files.write("note", "changed")

    same((listed(), len(on_disk())), ([snapshot.snapshot_id], 1))
    made = [Sandbox.create(snapshot.snapshot_id, timeout=60) for _ in range(2)]
    for child in made:
        same(child.get_info().template_id, "base")
        same(child.files.read("note"), "kept")
        same(child.files.read("answers"), "0\n")
        same(child.files.get_info("note").metadata, {"by": "ada"})
        look = 'stat -c "%a %Y" deep deep/er/file | tr "\\n" " "; date -d 2001-02-03 +%s'
        modes = child.commands.run(look).stdout.split()
        same((modes[0], modes[3]), ("500", modes[4]))
        same(child.commands.run('ls /tmp; printf "$GREETING $HOME"').stdout, " /home/user")
        # It is its own: neither the snapshot nor the other one changes.
        child.files.write("note", "mine")
    for child in made:
        assert child.kill()
    assert sandbox.kill()
    # The snapshot outlives what it was taken of.
    child = Sandbox.create(snapshot.snapshot_id)
    same(child.files.read("note"), "kept")
    same(save(child).names, [])
    same(len(listed()), 2)
    assert child.kill()
    for one in listed():
        assert Sandbox.delete_snapshot(one)
        assert not Sandbox.delete_snapshot(one)
        assert "no template" in str(raises(SandboxException, lambda: Sandbox.create(one)))
    same(listed(), [])
    eventually("the files are gone", lambda: on_disk() == [])


def resting():
    """A sandbox that was paused stays so, and its snapshot is as good."""
    sandbox = Sandbox.create(timeout=60)
    sandbox.files.write("note", "kept")
    assert sandbox.pause()
    before = sandbox.get_info()
    snapshot = save(sandbox)
    same(
        (sandbox.get_info().state, sandbox.get_info().end_at), (SandboxState.PAUSED, before.end_at)
    )
    child = Sandbox.create(snapshot.snapshot_id)
    same(child.files.read("note"), "kept")
    assert child.kill()
    same(Sandbox.connect(sandbox.sandbox_id).files.read("note"), "kept")
    assert sandbox.kill()
    assert Sandbox.delete_snapshot(snapshot.snapshot_id)


# It writes to one file after the other how often it has done so.
WRITES = """
import itertools, os
os.mkdir("many")
files = [open(f"many/{number}", "wb", buffering=0) for number in range(500)]
for count in itertools.count():
    for file in files:
        os.pwrite(file.fileno(), b"%09d" % count, 0)
"""


def standing_still():
    """Nothing runs inside during the copy, so that the copy shows the files of one moment."""
    sandbox = Sandbox.create(timeout=60)
    sandbox.files.write("writes.py", WRITES)
    sandbox.commands.run("python3 writes.py", background=True)
    eventually("it has begun", lambda: sandbox.files.exists("many/499"))
    eventually("it writes", lambda: sandbox.files.read("many/499") > "000000000")
    snapshot = save(sandbox)
    (files,) = on_disk()
    found = []
    for number in range(500):
        with open(os.path.join(SERVER, "snapshots", files, "many", str(number))) as file:
            found.append(int(file.read()))
    same(found, sorted(found, reverse=True))
    assert found[0] - found[-1] <= 1, found
    # It goes on afterwards.
    eventually("it writes", lambda: int(sandbox.files.read("many/499")) > found[0])
    assert sandbox.kill()
    assert Sandbox.delete_snapshot(snapshot.snapshot_id)


def hostile():
    """What a sandbox plants leads nobody astray who copies it."""
    secret = os.path.join(os.path.dirname(SERVER), "secret")
    with open(secret, "w") as file:
        file.write("not for sandboxes")
    sandbox = Sandbox.create()
    plant = f"""
        ln -s /etc/passwd passwd; ln -s {secret} secret
        ln -s {os.path.dirname(SERVER)} around; ln -s . here
        ln -s ../../../../../../../../../../etc outside; ln -s nowhere dangling
        mkfifo pipe; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
        echo one > one; ln one two; mkdir below; ln one below/three
        truncate -s 1T sparse; echo end >> sparse
        mkdir -p "$(printf 'a\\nb\\033[31m')"; touch -- -rf '$(touch x)'
    """
    sandbox.commands.run(plant)
    snapshot = save(sandbox)
    (files,) = on_disk()
    root = os.path.join(SERVER, "snapshots", files)
    same(os.readlink(os.path.join(root, "secret")), secret)
    same(os.readlink(os.path.join(root, "around")), os.path.dirname(SERVER))
    assert not os.path.lexists(os.path.join(root, "pipe")) and not os.path.lexists(
        os.path.join(root, "socket")
    )
    assert os.stat(os.path.join(root, "sparse")).st_blocks < 1000

    child = Sandbox.create(snapshot.snapshot_id)
    same(child.commands.run("readlink passwd secret here").stdout, f"/etc/passwd\n{secret}\n.\n")
    assert child.commands.run("cat secret || true").stdout == "", "it leads nowhere inside"
    same(
        child.commands.run(
            "stat -c %h one two below/three; echo new > two; cat below/three"
        ).stdout,
        "3\n3\n3\nnew\n",
    )
    same(child.commands.run("stat -c %s sparse; tail -c 4 sparse").stdout, f"{2**40 + 4}\nend\n")
    assert child.kill()
    with open(os.path.join(root, "one")) as file:
        same(file.read(), "one\n")
    assert Sandbox.delete_snapshot(snapshot.snapshot_id)
    eventually("the files are gone", lambda: on_disk() == [])
    with open(secret) as file:
        same(file.read(), "not for sandboxes")
    os.remove(secret)
    assert sandbox.kill()


def limits():
    """A tree that is too large or too deep is refused, and the sandbox continues."""
    sandbox = Sandbox.create()
    deep = "import os\nfor _ in range(200): os.mkdir('d'); os.chdir('d')"
    for make, clear, words in (
        (
            "head -c 5000000 /dev/urandom > large",
            "rm large",
            "413: cannot copy the tree: it has more than 4194304 bytes",
        ),
        (
            f'mkdir deep; cd deep; python3 -c "{deep}"',
            "rm -r deep",
            "400: cannot copy the tree: it is more than 128",
        ),
    ):
        sandbox.commands.run(make)
        refused = str(raises(SandboxException, lambda: save(sandbox)))
        assert words in refused and f"in sandbox `{sandbox.sandbox_id}`" in refused, refused
        same((listed(), on_disk()), ([], []))
        same(sandbox.commands.run("echo on").stdout, "on\n")
        sandbox.commands.run(clear)
        assert Sandbox.delete_snapshot(save(sandbox).snapshot_id)
        eventually("the files are gone", lambda: on_disk() == [])
    assert sandbox.kill()


def races():
    """A sandbox killed during the copy leaves a complete snapshot, or nothing."""
    for _ in range(3):
        sandbox = Sandbox.create()
        sandbox.commands.run("mkdir many; cd many; seq 3000 | xargs touch")
        outcome = []

        def take():
            try:
                outcome.append(save(sandbox).snapshot_id)
            except SandboxException:
                pass

        taking = threading.Thread(target=take)
        taking.start()
        eventually("it has begun, or is over", lambda: on_disk() or not taking.is_alive())
        assert sandbox.kill()
        taking.join()
        same(listed(), outcome)
        eventually("only what is kept is there", lambda: len(on_disk()) == len(outcome))
        for one in outcome:
            child = Sandbox.create(one)
            same(child.commands.run("ls many | wc -l").stdout, "3000\n")
            assert child.kill()
            # Files are removed as soon as nobody copies them.
            copying = threading.Thread(target=lambda: raises_or_kills(one))
            copying.start()
            assert Sandbox.delete_snapshot(one)
            copying.join()
        eventually("nothing is left", lambda: on_disk() == [])


def raises_or_kills(snapshot):
    try:
        child = Sandbox.create(snapshot)
    except SandboxException:
        return
    same(child.commands.run("ls many | wc -l").stdout, "3000\n")
    assert child.kill()


def names():
    """A name stands for the snapshot that was taken last with it, whose id stays."""
    sandbox = Sandbox.create()
    sandbox.files.write("note", "first")
    first = save(sandbox, name="team/work-1.0")
    same(first.names, ["team/work-1.0"])
    sandbox.files.write("note", "second")
    tagged = save(sandbox, name="team/work-1.0:v2")
    second = save(sandbox, name="team/work-1.0:default")
    same((second.snapshot_id, second.names), (first.snapshot_id, first.names))
    eventually("what it was is gone", lambda: len(on_disk()) == 2)
    other = Sandbox.create()
    third = save(other)
    same(listed(), [third.snapshot_id, second.snapshot_id, tagged.snapshot_id])
    same(listed(name="team/work-1.0"), [second.snapshot_id])
    same(listed(name=third.snapshot_id), [third.snapshot_id])
    same(listed(name="none"), [])
    same(listed(sandbox_id=other.sandbox_id), [third.snapshot_id])
    same([info.snapshot_id for info in other.list_snapshots().next_items()], [third.snapshot_id])
    paginator = Sandbox.list_snapshots(limit=1)
    pages = []
    while paginator.has_next:
        pages.append([info.snapshot_id for info in paginator.next_items()])
    same(pages, [[third.snapshot_id], [second.snapshot_id], [tagged.snapshot_id]])
    for called in ("team/work-1.0", "team/work-1.0:default", second.snapshot_id):
        child = Sandbox.create(called)
        same(child.files.read("note"), "second")
        assert child.kill()

    for wrong in ("base", "a b", "ä", "x" * 129, "$(id)"):
        assert "400" in str(raises(SandboxException, lambda: save(sandbox, name=wrong))), wrong
    assert "403" in str(raises(SandboxException, lambda: Sandbox.delete_snapshot("base")))
    assert not Sandbox.delete_snapshot("../../workspaces")
    assert Sandbox.delete_snapshot("team/work-1.0:v2")
    for one in listed():
        assert Sandbox.delete_snapshot(one)
    for one in (sandbox, other):
        assert one.kill()
    eventually("the files are gone", lambda: on_disk() == [])


def network():
    """A sandbox made from a snapshot keeps its network rules, unless it is given its own."""
    sandbox = Sandbox.create("open", allow_internet_access=False)
    closed = save(sandbox)
    open_ = Sandbox.create("open")
    reaching = save(open_)
    for snapshot, more, expected in (
        (closed, {}, False),
        (closed, {"network": {"allow_out": ["example.org"], "deny_out": ["0.0.0.0/0"]}}, True),
        (reaching, {}, True),
        (reaching, {"allow_internet_access": False}, False),
    ):
        child = Sandbox.create(snapshot.snapshot_id, **more)
        same(child.get_info().allow_internet_access, expected)
        look = "tail -n +3 /proc/net/dev | wc -l; echo ${HTTP_PROXY:+proxy}"
        interfaces, *proxy = child.commands.run(look).stdout.split()
        same(interfaces != "1" or proxy == ["proxy"], expected)
        assert child.kill()
    # Also what it was kept from since it was started.
    everything = ["0.0.0.0/0"]
    narrow = Sandbox.create(
        "open", network={"allow_out": ["example.org", "example.net"], "deny_out": everything}
    )
    narrow.update_network({"allow_out": ["example.org"], "deny_out": everything})
    narrower = save(narrow)
    child = Sandbox.create(narrower.snapshot_id)
    same(child.get_info().network["allow_out"], ["example.org"])
    assert child.kill()
    # And who is kept from it: ports that need a token do so again, unless they are told their own.
    private = Sandbox.create("open", network={"allow_public_traffic": False})
    shut = save(private)
    for more, expected in (({}, True), ({"network": {"allow_public_traffic": True}}, False)):
        child = Sandbox.create(shut.snapshot_id, **more)
        same(child.get_info().network["allow_public_traffic"], not expected)
        assert child.traffic_access_token != private.traffic_access_token
        assert child.kill()
    for one in (sandbox, open_, narrow, private):
        assert one.kill()
    for one in (closed, reaching, narrower, shut):
        assert Sandbox.delete_snapshot(one.snapshot_id)


def tenants(one, other):
    """A snapshot is its key's: for others it is not there."""
    mine = Sandbox.create(api_key=one)
    mine.files.write("note", "secret")
    snapshot = save(mine, name="work")
    yours = Sandbox.create(api_key=other)
    same(listed(api_key=other), [])
    same(listed(api_key=other, name=snapshot.snapshot_id), [])
    same(listed(api_key=other, sandbox_id=mine.sandbox_id), [])
    raises(
        NotFoundException,
        lambda: Sandbox.create_snapshot(mine.sandbox_id, mode="filesystem", api_key=other),
    )
    for called in (snapshot.snapshot_id, "work"):
        assert not Sandbox.delete_snapshot(called, api_key=other)
        assert "no template" in str(
            raises(SandboxException, lambda: Sandbox.create(called, api_key=other))
        )
    # The same name is another's own.
    theirs = save(yours, name="work")
    assert theirs.snapshot_id != snapshot.snapshot_id
    same(
        (listed(api_key=one), listed(api_key=other)), ([snapshot.snapshot_id], [theirs.snapshot_id])
    )
    child = Sandbox.create("work", api_key=one)
    same(child.files.read("note"), "secret")
    for sandbox in (mine, yours, child):
        assert sandbox.kill()
    assert Sandbox.delete_snapshot("work", api_key=other)
    same(listed(api_key=one), [snapshot.snapshot_id])


def at_once(sandbox, many):
    """Has so many snapshots be taken at the same time; those that are kept."""
    kept = []

    def take():
        try:
            kept.append(save(sandbox))
        except RateLimitException:
            pass

    taking = [threading.Thread(target=take) for _ in range(many)]
    for one in taking:
        one.start()
    for one in taking:
        one.join()
    return kept


def quota(key):
    """A key that may keep two snapshots."""
    sandbox = Sandbox.create(api_key=key)
    kept = [save(sandbox, name="one"), save(sandbox)]
    raises(RateLimitException, lambda: save(sandbox))
    raises(RateLimitException, lambda: save(sandbox, name="two"))
    same(save(sandbox, name="one").snapshot_id, kept[0].snapshot_id)
    assert Sandbox.delete_snapshot(kept[1].snapshot_id, api_key=key)
    kept[1:] = at_once(sandbox, 4)
    same(len(kept), 2)
    eventually("nothing is left of the others", lambda: len(on_disk()) == 3)
    raises(RateLimitException, lambda: save(sandbox))
    for one in kept:
        assert Sandbox.delete_snapshot(one.snapshot_id, api_key=key)
    assert sandbox.kill()
    eventually("the files are gone", lambda: len(on_disk()) == 1)


def begin():
    """Snapshots for a server that comes after this one."""
    sandbox = Sandbox.create(timeout=60)
    sandbox.files.write("note", "kept")
    print(save(sandbox, name="work").snapshot_id)
    gone = Sandbox.create("other")
    print(save(gone).snapshot_id)
    assert sandbox.kill() and gone.kill()


def found_again(work, of_other):
    """Those snapshots, as a server has them that has no template `other`."""
    same(sorted(listed()), sorted([work, of_other]))
    eventually("what belongs to none is gone", lambda: len(on_disk()) == 2)
    child = Sandbox.create("work")
    same(child.files.read("note"), "kept")
    assert child.kill()
    refused = str(raises(SandboxException, lambda: Sandbox.create(of_other)))
    assert f"there is no template `other`, on which snapshot `{of_other}` is based" in refused, (
        refused
    )
    for one in (work, of_other):
        assert Sandbox.delete_snapshot(one)
    eventually("the files are gone", lambda: on_disk() == [])


globals()[ACT](*REST)
