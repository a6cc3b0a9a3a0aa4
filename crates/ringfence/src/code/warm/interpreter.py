# An interpreter that waits for code. It starts as the code would, as `python3 .../main.py`, imports what code often needs,
# and waits. When it is told that the code is there, in the place of this file, it runs that as `python3` would.
#
# Descriptor 99 is a socket that keeps messages apart. In comes a list of modules; those with a `?` need not be there.
# Out goes `ready` with a line for each that could not be imported. In comes `!`: the code is there; short code follows at
# once, and need not be read. Out goes the exit status, when nothing is left to do but to exit: taking the memory of an
# interpreter down costs more than most code. In comes anything, or the end: it exits.
#
# In a sandbox that stays there is no such socket. There what comes in comes on the standard input, which the code then
# finds empty; `ready` goes out on the standard output, ended by NUL, before the code can write there; and it just exits.
#
# The code's own namespace is this one, with nothing in it that the code would not find in a cold run: what is used
# after it has begun is in local variables.


def __interpreter():
    import _thread
    import atexit
    import gc
    import os
    import select
    import sys

    channel = 99
    try:
        os.set_inheritable(channel, False)
        is_socket = True
    except OSError:
        is_socket = False
        os.dup2(0, channel, False)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
    namespace = globals()
    del namespace["__interpreter"]
    path = namespace["__file__"]

    def read_code(word):
        source = word[1:]
        if not source:
            file = os.open(path, os.O_RDONLY)
            while piece := os.read(file, 1 << 16):
                source += piece
            os.close(file)
        return compile(source, path, "exec", dont_inherit=True)

    def flush(*streams):
        is_flushed = True
        for stream in streams:
            try:
                if stream is not None and not stream.closed:
                    stream.flush()
            except BaseException:
                is_flushed = False
        return is_flushed

    def clear(*namespaces):
        for names in namespaces:
            for name in list(names):
                if name != "__builtins__":
                    names[name] = None

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
    # What is done for the first time takes longest: it is done once before there is code.
    read_code(b"!")
    rehearsed = {}
    exec(read_code(b"!print(1)"), rehearsed)
    clear(rehearsed)
    flush(sys.stdout, sys.stderr)
    for kept, number in standard:
        os.dup2(kept, number)
        os.close(kept)
    os.close(nowhere)

    # What is there by now is no garbage of the code's: it is looked at no more.
    gc.collect()
    gc.freeze()
    process = os.getpid()
    modules = sys.modules
    known = set(modules)
    newest = (len(modules), next(reversed(modules)))
    words = "\n".join(["ready", *failures]).encode("utf-8", "replace")[: 1 << 14]
    os.write(*((channel, words) if is_socket else (1, words + b"\0")))
    # One that is killed while it reads may take the word along, and nobody would know that it ran nothing.
    waiting = select.poll()
    waiting.register(channel, select.POLLIN)
    waiting.poll()
    word = os.read(channel, 1 << 17)
    if not word:
        os._exit(0)
    if not is_socket:
        os.close(channel)

    status = 0
    is_interrupted = False
    code = None
    try:
        code = read_code(word)
        del word
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
        is_interrupted = isinstance(error, KeyboardInterrupt)
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        try:
            sys.excepthook(type(error), error, trace)
        except SystemExit as request:
            status = request.code
        except BaseException as wrong:
            wrong.__context__, wrong.__traceback__ = None, wrong.__traceback__.tb_next
            print("Error in sys.excepthook:", file=sys.stderr)
            sys.__excepthook__(type(wrong), wrong, wrong.__traceback__)
            print("\nOriginal exception was:", file=sys.stderr)
            sys.__excepthook__(type(error), error, trace)
        del trace
    if status is None:
        status = 0
    elif not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1

    # From here on in the order of Py_FinalizeEx(): threads, handlers, streams, and what the code's modules hold.
    # Where there is no other thread, there is none to wait for.
    try:
        if _thread._count():
            modules["threading"]._shutdown()
    except BaseException:
        pass
    try:
        atexit._run_exitfuncs()
    except BaseException:
        pass
    if not flush(sys.stdout, sys.stderr):
        status = 120
    # A thread that is left would find its modules empty; the interpreter itself stops it first.
    if _thread._count():
        raise SystemExit(status)
    for key in ("last_type", "last_value", "last_traceback"):
        vars(sys).pop(key, None)
    clear(namespace)
    if (len(modules), next(reversed(modules), None)) != newest:
        imported = [module for name, module in modules.items() if name not in known]
        clear(*(vars(module) for module in reversed(imported) if isinstance(module, type(sys))))
    gc.collect()
    if not flush(sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        status = 120

    if is_interrupted:
        import signal

        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    # A fork of the code's that came this far has its own end, and not the run's.
    if is_socket and os.getpid() == process:
        os.write(channel, b"%d" % (status & 0xFF))
        os.read(channel, 16)
    os._exit(status & 0xFF)


__interpreter()
