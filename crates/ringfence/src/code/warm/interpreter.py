# An interpreter that waits for code. It starts as the code would, as `python3 .../main.py`, imports what code often needs,
# and waits. When it is told that the code is there, in the place of this file, it runs that as `python3` would.
#
# Descriptor 99 is a socket that keeps messages apart. In comes a list of modules; those with a `?` need not be there.
# Out goes `ready` with a line for each that could not be imported. In comes `!` and short code, which is compiled while
# its file is written, or `!` alone: the code is in its file. In comes `!` again: the file is there, and the code is run.
# Out goes the exit status, when nothing is left to do but to exit: taking the memory of an interpreter down costs more
# than most code. In comes anything, or the end: it exits.
#
# In a sandbox that stays there is no such socket. There what comes in comes on the standard input, which the code then
# finds empty; `ready` goes out on the standard output, ended by NUL, before the code can write there; and it just exits.
#
# Where the code leaves something behind that an interpreter sees to at its end (a thread, an open file, an object with a
# `__del__`), it is left to that: nothing is said, and it ends as after any file. Imitated is only how plain code ends.
#
# The code's own namespace is this one, with nothing in it that the code would not find in a cold run. What is here has
# globals and builtins of its own, and what is used after the code has begun is in local variables: the code may give
# other meanings to any name.


def __interpreter(namespace):
    import _io
    import _thread
    import _warnings
    import atexit
    import gc
    import os
    import select
    import sys

    channel = 99
    most = 1 << 14
    try:
        os.set_inheritable(channel, False)
        is_socket = True
    except OSError:
        is_socket = False
        os.dup2(0, channel, False)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
    del namespace["__interpreter"]
    path = namespace["__file__"]

    def read_code(word):
        source = word[1:]
        if not source:
            file = os.open(path, os.O_RDONLY)
            while piece := os.read(file, most):
                source += piece
            os.close(file)
        return compile(source, path, "exec", dont_inherit=True)

    # What a module has to say when it is imported is not the code's output.
    standard = [(os.dup(number), number) for number in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for _, number in standard:
        os.dup2(nowhere, number)
    failures = []
    for word in os.read(channel, 1 << 16).decode().split():
        name = word.rstrip("?")
        try:
            __import__(name)
        except BaseException as error:
            is_missing = isinstance(error, ModuleNotFoundError) and error.name == name
            if not (is_missing and word.endswith("?")):
                reason = " ".join(str(error).split())
                failures.append("%s: %s: %s" % (name, type(error).__name__, reason[:200]))

    # What is used after the code, which may put something else in its place.
    getpid, fstat, write, read, leave = os.getpid, os.fstat, os.write, os.read, os._exit
    count_threads, run_handlers = _thread._count, atexit._run_exitfuncs
    get_objects, get_attribute, get_own = gc.get_objects, type.__getattribute__, object.__getattribute__
    system, out, err = vars(sys), sys.stdout, sys.stderr
    process, socket = getpid(), is_socket and fstat(channel)[1:3]
    endings = [b"%d" % status for status in range(256)]
    modules = sys.modules
    known, newest = set(modules), (len(modules), next(reversed(modules)))
    spaces = [vars(modules[name]) for name in known - {"__main__", "sys"} if isinstance(modules[name], type(sys))]
    size = sum(map(len, spaces))

    in_memory = {_io.BytesIO, _io.StringIO}
    files = {_io.TextIOWrapper, _io.BufferedReader, _io.BufferedWriter, _io.BufferedRandom, _io.FileIO}
    generator = type(number for number in ())

    class Mark:
        pass

    def has_end(kind):
        # Whether an object of this type may do something at its end.
        try:
            get_attribute(kind, "__del__")
        except AttributeError:
            return False
        return True

    def is_done(thing):
        # Whether an object of such a type has nothing left to do.
        kind = type(thing)
        return kind in in_memory or kind in files and thing.closed or kind is generator and thing.gi_frame is None

    def has_buffers(name):
        # Whether this module may have something to write that Python does not know of. Those of the standard library do
        # not, but these.
        file = get_own(modules[name], "__dict__").get("__file__") or ""
        is_extension = file.endswith(".so") and "/lib-dynload/" not in file
        return is_extension or name in ("_ctypes", "_dbm", "_gdbm")

    def is_over(run_handlers):
        # Whether nothing is left to do but to exit, in the order of Py_FinalizeEx(): threads, handlers, streams, objects.
        try:
            if count_threads():
                return False
            run_handlers()
            if system["stdout"] is not out or system["stderr"] is not err:
                return False
            out.flush()
            err.flush()
            if (len(modules), next(reversed(modules), None)) != newest and any(map(has_buffers, set(modules) - known)):
                return False
            # What was there before the code is not among the objects; the mark is, unless the code has hidden them all.
            things = get_objects()
            kinds = set(map(type, things))
            if Mark not in kinds or count_threads():
                return False
            ends = set(filter(has_end, kinds - endless))
            return not ends or all(is_done(thing) for thing in things if type(thing) in ends)
        except BaseException:
            return False

    # Those of C have no end if they have none now: nobody can give them one.
    fixed = (kind for kind in set(map(type, get_objects())) if not kind.__flags__ & 1 << 9)
    endless = {Mark, *(kind for kind in fixed if not has_end(kind))}

    # What is there by now is no garbage of the code's: it is looked at no more.
    gc.collect()
    gc.freeze()
    # What is done for the first time takes longest: it is done once before there is code.
    waiting = select.poll()
    waiting.register(channel, select.POLLIN)
    waiting.poll(0)
    read_code(b"!")
    exec(read_code(b"!print(1)"), {})
    mark = Mark()
    is_over(int)  # which is no handler, and does nothing
    gc.freeze()  # what that has left, too
    # Made now, the code's own module is not frozen, and ends as it would.
    main = type(sys)("__main__")
    vars(main).update(namespace)
    namespace = vars(main)
    modules["__main__"] = main
    del main
    mark = Mark()
    for kept, number in standard:
        os.dup2(kept, number)
        os.close(kept)
    os.close(nowhere)

    words = "\n".join(["ready", *failures]).encode("utf-8", "replace")[: 1 << 14]
    os.write(*((channel, words) if is_socket else (1, words + b"\0")))
    # While its file is written nothing may look there for a line: what is worth a warning is compiled again.
    _warnings.filters.insert(0, ("error", None, Warning, None, 0))
    # One that is killed while it reads may take the word along, and nobody would know that it ran nothing.
    waiting.poll()
    word = os.read(channel, most)
    if not word:
        os._exit(0)
    if not is_socket:
        os.close(channel)

    status = 0
    is_interrupted = False
    code = None
    try:
        try:
            code = read_code(word)
        except BaseException:
            pass
        if is_socket and not os.read(channel, 16):
            os._exit(0)
        del _warnings.filters[0]
        code = code or read_code(word)
        exec(code, namespace)
    except SystemExit as request:
        status = request.code
    except BaseException as error:
        # The code's own frames; of code that cannot be compiled there are none.
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code is not code:
            trace = trace.tb_next
        error.__traceback__ = trace
        status = 1
        is_interrupted = type(error) is KeyboardInterrupt
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        if sys.version_info >= (3, 12):
            sys.last_exc = error
        try:
            sys.excepthook(type(error), error, trace)
        except SystemExit as request:
            status = request.code
        except BaseException as wrong:
            wrong.__context__, wrong.__traceback__ = None, wrong.__traceback__.tb_next
            stream = system.get("stderr") or err
            print("Error in sys.excepthook:", file=stream)
            sys.__excepthook__(type(wrong), wrong, wrong.__traceback__)
            print("\nOriginal exception was:", file=stream)
            sys.__excepthook__(type(error), error, trace)
        del trace
    if status is None:
        status = 0

    if is_interrupted or type(status) is not int or not 0 <= status < 256 or not is_over(run_handlers):
        # What the code has put into modules that were there before must not be kept by what is frozen.
        if sum(map(len, spaces)) != size:
            gc.unfreeze()
        if is_interrupted:
            sys.excepthook = lambda *error: None  # it was told already
            raise KeyboardInterrupt
        raise SystemExit(status)
    # A fork of the code's that came this far has its own end, and not the run's.
    if is_socket and getpid() == process:
        try:
            if fstat(channel)[1:3] == socket:
                write(channel, endings[status])
                read(channel, 16)
        except OSError:
            pass  # the code has closed it
    leave(status)


# A warning that is to name a caller of the code's names what it would name without one.
type(__interpreter)(
    __interpreter.__code__.replace(co_filename="sys"), {"__builtins__": dict(vars(__builtins__)), "__name__": "sys"}
)(globals())
