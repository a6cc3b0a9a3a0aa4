"""Runs cells of code in one namespace, and tells the host what comes of them.

Requests come on the first standard input: the mark, modules to import with spaces between, and then for each cell its number, its code, its variables as
NAME=value, and an empty word; every word ends with NUL. Messages go to the first standard output between what code
writes there: a record separator, the mark, `.` for the last piece of a message or `+`, four hexadecimal digits for the
piece's length, the piece. A piece fits into PIPE_BUF, so that whatever else writes to the pipe cannot tear it, pipe(7).
"""

import ast
import asyncio
import base64
import builtins
import fcntl
import importlib.util
import inspect
import io
import json
import linecache
import os
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import traceback
import types

PIECE = 4096 - 64
LONGEST_MESSAGE = 16 << 20
# How long what was written to one stream is waited for to be read before the other is written to.
ORDER_PATIENCE = 1.0
FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
METHODS = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "image/svg+xml": "_repr_svg_",
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "application/pdf": "_repr_pdf_",
    "text/latex": "_repr_latex_",
    "application/json": "_repr_json_",
    "application/javascript": "_repr_javascript_",
}


def write(descriptor, data):
    """Writes all of it, also where a program that shares the pipe has made it one that does not wait."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            select.select([], [descriptor], [])


class Stream(io.RawIOBase):
    """A standard stream. What was written to the other one is read by the host first: so both stay in order."""

    last = 1

    def __init__(self, descriptor):
        self.descriptor = descriptor

    def writable(self):
        return True

    def fileno(self):
        return self.descriptor

    def write(self, data):
        if Stream.last != self.descriptor:
            settle(Stream.last)
            Stream.last = self.descriptor
        write(self.descriptor, data)
        return len(data)


def settle(descriptor):
    """Waits until a pipe is empty, but not for a program that goes on and on."""
    deadline = time.monotonic() + ORDER_PATIENCE
    try:
        while struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4))[0]:
            if time.monotonic() > deadline:
                return
            time.sleep(0.0002)
    except OSError:
        pass  # code has closed it, or put something else in its place


def text_stream(descriptor):
    buffer = io.BufferedWriter(Stream(descriptor))
    return io.TextIOWrapper(buffer, encoding="utf-8", errors="backslashreplace", line_buffering=True)


class Host:
    """The host's end: descriptors of its own, which no program that code starts inherits."""

    def __init__(self):
        self.requests = os.fdopen(os.dup(0), "rb")
        self.output, self.errors = os.dup(1), os.dup(2)
        self.process = os.getpid()
        self.lock = threading.Lock()
        self.mark = b""
        # Whether an interrupt came while a message was sent, which is never left half said.
        self.interrupted = False
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        self.rest = b""

    def word(self):
        """The next word of a request."""
        parts = []
        while True:
            part, end, self.rest = self.rest.partition(b"\0")
            parts.append(part)
            if end:
                return b"".join(parts).decode()
            self.rest = self.requests.read1(1 << 20)
            if not self.rest:
                os._exit(0)

    def request(self):
        number, code, variables = int(self.word()), self.word(), {}
        while word := self.word():
            name, _, value = word.partition("=")
            variables[name] = value
        return number, code, variables

    def tell(self, **message):
        """Sends a message."""
        self.send(self.output, encode(message))

    def send(self, descriptor, message):
        if os.getpid() != self.process:
            return  # a fork of this process is not this process
        with self.lock:
            for start in range(0, len(message), PIECE):
                piece = message[start : start + PIECE]
                kind = b"+" if start + PIECE < len(message) else b"."
                write(descriptor, b"\x1e" + self.mark + kind + b"%04x" % len(piece) + piece)
        if self.interrupted and threading.current_thread() is threading.main_thread():
            self.interrupted = False
            raise KeyboardInterrupt

    def restore_streams(self):
        """Undoes what code did to the standard streams."""
        os.dup2(self.output, 1)
        os.dup2(self.errors, 2)


class Cells:
    """The namespace, and the cells that are run in it."""

    def __init__(self, host):
        self.host = host
        self.runs = False
        # A module that can be found, for what pickles and what looks for names.
        self.module = types.ModuleType("__main__")
        sys.modules["__main__"] = self.module
        self.names = self.module.__dict__
        self.names["__builtins__"] = builtins
        self.loop = None
        builtins.display = self.display
        builtins.__command__ = command

    def interrupt(self, _, frame):
        # Not while a cell is being ended: its end must be told.
        if not self.runs or frame.f_code is Cells.execute.__code__:
            return
        while frame is not None:
            if frame.f_code is Host.send.__code__:
                self.host.interrupted = True
                return
            frame = frame.f_back
        raise KeyboardInterrupt

    def execute(self, number, code, variables):
        """Runs a cell. Whatever it raises is told."""
        self.host.restore_streams()
        self.host.interrupted = False
        signal.signal(signal.SIGINT, self.interrupt)
        before = os.environ.copy()
        os.environ.update(variables)
        error = None
        try:
            try:
                self.runs = True
                self.host.tell(type="begun", cell=number)
                self.run(code, "<cell %d>" % number)
                self.show_figures()
            finally:
                self.runs = False
        except BaseException as raised:
            self.runs = False
            error = raised
        if os.getpid() != self.host.process:
            os._exit(0 if error is None else 1)
        for name in variables:
            if name in before:
                os.environ[name] = before[name]
            else:
                os.environ.pop(name, None)
        self.finish(number, error)

    def finish(self, number, error):
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BaseException:
                pass  # code has closed it, or put something else in its place
        settle(self.host.errors)
        if error is not None:
            self.host.tell(type="error", name=type(error).__name__, value=words(error), traceback=trace(error))
        self.host.send(self.host.errors, b'{"type":"end","cell":%d}' % number)
        self.host.tell(type="end", cell=number)

    def run(self, code, name):
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        tree = parse(code, name)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
            last = ast.Expression(tree.body.pop().value)
        self.evaluate(compile(tree, name, "exec", FLAGS))
        if last is not None:
            value = self.evaluate(compile(last, name, "eval", FLAGS))
            if value is not None:
                self.names["_"] = value
                self.show(value, is_main=True)

    def evaluate(self, code):
        value = eval(code, self.names)
        if not code.co_flags & inspect.CO_COROUTINE:
            return value
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        task = self.loop.create_task(value)
        try:
            return self.loop.run_until_complete(task)
        except KeyboardInterrupt:
            task.cancel()
            raise

    def display(self, *values, **_):
        """Shows values as they can best be shown."""
        for value in values:
            self.show(value, is_main=False)

    def show(self, value, is_main):
        bundle = formats(value)
        if is_figure(value):
            sys.modules["matplotlib.pyplot"].close(value)  # shown once is enough
        sys.stdout.flush()
        sys.stderr.flush()
        settle(self.host.errors)
        message = {"type": "result", "is_main_result": is_main, "formats": bundle}
        encoded = encode(message)
        if len(encoded) > LONGEST_MESSAGE:
            print("a result was too long to be shown", file=sys.stderr)
            message["formats"] = {"text/plain": str(bundle.get("text/plain"))[:PIECE]}
            encoded = encode(message)
        self.host.send(self.host.output, encoded)

    def show_figures(self):
        """Shows the figures that are open, and closes them."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        for number in pyplot.get_fignums() if pyplot else ():
            self.show(pyplot.figure(number), is_main=False)

    def find_spec(self, name, path=None, target=None):
        """Makes pyplot's show() show figures from the moment that it is imported."""
        if name != "matplotlib.pyplot":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def show(*_, **__):
            self.show_figures()

        def exec_module(module):
            execute(module)
            module.show = show

        spec.loader.exec_module = exec_module
        return spec


def parse(code, name):
    """The tree of a cell. A line that is not Python and begins with `!` is a command, as notebooks have it."""
    lines = code.splitlines(True)
    while True:
        try:
            return compile("".join(lines), name, "exec", ast.PyCF_ONLY_AST | FLAGS)
        except SyntaxError as error:
            # Only the line that is wrong: the same text within a string is none.
            number = (error.lineno or 0) - 1
            line = lines[number] if 0 <= number < len(lines) else ""
            text = line.strip()
            if text.startswith("!"):
                words = text[1:]
            elif text.startswith("%pip "):
                words = "%s -m %s" % (shlex.quote(sys.executable), text[1:])
            else:
                raise
            indent = line[: len(line) - len(line.lstrip())]
            lines[number] = "%s__command__(%r)\n" % (indent, words)


def command(words):
    """Runs a command of a shell, whose output is the cell's. That it fails is no error of the cell."""
    sys.stdout.flush()
    sys.stderr.flush()
    subprocess.call(words, shell=True)


def is_figure(value):
    figure = sys.modules.get("matplotlib.figure")
    return figure is not None and isinstance(value, figure.Figure)


def formats(value):
    """All that a value can be shown as, by media type."""
    found = {}
    if not isinstance(value, type):
        whole = attempt(value, "_repr_mimebundle_", include=None, exclude=None)
        if isinstance(whole, tuple):
            whole = whole[0]
        if isinstance(whole, dict):
            found.update(whole)
        for kind, method in METHODS.items():
            if kind not in found:
                found[kind] = attempt(value, method)
    if is_figure(value) and found.get("image/png") is None:
        picture = io.BytesIO()
        value.savefig(picture, format="png", bbox_inches="tight")
        found["image/png"] = picture.getvalue()
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(value, getattr(pandas, "DataFrame", ())):
        found["e2b/data"] = columns(value)
    if "text/plain" not in found:
        found["text/plain"] = repr(value)
    return {str(kind): plain(part) for kind, part in found.items() if part is not None}


def columns(table):
    """The values of a table by column, as far as they can be told."""
    try:
        rows = json.loads(table.to_json(orient="split", date_format="iso"))
    except Exception:
        return None
    return {str(name): [row[index] for row in rows["data"]] for index, name in enumerate(rows["columns"])}


def encode(message):
    """Text of a message. What JSON has no words for is left out of a result."""
    try:
        text = json.dumps(message, ensure_ascii=False, allow_nan=False, default=str)
    except (ValueError, TypeError, RecursionError):
        shown = {kind: part for kind, part in message.get("formats", {}).items() if isinstance(part, str)}
        text = json.dumps({**message, "formats": shown}, ensure_ascii=False)
    return text.encode("utf-8", "replace")


def attempt(value, name, **arguments):
    """What a method of a value's class says, if there is one; that it fails is told and is no more than that."""
    method = getattr(type(value), name, None)
    if method is None:
        return None
    try:
        shown = method(value, **arguments)
    except Exception:
        traceback.print_exc()
        return None
    # Some tell more than the value itself: (value, metadata).
    return shown[0] if isinstance(shown, tuple) and name != "_repr_mimebundle_" else shown


def plain(part):
    return base64.b64encode(part).decode() if isinstance(part, (bytes, bytearray)) else part


def words(error):
    try:
        return str(error)
    except Exception:
        return "<%s that cannot be told>" % type(error).__name__


def trace(error):
    """The traceback from the cell on, without what is this file's."""
    step = error.__traceback__
    while step is not None and not step.tb_frame.f_code.co_filename.startswith("<cell "):
        step = step.tb_next
    last = step
    while last is not None and last.tb_next is not None:
        if last.tb_next.tb_frame.f_globals is globals():
            last.tb_next = None
        last = last.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, step))
    except Exception:
        return ""


def main():
    host = Host()
    cells = Cells(host)
    host.mark = host.word().encode()
    for module in host.word().split():
        try:
            __import__(module.rstrip("?"))
        except BaseException:
            pass  # code that needs it is told
    sys.stdin = open(0, closefd=False)
    sys.stdout, sys.stderr = text_stream(1), text_stream(2)
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
    sys.argv = [""]
    sys.meta_path.insert(0, cells)
    os.environ.setdefault("MPLBACKEND", "agg")
    signal.signal(signal.SIGINT, cells.interrupt)
    host.send(host.errors, b'{"type":"ready"}')
    host.tell(type="ready")
    while True:
        try:
            cells.execute(*host.request())
        except KeyboardInterrupt:
            pass  # it came between two cells


main()
