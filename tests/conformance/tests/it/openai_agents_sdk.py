"""A session of the OpenAI Agents SDK, whose E2B client talks to `ringfence serve`."""

import asyncio
import io
from pathlib import Path

from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions
from agents.sandbox.entries import File
from agents.sandbox.errors import ExecTimeoutError, WorkspaceReadNotFoundError
from agents.sandbox.manifest import Environment, Manifest
from checks import same


GREETING = {"GREETING": "hello"}


async def raises(kind, call):
    try:
        await call
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was expected")


async def read(session, path):
    return (await session.read(Path(path))).read()


async def session_of(kind):
    client = E2BSandboxClient()
    manifest = Manifest(
        entries={"given/note": File(content=b"given")}, environment=Environment(value=GREETING)
    )
    options = E2BSandboxClientOptions(sandbox_type=kind, timeout=120, envs={"BASE": "env"})
    session = await client.create(manifest=manifest, options=options)
    await session.start()
    ran = await session.exec('echo "$GREETING $BASE $PWD"; echo why >&2; exit 3')
    same((ran.exit_code, ran.stdout, ran.stderr), (3, b"hello env /workspace\n", b"why\n"))
    await raises(ExecTimeoutError, session.exec("sleep 60", timeout=1))

    same(await read(session, "given/note"), b"given")
    content = bytes(range(256)) * 4096
    await session.write(Path("made/bytes"), io.BytesIO(content))
    assert await read(session, "made/bytes") == content, "what was written is read"
    await raises(WorkspaceReadNotFoundError, session.read(Path("missing")))
    await session.mkdir(Path("deep/er"), parents=True)
    same(
        sorted(Path(entry.path).name for entry in await session.ls(Path("."))),
        ["deep", "given", "made"],
    )
    await session.rm(Path("deep"), recursive=True)

    shell = await session.pty_exec_start("read word; echo got $word", tty=True, yield_time_s=0.5)
    heard = await session.pty_write_stdin(
        session_id=shell.process_id, chars="typed\n", yield_time_s=5
    )
    assert b"got typed" in shell.output + heard.output, heard
    ended = await session.pty_exec_start("echo said; exit 4", yield_time_s=30)
    same((ended.output, ended.exit_code), (b"said\n", 4))
    await session.pty_terminate_all()

    saved = await session.persist_workspace()
    await session.rm(Path("made"), recursive=True)
    await session.hydrate_workspace(saved)
    again = await client.resume(session.state)
    assert await read(again, "made/bytes") == content, "what was saved is there again"
    assert await session.running()
    await session.stop()
    await session.shutdown()
    assert not await session.running()


for kind in ("e2b", "e2b_code_interpreter"):
    asyncio.run(session_of(kind))
