"""The executor of `smolagents`, which runs the code of agents, against `ringfence serve`."""

from checks import raises, same
from smolagents import FinalAnswerTool, tool
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import E2BExecutor
from smolagents.utils import AgentError


@tool
def double(number: int) -> int:
    """Doubles a number.

    Args:
        number: Which.
    """
    return number * 2


# Nothing can be fetched, and what the executor wants to install for its tools is not waited for.
executor = E2BExecutor([], AgentLogger(level=LogLevel.OFF), timeout=120, envs={"PIP_RETRIES": "0"})
ran = executor("x = 41\nprint('said')\nx + 1")
same((ran.output, ran.logs, ran.is_final_answer), ("42", "said\n", False))
same(executor("x").output, "41")
failed = str(raises(AgentError, lambda: executor("print('before')\n1 / 0")))
assert failed.startswith("before\n") and "ZeroDivisionError\ndivision by zero" in failed, failed
same(executor("x").output, "41")

executor.send_variables({"table": [1, {"two": (3, 4)}], "word": "ä"})
same(executor("print(word)\ntable").logs, "ä\n")
same(executor("table[1]['two']").output, "(3, 4)")
executor.send_tools({"double": double, "final_answer": FinalAnswerTool()})
same(executor("double(number=21)").output, "42")
final = executor("final_answer({'answer': double(x)})")
same((final.output, final.is_final_answer), ({"answer": 82}, True))

dot = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
picture = executor(
    f"import base64\nclass Dot:\n def _repr_png_(self): return base64.b64decode('{dot}')\nDot()"
).output
same((picture.format, picture.size), ("PNG", (1, 1)))

sandbox = executor.sandbox
executor.cleanup()
assert not sandbox.is_running()
