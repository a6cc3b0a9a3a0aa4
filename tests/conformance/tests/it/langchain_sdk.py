"""`langchain-e2b` against `ringfence serve`: what an agent's tools call of a sandbox."""

import asyncio

import e2b
from checks import raises, same
from langchain_e2b import AsyncE2BSandbox, E2BSandbox

HOME = "/home/user"


def tools(sandbox):
    ran = sandbox.execute("echo out; echo err >&2; pwd")
    same((ran.exit_code, ran.output), (0, f"out\n{HOME}\n\nerr\n"))
    same(sandbox.execute("exit 3").exit_code, 3)
    same(sandbox.execute("sleep 60", timeout=1).exit_code, 124)

    note = f"{HOME}/notes/note.txt"
    same(sandbox.write(note, "one\ntwo\n").error, None)
    assert "already exists" in sandbox.write(note, "again").error
    same(sandbox.read(note).file_data["content"], "one\ntwo")
    same(sandbox.read(f"{HOME}/missing").error, f"File '{HOME}/missing': file_not_found")
    same(sandbox.edit(note, "two", "three").occurrences, 1)
    same(
        [(match["path"], match["line"]) for match in sandbox.grep("three", HOME).matches],
        [(note, 2)],
    )
    same([match["path"] for match in sandbox.glob("**/*.txt", HOME).matches], ["notes/note.txt"])
    same(sandbox.ls(f"{HOME}/notes").entries, [{"path": note, "is_dir": False}])


def files(sandbox):
    content = bytes(range(256)) * 4096
    sent = sandbox.upload_files(
        [(f"{HOME}/bytes", content), ("relative", b""), (f"{HOME}/notes", b"")]
    )
    same([answer.error for answer in sent], [None, "invalid_path", "is_directory"])
    found = sandbox.download_files([f"{HOME}/bytes", f"{HOME}/missing", f"{HOME}/notes"])
    same([answer.error for answer in found], [None, "file_not_found", "is_directory"])
    assert found[0].content == content, "what was sent is found"


async def asynchronous():
    sandbox = AsyncE2BSandbox(sandbox=await e2b.AsyncSandbox.create(timeout=120))
    same((await sandbox.aexecute("echo out")).output, "out\n")
    long = "x" * 200_000
    same((await sandbox.awrite(f"{HOME}/note", "short\n")).error, None)
    same((await sandbox.aedit(f"{HOME}/note", "short", long)).occurrences, 1)
    (found,) = await sandbox.adownload_files([f"{HOME}/note"])
    same(found.content, f"{long}\n".encode())
    same([entry["path"] for entry in (await sandbox.als(HOME)).entries], [f"{HOME}/note"])
    assert await sandbox._sandbox.kill()


made = e2b.Sandbox.create(timeout=120)
tools(E2BSandbox(sandbox=made))
files(E2BSandbox(sandbox=e2b.Sandbox.connect(made.sandbox_id)))
asyncio.run(asynchronous())
assert made.kill()
assert E2BSandbox(sandbox=made).execute("true").exit_code != 0
raises(e2b.NotFoundException, lambda: e2b.Sandbox.connect(made.sandbox_id))
