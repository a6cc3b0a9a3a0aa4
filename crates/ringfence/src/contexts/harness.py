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
import resource
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
# How long an error's words may be, in characters.
LONGEST_WORDS = 512 << 10
# How deep a form of a result may be nested: the host reads no more than 127 levels.
DEEPEST = 100
# Where the host's descriptors are, or below: out of the way of code that closes what it has not opened.
HIGH = 1 << 12
UNTOLD = "<an error that cannot be told>"
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


class Stream(io.BufferedIOBase):
    """A standard stream. What was written to the other one is read by the host first: so both stay in order.

    It buffers nothing: a buffer writes again what it was interrupted in, although it was written.
    """

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


def is_usable(stream):
    try:
        return stream is not None and not stream.closed
    except AttributeError:
        return True  # it is code's own, and knows no end
    except BaseException:
        return False


def flush(ignored=Exception):
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except ignored:
            pass  # code has closed it, or put something else in its place


def text_stream(descriptor):
    return io.TextIOWrapper(Stream(descriptor), encoding="utf-8", errors="backslashreplace", line_buffering=True)


def high(descriptor):
    """A copy of a descriptor, out of the way, which no program inherits."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    lowest = min(HIGH, limit if limit > 0 else HIGH) - 3
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, max(lowest, 3))


class Host:
    """The host's end: descriptors of its own, which no program that code starts inherits."""

    def __init__(self):
        requests, self.output, self.errors = map(high, range(3))
        self.requests = os.fdopen(requests, "rb")
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

    def closerange(self, low, high, close=os.closerange):
        """Closes descriptors as os.closerange does, but not those that this process cannot do without."""
        if os.getpid() == self.process:
            for own in sorted((self.requests.fileno(), self.output, self.errors)):
                if low <= own < high:
                    close(low, own)
                    low = own + 1
        close(low, high)

    def restore_streams(self):
        """Undoes what code did to the standard streams."""
        try:
            os.fstat(0)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)  # the lowest that is free, open(2)
        for name, descriptor, own in (("stdout", 1, self.output), ("stderr", 2, self.errors)):
            os.dup2(own, descriptor)
            if not is_usable(getattr(sys, name, None)):
                setattr(sys, name, text_stream(descriptor))


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
            flush(BaseException)
            os._exit(0 if error is None else 1)
        told = None
        if error is not None:
            # It may be code of the cell that finds the words.
            try:
                self.runs = True
                told = {"name": shortened(type(error).__name__), "value": words(error), "traceback": trace(error)}
            except BaseException:
                told = {"name": "Exception", "value": UNTOLD, "traceback": ""}
            finally:
                self.runs = False
        for name in variables:
            if name in before:
                os.environ[name] = before[name]
            else:
                os.environ.pop(name, None)
        self.finish(number, told)

    def finish(self, number, error):
        flush(BaseException)
        settle(self.host.errors)
        if error is not None:
            self.host.tell(type="error", **error)
        self.host.send(self.host.errors, b'{"type":"end","cell":%d}' % number)
        self.host.tell(type="end", cell=number)

    def run(self, code, name):
        lines = split(code)
        linecache.cache[name] = (len(code), None, lines[:], name)
        tree = parse(lines, name)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not rest(lines, tree.body[-1]).startswith(";"):
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
        if self.loop is None or self.loop.is_closed():
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
        message = result(bundle, is_main)
        if len(message) > LONGEST_MESSAGE:
            print("a result was too long to be shown", file=sys.stderr)
            message = result({"text/plain": str(bundle.get("text/plain"))[:PIECE]}, is_main)
        flush()
        settle(self.host.errors)
        self.host.send(self.host.output, message)

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


def split(code):
    """The lines of a cell, where Python ends them: other characters that end a line of text may be in a string."""
    return list(io.StringIO(code, newline=None))


def rest(lines, node):
    """What follows a part of a cell."""
    line = lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode()
    return "".join([line, *lines[node.end_lineno :]]).strip()


def parse(lines, name):
    """The tree of a cell. A line that is not Python and begins with `!` is a command, as notebooks have it."""
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
    flush()
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
    return json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")


def result(bundle, is_main):
    """A message of a value. Forms that JSON has no words for, or the host cannot read, are left out."""
    told = ((kind, said(part)) for kind, part in bundle.items())
    forms = ", ".join("%s: %s" % (json.dumps(kind), part) for kind, part in told if part is not None)
    text = '{"type": "result", "is_main_result": %s, "formats": {%s}}' % (json.dumps(is_main), forms)
    return text.encode("utf-8", "replace")


def said(part):
    try:
        text = json.dumps(part, ensure_ascii=False, allow_nan=False, default=str)
        return text if is_readable(part, DEEPEST) else None
    except Exception:
        return None


def is_readable(part, depth):
    if isinstance(part, int):
        return abs(part) <= sys.float_info.max
    if not isinstance(part, (dict, list, tuple)):
        return True
    inner = part.values() if isinstance(part, dict) else part
    return depth > 0 and all(is_readable(one, depth - 1) for one in inner)


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


def shortened(text):
    left = len(text) - LONGEST_WORDS
    if left <= 0:
        return text
    half = LONGEST_WORDS // 2
    return "%s\n[%d characters left out]\n%s" % (text[:half], left, text[-half:])


def words(error):
    try:
        return shortened(str(error))
    except BaseException:
        return UNTOLD


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
        return shortened("".join(traceback.format_exception(type(error), error, step)))
    except BaseException:
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
    os.closerange = host.closerange
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
