"""E2B's code interpreter package against `ringfence serve`, which is restarted meanwhile.

The first argument names the part to run. The sandbox is the only one of the server, and a file in
the sandbox describes its contexts.
"""

import json
import os
import signal
import sys
import threading

from checks import eventually, raises, same
from e2b import NotFoundException
from e2b_code_interpreter import Sandbox

ACT, *REST = sys.argv[1:]


def found():
    (info,) = Sandbox.list().next_items()
    return Sandbox.connect(info.sandbox_id)


def listed(sandbox):
    return [[context.id, context.language, context.cwd] for context in sandbox.list_code_contexts()]


def begin(waiting):
    """Contexts with state: two defaults, which are used when no context is named, and two others.

    Some of the contexts were started in advance.
    """
    sandbox = Sandbox.create(timeout=600)
    same(len(listed(sandbox)), int(waiting))
    same(sandbox.run_code("x = 41; x + 1").text, "42")
    same(sandbox.run_code("y=42", language="bash").error, None)
    for cwd in ("/tmp", "/home/user"):
        context = sandbox.create_code_context(cwd=cwd)
        same(
            sandbox.run_code("import os, subprocess; z = os.getcwd()", context=context).error, None
        )
    # It goes on beside the context that started it.
    same(
        sandbox.run_code("child = subprocess.Popen(['sleep', '600'])", context=context).error, None
    )
    same(len(listed(sandbox)), 4)
    sandbox.files.write("contexts", json.dumps(listed(sandbox)))


def leave(server, name):
    """Ends the server while a cell runs that writes more than anybody reads."""
    sandbox = found()
    context = sandbox.list_code_contexts()[2]
    code = "open('ran', 'w').close()\nwhile True: print('y' * 1000)"
    failures = []

    def run():
        try:
            sandbox.run_code(code, context=context, timeout=0)
        except Exception as error:
            failures.append(error)

    cell = threading.Thread(target=run, daemon=True)
    cell.start()
    eventually("the cell runs", lambda: sandbox.files.exists("/tmp/ran"))
    sandbox.files.remove("/tmp/ran")
    os.kill(int(server), getattr(signal, name))
    cell.join(60)
    same((cell.is_alive(), len(failures)), (False, 1))


def rest():
    """Brings the sandbox to rest."""
    assert found().pause()


def go_on(count):
    """The contexts as the next server has them: the usual one has run `count` cells."""
    sandbox = found()
    same(listed(sandbox), json.loads(sandbox.files.read("contexts")))
    usual = sandbox.run_code("x")
    same((usual.text, usual.execution_count), ("41", int(count) + 1))
    same(sandbox.run_code("echo $y", language="bash").logs.stdout, ["42\n"])
    for context in sandbox.list_code_contexts()[2:]:
        said = sandbox.run_code("print(z)", context=context)
        same((said.logs.stdout, said.error), ([context.cwd + "\n"], None))
    same(sandbox.run_code("child.poll()", context=context).text, None)
    same(len(listed(sandbox)), 4)


def outlive():
    """The server makes its default context again after code ended it.

    The error about a context that the client made says how to continue.
    """
    sandbox = Sandbox.create(timeout=600)
    for language, code, after in (
        ("bash", "exit 1", "echo hi"),
        ("python", "import os; os._exit(3)", "print('hi')"),
        ("python", "import os; os.abort()", "print('hi')"),
    ):
        same(sandbox.run_code(code, language=language).error.name, "ContextError")
        said = sandbox.run_code(after, language=language)
        same((said.logs.stdout, said.error, said.execution_count), (["hi\n"], None, 1))
    own = sandbox.create_code_context()
    same(sandbox.run_code("import os; os._exit(3)", context=own).error.name, "ContextError")
    refused = raises(Exception, lambda: sandbox.run_code("1", context=own))
    expected = f"has ended: its process exited with 3; restart the context with POST /contexts/{own.id}/restart"
    assert expected in str(refused), refused
    sandbox.restart_code_context(own)
    same(sandbox.run_code("1", context=own).text, "1")
    same(len(listed(sandbox)), 3)
    assert sandbox.kill()


def end():
    """What can be done to contexts can be done to these, too."""
    sandbox = found()
    _, _, one, other = sandbox.list_code_contexts()
    sandbox.restart_code_context(one)
    same(sandbox.run_code("z", context=one).error.name, "NameError")
    sandbox.remove_code_context(other)
    raises(NotFoundException, lambda: sandbox.run_code("1", context=other))
    eventually("nothing of it is left", lambda: len(sandbox.commands.list()) == 3)
    assert sandbox.kill()


globals()[ACT](*REST)
