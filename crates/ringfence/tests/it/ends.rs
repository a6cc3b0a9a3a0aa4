//! Tests of code that ends in unusual ways, or that makes a waiting interpreter look as if it had
//! ended.

use std::time::Duration;

use ringfence::Policy;
use ringfence_test_ledger::require;
use rustix::process::{Pid, Signal, kill_process};

use crate::warm::{assert_same, engine_of, interpreters_at, ready, run};
use crate::{place, runtime};

#[test]
fn code_that_takes_the_names_of_what_it_is_run_by_ends_as_it_does_cold() {
    require!(user_namespaces, bwrap, binary, python3);
    assert_same(&[
        "list = [3, 1, 2]\nprint(sorted(list))",
        "type = isinstance = vars = set = map = any = len = next = range = None\nimport csv",
        "SystemExit = BaseException = OSError = int = 5\nraise KeyError('k')",
        "import sys\nprint = str = int = None\nsys.exit('said so')",
        "import builtins\nbuiltins.isinstance = builtins.type = builtins.any = builtins.print = \
         None",
        "import gc, os\nos.write = os.read = os.getpid = os.fstat = gc.collect = gc.get_objects = \
         None\nprint(1)",
        "import os\nfrom unittest import mock\nmock.patch('os._exit').start()\nprint(1)",
        "import sys\nprint(sys._getframe().f_code.co_name, '__interpreter' in globals(), \
         __builtins__)",
        "import warnings\nwarnings.warn('warned', stacklevel=2)\n\
         warnings.warn('not', DeprecationWarning, stacklevel=2)",
    ]);
}

#[test]
fn code_whose_streams_are_not_what_they_were_ends_as_it_does_cold() {
    require!(user_namespaces, bwrap, binary, python3);
    assert_same(&[
        "import sys\nclass Tee:\n    def __init__(self, to): self.to = to\n    def write(self, \
         text): self.to.write(text)\n    \
         def flush(self): self.to.flush()\nsys.stdout = Tee(sys.stdout)\nprint('twice')",
        "import sys\nclass Odd:\n    def write(self, text): pass\n    def __repr__(self): return \
         'odd'\nsys.stdout = Odd()\nprint('lost')",
        "import sys\nprint(1)\ndel sys.stdout",
        "import sys\nsys.stdout = None\nprint(1)",
        "import sys\nsys.stdout.close()",
        "import sys\nsys.stdout.detach()",
        "import sys\nsys.stdout = open('out', 'w')\nprint('in a file')",
        "import os\nos.dup2(os.open('/dev/full', os.O_WRONLY), 1)\nprint('too much')",
        "import sys\nsys.stderr = None\nsys.exit('said so')",
        "import sys\nsys.stderr.close()\nsys.exit('said so')",
        "import os\nos.closerange(3, 256)\nprint('ok')",
        "import os\nos.closerange(3, 256)\nraise SystemExit(4)",
        "import os\nos.dup2(1, 99)\nprint('ok')",
        "import os\nos.dup2(os.open('file', os.O_CREAT | os.O_RDWR), 99)\nprint('ok')\n\
         raise SystemExit(4)",
        "import os\nos.closerange(0, 256)",
    ]);
}

#[test]
fn processes_that_code_leaves_behind_end_as_they_do_cold() {
    require!(user_namespaces, bwrap, binary, python3);
    assert_same(&[
        "import os\nclass Temp:\n    def __del__(self): print(os.getcwd() is None, Temp.__name__, \
         helper())\n\
         def helper(): return 'helped'\ntemp = Temp()",
        "class A:\n    def __init__(self, name): self.name = name\n    def __del__(self): \
         print(self.name)\n\
         a, b, c = A('a'), A('b'), A('c')\nc.c = c\n1/0",
        "import json\nclass A:\n    def __del__(self): print('gone')\njson.kept = A()",
        "import json, os\njson.kept = open('kept', 'w')\njson.kept.write('kept')\n\
         if os.fork():\n    os.wait()\n    print(open('kept').read())",
        "import os\nif os.fork():\n    os.wait()\n    print(open('kept').read())\n\
         else:\n    file = open('kept', 'w')\n    file.write('kept')",
        "import gc, os\nif os.fork():\n    os.wait()\n    print(open('kept').read())\n\
         else:\n    file = open('kept', 'w')\n    file.write('kept')\n    gc.freeze()",
        "class A:\n    def __del__(self): print('gone')\na = A()\na.a = a\ndel a",
        "async def never(): pass\nit = never()",
        "import warnings\nwarnings.simplefilter('always')\nfile = open('/dev/null')",
        "def numbers():\n    try: yield 1\n    finally: print('closed')\nit = numbers()\nnext(it)",
        "with open('kept', 'w') as file: file.write('kept')\nit = (word for word in ['a'])\n\
         print(*it, *open('kept'))",
        "import contextlib, os\n@contextlib.contextmanager\n\
         def held():\n    try: yield\n    finally: print(os.sep)\n\
         it = held()\nit.__enter__()",
        "import weakref\nclass A: pass\na = A()\nweakref.finalize(a, print, 'finalized')",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), \
         daemon=True).start()\n\
         class A:\n    def __del__(self): print('gone')\na = A()",
        "import _thread, time\n_thread.start_new_thread(lambda: (time.sleep(.2), print('never')), \
         ())\nprint('over')",
        "import ctypes\nctypes.CDLL(None).printf(b'by libc')",
    ]);
}

#[test]
fn interrupts_odd_exit_codes_and_code_that_cannot_be_compiled_end_as_they_do_cold() {
    require!(user_namespaces, bwrap, binary, python3);
    let mut programs = vec![
        "import subprocess\nraise KeyboardInterrupt",
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nprint('never')",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), \
         daemon=True).start()\n\
         raise KeyboardInterrupt",
        "class Mine(KeyboardInterrupt): pass\nraise Mine",
        "import atexit\natexit.register(print, 'bye')\nraise KeyboardInterrupt",
        "import sys\nsys.exit(2**64)",
        "import sys\nsys.exit(-2**64)",
        "import sys\nsys.exit(256)",
        "import sys\nsys.exit(True)",
        "class Code(int): pass\nraise SystemExit(Code(4))",
        "raise SystemExit((1, 2))",
    ];
    // Short code is compiled while its file is written. The order of the two differs each time, so
    // repeat the programs.
    for _ in 0..6 {
        programs.extend([
            "x = 1 is 1\n",
            "print('never')\nreturn 1\n",
            "x = = 1\n",
            "nonlocal x\n",
        ]);
    }
    assert_same(&programs);
}

#[test]
fn code_that_was_heard_is_not_run_again() {
    require!(user_namespaces, binary, python3);
    let home = place();
    let engine = engine_of(home.path(), 1, &[]);
    // The code claims to have ended while it has a child, is told to exit, and is killed before it
    // reads that.
    let code = "import os, time\nprint('run', flush=True)\n\
        if os.path.exists('/proc/self/fd/99'):\n    \
        if os.fork() == 0:\n        time.sleep(60)\n    os.write(99, \
        b'0')\n    time.sleep(.3)\n    os.kill(os.getpid(), 9)";
    runtime().block_on(async {
        let interpreters = engine.interpreters(&Policy::default(), "python").unwrap();
        let result = run(&interpreters, code, None).await;
        assert_eq!((result.signal, &*result.stdout), (Some(9), "run\n"), "{result:?}");
    });
}

#[test]
fn code_that_is_run_cold_after_all_has_no_more_time() {
    require!(user_namespaces, binary, python3);
    let home = place();
    let engine = engine_of(home.path(), 1, &[]);
    runtime().block_on(async {
        let interpreters = engine.interpreters(&Policy::default(), "python").unwrap();
        ready(&interpreters).await;
        let waiting = interpreters_at(home.path());
        let signal = |signal| {
            for process in &waiting {
                kill_process(Pid::from_raw(*process).unwrap(), signal).unwrap();
            }
        };
        signal(Signal::STOP);
        let time = Some(Duration::from_secs(4));
        let call = interpreters.execute_code("import time\ntime.sleep(3)", time);
        let killed = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            signal(Signal::KILL);
        };
        let (result, ()) = tokio::join!(call, killed);
        let result = result.unwrap();
        assert!(!result.meta.warm && result.timed_out && !result.ok, "{result:?}");
    });
}
